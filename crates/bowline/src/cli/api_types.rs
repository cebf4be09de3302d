//! Requests and responses of the gateway's API: encoding, decoding, and failures with suggestions.

use bowline_api::servers::{OmittedStatus, ServerStatus, ServersResponse};
use bowline_api::tools::{ToolEntry, ToolsQuery};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::api_client::{ApiClient, QUICK_TIMEOUT, percent_encode};
use super::failure::{CliExit, CliFailure};
use bowline_core::suggest::nearest_match;

/// Describes the entries omitted from a server's lists, if any.
pub(crate) fn describe_omitted(server: &ServerStatus) -> Option<String> {
    let lists = server.left_out.iter().map(|omitted| {
        let OmittedStatus {
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

/// Parses the definition of a tool; empty when malformed.
pub(crate) fn parse_definition(tool: &ToolEntry) -> ToolDefinitionText<'_> {
    serde_json::from_str(tool.definition.get()).unwrap_or_default()
}

/// Parses a response, or reports a violation of the API contract.
pub(crate) fn parse_response<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, CliFailure> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("the gateway's answer cannot be read: {error}");
        CliFailure::new(CliExit::Unexpected, "bad_answer", message)
    })
}

/// Appends a query to a path; absent members are left out.
pub(crate) fn with_query(path: &str, query: &impl Serialize) -> Result<String, CliFailure> {
    let query = serde_json::to_value(query);
    let query = query.map_err(|error| CliFailure::unexpected(error.to_string()))?;
    let members = query.as_object().into_iter().flatten();
    let members = members.map(|(key, value)| {
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        format!("{key}={}", percent_encode(&value))
    });
    let members: Vec<_> = members.collect();
    Ok(match members.as_slice() {
        [] => path.to_owned(),
        members => format!("{path}?{}", members.join("&")),
    })
}

/// Encodes a request or a local result.
pub(crate) fn encode_json(value: &impl Serialize) -> Result<Bytes, CliFailure> {
    let encoded = serde_json::to_vec(value);
    let encoded = encoded.map_err(|error| CliFailure::unexpected(error.to_string()))?;
    Ok(encoded.into())
}

/// Fetches all servers.
pub(crate) fn fetch_servers(client: &ApiClient) -> Result<Vec<ServerStatus>, CliFailure> {
    let body = client.get("/api/v1/servers", QUICK_TIMEOUT)?;
    Ok(parse_response::<ServersResponse>(&body)?.servers)
}

/// Fetches the tools of one server as raw JSON.
pub(crate) fn fetch_tools(client: &ApiClient, server: &str) -> Result<Bytes, CliFailure> {
    let query = ToolsQuery {
        server: Some(server.to_owned()),
    };
    client.get(&with_query("/api/v1/tools", &query)?, QUICK_TIMEOUT)
}

/// Builds the failure for an unknown server, with a similar name.
pub(crate) fn unknown_server(name: &str, servers: &[ServerStatus]) -> CliFailure {
    unknown_server_among(name, servers.iter().map(|server| &*server.name))
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
pub(crate) fn unknown_tool(server: &str, tool: &str, tools: &[ToolEntry]) -> CliFailure {
    let message = format!("server `{server}` has no tool \"{tool}\"");
    let failure = CliFailure::new(CliExit::Usage, "tool_not_found", message);
    add_suggestion(
        failure,
        nearest_match(tool, tools.iter().map(|tool| &*tool.tool)),
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
