//! The kind of a token: the endpoints it opens, independent of the role's permissions there.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What the holder of a token is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// An agent, or a peer of the broker. A token that says no kind is one of these.
    #[default]
    Agent,
    /// An executor. It joins at `/executor`, and neither calls tools nor asks the API.
    Executor,
    /// A person or program that reads the audit trail and the status, and nothing else.
    Auditor,
    /// A person or program that reads how the gateway and its servers do, and no payload.
    Viewer,
}

impl TokenKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Agent, Self::Executor, Self::Auditor, Self::Viewer];

    /// Returns whether the kind is the default for a token without a kind.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the kind permits read requests to the API only.
    #[must_use]
    pub const fn is_read_only(self) -> bool {
        matches!(self, Self::Auditor | Self::Viewer)
    }

    /// Parses the word used in files, commands and the API.
    #[must_use]
    pub fn from_name(word: &str) -> Option<Self> {
        let mut kinds = Self::ALL.into_iter();
        kinds.find(|kind| kind.name() == word)
    }

    /// Returns the word used in files, commands and the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Executor => "executor",
            Self::Auditor => "auditor",
            Self::Viewer => "viewer",
        }
    }
}

impl fmt::Display for TokenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
