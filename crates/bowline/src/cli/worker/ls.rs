//! `worker ls`: who is connected, and where something waits.

use serde::Deserialize;

use crate::cli::api;
use crate::cli::client::{Client, QUICK};
use crate::cli::failure::{Exit, Failure};
use crate::cli::out::Format;
use crate::cli::table::{duration, table};
use crate::cli::{Context, clean};

const PATH: &str = "/api/v1/broker";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listed {
    now_ms: u64,
    peers: Vec<Peer>,
    mailboxes: Vec<Mailbox>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Peer {
    mailbox: String,
    role: Option<String>,
    since_ms: u64,
    subscribed: bool,
    offers: Vec<String>,
    unacked: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Mailbox {
    mailbox: String,
    waiting: u64,
    dead: u64,
    oldest_ms: Option<u64>,
}

pub(super) fn run(context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let out = &mut context.out;
    let body = client.get(PATH, QUICK)?;
    if out.format() == Format::Json {
        out.raw(&body)?;
        return Ok(Exit::Ok);
    }
    let listed: Listed = api::read(&body)?;
    let ago = |ms: u64| duration(listed.now_ms.saturating_sub(ms));
    if listed.peers.is_empty() {
        out.note("nobody is connected: bowline worker join --help");
    } else {
        let rows: Vec<_> = listed.peers.iter().map(|one| peer(one, &ago)).collect();
        let head = ["MAILBOX", "ROLE", "SINCE", "TAKES", "UNACKED", "OFFERS"];
        out.line(&table(head, &rows))?;
    }
    if !listed.mailboxes.is_empty() {
        let rows: Vec<_> = listed.mailboxes.iter().map(|one| row(one, &ago)).collect();
        out.line(&table(["MAILBOX", "WAITING", "DEAD", "OLDEST"], &rows))?;
    }
    if listed.mailboxes.iter().any(|one| one.dead > 0) {
        out.note("dead letters are kept and not delivered: bowline worker mail ls");
    }
    Ok(Exit::Ok)
}

fn peer(one: &Peer, ago: &impl Fn(u64) -> String) -> [String; 6] {
    let dash = || "-".to_owned();
    [
        one.mailbox.clone(),
        one.role.clone().unwrap_or_else(dash),
        ago(one.since_ms),
        if one.subscribed { "messages" } else { "-" }.to_owned(),
        one.unacked.to_string(),
        match one.offers.as_slice() {
            [] => dash(),
            offers => offers.join(", "),
        },
    ]
    .map(|cell| clean::line(&cell).into_owned())
}

fn row(one: &Mailbox, ago: &impl Fn(u64) -> String) -> [String; 4] {
    [
        clean::line(&one.mailbox).into_owned(),
        one.waiting.to_string(),
        one.dead.to_string(),
        one.oldest_ms.map_or_else(|| "-".to_owned(), ago),
    ]
}
