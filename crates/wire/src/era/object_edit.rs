//! Adds and removes members of a JSON object by byte range.

use crate::object::JsonCursor;
use crate::span::ByteSpan;
use crate::splice::{ByteEdit, EditedText, write_string};

/// An edit with an owned replacement.
pub type OwnedEdit = (ByteSpan, Vec<u8>);

/// Applies edits to a text; any order, no overlap.
#[must_use]
pub fn apply_edits(source: &[u8], changes: &mut [OwnedEdit]) -> Vec<u8> {
    // Stable sort: an insertion precedes a removal at the same position.
    changes.sort_by_key(|(at, _)| at.start);
    let edits: Vec<_> = changes
        .iter()
        .map(|(at, with)| ByteEdit { at: *at, with })
        .collect();
    let edits = &edits;
    EditedText { source, edits }.to_vec()
}

/// Action for a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberAction {
    /// Keep unchanged.
    Keep,
    /// Remove with the comma.
    Remove,
}

/// Appends the edits of an object at `at`: `front` are new leading members without a trailing
/// comma; `action` decides about each existing member. Returns whether the value is an object.
pub(super) fn rewrite_object(
    text: &[u8],
    at: ByteSpan,
    front: Vec<u8>,
    mut action: impl FnMut(&[u8], ByteSpan) -> MemberAction,
    edits: &mut Vec<OwnedEdit>,
) -> bool {
    let object = at.slice(text);
    let before = object.iter().take_while(|byte| is_space(**byte)).count();
    if object.get(before) != Some(&b'{') {
        return false;
    }
    let open = before + 1;
    let first = edits.len();
    let mut cut = |start: usize, end: usize| {
        edits.push((ByteSpan { start, end }.shift(at.start), Vec::new()));
    };
    let mut inside = JsonCursor::open(object, b'{');
    // End of the previous member, and start of the pending removal.
    let (mut end, mut removed_from) = (open, None);
    let mut has_kept = false;
    while let Some((key, value)) = inside.next_member() {
        if action(&key.unescape(), value.shift(at.start)) == MemberAction::Remove {
            removed_from.get_or_insert(end);
        } else {
            match removed_from.take() {
                Some(start) if has_kept => cut(start, end),
                // The first kept member needs no comma before.
                Some(start) => cut(start, skip_comma(object, end)),
                None => {}
            }
            has_kept = true;
        }
        end = value.end;
    }
    if let Some(start) = removed_from {
        cut(start, end);
    }
    if !front.is_empty() {
        let mut front = front;
        if has_kept {
            front.push(b',');
        }
        let insert_at = ByteSpan {
            start: open,
            end: open,
        };
        edits.insert(first, (insert_at.shift(at.start), front));
    }
    true
}

/// Returns the span of a whole text.
pub(super) const fn whole_span(text: &[u8]) -> ByteSpan {
    ByteSpan {
        start: 0,
        end: text.len(),
    }
}

/// Appends a member to a list of members.
pub(super) fn push_member(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    if !out.is_empty() {
        out.push(b',');
    }
    write_string(out, key);
    out.push(b':');
    out.extend_from_slice(value);
}

/// Returns a text as a string literal.
pub(super) fn to_string_literal(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_string(&mut out, text);
    out
}

/// Whether a value is an object.
pub(super) fn is_object(value: &[u8]) -> bool {
    value.first() == Some(&b'{')
}

fn skip_comma(object: &[u8], at: usize) -> usize {
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
            true => MemberAction::Remove,
            false => MemberAction::Keep,
        };
        let front = front.as_bytes().to_vec();
        rewrite_object(text, whole_span(text), front, fate, &mut changes);
        String::from_utf8(apply_edits(text, &mut changes)).unwrap()
    }

    #[test]
    fn rewrite_keeps_other_members_unchanged() {
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
    fn random_rewrites_match_map_edits() {
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
