//! `call`: calls one tool and prints what it answers.

mod arguments;
mod content;

use std::time::Duration;

use bytes::Bytes;
use owo_colors::OwoColorize as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::api::{self, Tools};
use super::args::{Call, Given, Target};
use super::client::Client;
use super::failure::{Exit, Failure};
use super::out::Format;
use super::table::duration;
use super::{Context, clean};

/// Longest wait when no `--timeout` is given; the gateway's own limit is usually shorter.
const WAIT: Duration = Duration::from_secs(15 * 60);
/// What the gateway gets beyond the time of the call itself, to say how it went.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
struct Answer<'a> {
    #[serde(default)]
    duration_us: u64,
    #[serde(default)]
    origin: String,
    #[serde(borrow)]
    result: &'a RawValue,
}

/// What stands in the place of a result while a call waits.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Queued {
    id: String,
    position: u64,
}

pub(super) fn run(call: &Call, context: &mut Context) -> Result<Exit, Failure> {
    let Target {
        server,
        tool: Some(tool),
    } = &call.target
    else {
        let message = format!(
            "`{}` is a server: which tool should be called?",
            call.target.server
        );
        return Err(
            Failure::usage(message).hint(format!("list them: bowline ls {}", call.target.server))
        );
    };
    let client = Client::new(context)?;
    let explain = |failure| explain(&client, call, server, tool, failure);
    let arguments = match &call.args {
        Some(source) => arguments::whole(source, std::io::stdin().lock())?,
        None => {
            let schema = schema(&client, call, server, tool).map_err(explain)?;
            arguments::from_pairs(&call.pairs, schema.as_ref())?
        }
    };
    let body = request(server, tool, call, &arguments);
    let wait = call.timeout.map_or(WAIT, |limit| limit + GRACE);
    let answer = client.post("/api/v1/call", body, wait).map_err(explain)?;
    let parsed: Answer<'_> = api::read(&answer)?;
    if parsed.origin == "queued" {
        return queued(&answer, &parsed, server, context);
    }
    let failed = content::is_error(parsed.result);
    match context.out.format() {
        Format::Json => context.out.raw(&answer)?,
        Format::Human => {
            content::show(parsed.result, &mut context.out)?;
            let time = duration(parsed.duration_us.div_ceil(1_000));
            let verdict = match (failed, parsed.origin.as_str()) {
                (true, _) => "tool error",
                (false, "recorded") => "ok, answered before",
                (false, _) => "ok",
            };
            let line = format!("{verdict} · {time} · {server}");
            context.out.note(&line.dimmed().to_string());
        }
    }
    Ok(if failed { Exit::Tool } else { Exit::Ok })
}

/// Says that a call is stored, and where to look for what becomes of it.
fn queued(
    answer: &[u8],
    parsed: &Answer<'_>,
    server: &str,
    context: &mut Context,
) -> Result<Exit, Failure> {
    if context.out.format() == Format::Json {
        context.out.raw(answer)?;
        return Ok(Exit::Queued);
    }
    content::show(parsed.result, &mut context.out)?;
    let Queued { id, position } = content::structured(parsed.result);
    let (id, server) = (clean::line(&id), clean::line(server));
    let line = format!("queued · position {position} · {server} is away");
    context.out.note(&line.yellow().to_string());
    context.out.note(&format!(
        "it is stored, and sent once the server is back; watch it: bowline outbox show {id}"
    ));
    Ok(Exit::Queued)
}

/// The request, with the arguments put in as they were written.
fn request(server: &str, tool: &str, call: &Call, arguments: &str) -> Bytes {
    let (server, tool) = (arguments::quote(server), arguments::quote(tool));
    let timeout = call.timeout;
    let timeout = timeout.map(|limit| format!(",\"timeout_ms\":{}", limit.as_millis()));
    let key = call.key.as_deref();
    let key = key.map(|key| format!(",\"idempotency_key\":{}", arguments::quote(key)));
    let more = timeout.into_iter().chain(key).collect::<String>();
    format!("{{\"server\":{server},\"tool\":{tool}{more},\"arguments\":{arguments}}}").into()
}

/// The schema of the tool's arguments, when a pair needs it and the gateway knows it.
fn schema(
    client: &Client,
    call: &Call,
    server: &str,
    tool: &str,
) -> Result<Option<serde_json::Value>, Failure> {
    if !call
        .pairs
        .iter()
        .any(|pair| matches!(pair.value, Given::Typed(_)))
    {
        return Ok(None);
    }
    let body = api::tools(client, server)?;
    let tools: Tools<'_> = api::read(&body)?;
    let Some(found) = tools.tools.iter().find(|known| known.tool == tool) else {
        return Ok(None);
    };
    let schema = found.definition().input_schema;
    Ok(schema.and_then(|schema| serde_json::from_str(schema.get()).ok()))
}

/// Adds what was probably meant, as a command that can be run.
fn explain(client: &Client, call: &Call, server: &str, tool: &str, failure: Failure) -> Failure {
    let (failure, target) = match failure.code.as_str() {
        "server_not_found" => {
            let failure = known_servers(client, server, failure);
            let meant = api::suggestions(&failure).into_iter().next();
            (
                failure,
                meant.map(|meant| (meant.clone(), format!("{meant}.{tool}"))),
            )
        }
        "tool_not_found" => {
            let failure = known_tools(client, server, tool, failure);
            let meant = api::suggestions(&failure).into_iter().next().map(|meant| {
                let prefix = format!("{server}.");
                meant
                    .strip_prefix(&prefix)
                    .map(str::to_owned)
                    .unwrap_or(meant)
            });
            (
                failure,
                meant.map(|meant| (meant.clone(), format!("{server}.{meant}"))),
            )
        }
        _ => (failure, None),
    };
    match target {
        None => failure,
        Some((meant, target)) => {
            let command = arguments::command(&target, call);
            failure.hint(format!("did you mean {meant}?  →  {command}"))
        }
    }
}

fn known_servers(client: &Client, server: &str, failure: Failure) -> Failure {
    if !api::suggestions(&failure).is_empty() {
        return failure;
    }
    match api::servers(client) {
        Ok(servers) => api::no_server(server, &servers),
        Err(_) => failure,
    }
}

fn known_tools(client: &Client, server: &str, tool: &str, failure: Failure) -> Failure {
    if !api::suggestions(&failure).is_empty() {
        return failure;
    }
    let Ok(body) = api::tools(client, server) else {
        return failure;
    };
    match api::read::<Tools<'_>>(&body) {
        Ok(tools) => api::no_tool(server, tool, &tools.tools),
        Err(_) => failure,
    }
}
