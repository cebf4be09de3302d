//! `status`: one screen that says whether all is well, one server in detail, or both as it changes.

mod detail;
mod watch;

use owo_colors::OwoColorize as _;
use serde::Deserialize;

use super::api::{self, Broken, Server};
use super::client::{Client, QUICK};
use super::failure::{Exit, Failure};
use super::out::{Format, Out};
use super::table::{count, duration, micros, percent, size, table};
use super::{Context, clean};

/// Lanes that are named at most of those that are stopped by damage.
const STOPPED_SHOWN_MAX: usize = 5;

/// What is to be shown.
#[derive(Clone, Copy, Debug)]
pub(super) enum View<'a> {
    /// All servers, once.
    All,
    /// All servers, whenever something happens.
    Watch,
    /// One server in detail.
    One(&'a str),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    version: String,
    pid: u32,
    uptime_ms: u64,
    url: String,
    config: Option<String>,
    config_error: Option<String>,
    insecure_no_auth: bool,
    sessions: u64,
    servers: Vec<Server>,
    broken: Vec<Broken>,
    sharing: Option<String>,
    /// Tokens that should be replaced soon.
    tokens_ending: u64,
    journal: Journal,
    outbox: Option<Outbox>,
    broker: Option<Broker>,
    executors: Option<Executors>,
    audit: Audit,
}

/// What remembers queued calls.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Journal {
    health: String,
    reason: Option<String>,
    /// How many lanes are stopped by damage, and some of them.
    stopped: u64,
    stopped_lanes: Vec<StoppedLane>,
}

/// Calls that cannot be sent since one of them is damaged.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct StoppedLane {
    lane: String,
    reason: String,
}

/// Calls that wait.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Outbox {
    queued: u64,
    dead: u64,
    oldest_age_ms: Option<u64>,
}

/// Peers of the broker.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Broker {
    peers: u64,
    offered: u64,
}

/// Executors in other networks.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Executors {
    known: u64,
    connected: u64,
}

/// The trail of calls.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Audit {
    reason: Option<String>,
    lost: u64,
}

pub(super) fn run(view: View<'_>, context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    match view {
        View::All => all(&client, &mut context.out),
        View::Watch => watch::run(&client, &mut context.out),
        View::One(server) => detail::run(&client, server, &mut context.out),
    }
}

fn all(client: &Client, out: &mut Out) -> Result<Exit, Failure> {
    let body = client.get("/api/v1/status", QUICK)?;
    match out.format() {
        Format::Json => out.raw(&body)?,
        Format::Human => out.line(&screen(&api::read(&body)?))?,
    }
    Ok(Exit::Ok)
}

/// The whole screen, in one piece, so that it does not flicker where it is drawn again.
fn screen(status: &Status) -> String {
    let failing = status.servers.iter().filter(|server| server.is_failing());
    let refused = usize::from(status.config_error.is_some());
    let health = status.journal.health.as_str();
    let journal_fails = matches!(health, "full" | "poisoned" | "replaced");
    let lacking = status.servers.iter().find_map(Server::sandbox_lacks);
    let kept = [
        journal_fails,
        status.audit.reason.is_some(),
        status.sharing.is_some(),
        lacking.is_some(),
    ];
    let kept = kept.into_iter().filter(|fails| *fails).count();
    let stopped = usize::try_from(status.journal.stopped).unwrap_or(usize::MAX);
    let problems = failing.count() + status.broken.len() + refused + kept + stopped;
    let verdict = match problems {
        0 => "all well".green().to_string(),
        number => count(number as u64, "problem").red().to_string(),
    };
    let head = format!(
        "bowline {} · up {} · pid {} · {} · {}",
        status.version,
        duration(status.uptime_ms),
        status.pid,
        count(status.sessions, "session"),
        status.url,
    );
    let mut lines = vec![format!("{} · {verdict}", clean::line(&head))];
    if let Some(config) = &status.config {
        lines.push(format!("config {}", clean::line(config)));
    }
    if let Some(error) = &status.config_error {
        let text = format!("the changed config is not in force: {error} · see: bowline check");
        lines.push(clean::line(&text).red().to_string());
    }
    if let Some(reason) = &status.audit.reason {
        let lost = count(status.audit.lost, "row");
        let text = format!("audit: {lost} lost so far: {reason}");
        lines.push(clean::line(&text).red().to_string());
    }
    if status.insecure_no_auth {
        let text = "NO AUTHENTICATION: any local process may call tools (--insecure-no-auth)";
        lines.push(text.red().bold().to_string());
    }
    if let Some(lacks) = lacking {
        let text = format!("sandbox: less than asked: {lacks}");
        lines.push(clean::line(&text).red().to_string());
    }
    if let Some(sharing) = &status.sharing {
        lines.push(clean::line(sharing).yellow().to_string());
    }
    lines.extend(ending(status.tokens_ending));
    lines.extend(journal(&status.journal));
    lines.extend(stopped_lanes(&status.journal));
    lines.extend(status.outbox.as_ref().and_then(outbox));
    lines.extend(status.broker.as_ref().and_then(broker));
    lines.extend(status.executors.as_ref().and_then(executors));
    let head = [
        "SERVER", "STATE", "TOOLS", "CALLS", "ERR%", "P50", "P99", "RESTARTS", "MEM", "NOTE",
    ];
    let rows: Vec<_> = status.servers.iter().map(row).collect();
    let broken = status.broken.iter().map(broken_row);
    let rows: Vec<_> = rows.into_iter().chain(broken).collect();
    lines.push(table(head, &rows));
    lines.join("\n")
}

/// Points out tokens that end soon.
fn ending(tokens: u64) -> Option<String> {
    let verb = match tokens {
        0 => return None,
        1 => "ends",
        _ => "end",
    };
    let tokens = count(tokens, "token");
    let text = format!("{tokens} {verb} within 7 days · see: bowline token ls");
    Some(text.yellow().to_string())
}

/// Says what the journal cannot do.
fn journal(journal: &Journal) -> Option<String> {
    let text = match journal.health.as_str() {
        "full" => "the disk is full: no call can be queued".to_owned(),
        "poisoned" => {
            let reason = journal.reason.as_deref().unwrap_or_default();
            format!("the journal failed and no call can be queued: {reason} · restart bowline")
        }
        "replaced" => "the files of the journal were deleted, moved or replaced: no call can be \
                       queued · put them back, then restart bowline"
            .to_owned(),
        _ => return None,
    };
    Some(clean::line(&text).red().to_string())
}

/// Names lanes that are stopped by damage, and how they go on.
fn stopped_lanes(journal: &Journal) -> Vec<String> {
    let shown = journal.stopped_lanes.iter().take(STOPPED_SHOWN_MAX);
    let mut lines: Vec<_> = shown
        .map(|StoppedLane { lane, reason }| {
            format!("{lane} is stopped: {reason} · see: bowline outbox ls, bowline outbox drop")
        })
        .collect();
    let more = journal.stopped.saturating_sub(lines.len() as u64);
    if more > 0 {
        lines.push(format!("{} more stopped likewise", count(more, "lane")));
    }
    let lines = lines.iter();
    lines
        .map(|line| clean::line(line).red().to_string())
        .collect()
}

/// Says what waits, where anything does.
fn outbox(outbox: &Outbox) -> Option<String> {
    let Outbox { queued, dead, .. } = outbox;
    if queued + dead == 0 {
        return None;
    }
    let oldest = outbox.oldest_age_ms.filter(|_| *queued > 0);
    let oldest = oldest.map(|age| format!(" · the oldest for {}", duration(age)));
    let text = format!(
        "outbox {queued} queued, {dead} dead{} · see: bowline outbox ls",
        oldest.unwrap_or_default()
    );
    Some(match dead {
        0 => text,
        _ => text.yellow().to_string(),
    })
}

/// Says who is connected, where anybody is.
fn broker(broker: &Broker) -> Option<String> {
    let Broker { peers, offered } = broker;
    if *peers == 0 {
        return None;
    }
    let offers = match offered {
        0 => String::new(),
        offered => format!(", {} of theirs", count(*offered, "server")),
    };
    let workers = count(*peers, "worker");
    Some(format!(
        "{workers} connected{offers} · see: bowline worker ls"
    ))
}

/// Says how many executors are connected, where any is known.
fn executors(executors: &Executors) -> Option<String> {
    let Executors { known, connected } = executors;
    let away = known.saturating_sub(*connected);
    let text = match (known, away) {
        (0, _) => return None,
        (_, 0) => format!("{} connected", count(*connected, "executor")),
        _ => format!("{} connected, {away} away", count(*connected, "executor")),
    };
    let text = format!("{text} · see: bowline executor ls");
    Some(match away {
        0 => text,
        _ => text.yellow().to_string(),
    })
}

fn row(server: &Server) -> [String; 10] {
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let share = (server.calls > 0).then(|| percent(server.error_rate));
    [
        server.name.clone(),
        marked(server),
        server.tools.to_string(),
        server.calls.to_string(),
        known(share),
        known(server.p50_us.map(micros)),
        known(server.p99_us.map(micros)),
        server.restart_count.to_string(),
        known(server.memory_bytes.map(size)),
        note(server),
    ]
}

fn broken_row(broken: &Broken) -> [String; 10] {
    let mut row = [(); 10].map(|()| "-".to_owned());
    let [name, state, .., note] = &mut row;
    name.clone_from(&broken.name);
    "✗ broken".clone_into(state);
    *note = format!("{} · see: bowline check", broken.reason);
    row
}

/// The state with a mark for the eye; the word alone says as much.
fn marked(server: &Server) -> String {
    let mark = match server.state.as_str() {
        "ready" => "●",
        "starting" | "draining" | "probing" => "◐",
        "ejected" | "backoff" => "✗",
        _ => "○",
    };
    format!("{mark} {}", server.state)
}

/// How it speaks, where that is known.
fn era(server: &Server) -> Option<&'static str> {
    match server.era.as_str() {
        "modern" => Some("modern (2026-07-28, without sessions)"),
        "legacy" => Some("legacy (with a handshake)"),
        _ => None,
    }
}

fn note(server: &Server) -> String {
    let mut notes = Vec::new();
    // The others are as ever.
    notes.extend((server.era == "modern").then(|| server.era.clone()));
    notes.extend(breaker(server));
    // The default says nothing.
    let level = server.sandbox.as_ref().map(|sandbox| &sandbox.level);
    let unusual = level.filter(|level| *level != "default");
    notes.extend(unusual.map(|level| format!("sandbox {level}")));
    if server.state == "backoff"
        && let Some(wait) = server.retry_after_ms
    {
        notes.push(format!("next try in {}", duration(wait)));
    }
    if server.in_flight > 0 {
        notes.push(format!("{} in flight", server.in_flight));
    }
    if server.queued > 0 {
        notes.push(format!("{} waiting", server.queued));
    }
    if server.sheds > 0 {
        notes.push(format!("{} turned away", server.sheds));
    }
    if server.own_links > 0 {
        notes.push(count(server.own_links, "own link"));
    }
    if let Some(why) = &server.isolated_because {
        notes.push(format!("not shared: {why}"));
    }
    notes.extend(server.left_out());
    notes.extend(pins(server));
    if server.is_failing() {
        notes.extend(last_error(server));
    }
    notes.extend(help(server));
    notes.join(" · ")
}

/// How the breaker stands, unless it lets all calls through.
fn breaker(server: &Server) -> Option<String> {
    let failures = count(server.consecutive_failures, "failure");
    match (server.circuit.as_str(), server.retry_after_ms) {
        ("open", Some(wait)) => Some(format!("breaker: {failures}, probe in {}", duration(wait))),
        ("open", None) => Some(format!("breaker: {failures}")),
        ("half_open", _) => Some(format!("breaker: {failures}, the next call is a probe")),
        _ => None,
    }
}

/// How its definitions stand to their pins, unless all are as they were approved.
fn pins(server: &Server) -> Option<String> {
    let name = &server.name;
    if let Some(error) = &server.pins_error {
        return Some(format!("{error}; see: bowline pin ls {name}"));
    }
    let mut parts = Vec::new();
    if server.pins_changed > 0 {
        parts.push(format!(
            "{} changed",
            count(server.pins_changed, "definition")
        ));
    }
    if server.pins_quarantined > 0 {
        parts.push(format!(
            "{} odd",
            count(server.pins_quarantined, "definition")
        ));
    }
    let waiting = parts.join(", ");
    (!parts.is_empty()).then(|| format!("{waiting}; see: bowline pin diff {name}"))
}

/// What it failed with, and when.
fn last_error(server: &Server) -> Option<String> {
    let error = server.last_error.as_ref()?;
    let age = duration(error.age_ms);
    Some(format!("{}: {} ({age} ago)", error.class, error.message))
}

/// The command that helps.
pub(super) fn help(server: &Server) -> Option<String> {
    let name = &server.name;
    match server.state.as_str() {
        "stopped" => Some(format!("run: bowline start {name}")),
        _ if server.ejected => Some(format!(
            "see: bowline logs {name}, then bowline restart {name}"
        )),
        _ if server.is_failing() => Some(format!("see: bowline logs {name}")),
        _ => None,
    }
}
