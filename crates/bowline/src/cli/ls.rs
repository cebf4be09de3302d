//! `ls`: servers, the tools of one as signatures, one tool with its schema.

mod tokens;

use bowline_host::tools::signature::signature;
use owo_colors::OwoColorize as _;

use super::api::{self, Server, Tool, Tools};
use super::args::Target;
use super::client::{Client, QUICK};
use super::failure::{Exit, Failure};
use super::out::{Format, Out};
use super::pretty::pretty;
use super::table::table;
use super::{Context, clean};

pub(super) fn run(
    target: Option<&Target>,
    costs: bool,
    context: &mut Context,
) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    match target {
        None if costs => tokens::all(&client, &mut context.out)?,
        None => servers(&client, &mut context.out)?,
        Some(target @ Target { server, tool }) => {
            let body = api::tools(&client, server).map_err(api::did_you_mean)?;
            let tools: Tools<'_> = api::read(&body)?;
            check_server(&client, server, &tools)?;
            if costs {
                tokens::one(target, &tools, &mut context.out)?;
                return Ok(Exit::Ok);
            }
            match (tool, context.out.format()) {
                (Some(tool), _) => one(server, tool, &tools, &mut context.out)?,
                (None, Format::Json) => context.out.raw(&body)?,
                (None, Format::Human) => signatures(&tools, &mut context.out)?,
            }
        }
    }
    Ok(Exit::Ok)
}

fn servers(client: &Client, out: &mut Out) -> Result<(), Failure> {
    let body = client.get("/api/v1/servers", QUICK)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let api::Servers { servers, broken } = api::read(&body)?;
    if servers.is_empty() && broken.is_empty() {
        out.note("no servers are configured");
        return Ok(());
    }
    let broken = broken.iter().map(|broken| {
        let (name, reason) = (broken.name.clone(), broken.reason.clone());
        [
            name,
            "broken".to_owned(),
            "-".to_owned(),
            String::new(),
            reason,
        ]
    });
    let rows: Vec<_> = servers.iter().map(row).chain(broken).collect();
    let head = ["SERVER", "STATE", "TOOLS", "COMMAND", "NOTE"];
    Ok(out.line(&table(head, &rows))?)
}

/// A server that fails stands beside the others, and says why.
fn row(server: &Server) -> [String; 5] {
    let error = server.last_error.as_ref().filter(|_| server.is_failing());
    [
        server.name.clone(),
        server.state.clone(),
        match server.stale {
            true => format!("{} stale", server.tools),
            false => server.tools.to_string(),
        },
        server.command.clone(),
        match error {
            Some(error) => format!("{}: {}", error.class, error.message),
            None => server.left_out().unwrap_or_default(),
        },
    ]
}

/// An empty list may mean a server without tools or no server at all.
fn check_server(client: &Client, server: &str, tools: &Tools<'_>) -> Result<(), Failure> {
    if !tools.tools.is_empty() || !tools.unlisted.is_empty() {
        return Ok(());
    }
    let servers = api::servers(client)?;
    if servers.iter().any(|known| known.name == server) {
        return Ok(());
    }
    Err(api::did_you_mean(api::no_server(server, &servers)))
}

fn signatures(tools: &Tools<'_>, out: &mut Out) -> Result<(), Failure> {
    for tool in &tools.tools {
        let definition = tool.definition();
        let text = signature(
            &tool.tool,
            definition.input_schema.map(|schema| schema.get()),
        );
        let description = definition.description.unwrap_or_default();
        let about = description
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        let about = clean::line(about.trim());
        let gap = if about.is_empty() { "" } else { "  " };
        out.line(&format!("{}{gap}{}", clean::line(&text), about.dimmed()))?;
    }
    if tools.tools.iter().any(|tool| tool.stale) {
        out.note("as last known: the server is down or being started");
    }
    for server in &tools.unlisted {
        let message = server
            .message
            .as_deref()
            .map(|message| format!(": {message}"));
        out.note(&clean::line(&format!(
            "tools of {} are not known yet ({}){}",
            server.server,
            server.state,
            message.unwrap_or_default()
        )));
    }
    if tools.tools.is_empty() && tools.unlisted.is_empty() {
        out.note("the server offers no tools");
    }
    Ok(())
}

fn one(server: &str, tool: &str, tools: &Tools<'_>, out: &mut Out) -> Result<(), Failure> {
    let Some(found) = tools.tools.iter().find(|known| known.tool == tool) else {
        return Err(api::did_you_mean(api::no_tool(server, tool, &tools.tools)));
    };
    let value = serde_json::json!({
        "v": 1, "server": found.server, "tool": found.tool, "effect": found.effect,
    });
    match out.format() {
        Format::Human => describe(found, out)?,
        Format::Json => {
            // The definition is put in as it came, so that no number changes on the way.
            let head = value.to_string();
            let head = head.trim_end_matches('}');
            out.raw(format!("{head},\"definition\":{}}}", found.definition.get()).as_bytes())?;
        }
    }
    Ok(())
}

fn describe(tool: &Tool<'_>, out: &mut Out) -> Result<(), Failure> {
    let definition = tool.definition();
    let text = signature(
        &tool.tool,
        definition.input_schema.map(|schema| schema.get()),
    );
    out.line(&format!(
        "{}.{}",
        tool.server.bold(),
        clean::line(&text).bold()
    ))?;
    out.line(&format!("effect: {}", clean::line(&tool.effect)))?;
    if let Some(description) = &definition.description {
        out.line(&format!("\n{}", clean::text(description.trim())))?;
    }
    for (title, schema) in [
        ("input", definition.input_schema),
        ("output", definition.output_schema),
    ] {
        if let Some(schema) = schema {
            out.line(&format!(
                "\n{title}: {}",
                clean::text(&pretty(schema.get()))
            ))?;
        }
    }
    Ok(())
}
