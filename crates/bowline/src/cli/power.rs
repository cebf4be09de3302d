//! `start`, `stop`, `restart` and `reload` of one server: has the gateway change it and prints its
//! new state.

use bytes::Bytes;

use super::Context;
use super::api::{self, OneServer, Server};
use super::client::{Client, encode};
use super::failure::{Exit, Failure};
use super::out::Format;
use std::time::Duration;

/// A start waits for the handshake, a stop for calls that are under way.
const TURN: Duration = Duration::from_secs(120);

/// What to do with a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Start,
    Stop,
    Restart,
    /// Lets calls in flight end first.
    Reload,
}

impl Turn {
    const fn verb(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Reload => "reload",
        }
    }
}

pub(super) fn run(server: &str, turn: Turn, context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let path = format!("/api/v1/servers/{}/{}", encode(server), turn.verb());
    let body = client
        .post(&path, Bytes::new(), TURN)
        .map_err(|failure| named(&client, server, failure))?;
    let server = api::read::<OneServer>(&body)?.server;
    let failed = turn != Turn::Stop && server.is_failing();
    match context.out.format() {
        Format::Json => context.out.raw(&body)?,
        Format::Human if failed => return Err(not_served(&server)),
        Format::Human => context.out.line(&outcome(&server))?,
    }
    Ok(if failed { Exit::Unreachable } else { Exit::Ok })
}

fn outcome(server: &Server) -> String {
    let Server { name, state, .. } = server;
    match (state.as_str(), server.pid) {
        ("stopped", _) => {
            format!("{name} is stopped; calls are refused until: bowline start {name}")
        }
        ("starting", _) => format!("{name} is starting; see: bowline status {name}"),
        (_, Some(pid)) => format!("{name} is {state} (pid {pid})"),
        (_, None) => format!("{name} is {state}"),
    }
}

/// The order was taken, but the server does not serve.
fn not_served(server: &Server) -> Failure {
    let error = server.last_error.clone().unwrap_or_default();
    let message = format!("{} is {}: {}", server.name, server.state, error.message);
    let code = error.code.as_deref().unwrap_or("start_failed");
    let mut failure = Failure::new(Exit::Unreachable, code, message);
    failure.details.insert("class".into(), error.class.into());
    failure.hint(format!("see: bowline logs {}", server.name))
}

/// Adds the name that may have been meant.
pub(super) fn named(client: &Client, server: &str, failure: Failure) -> Failure {
    if failure.code != "server_not_found" {
        return failure;
    }
    let known = api::suggestions(&failure)
        .is_empty()
        .then(|| api::servers(client))
        .transpose();
    match known {
        Ok(Some(servers)) => api::did_you_mean(api::no_server(server, &servers)),
        _ => api::did_you_mean(failure),
    }
}
