//! `search`: tools by what they do.

use owo_colors::OwoColorize as _;
use serde::Deserialize;

use super::api;
use super::args::Search;
use super::client::{Client, QUICK, encode};
use super::failure::{Exit, Failure};
use super::out::Format;
use super::{Context, clean};

/// `GET /api/v1/search`, as far as people read it.
#[derive(Debug, Deserialize)]
struct Found {
    tools: Vec<Tool>,
}

#[derive(Debug, Deserialize)]
struct Tool {
    server: String,
    tool: String,
    description: String,
}

pub(super) fn run(asked: &Search, context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let query = encode(&asked.query.join(" "));
    let path = format!("/api/v1/search?q={query}&limit={}", asked.limit);
    let body = client.get(&path, QUICK)?;
    let out = &mut context.out;
    if out.format() == Format::Json {
        out.raw(&body)?;
        return Ok(Exit::Ok);
    }
    let found: Found = api::read(&body)?;
    for tool in &found.tools {
        let name = format!("{}.{}", tool.server, tool.tool);
        let about = tool.description.lines().next().unwrap_or_default();
        let about = clean::line(about.trim());
        let gap = if about.is_empty() { "" } else { "  " };
        out.line(&format!("{}{gap}{}", clean::line(&name), about.dimmed()))?;
    }
    if found.tools.is_empty() {
        out.note("no tool fits; `bowline ls` shows the servers there are");
    }
    Ok(Exit::Ok)
}
