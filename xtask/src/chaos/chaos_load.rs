//! Callers at a steady rate: of healthy servers always, of faulty servers in disturbed phases.

use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::chaos_gateway::{ChaosGateway, EVERYTHING_SERVER, FAULTY_SERVERS};
use crate::blocking_client::BlockingClient;
use crate::call_pacer::CallPacer;
use crate::process;

/// Sessions that call healthy servers.
const CALLERS: u32 = 16;

/// Sessions that call each faulty server: enough for calls that take the full second.
const FAULTY_CALLERS: u32 = 8;

/// Percentage of calls that go to healthy servers.
const HEALTHY_PERCENT: u32 = 80;

/// Length of the cycle of calls to a faulty server.
const TURNS_PER_CYCLE: u32 = 128;

/// Wrong responses kept for the report.
const WRONG_MAX: usize = 5;

/// The load of one phase.
#[derive(Debug)]
pub(super) struct ChaosLoad<'a> {
    gateway: &'a ChaosGateway,
    calls_per_second: u32,
}

/// Results of all callers.
#[derive(Debug, Default)]
pub(super) struct ChaosOutcome {
    /// Latencies of correct responses from healthy servers.
    pub(super) latencies_us: Vec<u64>,
    /// Number of wrong responses from healthy servers.
    pub(super) errors: u64,
    /// Examples of wrong responses.
    pub(super) wrong_responses: Vec<String>,
    /// Ends of calls to faulty servers, by server and class.
    pub(super) faulty: BTreeMap<String, u64>,
    /// Killed processes.
    pub(super) kills: u64,
    /// Calls that started late because the previous call took too long.
    pub(super) late_calls: u64,
}

impl ChaosOutcome {
    pub(super) fn merge(&mut self, other: Self) {
        self.latencies_us.extend(other.latencies_us);
        self.errors += other.errors;
        self.wrong_responses.extend(other.wrong_responses);
        self.wrong_responses.truncate(WRONG_MAX);
        for (end, count) in other.faulty {
            *self.faulty.entry(end).or_default() += count;
        }
        self.kills += other.kills;
        self.late_calls += other.late_calls;
    }

    fn add_wrong(&mut self, what: String) {
        self.errors += 1;
        if self.wrong_responses.len() < WRONG_MAX {
            self.wrong_responses.push(what);
        }
    }
}

impl<'a> ChaosLoad<'a> {
    pub(super) const fn new(gateway: &'a ChaosGateway, calls_per_second: u32) -> Self {
        Self {
            gateway,
            calls_per_second,
        }
    }

    /// Runs for `time`, with `crashes` kills per minute or undisturbed.
    pub(super) fn run(&self, time: Duration, crashes: Option<u32>) -> Result<ChaosOutcome> {
        let healthy = self.calls_per_second * HEALTHY_PERCENT / 100;
        let faulty = self.calls_per_second - healthy;
        let end = process::now() + time;
        let pace = |rate: u32, callers: u32| Duration::from_secs(1) * callers / rate.max(1);
        thread::scope(|scope| {
            let mut running = Vec::new();
            for nth in 0..CALLERS {
                let pace = CallPacer::new(pace(healthy, CALLERS), nth, CALLERS, end);
                running.push(scope.spawn(move || self.call_healthy(nth, pace)));
            }
            if let Some(crashes) = crashes {
                let callers = FAULTY_CALLERS * u32::try_from(FAULTY_SERVERS.len())?;
                for nth in 0..callers {
                    let (server, _) = FAULTY_SERVERS
                        .into_iter()
                        .cycle()
                        .nth(nth as usize)
                        .context("no server")?;
                    let pace = CallPacer::new(pace(faulty, callers), nth, callers, end);
                    running.push(scope.spawn(move || self.call_faulty(server, nth, pace)));
                }
                running.push(scope.spawn(move || self.kill_faulty(crashes, end)));
            }
            let mut all = ChaosOutcome::default();
            for one in running {
                all.merge(one.join().ok().context("a caller panicked")??);
            }
            Ok(all)
        })
    }

    /// Calls healthy servers in turn; every response must be correct.
    fn call_healthy(&self, nth: u32, mut pace: CallPacer) -> Result<ChaosOutcome> {
        let mut client = BlockingClient::open_session(self.gateway.address, &self.gateway.token)?;
        let mut outcome = ChaosOutcome::default();
        let servers = self.gateway.healthy_servers();
        let mut turn = nth as usize;
        while pace.wait_next() {
            let server = servers
                .get(turn % servers.len())
                .copied()
                .unwrap_or_default();
            turn += 1;
            let said = format!("{server} {nth} {turn}");
            let start = process::now();
            let answer = client.call_tool(&format!("{server}__echo"), &json!({"message": said}));
            let took = start.elapsed();
            let expected = match server {
                EVERYTHING_SERVER => format!("Echo: {said}"),
                _ => said,
            };
            match answer {
                Ok(answer) if response_text(&answer) == Some(expected.as_str()) => {
                    outcome
                        .latencies_us
                        .push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                }
                Ok(answer) => outcome.add_wrong(format!("{server}: {answer}")),
                Err(error) => {
                    outcome.add_wrong(format!("{server}: {error:#}"));
                    client =
                        BlockingClient::open_session(self.gateway.address, &self.gateway.token)?;
                }
            }
        }
        outcome.late_calls = pace.late_calls;
        client.close_session()?;
        Ok(outcome)
    }

    /// Calls one faulty server; any end is accepted, but each call must end.
    fn call_faulty(
        &self,
        server: &'static str,
        nth: u32,
        mut pace: CallPacer,
    ) -> Result<ChaosOutcome> {
        let mut client = BlockingClient::open_session(self.gateway.address, &self.gateway.token)?;
        let mut outcome = ChaosOutcome::default();
        // Callers of one server start at different points of the cycle.
        let mut turn = nth * TURNS_PER_CYCLE / FAULTY_CALLERS;
        while pace.wait_next() {
            turn += 1;
            let (tool, arguments) = faulty_call(server, turn);
            let end = match client.call_tool(&format!("{server}__{tool}"), &arguments) {
                Ok(response) => describe_end(&response),
                Err(error) => {
                    client =
                        BlockingClient::open_session(self.gateway.address, &self.gateway.token)?;
                    format!("no answer: {error:#}")
                }
            };
            *outcome.faulty.entry(format!("{server} {end}")).or_default() += 1;
        }
        client.close_session()?;
        Ok(outcome)
    }

    /// Kills the processes of the faulty servers in turn.
    fn kill_faulty(&self, per_minute: u32, end: Instant) -> Result<ChaosOutcome> {
        let mut outcome = ChaosOutcome::default();
        let every = Duration::from_secs(60) / per_minute.max(1);
        let mut pace = CallPacer::new(every, 1, 2, end);
        let mut turn = FAULTY_SERVERS.into_iter().cycle();
        while pace.wait_next() {
            // A stopped server cannot be killed: try the next.
            for _ in 0..FAULTY_SERVERS.len() {
                let (server, _) = turn.next().context("no server")?;
                if self.gateway.kill_faulty(server)? {
                    outcome.kills += 1;
                    break;
                }
            }
        }
        Ok(outcome)
    }
}

/// Returns tool and arguments of a call to a faulty server.
fn faulty_call(server: &str, turn: u32) -> (&'static str, Value) {
    let slow = |ms: u32| ("slow", json!({"ms": ms, "message": "x"}));
    match (server, turn % TURNS_PER_CYCLE) {
        // Longer than the timeout of one second.
        ("hang", _) => slow(20_000),
        ("babble", _) if turn.is_multiple_of(4) => slow(1_500),
        ("flap", 0) => ("crash", json!({"when": "before"})),
        ("slow", _) => slow(300),
        _ => ("echo", json!({"message": "x"})),
    }
}

fn response_text(answer: &Value) -> Option<&str> {
    answer.pointer("/result/content/0/text")?.as_str()
}

/// Describes the end of a call to a faulty server in one or two words.
fn describe_end(answer: &Value) -> String {
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
