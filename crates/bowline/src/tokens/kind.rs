//! The kind of a token: which doors of the gateway it opens, whatever its role allows behind them.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What the holder of a token is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum TokenKind {
    /// An agent, or a peer of the broker. A token that says no kind is one of these.
    #[default]
    Agent,
    /// An executor. It joins at `/executor`, and neither calls tools nor asks the API.
    Executor,
}

impl TokenKind {
    /// Whether it is the kind of a token that says none.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the word for it in files, commands and the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Executor => "executor",
        }
    }
}

impl fmt::Display for TokenKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
