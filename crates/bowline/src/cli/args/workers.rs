//! Commands about peers of the broker.

use clap::{Args, Subcommand};

/// What to do with workers.
#[derive(Clone, Debug, Subcommand)]
pub enum WorkerCommand {
    /// List peers that are connected, and mailboxes in which something waits
    Ls,
    /// Look at dead letters, deliver them anew or drop them
    Mail {
        /// What to do with them
        #[command(subcommand)]
        command: MailCommand,
    },
}

/// What to do with messages that could not be delivered.
#[derive(Clone, Debug, Subcommand)]
pub enum MailCommand {
    /// List dead letters, the oldest first
    Ls(MailFilter),
    /// Show one of them, with what it says
    Show {
        /// Its ID
        id: String,
    },
    /// Put one of them back into its mailbox, to be delivered anew
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

/// Options of `worker mail ls`.
#[derive(Args, Clone, Debug, Default)]
pub struct MailFilter {
    /// Only those of this mailbox
    #[arg(long, value_name = "NAME")]
    pub mailbox: Option<String>,
}
