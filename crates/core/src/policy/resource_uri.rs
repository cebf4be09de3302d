//! Normalizes resource URIs, so that an alternative spelling cannot bypass a rule.

use std::borrow::Cow;

/// A URI after percent-decoding and normalization.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NormalizedUri {
    /// Already normalized.
    Same,
    /// A different URI that a server may treat as equal.
    Other(String),
    /// Ambiguous: dot segments (`..`, `.`), or characters ignored by some parsers.
    Ambiguous,
}

/// Percent-decodes the URI, lower-cases the scheme and removes empty segments.
pub(super) fn normalize_uri(uri: &str) -> NormalizedUri {
    let Some(decoded) = percent_decode(uri) else {
        return NormalizedUri::Ambiguous;
    };
    let mut segments = decoded.split(['/', '\\', '?', '#']);
    let odd = |c: char| c.is_control() || c == '\u{feff}';
    if decoded.trim() != decoded
        || decoded.contains(odd)
        || segments.any(|segment| matches!(segment, "." | ".."))
    {
        return NormalizedUri::Ambiguous;
    }
    let plain = squeeze_slashes(&decoded);
    if plain == uri {
        NormalizedUri::Same
    } else {
        NormalizedUri::Other(plain)
    }
}

/// Returns alternative spellings of a normalized URI: `file:` without the authority, or with the
/// authority as the first segment; the host in lower case without user info and default port; and
/// each without query, fragment, parameters (`;v=1`) and trailing slashes.
pub(super) fn alternative_spellings(plain: &str) -> Vec<String> {
    let (scheme, rest) = plain.split_once(':').unwrap_or(("", plain));
    let rest = rest.replace('\\', "/");
    let spellings = match (rest.strip_prefix("//"), scheme) {
        (Some(rest), "file") => {
            let (authority, path) = split_before(rest, &['/', '?', '#']);
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
            let (authority, path) = split_before(rest, &['/', '?', '#']);
            vec![format!(
                "{scheme}://{}{path}",
                normalize_host(scheme, authority)
            )]
        }
        (None, "") => vec![rest],
        (None, _) => vec![format!("{scheme}:{rest}")],
    };
    let mut all: Vec<_> = spellings
        .iter()
        .map(|spelling| strip_tail(spelling))
        .collect();
    all.extend(spellings);
    all.sort();
    all.dedup();
    all.retain(|spelling| spelling != plain);
    all
}

/// Splits a text before the first of these characters.
fn split_before<'a>(text: &'a str, at: &[char]) -> (&'a str, &'a str) {
    text.split_at(text.find(at).unwrap_or(text.len()))
}

/// Returns an authority in lower case, without user info, default port and trailing dot.
fn normalize_host(scheme: &str, authority: &str) -> String {
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

/// Returns a URI without query, fragment, parameters and trailing slashes.
fn strip_tail(uri: &str) -> String {
    let (path, _) = split_before(uri, &['?', '#']);
    let segments = path
        .split('/')
        .map(|segment| split_before(segment, &[';']).0);
    let path = segments.collect::<Vec<_>>().join("/");
    path.trim_end_matches('/').to_owned()
}

/// Percent-decodes once; `None` if the result is not UTF-8.
fn percent_decode(uri: &str) -> Option<Cow<'_, str>> {
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

fn squeeze_slashes(uri: &str) -> String {
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
    fn uri_is_normalized_or_ambiguous() {
        for same in [
            "file:///a/b.c",
            "x:1",
            "note",
            "t:///{id}/{+rest}",
            "a..b:c",
            "x:100%",
        ] {
            assert_eq!(normalize_uri(same), NormalizedUri::Same, "{same}");
        }
        for (uri, want) in [
            ("file:///%73ecret/a", "file:///secret/a"),
            ("FILE:///secret/a", "file:///secret/a"),
            ("file:////secret//a", "file:///secret/a"),
            ("file:///a%2Fb", "file:///a/b"),
            ("a%20b", "a b"),
            ("x:%2", "x:%2"),
        ] {
            let found = normalize_uri(uri);
            assert!(
                found == NormalizedUri::Other(want.to_owned())
                    || (uri == want && found == NormalizedUri::Same),
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
            assert_eq!(
                normalize_uri(unclear),
                NormalizedUri::Ambiguous,
                "{unclear:?}"
            );
        }
    }
}
