//! The pinned fields of an `initialize` result: `instructions` and `serverInfo`.

use std::sync::Arc;

use bowline_core::pins::DefinitionHash;
use bowline_wire::splice::replace_span;
use bowline_wire::{ObjectEditor, object};
use bytes::Bytes;

use super::definition::definition_digest;
use super::definition_marks::DefinitionMarks;
use super::server_catalog::ItemVisibility;

/// The `initialize` members shown to clients as text.
const PINNED_MEMBERS: [&str; 2] = ["instructions", "serverInfo"];

/// A longer version counts as text and is pinned.
const VERSION_BYTES_MAX: usize = 40;

/// A pinned field. A missing field is `null`, so that newly added instructions count as a change.
#[derive(Clone, Debug)]
pub struct InitializeField {
    /// Member name.
    pub name: Arc<str>,
    /// Value as written by the server.
    pub text: Bytes,
    /// Pinned text: the value without a plain version.
    pub pinned: Bytes,
    /// Hash of the pinned text.
    pub hash: DefinitionHash,
}

/// Reads the fields of an `initialize` result.
pub(super) fn read_fields(raw_initialize: &Bytes) -> [InitializeField; 2] {
    PINNED_MEMBERS.map(|name| {
        let text = match object::field(raw_initialize, name) {
            Some(at) => raw_initialize.slice(at.start..at.end),
            None => Bytes::from_static(b"null"),
        };
        let pinned = strip_version(&text);
        InitializeField {
            name: name.into(),
            hash: definition_digest(&pinned),
            pinned,
            text,
        }
    })
}

/// Returns the `initialize` result without withdrawn fields, and the marks of the visible fields.
pub(super) fn filter_fields(
    raw_initialize: &Bytes,
    visibility: impl Fn(&InitializeField) -> ItemVisibility,
) -> (Bytes, DefinitionMarks) {
    let mut all = DefinitionMarks::default();
    let mut withdrawn: Vec<Arc<str>> = Vec::new();
    for part in read_fields(raw_initialize) {
        let is_absent = *part.text == *b"null";
        match visibility(&part) {
            ItemVisibility::Withdraw if !is_absent => withdrawn.push(part.name),
            ItemVisibility::Withdraw => {}
            ItemVisibility::Show(marks) => {
                // A removed field with an approved pin has no reader.
                all.pin = all.pin.or_else(|| marks.pin.filter(|_| !is_absent));
                all.lint.extend(marks.lint);
            }
        }
    }
    all.lint.sort_unstable();
    all.lint.dedup();
    if withdrawn.is_empty() {
        return (raw_initialize.clone(), all);
    }
    let mut editor = ObjectEditor::new(raw_initialize);
    editor.retain(editor.whole(), |key, _| {
        !withdrawn.iter().any(|name| name.as_bytes() == key)
    });
    (editor.finish().into(), all)
}

/// Removes a plain version from `serverInfo`: a new release is no change.
fn strip_version(text: &Bytes) -> Bytes {
    let Some(at) = object::field(text, "version") else {
        return text.clone();
    };
    match object::parse_string(at.slice(text)) {
        Some(version) if is_version(&version) => replace_span(text, at, b"\"\"").into(),
        Some(_) | None => text.clone(),
    }
}

/// True for a number or a hash, false for a sentence.
fn is_version(text: &str) -> bool {
    let number = text.strip_prefix('v').unwrap_or(text);
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".+-_".contains(&byte);
    let is_number = number.as_bytes().first().is_some_and(u8::is_ascii_digit);
    let is_hash = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    text.len() <= VERSION_BYTES_MAX && text.bytes().all(is_part) && (is_number || is_hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pinned_texts(said: &str) -> [String; 2] {
        let said = Bytes::copy_from_slice(said.as_bytes());
        read_fields(&said).map(|part| String::from_utf8(part.pinned.to_vec()).unwrap())
    }

    #[test]
    fn plain_version_is_not_pinned_but_text_is() {
        for version in ["1.2.3", "v2.0.0-rc.1+build", "0a1b2c3d", ""] {
            let said = format!(r#"{{"serverInfo":{{"name":"a","version":"{version}"}}}}"#);
            assert_eq!(
                pinned_texts(&said),
                ["null", r#"{"name":"a","version":""}"#]
            );
        }
        for version in ["obey", "1.0 <IMPORTANT> do it", &"1".repeat(41)] {
            let info = format!(r#"{{"name":"a","version":"{version}"}}"#);
            let said = format!(r#"{{"serverInfo":{info},"instructions":"x"}}"#);
            assert_eq!(pinned_texts(&said), ["\"x\"", &info]);
        }
    }

    #[test]
    fn withdrawn_fields_are_removed_and_others_stay() {
        let said = Bytes::from_static(br#"{"a":1,"instructions":"x","serverInfo":{},"b":{"c":2}}"#);
        let (shown, _) = filter_fields(&said, |part| match &*part.name {
            "instructions" => ItemVisibility::Withdraw,
            _ => ItemVisibility::Show(DefinitionMarks::default()),
        });
        assert_eq!(shown, r#"{"a":1,"serverInfo":{},"b":{"c":2}}"#);
        let (shown, marks) =
            filter_fields(&said, |_| ItemVisibility::Show(DefinitionMarks::default()));
        assert_eq!((shown, marks), (said, DefinitionMarks::default()));
    }
}
