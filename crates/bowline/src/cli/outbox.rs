//! `outbox`: looks at calls that wait for their server, sends them anew, or drops them.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::api;
use super::args::{OutboxCommand, OutboxFilter};
use super::client::{Client, QUICK, encode};
use super::failure::{Exit, Failure};
use super::out::{Format, Out};
use super::pretty::pretty;
use super::table::{duration, table};
use super::{Context, clean};

const PATH: &str = "/api/v1/outbox";

/// One call of the outbox, as the gateway tells it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Queued {
    id: String,
    state: String,
    principal: String,
    server: String,
    tool: String,
    #[serde(rename = "idempotencyKey")]
    key: String,
    position: Option<u64>,
    attempts: u64,
    queued_at_ms: u64,
    expires_at_ms: Option<u64>,
    reason: Option<String>,
    arguments: Option<Box<RawValue>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listed {
    now_ms: u64,
    entries: Vec<Queued>,
    more: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct One {
    now_ms: u64,
    entry: Queued,
}

pub(super) fn run(command: &OutboxCommand, context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let out = &mut context.out;
    match command {
        OutboxCommand::Ls(filter) => list(&client, filter, out),
        OutboxCommand::Show { id } => show(&client, id, out),
        OutboxCommand::Retry { id } => retry(&client, id, out),
        OutboxCommand::Drop { id } => drop_one(&client, id, out),
    }?;
    Ok(Exit::Ok)
}

fn list(client: &Client, filter: &OutboxFilter, out: &mut Out) -> Result<(), Failure> {
    let server = filter.server.as_ref();
    let server = server.map(|server| format!("server={}", encode(server)));
    let dead = filter.dead.then(|| "state=dead".to_owned());
    let query: Vec<_> = server.into_iter().chain(dead).collect();
    let path = match query.as_slice() {
        [] => PATH.to_owned(),
        query => format!("{PATH}?{}", query.join("&")),
    };
    let body = client.get(&path, QUICK).map_err(api::did_you_mean)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let listed: Listed = api::read(&body)?;
    if listed.entries.is_empty() {
        out.note("nothing waits");
        return Ok(());
    }
    let rows: Vec<_> = listed
        .entries
        .iter()
        .map(|one| row(one, listed.now_ms))
        .collect();
    let head = [
        "ID",
        "STATE",
        "TOOL",
        "PRINCIPAL",
        "AGE",
        "TRIES",
        "EXPIRES",
        "NOTE",
    ];
    out.line(&table(head, &rows))?;
    if listed.more {
        out.note("there are more; narrow it by --server, or use --json");
    }
    if let Some(dead) = listed.entries.iter().find(|one| one.state == "dead") {
        let id = clean::line(&dead.id);
        out.note(&format!(
            "dead calls are kept and not sent: bowline outbox retry {id}, or drop {id}"
        ));
    }
    Ok(())
}

fn row(one: &Queued, now_ms: u64) -> [String; 8] {
    [
        one.id.clone(),
        one.state.clone(),
        name(one),
        one.principal.clone(),
        duration(now_ms.saturating_sub(one.queued_at_ms)),
        one.attempts.to_string(),
        expiry(one, now_ms),
        one.reason.clone().unwrap_or_default(),
    ]
    .map(|cell| clean::line(&cell).into_owned())
}

fn name(one: &Queued) -> String {
    format!("{}.{}", one.server, one.tool)
}

fn expiry(one: &Queued, now_ms: u64) -> String {
    match one.expires_at_ms {
        None => "never".to_owned(),
        Some(end) if end <= now_ms => "passed".to_owned(),
        Some(end) => format!("in {}", duration(end.saturating_sub(now_ms))),
    }
}

fn show(client: &Client, id: &str, out: &mut Out) -> Result<(), Failure> {
    let body = client.get(&path(id), QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let one: One = api::read(&body)?;
    Ok(out.line(&text(&one.entry, one.now_ms))?)
}

/// All that is known of a call, one thing to a line.
fn text(one: &Queued, now_ms: u64) -> String {
    let mut lines = vec![
        format!("id         {}", one.id),
        format!("state      {}", one.state),
        format!("tool       {}", name(one)),
        format!("principal  {}", one.principal),
        format!("key        {}", one.key),
        format!(
            "queued     {} ago, {}",
            duration(now_ms.saturating_sub(one.queued_at_ms)),
            match one.attempts {
                1 => "tried once".to_owned(),
                tries => format!("tried {tries} times"),
            }
        ),
        format!("expires    {}", expiry(one, now_ms)),
    ];
    if let Some(position) = one.position {
        lines.push(format!("position   {position} in its lane"));
    }
    if let Some(reason) = &one.reason {
        lines.push(format!("reason     {reason}"));
    }
    let mut lines: Vec<_> = lines
        .iter()
        .map(|line| clean::line(line).into_owned())
        .collect();
    if let Some(arguments) = &one.arguments {
        let arguments = pretty(arguments.get());
        lines.push(format!("arguments  {}", clean::text(&arguments)));
    }
    lines.join("\n")
}

fn retry(client: &Client, id: &str, out: &mut Out) -> Result<(), Failure> {
    let path = format!("{}/retry", path(id));
    let body = client.post(&path, Bytes::from_static(b"{}"), QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let One { entry, .. } = api::read(&body)?;
    let line = format!(
        "{} of {} is sent as soon as its server is there",
        id,
        name(&entry)
    );
    out.line(&clean::line(&line))?;
    out.note(&format!(
        "watch it: bowline outbox show {}",
        clean::line(id)
    ));
    Ok(())
}

/// Drops a call for good, and says all that it was: nothing brings it back but a new call.
fn drop_one(client: &Client, id: &str, out: &mut Out) -> Result<(), Failure> {
    let body = client.delete(&path(id), QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let One { entry, now_ms } = api::read(&body)?;
    out.line(&text(&entry, now_ms))?;
    out.note("dropped for good: it is never sent. This was it, should you want to call it anew");
    Ok(())
}

fn path(id: &str) -> String {
    format!("{PATH}/{}", encode(id))
}
