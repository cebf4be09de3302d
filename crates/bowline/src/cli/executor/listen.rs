//! `executor listen`: waits for a gateway that dials, and does in this network what it asks for.

use std::net::SocketAddr;
use std::sync::Arc;

use bowline_host::executor::{
    Attend, Door, ListenError, Protocol, Reference, Servant, listen_with,
};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::means::{self, Ready};
use crate::assemble::AssembleError;
use crate::cli::args::Listen;
use crate::cli::up::{self, Signals};
use crate::cli::{Context, Exit, Failure};
use crate::servant;

/// Runs an executor until SIGINT or SIGTERM.
pub(super) fn run(asked: &Listen, context: &mut Context) -> Result<Exit, Failure> {
    up::runtime()?.block_on(serve(asked, context))
}

async fn serve(asked: &Listen, context: &mut Context) -> Result<Exit, Failure> {
    let mut signals = Signals::watch()?;
    let door = door(asked, context)?;
    let Ready {
        servant,
        telemetry: _telemetry,
    } = means::ready((&asked.name, asked.protocol), &asked.means, context)?;
    let address = asked.address;
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|source| AssembleError::Listen { address, source })?;
    let here = listener.local_addr()?;
    let (stop, mut stopped) = watch::channel(false);
    let shutdown = async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let attend = attend(asked.protocol, &servant);
    let listening = listen_with(listener, door, attend, &servant, shutdown);
    let mut listening = std::pin::pin!(listening);
    announce(asked, here, &servant, context)?;
    let mut standing = servant.standing();
    loop {
        tokio::select! {
            ended = &mut listening => {
                return ended.map(|()| Exit::Ok).map_err(|error| failure(&error));
            }
            () = signals.stop(), if !*stop.borrow() => {
                context.out.note("stopping");
                stop.send_replace(true);
            }
            Ok(()) = standing.changed() => {
                let how = standing.borrow_and_update().clone();
                means::tell(&how, "gateway", &mut context.out);
            }
        }
    }
}

/// Who is let in.
fn door(asked: &Listen, context: &Context) -> Result<Door, Failure> {
    let file = means::token_file(context)?;
    match (file, asked.insecure_no_auth) {
        (Some(_), true) => Err(Failure::usage(
            "--token-file and --insecure-no-auth do not go together",
        )),
        (Some(file), false) => Ok(Door::Token(servant::reading(&file))),
        (None, true) if asked.address.ip().is_loopback() => Ok(Door::Open),
        (None, true) => Err(failure(&ListenError::Exposed)),
        (None, false) => {
            let message = "an executor lets gateways in that show its token";
            Err(Failure::usage(message)
                .hint("add --token-file FILE, and the same token to the gateway's config:")
                .hint("  [executors.NAME] url = \"ws://HOST:PORT\", token = \"${file:FILE}\""))
        }
    }
}

/// Who speaks with gateways.
fn attend(protocol: Protocol, servant: &Servant) -> Arc<dyn Attend> {
    match protocol {
        Protocol::Bowline => Arc::new(servant.clone()),
        Protocol::ExecServer => Arc::new(Reference::new(servant)),
    }
}

/// Says that the executor listens.
fn announce(
    asked: &Listen,
    here: SocketAddr,
    servant: &Servant,
    context: &mut Context,
) -> Result<(), Failure> {
    let offer = servant.offer();
    let ready = serde_json::json!({
        "v": 1,
        "event": "ready",
        "name": asked.name,
        "pid": std::process::id(),
        "listen": here,
        "protocol": asked.protocol.as_str(),
        "connected": false,
        "servers": offer.servers.keys().collect::<Vec<_>>(),
    });
    let protocol = match asked.protocol {
        Protocol::Bowline => "",
        Protocol::ExecServer => ", protocol = \"exec-server\"",
    };
    let mut lines = vec![
        format!(
            "bowline {} is executor {}",
            env!("CARGO_PKG_VERSION"),
            asked.name
        ),
        format!("  listens  {here}"),
        format!(
            "  use it   [executors.{}] url = \"ws://{here}\"{protocol}",
            asked.name
        ),
    ];
    if asked.insecure_no_auth {
        lines.push(
            "  \u{1b}[31mauthentication is OFF: any local program may use it\u{1b}[0m".to_owned(),
        );
    }
    lines.push("  stop     Ctrl-C".to_owned());
    context.out.result(&ready, |out| {
        lines.iter().try_for_each(|line| out.line(line))
    })
}

fn failure(error: &ListenError) -> Failure {
    match error {
        ListenError::Exposed => Failure::usage(error.to_string())
            .hint("listen on 127.0.0.1 or [::1], or add --token-file FILE"),
        ListenError::Address(source) => {
            Failure::unexpected(error.to_string()).hint(format!("cause: {source}"))
        }
    }
}
