//! `worker mail`: looks at dead letters of mailboxes, delivers them anew, or drops them.

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

const PATH: &str = "/api/v1/broker/dead";

/// One dead letter, as the gateway tells it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Letter {
    id: String,
    message: String,
    mailbox: String,
    from: String,
    kind: String,
    reason: String,
    attempts: u64,
    stored_ms: u64,
    bytes: u64,
    letter: Option<Box<RawValue>>,
}

/// The whole message, as far as people want to see it.
#[derive(Default, Deserialize)]
struct Said<'a> {
    #[serde(borrow)]
    body: Option<&'a RawValue>,
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
    let path = match &filter.mailbox {
        Some(mailbox) => format!("{PATH}?mailbox={}", encode(mailbox)),
        None => PATH.to_owned(),
    };
    let body = client.get(&path, QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let listed: Listed = api::read(&body)?;
    let Some(first) = listed.letters.first() else {
        out.note("no letter is dead");
        return Ok(());
    };
    let rows = listed.letters.iter().map(|one| row(one, listed.now_ms));
    let rows: Vec<_> = rows.collect();
    let head = ["ID", "MAILBOX", "FROM", "KIND", "AGE", "TRIES", "REASON"];
    out.line(&table(head, &rows))?;
    if listed.next.is_some() {
        out.note("there are more; narrow it by --mailbox");
    }
    let id = clean::line(&first.id);
    out.note(&format!(
        "dead letters are kept and not delivered: bowline worker mail retry {id}, or drop {id}"
    ));
    Ok(())
}

fn row(one: &Letter, now_ms: u64) -> [String; 7] {
    let known = |value: &str| if value.is_empty() { "-" } else { value }.to_owned();
    [
        one.id.clone(),
        one.mailbox.clone(),
        known(&one.from),
        known(&one.kind),
        duration(now_ms.saturating_sub(one.stored_ms)),
        one.attempts.to_string(),
        one.reason.clone(),
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

/// All that is known of a letter, one thing to a line.
fn text(one: &Letter, now_ms: u64) -> String {
    let stored = duration(now_ms.saturating_sub(one.stored_ms));
    let known = [
        ("id", one.id.clone()),
        ("mailbox", one.mailbox.clone()),
        ("from", one.from.clone()),
        ("kind", one.kind.clone()),
        ("message", one.message.clone()),
        ("stored", format!("{stored} ago")),
        ("tries", one.attempts.to_string()),
        ("size", size(one.bytes)),
        ("reason", one.reason.clone()),
    ];
    let known = known.into_iter().filter(|(_, text)| !text.is_empty());
    let known = known.map(|(what, text)| {
        let line = format!("{what:<10} {text}");
        clean::line(&line).into_owned()
    });
    let said = one.letter.as_deref().map(RawValue::get);
    let said: Said<'_> = said
        .and_then(|said| serde_json::from_str(said).ok())
        .unwrap_or_default();
    let body = said.body.map(|body| {
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

/// Drops a letter for good, and says all that it was.
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
