//! The arguments of `run` and `connect`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::parse_lifetime;
use bowline_config::client_programs::{ClientProgram, ENDPOINT_NAME, is_endpoint_name};

/// Options of `run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// claude or codex
    #[arg(value_parser = parse_client)]
    pub client: ClientProgram,
    /// What the endpoint is called in the client
    #[arg(
        long,
        value_name = "NAME",
        default_value = ENDPOINT_NAME,
        value_parser = parse_endpoint_name
    )]
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
    /// Lifetime of the token if the end of the run is never reported [default: 7d]
    #[arg(long, value_name = "DURATION", value_parser = parse_lifetime)]
    pub expires: Option<Duration>,
    /// Arguments of the client
    #[arg(last = true, value_name = "ARGS")]
    pub args: Vec<OsString>,
}

impl RunArgs {
    /// Returns whether the client gets less access than the owner.
    pub(in crate::cli) fn is_narrowed(&self) -> bool {
        self.principal.is_some()
            || self.server.is_some()
            || self.profile.is_some()
            || !self.context.is_empty()
    }
}

/// Options of `connect`.
#[derive(Args, Clone, Debug)]
pub struct ConnectArgs {
    /// claude or codex
    #[arg(value_parser = parse_client)]
    pub client: ClientProgram,
    /// Print the arguments, one on each line; no file is changed
    #[arg(long, required = true)]
    pub print_args: bool,
    /// Print them as one line for a shell
    #[arg(long)]
    pub shell: bool,
    /// What the endpoint is called in the client
    #[arg(
        long,
        value_name = "NAME",
        default_value = ENDPOINT_NAME,
        value_parser = parse_endpoint_name
    )]
    pub name: String,
    /// Only this server, with its own tool names
    #[arg(long, value_name = "NAME", conflicts_with = "profile")]
    pub server: Option<String>,
    /// Only what is in this profile
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
}

fn parse_client(text: &str) -> Result<ClientProgram, &'static str> {
    ClientProgram::from_name(text).ok_or("expected claude or codex")
}

fn parse_endpoint_name(text: &str) -> Result<String, &'static str> {
    is_endpoint_name(text)
        .then(|| text.to_owned())
        .ok_or("expected 1 to 32 of A-Z, a-z, 0-9, `_` and `-`")
}
