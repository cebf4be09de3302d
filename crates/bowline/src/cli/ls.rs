//! `ls`: lists servers, the tool signatures of a server, or a tool with schema.

mod token_costs;

use bowline_api::servers::{ServerStatus, ServersResponse};
use bowline_api::tools::{ToolEntry, ToolsResponse};
use bowline_host::tools::signature::tool_signature;
use owo_colors::OwoColorize as _;

use super::api_client::{ApiClient, QUICK_TIMEOUT};
use super::api_types;
use super::args::ToolTarget;
use super::failure::{CliExit, CliFailure};
use super::output::{CliOutput, OutputFormat};
use super::pretty::indent_json;
use super::table::format_table;
use super::{CommandContext, clean};

pub(super) fn run(
    target: Option<&ToolTarget>,
    costs: bool,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    match target {
        None if costs => token_costs::print_all_costs(&client, &mut context.out)?,
        None => list_servers(&client, &mut context.out)?,
        Some(target @ ToolTarget { server, tool }) => {
            let body =
                api_types::fetch_tools(&client, server).map_err(api_types::with_suggestion_hint)?;
            let tools: ToolsResponse = api_types::parse_response(&body)?;
            check_server(&client, server, &tools)?;
            if costs {
                token_costs::print_server_costs(target, &tools, &mut context.out)?;
                return Ok(CliExit::Ok);
            }
            match (tool, context.out.format()) {
                (Some(tool), _) => print_tool(server, tool, &tools, &mut context.out)?,
                (None, OutputFormat::Json) => context.out.write_raw_json(&body)?,
                (None, OutputFormat::Human) => print_signatures(&tools, &mut context.out)?,
            }
        }
    }
    Ok(CliExit::Ok)
}

fn list_servers(client: &ApiClient, out: &mut CliOutput) -> Result<(), CliFailure> {
    let body = client.get("/api/v1/servers", QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let ServersResponse {
        servers, broken, ..
    } = api_types::parse_response(&body)?;
    if servers.is_empty() && broken.is_empty() {
        out.write_note("no servers are configured");
        return Ok(());
    }
    let broken = broken.iter().map(|broken| {
        let (name, reason) = (broken.name.to_string(), broken.reason.clone());
        [
            name,
            "broken".to_owned(),
            "-".to_owned(),
            String::new(),
            reason,
        ]
    });
    let rows: Vec<_> = servers.iter().map(server_row).chain(broken).collect();
    let head = ["SERVER", "STATE", "TOOLS", "COMMAND", "NOTE"];
    Ok(out.write_line(&format_table(head, &rows))?)
}

/// Formats the row of a server; a failing server shows the error.
fn server_row(server: &ServerStatus) -> [String; 5] {
    let error = server.last_error.as_ref().filter(|_| server.is_degraded());
    [
        server.name.to_string(),
        server.state.to_string(),
        match server.stale {
            true => format!("{} stale", server.tools),
            false => server.tools.to_string(),
        },
        server.command.clone(),
        match error {
            Some(error) => format!("{}: {}", error.class, error.message),
            None => api_types::describe_omitted(server).unwrap_or_default(),
        },
    ]
}

/// Distinguishes a server without tools from an unknown server.
fn check_server(client: &ApiClient, server: &str, tools: &ToolsResponse) -> Result<(), CliFailure> {
    if !tools.tools.is_empty() || !tools.unlisted.is_empty() {
        return Ok(());
    }
    let servers = api_types::fetch_servers(client)?;
    if servers.iter().any(|entry| *entry.name == *server) {
        return Ok(());
    }
    Err(api_types::with_suggestion_hint(api_types::unknown_server(
        server, &servers,
    )))
}

fn print_signatures(tools: &ToolsResponse, out: &mut CliOutput) -> Result<(), CliFailure> {
    for tool in &tools.tools {
        let definition = api_types::parse_definition(tool);
        let text = tool_signature(
            &tool.tool,
            definition.input_schema.map(|schema| schema.get()),
        );
        let description = definition.description.unwrap_or_default();
        let about = description
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        let about = clean::escape_line(about.trim());
        let gap = if about.is_empty() { "" } else { "  " };
        out.write_line(&format!(
            "{}{gap}{}",
            clean::escape_line(&text),
            about.dimmed()
        ))?;
    }
    if tools.tools.iter().any(|tool| tool.stale) {
        out.write_note("as last known: the server is down or being started");
    }
    for server in &tools.unlisted {
        let message = server
            .message
            .as_deref()
            .map(|message| format!(": {message}"));
        out.write_note(&clean::escape_line(&format!(
            "tools of {} are not known yet ({}){}",
            server.server,
            server.state,
            message.unwrap_or_default()
        )));
    }
    if tools.tools.is_empty() && tools.unlisted.is_empty() {
        out.write_note("the server offers no tools");
    }
    Ok(())
}

fn print_tool(
    server: &str,
    tool: &str,
    tools: &ToolsResponse,
    out: &mut CliOutput,
) -> Result<(), CliFailure> {
    let Some(entry) = tools
        .tools
        .iter()
        .find(|candidate| *candidate.tool == *tool)
    else {
        return Err(api_types::with_suggestion_hint(api_types::unknown_tool(
            server,
            tool,
            &tools.tools,
        )));
    };
    let value = serde_json::json!({
        "v": 1, "server": entry.server, "tool": entry.tool, "effect": entry.effect,
    });
    match out.format() {
        OutputFormat::Human => describe_tool(entry, out)?,
        OutputFormat::Json => {
            // The definition is inserted verbatim, so no number changes.
            let head = value.to_string();
            let head = head.trim_end_matches('}');
            out.write_raw_json(
                format!("{head},\"definition\":{}}}", entry.definition.get()).as_bytes(),
            )?;
        }
    }
    Ok(())
}

fn describe_tool(tool: &ToolEntry, out: &mut CliOutput) -> Result<(), CliFailure> {
    let definition = api_types::parse_definition(tool);
    let text = tool_signature(
        &tool.tool,
        definition.input_schema.map(|schema| schema.get()),
    );
    out.write_line(&format!(
        "{}.{}",
        tool.server.bold(),
        clean::escape_line(&text).bold()
    ))?;
    out.write_line(&format!("effect: {}", clean::escape_line(&tool.effect)))?;
    if let Some(description) = &definition.description {
        out.write_line(&format!("\n{}", clean::escape_text(description.trim())))?;
    }
    for (title, schema) in [
        ("input", definition.input_schema),
        ("output", definition.output_schema),
    ] {
        if let Some(schema) = schema {
            out.write_line(&format!(
                "\n{title}: {}",
                clean::escape_text(&indent_json(schema.get()))
            ))?;
        }
    }
    Ok(())
}
