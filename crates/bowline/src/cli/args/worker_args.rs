//! The arguments of `worker`.

use std::net::SocketAddr;

use clap::{Args, Subcommand};

/// What to do with workers.
#[derive(Clone, Debug, Subcommand)]
pub enum WorkerCommand {
    /// Join a hub: serve its tools here as if they were local, and offer servers of ours there
    Join(WorkerJoinArgs),
    /// List peers that are connected, and mailboxes in which something waits
    Ls,
    /// Look at dead letters, deliver them anew or drop them
    Mail {
        /// What to do with them
        #[command(subcommand)]
        command: MailCommand,
    },
}

/// Options of `worker join`.
///
/// `--token-file` names the file with the token that the hub gave out.
#[derive(Args, Clone, Debug, Default)]
pub struct WorkerJoinArgs {
    /// Address of the hub: http(s)://HOST:PORT or ws(s)://HOST:PORT
    pub hub: String,
    /// Address to listen on for local agents; a free port of this machine where absent
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Vec<SocketAddr>,
    /// Speak MCP over stdin and stdout as well, for a client that starts programs
    #[arg(long)]
    pub stdio: bool,
    /// Offer servers whose names fit to the hub
    #[arg(long, value_name = "GLOB")]
    pub offer: Vec<String>,
}

/// What to do with messages that could not be delivered.
#[derive(Clone, Debug, Subcommand)]
pub enum MailCommand {
    /// List dead letters, the oldest first
    Ls(MailListArgs),
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
pub struct MailListArgs {
    /// Only those of this mailbox
    #[arg(long, value_name = "NAME")]
    pub mailbox: Option<String>,
}
