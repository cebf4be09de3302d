//! Names: what a server may be called, and how a tool is called among those of all servers.

use std::borrow::Cow;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// No visible name is longer; several clients refuse more.
pub const VISIBLE_CHARS_MAX: usize = 64;

/// No server name is longer.
pub const SERVER_CHARS_MAX: usize = 32;

/// The slug of a name without any letter or digit.
const NAMELESS: &str = "server";

/// Between the server and the tool in a visible name. Never part of a server name.
pub const SEPARATOR: &str = "__";

/// Hexadecimal digits that make a mangled name unique.
const HASH_CHARS: usize = 12;

/// Whether `name` may name a server: `[a-z0-9][a-z0-9-]{0,31}`.
#[must_use]
pub fn is_server(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= SERVER_CHARS_MAX
        && name.starts_with(plain)
        && name.chars().all(|c| plain(c) || c == '-')
}

/// Returns the server name that a given name stands for: itself where it is one, otherwise the
/// most similar one. `My_Server` is `my-server`.
#[must_use]
pub fn slug(given: &str) -> Cow<'_, str> {
    if is_server(given) {
        return Cow::Borrowed(given);
    }
    let mut slug = String::with_capacity(SERVER_CHARS_MAX);
    for letter in given.chars().flat_map(char::to_lowercase) {
        if slug.len() >= SERVER_CHARS_MAX {
            break;
        }
        if letter.is_ascii_lowercase() || letter.is_ascii_digit() {
            slug.push(letter);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.truncate(slug.trim_end_matches('-').len());
    match slug.is_empty() {
        true => Cow::Borrowed(NAMELESS),
        false => Cow::Owned(slug),
    }
}

/// Returns `slug`, or `slug-2`, `slug-3`, ..., whichever is not taken yet.
pub fn unique(slug: &str, taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u32..).map(|number| {
        let tail = format!("-{number}");
        let head = slug.get(..SERVER_CHARS_MAX - tail.len()).unwrap_or(slug);
        format!("{}{tail}", head.trim_end_matches('-'))
    });
    std::iter::once(slug.to_owned())
        .chain(numbered)
        .find(|name| !taken(name))
        .unwrap_or_else(|| slug.to_owned())
}

/// Returns the name under which `/mcp` shows `tool` of `server`.
///
/// It is `server__tool` where that is short and plain enough for every client; otherwise the same
/// start followed by a hash of the whole identity, so that it depends on nothing but the two names.
#[must_use]
pub fn visible(server: &str, tool: &str) -> String {
    let plain = format!("{server}{SEPARATOR}{tool}");
    if plain.len() <= VISIBLE_CHARS_MAX && !tool.is_empty() && tool.chars().all(is_plain) {
        return plain;
    }
    mangled(server, tool)
}

/// Returns the hashed form of a visible name, also used where two tools would share one.
#[must_use]
pub fn mangled(server: &str, tool: &str) -> String {
    let mut name: String = format!("{server}{SEPARATOR}{tool}")
        .chars()
        .map(|c| if is_plain(c) { c } else { '_' })
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

/// Returns the server part of a visible name, if it has one.
#[must_use]
pub fn server_of(visible: &str) -> Option<&str> {
    visible
        .split_once(SEPARATOR)
        .map(|(server, _)| server)
        .filter(|server| is_server(server))
}

/// Begins a URI that names its server.
const ADDRESSED: &str = "bowline://";

/// Follows the server where the rest stands as it is: no URI begins with it.
const VERBATIM: char = '~';

/// Returns the form of a URI that names its server: `bowline://server/` and the percent-encoded
/// URI.
#[must_use]
pub fn addressed(server: &str, uri: &str) -> String {
    let mut out = format!("{ADDRESSED}{server}/");
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

/// Returns the form of a URI template that names its server: `bowline://server/~` and the
/// template as it is. Encoding it would change what a client puts in for its variables.
#[must_use]
pub fn addressed_template(server: &str, template: &str) -> String {
    format!("{ADDRESSED}{server}/{VERBATIM}{template}")
}

/// Reads both forms: the server and its own URI.
#[must_use]
pub fn read_addressed(uri: &str) -> Option<(&str, String)> {
    let (server, rest) = uri.strip_prefix(ADDRESSED)?.split_once('/')?;
    if !is_server(server) {
        return None;
    }
    match rest.strip_prefix(VERBATIM) {
        Some(own) => Some((server, own.to_owned())),
        None => Some((server, decoded(rest)?)),
    }
}

fn decoded(text: &str) -> Option<String> {
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

const fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_names_leave_no_room_for_ambiguity() {
        for good in ["a", "0", "files", "my-files-2", &"a".repeat(32)] {
            assert!(is_server(good), "{good}");
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
            assert!(!is_server(bad), "{bad}");
        }
    }

    #[test]
    fn a_slug_is_always_a_valid_name() {
        for (given, expected) in [
            ("GitHub", "github"),
            ("My_Server", "my-server"),
            ("My Server (v2)", "my-server-v2"),
            ("io.github/user__x", "io-github-user-x"),
            ("a--b", "a--b"),
            ("--", "server"),
            ("日本", "server"),
        ] {
            assert_eq!(slug(given), expected);
            assert!(is_server(&slug(given)));
        }
        assert!(is_server(&slug(&"ab ".repeat(40))));
    }

    #[test]
    fn a_taken_slug_gets_a_number() {
        assert_eq!(unique("a", |name| name == "a" || name == "a-2"), "a-3");
        let long = "b".repeat(32);
        assert!(is_server(&unique(&long, |name| name == long)));
    }

    #[test]
    fn long_and_odd_names_are_mangled_to_64_plain_characters() {
        assert_eq!(visible("files", "read_file"), "files__read_file");
        let fits = "x".repeat(64 - "files__".len());
        assert_eq!(visible("files", &fits), format!("files__{fits}"));
        for tool in ["x".repeat(300).as_str(), "naïve tool", "", "a/b"] {
            let name = visible("files", tool);
            assert!(name.len() <= VISIBLE_CHARS_MAX, "{name}");
            assert!(name.chars().all(is_plain), "{name}");
            assert!(name.starts_with("files__"), "{name}");
            assert_eq!(name, visible("files", tool), "the same each time");
            assert_eq!(server_of(&name), Some("files"));
        }
    }

    #[test]
    fn a_uri_reads_back_from_the_form_that_names_its_server() {
        for uri in [
            "file:///a b/é.txt",
            "x:",
            "~",
            "a%2Fb?c=d#e",
            "bowline://s/x",
        ] {
            let form = addressed("files", uri);
            assert!(form.strip_prefix("bowline://files/").is_some(), "{form}");
            assert_eq!(read_addressed(&form), Some(("files", uri.to_owned())));
        }
        assert_eq!(addressed("s", "x:/1"), "bowline://s/x%3A%2F1");
        let form = addressed_template("s", "x:///{a}");
        assert_eq!(form, "bowline://s/~x:///{a}");
        let filled = form.replace("{a}", "1%2F2");
        assert_eq!(
            read_addressed(&filled),
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
            assert_eq!(read_addressed(odd), None, "{odd}");
        }
    }

    #[test]
    fn tools_that_differ_only_in_the_cut_part_get_different_names() {
        let (one, two) = ("y".repeat(100) + "1", "y".repeat(100) + "2");
        assert_ne!(visible("s", &one), visible("s", &two));
        // Cyrillic a and Latin a look alike; the names do not.
        assert_ne!(visible("s", "p\u{430}y"), visible("s", "pay"));
    }
}
