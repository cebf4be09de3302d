//! The two ways in which the protocol is spoken, and what differs between them for a call.

use std::sync::Arc;

use crate::tasks::Sealed;

/// How the protocol is spoken. Whoever stands at a border (the edge towards callers, a link
/// towards servers) turns one into the other; bytes in between say which they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Era {
    /// With a handshake and sessions: 2025-11-25 and before.
    #[default]
    Legacy,
    /// Without: every request says what it needs (2026-07-28).
    Modern,
}

impl Era {
    /// Returns the word used in configuration and API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }
}

/// What is known beforehand of how a server speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Speaks {
    /// Nothing: it is asked, and what it says is remembered until it turns out to be wrong.
    #[default]
    Auto,
    /// This, and it is not asked.
    Only(Era),
}

/// What a call of the modern era brings beside its parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stateless {
    /// What the headers say that the arguments are; absent where the transport has no headers.
    pub claims: Option<Vec<Claim>>,
    /// Whether it goes on with a request that was answered with a question: such an answer is
    /// nobody else's, and is never kept.
    pub retried: bool,
    /// What the id of a task says of it, where it was ours and could be opened.
    pub task: Option<Sealed>,
}

/// One header that repeats an argument: `Mcp-Param-{name}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The part of the header's name after `mcp-param-`, in lower case.
    pub name: Box<str>,
    /// Its value as it came, not decoded.
    pub value: Box<[u8]>,
}

/// An argument of a tool that is repeated in a header, by its definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The part of the header's name after `Mcp-Param-`, as the definition writes it.
    pub name: Box<str>,
    /// The keys that lead from the arguments to the value.
    pub path: Box<[Box<str>]>,
}

/// The mirrored arguments of one tool; absent where it has none, as nearly all.
pub type Mirrors = Option<Arc<[Mirror]>>;
