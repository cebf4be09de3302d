//! Commands about peers of the broker.

use clap::{Args, Subcommand};

/// What to do with workers.
#[derive(Clone, Debug, Subcommand)]
pub enum WorkerCommand {
    /// List peers that are connected, and mailboxes in which something waits
    Ls,
    /// Look at messages in mailboxes, deliver dead letters anew or drop them
    Mail {
        /// What to do with them
        #[command(subcommand)]
        command: MailCommand,
    },
}

/// What to do with messages in mailboxes.
#[derive(Clone, Debug, Subcommand)]
pub enum MailCommand {
    /// List messages that wait, and dead letters, the oldest first
    Ls(MailFilter),
    /// Show one of them, with what it says
    Show {
        /// Its ID
        id: String,
    },
    /// Deliver a dead letter anew
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
    /// Only messages of this mailbox
    #[arg(long, value_name = "NAME")]
    pub mailbox: Option<String>,
    /// Only dead letters
    #[arg(long)]
    pub dead: bool,
}
