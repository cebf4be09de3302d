//! `refresh`: makes the gateway relist servers, and prints the changes.

use std::time::Duration;

use bowline_api::reload::RefreshResponse;
use bytes::Bytes;

use super::api_client::{ApiClient, percent_encode};
use super::api_types;
use super::failure::{CliExit, CliFailure};
use super::output::OutputFormat;
use super::{CommandContext, clean, lifecycle};

/// Timeout: a lazy server is started first.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(120);

pub(super) fn run(
    server: Option<&str>,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let path = match server {
        Some(server) => format!("/api/v1/servers/{}/refresh", percent_encode(server)),
        None => "/api/v1/refresh".to_owned(),
    };
    let body = client.post(&path, Bytes::new(), REFRESH_TIMEOUT);
    let body = body.map_err(|failure| match server {
        Some(server) => lifecycle::with_server_suggestion(&client, server, failure),
        None => failure,
    })?;
    let response: RefreshResponse = api_types::parse_response(&body)?;
    let has_failed = response
        .refreshed
        .iter()
        .any(|refreshed| !refreshed.failed.is_empty());
    if context.out.format() == OutputFormat::Json {
        context.out.write_raw_json(&body)?;
    } else {
        print_refreshed(&response, context)?;
    }
    Ok(match has_failed {
        true => CliExit::Unreachable,
        false => CliExit::Ok,
    })
}

fn print_refreshed(
    response: &RefreshResponse,
    context: &mut CommandContext,
) -> Result<(), CliFailure> {
    if response.refreshed.is_empty() {
        context.out.write_note("no server serves");
    }
    for refreshed in &response.refreshed {
        let name = &refreshed.server.name;
        for failed in &refreshed.failed {
            let line = format!(
                "{name}: {} could not be read: {}",
                failed.list, failed.message
            );
            context.out.write_warning(&clean::escape_line(&line));
        }
        let (tools, added, removed) = (
            refreshed.server.tools,
            refreshed.tools_added,
            refreshed.tools_removed,
        );
        let line = match (added, removed) {
            (0, 0) => format!("{name}: {tools} tools"),
            _ => format!("{name}: {tools} tools ({added} new, {removed} gone)"),
        };
        context.out.write_line(&clean::escape_line(&line))?;
    }
    Ok(())
}
