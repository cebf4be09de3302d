//! `executor listen`: waits for a gateway to dial, and serves requests from this network.

use std::net::SocketAddr;
use std::sync::Arc;

use bowline_host::executor::{
    ConnectionHandler, ExecServerAdapter, ExecutorProtocol, ExecutorService, ListenAuth,
    ListenError, listen_with,
};
use bowline_runtime::Lifecycle;
use tokio::net::TcpListener;

use super::setup::{self, ExecutorSetup};
use crate::assemble::AssembleError;
use crate::cli::args::ExecutorListenArgs;
use crate::cli::up::{self, GatewaySignals};
use crate::cli::{CliExit, CliFailure, CommandContext};
use bowline_config::state;

/// Runs an executor until SIGINT or SIGTERM.
pub(super) fn run(
    args: &ExecutorListenArgs,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    up::create_server_runtime()?.block_on(run_executor(args, context))
}

async fn run_executor(
    args: &ExecutorListenArgs,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let mut signals = GatewaySignals::register()?;
    let auth = listen_auth(args, context)?;
    let ExecutorSetup {
        service,
        telemetry: _telemetry,
    } = setup::set_up_executor(&args.name, args.protocol, &args.means, context)?;
    let address = args.address;
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| AssembleError::Listen { address, source })?;
    let bound = listener.local_addr()?;
    let lifecycle = Lifecycle::default();
    let shutdown = lifecycle.shutdown();
    let handler = connection_handler(args.protocol, &service);
    let listening = listen_with(listener, auth, handler, &service, shutdown.wait_closing());
    let mut listening = std::pin::pin!(listening);
    print_ready(args, bound, &service, context)?;
    let mut status = service.status();
    loop {
        tokio::select! {
            ended = &mut listening => {
                return ended.map(|()| CliExit::Ok).map_err(|error| to_failure(&error));
            }
            () = signals.wait_for_stop(), if !shutdown.is_closing() => {
                context.out.write_note("stopping");
                lifecycle.close();
            }
            Ok(()) = status.changed() => {
                let how = status.borrow_and_update().clone();
                setup::print_status(&how, "gateway", &mut context.out);
            }
        }
    }
}

/// Builds the authentication of incoming gateways.
fn listen_auth(
    args: &ExecutorListenArgs,
    context: &CommandContext,
) -> Result<ListenAuth, CliFailure> {
    let file = setup::checked_token_file(context)?;
    match (file, args.insecure_no_auth) {
        (Some(_), true) => Err(CliFailure::usage(
            "--token-file and --insecure-no-auth do not go together",
        )),
        (Some(file), false) => Ok(ListenAuth::Token(state::token_file_credential(&file))),
        (None, true) if args.address.ip().is_loopback() => Ok(ListenAuth::Loopback),
        (None, true) => Err(to_failure(&ListenError::Exposed)),
        (None, false) => {
            let message = "an executor lets gateways in that show its token";
            Err(CliFailure::usage(message)
                .with_hint("add --token-file FILE, and the same token to the gateway's config:")
                .with_hint("  [executors.NAME] url = \"ws://HOST:PORT\", token = \"${file:FILE}\""))
        }
    }
}

/// Returns the connection handler for the protocol.
fn connection_handler(
    protocol: ExecutorProtocol,
    service: &ExecutorService,
) -> Arc<dyn ConnectionHandler> {
    match protocol {
        ExecutorProtocol::Bowline => Arc::new(service.clone()),
        ExecutorProtocol::ExecServer => Arc::new(ExecServerAdapter::new(service)),
    }
}

/// Prints readiness.
fn print_ready(
    args: &ExecutorListenArgs,
    address: SocketAddr,
    service: &ExecutorService,
    context: &mut CommandContext,
) -> Result<(), CliFailure> {
    let offer = service.offer();
    let ready = serde_json::json!({
        "v": 1,
        "event": "ready",
        "name": args.name,
        "pid": std::process::id(),
        "listen": address,
        "protocol": args.protocol.as_str(),
        "connected": false,
        "servers": offer.servers.keys().collect::<Vec<_>>(),
    });
    let protocol = match args.protocol {
        ExecutorProtocol::Bowline => "",
        ExecutorProtocol::ExecServer => ", protocol = \"exec-server\"",
    };
    let mut lines = vec![
        format!(
            "bowline {} is executor {}",
            env!("CARGO_PKG_VERSION"),
            args.name
        ),
        format!("  listens  {address}"),
        format!(
            "  use it   [executors.{}] url = \"ws://{address}\"{protocol}",
            args.name
        ),
    ];
    if args.insecure_no_auth {
        lines.push(
            "  \u{1b}[31mauthentication is OFF: any local program may use it\u{1b}[0m".to_owned(),
        );
    }
    lines.push("  stop     Ctrl-C".to_owned());
    context.out.write_result(&ready, |out| {
        lines.iter().try_for_each(|line| out.write_line(line))
    })
}

fn to_failure(error: &ListenError) -> CliFailure {
    match error {
        ListenError::Exposed => CliFailure::usage(error.to_string())
            .with_hint("listen on 127.0.0.1 or [::1], or add --token-file FILE"),
        ListenError::Address(source) => {
            CliFailure::unexpected(error.to_string()).with_hint(format!("cause: {source}"))
        }
    }
}
