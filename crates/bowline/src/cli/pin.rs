//! `pin`: lists pins, and shows and accepts changed definitions.

mod visible_text;

use bowline_api::Word;
use bowline_api::pins::{
    PinAcceptRequest, PinAcceptResponse, PinDiffQuery, PinDiffResponse, PinEntry, PinFinding,
    PinsQuery, PinsResponse, ServerPins,
};
use bowline_core::pins::PinKind;
use bytes::Bytes;
use owo_colors::OwoColorize as _;
use serde_json::value::RawValue;

use super::api_client::{ApiClient, QUICK_TIMEOUT, percent_encode};
use super::args::{PinCommand, ToolTarget};
use super::failure::{CliExit, CliFailure};
use super::output::{CliOutput, OutputFormat};
use super::pretty::indent_json;
use super::table::{format_count, format_table};
use super::{CommandContext, api_types, clean, lifecycle};

/// Displayed digits of a hash.
const SHORT_HASH_CHARS: usize = 12;

/// The kind of most pins, left out of names and commands.
const TOOL: &str = PinKind::Tool.as_str();

/// Returns all pins except tools.
fn non_tool_pins(pins: &ServerPins) -> impl Iterator<Item = &PinEntry> {
    let lists = pins.prompts.iter().chain(&pins.resources);
    lists.chain(&pins.templates).chain(&pins.introduction)
}

fn all_pins(pins: &ServerPins) -> impl Iterator<Item = &PinEntry> {
    pins.tools.iter().chain(non_tool_pins(pins))
}

fn needs_review(pin: &PinEntry) -> bool {
    pin.state != "approved"
}

pub(super) fn run(
    command: &PinCommand,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let out = &mut context.out;
    match command {
        PinCommand::Ls { server } => list_pins(&client, server.as_deref(), out)?,
        PinCommand::Diff { target, kind } => show_diffs(&client, target, *kind, out)?,
        PinCommand::Accept { target, kind, hash } => {
            accept_pins(&client, target, *kind, hash.as_deref(), out)?;
        }
    }
    Ok(CliExit::Ok)
}

fn fetch_pins(client: &ApiClient, server: Option<&str>) -> Result<Bytes, CliFailure> {
    let query = PinsQuery {
        server: server.map(str::to_owned),
    };
    let body = client.get(
        &api_types::with_query("/api/v1/pins", &query)?,
        QUICK_TIMEOUT,
    );
    body.map_err(|failure| match server {
        Some(server) => lifecycle::with_server_suggestion(client, server, failure),
        None => failure,
    })
}

fn list_pins(
    client: &ApiClient,
    server: Option<&str>,
    out: &mut CliOutput,
) -> Result<(), CliFailure> {
    let body = fetch_pins(client, server)?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let PinsResponse { servers, .. } = api_types::parse_response(&body)?;
    match (server, servers.as_slice()) {
        (Some(_), [pins]) => {
            let rows: Vec<_> = all_pins(pins).map(entry_row).collect();
            let head = ["KIND", "NAME", "STATE", "APPROVED", "BY", "NOTE"];
            out.write_line(&format_table(head, &rows))?;
        }
        _ => {
            let rows: Vec<_> = servers.iter().map(server_row).collect();
            let head = ["SERVER", "PIN", "TOOLS", "OTHERS", "CHANGED", "ODD", "NOTE"];
            out.write_line(&format_table(head, &rows))?;
        }
    }
    for server in &servers {
        if let Some(error) = &server.error {
            let text = format!("{}: {}", server.server, error.message);
            out.write_warning(&clean::escape_line(&text));
            out.write_note(&clean::escape_line(&format!("  {}", error.hint)));
        }
    }
    Ok(())
}

fn server_row(server: &ServerPins) -> [String; 7] {
    let count_state = |state: &str| all_pins(server).filter(|tool| tool.state == state).count();
    let needs_review = all_pins(server).any(needs_review);
    let note = match (&server.error, needs_review) {
        (Some(error), _) => error.message.clone(),
        (None, true) => format!("see: bowline pin diff {}", server.server),
        (None, false) => String::new(),
    };
    [
        server.server.clone(),
        server.pin.to_string(),
        server.tools.len().to_string(),
        non_tool_pins(server).count().to_string(),
        count_state("changed").to_string(),
        count_state("quarantined").to_string(),
        note,
    ]
}

fn entry_row(tool: &PinEntry) -> [String; 6] {
    let mut notes = Vec::new();
    if tool.reverted {
        notes.push("changed back since".to_owned());
    } else if tool.now != tool.approved {
        notes.push(format!("now {}", short_hash(&tool.now)));
    }
    notes.extend(tool.findings.iter().map(|finding| {
        let PinFinding { code, place, .. } = finding;
        format!("{code} in {place}")
    }));
    [
        tool.kind.to_string(),
        tool.name.clone(),
        tool.state.to_string(),
        short_hash(&tool.approved).to_owned(),
        if tool.reviewed { "you" } else { "first sight" }.to_owned(),
        notes.join(", "),
    ]
}

fn short_hash(hash: &str) -> &str {
    hash.get(..SHORT_HASH_CHARS).unwrap_or(hash)
}

fn show_diffs(
    client: &ApiClient,
    target: &ToolTarget,
    kind: PinKind,
    out: &mut CliOutput,
) -> Result<(), CliFailure> {
    let server = &target.server;
    let entries: Vec<(Word, String)> = match &target.tool {
        Some(name) => vec![(kind.as_str().into(), name.clone())],
        None => {
            let body = fetch_pins(client, Some(server))?;
            let PinsResponse { servers, .. } = api_types::parse_response(&body)?;
            let entries = servers.iter().flat_map(all_pins);
            let waiting = entries.filter(|entry| needs_review(entry));
            waiting
                .map(|entry| (entry.kind.clone(), entry.name.clone()))
                .collect()
        }
    };
    if entries.is_empty() && out.format() == OutputFormat::Human {
        out.write_note(&clean::escape_line(&format!(
            "every definition of {server} is as it was approved"
        )));
    }
    for (kind, name) in &entries {
        let (server, name) = (percent_encode(server), percent_encode(name));
        let query = PinDiffQuery {
            kind: Some(kind.to_string()),
        };
        let path = api_types::with_query(&format!("/api/v1/pins/{server}/{name}/diff"), &query)?;
        let body = client.get(&path, QUICK_TIMEOUT);
        let body = body.map_err(|failure| {
            lifecycle::with_server_suggestion(client, &target.server, failure)
        })?;
        match out.format() {
            OutputFormat::Json => out.write_raw_json(&body)?,
            OutputFormat::Human => {
                print_diff(&target.server, &api_types::parse_response(&body)?, out)?
            }
        }
    }
    Ok(())
}

fn print_diff(server: &str, diff: &PinDiffResponse, out: &mut CliOutput) -> Result<(), CliFailure> {
    let PinDiffResponse { pin, changes, .. } = diff;
    let name = display_name(server, &pin.kind, &pin.name);
    out.write_line(&format!(
        "{} · {}",
        name.bold(),
        clean::escape_line(&pin.state)
    ))?;
    for finding in &pin.findings {
        let PinFinding {
            code,
            place: location,
            detail,
        } = finding;
        let text = format!("  {code} in {location}: {detail}");
        out.write_line(&clean::escape_line(&text).yellow().to_string())?;
    }
    for change in changes {
        let location = if change.path.is_empty() {
            "all of it"
        } else {
            &change.path
        };
        out.write_line(&format!("  {}", clean::escape_line(location)))?;
        let (old, new) = visible_text::render_pair(raw_text(&change.old), raw_text(&change.new));
        for line in old {
            out.write_line(&format!("  - {line}").red().to_string())?;
        }
        for line in new {
            out.write_line(&format!("  + {line}").green().to_string())?;
        }
    }
    if pin.state == "changed" && (diff.old.is_none() || diff.new.is_none()) {
        out.write_line("  too long to be kept: only the hashes can be compared")?;
    }
    if let ("quarantined", Some(definition)) = (&*pin.state, &diff.new) {
        out.write_line(&clean::escape_text(&visible_text::escape_invisible(
            &indent_json(definition.get()),
        )))?;
    }
    if pin.reverted {
        out.write_line("  the server has changed it back since")?;
    }
    if needs_review(pin) {
        let command = accept_command(server, &pin.kind, &pin.name, &pin.now);
        out.write_line(&format!(
            "  to accept exactly this: {}",
            clean::escape_line(&command)
        ))?;
    }
    Ok(())
}

fn raw_text(json: &Option<Box<RawValue>>) -> Option<&str> {
    json.as_deref().map(RawValue::get)
}

/// Formats the name of an entry for people; anything but a tool includes the kind.
fn display_name(server: &str, kind: &str, name: &str) -> String {
    let name = match kind {
        TOOL => format!("{server}.{name}"),
        kind => format!("{kind} {server}.{name}"),
    };
    clean::escape_line(&name).into_owned()
}

/// Formats the command to accept exactly this definition.
fn accept_command(server: &str, kind: &str, name: &str, hash: &str) -> String {
    let kind = match kind {
        TOOL => String::new(),
        kind => format!(" --kind {kind}"),
    };
    let name = shell_name(server, name);
    format!("bowline pin accept {name}{kind} --hash {hash}")
}

/// Quotes the name of an entry for a shell.
fn shell_name(server: &str, tool: &str) -> String {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || "_-./:".contains(character);
    if tool.chars().all(is_plain) {
        format!("{server}.{tool}")
    } else {
        format!("'{server}.{}'", tool.replace('\'', "'\\''"))
    }
}

fn accept_pins(
    client: &ApiClient,
    target: &ToolTarget,
    kind: PinKind,
    hash: Option<&str>,
    out: &mut CliOutput,
) -> Result<(), CliFailure> {
    let ToolTarget { server, tool } = target;
    if (hash.is_some() || kind != PinKind::Tool) && tool.is_none() {
        return Err(CliFailure::usage("a hash or a kind goes with SERVER.NAME"));
    }
    let request = PinAcceptRequest {
        server: server.clone(),
        tool: tool.clone(),
        kind: (kind != PinKind::Tool).then(|| kind.as_str().into()),
        hash: hash.map(str::to_owned),
    };
    let body = api_types::encode_json(&request)?;
    let body = client
        .post("/api/v1/pins/accept", body, QUICK_TIMEOUT)
        .map_err(|failure| lifecycle::with_server_suggestion(client, server, failure))?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let PinAcceptResponse { accepted, .. } = api_types::parse_response(&body)?;
    for pin in &accepted {
        let name = display_name(server, &pin.kind, &pin.name);
        if pin.old == pin.new {
            out.write_line(&format!(
                "accepted {name} as it is ({})",
                short_hash(&pin.new)
            ))?;
        } else {
            let (old, new) = (short_hash(&pin.old), short_hash(&pin.new));
            out.write_line(&format!("accepted {name}: {new} in place of {old}"))?;
            let undo = accept_command(server, &pin.kind, &pin.name, &pin.old);
            out.write_note(&format!("  to undo: {}", clean::escape_line(&undo)));
        }
    }
    let number = format_count(accepted.len() as u64, "definition");
    out.write_note(&clean::escape_line(&match accepted.as_slice() {
        [] => format!("nothing of {server} waited to be accepted"),
        _ => format!("{number} of {server} accepted and offered as they are now"),
    }));
    Ok(())
}
