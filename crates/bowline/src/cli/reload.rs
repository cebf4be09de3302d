//! `reload`: brings the config file into force, or has one server start anew once its calls ended.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

use super::client::Client;
use super::failure::{Exit, Failure};
use super::out::Format;
use super::power::{self, Turn};
use super::{Context, clean};

/// The file may be long, and what it refers to slow to read.
const RELOAD: Duration = Duration::from_secs(60);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Answer {
    lines: Vec<String>,
    broken: Vec<Broken>,
    warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Broken {
    name: String,
    reason: String,
}

pub(super) fn run(server: Option<&str>, context: &mut Context) -> Result<Exit, Failure> {
    match server {
        Some(server) => power::run(server, Turn::Reload, context),
        None => file(context),
    }
}

fn file(context: &mut Context) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let body = client
        .post("/api/v1/reload", Bytes::new(), RELOAD)
        .map_err(framed)?;
    if context.out.format() == Format::Json {
        context.out.raw(&body)?;
        return Ok(Exit::Ok);
    }
    let answer: Answer = super::api::read(&body)?;
    for warning in &answer.warnings {
        context.out.warning(&clean::line(warning));
    }
    for broken in &answer.broken {
        let line = format!("server `{}` is left out: {}", broken.name, broken.reason);
        context.out.warning(&clean::line(&line));
    }
    for line in &answer.lines {
        context.out.line(&clean::line(line))?;
    }
    Ok(Exit::Ok)
}

/// People read the lines of the file that are at fault, as `check` shows them.
fn framed(mut failure: Failure) -> Failure {
    let report = failure.details.get("report");
    if let Some(report) = report.and_then(|report| report.as_str()) {
        failure.report = Some(clean::text(report).into());
    }
    failure
}
