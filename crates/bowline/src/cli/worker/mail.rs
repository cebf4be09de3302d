//! `worker mail`: looks at messages of mailboxes, delivers dead letters anew, or drops them.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::cli::api;
use crate::cli::args::{MailCommand, MailFilter};
use crate::cli::client::{Client, QUICK, encode};
use crate::cli::failure::{Exit, Failure};
use crate::cli::out::{Format, Out};
use crate::cli::pretty::pretty;
use crate::cli::table::{duration, size, table};
use crate::cli::{Context, clean};

const PATH: &str = "/api/v1/broker/mail";

/// One message, as the gateway tells it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Letter {
    id: String,
    message: String,
    mailbox: String,
    from: Option<String>,
    kind: Option<String>,
    state: String,
    reason: Option<String>,
    attempts: u64,
    stored_ms: u64,
    expires_ms: Option<u64>,
    bytes: u64,
    body: Option<Box<RawValue>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listed {
    now_ms: u64,
    letters: Vec<Letter>,
    next: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct One {
    now_ms: u64,
    letter: Letter,
}

pub(super) fn run(command: &MailCommand, context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let out = &mut context.out;
    match command {
        MailCommand::Ls(filter) => list(&client, filter, out),
        MailCommand::Show { id } => show(&client, id, out),
        MailCommand::Retry { id } => retry(&client, id, out),
        MailCommand::Drop { id } => drop_one(&client, id, out),
    }?;
    Ok(Exit::Ok)
}

fn list(client: &Client, filter: &MailFilter, out: &mut Out) -> Result<(), Failure> {
    let mailbox = filter.mailbox.as_ref();
    let mailbox = mailbox.map(|mailbox| format!("mailbox={}", encode(mailbox)));
    let dead = filter.dead.then(|| "dead=true".to_owned());
    let query: Vec<_> = mailbox.into_iter().chain(dead).collect();
    let path = match query.as_slice() {
        [] => PATH.to_owned(),
        query => format!("{PATH}?{}", query.join("&")),
    };
    let body = client.get(&path, QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let listed: Listed = api::read(&body)?;
    if listed.letters.is_empty() {
        out.note("nothing waits");
        return Ok(());
    }
    let rows = listed.letters.iter().map(|one| row(one, listed.now_ms));
    let rows: Vec<_> = rows.collect();
    let head = [
        "ID", "STATE", "MAILBOX", "FROM", "KIND", "AGE", "TRIES", "NOTE",
    ];
    out.line(&table(head, &rows))?;
    if listed.next.is_some() {
        out.note("there are more; narrow it by --mailbox or --dead");
    }
    if let Some(dead) = listed.letters.iter().find(|one| one.state == "dead") {
        let id = clean::line(&dead.id);
        out.note(&format!(
            "dead letters are kept and not delivered: bowline worker mail retry {id}, or drop {id}"
        ));
    }
    Ok(())
}

fn row(one: &Letter, now_ms: u64) -> [String; 8] {
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    [
        one.id.clone(),
        one.state.clone(),
        one.mailbox.clone(),
        known(&one.from),
        known(&one.kind),
        duration(now_ms.saturating_sub(one.stored_ms)),
        one.attempts.to_string(),
        one.reason.clone().unwrap_or_default(),
    ]
    .map(|cell| clean::line(&cell).into_owned())
}

fn show(client: &Client, id: &str, out: &mut Out) -> Result<(), Failure> {
    let body = client.get(&path(id), QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let One { letter, now_ms } = api::read(&body)?;
    Ok(out.line(&text(&letter, now_ms))?)
}

/// All that is known of a message, one thing to a line.
fn text(one: &Letter, now_ms: u64) -> String {
    let expires = one.expires_ms.map(|end| match end.checked_sub(now_ms) {
        None | Some(0) => "passed".to_owned(),
        Some(left) => format!("in {}", duration(left)),
    });
    let stored = duration(now_ms.saturating_sub(one.stored_ms));
    let known = [
        ("id", Some(one.id.clone())),
        ("state", Some(one.state.clone())),
        ("mailbox", Some(one.mailbox.clone())),
        ("from", one.from.clone()),
        ("kind", one.kind.clone()),
        ("message", Some(one.message.clone())),
        ("stored", Some(format!("{stored} ago"))),
        (
            "tries",
            (one.attempts > 0).then(|| one.attempts.to_string()),
        ),
        ("expires", expires),
        ("size", Some(size(one.bytes))),
        ("reason", one.reason.clone()),
    ];
    let known = known.into_iter().filter_map(|(what, text)| {
        let line = format!("{what:<10} {}", text?);
        Some(clean::line(&line).into_owned())
    });
    let body = one.body.as_deref().map(|body| {
        let json = pretty(body.get());
        format!("{:<10} {}", "body", clean::text(&json))
    });
    known.chain(body).collect::<Vec<_>>().join("\n")
}

fn retry(client: &Client, id: &str, out: &mut Out) -> Result<(), Failure> {
    let path = format!("{}/retry", path(id));
    let body = client.post(&path, Bytes::from_static(b"{}"), QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let One { letter, .. } = api::read(&body)?;
    let line = format!("{id} waits again in mailbox {}", letter.mailbox);
    Ok(out.line(&clean::line(&line))?)
}

/// Drops a message for good, and says all that it was.
fn drop_one(client: &Client, id: &str, out: &mut Out) -> Result<(), Failure> {
    let body = client.delete(&path(id), QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let One { letter, now_ms } = api::read(&body)?;
    out.line(&text(&letter, now_ms))?;
    out.note("dropped for good: it is never delivered");
    Ok(())
}

fn path(id: &str) -> String {
    format!("{PATH}/{}", encode(id))
}
