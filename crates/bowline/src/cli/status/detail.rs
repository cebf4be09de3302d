//! One server: everything that is known of it.

use super::super::api::{self, OneServer, Server};
use super::super::clean;
use super::super::client::{Client, QUICK, encode};
use super::super::failure::{Exit, Failure};
use super::super::out::{Format, Out};
use super::super::power;
use super::super::table::{count, duration, micros, percent, size};
use super::{breaker, era, help, last_error, marked, pins};

pub(super) fn run(client: &Client, server: &str, out: &mut Out) -> Result<Exit, Failure> {
    let path = format!("/api/v1/servers/{}", encode(server));
    let body = client
        .get(&path, QUICK)
        .map_err(|failure| power::named(client, server, failure))?;
    match out.format() {
        Format::Json => out.raw(&body)?,
        Format::Human => {
            for line in lines(&api::read::<OneServer>(&body)?.server) {
                out.line(&clean::line(&line))?;
            }
        }
    }
    Ok(Exit::Ok)
}

fn lines(server: &Server) -> Vec<String> {
    let mut head = vec![server.name.clone(), marked(server)];
    head.push(format!("start {}", server.generation));
    head.extend(server.pid.map(|pid| format!("pid {pid}")));
    head.extend(server.uptime_ms.map(|up| format!("up {}", duration(up))));
    let mut lines = vec![head.join(" · ")];
    let mut say = |name: &str, text: String| lines.push(format!("  {name:<10}  {text}"));
    say("reached by", server.command.clone());
    if let Some(era) = era(server) {
        say("speaks", era.to_owned());
    }
    say("tools", tools(server));
    if let Some(pins) = pins(server) {
        say("pins", pins);
    }
    say("calls", calls(server));
    say("cache", cache(server));
    if server.processes.is_some() {
        say("uses", uses(server));
    }
    let limits = &server.limits;
    say(
        "restarts",
        format!(
            "{} of {} in {}",
            server.restart_count,
            limits.restarts_max,
            duration(limits.restart_window_ms)
        ),
    );
    say(
        "breaker",
        breaker(server).unwrap_or_else(|| server.circuit.clone()),
    );
    say("limits", held_to(server));
    if let Some(left_out) = server.left_out() {
        say("left out", left_out);
    }
    if let Some(secrets) = secrets(server) {
        say("secrets", secrets);
    }
    if let Some(sandbox) = &server.sandbox {
        let lacks = sandbox.lacks.as_ref();
        let lacks = lacks.map_or_else(String::new, |lacks| format!(", but {lacks}"));
        say("sandbox", format!("{}{lacks}", sandbox.level));
    }
    if let Some(wait) = server.retry_after_ms.filter(|_| server.state == "backoff") {
        say("next try", format!("in {}", duration(wait)));
    }
    if let Some(why) = &server.isolated_because {
        say("not shared", why.clone());
    }
    if let Some(error) = last_error(server) {
        say("last error", error);
    }
    if let Some(help) = help(server) {
        say("help", help);
    }
    lines
}

/// What the config allows that shows secrets to others.
fn secrets(server: &Server) -> Option<String> {
    let mut parts = Vec::new();
    if server.argv_secrets {
        parts.push("may stand in its arguments (argv_secrets)");
    }
    if server.redact_results == Some(false) {
        parts.push("stay in its results (redact_results = false)");
    }
    (!parts.is_empty()).then(|| parts.join(" · "))
}

fn tools(server: &Server) -> String {
    let known = match server.manifest.as_str() {
        "last_known" => " (as it offered them when it last served)",
        "none" => " (not known yet)",
        _ => "",
    };
    format!("{}{known}", server.tools)
}

fn calls(server: &Server) -> String {
    let mut parts = vec![
        format!("{} ended", server.calls),
        count(server.errors, "error"),
    ];
    parts.extend((server.calls > 0).then(|| format!("{} % of late", percent(server.error_rate))));
    parts.extend(server.p50_us.map(|us| format!("p50 {}", micros(us))));
    parts.extend(server.p99_us.map(|us| format!("p99 {}", micros(us))));
    parts.push(format!("{} in flight", server.in_flight));
    parts.push(format!("{} waiting", server.queued));
    parts.push(format!("{} turned away", server.sheds));
    parts.join(" · ")
}

fn cache(server: &Server) -> String {
    let mut parts = vec![
        format!("{} kept", count(server.cache_entries, "answer")),
        size(server.cache_bytes),
        count(server.cache_hits, "hit"),
        format!("{} missed", server.cache_misses),
    ];
    let evicted = server.cache_evictions;
    parts.extend((evicted > 0).then(|| format!("{evicted} made room")));
    parts.join(" · ")
}

fn uses(server: &Server) -> String {
    let memory = server.memory_bytes.map_or_else(String::new, size);
    let processes = server.processes.unwrap_or_default();
    let one = if processes == 1 {
        "process"
    } else {
        "processes"
    };
    format!("{memory} in {processes} {one}")
}

fn held_to(server: &Server) -> String {
    let limits = &server.limits;
    let mut parts = vec![
        format!("{} at once", count(limits.calls_max, "call")),
        format!("{} more may wait", limits.queue_max),
        format!("{} each", duration(limits.call_timeout_ms)),
        format!("start within {}", duration(limits.start_timeout_ms)),
    ];
    parts.extend(
        limits
            .memory_bytes_max
            .map(|most| format!("memory {}", size(most))),
    );
    parts.extend(limits.processes_max.map(|most| format!("{most} processes")));
    parts.extend(
        limits
            .file_bytes_max
            .map(|most| format!("files of {}", size(most))),
    );
    parts.extend(
        limits
            .open_files_max
            .map(|most| format!("{most} open files")),
    );
    parts.join(" · ")
}
