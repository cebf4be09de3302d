//! `refresh`: has the gateway ask servers for their lists again, and prints what changed.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

use super::api::{self, Server};
use super::client::{Client, encode};
use super::failure::{Exit, Failure};
use super::out::Format;
use super::{Context, clean, power};

/// A server that waits to be needed is started first.
const REFRESH: Duration = Duration::from_secs(120);

#[derive(Debug, Deserialize)]
struct Answer {
    refreshed: Vec<Refreshed>,
}

#[derive(Debug, Deserialize)]
struct Refreshed {
    server: Server,
    tools_added: u64,
    tools_removed: u64,
    failed: Vec<FailedList>,
}

#[derive(Debug, Deserialize)]
struct FailedList {
    list: String,
    message: String,
}

pub(super) fn run(server: Option<&str>, context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let path = match server {
        Some(server) => format!("/api/v1/servers/{}/refresh", encode(server)),
        None => "/api/v1/refresh".to_owned(),
    };
    let body = client.post(&path, Bytes::new(), REFRESH);
    let body = body.map_err(|failure| match server {
        Some(server) => power::named(&client, server, failure),
        None => failure,
    })?;
    let answer: Answer = api::read(&body)?;
    let has_failed = answer.refreshed.iter().any(|one| !one.failed.is_empty());
    if context.out.format() == Format::Json {
        context.out.raw(&body)?;
    } else {
        print(&answer, context)?;
    }
    Ok(match has_failed {
        true => Exit::Unreachable,
        false => Exit::Ok,
    })
}

fn print(answer: &Answer, context: &mut Context) -> Result<(), Failure> {
    if answer.refreshed.is_empty() {
        context.out.note("no server serves");
    }
    for one in &answer.refreshed {
        let name = &one.server.name;
        for failed in &one.failed {
            let line = format!(
                "{name}: {} could not be read: {}",
                failed.list, failed.message
            );
            context.out.warning(&clean::line(&line));
        }
        let (tools, added, removed) = (one.server.tools, one.tools_added, one.tools_removed);
        let line = match (added, removed) {
            (0, 0) => format!("{name}: {tools} tools"),
            _ => format!("{name}: {tools} tools ({added} new, {removed} gone)"),
        };
        context.out.line(&clean::line(&line))?;
    }
    Ok(())
}
