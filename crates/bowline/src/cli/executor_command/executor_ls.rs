//! `executor ls`: lists the executors of the gateway with traffic.

use std::sync::Arc;

use bowline_api::executors::{ExecutorEntry, ExecutorsResponse};

use crate::cli::api_client::{ApiClient, QUICK_TIMEOUT};
use crate::cli::api_types;
use crate::cli::failure::{CliExit, CliFailure};
use crate::cli::output::OutputFormat;
use crate::cli::table::{format_duration, format_table};
use crate::cli::{CommandContext, clean};

const EXECUTORS_PATH: &str = "/api/v1/executors";

pub(super) fn run(context: &mut CommandContext) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let out = &mut context.out;
    let body = client.get(EXECUTORS_PATH, QUICK_TIMEOUT)?;
    if out.format() == OutputFormat::Json {
        out.write_raw_json(&body)?;
        return Ok(CliExit::Ok);
    }
    let response: ExecutorsResponse = api_types::parse_response(&body)?;
    if response.executors.is_empty() {
        out.write_note("there are no executors: bowline executor join --help");
        return Ok(CliExit::Ok);
    }
    let ago = |ms: u64| format_duration(response.now_ms.saturating_sub(ms));
    let rows: Vec<_> = response
        .executors
        .iter()
        .map(|executor| executor_row(executor, &ago))
        .collect();
    let head = [
        "EXECUTOR", "STATE", "SINCE", "PEER", "STREAMS", "USED BY", "SERVERS", "SECRETS",
    ];
    out.write_line(&format_table(head, &rows))?;
    for executor in &response.executors {
        if let Some(lost) = executor.lost.as_ref().filter(|_| !executor.connected) {
            out.write_note(&format!(
                "{}: {}",
                clean::escape_line(&executor.name),
                clean::escape_line(lost)
            ));
        }
    }
    Ok(CliExit::Ok)
}

fn executor_row(executor: &ExecutorEntry, ago: &impl Fn(u64) -> String) -> [String; 8] {
    let some = |texts: &[Arc<str>]| match texts {
        [] => "-".to_owned(),
        texts => texts.join(", "),
    };
    let none = || "-".to_owned();
    let direction = executor.via.as_deref().unwrap_or_default();
    let state = match (executor.connected, &*executor.protocol) {
        (false, _) => "away".to_owned(),
        (true, "" | "bowline") => direction.to_owned(),
        (true, protocol) => format!("{direction} ({protocol})"),
    };
    [
        executor.name.to_string(),
        state,
        executor.since_ms.map_or_else(none, ago),
        executor.peer.as_deref().map_or_else(none, str::to_owned),
        executor.streams.to_string(),
        some(&executor.used_by),
        some(&executor.servers),
        some(&executor.secrets),
    ]
    .map(|cell| clean::escape_line(&cell).into_owned())
}
