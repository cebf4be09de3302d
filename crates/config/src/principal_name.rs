//! Names of principals and runs.

/// Maximum characters of a principal name.
const PRINCIPAL_CHARS_MAX: usize = 64;

/// Principal names assigned by the gateway itself.
const RESERVED_PRINCIPALS: [&str; 2] = ["owner", "anonymous-local"];

/// Maximum characters of a run name.
const RUN_CHARS_MAX: usize = 32;

/// Returns whether the name is a valid principal name, `[a-z0-9][a-z0-9._-]{0,63}`, and not
/// reserved.
#[must_use]
pub fn is_principal_name(name: &str) -> bool {
    name.len() <= PRINCIPAL_CHARS_MAX && is_plain_name(name) && !RESERVED_PRINCIPALS.contains(&name)
}

/// Returns whether the name is a valid run name: `[a-z0-9][a-z0-9._-]{0,31}`.
#[must_use]
pub fn is_run_name(name: &str) -> bool {
    name.len() <= RUN_CHARS_MAX && is_plain_name(name)
}

fn is_plain_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.starts_with(plain)
        && name
            .chars()
            .all(|c| plain(c) || matches!(c, '.' | '_' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn principal_names_are_plain_and_unreserved() {
        let long = "a".repeat(PRINCIPAL_CHARS_MAX);
        for good in ["a", "0", "ann.b_c-d", &long] {
            assert!(is_principal_name(good), "{good}");
        }
        let longer = "a".repeat(PRINCIPAL_CHARS_MAX + 1);
        for wrong in [
            "",
            "Ann",
            "-a",
            ".a",
            "a b",
            "a/b",
            "a\n",
            "ä",
            "owner",
            "anonymous-local",
            &longer,
        ] {
            assert!(!is_principal_name(wrong), "{wrong}");
        }
    }
}
