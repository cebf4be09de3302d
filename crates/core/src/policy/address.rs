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

/// Returns the other addresses that some server takes for the same place as a plain one: `file:`
/// without its authority, or with the authority as the first segment; a host in lower case without
/// user and default port; and each of these without query, fragment, parameters (`;v=1`) and
/// slashes at its end.
pub(super) fn others(plain: &str) -> Vec<String> {
    let (scheme, rest) = plain.split_once(':').unwrap_or(("", plain));
    let rest = rest.replace('\\', "/");
    let places = match (rest.strip_prefix("//"), scheme) {
        (Some(rest), "file") => {
            let (authority, path) = split(rest, &['/', '?', '#']);
            match authority {
                "" => vec![format!("file://{path}")],
                _ => vec![
                    format!("file://{path}"),
                    format!("file:///{authority}{path}"),
                ],
            }
        }
        (None, "file") => vec![format!("file:///{}", rest.trim_start_matches('/'))],
        (Some(rest), _) => {
            let (authority, path) = split(rest, &['/', '?', '#']);
            vec![format!("{scheme}://{}{path}", host(scheme, authority))]
        }
        (None, "") => vec![rest],
        (None, _) => vec![format!("{scheme}:{rest}")],
    };
    let mut all: Vec<_> = places.iter().map(|place| bare(place)).collect();
    all.extend(places);
    all.sort();
    all.dedup();
    all.retain(|place| place != plain);
    all
}

/// Splits a text before the first of these characters.
fn split<'a>(text: &'a str, at: &[char]) -> (&'a str, &'a str) {
    text.split_at(text.find(at).unwrap_or(text.len()))
}

/// Returns an authority in lower case, without user, default port and the dot of the root.
fn host(scheme: &str, authority: &str) -> String {
    let named = authority.rsplit('@').next().unwrap_or_default();
    let named = named.to_ascii_lowercase();
    let port = match scheme {
        "http" | "ws" => ":80",
        "https" | "wss" => ":443",
        "ftp" => ":21",
        _ => ":",
    };
    let named = named.strip_suffix(port).unwrap_or(&named);
    let named = named.strip_suffix(':').unwrap_or(named);
    named.strip_suffix('.').unwrap_or(named).to_owned()
}

/// Returns an address without query, fragment, parameters and slashes at its end.
fn bare(place: &str) -> String {
    let (path, _) = split(place, &['?', '#']);
    let segments = path.split('/').map(|segment| split(segment, &[';']).0);
    let path = segments.collect::<Vec<_>>().join("/");
    path.trim_end_matches('/').to_owned()
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
