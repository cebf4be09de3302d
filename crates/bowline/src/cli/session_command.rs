//! `session`: lists, narrows and ends client sessions.

use bowline_api::sessions::{
    SessionEntry, SessionNarrowRequest, SessionNarrowResponse, SessionsResponse,
};

use super::api_client::{ApiClient, QUICK_TIMEOUT, percent_encode};
use super::api_types;
use super::args::SessionCommand;
use super::failure::{CliExit, CliFailure};
use super::output::{CliOutput, OutputFormat};
use super::table::{format_duration, format_table};
use super::{CommandContext, clean};

const SESSIONS_PATH: &str = "/api/v1/sessions";

/// Displayed characters of a session id; ids begin with random characters.
const SHORT_ID_CHARS: usize = 12;

pub(super) fn run(
    command: &SessionCommand,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let out = &mut context.out;
    match command {
        SessionCommand::Ls => list_sessions(&client, out),
        SessionCommand::Narrow {
            session,
            context,
            credential,
            ..
        } => {
            let request = SessionNarrowRequest {
                contexts: context.clone(),
                credential: credential.then_some(true),
            };
            narrow_session(&client, session, &request, out)
        }
        SessionCommand::End { session } => end_session(&client, session, out),
    }?;
    Ok(CliExit::Ok)
}

fn list_sessions(client: &ApiClient, out: &mut CliOutput) -> Result<(), CliFailure> {
    let body = client.get(SESSIONS_PATH, QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let response: SessionsResponse = api_types::parse_response(&body)?;
    if response.sessions.is_empty() {
        out.write_note("no sessions are in memory");
        return Ok(());
    }
    let rows: Vec<_> = response.sessions.iter().map(session_row).collect();
    let head = [
        "ID",
        "PRINCIPAL",
        "CLIENT",
        "ENDPOINT",
        "AGE",
        "IDLE",
        "CONTEXTS",
    ];
    out.write_line(&format_table(head, &rows))?;
    let hidden = response.total.saturating_sub(rows.len() as u64);
    if hidden > 0 {
        out.write_note(&format!(
            "{hidden} more that were used longer ago are not shown"
        ));
    }
    Ok(())
}

fn session_row(session: &SessionEntry) -> [String; 7] {
    let contexts = session.contexts.iter();
    let mut contexts: Vec<_> = contexts.map(ToString::to_string).collect();
    contexts.extend(
        session
            .token_contexts
            .iter()
            .map(|name| format!("{name} (token)")),
    );
    let client = match (&session.client, &session.client_version) {
        (Some(name), Some(version)) => format!("{name} {version}"),
        (Some(name), None) => name.to_string(),
        (None, _) => "-".to_owned(),
    };
    [
        short_id(&session.id).to_owned(),
        session.principal.to_string(),
        client,
        session.endpoint.clone(),
        format_duration(session.age_ms),
        format_duration(session.idle_ms),
        contexts.join(", "),
    ]
}

fn short_id(id: &str) -> &str {
    id.get(..SHORT_ID_CHARS).unwrap_or(id)
}

/// Finds the unique session with this id prefix.
fn find_session(client: &ApiClient, prefix: &str) -> Result<SessionEntry, CliFailure> {
    let response: SessionsResponse =
        api_types::parse_response(&client.get(SESSIONS_PATH, QUICK_TIMEOUT)?)?;
    let matching = response.sessions.into_iter();
    let mut matching = matching.filter(|session| session.id.starts_with(prefix));
    match (matching.next(), matching.next()) {
        (Some(session), None) => Ok(session),
        (Some(_), Some(_)) => {
            let text = format!("several sessions have an id that begins with `{prefix}`");
            Err(CliFailure::usage(&text))
        }
        (None, _) => {
            let text = format!("no session has an id that begins with `{prefix}`");
            Err(CliFailure::usage(&text))
        }
    }
}

fn narrow_session(
    client: &ApiClient,
    prefix: &str,
    request: &SessionNarrowRequest,
    out: &mut CliOutput,
) -> Result<(), CliFailure> {
    let session = find_session(client, prefix)?;
    let path = format!("{SESSIONS_PATH}/{}/context", percent_encode(&session.id));
    let body = api_types::encode_json(request)?;
    let body = client
        .put(&path, body, QUICK_TIMEOUT)
        .map_err(api_types::with_suggestion_hint)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let narrowed: SessionNarrowResponse = api_types::parse_response(&body)?;
    let (id, principal) = (short_id(&session.id), &session.principal);
    let is_token = narrowed.narrows == "credential";
    let target = match is_token {
        true => format!(
            "token {} of {principal}",
            narrowed.token.as_deref().unwrap_or_default()
        ),
        false => format!("session {id} of {principal}"),
    };
    if narrowed.contexts.is_empty() {
        let line = format!("{target} is narrowed no more");
        return Ok(out.write_line(&clean::escape_line(&line))?);
    }
    let names = narrowed.contexts.join(", ");
    out.write_line(&clean::escape_line(&format!(
        "narrowed {target} by {names}"
    )))?;
    let flag = match (is_token, &session.token) {
        (true, _) => " --credential",
        (false, token) => {
            out.write_note(
                "only this session is narrowed: who has its token can open another without",
            );
            if token.is_some() {
                let wider =
                    format!("  to narrow the token: bowline session narrow {id} --credential");
                out.write_note(&clean::escape_line(&format!(
                    "{wider} {}",
                    narrowed.contexts.join(" ")
                )));
            }
            ""
        }
    };
    let undo = format!("  to undo: bowline session narrow {id} --clear{flag}");
    out.write_note(&clean::escape_line(&undo));
    Ok(())
}

fn end_session(client: &ApiClient, prefix: &str, out: &mut CliOutput) -> Result<(), CliFailure> {
    let session = find_session(client, prefix)?;
    let path = format!("{SESSIONS_PATH}/{}", percent_encode(&session.id));
    let body = client.delete(&path, QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let line = format!(
        "ended session {} of {}",
        short_id(&session.id),
        session.principal
    );
    out.write_line(&clean::escape_line(&line))?;
    out.write_note("its client may open another; to keep it out: bowline token revoke ID");
    Ok(())
}
