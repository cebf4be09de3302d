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
    key: String,
    position: u64,
    attempts: u64,
    last_error: Option<String>,
    next_try_ms: Option<u64>,
    age_ms: Option<u64>,
    expires_at_ms: Option<u64>,
    done_at_ms: Option<u64>,
    params: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
}

/// The parameters of a call, as far as people want to see them.
#[derive(Default, Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listed {
    now_ms: u64,
    entries: Vec<Queued>,
    next: Option<u64>,
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
    if listed.next.is_some() {
        out.note("there are more; narrow it by --server or --dead");
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
        one.age_ms.map_or_else(|| "-".to_owned(), duration),
        one.attempts.to_string(),
        expiry(one, now_ms),
        one.last_error.clone().unwrap_or_default(),
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
    let next = one.next_try_ms.map(|wait| match wait {
        0 => "now".to_owned(),
        wait => format!("in {}", duration(wait)),
    });
    let ago = |ms| format!("{} ago", duration(ms));
    let done = one.done_at_ms.map(|done| ago(now_ms.saturating_sub(done)));
    let tries = (one.attempts > 0).then(|| one.attempts.to_string());
    let position = (one.position > 0).then(|| format!("{} in its lane", one.position));
    let expires = one.expires_at_ms.map(|_| expiry(one, now_ms));
    let known = [
        ("id", Some(one.id.clone())),
        ("state", Some(one.state.clone())),
        ("tool", Some(name(one))),
        ("principal", Some(one.principal.clone())),
        ("key", Some(one.key.clone())),
        ("queued", one.age_ms.map(ago)),
        ("position", position),
        ("tries", tries),
        ("next try", next),
        ("expires", expires),
        ("delivered", done),
        ("error", one.last_error.clone()),
    ];
    let known = known.into_iter().filter_map(|(what, text)| {
        let line = format!("{what:<10} {}", text?);
        Some(clean::line(&line).into_owned())
    });
    let params = one.params.as_deref().map(RawValue::get);
    let params: Params<'_> = params
        .and_then(|params| serde_json::from_str(params).ok())
        .unwrap_or_default();
    let result = one.result.as_deref();
    let said = [("arguments", params.arguments), ("result", result)];
    let said = said.into_iter().filter_map(|(what, json)| {
        let json = pretty(json?.get());
        Some(format!("{what:<10} {}", clean::text(&json)))
    });
    known.chain(said).collect::<Vec<_>>().join("\n")
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
