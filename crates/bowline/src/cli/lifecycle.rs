//! `start`, `stop`, `restart` and `reload` of one server: sends the request and prints the new
//! state.

use bowline_api::servers::{ServerResponse, ServerStatus};
use bytes::Bytes;

use super::CommandContext;
use super::api_client::{ApiClient, percent_encode};
use super::api_types;
use super::failure::{CliExit, CliFailure};
use super::output::OutputFormat;
use std::time::Duration;

/// Timeout: a start waits for the handshake, a stop for running calls.
const LIFECYCLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Lifecycle operation on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LifecycleAction {
    Start,
    Stop,
    Restart,
    /// Waits for calls in flight first.
    Reload,
}

impl LifecycleAction {
    const fn verb(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Reload => "reload",
        }
    }
}

pub(super) fn run(
    server: &str,
    action: LifecycleAction,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let path = format!(
        "/api/v1/servers/{}/{}",
        percent_encode(server),
        action.verb()
    );
    let body = client
        .post(&path, Bytes::new(), LIFECYCLE_TIMEOUT)
        .map_err(|failure| with_server_suggestion(&client, server, failure))?;
    let server = api_types::parse_response::<ServerResponse>(&body)?.server;
    let has_failed = action != LifecycleAction::Stop && server.is_degraded();
    match context.out.format() {
        OutputFormat::Json => context.out.write_raw_json(&body)?,
        OutputFormat::Human if has_failed => return Err(start_failure(&server)),
        OutputFormat::Human => context.out.write_line(&describe_state(&server))?,
    }
    Ok(if has_failed {
        CliExit::Unreachable
    } else {
        CliExit::Ok
    })
}

fn describe_state(server: &ServerStatus) -> String {
    let ServerStatus { name, state, .. } = server;
    match (&**state, server.pid) {
        ("stopped", _) => {
            format!("{name} is stopped; calls are refused until: bowline start {name}")
        }
        ("starting", _) => format!("{name} is starting; see: bowline status {name}"),
        (_, Some(pid)) => format!("{name} is {state} (pid {pid})"),
        (_, None) => format!("{name} is {state}"),
    }
}

/// Builds the failure for a server that did not start.
fn start_failure(server: &ServerStatus) -> CliFailure {
    let error = server.last_error.clone().unwrap_or_default();
    let message = format!("{} is {}: {}", server.name, server.state, error.message);
    let code = error.code.as_deref().unwrap_or("start_failed");
    let mut failure = CliFailure::new(CliExit::Unreachable, code, message);
    failure
        .details
        .insert("class".into(), error.class.as_ref().into());
    failure.with_hint(format!("see: bowline logs {}", server.name))
}

/// Adds a similar server name to a failure.
pub(super) fn with_server_suggestion(
    client: &ApiClient,
    server: &str,
    failure: CliFailure,
) -> CliFailure {
    if failure.code != "server_not_found" {
        return failure;
    }
    let fetched = api_types::suggestions(&failure)
        .is_empty()
        .then(|| api_types::fetch_servers(client))
        .transpose();
    match fetched {
        Ok(Some(servers)) => {
            api_types::with_suggestion_hint(api_types::unknown_server(server, &servers))
        }
        _ => api_types::with_suggestion_hint(failure),
    }
}
