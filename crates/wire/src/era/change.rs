//! Members that come into an object and go out of it, by byte range.

use crate::object::Inside;
use crate::span::Span;
use crate::splice::{Edit, Edited, write_string};

/// A change of a text that owns what comes instead.
pub type Change = (Span, Vec<u8>);

/// Returns a text with its changes; they may come in any order, but not overlap.
#[must_use]
pub fn applied(source: &[u8], changes: &mut [Change]) -> Vec<u8> {
    // Stable: what is put in at a place stands before what is taken away from there.
    changes.sort_by_key(|(at, _)| at.start);
    let edits: Vec<_> = changes
        .iter()
        .map(|(at, with)| Edit { at: *at, with })
        .collect();
    let edits = &edits;
    Edited { source, edits }.to_vec()
}

/// Which of two members to take out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It stays as it is.
    Stays,
    /// It goes, and the comma with it.
    Goes,
}

/// Appends the changes of an object that stands at `at` of a text: `front` are members to put in
/// front of the others, without a comma at their end; `fate` says which of the others stay.
/// Whether the value there is an object at all.
pub(super) fn rewrite(
    text: &[u8],
    at: Span,
    front: Vec<u8>,
    mut fate: impl FnMut(&[u8], Span) -> Fate,
    out: &mut Vec<Change>,
) -> bool {
    let object = at.of(text);
    let before = object.iter().take_while(|byte| is_space(**byte)).count();
    if object.get(before) != Some(&b'{') {
        return false;
    }
    let open = before + 1;
    let first = out.len();
    let mut cut = |start: usize, end: usize| {
        out.push((Span { start, end }.shift(at.start), Vec::new()));
    };
    let mut inside = Inside::open(object, b'{');
    // Where the member before ends, and where those begin that go and are not cut yet.
    let (mut end, mut going) = (open, None);
    let mut some_stay = false;
    while let Some((key, value)) = inside.member() {
        if fate(&key.meaning(), value.shift(at.start)) == Fate::Goes {
            going.get_or_insert(end);
        } else {
            match going.take() {
                Some(start) if some_stay => cut(start, end),
                // The first that stays has nothing before it any more, not even a comma.
                Some(start) => cut(start, after_comma(object, end)),
                None => {}
            }
            some_stay = true;
        }
        end = value.end;
    }
    if let Some(start) = going {
        cut(start, end);
    }
    if !front.is_empty() {
        let mut front = front;
        if some_stay {
            front.push(b',');
        }
        let place = Span {
            start: open,
            end: open,
        };
        out.insert(first, (place.shift(at.start), front));
    }
    true
}

/// Returns the whole of a text as a span.
pub(super) const fn whole(text: &[u8]) -> Span {
    Span {
        start: 0,
        end: text.len(),
    }
}

/// Appends one member to those that are to be put in front.
pub(super) fn push_member(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    if !out.is_empty() {
        out.push(b',');
    }
    write_string(out, key);
    out.push(b':');
    out.extend_from_slice(value);
}

/// Returns a text as a string literal.
pub(super) fn literal(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_string(&mut out, text);
    out
}

/// Whether a value is an object.
pub(super) fn is_object(value: &[u8]) -> bool {
    value.first() == Some(&b'{')
}

fn after_comma(object: &[u8], at: usize) -> usize {
    let rest = object.get(at..).unwrap_or_default();
    match rest.iter().position(|byte| *byte == b',') {
        Some(comma) => at + comma + 1,
        None => at,
    }
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn rewritten(text: &str, front: &str, gone: &[&str]) -> String {
        let mut changes = Vec::new();
        let text = text.as_bytes();
        let fate = |key: &[u8], _| match gone.iter().any(|gone| gone.as_bytes() == key) {
            true => Fate::Goes,
            false => Fate::Stays,
        };
        let front = front.as_bytes().to_vec();
        rewrite(text, whole(text), front, fate, &mut changes);
        String::from_utf8(applied(text, &mut changes)).unwrap()
    }

    #[test]
    fn members_come_and_go_with_their_commas_and_the_rest_stays_as_written() {
        for (text, front, gone, want) in [
            ("{}", "", &[][..], "{}"),
            ("{ }", "\"x\":1", &[], "{\"x\":1 }"),
            (" { \"a\" : 1 }", "\"x\":1", &[], " {\"x\":1, \"a\" : 1 }"),
            ("{\"a\":1}", "\"x\":1", &["a"], "{\"x\":1}"),
            ("{\"a\":1,\"b\":2}", "", &["a"], "{\"b\":2}"),
            ("{\"a\":1,\"b\":2}", "", &["b"], "{\"a\":1}"),
            (
                "{\"a\":1 , \"b\":2 , \"c\":3}",
                "",
                &["b"],
                "{\"a\":1 , \"c\":3}",
            ),
            ("{\"a\":1,\"b\":2,\"c\":3}", "", &["a", "b"], "{\"c\":3}"),
            ("{\"a\":1,\"b\":2,\"c\":3}", "", &["a", "c"], "{\"b\":2}"),
            (
                "{\"a\":1,\"a\":2,\"c\":3}",
                "\"a\":9",
                &["a"],
                "{\"a\":9,\"c\":3}",
            ),
            (
                "{\"\\u0061\":1,\"b\":{\"a\":2}}",
                "",
                &["a"],
                "{\"b\":{\"a\":2}}",
            ),
            ("[1]", "\"x\":1", &[], "[1]"),
            ("null", "\"x\":1", &["a"], "null"),
        ] {
            assert_eq!(rewritten(text, front, gone), want, "{text}");
        }
    }

    #[test]
    fn whatever_comes_and_goes_the_text_means_the_same_as_a_map_that_did_so() {
        for seed in 0..2_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let count = random.usize(0..6);
            let space = |random: &mut fastrand::Rng| ["", " ", "\n\t"][random.usize(0..3)];
            let mut text = String::from("{");
            for index in 0..count {
                let value = ["1", "\",{\"", "{\"a\":[1,2]}", "[]"][random.usize(0..4)];
                let (a, b) = (space(&mut random), space(&mut random));
                let comma = if index > 0 { "," } else { "" };
                text.push_str(&format!("{a}{comma}{b}\"k{index}\"{b}:{a}{value}{a}"));
            }
            text.push('}');
            let gone: Vec<_> = (0..count)
                .filter(|_| random.bool())
                .map(|index| format!("k{index}"))
                .collect();
            let gone: Vec<_> = gone.iter().map(String::as_str).collect();
            let front = if random.bool() { "\"new\":true" } else { "" };
            let mut want: Value = serde_json::from_str(&text).unwrap();
            let object = want.as_object_mut().unwrap();
            object.retain(|key, _| !gone.contains(&key.as_str()));
            if !front.is_empty() {
                object.insert("new".into(), Value::Bool(true));
            }
            let got: Value = serde_json::from_str(&rewritten(&text, front, &gone)).unwrap();
            assert_eq!(got, want, "seed {seed}: {text}");
        }
    }
}
