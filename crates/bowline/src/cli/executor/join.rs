//! `executor join`: dials a gateway and does in this network what it asks for.

use std::time::Duration;

use bowline_core::error::whole;
use bowline_host::executor::{Protocol, RunError, RunOptions, Servant, Standing, run_with};
use tokio::sync::watch;
use tokio::time::timeout;

use super::means::{self, Ready};
use crate::cli::args::JoinGateway;
use crate::cli::daemon::check_exposure;
use crate::cli::failure::name_gateway;
use crate::cli::up::{self, Signals};
use crate::cli::{Context, Exit, Failure};
use crate::servant;

/// How long the first connection may take before the executor says that it runs.
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// Runs an executor until SIGINT or SIGTERM, or until its name is another's.
pub(super) fn run(join: &JoinGateway, context: &mut Context) -> Result<Exit, Failure> {
    up::runtime()?.block_on(serve(join, context))
}

async fn serve(join: &JoinGateway, context: &mut Context) -> Result<Exit, Failure> {
    check_exposure(join.gateway.trim(), context.global.insecure)?;
    let mut signals = Signals::watch()?;
    let Some(file) = means::token_file(context)? else {
        let message = "an executor proves who it is by a token of its gateway";
        return Err(Failure::usage(message)
            .hint("add --token-file FILE")
            .hint(make(&join.name)));
    };
    let Ready {
        servant,
        telemetry: _telemetry,
    } = means::ready((&join.name, Protocol::Bowline), &join.means, context)?;
    let (stop, mut stopped) = watch::channel(false);
    let shutdown = async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let credential = servant::reading(&file);
    let options = RunOptions::default();
    let running = run_with(&join.gateway, &credential, &servant, options, shutdown);
    let mut running = std::pin::pin!(running);
    let mut standing = servant.standing();
    let first = tokio::select! {
        ran = &mut running => return outcome(join, ran),
        first = timeout(FIRST_WAIT, standing.wait_for(|how| *how != Standing::Waiting)) => {
            first.map_or(Standing::Waiting, |how| how.map_or(Standing::Closed, |how| how.clone()))
        }
        () = signals.stop() => Standing::Closed,
    };
    if let Standing::Refused { status, reason } = &first {
        stop.send_replace(true);
        // It is closed in order.
        let _ran = running.await;
        return Err(refused(join, *status, reason));
    }
    if first != Standing::Closed {
        means::tell(&first, &join.gateway, &mut context.out);
        announce(join, &servant, first == Standing::Connected, context)?;
    }
    standing.mark_unchanged();
    loop {
        tokio::select! {
            ran = &mut running => return outcome(join, ran),
            () = signals.stop(), if !*stop.borrow() => {
                context.out.note("stopping");
                stop.send_replace(true);
            }
            Ok(()) = standing.changed() => {
                let how = standing.borrow_and_update().clone();
                means::tell(&how, &join.gateway, &mut context.out);
            }
        }
    }
}

/// Says that the executor runs.
fn announce(
    join: &JoinGateway,
    servant: &Servant,
    is_connected: bool,
    context: &mut Context,
) -> Result<(), Failure> {
    let offer = servant.offer();
    let ready = serde_json::json!({
        "v": 1,
        "event": "ready",
        "name": join.name,
        "pid": std::process::id(),
        "gateway": join.gateway,
        "connected": is_connected,
        "servers": offer.servers.keys().collect::<Vec<_>>(),
    });
    let away = if is_connected { "" } else { " (away)" };
    let lines = [
        format!(
            "bowline {} is executor {}",
            env!("CARGO_PKG_VERSION"),
            join.name
        ),
        format!("  gateway  {}{away}", join.gateway),
        format!("  use it   via = \"executor:{}\"", join.name),
        "  stop     Ctrl-C".to_owned(),
    ];
    context.out.result(&ready, |out| {
        lines.iter().try_for_each(|line| out.line(line))
    })
}

fn outcome(join: &JoinGateway, ran: Result<(), RunError>) -> Result<Exit, Failure> {
    let gateway = &join.gateway;
    match ran {
        Ok(()) => Ok(Exit::Ok),
        Err(error @ RunError::Endpoint(_)) => Err(Failure::usage(format!(
            "`{gateway}` cannot be used: {}",
            whole(&error)
        ))
        .hint("for instance http://gateway.example:7331")),
        Err(RunError::Fenced) => {
            let message = format!("another executor of {gateway} is `{}` now", join.name);
            Err(Failure::new(Exit::Unexpected, "fenced", message)
                .hint("two executors have one name, and the newer has its place")
                .hint("give each its own --name"))
        }
    }
}

fn refused(join: &JoinGateway, status: Option<u16>, reason: &str) -> Failure {
    let (gateway, name) = (&join.gateway, &join.name);
    let message = format!("cannot be executor `{name}` of {gateway}: {reason}");
    if status == Some(404) {
        return Failure::new(Exit::Unreachable, "unreachable", message)
            .hint("there is no gateway at that address");
    }
    // Credentials are refused with 401, or once the connection is open.
    if status == Some(403) {
        return Failure::new(Exit::Denied, "host_refused", message).hint(name_gateway(gateway));
    }
    Failure::new(Exit::Auth, "auth", message)
        .hint(make(name))
        .hint(format!(
            "or let its principal have the name: [principals.P] executors = [\"{name}\"]"
        ))
}

/// How a token for it is made.
fn make(name: &str) -> String {
    format!("on the gateway: bowline token create --kind executor --principal {name}")
}
