//! `ls --tokens`: the token cost of tool definitions.

use std::collections::BTreeMap;

use bowline_api::tools::{ExposureResponse, ToolEntry, ToolsResponse};
use bowline_host::expose::estimate_tokens;
use serde_json::{Value, json};

use crate::cli::api_client::{ApiClient, QUICK_TIMEOUT};
use crate::cli::api_types;
use crate::cli::args::ToolTarget;
use crate::cli::failure::CliFailure;
use crate::cli::output::{CliOutput, OutputFormat};
use crate::cli::table::format_table;

/// Prints the cost of all servers, and the part exposed to agents.
pub(super) fn print_all_costs(client: &ApiClient, out: &mut CliOutput) -> Result<(), CliFailure> {
    let body = client.get("/api/v1/tools", QUICK_TIMEOUT)?;
    let tools: ToolsResponse = api_types::parse_response(&body)?;
    let exposure = client.get("/api/v1/exposure", QUICK_TIMEOUT)?;
    let exposure: ExposureResponse = api_types::parse_response(&exposure)?;
    let mut servers: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for tool in &tools.tools {
        let (count, cost) = servers.entry(&tool.server).or_default();
        *count += 1;
        *cost += tool_tokens(tool);
    }
    if out.format() == OutputFormat::Json {
        let servers: Vec<Value> = servers
            .iter()
            .map(|(server, (tools, cost))| json!({"name": server, "tools": tools, "tokens": cost}))
            .collect();
        let value = json!({
            "v": 1,
            "servers": servers,
            "expose": exposure.expose,
            "tools": exposure.tools,
            "tokens": exposure.tokens,
            "listed": exposure.listed,
            "listed_tokens": exposure.listed_tokens,
        });
        return Ok(out.write_raw_json(value.to_string().as_bytes())?);
    }
    let rows: Vec<_> = servers
        .iter()
        .map(|(server, (tools, cost))| {
            [(*server).to_owned(), tools.to_string(), format!("≈ {cost}")]
        })
        .collect();
    out.write_line(&format_table(["SERVER", "TOOLS", "TOKENS"], &rows))?;
    out.write_line(&format!(
        "agents on /mcp are given {} of {} tools: ≈ {} of {} tokens (expose = \"{}\")",
        exposure.listed.min(exposure.tools),
        exposure.tools,
        exposure.listed_tokens,
        exposure.tokens,
        exposure.expose,
    ))?;
    if exposure.expose == "all" && exposure.tools > bowline_core::policy::AUTO_TOOLS_MAX {
        out.write_note("`expose = \"auto\"` in [gateway] gives them a search instead");
    }
    Ok(())
}

/// Prints the cost of each tool of a server, or of one tool.
pub(super) fn print_server_costs(
    target: &ToolTarget,
    tools: &ToolsResponse,
    out: &mut CliOutput,
) -> Result<(), CliFailure> {
    let is_selected =
        |tool: &&ToolEntry| target.tool.as_ref().is_none_or(|name| **name == *tool.tool);
    let mut costs: Vec<(&str, usize)> = tools
        .tools
        .iter()
        .filter(is_selected)
        .map(|tool| (&*tool.tool, tool_tokens(tool)))
        .collect();
    if let (Some(name), true) = (&target.tool, costs.is_empty()) {
        let missing = api_types::unknown_tool(&target.server, name, &tools.tools);
        return Err(api_types::with_suggestion_hint(missing));
    }
    // The most expensive tools come first.
    costs.sort_by_key(|(name, cost)| (std::cmp::Reverse(*cost), *name));
    if out.format() == OutputFormat::Json {
        let tools: Vec<Value> = costs
            .iter()
            .map(|(tool, cost)| json!({"tool": tool, "tokens": cost}))
            .collect();
        let value = json!({"v": 1, "server": target.server, "tools": tools});
        return Ok(out.write_raw_json(value.to_string().as_bytes())?);
    }
    let rows: Vec<_> = costs
        .iter()
        .map(|(tool, cost)| [(*tool).to_owned(), format!("≈ {cost}")])
        .collect();
    Ok(out.write_line(&format_table(["TOOL", "TOKENS"], &rows))?)
}

fn tool_tokens(tool: &ToolEntry) -> usize {
    estimate_tokens(tool.definition.get().len())
}
