//! Names: of servers and profiles `[a-z0-9][a-z0-9-]{0,31}`; of roles, principals and contexts
//! labels.

/// Longest server name.
const NAME_BYTES_MAX: usize = 32;

/// Whether `name` can be a server's name as it stands.
pub(crate) fn is_valid(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= NAME_BYTES_MAX
        && name.bytes().all(inner)
        && name.bytes().next().is_some_and(|first| first != b'-')
}

/// Longest name of a role, a principal or a context.
const LABEL_BYTES_MAX: usize = 128;

/// Whether `name` can name a role, a principal or a context.
pub(crate) fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@+".contains(&byte);
    (1..=LABEL_BYTES_MAX).contains(&name.len()) && name.bytes().all(inner)
}

/// The valid name that is most like `name`.
pub(crate) fn slug(name: &str) -> String {
    let mut slug = String::with_capacity(NAME_BYTES_MAX);
    for letter in name.chars().flat_map(char::to_lowercase) {
        if slug.len() >= NAME_BYTES_MAX {
            break;
        }
        if letter.is_ascii_lowercase() || letter.is_ascii_digit() {
            slug.push(letter);
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    let slug = slug.trim_end_matches('-');
    if slug.is_empty() {
        "server".to_owned()
    } else {
        slug.to_owned()
    }
}

/// `slug`, or `slug-2`, `slug-3`, ... whichever is not taken yet.
pub(crate) fn unique(slug: &str, taken: impl Fn(&str) -> bool) -> String {
    let numbered = (2_u32..).map(|number| {
        let tail = format!("-{number}");
        let head = slug.get(..NAME_BYTES_MAX - tail.len()).unwrap_or(slug);
        format!("{}{tail}", head.trim_end_matches('-'))
    });
    std::iter::once(slug.to_owned())
        .chain(numbered)
        .find(|name| !taken(name))
        .unwrap_or_else(|| slug.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_be_ambiguous_are_invalid() {
        for name in ["a", "0", "a-b", "a--b", &"a".repeat(32)] {
            assert!(is_valid(name), "{name}");
        }
        for name in [
            "",
            "-a",
            "A",
            "a_b",
            "a.b",
            "a b",
            "é",
            "../x",
            &"a".repeat(33),
        ] {
            assert!(!is_valid(name), "{name}");
        }
    }

    #[test]
    fn a_slug_is_always_a_valid_name() {
        for (name, expected) in [
            ("GitHub", "github"),
            ("My Server (v2)", "my-server-v2"),
            ("io.github/user__x", "io-github-user-x"),
            ("--", "server"),
            ("日本", "server"),
        ] {
            assert_eq!(slug(name), expected);
            assert!(is_valid(&slug(name)));
        }
        assert!(is_valid(&slug(&"ab ".repeat(40))));
    }

    #[test]
    fn a_taken_slug_gets_a_number() {
        assert_eq!(unique("a", |name| name == "a" || name == "a-2"), "a-3");
        let long = "b".repeat(32);
        assert!(is_valid(&unique(&long, |name| name == long)));
    }
}
