//! The other way to write the address of a resource: a rule must not be passed by writing the
//! same place in different letters.

use std::borrow::Cow;

/// What an address comes to when its encoding is taken away.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plain {
    /// The same.
    Same,
    /// This one, which a server may take for the same place.
    Other(String),
    /// Nobody can say: it goes up or stays (`..`, `.`), or holds what some readers leave out.
    Unclear,
}

/// Takes the encoding away, makes the scheme lower-case and leaves empty segments out.
pub(super) fn plain(uri: &str) -> Plain {
    let Some(decoded) = decoded(uri) else {
        return Plain::Unclear;
    };
    let mut segments = decoded.split(['/', '\\', '?', '#']);
    let odd = |c: char| c.is_control() || c == '\u{feff}';
    if decoded.trim() != decoded
        || decoded.contains(odd)
        || segments.any(|segment| matches!(segment, "." | ".."))
    {
        return Plain::Unclear;
    }
    let plain = squeezed(&decoded);
    if plain == uri {
        Plain::Same
    } else {
        Plain::Other(plain)
    }
}

/// Takes percent-encoding away, once; `None` where that leaves no text.
fn decoded(uri: &str) -> Option<Cow<'_, str>> {
    if !uri.contains('%') {
        return Some(Cow::Borrowed(uri));
    }
    let mut bytes = Vec::with_capacity(uri.len());
    let mut rest = uri.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        let pair = more.split_at_checked(2).filter(|_| *first == b'%');
        let byte = pair.and_then(|(pair, after)| {
            let byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
            rest = after;
            Some(byte)
        });
        bytes.push(byte.unwrap_or(*first));
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

fn squeezed(uri: &str) -> String {
    let (scheme, rest) = match uri.split_once(':') {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase() + ":", rest),
        None => (String::new(), uri),
    };
    let (start, path) = match rest.strip_prefix("//") {
        Some(path) => ("//", path),
        None => ("", rest),
    };
    let mut out = scheme + start;
    let mut after_slash = false;
    for c in path.chars() {
        if c != '/' || !after_slash {
            out.push(c);
        }
        after_slash = c == '/';
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_can_be_written_otherwise_has_a_plain_form() {
        for same in [
            "file:///a/b.c",
            "x:1",
            "note",
            "t:///{id}/{+rest}",
            "a..b:c",
            "x:100%",
        ] {
            assert_eq!(plain(same), Plain::Same, "{same}");
        }
        for (uri, want) in [
            ("file:///%73ecret/a", "file:///secret/a"),
            ("FILE:///secret/a", "file:///secret/a"),
            ("file:////secret//a", "file:///secret/a"),
            ("file:///a%2Fb", "file:///a/b"),
            ("a%20b", "a b"),
            ("x:%2", "x:%2"),
        ] {
            let found = plain(uri);
            assert!(
                found == Plain::Other(want.to_owned()) || (uri == want && found == Plain::Same),
                "{uri} {found:?}"
            );
        }
        for unclear in [
            "file:///a/../secret",
            "file:///a/%2e%2E/secret",
            "file:///a/..%2fsecret",
            "file:///a/./b",
            "file:///a\\..\\b",
            "file:///a/..?x",
            "file:///se\tcret",
            " file:///a",
            "file:///a%00",
            "file:///%ff",
        ] {
            assert_eq!(plain(unclear), Plain::Unclear, "{unclear:?}");
        }
    }
}
