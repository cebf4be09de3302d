//! `token`: creates, lists, narrows and revokes the tokens of principals.

use bowline_api::tokens::{
    NeverExpires, TokenCreateRequest, TokenEntry, TokenNarrowRequest, TokenResponse,
    TokenRevokeResponse, TokenRotateResponse, TokensResponse,
};
use bytes::Bytes;

use super::api_client::{ApiClient, QUICK_TIMEOUT, percent_encode};
use super::api_types;
use super::args::{TokenCommand, TokenCreateArgs};
use super::failure::{CliExit, CliFailure};
use super::output::{CliOutput, OutputFormat};
use super::table::{format_count, format_duration, format_table};
use super::{CommandContext, clean};
use bowline_config::TokenLifetime;
use bowline_edge::TokenKind;

const TOKENS_PATH: &str = "/api/v1/tokens";

const ROTATE_PATH: &str = "/api/v1/owner-token/rotate";

pub(super) fn run(
    command: &TokenCommand,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let out = &mut context.out;
    match command {
        TokenCommand::Create(new) => create_token(&client, new, out),
        TokenCommand::Ls => list_tokens(&client, out),
        TokenCommand::RotateOwner => rotate_owner(&client, out),
        TokenCommand::Narrow { token, context, .. } => narrow_token(&client, token, context, out),
        TokenCommand::Revoke { token } => revoke_tokens(&client, token, out),
    }?;
    Ok(CliExit::Ok)
}

fn create_token(
    client: &ApiClient,
    args: &TokenCreateArgs,
    out: &mut CliOutput,
) -> Result<(), CliFailure> {
    let lifetime = args.expires.and_then(TokenLifetime::duration);
    let request = TokenCreateRequest {
        principal: Some(args.principal.clone()),
        kind: Some(args.kind.0.name().into()),
        role: args.role.clone(),
        expires_s: lifetime.map(|life| life.as_secs()),
        expires: (args.expires == Some(TokenLifetime::Unlimited)).then_some(NeverExpires::Never),
        contexts: args.context.clone(),
        profile: args.profile.clone(),
        run: None,
    };
    let body = api_types::encode_json(&request)?;
    let body = client
        .post(TOKENS_PATH, body, QUICK_TIMEOUT)
        .map_err(api_types::with_suggestion_hint)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let created: TokenResponse = api_types::parse_response(&body)?;
    let token = &created.entry;
    // Only the token goes to stdout, for redirection to a file.
    let secret = created.token.as_deref().unwrap_or_default();
    out.write_line(&clean::escape_line(secret))?;
    let role = match (args.kind.0, token.role.as_deref()) {
        (TokenKind::Agent, role) => role.unwrap_or("as the config says"),
        (TokenKind::Executor, _) => "none: it joins as an executor and calls nothing",
        (TokenKind::Auditor, _) => "none: it reads the audit trail and the status",
        (TokenKind::Viewer, _) => "none: it reads how the gateway does",
    };
    let lines = [
        format!("principal  {}", token.principal),
        format!("kind       {}", token.kind),
        format!("role       {role}"),
        format!("expires    {}", format_lifetime(token)),
        "keep it now: it is not shown again; the gateway has its hash only (tokens.json)".into(),
        format!("revoke it: bowline token revoke {}", token.id),
    ];
    for line in lines {
        out.write_note(&format!("  {}", clean::escape_line(&line)));
    }
    Ok(())
}

/// Rotates the owner token; the new token is in the token file and not printed.
fn rotate_owner(client: &ApiClient, out: &mut CliOutput) -> Result<(), CliFailure> {
    let body = client.post(ROTATE_PATH, Bytes::from_static(b"{}"), QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let rotated: TokenRotateResponse = api_types::parse_response(&body)?;
    let file = rotated.token_file.unwrap_or_default();
    out.write_line(&format!(
        "the owner's token is new: {}",
        clean::escape_line(&file.display().to_string())
    ))?;
    out.write_note(
        "the old one counts no more: connections, sessions and calls opened with it have ended",
    );
    Ok(())
}

fn format_lifetime(token: &TokenEntry) -> String {
    match token.expires_at_ms {
        None => "never; give a token an end with --expires 30d".to_owned(),
        Some(end) => format!(
            "in {}",
            format_duration(end.saturating_sub(token.created_at_ms))
        ),
    }
}

fn list_tokens(client: &ApiClient, out: &mut CliOutput) -> Result<(), CliFailure> {
    let body = client.get(TOKENS_PATH, QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let response: TokensResponse = api_types::parse_response(&body)?;
    if response.tokens.is_empty() {
        out.write_note("no tokens but the owner's; make one: bowline token create");
        return Ok(());
    }
    let rows: Vec<_> = response
        .tokens
        .iter()
        .map(|token| token_row(token, response.now_ms))
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
    Ok(out.write_line(&format_table(head, &rows))?)
}

fn token_row(token: &TokenEntry, now_ms: u64) -> [String; 8] {
    let role = match &token.role {
        Some(role) => role.clone(),
        None if token.acts_for_owner => "as the owner, MCP only".to_owned(),
        None => "-".to_owned(),
    };
    let expires = match token.expires_at_ms {
        None => "never".to_owned(),
        Some(_) if token.state.as_deref() == Some("expired") => "expired".to_owned(),
        Some(end) => {
            let soon = if token.ends_soon { ", soon" } else { "" };
            format!("in {}{soon}", format_duration(end.saturating_sub(now_ms)))
        }
    };
    [
        token.id.to_string(),
        token.principal.to_string(),
        token.kind.to_string(),
        role,
        format_contexts(token),
        format_duration(now_ms.saturating_sub(token.created_at_ms)),
        expires,
        token.run.as_deref().unwrap_or_default().to_owned(),
    ]
}

/// Returns the contexts given at creation and added later.
fn format_contexts(token: &TokenEntry) -> String {
    let mut all: Vec<_> = token.contexts.iter().chain(&token.narrowed).collect();
    all.sort();
    all.dedup();
    let all: Vec<_> = all.into_iter().map(|name| &**name).collect();
    all.join(",")
}

fn narrow_token(
    client: &ApiClient,
    token: &str,
    context: &[String],
    out: &mut CliOutput,
) -> Result<(), CliFailure> {
    let path = format!("{TOKENS_PATH}/{}/context", percent_encode(token));
    let request = TokenNarrowRequest {
        contexts: context.to_vec(),
    };
    let body = api_types::encode_json(&request)?;
    let body = client
        .put(&path, body, QUICK_TIMEOUT)
        .map_err(api_types::with_suggestion_hint)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let TokenResponse { entry: token, .. } = api_types::parse_response(&body)?;
    let (id, principal) = (&token.id, &token.principal);
    if token.narrowed.is_empty() {
        let line = format!("token {id} of {principal} is narrowed no more than when it was made");
        return Ok(out.write_line(&clean::escape_line(&line))?);
    }
    let names = token.narrowed.join(", ");
    out.write_line(&clean::escape_line(&format!(
        "narrowed token {id} of {principal} by {names}"
    )))?;
    out.write_note(
        "it counts at once, in open and later sessions, streams, queued and brokered calls",
    );
    let undo = format!("  to undo: bowline token narrow {id} --clear");
    out.write_note(&clean::escape_line(&undo));
    Ok(())
}

fn revoke_tokens(client: &ApiClient, token: &str, out: &mut CliOutput) -> Result<(), CliFailure> {
    let path = format!("{TOKENS_PATH}/{}", percent_encode(token));
    let body = client
        .delete(&path, QUICK_TIMEOUT)
        .map_err(api_types::with_suggestion_hint)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let TokenRevokeResponse {
        revoked, withdrawn, ..
    } = api_types::parse_response(&body)?;
    for revoked_token in &revoked {
        let line = format!(
            "revoked {} of {}",
            revoked_token.id, revoked_token.principal
        );
        out.write_line(&clean::escape_line(&line))?;
    }
    out.write_note(&format!(
        "{} revoked: connections, sessions and calls that were opened with it have ended",
        format_count(revoked.len() as u64, "token")
    ));
    if withdrawn > 0 {
        let calls = format_count(withdrawn, "queued call");
        out.write_note(&format!(
            "{calls} of it are dead letters now: bowline outbox ls --dead"
        ));
    }
    Ok(())
}
