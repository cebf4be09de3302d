//! Names of mailboxes and messages on the broker, validated before use.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// Characters of a mailbox name.
pub const MAILBOX_CHARS_MAX: usize = 256;

/// Characters of a message id.
pub const ID_CHARS_MAX: usize = 128;

/// The mailbox of the hub.
pub const HUB: &str = "hub";

/// Why a name is invalid.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MailboxNameError {
    /// Not a mailbox name.
    #[error("a mailbox is named by a-z, 0-9, `_`, `.`, `-`, and one `#` at most")]
    Mailbox,
    /// Not a message id.
    #[error("a message is named by 1 to {ID_CHARS_MAX} of A-Z, a-z, 0-9, `_`, `.`, `:`, `-`")]
    Message,
}

/// A mailbox name: the name of a principal, or `PRINCIPAL#PART` for one of several mailboxes of a
/// principal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MailboxName(Arc<str>);

impl MailboxName {
    /// Parses a name.
    ///
    /// # Errors
    /// The name is empty, too long, `.`, `..`, or contains characters besides `[a-z0-9_.-]` and one
    /// `#` between two such names.
    pub fn parse(name: &str) -> Result<Self, MailboxNameError> {
        let good = |part: &str| {
            let plain = |c: char| {
                c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.' | '-')
            };
            !part.is_empty() && part != "." && part != ".." && part.chars().all(plain)
        };
        let fits = name.len() <= MAILBOX_CHARS_MAX
            && match name.split_once('#') {
                None => good(name),
                Some((principal, part)) => good(principal) && good(part),
            };
        match fits {
            true => Ok(Self(name.into())),
            false => Err(MailboxNameError::Mailbox),
        }
    }

    /// Returns the mailbox claimed by a principal: the main mailbox for an empty claim, or a part
    /// by `#PART` or by full name. A mailbox of a different principal is refused.
    #[must_use]
    pub fn from_claim(principal: &str, claim: &str) -> Option<Self> {
        let mailbox = match claim {
            "" => Self::parse(principal),
            part if part.starts_with('#') => Self::parse(&format!("{principal}{part}")),
            whole => Self::parse(whole),
        };
        mailbox
            .ok()
            .filter(|mailbox| mailbox.principal() == principal)
    }

    /// Returns the mailbox of the hub.
    #[must_use]
    pub fn new_hub() -> Self {
        Self(HUB.into())
    }

    /// Returns the name.
    #[must_use]
    pub const fn as_str(&self) -> &Arc<str> {
        &self.0
    }

    /// Returns the name of the owning principal.
    #[must_use]
    pub fn principal(&self) -> &str {
        self.0.split_once('#').map_or(&self.0, |(name, _)| name)
    }
}

impl fmt::Display for MailboxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks a message id.
///
/// # Errors
/// The id is empty, too long, `.`, `..`, or contains characters besides `[A-Za-z0-9_.:-]`.
pub fn check_message_id(id: &str) -> Result<(), MailboxNameError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':' | '-');
    let fits = (1..=ID_CHARS_MAX).contains(&id.len()) && !matches!(id, "." | "..");
    match fits && id.chars().all(plain) {
        true => Ok(()),
        false => Err(MailboxNameError::Message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_and_claims_are_refused() {
        for name in ["worker", "a.b_c-1", "worker#mcp", "hub"] {
            assert_eq!(MailboxName::parse(name).unwrap().to_string(), name);
        }
        let long = "a".repeat(MAILBOX_CHARS_MAX + 1);
        for name in [
            "",
            ".",
            "..",
            "../x",
            "/etc/passwd",
            "a/b",
            "A",
            "a b",
            "#",
            "a#",
            "#a",
            "a#b#c",
            "a#..",
            "a\0",
            "ä",
            &long,
        ] {
            assert_eq!(
                MailboxName::parse(name),
                Err(MailboxNameError::Mailbox),
                "{name}"
            );
        }
        assert_eq!(MailboxName::parse("w#mcp").unwrap().principal(), "w");
        let claimed =
            |claim| MailboxName::from_claim("w", claim).map(|mailbox| mailbox.to_string());
        for (claim, want) in [
            ("", Some("w")),
            ("w", Some("w")),
            ("#mcp", Some("w#mcp")),
            ("w#mcp", Some("w#mcp")),
            ("v", None),
            ("v#mcp", None),
            ("hub", None),
            ("#", None),
            ("#a#b", None),
            ("#../x", None),
        ] {
            assert_eq!(claimed(claim).as_deref(), want, "{claim}");
        }
        for id in ["0", "broker-mcp-1", "A:b.c_d"] {
            assert_eq!(check_message_id(id), Ok(()));
        }
        for id in [
            "",
            ".",
            "..",
            "a/b",
            "a\\b",
            "a b",
            "\n",
            &"a".repeat(ID_CHARS_MAX + 1),
        ] {
            assert_eq!(check_message_id(id), Err(MailboxNameError::Message), "{id}");
        }
    }
}
