//! `call`: calls a tool and prints the result.

mod arguments;
mod content;

use std::time::Duration;

use bowline_api::calls::{ToolCallRequest, ToolCallResponse};
use bowline_api::tools::ToolsResponse;
use bytes::Bytes;
use owo_colors::OwoColorize as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::api_client::ApiClient;
use super::api_types;
use super::args::{ArgumentValue, CallArgs, ToolTarget};
use super::failure::{CliExit, CliFailure};
use super::output::OutputFormat;
use super::table::format_duration;
use super::{CommandContext, clean};

/// Maximum wait without `--timeout`; the gateway's own limit is usually shorter.
const DEFAULT_WAIT: Duration = Duration::from_secs(15 * 60);
/// Extra time for the gateway to report the outcome of a timed-out call.
const TIMEOUT_GRACE: Duration = Duration::from_secs(10);

/// Structured content of a queued call.
#[derive(Default, Deserialize)]
#[serde(default)]
struct QueuedNotice {
    id: String,
    position: u64,
}

pub(super) fn run(call: &CallArgs, context: &mut CommandContext) -> Result<CliExit, CliFailure> {
    let ToolTarget {
        server,
        tool: Some(tool),
    } = &call.target
    else {
        let message = format!(
            "`{}` is a server: which tool should be called?",
            call.target.server
        );
        return Err(CliFailure::usage(message)
            .with_hint(format!("list them: bowline ls {}", call.target.server)));
    };
    let client = ApiClient::new(context)?;
    let explain = |failure| explain_failure(&client, call, server, tool, failure);
    let arguments = match &call.args {
        Some(source) => arguments::read_json_object(source, std::io::stdin().lock())?,
        None => {
            let schema = fetch_input_schema(&client, call, server, tool).map_err(explain)?;
            arguments::from_pairs(&call.pairs, schema.as_ref())?
        }
    };
    let body = build_request(server, tool, call, arguments)?;
    let wait = call
        .timeout
        .map_or(DEFAULT_WAIT, |limit| limit + TIMEOUT_GRACE);
    let response = client.post("/api/v1/call", body, wait).map_err(explain)?;
    let parsed: ToolCallResponse = api_types::parse_response(&response)?;
    if parsed.origin == "queued" {
        return report_queued(&response, &parsed, server, context);
    }
    let has_failed = content::is_error_result(&parsed.result);
    match context.out.format() {
        OutputFormat::Json => context.out.write_raw_json(&response)?,
        OutputFormat::Human => {
            content::print_result(&parsed.result, &mut context.out)?;
            let time = format_duration(parsed.duration_us.div_ceil(1_000));
            let verdict = match (has_failed, &*parsed.origin) {
                (true, _) => "tool error",
                (false, "recorded") => "ok, answered before",
                (false, _) => "ok",
            };
            let line = format!("{verdict} · {time} · {server}");
            context.out.write_note(&line.dimmed().to_string());
        }
    }
    Ok(if has_failed {
        CliExit::Tool
    } else {
        CliExit::Ok
    })
}

/// Prints the queued state of a call, and the command to follow the call.
fn report_queued(
    response: &[u8],
    parsed: &ToolCallResponse,
    server: &str,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    if context.out.format() == OutputFormat::Json {
        context.out.write_raw_json(response)?;
        return Ok(CliExit::Queued);
    }
    content::print_result(&parsed.result, &mut context.out)?;
    let QueuedNotice { id, position } = content::parse_structured(&parsed.result);
    let (id, server) = (clean::escape_line(&id), clean::escape_line(server));
    let line = format!("queued · position {position} · {server} is away");
    context.out.write_note(&line.yellow().to_string());
    context.out.write_note(&format!(
        "it is stored, and sent once the server is back; watch it: bowline outbox show {id}"
    ));
    Ok(CliExit::Queued)
}

/// Builds the request, with the arguments verbatim.
fn build_request(
    server: &str,
    tool: &str,
    call: &CallArgs,
    arguments: String,
) -> Result<Bytes, CliFailure> {
    let arguments = RawValue::from_string(arguments);
    let arguments = arguments.map_err(|error| CliFailure::usage(error.to_string()))?;
    let timeout_ms = call.timeout.map(|limit| limit.as_millis());
    api_types::encode_json(&ToolCallRequest {
        server: server.to_owned(),
        tool: tool.to_owned(),
        timeout_ms: timeout_ms.map(|limit| u64::try_from(limit).unwrap_or(u64::MAX)),
        idempotency_key: call.key.clone(),
        arguments: Some(arguments),
    })
}

/// Fetches the input schema of the tool, if needed for a pair.
fn fetch_input_schema(
    client: &ApiClient,
    call: &CallArgs,
    server: &str,
    tool: &str,
) -> Result<Option<serde_json::Value>, CliFailure> {
    if !call
        .pairs
        .iter()
        .any(|pair| matches!(pair.value, ArgumentValue::Typed(_)))
    {
        return Ok(None);
    }
    let body = api_types::fetch_tools(client, server)?;
    let tools: ToolsResponse = api_types::parse_response(&body)?;
    let Some(entry) = tools
        .tools
        .iter()
        .find(|candidate| *candidate.tool == *tool)
    else {
        return Ok(None);
    };
    let schema = api_types::parse_definition(entry).input_schema;
    Ok(schema.and_then(|schema| serde_json::from_str(schema.get()).ok()))
}

/// Adds the corrected command for a mistyped name.
fn explain_failure(
    client: &ApiClient,
    call: &CallArgs,
    server: &str,
    tool: &str,
    failure: CliFailure,
) -> CliFailure {
    let (failure, target) = match failure.code.as_str() {
        "server_not_found" => {
            let failure = suggest_server(client, server, failure);
            let suggestion = api_types::suggestions(&failure).into_iter().next();
            (
                failure,
                suggestion.map(|suggestion| (suggestion.clone(), format!("{suggestion}.{tool}"))),
            )
        }
        "tool_not_found" => {
            let failure = suggest_tool(client, server, tool, failure);
            let suggestion =
                api_types::suggestions(&failure)
                    .into_iter()
                    .next()
                    .map(|suggestion| {
                        let prefix = format!("{server}.");
                        suggestion
                            .strip_prefix(&prefix)
                            .map(str::to_owned)
                            .unwrap_or(suggestion)
                    });
            (
                failure,
                suggestion.map(|suggestion| (suggestion.clone(), format!("{server}.{suggestion}"))),
            )
        }
        _ => (failure, None),
    };
    match target {
        None => failure,
        Some((suggestion, target)) => {
            let command = arguments::format_command(&target, call);
            failure.with_hint(format!("did you mean {suggestion}?  →  {command}"))
        }
    }
}

fn suggest_server(client: &ApiClient, server: &str, failure: CliFailure) -> CliFailure {
    if !api_types::suggestions(&failure).is_empty() {
        return failure;
    }
    match api_types::fetch_servers(client) {
        Ok(servers) => api_types::unknown_server(server, &servers),
        Err(_) => failure,
    }
}

fn suggest_tool(client: &ApiClient, server: &str, tool: &str, failure: CliFailure) -> CliFailure {
    if !api_types::suggestions(&failure).is_empty() {
        return failure;
    }
    let Ok(body) = api_types::fetch_tools(client, server) else {
        return failure;
    };
    match api_types::parse_response::<ToolsResponse>(&body) {
        Ok(tools) => api_types::unknown_tool(server, tool, &tools.tools),
        Err(_) => failure,
    }
}
