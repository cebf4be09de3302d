//! `status`: one screen that says whether all is well.

use owo_colors::OwoColorize as _;
use serde::Deserialize;

use super::api::{self, Server};
use super::client::{Client, QUICK};
use super::failure::{Exit, Failure};
use super::ls::state;
use super::out::{Format, Out};
use super::table::{count, duration, table};
use super::{Context, clean};

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
}

pub(super) fn run(context: &mut Context) -> Result<Exit, Failure> {
    let body = Client::new(context)?.get("/api/v1/status", QUICK)?;
    match context.out.format() {
        Format::Json => context.out.raw(&body)?,
        Format::Human => show(&api::read(&body)?, &mut context.out)?,
    }
    Ok(Exit::Ok)
}

fn show(status: &Status, out: &mut Out) -> std::io::Result<()> {
    let problems = status
        .servers
        .iter()
        .filter(|server| is_problem(server))
        .count() as u64;
    let verdict = match problems {
        0 => "all well".green().to_string(),
        number => count(number, "problem").red().to_string(),
    };
    let head = format!(
        "bowline {} · up {} · pid {} · {} · {}",
        status.version,
        duration(status.uptime_ms),
        status.pid,
        count(status.sessions, "session"),
        status.url,
    );
    out.line(&format!("{} · {verdict}", clean::line(&head)))?;
    if let Some(config) = &status.config {
        out.line(&format!("config {}", clean::line(config)))?;
    }
    if let Some(error) = &status.config_error {
        let text = format!("the config file is not applied: {}", clean::line(error));
        out.line(&text.red().to_string())?;
    }
    if status.insecure_no_auth {
        let text = "NO AUTHENTICATION: any local process may call tools (--insecure-no-auth)";
        out.line(&text.red().bold().to_string())?;
    }
    let rows: Vec<_> = status.servers.iter().map(row).collect();
    let head = [
        "SERVER", "STATE", "TOOLS", "CALLS", "ERR", "RESTARTS", "NOTE",
    ];
    out.line(&table(head, &rows))
}

fn is_problem(server: &Server) -> bool {
    server.ejected
        || server.state == "backoff"
        || matches!(server.circuit.as_str(), "open" | "half_open")
}

fn row(server: &Server) -> [String; 7] {
    let mark = match state(server).as_str() {
        "ready" => "●",
        "starting" | "draining" => "◐",
        "ejected" | "backoff" => "✗",
        _ => "○",
    };
    [
        server.name.clone(),
        format!("{mark} {}", state(server)),
        server.tools.to_string(),
        server.calls.to_string(),
        server.errors.to_string(),
        server.restart_count.to_string(),
        note(server),
    ]
}

fn note(server: &Server) -> String {
    let mut notes = Vec::new();
    if server.circuit == "open" || server.circuit == "half_open" {
        let failures = count(server.consecutive_failures, "failure");
        let retry = server
            .retry_after_ms
            .map(|wait| format!(", probe in {}", duration(wait)));
        notes.push(format!("breaker: {failures}{}", retry.unwrap_or_default()));
    }
    if server.in_flight > 0 {
        notes.push(format!("{} in flight", server.in_flight));
    }
    if server.own_links > 0 {
        notes.push(count(server.own_links, "own link"));
    }
    if let Some(why) = &server.isolated_because {
        notes.push(format!("not shared: {why}"));
    }
    if let (true, Some(error)) = (is_problem(server), &server.last_error) {
        let age = duration(error.age_ms);
        notes.push(format!("{}: {} ({age} ago)", error.class, error.message));
        notes.push(format!("see: bowline logs {}", server.name));
    }
    notes.join(" · ")
}
