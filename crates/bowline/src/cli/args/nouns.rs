//! Commands about one kind of thing, and what can be done with it.

use clap::{Args, Subcommand};

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
