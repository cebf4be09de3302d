//! `outbox`: shows, retries and drops queued calls.

use bowline_api::outbox::{
    OutboxQuery, OutboxResponse, QueuedCallResponse, QueuedCallState, QueuedCallView,
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::api_client::{ApiClient, QUICK_TIMEOUT, percent_encode};
use super::api_types;
use super::args::{OutboxCommand, OutboxListArgs};
use super::failure::{CliExit, CliFailure};
use super::output::{CliOutput, OutputFormat};
use super::pretty::indent_json;
use super::table::{format_duration, format_table};
use super::{CommandContext, clean};

const OUTBOX_PATH: &str = "/api/v1/outbox";

/// The displayed part of a call's parameters.
#[derive(Default, Deserialize)]
struct QueuedCallParams<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

pub(super) fn run(
    command: &OutboxCommand,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let out = &mut context.out;
    match command {
        OutboxCommand::Ls(filter) => list_calls(&client, filter, out),
        OutboxCommand::Show { id } => show_call(&client, id, out),
        OutboxCommand::Retry { id } => retry_call(&client, id, out),
        OutboxCommand::Drop { id } => drop_call(&client, id, out),
    }?;
    Ok(CliExit::Ok)
}

fn list_calls(
    client: &ApiClient,
    filter: &OutboxListArgs,
    out: &mut CliOutput,
) -> Result<(), CliFailure> {
    let query = OutboxQuery {
        server: filter.server.clone(),
        state: filter
            .dead
            .then(|| QueuedCallState::Dead.as_str().to_owned()),
        ..OutboxQuery::default()
    };
    let path = api_types::with_query(OUTBOX_PATH, &query)?;
    let body = client
        .get(&path, QUICK_TIMEOUT)
        .map_err(api_types::with_suggestion_hint)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let response: OutboxResponse = api_types::parse_response(&body)?;
    if response.entries.is_empty() {
        out.write_note("nothing waits");
        return Ok(());
    }
    let rows: Vec<_> = response
        .entries
        .iter()
        .map(|call| call_row(call, response.now_ms))
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
    out.write_line(&format_table(head, &rows))?;
    if response.next.is_some() {
        out.write_note("there are more; narrow it by --server or --dead");
    }
    if let Some(dead) = response
        .entries
        .iter()
        .find(|call| call.state == QueuedCallState::Dead)
    {
        let id = clean::escape_line(&dead.id);
        out.write_note(&format!(
            "dead calls are kept and not sent: bowline outbox retry {id}, or drop {id}"
        ));
    }
    Ok(())
}

fn call_row(call: &QueuedCallView, now_ms: u64) -> [String; 8] {
    [
        call.id.clone(),
        call.state.as_str().to_owned(),
        qualified_tool(call),
        call.principal.to_string(),
        call.age_ms.map_or_else(|| "-".to_owned(), format_duration),
        call.attempts.to_string(),
        format_expiry(call, now_ms),
        call.last_error.as_deref().unwrap_or_default().to_owned(),
    ]
    .map(|cell| clean::escape_line(&cell).into_owned())
}

fn qualified_tool(call: &QueuedCallView) -> String {
    format!("{}.{}", call.server, call.tool)
}

fn format_expiry(call: &QueuedCallView, now_ms: u64) -> String {
    match call.expires_at_ms {
        None => "never".to_owned(),
        Some(end) if end <= now_ms => "passed".to_owned(),
        Some(end) => format!("in {}", format_duration(end.saturating_sub(now_ms))),
    }
}

fn show_call(client: &ApiClient, id: &str, out: &mut CliOutput) -> Result<(), CliFailure> {
    let body = client.get(&call_path(id), QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let one: QueuedCallResponse = api_types::parse_response(&body)?;
    Ok(out.write_line(&format_details(&one.entry, one.now_ms))?)
}

/// Formats all known details of a call, line by line.
fn format_details(call: &QueuedCallView, now_ms: u64) -> String {
    let next = call.next_try_ms.map(|wait| match wait {
        0 => "now".to_owned(),
        wait => format!("in {}", format_duration(wait)),
    });
    let ago = |ms| format!("{} ago", format_duration(ms));
    let done = call.done_at_ms.map(|done| ago(now_ms.saturating_sub(done)));
    let tries = (call.attempts > 0).then(|| call.attempts.to_string());
    let position = (call.position > 0).then(|| format!("{} in its lane", call.position));
    let expires = call.expires_at_ms.map(|_| format_expiry(call, now_ms));
    let details = [
        ("id", Some(call.id.clone())),
        ("state", Some(call.state.as_str().to_owned())),
        ("tool", Some(qualified_tool(call))),
        ("principal", Some(call.principal.to_string())),
        ("key", Some(call.key.to_string())),
        ("queued", call.age_ms.map(ago)),
        ("position", position),
        ("tries", tries),
        ("next try", next),
        ("expires", expires),
        ("delivered", done),
        ("error", call.last_error.as_ref().map(ToString::to_string)),
    ];
    let details = details.into_iter().filter_map(|(label, text)| {
        let line = format!("{label:<10} {}", text?);
        Some(clean::escape_line(&line).into_owned())
    });
    let params = call.params.as_deref().map(RawValue::get);
    let params: QueuedCallParams<'_> = params
        .and_then(|params| serde_json::from_str(params).ok())
        .unwrap_or_default();
    let result = call.result.as_deref();
    let payloads = [("arguments", params.arguments), ("result", result)];
    let payloads = payloads.into_iter().filter_map(|(label, json)| {
        let json = indent_json(json?.get());
        Some(format!("{label:<10} {}", clean::escape_text(&json)))
    });
    details.chain(payloads).collect::<Vec<_>>().join("\n")
}

fn retry_call(client: &ApiClient, id: &str, out: &mut CliOutput) -> Result<(), CliFailure> {
    let path = format!("{}/retry", call_path(id));
    let body = client.post(&path, Bytes::from_static(b"{}"), QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let QueuedCallResponse { entry, .. } = api_types::parse_response(&body)?;
    let line = format!(
        "{} of {} is sent as soon as its server is there",
        id,
        qualified_tool(&entry)
    );
    out.write_line(&clean::escape_line(&line))?;
    out.write_note(&format!(
        "watch it: bowline outbox show {}",
        clean::escape_line(id)
    ));
    Ok(())
}

/// Drops a call for good, and prints the details for a possible new call.
fn drop_call(client: &ApiClient, id: &str, out: &mut CliOutput) -> Result<(), CliFailure> {
    let body = client.delete(&call_path(id), QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let QueuedCallResponse { entry, now_ms, .. } = api_types::parse_response(&body)?;
    out.write_line(&format_details(&entry, now_ms))?;
    out.write_note(
        "dropped for good: it is never sent. This was it, should you want to call it anew",
    );
    Ok(())
}

fn call_path(id: &str) -> String {
    format!("{OUTBOX_PATH}/{}", percent_encode(id))
}
