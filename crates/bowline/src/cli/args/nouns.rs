//! Commands about one kind of thing, and what can be done with it.

use clap::{Args, Subcommand, ValueEnum};
use serde::Deserialize;

use super::Target;

/// What to do with queued calls.
#[derive(Clone, Debug, Subcommand)]
pub enum OutboxCommand {
    /// List calls that wait for their server, and dead letters, the oldest first
    Ls(OutboxFilter),
    /// Show one of them, with its arguments
    Show {
        /// Its ID
        id: String,
    },
    /// Send one of them at once, a dead letter as well, behind all others of its lane
    Retry {
        /// Its ID
        id: String,
    },
    /// Drop one of them for good; it is printed first, since nothing brings it back
    Drop {
        /// Its ID
        id: String,
    },
}

/// Options of `outbox ls`.
#[derive(Args, Clone, Debug, Default)]
pub struct OutboxFilter {
    /// Only calls of this server
    #[arg(long, value_name = "NAME")]
    pub server: Option<String>,
    /// Only dead letters
    #[arg(long)]
    pub dead: bool,
}

/// What to do with secrets.
#[derive(Clone, Debug, Subcommand)]
pub enum SecretCommand {
    /// Put a secret away; it is read from stdin, or typed unseen
    Set {
        /// What `${secret:NAME}` calls it
        name: String,
    },
    /// List names, where they come from and who uses them, without values
    Ls,
    /// Take a secret away
    Rm {
        /// Its name
        name: String,
    },
}

/// What a pinned definition is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A tool, by its name
    #[default]
    Tool,
    /// A prompt, by its name
    Prompt,
    /// A resource, by its URI
    Resource,
    /// A template of resources, by its URI template
    Template,
    /// `instructions` or `serverInfo`
    Introduction,
}

impl Kind {
    /// Returns the word that the API uses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Prompt => "prompt",
            Self::Resource => "resource",
            Self::Template => "template",
            Self::Introduction => "introduction",
        }
    }
}

/// What to do with pins.
#[derive(Clone, Debug, Subcommand)]
pub enum Pin {
    /// List servers with their pins, or the pins of one
    Ls {
        /// Only this server, entry by entry
        server: Option<String>,
    },
    /// Show what changed in a definition, or in all of a server that wait for you
    Diff {
        /// SERVER, SERVER.TOOL, or SERVER.NAME of another kind
        target: Target,
        /// What NAME is
        #[arg(long, value_enum, default_value_t)]
        kind: Kind,
    },
    /// Approve a definition as it is now, or all of a server
    Accept {
        /// SERVER, SERVER.TOOL, or SERVER.NAME of another kind
        target: Target,
        /// What NAME is
        #[arg(long, value_enum, default_value_t)]
        kind: Kind,
        /// Only if it still has this hash; the hash of before takes the last approval back
        #[arg(long, value_name = "HASH")]
        hash: Option<String>,
    },
}

/// What to ask of roles.
#[derive(Debug, Subcommand)]
pub enum RoleCommand {
    /// Say whether a role may use a tool, and which rule decides; exits 6 when it may not
    Test(Trial),
}

/// Options of `role test`.
#[derive(Args, Clone, Debug)]
pub struct Trial {
    /// The role, or `owner`
    pub role: String,
    /// SERVER.TOOL, prompt:SERVER.NAME or resource:SERVER.URI
    #[arg(value_name = "TARGET")]
    pub target: String,
    /// Who asks, for conditions that look at it
    #[arg(long, value_name = "NAME")]
    pub principal: Option<String>,
    /// Narrow it by this rule of the config; may stand several times
    #[arg(long, value_name = "NAME")]
    pub context: Vec<String>,
    /// Ask at the endpoint of this profile
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// The arguments of the call, for conditions that look at them
    #[arg(long, value_name = "JSON")]
    pub args: Option<String>,
}
