//! `token`: makes, lists and revokes the credentials of principals.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::api;
use super::args::{NewToken, TokenCommand};
use super::client::{Client, QUICK, encode};
use super::failure::{Exit, Failure};
use super::out::{Format, Out};
use super::table::{count, duration, table};
use super::{Context, clean};
use crate::config::TokenLifetime;
use crate::tokens::TokenKind;

const PATH: &str = "/api/v1/tokens";

const ROTATE: &str = "/api/v1/owner-token/rotate";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Token {
    id: String,
    token: String,
    principal: String,
    kind: TokenKind,
    role: Option<String>,
    acts_for_owner: bool,
    run: Option<String>,
    contexts: Vec<String>,
    narrowed: Vec<String>,
    created_at_ms: u64,
    expires_at_ms: Option<u64>,
    ends_soon: bool,
    state: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Listed {
    now_ms: u64,
    tokens: Vec<Token>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Revoked {
    revoked: Vec<Token>,
    /// Queued calls that are not sent any more.
    withdrawn: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Rotated {
    token_file: String,
}

pub(super) fn run(command: &TokenCommand, context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let out = &mut context.out;
    match command {
        TokenCommand::Create(new) => create(&client, new, out),
        TokenCommand::Ls => list(&client, out),
        TokenCommand::RotateOwner => rotate_owner(&client, out),
        TokenCommand::Narrow { token, context, .. } => narrow(&client, token, context, out),
        TokenCommand::Revoke { token } => revoke(&client, token, out),
    }?;
    Ok(Exit::Ok)
}

fn create(client: &Client, new: &NewToken, out: &mut Out) -> Result<(), Failure> {
    let asked = json!({
        "principal": new.principal,
        "kind": new.kind,
        "role": new.role,
        "expires_s": new.expires.and_then(TokenLifetime::duration).map(|life| life.as_secs()),
        "expires": (new.expires == Some(TokenLifetime::Unlimited)).then_some("never"),
        "contexts": new.context,
        "profile": new.profile,
    });
    let body = Bytes::from(asked.to_string());
    let body = client.post(PATH, body, QUICK).map_err(api::did_you_mean)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let made: Token = api::read(&body)?;
    // The token alone on stdout, so that it can be sent to a file.
    out.line(&clean::line(&made.token))?;
    let role = match (made.kind, made.role.as_deref()) {
        (TokenKind::Agent, role) => role.unwrap_or("as the config says"),
        (TokenKind::Executor, _) => "none: it joins as an executor and calls nothing",
        (TokenKind::Auditor, _) => "none: it reads the audit trail and the status",
        (TokenKind::Viewer, _) => "none: it reads how the gateway does",
    };
    let lines = [
        format!("principal  {}", made.principal),
        format!("kind       {}", made.kind),
        format!("role       {role}"),
        format!("expires    {}", life(&made)),
        "keep it now: it is not shown again; the gateway has its hash only (tokens.json)".into(),
        format!("revoke it: bowline token revoke {}", made.id),
    ];
    for line in lines {
        out.note(&format!("  {}", clean::line(&line)));
    }
    Ok(())
}

/// Replaces the owner's token; the new one is in its file and is not shown.
fn rotate_owner(client: &Client, out: &mut Out) -> Result<(), Failure> {
    let body = client.post(ROTATE, Bytes::from_static(b"{}"), QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let rotated: Rotated = api::read(&body)?;
    out.line(&format!(
        "the owner's token is new: {}",
        clean::line(&rotated.token_file)
    ))?;
    out.note(
        "the old one counts no more: connections, sessions and calls opened with it have ended",
    );
    Ok(())
}

fn life(made: &Token) -> String {
    match made.expires_at_ms {
        None => "never; give a token an end with --expires 30d".to_owned(),
        Some(end) => format!("in {}", duration(end.saturating_sub(made.created_at_ms))),
    }
}

fn list(client: &Client, out: &mut Out) -> Result<(), Failure> {
    let body = client.get(PATH, QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let listed: Listed = api::read(&body)?;
    if listed.tokens.is_empty() {
        out.note("no tokens but the owner's; make one: bowline token create");
        return Ok(());
    }
    let rows: Vec<_> = listed
        .tokens
        .iter()
        .map(|one| row(one, listed.now_ms))
        .collect();
    let head = [
        "ID",
        "PRINCIPAL",
        "KIND",
        "ROLE",
        "CONTEXTS",
        "AGE",
        "EXPIRES",
        "RUN",
    ];
    Ok(out.line(&table(head, &rows))?)
}

fn row(token: &Token, now_ms: u64) -> [String; 8] {
    let role = match &token.role {
        Some(role) => role.clone(),
        None if token.acts_for_owner => "as the owner, MCP only".to_owned(),
        None => "-".to_owned(),
    };
    let expires = match token.expires_at_ms {
        None => "never".to_owned(),
        Some(_) if token.state == "expired" => "expired".to_owned(),
        Some(end) => {
            let soon = if token.ends_soon { ", soon" } else { "" };
            format!("in {}{soon}", duration(end.saturating_sub(now_ms)))
        }
    };
    [
        token.id.clone(),
        token.principal.clone(),
        token.kind.to_string(),
        role,
        contexts(token),
        duration(now_ms.saturating_sub(token.created_at_ms)),
        expires,
        token.run.clone().unwrap_or_default(),
    ]
}

/// The contexts that it was made with, and those that narrow it since.
fn contexts(token: &Token) -> String {
    let mut all: Vec<_> = token.contexts.iter().chain(&token.narrowed).collect();
    all.sort();
    all.dedup();
    let all: Vec<_> = all.into_iter().map(String::as_str).collect();
    all.join(",")
}

fn narrow(client: &Client, token: &str, context: &[String], out: &mut Out) -> Result<(), Failure> {
    let path = format!("{PATH}/{}/context", encode(token));
    let body = Bytes::from(json!({ "contexts": context }).to_string());
    let body = client.put(&path, body, QUICK).map_err(api::did_you_mean)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let token: Token = api::read(&body)?;
    let (id, principal) = (&token.id, &token.principal);
    if token.narrowed.is_empty() {
        let line = format!("token {id} of {principal} is narrowed no more than when it was made");
        return Ok(out.line(&clean::line(&line))?);
    }
    let names = token.narrowed.join(", ");
    out.line(&clean::line(&format!(
        "narrowed token {id} of {principal} by {names}"
    )))?;
    out.note("it counts at once, in open and later sessions, streams, queued and brokered calls");
    let undo = format!("  to undo: bowline token narrow {id} --clear");
    out.note(&clean::line(&undo));
    Ok(())
}

fn revoke(client: &Client, token: &str, out: &mut Out) -> Result<(), Failure> {
    let path = format!("{PATH}/{}", encode(token));
    let body = client.delete(&path, QUICK).map_err(api::did_you_mean)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let Revoked { revoked, withdrawn } = api::read(&body)?;
    for one in &revoked {
        let line = format!("revoked {} of {}", one.id, one.principal);
        out.line(&clean::line(&line))?;
    }
    out.note(&format!(
        "{} revoked: connections, sessions and calls that were opened with it have ended",
        count(revoked.len() as u64, "token")
    ));
    if withdrawn > 0 {
        let calls = count(withdrawn, "queued call");
        out.note(&format!(
            "{calls} of it are dead letters now: bowline outbox ls --dead"
        ));
    }
    Ok(())
}
