//! Callers at a steady rate: of healthy servers always, of faulty ones when disturbed.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::gateway::{EVERYTHING, FAULTY, Gateway};
use crate::client::Client;
use crate::pace::Pace;
use crate::process;

/// Sessions that call healthy servers.
const CALLERS: u32 = 16;

/// Sessions that call each faulty server: enough for calls that take their whole second.
const FAULTY_CALLERS: u32 = 8;

/// Of a hundred calls, those that go to healthy servers.
const HEALTHY_PERCENT: u32 = 80;

/// Calls of a faulty server after which it is asked the same again.
const TURNS: u32 = 128;

/// Wrong answers that are kept for the report.
const WRONG_MAX: usize = 5;

/// The load of one run.
#[derive(Debug)]
pub(super) struct Load<'a> {
    gateway: &'a Gateway,
    calls_per_second: u32,
}

/// What callers saw.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Of right answers of healthy servers.
    pub(super) latencies_us: Vec<u64>,
    /// Wrong answers of healthy servers.
    pub(super) errors: u64,
    /// Some of them.
    pub(super) wrong: Vec<String>,
    /// How calls of faulty servers ended, by server and class.
    pub(super) faulty: BTreeMap<String, u64>,
    /// Processes that were killed.
    pub(super) kills: u64,
    /// Calls that began late because the one before took too long.
    pub(super) late: u64,
}

impl Outcome {
    pub(super) fn plus(&mut self, other: Self) {
        self.latencies_us.extend(other.latencies_us);
        self.errors += other.errors;
        self.wrong.extend(other.wrong);
        self.wrong.truncate(WRONG_MAX);
        for (end, count) in other.faulty {
            *self.faulty.entry(end).or_default() += count;
        }
        self.kills += other.kills;
        self.late += other.late;
    }

    fn wrong(&mut self, what: String) {
        self.errors += 1;
        if self.wrong.len() < WRONG_MAX {
            self.wrong.push(what);
        }
    }
}

impl<'a> Load<'a> {
    pub(super) const fn new(gateway: &'a Gateway, calls_per_second: u32) -> Self {
        Self {
            gateway,
            calls_per_second,
        }
    }

    /// Calls for as long as told; with so many crashes a minute, or undisturbed.
    pub(super) fn run(&self, time: Duration, crashes: Option<u32>) -> Result<Outcome> {
        let healthy = self.calls_per_second * HEALTHY_PERCENT / 100;
        let faulty = self.calls_per_second - healthy;
        let end = process::now() + time;
        let pace = |rate: u32, callers: u32| Duration::from_secs(1) * callers / rate.max(1);
        thread::scope(|scope| {
            let mut running = Vec::new();
            for nth in 0..CALLERS {
                let pace = Pace::new(pace(healthy, CALLERS), nth, CALLERS, end);
                running.push(scope.spawn(move || self.healthy(nth, pace)));
            }
            if let Some(crashes) = crashes {
                let callers = FAULTY_CALLERS * u32::try_from(FAULTY.len())?;
                for nth in 0..callers {
                    let (server, _) = FAULTY
                        .into_iter()
                        .cycle()
                        .nth(nth as usize)
                        .context("no server")?;
                    let pace = Pace::new(pace(faulty, callers), nth, callers, end);
                    running.push(scope.spawn(move || self.faulty(server, nth, pace)));
                }
                running.push(scope.spawn(move || self.crashes(crashes, end)));
            }
            let mut all = Outcome::default();
            for one in running {
                all.plus(one.join().ok().context("a caller panicked")??);
            }
            Ok(all)
        })
    }

    /// Calls healthy servers in turn; every answer must be the right one.
    fn healthy(&self, nth: u32, mut pace: Pace) -> Result<Outcome> {
        let mut client = Client::open(self.gateway.address, &self.gateway.token)?;
        let mut seen = Outcome::default();
        let servers = self.gateway.healthy();
        let mut turn = nth as usize;
        while pace.next() {
            let server = servers
                .get(turn % servers.len())
                .copied()
                .unwrap_or_default();
            turn += 1;
            let said = format!("{server} {nth} {turn}");
            let start = process::now();
            let answer = client.call(&format!("{server}__echo"), &json!({"message": said}));
            let took = start.elapsed();
            let expected = match server {
                EVERYTHING => format!("Echo: {said}"),
                _ => said,
            };
            match answer {
                Ok(answer) if text(&answer) == Some(expected.as_str()) => {
                    seen.latencies_us
                        .push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                }
                Ok(answer) => seen.wrong(format!("{server}: {answer}")),
                Err(error) => {
                    seen.wrong(format!("{server}: {error:#}"));
                    client = Client::open(self.gateway.address, &self.gateway.token)?;
                }
            }
        }
        seen.late = pace.late;
        client.close()?;
        Ok(seen)
    }

    /// Calls one faulty server; any end is fine, but each call must have one.
    fn faulty(&self, server: &'static str, nth: u32, mut pace: Pace) -> Result<Outcome> {
        let mut client = Client::open(self.gateway.address, &self.gateway.token)?;
        let mut seen = Outcome::default();
        // Callers of one server are not all at the same turn.
        let mut turn = nth * TURNS / FAULTY_CALLERS;
        while pace.next() {
            turn += 1;
            let (tool, arguments) = deed(server, turn);
            let end = match client.call(&format!("{server}__{tool}"), &arguments) {
                Ok(answer) => ending(&answer),
                Err(error) => {
                    client = Client::open(self.gateway.address, &self.gateway.token)?;
                    format!("no answer: {error:#}")
                }
            };
            *seen.faulty.entry(format!("{server} {end}")).or_default() += 1;
        }
        client.close()?;
        Ok(seen)
    }

    /// Kills the faulty servers' processes in turn.
    fn crashes(&self, per_minute: u32, end: Instant) -> Result<Outcome> {
        let mut seen = Outcome::default();
        let every = Duration::from_secs(60) / per_minute.max(1);
        let mut pace = Pace::new(every, 1, 2, end);
        let mut turn = FAULTY.into_iter().cycle();
        while pace.next() {
            // One that is down just now cannot be killed: the next one is.
            for _ in 0..FAULTY.len() {
                let (server, _) = turn.next().context("no server")?;
                if self.gateway.crash(server)? {
                    seen.kills += 1;
                    break;
                }
            }
        }
        Ok(seen)
    }
}

/// What a faulty server is asked to do.
fn deed(server: &str, turn: u32) -> (&'static str, Value) {
    let slow = |ms: u32| ("slow", json!({"ms": ms, "message": "x"}));
    match (server, turn % TURNS) {
        // Longer than its second.
        ("hang", _) => slow(20_000),
        ("babble", _) if turn.is_multiple_of(4) => slow(1_500),
        ("flap", 0) => ("crash", json!({"when": "before"})),
        ("slow", _) => slow(300),
        _ => ("echo", json!({"message": "x"})),
    }
}

fn text(answer: &Value) -> Option<&str> {
    answer.pointer("/result/content/0/text")?.as_str()
}

/// How a call of a faulty server ended, in one or two words.
fn ending(answer: &Value) -> String {
    if answer.get("result").is_some() {
        return "answered".to_owned();
    }
    let word = |at: &str| answer.pointer(at).and_then(Value::as_str).unwrap_or("?");
    format!(
        "{} {}",
        word("/error/data/class"),
        word("/error/data/execution")
    )
}
