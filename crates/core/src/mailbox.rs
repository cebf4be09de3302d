//! Who is who on the broker: names of mailboxes and of messages, checked before anything else.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// Characters of the name of a mailbox.
pub const MAILBOX_CHARS_MAX: usize = 256;

/// Characters of the id of a message.
pub const ID_CHARS_MAX: usize = 128;

/// The mailbox of the hub itself.
pub const HUB: &str = "hub";

/// Why a name is none.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BadName {
    /// It cannot name a mailbox.
    #[error("a mailbox is named by a-z, 0-9, `_`, `.`, `-`, and one `#` at most")]
    Mailbox,
    /// It cannot name a message.
    #[error("a message is named by 1 to {ID_CHARS_MAX} of A-Z, a-z, 0-9, `_`, `.`, `:`, `-`")]
    Message,
}

/// The name of a mailbox: that of a principal, or `PRINCIPAL#PART` for one of several that a
/// principal has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mailbox(Arc<str>);

impl Mailbox {
    /// Reads a name.
    ///
    /// # Errors
    /// It is empty, too long, `.`, `..`, or holds anything but `[a-z0-9_.-]` and one `#` between
    /// two such names.
    pub fn parse(name: &str) -> Result<Self, BadName> {
        let good = |part: &str| {
            let plain = |c: char| {
                c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '.' | '-')
            };
            !part.is_empty() && part != "." && part != ".." && part.chars().all(plain)
        };
        let fits = name.len() <= MAILBOX_CHARS_MAX
            && match name.split_once('#') {
                None => good(name),
                Some((whose, part)) => good(whose) && good(part),
            };
        match fits {
            true => Ok(Self(name.into())),
            false => Err(BadName::Mailbox),
        }
    }

    /// Returns the mailbox that a principal asks for: its own where it says nothing, a part of its
    /// own by `#PART` or by the whole name, and none of anybody else.
    #[must_use]
    pub fn claimed(principal: &str, claim: &str) -> Option<Self> {
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
    pub fn hub() -> Self {
        Self(HUB.into())
    }

    /// Returns the name.
    #[must_use]
    pub const fn as_str(&self) -> &Arc<str> {
        &self.0
    }

    /// Returns the name of the principal whose it is.
    #[must_use]
    pub fn principal(&self) -> &str {
        self.0.split_once('#').map_or(&self.0, |(whose, _)| whose)
    }
}

impl fmt::Display for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Refuses what cannot be the id of a message.
///
/// # Errors
/// It is empty, too long, `.`, `..`, or holds anything but `[A-Za-z0-9_.:-]`.
pub fn check_id(id: &str) -> Result<(), BadName> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | ':' | '-');
    let fits = (1..=ID_CHARS_MAX).contains(&id.len()) && !matches!(id, "." | "..");
    match fits && id.chars().all(plain) {
        true => Ok(()),
        false => Err(BadName::Message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_lead_elsewhere_are_none() {
        for name in ["worker", "a.b_c-1", "worker#mcp", "hub"] {
            assert_eq!(Mailbox::parse(name).unwrap().to_string(), name);
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
            assert_eq!(Mailbox::parse(name), Err(BadName::Mailbox), "{name}");
        }
        assert_eq!(Mailbox::parse("w#mcp").unwrap().principal(), "w");
        let claimed = |claim| Mailbox::claimed("w", claim).map(|mailbox| mailbox.to_string());
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
            assert_eq!(check_id(id), Ok(()));
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
            assert_eq!(check_id(id), Err(BadName::Message), "{id}");
        }
    }
}
