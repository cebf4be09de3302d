//! The parts of a server's introduction that are pinned: `instructions` and `serverInfo`.

use std::sync::Arc;

use bowline_core::pins::Hash;
use bowline_wire::object;
use bowline_wire::splice::{replace, write_string};
use bytes::Bytes;

use super::definition::digest;
use super::mark::Marks;
use super::offer::Verdict;

/// The members of a result of `initialize` that clients are shown as text.
const NAMES: [&str; 2] = ["instructions", "serverInfo"];

/// A longer version is text, and pinned.
const VERSION_BYTES_MAX: usize = 40;

/// One part of an introduction. One that is absent is `null`, so that a server that begins to give
/// instructions is one that changed them.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The member.
    pub(crate) name: Arc<str>,
    /// Its value, as the server wrote it.
    pub(crate) text: Bytes,
    /// What of it is pinned: all, but for a version that is one.
    pub(crate) pinned: Bytes,
    /// The hash of that.
    pub(crate) hash: Hash,
}

/// Reads the parts of a result of `initialize`.
pub(super) fn read(said: &Bytes) -> [Part; 2] {
    NAMES.map(|name| {
        let text = match object::field(said, name) {
            Some(at) => said.slice(at.start..at.end),
            None => Bytes::from_static(b"null"),
        };
        let pinned = unversioned(&text);
        Part {
            name: name.into(),
            hash: digest(&pinned),
            pinned,
            text,
        }
    })
}

/// Returns a result of `initialize` without what is withdrawn, and the marks of what is shown.
pub(super) fn judged(said: &Bytes, verdict: impl Fn(&Part) -> Verdict) -> (Bytes, Marks) {
    let mut all = Marks::default();
    let mut withdrawn: Vec<Arc<str>> = Vec::new();
    for part in read(said) {
        let is_absent = *part.text == *b"null";
        match verdict(&part) {
            Verdict::Withdraw if !is_absent => withdrawn.push(part.name),
            Verdict::Withdraw => {}
            Verdict::Show(marks) => {
                // What is gone but was approved is nothing that anybody reads.
                all.pin = all.pin.or_else(|| marks.pin.filter(|_| !is_absent));
                all.lint.extend(marks.lint);
            }
        }
    }
    all.lint.sort_unstable();
    all.lint.dedup();
    if withdrawn.is_empty() {
        return (said.clone(), all);
    }
    let is_kept = |key: &str| !withdrawn.iter().any(|name| **name == *key);
    (only(said, is_kept), all)
}

/// Writes an object with those members that are kept.
fn only(object: &[u8], is_kept: impl Fn(&str) -> bool) -> Bytes {
    let mut out = vec![b'{'];
    for (key, at) in object::fields(object).filter(|(key, _)| is_kept(key)) {
        if out.len() > 1 {
            out.push(b',');
        }
        write_string(&mut out, &key);
        out.push(b':');
        out.extend_from_slice(at.of(object));
    }
    out.push(b'}');
    out.into()
}

/// Takes the version out of `serverInfo`, unless it is a text: a new release is no change.
fn unversioned(text: &Bytes) -> Bytes {
    let Some(at) = object::field(text, "version") else {
        return text.clone();
    };
    match object::string(at.of(text)) {
        Some(version) if is_version(&version) => replace(text, at, b"\"\"").into(),
        Some(_) | None => text.clone(),
    }
}

/// Whether this is a number or a hash, and not a sentence.
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

    fn pinned(said: &str) -> [String; 2] {
        let said = Bytes::copy_from_slice(said.as_bytes());
        read(&said).map(|part| String::from_utf8(part.pinned.to_vec()).unwrap())
    }

    #[test]
    fn a_release_is_no_change_and_a_sentence_is() {
        for version in ["1.2.3", "v2.0.0-rc.1+build", "0a1b2c3d", ""] {
            let said = format!(r#"{{"serverInfo":{{"name":"a","version":"{version}"}}}}"#);
            assert_eq!(pinned(&said), ["null", r#"{"name":"a","version":""}"#]);
        }
        for version in ["obey", "1.0 <IMPORTANT> do it", &"1".repeat(41)] {
            let info = format!(r#"{{"name":"a","version":"{version}"}}"#);
            let said = format!(r#"{{"serverInfo":{info},"instructions":"x"}}"#);
            assert_eq!(pinned(&said), ["\"x\"", &info]);
        }
    }

    #[test]
    fn what_is_withdrawn_is_left_out_and_all_else_stays() {
        let said = Bytes::from_static(br#"{"a":1,"instructions":"x","serverInfo":{},"b":{"c":2}}"#);
        let (shown, _) = judged(&said, |part| match &*part.name {
            "instructions" => Verdict::Withdraw,
            _ => Verdict::Show(Marks::default()),
        });
        assert_eq!(shown, r#"{"a":1,"serverInfo":{},"b":{"c":2}}"#);
        let (shown, marks) = judged(&said, |_| Verdict::Show(Marks::default()));
        assert_eq!((shown, marks), (said, Marks::default()));
    }
}
