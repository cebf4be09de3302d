//! Responses of the gateway's API, as far as commands use them.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::api_client::{ApiClient, QUICK_TIMEOUT, percent_encode};
use super::failure::{CliExit, CliFailure};
use bowline_core::suggest::nearest_match;

/// `GET /api/v1/servers`.
#[derive(Debug, Deserialize)]
pub(crate) struct ApiServersResponse {
    pub(crate) servers: Vec<ApiServer>,
    #[serde(default)]
    pub(crate) broken: Vec<ApiBrokenServer>,
}

/// A configured server unable to start.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiBrokenServer {
    pub(crate) name: String,
    pub(crate) reason: String,
}

/// `GET /api/v1/servers/{name}`, also the response to lifecycle requests.
#[derive(Debug, Deserialize)]
pub(crate) struct ApiServerResponse {
    pub(crate) server: ApiServer,
}

/// A list with omitted entries.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiOmittedEntries {
    pub(crate) list: String,
    pub(crate) entries: u64,
    pub(crate) more: bool,
}

/// One server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiServer {
    pub(crate) argv_secrets: bool,
    pub(crate) redact_results: Option<bool>,
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) lazy: bool,
    pub(crate) era: String,
    pub(crate) command: String,
    pub(crate) generation: u64,
    pub(crate) pid: Option<u32>,
    pub(crate) uptime_ms: Option<u64>,
    pub(crate) processes: Option<u64>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) tools: u64,
    pub(crate) left_out: Vec<ApiOmittedEntries>,
    pub(crate) manifest: String,
    pub(crate) stale: bool,
    pub(crate) pin: String,
    pub(crate) pins_changed: u64,
    pub(crate) pins_quarantined: u64,
    pub(crate) pins_error: Option<String>,
    pub(crate) ref_count: u64,
    pub(crate) in_flight: u64,
    pub(crate) queued: u64,
    pub(crate) calls: u64,
    pub(crate) errors: u64,
    pub(crate) sheds: u64,
    pub(crate) error_rate: f64,
    pub(crate) p50_us: Option<u64>,
    pub(crate) p99_us: Option<u64>,
    pub(crate) restart_count: u64,
    pub(crate) consecutive_failures: u64,
    pub(crate) own_links: u64,
    pub(crate) isolated_because: Option<String>,
    pub(crate) circuit: String,
    pub(crate) ejected: bool,
    pub(crate) cache_entries: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) cache_hits: u64,
    pub(crate) cache_misses: u64,
    pub(crate) cache_evictions: u64,
    pub(crate) retry_after_ms: Option<u64>,
    pub(crate) last_error: Option<ApiLastError>,
    pub(crate) limits: ApiServerLimits,
    pub(crate) sandbox: Option<ApiSandbox>,
}

/// The sandbox of a server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiSandbox {
    pub(crate) level: String,
    pub(crate) lacks: Option<String>,
}

impl ApiServer {
    /// Describes the entries omitted from the server's lists, if any.
    pub(crate) fn describe_omitted(&self) -> Option<String> {
        let lists = self.left_out.iter().map(|omitted| {
            let ApiOmittedEntries {
                list,
                entries,
                more,
            } = omitted;
            let at_least = if *more { "at least " } else { "" };
            format!("{at_least}{entries} {list} left out")
        });
        let lists: Vec<_> = lists.collect();
        (!lists.is_empty()).then(|| format!("{}; see max_list", lists.join(", ")))
    }

    /// Returns the sandbox features missing from the kernel.
    pub(crate) fn sandbox_lacks(&self) -> Option<&str> {
        self.sandbox.as_ref()?.lacks.as_deref()
    }

    /// Returns whether the server failed and has not recovered yet.
    pub(crate) fn is_failing(&self) -> bool {
        self.ejected
            || self.state == "backoff"
            || matches!(self.circuit.as_str(), "open" | "half_open")
    }
}

/// The limits of a server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiServerLimits {
    pub(crate) calls_max: u64,
    pub(crate) queue_max: u64,
    pub(crate) call_timeout_ms: u64,
    pub(crate) start_timeout_ms: u64,
    pub(crate) restarts_max: u64,
    pub(crate) restart_window_ms: u64,
    pub(crate) memory_bytes_max: Option<u64>,
    pub(crate) processes_max: Option<u64>,
    pub(crate) file_bytes_max: Option<u64>,
    pub(crate) open_files_max: Option<u64>,
}

/// The last failure of a server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ApiLastError {
    pub(crate) code: Option<String>,
    pub(crate) class: String,
    pub(crate) message: String,
    pub(crate) age_ms: u64,
}

/// `GET /api/v1/tools`.
#[derive(Debug, Deserialize)]
pub(crate) struct ApiToolsResponse<'a> {
    #[serde(borrow)]
    pub(crate) tools: Vec<ApiTool<'a>>,
    #[serde(default)]
    pub(crate) unlisted: Vec<ApiUnlistedServer>,
}

/// One tool.
#[derive(Debug, Deserialize)]
pub(crate) struct ApiTool<'a> {
    pub(crate) server: String,
    pub(crate) tool: String,
    #[serde(default)]
    pub(crate) effect: String,
    #[serde(default)]
    pub(crate) stale: bool,
    #[serde(borrow)]
    pub(crate) definition: &'a RawValue,
}

/// A server with unknown tools.
#[derive(Debug, Deserialize)]
pub(crate) struct ApiUnlistedServer {
    pub(crate) server: String,
    pub(crate) state: String,
    #[serde(default)]
    pub(crate) message: Option<String>,
}

/// The displayed part of a tool's definition.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ToolDefinitionText<'a> {
    pub(crate) description: Option<String>,
    #[serde(borrow, rename = "inputSchema")]
    pub(crate) input_schema: Option<&'a RawValue>,
    #[serde(borrow, rename = "outputSchema")]
    pub(crate) output_schema: Option<&'a RawValue>,
}

impl<'a> ApiTool<'a> {
    /// Parses the definition; empty when malformed.
    pub(crate) fn parse_definition(&self) -> ToolDefinitionText<'a> {
        serde_json::from_str(self.definition.get()).unwrap_or_default()
    }
}

/// Parses a response, or reports a violation of the API contract.
pub(crate) fn parse_response<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, CliFailure> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("the gateway's answer cannot be read: {error}");
        CliFailure::new(CliExit::Unexpected, "bad_answer", message)
    })
}

/// Fetches all servers.
pub(crate) fn fetch_servers(client: &ApiClient) -> Result<Vec<ApiServer>, CliFailure> {
    let body = client.get("/api/v1/servers", QUICK_TIMEOUT)?;
    Ok(parse_response::<ApiServersResponse>(&body)?.servers)
}

/// Fetches the tools of one server as raw JSON.
pub(crate) fn fetch_tools(client: &ApiClient, server: &str) -> Result<Bytes, CliFailure> {
    client.get(
        &format!("/api/v1/tools?server={}", percent_encode(server)),
        QUICK_TIMEOUT,
    )
}

/// Builds the failure for an unknown server, with a similar name.
pub(crate) fn unknown_server(name: &str, servers: &[ApiServer]) -> CliFailure {
    unknown_server_among(name, servers.iter().map(|server| server.name.as_str()))
}

/// Like [`unknown_server`], given only the names of servers.
pub(crate) fn unknown_server_among<'a>(
    name: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> CliFailure {
    let failure = CliFailure::new(
        CliExit::Usage,
        "server_not_found",
        format!("no server \"{name}\""),
    );
    add_suggestion(failure, nearest_match(name, names))
}

/// Builds the failure for an unknown tool, with a similar name.
pub(crate) fn unknown_tool(server: &str, tool: &str, tools: &[ApiTool<'_>]) -> CliFailure {
    let message = format!("server `{server}` has no tool \"{tool}\"");
    let failure = CliFailure::new(CliExit::Usage, "tool_not_found", message);
    add_suggestion(
        failure,
        nearest_match(tool, tools.iter().map(|tool| tool.tool.as_str())),
    )
}

fn add_suggestion(mut failure: CliFailure, near: Option<&str>) -> CliFailure {
    if let Some(near) = near {
        failure
            .details
            .insert("suggestions".into(), vec![near].into());
    }
    failure
}

/// Turns suggestions into a hint.
pub(crate) fn with_suggestion_hint(mut failure: CliFailure) -> CliFailure {
    if let Some(suggestion) = suggestions(&failure).first() {
        failure
            .hints
            .insert(0, format!("did you mean {suggestion}?"));
    }
    failure
}

/// Returns the similar names found by the gateway or the CLI.
pub(crate) fn suggestions(failure: &CliFailure) -> Vec<String> {
    let list = failure
        .details
        .get("suggestions")
        .and_then(|list| list.as_array());
    list.into_iter()
        .flatten()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect()
}
