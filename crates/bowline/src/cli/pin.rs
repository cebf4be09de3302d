//! `pin`: which definitions are not as they were approved, what changed, and accepting it.

mod shown;

use bowline_core::pins::PinKind;
use bytes::Bytes;
use owo_colors::OwoColorize as _;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
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
    #[serde(default)]
    prompts: Vec<Tool>,
    #[serde(default)]
    resources: Vec<Tool>,
    #[serde(default)]
    templates: Vec<Tool>,
    #[serde(default)]
    introduction: Vec<Tool>,
}

impl Server {
    /// All that is pinned but tools.
    fn others(&self) -> impl Iterator<Item = &Tool> {
        let lists = self.prompts.iter().chain(&self.resources);
        lists.chain(&self.templates).chain(&self.introduction)
    }

    fn all(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter().chain(self.others())
    }
}

#[derive(Debug, Deserialize)]
struct Trouble {
    message: String,
    hint: String,
}

#[derive(Debug, Deserialize)]
struct Tool {
    #[serde(deserialize_with = "read_kind")]
    kind: PinKind,
    name: String,
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
    #[serde(deserialize_with = "read_kind")]
    kind: PinKind,
    name: String,
    old: String,
    new: String,
}

/// Reads the word of a kind.
fn read_kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PinKind, D::Error> {
    let word = String::deserialize(deserializer)?;
    PinKind::read(&word).ok_or_else(|| D::Error::custom(format!("no kind of a pin: `{word}`")))
}

pub(super) fn run(command: &Pin, context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let out = &mut context.out;
    match command {
        Pin::Ls { server } => ls(&client, server.as_deref(), out)?,
        Pin::Diff { target, kind } => diff(&client, target, *kind, out)?,
        Pin::Accept { target, kind, hash } => {
            accept(&client, (target, *kind), hash.as_deref(), out)?;
        }
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
            let rows: Vec<_> = one.all().map(entry_row).collect();
            let head = ["KIND", "NAME", "STATE", "APPROVED", "BY", "NOTE"];
            out.line(&table(head, &rows))?;
        }
        _ => {
            let rows: Vec<_> = servers.iter().map(server_row).collect();
            let head = ["SERVER", "PIN", "TOOLS", "OTHERS", "CHANGED", "ODD", "NOTE"];
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

fn server_row(server: &Server) -> [String; 7] {
    let of = |state: &str| server.all().filter(|tool| tool.state == state).count();
    let waiting = server.all().any(Tool::is_waiting);
    let note = match (&server.error, waiting) {
        (Some(trouble), _) => trouble.message.clone(),
        (None, true) => format!("see: bowline pin diff {}", server.server),
        (None, false) => String::new(),
    };
    [
        server.server.clone(),
        server.pin.clone(),
        server.tools.len().to_string(),
        server.others().count().to_string(),
        of("changed").to_string(),
        of("quarantined").to_string(),
        note,
    ]
}

fn entry_row(tool: &Tool) -> [String; 6] {
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
        tool.kind.as_str().to_owned(),
        tool.name.clone(),
        tool.state.clone(),
        short(&tool.approved).to_owned(),
        if tool.reviewed { "you" } else { "first sight" }.to_owned(),
        notes.join(", "),
    ]
}

fn short(hash: &str) -> &str {
    hash.get(..HASH_CHARS).unwrap_or(hash)
}

fn diff(client: &Client, target: &Target, kind: PinKind, out: &mut Out) -> Result<(), Failure> {
    let server = &target.server;
    let entries = match &target.tool {
        Some(name) => vec![(kind, name.clone())],
        None => {
            let body = get(client, Some(server))?;
            let Pins { servers } = api::read(&body)?;
            let entries = servers.iter().flat_map(Server::all);
            let waiting = entries.filter(|entry| entry.is_waiting());
            waiting
                .map(|entry| (entry.kind, entry.name.clone()))
                .collect()
        }
    };
    if entries.is_empty() && out.format() == Format::Human {
        out.note(&clean::line(&format!(
            "every definition of {server} is as it was approved"
        )));
    }
    for (kind, name) in &entries {
        let (server, name, kind) = (encode(server), encode(name), kind.as_str());
        let path = format!("/api/v1/pins/{server}/{name}/diff?kind={kind}");
        let body = client.get(&path, QUICK);
        let body = body.map_err(|failure| power::named(client, &target.server, failure))?;
        match out.format() {
            Format::Json => out.raw(&body)?,
            Format::Human => show(&target.server, &api::read(&body)?, out)?,
        }
    }
    Ok(())
}

fn show(server: &str, diff: &Diff<'_>, out: &mut Out) -> Result<(), Failure> {
    let Diff { pin, changes, .. } = diff;
    let name = shown_name(server, pin.kind, &pin.name);
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
        let command = accept_command(server, (pin.kind, &pin.name), &pin.now);
        out.line(&format!(
            "  to accept exactly this: {}",
            clean::line(&command)
        ))?;
    }
    Ok(())
}

/// The name of an entry as people read it: what is no tool says what it is.
fn shown_name(server: &str, kind: PinKind, name: &str) -> String {
    let name = match kind {
        PinKind::Tool => format!("{server}.{name}"),
        kind => format!("{} {server}.{name}", kind.as_str()),
    };
    clean::line(&name).into_owned()
}

/// The command that accepts exactly this.
fn accept_command(server: &str, (kind, name): (PinKind, &str), hash: &str) -> String {
    let kind = match kind {
        PinKind::Tool => String::new(),
        kind => format!(" --kind {}", kind.as_str()),
    };
    let name = quoted(server, name);
    format!("bowline pin accept {name}{kind} --hash {hash}")
}

/// The name of an entry as a shell takes it.
fn quoted(server: &str, tool: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./:".contains(letter);
    if tool.chars().all(is_plain) {
        format!("{server}.{tool}")
    } else {
        format!("'{server}.{}'", tool.replace('\'', "'\\''"))
    }
}

fn accept(
    client: &Client,
    (target, kind): (&Target, PinKind),
    hash: Option<&str>,
    out: &mut Out,
) -> Result<(), Failure> {
    let Target { server, tool } = target;
    if (hash.is_some() || kind != PinKind::Tool) && tool.is_none() {
        return Err(Failure::usage("a hash or a kind goes with SERVER.NAME"));
    }
    let mut body = json!({"server": server, "tool": tool, "hash": hash});
    if let (Some(body), true) = (body.as_object_mut(), kind != PinKind::Tool) {
        body.insert("kind".to_owned(), json!(kind.as_str()));
    }
    let body = body.to_string();
    let body = client
        .post("/api/v1/pins/accept", body.into(), QUICK)
        .map_err(|failure| power::named(client, server, failure))?;
    if out.format() == Format::Json {
        return Ok(out.raw(&body)?);
    }
    let Accepted { accepted } = api::read(&body)?;
    for one in &accepted {
        let name = shown_name(server, one.kind, &one.name);
        if one.old == one.new {
            out.line(&format!("accepted {name} as it is ({})", short(&one.new)))?;
        } else {
            let (old, new) = (short(&one.old), short(&one.new));
            out.line(&format!("accepted {name}: {new} in place of {old}"))?;
            let undo = accept_command(server, (one.kind, &one.name), &one.old);
            out.note(&format!("  to undo: {}", clean::line(&undo)));
        }
    }
    let number = count(accepted.len() as u64, "definition");
    out.note(&clean::line(&match accepted.as_slice() {
        [] => format!("nothing of {server} waited to be accepted"),
        _ => format!("{number} of {server} accepted and offered as they are now"),
    }));
    Ok(())
}
