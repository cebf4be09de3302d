//! Server names, and visible names of tools across all servers.

use std::borrow::Cow;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Longest visible name; several clients refuse longer names.
pub const VISIBLE_CHARS_MAX: usize = 64;

/// Longest server name.
pub const SERVER_CHARS_MAX: usize = 32;

/// Slug of a name without letters or digits.
const FALLBACK_SLUG: &str = "server";

/// Separates server and tool in a visible name. Never part of a server name.
pub const SEPARATOR: &str = "__";

/// Hexadecimal digits of the hash in a mangled name.
const HASH_CHARS: usize = 12;

/// Whether `name` is a valid server name: `[a-z0-9][a-z0-9-]{0,31}`.
#[must_use]
pub fn is_server_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= SERVER_CHARS_MAX
        && name.starts_with(plain)
        && name.chars().all(|c| plain(c) || c == '-')
}

/// Returns a valid server name: `given` if valid, else the most similar valid name. `My_Server`
/// becomes `my-server`.
#[must_use]
pub fn to_slug(name: &str) -> Cow<'_, str> {
    if is_server_name(name) {
        return Cow::Borrowed(name);
    }
    let mut slug = String::with_capacity(SERVER_CHARS_MAX);
    for character in name.chars().flat_map(char::to_lowercase) {
        if slug.len() >= SERVER_CHARS_MAX {
            break;
        }
        if character.is_ascii_lowercase() || character.is_ascii_digit() {
            slug.push(character);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.truncate(slug.trim_end_matches('-').len());
    match slug.is_empty() {
        true => Cow::Borrowed(FALLBACK_SLUG),
        false => Cow::Owned(slug),
    }
}

/// Returns the first of `slug`, `slug-2`, `slug-3`, ... not taken yet.
pub fn unique_slug(slug: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u32..).map(|number| {
        let tail = format!("-{number}");
        let head = slug.get(..SERVER_CHARS_MAX - tail.len()).unwrap_or(slug);
        format!("{}{tail}", head.trim_end_matches('-'))
    });
    std::iter::once(slug.to_owned())
        .chain(numbered)
        .find(|name| !is_taken(name))
        .unwrap_or_else(|| slug.to_owned())
}

/// Returns the visible name of `tool` of `server` on `/mcp`.
///
/// The result is `server__tool` if short and plain enough for every client; otherwise the same
/// start followed by a hash of both names. The name depends on nothing else.
#[must_use]
pub fn visible_name(server: &str, tool: &str) -> String {
    let plain = format!("{server}{SEPARATOR}{tool}");
    if plain.len() <= VISIBLE_CHARS_MAX && !tool.is_empty() && tool.chars().all(is_plain_char) {
        return plain;
    }
    mangled_name(server, tool)
}

/// Returns the hashed form of a visible name, also used if two tools would share a name.
#[must_use]
pub fn mangled_name(server: &str, tool: &str) -> String {
    let mut name: String = format!("{server}{SEPARATOR}{tool}")
        .chars()
        .map(|c| if is_plain_char(c) { c } else { '_' })
        .take(VISIBLE_CHARS_MAX - HASH_CHARS - 1)
        .collect();
    name.push('_');
    let digest = Sha256::new()
        .chain_update(server)
        .chain_update([0])
        .chain_update(tool)
        .finalize();
    for byte in digest.iter().take(HASH_CHARS / 2) {
        // Writing to a string cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// Returns the server part of a visible name, if valid.
#[must_use]
pub fn visible_server(visible: &str) -> Option<&str> {
    visible
        .split_once(SEPARATOR)
        .map(|(server, _)| server)
        .filter(|server| is_server_name(server))
}

/// Prefix of a server-qualified URI.
const QUALIFIED_PREFIX: &str = "bowline://";

/// Marks an unencoded template after the server; no URI starts with this character.
const TEMPLATE_MARK: char = '~';

/// Returns the server-qualified form of a URI: `bowline://server/` and the percent-encoded URI.
#[must_use]
pub fn qualified_uri(server: &str, uri: &str) -> String {
    let mut out = format!("{QUALIFIED_PREFIX}{server}/");
    for byte in uri.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_') {
            out.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// Returns the server-qualified form of a URI template: `bowline://server/~` and the raw template.
/// Percent-encoding would change the variables filled in by the client.
#[must_use]
pub fn qualified_template(server: &str, template: &str) -> String {
    format!("{QUALIFIED_PREFIX}{server}/{TEMPLATE_MARK}{template}")
}

/// Parses both forms into server and upstream URI.
#[must_use]
pub fn parse_qualified_uri(uri: &str) -> Option<(&str, String)> {
    let (server, rest) = uri.strip_prefix(QUALIFIED_PREFIX)?.split_once('/')?;
    if !is_server_name(server) {
        return None;
    }
    match rest.strip_prefix(TEMPLATE_MARK) {
        Some(own) => Some((server, own.to_owned())),
        None => Some((server, percent_decode(rest)?)),
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).ok()
}

const fn is_plain_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_name_grammar_is_strict() {
        for good in ["a", "0", "files", "my-files-2", &"a".repeat(32)] {
            assert!(is_server_name(good), "{good}");
        }
        for bad in [
            "",
            "-a",
            "A",
            "a_b",
            "a.b",
            "a/b",
            "ä",
            "..",
            &"a".repeat(33),
        ] {
            assert!(!is_server_name(bad), "{bad}");
        }
    }

    #[test]
    fn slug_is_always_valid_server_name() {
        for (given, expected) in [
            ("GitHub", "github"),
            ("My_Server", "my-server"),
            ("My Server (v2)", "my-server-v2"),
            ("io.github/user__x", "io-github-user-x"),
            ("a--b", "a--b"),
            ("--", "server"),
            ("日本", "server"),
        ] {
            assert_eq!(to_slug(given), expected);
            assert!(is_server_name(&to_slug(given)));
        }
        assert!(is_server_name(&to_slug(&"ab ".repeat(40))));
    }

    #[test]
    fn taken_slug_gets_number() {
        assert_eq!(unique_slug("a", |name| name == "a" || name == "a-2"), "a-3");
        let long = "b".repeat(32);
        assert!(is_server_name(&unique_slug(&long, |name| name == long)));
    }

    #[test]
    fn long_and_odd_names_are_mangled() {
        assert_eq!(visible_name("files", "read_file"), "files__read_file");
        let fits = "x".repeat(64 - "files__".len());
        assert_eq!(visible_name("files", &fits), format!("files__{fits}"));
        for tool in ["x".repeat(300).as_str(), "naïve tool", "", "a/b"] {
            let name = visible_name("files", tool);
            assert!(name.len() <= VISIBLE_CHARS_MAX, "{name}");
            assert!(name.chars().all(is_plain_char), "{name}");
            assert!(name.starts_with("files__"), "{name}");
            assert_eq!(name, visible_name("files", tool), "the same each time");
            assert_eq!(visible_server(&name), Some("files"));
        }
    }

    #[test]
    fn qualified_uri_round_trips() {
        for uri in [
            "file:///a b/é.txt",
            "x:",
            "~",
            "a%2Fb?c=d#e",
            "bowline://s/x",
        ] {
            let form = qualified_uri("files", uri);
            assert!(form.strip_prefix("bowline://files/").is_some(), "{form}");
            assert_eq!(parse_qualified_uri(&form), Some(("files", uri.to_owned())));
        }
        assert_eq!(qualified_uri("s", "x:/1"), "bowline://s/x%3A%2F1");
        let form = qualified_template("s", "x:///{a}");
        assert_eq!(form, "bowline://s/~x:///{a}");
        let filled = form.replace("{a}", "1%2F2");
        assert_eq!(
            parse_qualified_uri(&filled),
            Some(("s", "x:///1%2F2".to_owned()))
        );
        for odd in [
            "x:1",
            "bowline://s",
            "bowline://S/x",
            "bowline:///x",
            "bowline://s/%ff",
            "bowline://s/%1",
        ] {
            assert_eq!(parse_qualified_uri(odd), None, "{odd}");
        }
    }

    #[test]
    fn truncated_names_stay_distinct() {
        let (one, two) = ("y".repeat(100) + "1", "y".repeat(100) + "2");
        assert_ne!(visible_name("s", &one), visible_name("s", &two));
        // Cyrillic a and Latin a look alike; the names do not.
        assert_ne!(visible_name("s", "p\u{430}y"), visible_name("s", "pay"));
    }
}
