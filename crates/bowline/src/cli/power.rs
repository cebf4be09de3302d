//! `start`, `stop`, `restart` and `reload`: has the gateway change a server and prints its new state.

use bytes::Bytes;
use serde::Deserialize;

use super::Context;
use super::api::{self, Server};
use super::client::{Client, encode};
use super::failure::{Exit, Failure};
use super::ls::state;
use super::out::Format;
use std::time::Duration;

/// A start waits for the handshake, a stop for calls that are under way.
const TURN: Duration = Duration::from_secs(120);

/// What to do with a server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Turn {
    Start,
    Stop,
    Restart,
    Reload,
}

#[derive(Deserialize)]
struct Answer {
    server: Server,
}

pub(super) fn run(server: &str, turn: Turn, context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let verb = match turn {
        Turn::Start => "start",
        Turn::Stop => "stop",
        Turn::Restart => "restart",
        Turn::Reload => "reload",
    };
    let path = format!("/api/v1/servers/{}/{verb}", encode(server));
    let body = client
        .post(&path, Bytes::new(), TURN)
        .map_err(|failure| named(&client, server, failure))?;
    if context.out.format() == Format::Json {
        context.out.raw(&body)?;
        return Ok(Exit::Ok);
    }
    let server = api::read::<Answer>(&body)?.server;
    let pid = server
        .pid
        .map(|pid| format!(" (pid {pid})"))
        .unwrap_or_default();
    context
        .out
        .line(&format!("{} is {}{pid}", server.name, state(&server)))?;
    Ok(Exit::Ok)
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
