//! `search`: finds tools by purpose.

use owo_colors::OwoColorize as _;
use serde::Deserialize;

use super::api_client::{ApiClient, QUICK_TIMEOUT, percent_encode};
use super::api_types;
use super::args::SearchArgs;
use super::failure::{CliExit, CliFailure};
use super::output::OutputFormat;
use super::{CommandContext, clean};

/// The displayed part of `GET /api/v1/search`.
#[derive(Debug, Deserialize)]
struct ApiSearchResponse {
    tools: Vec<ApiSearchHit>,
}

#[derive(Debug, Deserialize)]
struct ApiSearchHit {
    server: String,
    tool: String,
    description: String,
}

pub(super) fn run(args: &SearchArgs, context: &mut CommandContext) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let query = percent_encode(&args.query.join(" "));
    let path = format!("/api/v1/search?q={query}&limit={}", args.limit);
    let body = client.get(&path, QUICK_TIMEOUT)?;
    let out = &mut context.out;
    if out.format() == OutputFormat::Json {
        out.write_raw_json(&body)?;
        return Ok(CliExit::Ok);
    }
    let response: ApiSearchResponse = api_types::parse_response(&body)?;
    for tool in &response.tools {
        let name = format!("{}.{}", tool.server, tool.tool);
        let about = tool.description.lines().next().unwrap_or_default();
        let about = clean::escape_line(about.trim());
        let gap = if about.is_empty() { "" } else { "  " };
        out.write_line(&format!(
            "{}{gap}{}",
            clean::escape_line(&name),
            about.dimmed()
        ))?;
    }
    if response.tools.is_empty() {
        out.write_note("no tool fits; `bowline ls` shows the servers there are");
    }
    Ok(CliExit::Ok)
}
