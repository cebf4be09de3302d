//! Commands about executors.

use std::net::SocketAddr;

use clap::{Args, Subcommand};

use crate::config::Protocol;
use crate::config::executor::PROTOCOLS;

/// What to do with executors.
#[derive(Clone, Debug, Subcommand)]
pub enum ExecutorCommand {
    /// Join a gateway: perform its requests and run servers for it in this network
    Join(JoinGateway),
    /// Wait for a gateway that dials, and do the same for it
    Listen(Listen),
    /// List the executors of the gateway
    Ls,
}

/// What an executor may do. `--config` names a file with `[executor]` and `[servers]`; nothing
/// else is ever run.
#[derive(Args, Clone, Debug, Default)]
pub struct Means {
    /// Let requests go to HOST:PORT, ADDRESS:PORT or CIDR:PORT; nothing is allowed otherwise
    #[arg(long, value_name = "HOST:PORT")]
    pub allow: Vec<String>,
}

/// Options of `executor join`.
///
/// `--token-file` names the file with the token that the gateway gave out.
#[derive(Args, Clone, Debug, Default)]
pub struct JoinGateway {
    /// Address of the gateway: http(s)://HOST:PORT or ws(s)://HOST:PORT
    pub gateway: String,
    /// What the executor is called: `via = "executor:NAME"` in the gateway's config
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// What it may do.
    #[command(flatten)]
    pub means: Means,
}

/// Options of `executor listen`.
///
/// `--token-file` names the file with the token that gateways must show.
#[derive(Args, Clone, Debug)]
pub struct Listen {
    /// Address to listen on
    #[arg(value_name = "ADDRESS:PORT")]
    pub address: SocketAddr,
    /// What it calls itself
    #[arg(long, value_name = "NAME", default_value = "executor")]
    pub name: String,
    /// Let every local program in; refused unless the address is of this machine only
    #[arg(long)]
    pub insecure_no_auth: bool,
    /// What is spoken: bowline or exec-server
    #[arg(long, value_name = "PROTOCOL", default_value = "bowline", value_parser = protocol)]
    pub protocol: Protocol,
    /// What it may do.
    #[command(flatten)]
    pub means: Means,
}

fn protocol(text: &str) -> Result<Protocol, String> {
    let known = PROTOCOLS.into_iter();
    let found = known.clone().find(|protocol| protocol.as_str() == text);
    found.ok_or_else(|| {
        let known: Vec<_> = known.map(Protocol::as_str).collect();
        format!("expected one of {}", known.join(", "))
    })
}
