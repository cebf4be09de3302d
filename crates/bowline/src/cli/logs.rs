//! `logs`: prints the stderr of servers, optionally following it.

use std::time::Duration;

use bowline_api::logs::{LogLine, LogsQuery, LogsResponse};
use owo_colors::OwoColorize as _;
use serde_json::value::RawValue;

use super::api_client::{ApiClient, QUICK_TIMEOUT};
use super::failure::{CliExit, CliFailure};
use super::output::{CliOutput, OutputFormat};
use super::{CommandContext, api_types, clean, lifecycle};

/// Maximum time the gateway holds a request for new lines.
const FOLLOW_WAIT_MS: u64 = 25_000;

/// Maximum number of lines that follow at once.
const FOLLOW_LINES_MAX: usize = 1_000;

const LOGS_PATH: &str = "/api/v1/logs";

/// Range of lines to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogRange {
    Existing,
    Follow,
}

pub(super) fn run(
    server: Option<&str>,
    range: LogRange,
    lines: u32,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let mut query = LogsQuery {
        server: server.map(str::to_owned),
        limit: Some(lines as usize),
        ..LogsQuery::default()
    };
    let path = api_types::with_query(LOGS_PATH, &query)?;
    let with_suggestion = |failure| match server {
        Some(name) => lifecycle::with_server_suggestion(&client, name, failure),
        None => failure,
    };
    let body = client.get(&path, QUICK_TIMEOUT).map_err(with_suggestion)?;
    if range == LogRange::Existing && context.out.format() == OutputFormat::Json {
        context.out.write_raw_json(&body)?;
        return Ok(CliExit::Ok);
    }
    query.after = print_lines(&body, &mut context.out)?;
    if range == LogRange::Existing {
        return Ok(CliExit::Ok);
    }
    query.limit = Some(FOLLOW_LINES_MAX);
    query.wait_ms = FOLLOW_WAIT_MS;
    // Ends with the gateway, or when stdout is closed.
    loop {
        let path = api_types::with_query(LOGS_PATH, &query)?;
        let body = client.get(&path, QUICK_TIMEOUT + Duration::from_millis(FOLLOW_WAIT_MS))?;
        query.after = print_lines(&body, &mut context.out)?;
    }
}

fn print_lines(body: &[u8], out: &mut CliOutput) -> Result<u64, CliFailure> {
    let page: LogsResponse<Box<RawValue>> = api_types::parse_response(body)?;
    for raw in page.lines {
        match out.format() {
            OutputFormat::Json => out.write_raw_json(raw.get().as_bytes())?,
            OutputFormat::Human => {
                let line: LogLine = api_types::parse_response(raw.get().as_bytes())?;
                let name = clean::escape_line(&line.server).into_owned();
                out.write_line(&format!(
                    "{} | {}",
                    name.cyan(),
                    clean::escape_line(&line.text)
                ))?;
            }
        }
    }
    Ok(page.next)
}
