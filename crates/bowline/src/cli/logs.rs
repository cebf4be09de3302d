//! `logs`: what servers wrote to stderr, so far or as it comes.

use std::time::Duration;

use owo_colors::OwoColorize as _;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::client::{Client, QUICK, encode};
use super::failure::{Exit, Failure};
use super::out::{Format, Out};
use super::{Context, api, clean, power};

/// Longest the gateway holds a question for lines that are not there yet.
const WAIT_MS: u64 = 25_000;

/// How far to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    SoFar,
    Follow,
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(borrow)]
    lines: Vec<&'a RawValue>,
    next: u64,
}

#[derive(Deserialize)]
struct Line {
    server: String,
    text: String,
}

pub(super) fn run(
    server: Option<&str>,
    reach: Reach,
    lines: u32,
    context: &mut Context,
) -> Result<Exit, Failure> {
    let client = Client::new(context)?;
    let only = server
        .map(|name| format!("server={}&", encode(name)))
        .unwrap_or_default();
    let path = format!("/api/v1/logs?{only}limit={lines}");
    let named = |failure| match server {
        Some(name) => power::named(&client, name, failure),
        None => failure,
    };
    let body = client.get(&path, QUICK).map_err(named)?;
    if reach == Reach::SoFar && context.out.format() == Format::Json {
        context.out.raw(&body)?;
        return Ok(Exit::Ok);
    }
    let mut next = show(&body, &mut context.out)?;
    if reach == Reach::SoFar {
        return Ok(Exit::Ok);
    }
    // Ends when the gateway does, or when nobody reads what is written.
    loop {
        let path = format!("/api/v1/logs?{only}after={next}&limit=1000&wait_ms={WAIT_MS}");
        let body = client.get(&path, QUICK + Duration::from_millis(WAIT_MS))?;
        next = show(&body, &mut context.out)?;
    }
}

fn show(body: &[u8], out: &mut Out) -> Result<u64, Failure> {
    let page: Page<'_> = api::read(body)?;
    for raw in page.lines {
        match out.format() {
            Format::Json => out.raw(raw.get().as_bytes())?,
            Format::Human => {
                let line: Line = api::read(raw.get().as_bytes())?;
                let name = clean::line(&line.server).into_owned();
                out.line(&format!("{} | {}", name.cyan(), clean::line(&line.text)))?;
            }
        }
    }
    Ok(page.next)
}
