//! The arguments of `executor`.

use std::net::SocketAddr;

use clap::{Args, Subcommand};

use bowline_config::ExecutorProtocol;
use bowline_config::executor_config::PROTOCOLS;

/// What to do with executors.
#[derive(Clone, Debug, Subcommand)]
pub enum ExecutorCommand {
    /// Join a gateway: perform its requests and run servers for it in this network
    Join(ExecutorJoinArgs),
    /// Wait for a gateway that dials, and do the same for it
    Listen(ExecutorListenArgs),
    /// List the executors of the gateway
    Ls,
}

/// What an executor may do. `--config` names a file with `[executor]` and `[servers]`; nothing
/// else is ever run.
#[derive(Args, Clone, Debug, Default)]
pub struct ExecutorAllowArgs {
    /// Let requests go to HOST:PORT, ADDRESS:PORT or CIDR:PORT; nothing is allowed otherwise
    #[arg(long, value_name = "HOST:PORT")]
    pub allow: Vec<String>,
}

/// Options of `executor join`.
///
/// `--token-file` names the file with the token that the gateway gave out.
#[derive(Args, Clone, Debug, Default)]
pub struct ExecutorJoinArgs {
    /// Address of the gateway: http(s)://HOST:PORT or ws(s)://HOST:PORT
    pub gateway: String,
    /// What the executor is called: `via = "executor:NAME"` in the gateway's config
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// What it may do.
    #[command(flatten)]
    pub means: ExecutorAllowArgs,
}

/// Options of `executor listen`.
///
/// `--token-file` names the file with the token that gateways must show.
#[derive(Args, Clone, Debug)]
pub struct ExecutorListenArgs {
    /// Address to listen on
    #[arg(value_name = "ADDRESS:PORT")]
    pub address: SocketAddr,
    /// Name of the executor, as gateways see it
    #[arg(long, value_name = "NAME", default_value = "executor")]
    pub name: String,
    /// Let every local program in; refused unless the address is of this machine only
    #[arg(long)]
    pub insecure_no_auth: bool,
    /// What is spoken: bowline or exec-server
    #[arg(long, value_name = "PROTOCOL", default_value = "bowline", value_parser = parse_protocol)]
    pub protocol: ExecutorProtocol,
    /// What it may do.
    #[command(flatten)]
    pub means: ExecutorAllowArgs,
}

fn parse_protocol(text: &str) -> Result<ExecutorProtocol, String> {
    let protocols = PROTOCOLS.into_iter();
    let found = protocols.clone().find(|protocol| protocol.as_str() == text);
    found.ok_or_else(|| {
        let protocols: Vec<_> = protocols.map(ExecutorProtocol::as_str).collect();
        format!("expected one of {}", protocols.join(", "))
    })
}
