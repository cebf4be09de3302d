//! `pin`: which tools are not as they were approved, what changed, and accepting it.

mod shown;

use bytes::Bytes;
use owo_colors::OwoColorize as _;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::args::{Pin, Target};
use super::client::{Client, QUICK, encode};
use super::failure::{Exit, Failure};
use super::out::{Format, Out};
use super::pretty::pretty;
use super::table::{count, table};
use super::{Context, api, clean, power};

/// Digits of a hash that people read.
const HASH_CHARS: usize = 12;

#[derive(Debug, Deserialize)]
struct Pins {
    servers: Vec<Server>,
}

#[derive(Debug, Deserialize)]
struct Server {
    server: String,
    pin: String,
    error: Option<Trouble>,
    tools: Vec<Tool>,
}

#[derive(Debug, Deserialize)]
struct Trouble {
    message: String,
    hint: String,
}

#[derive(Debug, Deserialize)]
struct Tool {
    tool: String,
    state: String,
    approved: String,
    now: String,
    reviewed: bool,
    reverted: bool,
    findings: Vec<Finding>,
}

impl Tool {
    fn is_waiting(&self) -> bool {
        self.state != "approved"
    }
}

#[derive(Debug, Deserialize)]
struct Finding {
    code: String,
    place: String,
    detail: String,
}

#[derive(Debug, Deserialize)]
struct Diff<'a> {
    #[serde(flatten)]
    pin: Tool,
    #[serde(borrow)]
    changes: Vec<Change<'a>>,
    #[serde(borrow)]
    old: Option<&'a RawValue>,
    #[serde(borrow)]
    new: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Change<'a> {
    path: String,
    #[serde(borrow)]
    old: Option<&'a RawValue>,
    #[serde(borrow)]
    new: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Accepted {
    accepted: Vec<One>,
}

#[derive(Debug, Deserialize)]
struct One {
    tool: String,
    old: String,
    new: String,
}

pub(super) fn run(command: &Pin, context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let out = &mut context.out;
    match command {
        Pin::Ls { server } => ls(&client, server.as_deref(), out)?,
        Pin::Diff { target } => diff(&client, target, out)?,
        Pin::Accept { target, hash } => accept(&client, target, hash.as_deref(), out)?,
    }
    Ok(Exit::Ok)
}

fn get(client: &Client, server: Option<&str>) -> Result<Bytes, Failure> {
    match server {
        None => client.get("/api/v1/pins", QUICK),
        Some(server) => client
            .get(&format!("/api/v1/pins?server={}", encode(server)), QUICK)
            .map_err(|failure| power::named(client, server, failure)),
    }
}

fn ls(client: &Client, server: Option<&str>, out: &mut Out) -> Result<(), Failure> {
    let body = get(client, server)?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let Pins { servers } = api::read(&body)?;
    match (server, servers.as_slice()) {
        (Some(_), [one]) => {
            let rows: Vec<_> = one.tools.iter().map(tool_row).collect();
            out.line(&table(["TOOL", "STATE", "APPROVED", "BY", "NOTE"], &rows))?;
        }
        _ => {
            let rows: Vec<_> = servers.iter().map(server_row).collect();
            let head = ["SERVER", "PIN", "TOOLS", "CHANGED", "ODD", "NOTE"];
            out.line(&table(head, &rows))?;
        }
    }
    for server in &servers {
        if let Some(trouble) = &server.error {
            let text = format!("{}: {}", server.server, trouble.message);
            out.warning(&clean::line(&text));
            out.note(&clean::line(&format!("  {}", trouble.hint)));
        }
    }
    Ok(())
}

fn server_row(server: &Server) -> [String; 6] {
    let of = |state: &str| {
        server
            .tools
            .iter()
            .filter(|tool| tool.state == state)
            .count()
    };
    let waiting = server.tools.iter().any(Tool::is_waiting);
    let note = match (&server.error, waiting) {
        (Some(trouble), _) => trouble.message.clone(),
        (None, true) => format!("see: bowline pin diff {}", server.server),
        (None, false) => String::new(),
    };
    [
        server.server.clone(),
        server.pin.clone(),
        server.tools.len().to_string(),
        of("changed").to_string(),
        of("quarantined").to_string(),
        note,
    ]
}

fn tool_row(tool: &Tool) -> [String; 5] {
    let mut notes = Vec::new();
    if tool.reverted {
        notes.push("changed back since".to_owned());
    } else if tool.now != tool.approved {
        notes.push(format!("now {}", short(&tool.now)));
    }
    notes.extend(tool.findings.iter().map(|finding| {
        let Finding { code, place, .. } = finding;
        format!("{code} in {place}")
    }));
    [
        tool.tool.clone(),
        tool.state.clone(),
        short(&tool.approved).to_owned(),
        if tool.reviewed { "you" } else { "first sight" }.to_owned(),
        notes.join(", "),
    ]
}

fn short(hash: &str) -> &str {
    hash.get(..HASH_CHARS).unwrap_or(hash)
}

fn diff(client: &Client, target: &Target, out: &mut Out) -> Result<(), Failure> {
    let server = &target.server;
    let tools = match &target.tool {
        Some(tool) => vec![tool.clone()],
        None => {
            let body = get(client, Some(server))?;
            let Pins { servers } = api::read(&body)?;
            let tools = servers.into_iter().flat_map(|server| server.tools);
            let waiting = tools.filter(Tool::is_waiting);
            waiting.map(|tool| tool.tool).collect()
        }
    };
    if tools.is_empty() && out.format() == Format::Human {
        out.note(&clean::line(&format!(
            "every tool of {server} is as it was approved"
        )));
    }
    for tool in &tools {
        let path = format!("/api/v1/pins/{}/{}/diff", encode(server), encode(tool));
        let body = client.get(&path, QUICK);
        let body = body.map_err(|failure| power::named(client, server, failure))?;
        match out.format() {
            Format::Json => out.raw(&body)?,
            Format::Human => show(server, &api::read(&body)?, out)?,
        }
    }
    Ok(())
}

fn show(server: &str, diff: &Diff<'_>, out: &mut Out) -> Result<(), Failure> {
    let Diff { pin, changes, .. } = diff;
    let name = format!("{server}.{}", pin.tool);
    let name = clean::line(&name).into_owned();
    out.line(&format!("{} · {}", name.bold(), clean::line(&pin.state)))?;
    for finding in &pin.findings {
        let Finding {
            code,
            place,
            detail,
        } = finding;
        let text = format!("  {code} in {place}: {detail}");
        out.line(&clean::line(&text).yellow().to_string())?;
    }
    for change in changes {
        let place = if change.path.is_empty() {
            "all of it"
        } else {
            &change.path
        };
        out.line(&format!("  {}", clean::line(place)))?;
        let (old, new) = shown::pair(change.old.map(RawValue::get), change.new.map(RawValue::get));
        for line in old {
            out.line(&format!("  - {line}").red().to_string())?;
        }
        for line in new {
            out.line(&format!("  + {line}").green().to_string())?;
        }
    }
    if pin.state == "changed" && (diff.old.is_none() || diff.new.is_none()) {
        out.line("  too long to be kept: only the hashes can be compared")?;
    }
    if let ("quarantined", Some(definition)) = (pin.state.as_str(), diff.new) {
        out.line(&clean::text(&shown::visible(&pretty(definition.get()))))?;
    }
    if pin.reverted {
        out.line("  the server has changed it back since")?;
    }
    if pin.is_waiting() {
        let Tool { tool, now, .. } = pin;
        let command = format!("bowline pin accept {} --hash {now}", quoted(server, tool));
        out.line(&format!(
            "  to accept exactly this: {}",
            clean::line(&command)
        ))?;
    }
    Ok(())
}

/// The name of a tool as a shell takes it.
fn quoted(server: &str, tool: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
    if tool.chars().all(is_plain) {
        format!("{server}.{tool}")
    } else {
        format!("'{server}.{}'", tool.replace('\'', "'\\''"))
    }
}

fn accept(
    client: &Client,
    target: &Target,
    hash: Option<&str>,
    out: &mut Out,
) -> Result<(), Failure> {
    let Target { server, tool } = target;
    if hash.is_some() && tool.is_none() {
        return Err(Failure::usage("a hash goes with SERVER.TOOL"));
    }
    let body = json!({"server": server, "tool": tool, "hash": hash}).to_string();
    let body = client
        .post("/api/v1/pins/accept", body.into(), QUICK)
        .map_err(|failure| power::named(client, server, failure))?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let Accepted { accepted } = api::read(&body)?;
    for one in &accepted {
        let name = format!("{server}.{}", one.tool);
        let name = clean::line(&name);
        if one.old == one.new {
            out.line(&format!("accepted {name} as it is ({})", short(&one.new)))?;
        } else {
            let (old, new) = (short(&one.old), short(&one.new));
            out.line(&format!("accepted {name}: {new} in place of {old}"))?;
            let undo = format!(
                "bowline pin accept {} --hash {}",
                quoted(server, &one.tool),
                one.old
            );
            out.note(&format!("  to undo: {}", clean::line(&undo)));
        }
    }
    let number = count(accepted.len() as u64, "tool");
    out.note(&clean::line(&match accepted.as_slice() {
        [] => format!("nothing of {server} waited to be accepted"),
        _ => format!("{number} of {server} accepted; its tools are offered as they are now"),
    }));
    Ok(())
}
