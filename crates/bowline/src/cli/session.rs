//! `session`: lists, narrows and ends sessions of clients.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::api;
use super::args::SessionCommand;
use super::client::{Client, QUICK, encode};
use super::failure::{Exit, Failure};
use super::out::{Format, Out};
use super::table::{duration, table};
use super::{Context, clean};

const PATH: &str = "/api/v1/sessions";

/// Characters of an id that people read; ids begin with chance.
const ID_CHARS: usize = 12;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listed {
    total: u64,
    sessions: Vec<Session>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Session {
    id: String,
    principal: String,
    token: Option<String>,
    client: Option<String>,
    client_version: Option<String>,
    endpoint: String,
    contexts: Vec<String>,
    token_contexts: Vec<String>,
    age_ms: u64,
    idle_ms: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Narrowed {
    contexts: Vec<String>,
    narrows: String,
    token: String,
}

pub(super) fn run(command: &SessionCommand, context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let out = &mut context.out;
    match command {
        SessionCommand::Ls => list(&client, out),
        SessionCommand::Narrow {
            session,
            context,
            credential,
            ..
        } => {
            let asked = match credential {
                true => json!({"contexts": context, "credential": true}),
                false => json!({ "contexts": context }),
            };
            narrow(&client, session, &asked.to_string(), out)
        }
        SessionCommand::End { session } => end(&client, session, out),
    }?;
    Ok(Exit::Ok)
}

fn list(client: &Client, out: &mut Out) -> Result<(), Failure> {
    let body = client.get(PATH, QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let listed: Listed = api::read(&body)?;
    if listed.sessions.is_empty() {
        out.note("no sessions are in memory");
        return Ok(());
    }
    let rows: Vec<_> = listed.sessions.iter().map(row).collect();
    let head = [
        "ID",
        "PRINCIPAL",
        "CLIENT",
        "ENDPOINT",
        "AGE",
        "IDLE",
        "CONTEXTS",
    ];
    out.line(&table(head, &rows))?;
    let hidden = listed.total.saturating_sub(rows.len() as u64);
    if hidden > 0 {
        out.note(&format!(
            "{hidden} more that were used longer ago are not shown"
        ));
    }
    Ok(())
}

fn row(session: &Session) -> [String; 7] {
    let mut contexts: Vec<_> = session.contexts.clone();
    contexts.extend(
        session
            .token_contexts
            .iter()
            .map(|name| format!("{name} (token)")),
    );
    let client = match (&session.client, &session.client_version) {
        (Some(name), Some(version)) => format!("{name} {version}"),
        (Some(name), None) => name.clone(),
        (None, _) => "-".to_owned(),
    };
    [
        short(&session.id).to_owned(),
        session.principal.clone(),
        client,
        session.endpoint.clone(),
        duration(session.age_ms),
        duration(session.idle_ms),
        contexts.join(", "),
    ]
}

fn short(id: &str) -> &str {
    id.get(..ID_CHARS).unwrap_or(id)
}

/// Returns the one session whose id begins so.
fn find(client: &Client, beginning: &str) -> Result<Session, Failure> {
    let listed: Listed = api::read(&client.get(PATH, QUICK)?)?;
    let found = listed.sessions.into_iter();
    let mut found = found.filter(|session| session.id.starts_with(beginning));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => {
            let text = format!("several sessions have an id that begins with `{beginning}`");
            Err(Failure::usage(&text))
        }
        (None, _) => {
            let text = format!("no session has an id that begins with `{beginning}`");
            Err(Failure::usage(&text))
        }
    }
}

fn narrow(client: &Client, beginning: &str, asked: &str, out: &mut Out) -> Result<(), Failure> {
    let session = find(client, beginning)?;
    let path = format!("{PATH}/{}/context", encode(&session.id));
    let body = Bytes::copy_from_slice(asked.as_bytes());
    let body = client.put(&path, body, QUICK).map_err(api::did_you_mean)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let narrowed: Narrowed = api::read(&body)?;
    let (id, principal) = (short(&session.id), &session.principal);
    let is_token = narrowed.narrows == "credential";
    let what = match is_token {
        true => format!("token {} of {principal}", narrowed.token),
        false => format!("session {id} of {principal}"),
    };
    if narrowed.contexts.is_empty() {
        let line = format!("{what} is narrowed no more");
        return Ok(out.line(&clean::line(&line))?);
    }
    let names = narrowed.contexts.join(", ");
    out.line(&clean::line(&format!("narrowed {what} by {names}")))?;
    let flag = match (is_token, &session.token) {
        (true, _) => " --credential",
        (false, token) => {
            out.note("only this session is narrowed: who has its token can open another without");
            if token.is_some() {
                let wider =
                    format!("  to narrow the token: bowline session narrow {id} --credential");
                out.note(&clean::line(&format!(
                    "{wider} {}",
                    narrowed.contexts.join(" ")
                )));
            }
            ""
        }
    };
    let undo = format!("  to undo: bowline session narrow {id} --clear{flag}");
    out.note(&clean::line(&undo));
    Ok(())
}

fn end(client: &Client, beginning: &str, out: &mut Out) -> Result<(), Failure> {
    let session = find(client, beginning)?;
    let path = format!("{PATH}/{}", encode(&session.id));
    let body = client.delete(&path, QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let line = format!(
        "ended session {} of {}",
        short(&session.id),
        session.principal
    );
    out.line(&clean::line(&line))?;
    out.note("its client may open another; to keep it out: bowline token revoke ID");
    Ok(())
}
