//! What differs between two definitions, member by member, every value as it was written.

use std::collections::BTreeSet;

use bowline_wire::canonical::canonical;
use bowline_wire::object;

/// Differences that are shown; more help nobody.
pub(crate) const CHANGES_MAX: usize = 200;

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Where: `inputSchema.properties.path.description`, `icons[0].src`.
    pub(crate) path: String,
    /// What was there.
    pub(crate) old: Option<String>,
    /// What is there.
    pub(crate) new: Option<String>,
}

/// Returns the differences between two definitions that were checked.
pub(crate) fn diff(old: &[u8], new: &[u8]) -> Vec<Change> {
    let mut changes = Vec::new();
    compare(&mut changes, &mut String::new(), old, new);
    // Where a member comes twice, only the text as a whole tells the difference.
    if changes.is_empty() && old != new {
        add(&mut changes, "", Some(old), Some(new));
    }
    changes
}

/// Calls itself once per level, of which the check of the text allows so many and no more.
fn compare(changes: &mut Vec<Change>, path: &mut String, old: &[u8], new: &[u8]) {
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
                let of = |text| object::field(text, &key);
                let (was, is) = (of(old), of(new));
                let (was, is) = (was.map(|at| at.of(old)), is.map(|at| at.of(new)));
                both(changes, path, was, is);
                path.truncate(length);
            }
        }
        (Some(b'['), Some(b'[')) => {
            let (mut was, mut is) = (object::items(old), object::items(new));
            for nth in 0.. {
                let (was, is) = (was.next(), is.next());
                if was.is_none() && is.is_none() {
                    break;
                }
                path.push_str(&format!("[{nth}]"));
                let (was, is) = (was.map(|at| at.of(old)), is.map(|at| at.of(new)));
                both(changes, path, was, is);
                path.truncate(length);
            }
        }
        _ if canonical(old).ok() != canonical(new).ok() => {
            add(changes, path, Some(old), Some(new));
        }
        _ => {}
    }
}

fn both(changes: &mut Vec<Change>, path: &mut String, old: Option<&[u8]>, new: Option<&[u8]>) {
    match (old, new) {
        (Some(old), Some(new)) => compare(changes, path, old, new),
        (old, new) => add(changes, path, old, new),
    }
}

fn add(changes: &mut Vec<Change>, path: &str, old: Option<&[u8]>, new: Option<&[u8]>) {
    if changes.len() < CHANGES_MAX {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        changes.push(Change {
            path: path.to_owned(),
            old: old.map(text),
            new: new.map(text),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(old: &str, new: &str, want: &[(&str, Option<&str>, Option<&str>)]) {
        let changes = diff(old.as_bytes(), new.as_bytes());
        let got: Vec<_> = changes
            .iter()
            .map(|change| (&*change.path, change.old.as_deref(), change.new.as_deref()))
            .collect();
        assert_eq!(got, want);
    }

    #[test]
    fn differences_are_told_where_they_are_and_as_they_are_written() {
        check(
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
        check(
            r#"{"a":"\u00e9"}"#,
            r#"{"a":"é"}"#,
            &[("", Some(r#"{"a":"\u00e9"}"#), Some(r#"{"a":"é"}"#))],
        );
    }

    #[test]
    fn no_number_is_too_large_and_no_list_too_long_to_be_told() {
        check(
            r#"{"n":123456789012345678901}"#,
            r#"{"n":123456789012345678902}"#,
            &[(
                "n",
                Some("123456789012345678901"),
                Some("123456789012345678902"),
            )],
        );
        let many = format!("[{}0]", "0,".repeat(1_000));
        assert_eq!(diff(b"[]", many.as_bytes()).len(), CHANGES_MAX);
    }
}
