//! Compares two definitions member by member, every value as written.

use std::collections::BTreeSet;

use bowline_wire::canonical::to_canonical;
use bowline_wire::object;

/// Maximum number of reported differences.
pub(crate) const CHANGES_MAX: usize = 200;

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberChange {
    /// Path of the member: `inputSchema.properties.path.description`, `icons[0].src`.
    pub(crate) path: String,
    /// The old value.
    pub(crate) old: Option<String>,
    /// The new value.
    pub(crate) new: Option<String>,
}

/// Returns the differences between two validated definitions.
pub(crate) fn diff_definitions(old: &[u8], new: &[u8]) -> Vec<MemberChange> {
    let mut changes = Vec::new();
    compare_values(&mut changes, &mut String::new(), old, new);
    // A duplicate member is visible only in the text as a whole.
    if changes.is_empty() && old != new {
        push_change(&mut changes, "", Some(old), Some(new));
    }
    changes
}

/// Recurses once per level; the validation of the text bounds the depth.
fn compare_values(changes: &mut Vec<MemberChange>, path: &mut String, old: &[u8], new: &[u8]) {
    let length = path.len();
    match (old.first(), new.first()) {
        (Some(b'{'), Some(b'{')) => {
            let keys = |text| object::fields(text).map(|(key, _)| key.into_owned());
            let keys: BTreeSet<_> = keys(old).chain(keys(new)).collect();
            for key in keys {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&key);
                let find = |text| object::field(text, &key);
                let (old_value, new_value) = (find(old), find(new));
                let (old_value, new_value) = (
                    old_value.map(|at| at.slice(old)),
                    new_value.map(|at| at.slice(new)),
                );
                compare_members(changes, path, old_value, new_value);
                path.truncate(length);
            }
        }
        (Some(b'['), Some(b'[')) => {
            let (mut old_value, mut new_value) = (object::items(old), object::items(new));
            for index in 0.. {
                let (old_value, new_value) = (old_value.next(), new_value.next());
                if old_value.is_none() && new_value.is_none() {
                    break;
                }
                path.push_str(&format!("[{index}]"));
                let (old_value, new_value) = (
                    old_value.map(|at| at.slice(old)),
                    new_value.map(|at| at.slice(new)),
                );
                compare_members(changes, path, old_value, new_value);
                path.truncate(length);
            }
        }
        _ if to_canonical(old).ok() != to_canonical(new).ok() => {
            push_change(changes, path, Some(old), Some(new));
        }
        _ => {}
    }
}

fn compare_members(
    changes: &mut Vec<MemberChange>,
    path: &mut String,
    old: Option<&[u8]>,
    new: Option<&[u8]>,
) {
    match (old, new) {
        (Some(old), Some(new)) => compare_values(changes, path, old, new),
        (old, new) => push_change(changes, path, old, new),
    }
}

fn push_change(
    changes: &mut Vec<MemberChange>,
    path: &str,
    old: Option<&[u8]>,
    new: Option<&[u8]>,
) {
    if changes.len() < CHANGES_MAX {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        changes.push(MemberChange {
            path: path.to_owned(),
            old: old.map(text),
            new: new.map(text),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_diff(old: &str, new: &str, want: &[(&str, Option<&str>, Option<&str>)]) {
        let changes = diff_definitions(old.as_bytes(), new.as_bytes());
        let got: Vec<_> = changes
            .iter()
            .map(|change| (&*change.path, change.old.as_deref(), change.new.as_deref()))
            .collect();
        assert_eq!(got, want);
    }

    #[test]
    fn differences_have_paths_and_original_text() {
        assert_diff(
            r#"{"name":"t","a":{"x":1,"gone":true},"list":[1,2],"same":{"p":1,"q":2}}"#,
            r#"{"same":{"q":2, "p":1},"name":"t","a":{"x":1.0},"list":[1,{"y":3},4],"b":"é"}"#,
            &[
                ("a.gone", Some("true"), None),
                ("a.x", Some("1"), Some("1.0")),
                ("b", None, Some("\"é\"")),
                ("list[1]", Some("2"), Some("{\"y\":3}")),
                ("list[2]", None, Some("4")),
            ],
        );
        assert_diff(
            r#"{"a":"\u00e9"}"#,
            r#"{"a":"é"}"#,
            &[("", Some(r#"{"a":"\u00e9"}"#), Some(r#"{"a":"é"}"#))],
        );
    }

    #[test]
    fn diff_keeps_big_numbers_and_caps_length() {
        assert_diff(
            r#"{"n":123456789012345678901}"#,
            r#"{"n":123456789012345678902}"#,
            &[(
                "n",
                Some("123456789012345678901"),
                Some("123456789012345678902"),
            )],
        );
        let many = format!("[{}0]", "0,".repeat(1_000));
        assert_eq!(diff_definitions(b"[]", many.as_bytes()).len(), CHANGES_MAX);
    }
}
