//! `status SERVER`: all details of a server.

use bowline_api::servers::{ServerResponse, ServerStatus};

use super::super::api_client::{ApiClient, QUICK_TIMEOUT, percent_encode};
use super::super::api_types;
use super::super::clean;
use super::super::failure::{CliExit, CliFailure};
use super::super::lifecycle;
use super::super::output::{CliOutput, OutputFormat};
use super::super::table::{
    format_count, format_duration, format_micros, format_percent, format_size,
};
use super::{breaker_note, era_words, help_command, last_error_note, pins_note, state_with_symbol};

pub(super) fn run(
    client: &ApiClient,
    server: &str,
    out: &mut CliOutput,
) -> Result<CliExit, CliFailure> {
    let path = format!("/api/v1/servers/{}", percent_encode(server));
    let body = client
        .get(&path, QUICK_TIMEOUT)
        .map_err(|failure| lifecycle::with_server_suggestion(client, server, failure))?;
    match out.format() {
        OutputFormat::Json => out.write_raw_json(&body)?,
        OutputFormat::Human => {
            for line in detail_lines(&api_types::parse_response::<ServerResponse>(&body)?.server) {
                out.write_line(&clean::escape_line(&line))?;
            }
        }
    }
    Ok(CliExit::Ok)
}

fn detail_lines(server: &ServerStatus) -> Vec<String> {
    let mut head = vec![server.name.to_string(), state_with_symbol(server)];
    head.push(format!("start {}", server.generation));
    head.extend(server.pid.map(|pid| format!("pid {pid}")));
    head.extend(
        server
            .uptime_ms
            .map(|up| format!("up {}", format_duration(up))),
    );
    let mut lines = vec![head.join(" · ")];
    let mut push_line = |name: &str, text: String| lines.push(format!("  {name:<10}  {text}"));
    push_line("reached by", server.command.clone());
    if let Some(era) = era_words(server) {
        push_line("speaks", era.to_owned());
    }
    push_line("tools", tools_note(server));
    if let Some(pins) = pins_note(server) {
        push_line("pins", pins);
    }
    push_line("calls", calls_note(server));
    push_line("cache", cache_note(server));
    if server.processes.is_some() {
        push_line("uses", usage_note(server));
    }
    let limits = &server.limits;
    push_line(
        "restarts",
        format!(
            "{} of {} in {}",
            server.restart_count,
            limits.restarts_max,
            format_duration(limits.restart_window_ms)
        ),
    );
    push_line(
        "breaker",
        breaker_note(server).unwrap_or_else(|| server.circuit.to_string()),
    );
    push_line("limits", limits_note(server));
    if let Some(left_out) = api_types::describe_omitted(server) {
        push_line("left out", left_out);
    }
    if let Some(secrets) = secrets_note(server) {
        push_line("secrets", secrets);
    }
    if let Some(sandbox) = &server.sandbox {
        let lacks = sandbox.lacks.as_ref();
        let lacks = lacks.map_or_else(String::new, |lacks| format!(", but {lacks}"));
        push_line("sandbox", format!("{}{lacks}", sandbox.level));
    }
    if let Some(wait) = server.retry_after_ms.filter(|_| server.state == "backoff") {
        push_line("next try", format!("in {}", format_duration(wait)));
    }
    if let Some(reason) = &server.isolated_because {
        push_line("not shared", reason.to_string());
    }
    if let Some(error) = last_error_note(server) {
        push_line("last error", error);
    }
    if let Some(help) = help_command(server) {
        push_line("help", help);
    }
    lines
}

/// Describes settings with exposed secrets.
fn secrets_note(server: &ServerStatus) -> Option<String> {
    let mut parts = Vec::new();
    if server.argv_secrets {
        parts.push("may stand in its arguments (argv_secrets)");
    }
    if !server.redact_results {
        parts.push("stay in its results (redact_results = false)");
    }
    (!parts.is_empty()).then(|| parts.join(" · "))
}

fn tools_note(server: &ServerStatus) -> String {
    let suffix = match &*server.manifest {
        "last_known" => " (as it offered them when it last served)",
        "none" => " (not known yet)",
        _ => "",
    };
    format!("{}{suffix}", server.tools)
}

fn calls_note(server: &ServerStatus) -> String {
    let mut parts = vec![
        format!("{} ended", server.calls),
        format_count(server.errors, "error"),
    ];
    parts.extend(
        (server.calls > 0).then(|| format!("{} % of late", format_percent(server.error_rate))),
    );
    parts.extend(server.p50_us.map(|us| format!("p50 {}", format_micros(us))));
    parts.extend(server.p99_us.map(|us| format!("p99 {}", format_micros(us))));
    parts.push(format!("{} in flight", server.in_flight));
    parts.push(format!("{} waiting", server.queued));
    parts.push(format!("{} turned away", server.sheds));
    parts.join(" · ")
}

fn cache_note(server: &ServerStatus) -> String {
    let mut parts = vec![
        format!(
            "{} kept",
            format_count(server.cache.entries as u64, "answer")
        ),
        format_size(server.cache.bytes as u64),
        format_count(server.cache.hits, "hit"),
        format!("{} missed", server.cache.misses),
    ];
    let evicted = server.cache.evictions;
    parts.extend((evicted > 0).then(|| format!("{evicted} made room")));
    parts.join(" · ")
}

fn usage_note(server: &ServerStatus) -> String {
    let memory = server.memory_bytes.map_or_else(String::new, format_size);
    let processes = server.processes.unwrap_or_default();
    let noun = if processes == 1 {
        "process"
    } else {
        "processes"
    };
    format!("{memory} in {processes} {noun}")
}

fn limits_note(server: &ServerStatus) -> String {
    let limits = &server.limits;
    let mut parts = vec![
        format!("{} at once", format_count(limits.calls_max as u64, "call")),
        format!("{} more may wait", limits.queue_max),
        format!("{} each", format_duration(limits.call_timeout_ms)),
        format!("start within {}", format_duration(limits.start_timeout_ms)),
    ];
    parts.extend(
        limits
            .memory_bytes_max
            .map(|most| format!("memory {}", format_size(most))),
    );
    parts.extend(limits.processes_max.map(|most| format!("{most} processes")));
    parts.extend(
        limits
            .file_bytes_max
            .map(|most| format!("files of {}", format_size(most))),
    );
    parts.extend(
        limits
            .open_files_max
            .map(|most| format!("{most} open files")),
    );
    parts.join(" · ")
}
