//! `ls --tokens`: what definitions cost an agent that is given them.

use std::collections::BTreeMap;

use bowline_host::expose::tokens;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cli::api::{self, Tool, Tools};
use crate::cli::args::Target;
use crate::cli::client::{Client, QUICK};
use crate::cli::failure::Failure;
use crate::cli::out::{Format, Out};
use crate::cli::table::table;

/// `GET /api/v1/exposure`.
#[derive(Debug, Deserialize)]
struct Exposure {
    expose: String,
    tools: usize,
    tokens: usize,
    listed: usize,
    listed_tokens: usize,
}

/// Shows what all servers cost, and what of it agents are given.
pub(super) fn all(client: &Client, out: &mut Out) -> Result<(), Failure> {
    let body = client.get("/api/v1/tools", QUICK)?;
    let tools: Tools<'_> = api::read(&body)?;
    let exposure = client.get("/api/v1/exposure", QUICK)?;
    let exposure: Exposure = api::read(&exposure)?;
    let mut servers: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for tool in &tools.tools {
        let (count, cost) = servers.entry(&tool.server).or_default();
        *count += 1;
        *cost += of(tool);
    }
    if out.format() == Format::Json {
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
        return Ok(out.raw(value.to_string().as_bytes())?);
    }
    let rows: Vec<_> = servers
        .iter()
        .map(|(server, (tools, cost))| {
            [(*server).to_owned(), tools.to_string(), format!("≈ {cost}")]
        })
        .collect();
    out.line(&table(["SERVER", "TOOLS", "TOKENS"], &rows))?;
    out.line(&format!(
        "agents on /mcp are given {} of {} tools: ≈ {} of {} tokens (expose = \"{}\")",
        exposure.listed.min(exposure.tools),
        exposure.tools,
        exposure.listed_tokens,
        exposure.tokens,
        exposure.expose,
    ))?;
    if exposure.expose == "all" && exposure.tools > bowline_core::policy::AUTO_TOOLS_MAX {
        out.note("`expose = \"auto\"` in [gateway] gives them a search instead");
    }
    Ok(())
}

/// Shows what each tool of a server, or one of them, costs.
pub(super) fn one(target: &Target, tools: &Tools<'_>, out: &mut Out) -> Result<(), Failure> {
    let wanted = |tool: &&Tool<'_>| target.tool.as_ref().is_none_or(|name| *name == tool.tool);
    let mut costs: Vec<(&str, usize)> = tools
        .tools
        .iter()
        .filter(wanted)
        .map(|tool| (tool.tool.as_str(), of(tool)))
        .collect();
    if let (Some(name), true) = (&target.tool, costs.is_empty()) {
        let missing = api::no_tool(&target.server, name, &tools.tools);
        return Err(api::did_you_mean(missing));
    }
    // What costs most comes first: that is what one looks for.
    costs.sort_by_key(|(name, cost)| (std::cmp::Reverse(*cost), *name));
    if out.format() == Format::Json {
        let tools: Vec<Value> = costs
            .iter()
            .map(|(tool, cost)| json!({"tool": tool, "tokens": cost}))
            .collect();
        let value = json!({"v": 1, "server": target.server, "tools": tools});
        return Ok(out.raw(value.to_string().as_bytes())?);
    }
    let rows: Vec<_> = costs
        .iter()
        .map(|(tool, cost)| [(*tool).to_owned(), format!("≈ {cost}")])
        .collect();
    Ok(out.line(&table(["TOOL", "TOKENS"], &rows))?)
}

fn of(tool: &Tool<'_>) -> usize {
    tokens(tool.definition.get().len())
}
