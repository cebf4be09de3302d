//! `reload`: applies the config file, or restarts a server after the end of running calls.

use std::time::Duration;

use bowline_api::reload::ReloadResponse;
use bytes::Bytes;

use super::api_client::ApiClient;
use super::failure::{CliExit, CliFailure};
use super::lifecycle::{self, LifecycleAction};
use super::output::OutputFormat;
use super::{CommandContext, clean};

/// Timeout: the file may be long, and references slow to read.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn run(
    server: Option<&str>,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    match server {
        Some(server) => lifecycle::run(server, LifecycleAction::Reload, context),
        None => reload_config(context),
    }
}

fn reload_config(context: &mut CommandContext) -> Result<CliExit, CliFailure> {
    let client = ApiClient::new(context)?;
    let body = client
        .post("/api/v1/reload", Bytes::new(), RELOAD_TIMEOUT)
        .map_err(with_report)?;
    if context.out.format() == OutputFormat::Json {
        context.out.write_raw_json(&body)?;
        return Ok(CliExit::Ok);
    }
    let response: ReloadResponse = super::api_types::parse_response(&body)?;
    for warning in &response.warnings {
        context.out.write_warning(&clean::escape_line(warning));
    }
    for broken in &response.broken {
        let line = format!("server `{}` is left out: {}", broken.name, broken.reason);
        context.out.write_warning(&clean::escape_line(&line));
    }
    for line in &response.lines {
        context.out.write_line(&clean::escape_line(line))?;
    }
    Ok(CliExit::Ok)
}

/// Shows people the faulty lines of the file, as `check` does.
fn with_report(mut failure: CliFailure) -> CliFailure {
    let report = failure.details.get("report");
    if let Some(report) = report.and_then(|report| report.as_str()) {
        failure.report = Some(clean::escape_text(report).into());
    }
    failure
}
