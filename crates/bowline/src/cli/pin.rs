//! `pin`: lists pins, and shows and accepts changed definitions.

mod visible_text;

use bowline_core::pins::PinKind;
use bytes::Bytes;
use owo_colors::OwoColorize as _;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::json;
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

#[derive(Debug, Deserialize)]
struct ApiPinsResponse {
    servers: Vec<ApiServerPins>,
}

#[derive(Debug, Deserialize)]
struct ApiServerPins {
    server: String,
    pin: String,
    error: Option<ApiPinError>,
    tools: Vec<ApiPin>,
    #[serde(default)]
    prompts: Vec<ApiPin>,
    #[serde(default)]
    resources: Vec<ApiPin>,
    #[serde(default)]
    templates: Vec<ApiPin>,
    #[serde(default)]
    introduction: Vec<ApiPin>,
}

impl ApiServerPins {
    /// Returns all pins except tools.
    fn non_tool_pins(&self) -> impl Iterator<Item = &ApiPin> {
        let lists = self.prompts.iter().chain(&self.resources);
        lists.chain(&self.templates).chain(&self.introduction)
    }

    fn all_pins(&self) -> impl Iterator<Item = &ApiPin> {
        self.tools.iter().chain(self.non_tool_pins())
    }
}

#[derive(Debug, Deserialize)]
struct ApiPinError {
    message: String,
    hint: String,
}

#[derive(Debug, Deserialize)]
struct ApiPin {
    #[serde(deserialize_with = "read_kind")]
    kind: PinKind,
    name: String,
    state: String,
    approved: String,
    now: String,
    reviewed: bool,
    reverted: bool,
    findings: Vec<ApiPinFinding>,
}

impl ApiPin {
    fn needs_review(&self) -> bool {
        self.state != "approved"
    }
}

#[derive(Debug, Deserialize)]
struct ApiPinFinding {
    code: String,
    place: String,
    detail: String,
}

#[derive(Debug, Deserialize)]
struct ApiPinDiffResponse<'a> {
    #[serde(flatten)]
    pin: ApiPin,
    #[serde(borrow)]
    changes: Vec<ApiMemberChange<'a>>,
    #[serde(borrow)]
    old: Option<&'a RawValue>,
    #[serde(borrow)]
    new: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct ApiMemberChange<'a> {
    path: String,
    #[serde(borrow)]
    old: Option<&'a RawValue>,
    #[serde(borrow)]
    new: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct ApiPinAcceptResponse {
    accepted: Vec<AcceptedPin>,
}

#[derive(Debug, Deserialize)]
struct AcceptedPin {
    #[serde(deserialize_with = "read_kind")]
    kind: PinKind,
    name: String,
    old: String,
    new: String,
}

/// Deserializes the word of a pin kind.
fn read_kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PinKind, D::Error> {
    let word = String::deserialize(deserializer)?;
    PinKind::parse(&word).ok_or_else(|| D::Error::custom(format!("no kind of a pin: `{word}`")))
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
    match server {
        None => client.get("/api/v1/pins", QUICK_TIMEOUT),
        Some(server) => client
            .get(
                &format!("/api/v1/pins?server={}", percent_encode(server)),
                QUICK_TIMEOUT,
            )
            .map_err(|failure| lifecycle::with_server_suggestion(client, server, failure)),
    }
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
    let ApiPinsResponse { servers } = api_types::parse_response(&body)?;
    match (server, servers.as_slice()) {
        (Some(_), [pins]) => {
            let rows: Vec<_> = pins.all_pins().map(entry_row).collect();
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

fn server_row(server: &ApiServerPins) -> [String; 7] {
    let count_state = |state: &str| server.all_pins().filter(|tool| tool.state == state).count();
    let needs_review = server.all_pins().any(ApiPin::needs_review);
    let note = match (&server.error, needs_review) {
        (Some(error), _) => error.message.clone(),
        (None, true) => format!("see: bowline pin diff {}", server.server),
        (None, false) => String::new(),
    };
    [
        server.server.clone(),
        server.pin.clone(),
        server.tools.len().to_string(),
        server.non_tool_pins().count().to_string(),
        count_state("changed").to_string(),
        count_state("quarantined").to_string(),
        note,
    ]
}

fn entry_row(tool: &ApiPin) -> [String; 6] {
    let mut notes = Vec::new();
    if tool.reverted {
        notes.push("changed back since".to_owned());
    } else if tool.now != tool.approved {
        notes.push(format!("now {}", short_hash(&tool.now)));
    }
    notes.extend(tool.findings.iter().map(|finding| {
        let ApiPinFinding { code, place, .. } = finding;
        format!("{code} in {place}")
    }));
    [
        tool.kind.as_str().to_owned(),
        tool.name.clone(),
        tool.state.clone(),
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
    let entries = match &target.tool {
        Some(name) => vec![(kind, name.clone())],
        None => {
            let body = fetch_pins(client, Some(server))?;
            let ApiPinsResponse { servers } = api_types::parse_response(&body)?;
            let entries = servers.iter().flat_map(ApiServerPins::all_pins);
            let waiting = entries.filter(|entry| entry.needs_review());
            waiting
                .map(|entry| (entry.kind, entry.name.clone()))
                .collect()
        }
    };
    if entries.is_empty() && out.format() == OutputFormat::Human {
        out.write_note(&clean::escape_line(&format!(
            "every definition of {server} is as it was approved"
        )));
    }
    for (kind, name) in &entries {
        let (server, name, kind) = (percent_encode(server), percent_encode(name), kind.as_str());
        let path = format!("/api/v1/pins/{server}/{name}/diff?kind={kind}");
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

fn print_diff(
    server: &str,
    diff: &ApiPinDiffResponse<'_>,
    out: &mut CliOutput,
) -> Result<(), CliFailure> {
    let ApiPinDiffResponse { pin, changes, .. } = diff;
    let name = display_name(server, pin.kind, &pin.name);
    out.write_line(&format!(
        "{} · {}",
        name.bold(),
        clean::escape_line(&pin.state)
    ))?;
    for finding in &pin.findings {
        let ApiPinFinding {
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
        let (old, new) =
            visible_text::render_pair(change.old.map(RawValue::get), change.new.map(RawValue::get));
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
    if let ("quarantined", Some(definition)) = (pin.state.as_str(), diff.new) {
        out.write_line(&clean::escape_text(&visible_text::escape_invisible(
            &indent_json(definition.get()),
        )))?;
    }
    if pin.reverted {
        out.write_line("  the server has changed it back since")?;
    }
    if pin.needs_review() {
        let command = accept_command(server, pin.kind, &pin.name, &pin.now);
        out.write_line(&format!(
            "  to accept exactly this: {}",
            clean::escape_line(&command)
        ))?;
    }
    Ok(())
}

/// Formats the name of an entry for people; anything but a tool includes the kind.
fn display_name(server: &str, kind: PinKind, name: &str) -> String {
    let name = match kind {
        PinKind::Tool => format!("{server}.{name}"),
        kind => format!("{} {server}.{name}", kind.as_str()),
    };
    clean::escape_line(&name).into_owned()
}

/// Formats the command to accept exactly this definition.
fn accept_command(server: &str, kind: PinKind, name: &str, hash: &str) -> String {
    let kind = match kind {
        PinKind::Tool => String::new(),
        kind => format!(" --kind {}", kind.as_str()),
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
    let mut body = json!({"server": server, "tool": tool, "hash": hash});
    if let (Some(body), true) = (body.as_object_mut(), kind != PinKind::Tool) {
        body.insert("kind".to_owned(), json!(kind.as_str()));
    }
    let body = body.to_string();
    let body = client
        .post("/api/v1/pins/accept", body.into(), QUICK_TIMEOUT)
        .map_err(|failure| lifecycle::with_server_suggestion(client, server, failure))?;
    if out.format() == OutputFormat::Json {
        return Ok(out.write_raw_json(&body)?);
    }
    let ApiPinAcceptResponse { accepted } = api_types::parse_response(&body)?;
    for pin in &accepted {
        let name = display_name(server, pin.kind, &pin.name);
        if pin.old == pin.new {
            out.write_line(&format!(
                "accepted {name} as it is ({})",
                short_hash(&pin.new)
            ))?;
        } else {
            let (old, new) = (short_hash(&pin.old), short_hash(&pin.new));
            out.write_line(&format!("accepted {name}: {new} in place of {old}"))?;
            let undo = accept_command(server, pin.kind, &pin.name, &pin.old);
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
