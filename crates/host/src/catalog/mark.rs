//! Marks that we put on a definition, in its `_meta`; all else stays as it was written.

use bowline_core::lint::Code;
use bowline_wire::object;
use bowline_wire::span::Span;
use bowline_wire::splice::{replace, write_string};
use bytes::Bytes;

/// Begins the keys that are ours. A server that writes such a key itself could hide a mark, or
/// forge one.
pub(super) const PREFIX: &str = "dev.bowline/";

/// What a definition is marked with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// How it stands to its pin, where that is not as it should be.
    pub pin: Option<&'static str>,
    /// What is odd about it.
    pub lint: Vec<Code>,
}

impl Marks {
    pub(super) fn is_none(&self) -> bool {
        self.pin.is_none() && self.lint.is_empty()
    }

    /// Writes the members of `_meta`, without brackets.
    pub(super) fn members(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(pin) = self.pin {
            write_string(&mut out, &format!("{PREFIX}pin"));
            out.push(b':');
            write_string(&mut out, pin);
        }
        if !self.lint.is_empty() {
            if !out.is_empty() {
                out.push(b',');
            }
            write_string(&mut out, &format!("{PREFIX}lint"));
            out.extend_from_slice(b":[");
            for (nth, code) in self.lint.iter().enumerate() {
                if nth > 0 {
                    out.push(b',');
                }
                write_string(&mut out, code.as_str());
            }
            out.push(b']');
        }
        out
    }
}

/// Returns the definition with these marks, and without any that its server wrote.
pub(super) fn mark(written: &Bytes, marks: &Marks) -> Bytes {
    let meta = object::field(written, "_meta");
    let is_forged = meta.is_some_and(|at| {
        let mut keys = object::fields(at.of(written)).map(|(key, _)| key);
        keys.any(|key| key.starts_with(PREFIX))
    });
    if marks.is_none() && !is_forged {
        return written.clone();
    }
    let ours = marks.members();
    let marked = match meta {
        Some(at) => replace(written, at, &meta_with(at.of(written), &ours)),
        None => {
            let inside = [b",\"_meta\":{", ours.as_slice(), b"}"].concat();
            let end = written.len().saturating_sub(1);
            replace(written, Span { start: end, end }, &inside)
        }
    };
    marked.into()
}

/// Returns the definition with the mark of what is only known from before. Marks of ours that it
/// has stay; one that its server wrote was taken out when it was read.
pub(super) fn mark_stale(definition: &[u8]) -> Vec<u8> {
    let mut ours = Vec::new();
    write_string(&mut ours, &format!("{PREFIX}stale"));
    ours.extend_from_slice(b":true");
    let inside = |text: &[u8], at: Span, with: &[&[u8]]| replace(text, at, &with.concat());
    let before_end = |end: usize| Span {
        start: end.saturating_sub(1),
        end: end.saturating_sub(1),
    };
    match object::field(definition, "_meta") {
        Some(at) if at.of(definition).starts_with(b"{") => {
            let empty = object::fields(at.of(definition)).next().is_none();
            let comma: &[u8] = if empty { b"" } else { b"," };
            inside(definition, before_end(at.end), &[comma, &ours])
        }
        Some(at) => inside(definition, at, &[b"{", &ours, b"}"]),
        None => {
            let end = before_end(definition.len());
            inside(definition, end, &[b",\"_meta\":{", &ours, b"}"])
        }
    }
}

/// Returns the value of `_meta` with our members at its end. What is no object goes.
fn meta_with(value: &[u8], ours: &[u8]) -> Vec<u8> {
    let mut out = b"{".to_vec();
    let mut before = 1;
    for (key, at) in object::fields(value) {
        // From the end of the member before: with the comma, the key and all space.
        let member = value.get(before..at.end).unwrap_or_default();
        before = at.end;
        if key.starts_with(PREFIX) {
            continue;
        }
        let is_first = out.len() == 1;
        out.extend_from_slice(if is_first {
            after_comma(member)
        } else {
            member
        });
    }
    if out.len() > 1 && !ours.is_empty() {
        out.push(b',');
    }
    out.extend_from_slice(ours);
    out.push(b'}');
    out
}

fn after_comma(member: &[u8]) -> &[u8] {
    member
        .trim_ascii_start()
        .strip_prefix(b",")
        .unwrap_or(member)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(written: &str, marks: &Marks, want: &str) {
        let marked = mark(&Bytes::copy_from_slice(written.as_bytes()), marks);
        assert_eq!(std::str::from_utf8(&marked).unwrap(), want);
        serde_json::from_slice::<serde_json::Value>(&marked).unwrap();
    }

    fn changed() -> Marks {
        Marks {
            pin: Some("changed"),
            lint: Vec::new(),
        }
    }

    #[test]
    fn a_mark_is_put_in_and_nothing_else_is_touched() {
        check(
            r#"{ "name":"t", "n": 1.0 }"#,
            &changed(),
            r#"{ "name":"t", "n": 1.0 ,"_meta":{"dev.bowline/pin":"changed"}}"#,
        );
        check(
            r#"{"_meta":{ "a" : 1 },"name":"t"}"#,
            &changed(),
            r#"{"_meta":{ "a" : 1,"dev.bowline/pin":"changed"},"name":"t"}"#,
        );
        for empty in ["{}", "null", "\"x\"", "[1]"] {
            let written = format!(r#"{{"_meta":{empty},"name":"t"}}"#);
            check(
                &written,
                &Marks {
                    pin: None,
                    lint: vec![Code::HiddenText, Code::Injection],
                },
                r#"{"_meta":{"dev.bowline/lint":["hidden_text","injection"]},"name":"t"}"#,
            );
            check(&written, &Marks::default(), &written);
        }
    }

    #[test]
    fn what_is_only_known_from_before_says_so_beside_other_marks() {
        for (written, want) in [
            (
                r#"{ "name":"t" }"#,
                r#"{ "name":"t" ,"_meta":{"dev.bowline/stale":true}}"#,
            ),
            (
                r#"{"_meta":{ },"name":"t"}"#,
                r#"{"_meta":{ "dev.bowline/stale":true},"name":"t"}"#,
            ),
            (
                r#"{"name":"t","_meta":{"a":1,"dev.bowline/pin":"changed"}}"#,
                r#"{"name":"t","_meta":{"a":1,"dev.bowline/pin":"changed","dev.bowline/stale":true}}"#,
            ),
            (
                r#"{"_meta":null,"name":"t"}"#,
                r#"{"_meta":{"dev.bowline/stale":true},"name":"t"}"#,
            ),
        ] {
            let marked = mark_stale(written.as_bytes());
            assert_eq!(std::str::from_utf8(&marked).unwrap(), want);
            serde_json::from_slice::<serde_json::Value>(&marked).unwrap();
        }
    }

    #[test]
    fn a_mark_that_a_server_wrote_is_taken_out_also_in_disguise() {
        check(
            r#"{"name":"t","_meta":{"dev.bowline/pin":"approved", "a":1 ,"dev\u002ebowline/lint":[],"b":2}}"#,
            &changed(),
            r#"{"name":"t","_meta":{ "a":1,"b":2,"dev.bowline/pin":"changed"}}"#,
        );
        check(
            r#"{"name":"t","_meta":{"dev.bowline/pin":"x","dev.bowline/pin":"y"}}"#,
            &Marks::default(),
            r#"{"name":"t","_meta":{}}"#,
        );
    }
}
