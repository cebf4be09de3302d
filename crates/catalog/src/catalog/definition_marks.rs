//! Gateway marks in the `_meta` of a definition; all other bytes stay unchanged.

use bowline_core::lint::LintCode;
use bowline_wire::splice::write_string;
use bowline_wire::{MemberList, ObjectEditor, object};
use bytes::Bytes;

/// Prefix of the gateway's keys. A server writing such keys could hide or forge a mark.
pub(super) const META_PREFIX: &str = "dev.bowline/";

/// The marks of a definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefinitionMarks {
    /// Pin state, if not approved.
    pub pin: Option<&'static str>,
    /// Lint findings.
    pub lint: Vec<LintCode>,
}

impl DefinitionMarks {
    pub(super) fn is_empty(&self) -> bool {
        self.pin.is_none() && self.lint.is_empty()
    }

    /// Returns the `_meta` members.
    pub(super) fn to_members(&self) -> MemberList {
        let mut members = MemberList::default();
        if let Some(pin) = self.pin {
            members.push_text(&format!("{META_PREFIX}pin"), pin);
        }
        if !self.lint.is_empty() {
            let mut codes = b"[".to_vec();
            for (nth, code) in self.lint.iter().enumerate() {
                if nth > 0 {
                    codes.push(b',');
                }
                write_string(&mut codes, code.as_str());
            }
            codes.push(b']');
            members.push(&format!("{META_PREFIX}lint"), &codes);
        }
        members
    }
}

/// Adds the marks and removes any written by the server.
pub(super) fn apply_marks(written: &Bytes, marks: &DefinitionMarks) -> Bytes {
    let meta = object::field(written, "_meta");
    let is_forged = meta.is_some_and(|at| {
        let mut keys = object::fields(at.slice(written)).map(|(key, _)| key);
        keys.any(|key| key.starts_with(META_PREFIX))
    });
    if marks.is_empty() && !is_forged {
        return written.clone();
    }
    let ours = marks.to_members();
    let mut editor = ObjectEditor::new(written);
    match meta {
        Some(at) if editor.retain(at, |key, _| !key.starts_with(META_PREFIX.as_bytes())) => {
            editor.insert_last(at, ours);
        }
        // A value other than an object is replaced.
        Some(at) => editor.replace(at, ours.into_object()),
        None => {
            let meta = MemberList::from_member("_meta", &ours.into_object());
            editor.insert_last(editor.whole(), meta);
        }
    }
    editor.finish().into()
}

/// Adds the stale mark. Gateway marks stay; marks written by the server were removed on parsing.
pub(super) fn add_stale_mark(definition: &[u8]) -> Vec<u8> {
    let key = format!("{META_PREFIX}stale");
    let mut editor = ObjectEditor::new(definition);
    editor.set_last(editor.whole(), &["_meta", &key], &b"true"[..]);
    editor.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_marked(written: &str, marks: &DefinitionMarks, want: &str) {
        let marked = apply_marks(&Bytes::copy_from_slice(written.as_bytes()), marks);
        assert_eq!(std::str::from_utf8(&marked).unwrap(), want);
        serde_json::from_slice::<serde_json::Value>(&marked).unwrap();
    }

    fn changed_pin() -> DefinitionMarks {
        DefinitionMarks {
            pin: Some("changed"),
            lint: Vec::new(),
        }
    }

    #[test]
    fn marks_leave_other_bytes_unchanged() {
        assert_marked(
            r#"{ "name":"t", "n": 1.0 }"#,
            &changed_pin(),
            r#"{ "name":"t", "n": 1.0 ,"_meta":{"dev.bowline/pin":"changed"}}"#,
        );
        assert_marked(
            r#"{"_meta":{ "a" : 1 },"name":"t"}"#,
            &changed_pin(),
            r#"{"_meta":{ "a" : 1 ,"dev.bowline/pin":"changed"},"name":"t"}"#,
        );
        for empty in ["{}", "null", "\"x\"", "[1]"] {
            let written = format!(r#"{{"_meta":{empty},"name":"t"}}"#);
            assert_marked(
                &written,
                &DefinitionMarks {
                    pin: None,
                    lint: vec![LintCode::HiddenText, LintCode::Injection],
                },
                r#"{"_meta":{"dev.bowline/lint":["hidden_text","injection"]},"name":"t"}"#,
            );
            assert_marked(&written, &DefinitionMarks::default(), &written);
        }
    }

    #[test]
    fn stale_mark_joins_other_marks() {
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
            let marked = add_stale_mark(written.as_bytes());
            assert_eq!(std::str::from_utf8(&marked).unwrap(), want);
            serde_json::from_slice::<serde_json::Value>(&marked).unwrap();
        }
    }

    #[test]
    fn forged_marks_are_removed_even_if_escaped() {
        assert_marked(
            r#"{"name":"t","_meta":{"dev.bowline/pin":"approved", "a":1 ,"dev\u002ebowline/lint":[],"b":2}}"#,
            &changed_pin(),
            r#"{"name":"t","_meta":{ "a":1,"b":2,"dev.bowline/pin":"changed"}}"#,
        );
        assert_marked(
            r#"{"name":"t","_meta":{"dev.bowline/pin":"x","dev.bowline/pin":"y"}}"#,
            &DefinitionMarks::default(),
            r#"{"name":"t","_meta":{}}"#,
        );
    }
}
