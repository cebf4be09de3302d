//! `search`: finds tools by purpose.

use bowline_api::tools::{SearchQuery, SearchResponse};
use owo_colors::OwoColorize as _;

use super::api_client::{ApiClient, QUICK_TIMEOUT};
use super::api_types;
use super::args::SearchArgs;
use super::failure::{CliExit, CliFailure};
use super::output::OutputFormat;
use super::{CommandContext, clean};

pub(super) fn run(args: &SearchArgs, context: &mut CommandContext) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let query = SearchQuery {
        q: args.query.join(" "),
        limit: Some(args.limit as usize),
    };
    let path = api_types::with_query("/api/v1/search", &query)?;
    let body = client.get(&path, QUICK_TIMEOUT)?;
    let out = &mut context.out;
    if out.format() == OutputFormat::Json {
        out.write_raw_json(&body)?;
        return Ok(CliExit::Ok);
    }
    let response: SearchResponse = api_types::parse_response(&body)?;
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
