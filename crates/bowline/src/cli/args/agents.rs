//! The words of `run` and `connect`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::life;
use crate::clients::{Client, ENTRY_NAME, is_entry_name};

/// Options of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunClient {
    /// claude or codex
    #[arg(value_parser = client)]
    pub client: Client,
    /// What the endpoint is called in the client
    #[arg(long, value_name = "NAME", default_value = ENTRY_NAME, value_parser = entry_name)]
    pub name: String,
    /// Act for this principal; without it, for the owner
    #[arg(long, value_name = "NAME")]
    pub principal: Option<String>,
    /// What that principal may do; needed unless the config gives it a role
    #[arg(long, value_name = "ROLE", requires = "principal")]
    pub role: Option<String>,
    /// Only this server, with its own tool names
    #[arg(long, value_name = "NAME")]
    pub server: Option<String>,
    /// Only what is in this profile
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Narrow it by this rule of the config; may stand several times
    #[arg(long, value_name = "NAME")]
    pub context: Vec<String>,
    /// How long its token lives where nobody tells its end [default: 7d]
    #[arg(long, value_name = "DURATION", value_parser = life)]
    pub expires: Option<Duration>,
    /// Arguments of the client
    #[arg(last = true, value_name = "ARGS")]
    pub args: Vec<OsString>,
}

impl RunClient {
    /// Whether the client is to have less than the owner has.
    pub(in crate::cli) fn is_narrowed(&self) -> bool {
        self.principal.is_some()
            || self.server.is_some()
            || self.profile.is_some()
            || !self.context.is_empty()
    }
}

/// Options of `connect`.
#[derive(Args, Clone, Debug)]
pub struct Connect {
    /// claude or codex
    #[arg(value_parser = client)]
    pub client: Client,
    /// Print the arguments, one on each line; no file is changed
    #[arg(long, required = true)]
    pub print_args: bool,
    /// Print them as one line for a shell
    #[arg(long)]
    pub shell: bool,
    /// What the endpoint is called in the client
    #[arg(long, value_name = "NAME", default_value = ENTRY_NAME, value_parser = entry_name)]
    pub name: String,
    /// Only this server, with its own tool names
    #[arg(long, value_name = "NAME", conflicts_with = "profile")]
    pub server: Option<String>,
    /// Only what is in this profile
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
}

fn client(text: &str) -> Result<Client, &'static str> {
    Client::of(text).ok_or("expected claude or codex")
}

fn entry_name(text: &str) -> Result<String, &'static str> {
    is_entry_name(text)
        .then(|| text.to_owned())
        .ok_or("expected 1 to 32 of A-Z, a-z, 0-9, `_` and `-`")
}
