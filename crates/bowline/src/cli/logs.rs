//! `logs`: prints the stderr of servers, optionally following it.

use std::time::Duration;

use owo_colors::OwoColorize as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::api_client::{ApiClient, QUICK_TIMEOUT, percent_encode};
use super::failure::{CliExit, CliFailure};
use super::output::{CliOutput, OutputFormat};
use super::{CommandContext, api_types, clean, lifecycle};

/// Maximum time the gateway holds a request for new lines.
const FOLLOW_WAIT_MS: u64 = 25_000;

/// Range of lines to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogRange {
    Existing,
    Follow,
}

#[derive(Deserialize)]
struct ApiLogPage<'a> {
    #[serde(borrow)]
    lines: Vec<&'a RawValue>,
    next: u64,
}

#[derive(Deserialize)]
struct ApiLogLine {
    server: String,
    text: String,
}

pub(super) fn run(
    server: Option<&str>,
    range: LogRange,
    lines: u32,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let server_query = server
        .map(|name| format!("server={}&", percent_encode(name)))
        .unwrap_or_default();
    let path = format!("/api/v1/logs?{server_query}limit={lines}");
    let with_suggestion = |failure| match server {
        Some(name) => lifecycle::with_server_suggestion(&client, name, failure),
        None => failure,
    };
    let body = client.get(&path, QUICK_TIMEOUT).map_err(with_suggestion)?;
    if range == LogRange::Existing && context.out.format() == OutputFormat::Json {
        context.out.write_raw_json(&body)?;
        return Ok(CliExit::Ok);
    }
    let mut next = print_lines(&body, &mut context.out)?;
    if range == LogRange::Existing {
        return Ok(CliExit::Ok);
    }
    // Ends with the gateway, or when stdout is closed.
    loop {
        let path =
            format!("/api/v1/logs?{server_query}after={next}&limit=1000&wait_ms={FOLLOW_WAIT_MS}");
        let body = client.get(&path, QUICK_TIMEOUT + Duration::from_millis(FOLLOW_WAIT_MS))?;
        next = print_lines(&body, &mut context.out)?;
    }
}

fn print_lines(body: &[u8], out: &mut CliOutput) -> Result<u64, CliFailure> {
    let page: ApiLogPage<'_> = api_types::parse_response(body)?;
    for raw in page.lines {
        match out.format() {
            OutputFormat::Json => out.write_raw_json(raw.get().as_bytes())?,
            OutputFormat::Human => {
                let line: ApiLogLine = api_types::parse_response(raw.get().as_bytes())?;
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
