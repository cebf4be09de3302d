//! `executor ls`: which executors the gateway has, and what goes through them.

use serde::Deserialize;

use crate::cli::api;
use crate::cli::client::{Client, QUICK};
use crate::cli::failure::{Exit, Failure};
use crate::cli::out::Format;
use crate::cli::table::{duration, table};
use crate::cli::{Context, clean};

const PATH: &str = "/api/v1/executors";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listed {
    now_ms: u64,
    executors: Vec<One>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct One {
    name: String,
    connected: bool,
    /// How it came; nothing for one that never did.
    via: Option<String>,
    protocol: String,
    peer: Option<String>,
    servers: Vec<String>,
    secrets: Vec<String>,
    used_by: Vec<String>,
    streams: u64,
    since_ms: Option<u64>,
    lost: Option<String>,
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
    if listed.executors.is_empty() {
        out.note("there are no executors: bowline executor join --help");
        return Ok(Exit::Ok);
    }
    let ago = |ms: u64| duration(listed.now_ms.saturating_sub(ms));
    let rows: Vec<_> = listed.executors.iter().map(|one| row(one, &ago)).collect();
    let head = [
        "EXECUTOR", "STATE", "SINCE", "PEER", "STREAMS", "USED BY", "SERVERS", "SECRETS",
    ];
    out.line(&table(head, &rows))?;
    for one in &listed.executors {
        if let Some(lost) = one.lost.as_ref().filter(|_| !one.connected) {
            out.note(&format!(
                "{}: {}",
                clean::line(&one.name),
                clean::line(lost)
            ));
        }
    }
    Ok(Exit::Ok)
}

fn row(one: &One, ago: &impl Fn(u64) -> String) -> [String; 8] {
    let some = |texts: &[String]| match texts {
        [] => "-".to_owned(),
        texts => texts.join(", "),
    };
    let none = || "-".to_owned();
    let way = one.via.as_deref().unwrap_or_default();
    let state = match (one.connected, one.protocol.as_str()) {
        (false, _) => "away".to_owned(),
        (true, "" | "bowline") => way.to_owned(),
        (true, protocol) => format!("{way} ({protocol})"),
    };
    [
        one.name.clone(),
        state,
        one.since_ms.map_or_else(none, ago),
        one.peer.clone().unwrap_or_else(none),
        one.streams.to_string(),
        some(&one.used_by),
        some(&one.servers),
        some(&one.secrets),
    ]
    .map(|cell| clean::line(&cell).into_owned())
}
