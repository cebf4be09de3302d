//! `status`: a screen of health, a server in detail, or a continuously updated screen.

mod detail;
mod watch;

use bowline_api::servers::{BrokenServer, ServerStatus};
use bowline_api::status::{
    BrokerCounts, ExecutorCounts, JournalStatus, OutboxCounts, StatusResponse, StoppedLaneEntry,
};
use owo_colors::OwoColorize as _;

use super::api_client::{ApiClient, QUICK_TIMEOUT};
use super::api_types;
use super::failure::{CliExit, CliFailure};
use super::output::{CliOutput, OutputFormat};
use super::table::{
    format_count, format_duration, format_micros, format_percent, format_size, format_table,
};
use super::{CommandContext, clean};

/// Maximum displayed lanes stopped by damage.
const STOPPED_SHOWN_MAX: usize = 5;

/// The requested view.
#[derive(Clone, Copy, Debug)]
pub(super) enum StatusView<'a> {
    /// All servers, once.
    All,
    /// All servers, redrawn on every event.
    Watch,
    /// A server in detail.
    One(&'a str),
}

pub(super) fn run(
    view: StatusView<'_>,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    match view {
        StatusView::All => print_status(&client, &mut context.out),
        StatusView::Watch => watch::run(&client, &mut context.out),
        StatusView::One(server) => detail::run(&client, server, &mut context.out),
    }
}

fn print_status(client: &ApiClient, out: &mut CliOutput) -> Result<CliExit, CliFailure> {
    let body = client.get("/api/v1/status", QUICK_TIMEOUT)?;
    match out.format() {
        OutputFormat::Json => out.write_raw_json(&body)?,
        OutputFormat::Human => {
            out.write_line(&render_screen(&api_types::parse_response(&body)?))?
        }
    }
    Ok(CliExit::Ok)
}

/// Renders the whole screen as a single string, so a redraw does not flicker.
fn render_screen(status: &StatusResponse) -> String {
    let failing = status.servers.iter().filter(|server| server.is_degraded());
    let config_refused = usize::from(status.config_error.is_some());
    let health = &*status.journal.health;
    let journal_fails = matches!(health, "full" | "poisoned" | "replaced");
    let lacking = status.servers.iter().find_map(sandbox_lacks);
    let trail = status.audit.trail.as_ref();
    let audit_reason = trail.and_then(|trail| Some((trail.reason.as_ref()?, trail.lost)));
    let degraded = [
        journal_fails,
        audit_reason.is_some(),
        status.sharing.is_some(),
        lacking.is_some(),
    ];
    let degraded = degraded.into_iter().filter(|fails| *fails).count();
    let stopped = usize::try_from(status.journal.stopped).unwrap_or(usize::MAX);
    let problems = failing.count() + status.broken.len() + config_refused + degraded + stopped;
    let verdict = match problems {
        0 => "all well".green().to_string(),
        number => format_count(number as u64, "problem").red().to_string(),
    };
    let head = format!(
        "bowline {} · up {} · pid {} · {} · {}",
        status.version,
        format_duration(status.uptime_ms),
        status.pid,
        format_count(status.sessions, "session"),
        status.url,
    );
    let mut lines = vec![format!("{} · {verdict}", clean::escape_line(&head))];
    if let Some(config) = &status.config {
        lines.push(format!("config {}", clean::escape_line(config)));
    }
    if let Some(error) = &status.config_error {
        let text = format!("the changed config is not in force: {error} · see: bowline check");
        lines.push(clean::escape_line(&text).red().to_string());
    }
    if let Some((reason, lost)) = audit_reason {
        let lost = format_count(lost, "row");
        let text = format!("audit: {lost} lost so far: {reason}");
        lines.push(clean::escape_line(&text).red().to_string());
    }
    if status.insecure_no_auth {
        let text = "NO AUTHENTICATION: any local process may call tools (--insecure-no-auth)";
        lines.push(text.red().bold().to_string());
    }
    if let Some(lacks) = lacking {
        let text = format!("sandbox: less than asked: {lacks}");
        lines.push(clean::escape_line(&text).red().to_string());
    }
    if let Some(sharing) = &status.sharing {
        lines.push(clean::escape_line(sharing).yellow().to_string());
    }
    lines.extend(expiring_tokens_line(status.tokens_ending));
    lines.extend(journal_line(&status.journal));
    lines.extend(stopped_lane_lines(&status.journal));
    lines.extend(status.outbox.as_ref().and_then(outbox_line));
    lines.extend(status.broker.as_ref().and_then(broker_line));
    lines.extend(status.executors.as_ref().and_then(executors_line));
    let head = [
        "SERVER", "STATE", "TOOLS", "CALLS", "ERR%", "P50", "P99", "RESTARTS", "MEM", "NOTE",
    ];
    let rows: Vec<_> = status.servers.iter().map(server_row).collect();
    let broken = status.broken.iter().map(broken_row);
    let rows: Vec<_> = rows.into_iter().chain(broken).collect();
    lines.push(format_table(head, &rows));
    lines.join("\n")
}

/// Warns about tokens close to expiry.
fn expiring_tokens_line(tokens: u64) -> Option<String> {
    let verb = match tokens {
        0 => return None,
        1 => "ends",
        _ => "end",
    };
    let tokens = format_count(tokens, "token");
    let text = format!("{tokens} {verb} within 7 days · see: bowline token ls");
    Some(text.yellow().to_string())
}

/// Describes a failing journal.
fn journal_line(journal: &JournalStatus) -> Option<String> {
    let text = match &*journal.health {
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
    Some(clean::escape_line(&text).red().to_string())
}

/// Names lanes stopped by damage, and the command to resume.
fn stopped_lane_lines(journal: &JournalStatus) -> Vec<String> {
    let lanes = journal.stopped_lanes.iter().take(STOPPED_SHOWN_MAX);
    let mut lines: Vec<_> = lanes
        .map(|StoppedLaneEntry { lane, reason }| {
            format!("{lane} is stopped: {reason} · see: bowline outbox ls, bowline outbox drop")
        })
        .collect();
    let more = journal.stopped.saturating_sub(lines.len() as u64);
    if more > 0 {
        lines.push(format!(
            "{} more stopped likewise",
            format_count(more, "lane")
        ));
    }
    let lines = lines.iter();
    lines
        .map(|line| clean::escape_line(line).red().to_string())
        .collect()
}

/// Summarizes the outbox, unless empty.
fn outbox_line(outbox: &OutboxCounts) -> Option<String> {
    let OutboxCounts { queued, dead, .. } = outbox;
    if queued + dead == 0 {
        return None;
    }
    let oldest = outbox.oldest_age_ms.filter(|_| *queued > 0);
    let oldest = oldest.map(|age| format!(" · the oldest for {}", format_duration(age)));
    let text = format!(
        "outbox {queued} queued, {dead} dead{} · see: bowline outbox ls",
        oldest.unwrap_or_default()
    );
    Some(match dead {
        0 => text,
        _ => text.yellow().to_string(),
    })
}

/// Summarizes connected peers, if any.
fn broker_line(broker: &BrokerCounts) -> Option<String> {
    let BrokerCounts { peers, offered } = broker;
    if *peers == 0 {
        return None;
    }
    let offers = match offered {
        0 => String::new(),
        offered => format!(", {} of theirs", format_count(*offered, "server")),
    };
    let workers = format_count(*peers, "worker");
    Some(format!(
        "{workers} connected{offers} · see: bowline worker ls"
    ))
}

/// Summarizes known executors, if any.
fn executors_line(executors: &ExecutorCounts) -> Option<String> {
    let ExecutorCounts { known, connected } = executors;
    let away = known.saturating_sub(*connected);
    let text = match (known, away) {
        (0, _) => return None,
        (_, 0) => format!("{} connected", format_count(*connected, "executor")),
        _ => format!(
            "{} connected, {away} away",
            format_count(*connected, "executor")
        ),
    };
    let text = format!("{text} · see: bowline executor ls");
    Some(match away {
        0 => text,
        _ => text.yellow().to_string(),
    })
}

fn server_row(server: &ServerStatus) -> [String; 10] {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let share = (server.calls > 0).then(|| format_percent(server.error_rate));
    [
        server.name.to_string(),
        state_with_symbol(server),
        server.tools.to_string(),
        server.calls.to_string(),
        or_dash(share),
        or_dash(server.p50_us.map(format_micros)),
        or_dash(server.p99_us.map(format_micros)),
        server.restart_count.to_string(),
        or_dash(server.memory_bytes.map(format_size)),
        server_note(server),
    ]
}

fn broken_row(broken: &BrokenServer) -> [String; 10] {
    let mut row = [(); 10].map(|()| "-".to_owned());
    let [name, state, .., note] = &mut row;
    *name = broken.name.to_string();
    "✗ broken".clone_into(state);
    *note = format!("{} · see: bowline check", broken.reason);
    row
}

/// Formats the state with a symbol; the word alone is sufficient.
fn state_with_symbol(server: &ServerStatus) -> String {
    let symbol = match &*server.state {
        "ready" => "●",
        "starting" | "draining" | "probing" => "◐",
        "ejected" | "backoff" => "✗",
        _ => "○",
    };
    format!("{symbol} {}", server.state)
}

/// Describes the protocol era, if known.
fn era_words(server: &ServerStatus) -> Option<&'static str> {
    match &*server.era {
        "modern" => Some("modern (2026-07-28, without sessions)"),
        "legacy" => Some("legacy (with a handshake)"),
        _ => None,
    }
}

fn server_note(server: &ServerStatus) -> String {
    let mut notes = Vec::new();
    // Legacy is the norm and not noted.
    notes.extend((server.era == "modern").then(|| server.era.to_string()));
    notes.extend(breaker_note(server));
    // The default sandbox is not noted.
    let level = server.sandbox.as_ref().map(|sandbox| &sandbox.level);
    let unusual = level.filter(|level| **level != *"default");
    notes.extend(unusual.map(|level| format!("sandbox {level}")));
    if server.state == "backoff"
        && let Some(wait) = server.retry_after_ms
    {
        notes.push(format!("next try in {}", format_duration(wait)));
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
        notes.push(format_count(server.own_links as u64, "own link"));
    }
    if let Some(reason) = &server.isolated_because {
        notes.push(format!("not shared: {reason}"));
    }
    notes.extend(api_types::describe_omitted(server));
    notes.extend(pins_note(server));
    if server.is_degraded() {
        notes.extend(last_error_note(server));
    }
    notes.extend(help_command(server));
    notes.join(" · ")
}

/// Returns the sandbox features missing from the kernel.
fn sandbox_lacks(server: &ServerStatus) -> Option<&str> {
    server.sandbox.as_ref()?.lacks.as_deref()
}

/// Describes the circuit breaker unless closed.
fn breaker_note(server: &ServerStatus) -> Option<String> {
    let failures = format_count(server.consecutive_failures.into(), "failure");
    match (&*server.circuit, server.retry_after_ms) {
        ("open", Some(wait)) => Some(format!(
            "breaker: {failures}, probe in {}",
            format_duration(wait)
        )),
        ("open", None) => Some(format!("breaker: {failures}")),
        ("half_open", _) => Some(format!("breaker: {failures}, the next call is a probe")),
        _ => None,
    }
}

/// Describes unapproved definitions, if any.
fn pins_note(server: &ServerStatus) -> Option<String> {
    let name = &server.name;
    if let Some(error) = &server.pins.error {
        return Some(format!("{error}; see: bowline pin ls {name}"));
    }
    let mut parts = Vec::new();
    if server.pins.changed > 0 {
        parts.push(format!(
            "{} changed",
            format_count(server.pins.changed as u64, "definition")
        ));
    }
    if server.pins.quarantined > 0 {
        parts.push(format!(
            "{} odd",
            format_count(server.pins.quarantined as u64, "definition")
        ));
    }
    let waiting = parts.join(", ");
    (!parts.is_empty()).then(|| format!("{waiting}; see: bowline pin diff {name}"))
}

/// Formats the last error with age.
fn last_error_note(server: &ServerStatus) -> Option<String> {
    let error = server.last_error.as_ref()?;
    let age = format_duration(error.age_ms);
    Some(format!("{}: {} ({age} ago)", error.class, error.message))
}

/// Returns a helpful command.
pub(super) fn help_command(server: &ServerStatus) -> Option<String> {
    let name = &server.name;
    match &*server.state {
        "stopped" => Some(format!("run: bowline start {name}")),
        _ if server.ejected => Some(format!(
            "see: bowline logs {name}, then bowline restart {name}"
        )),
        _ if server.is_degraded() => Some(format!("see: bowline logs {name}")),
        _ => None,
    }
}
