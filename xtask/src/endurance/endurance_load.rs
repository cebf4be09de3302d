//! Load of an endurance run: callers at a steady rate, each with a separate session.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{PIPE, WEB};
use crate::{blocking_client::BlockingClient, call_pacer::CallPacer, process};

/// All callers: five of eight call the child process, two read over HTTP, one writes. The fixture's
/// ledger holds 100,000 writes, and half an hour at 300 calls a second must stay below.
const CALLERS: u32 = 32;

/// Size of each writer's range of numbers.
pub(super) const NUMBERS_PER_WRITER: u64 = 1_000_000;

/// Wrong responses kept for the report.
const WRONG_MAX: usize = 5;

/// Kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EnduranceCallKind {
    Process,
    Read,
    Write,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EnduranceOutcome {
    Live,
    Queued,
    /// Rejected with this code before execution.
    NotStarted(String),
    /// Failed with this code; may have run.
    Unknown(String),
}

/// A call without a live response.
#[derive(Clone, Debug)]
pub(super) struct EnduranceFailure {
    pub(super) kind: EnduranceCallKind,
    pub(super) outcome: EnduranceOutcome,
    pub(super) failed_at: Instant,
}

/// Results of all callers.
#[derive(Debug, Default)]
pub(super) struct CallTotals {
    pub(super) outcomes: BTreeMap<(EnduranceCallKind, EnduranceOutcome), u64>,
    pub(super) failures: Vec<EnduranceFailure>,
    /// Outcome of each write by number.
    pub(super) writes: BTreeMap<u64, EnduranceOutcome>,
    /// Examples of responses that do not match their request, and their number.
    pub(super) wrong: Vec<String>,
    pub(super) wrong_count: u64,
    pub(super) late_calls: u64,
}

impl CallTotals {
    fn merge(&mut self, other: Self) {
        for (key, count) in other.outcomes {
            *self.outcomes.entry(key).or_default() += count;
        }
        self.failures.extend(other.failures);
        self.writes.extend(other.writes);
        self.wrong.extend(other.wrong);
        self.wrong.truncate(WRONG_MAX);
        self.wrong_count += other.wrong_count;
        self.late_calls += other.late_calls;
    }

    fn add_wrong(&mut self, what: String) {
        self.wrong_count += 1;
        if self.wrong.len() < WRONG_MAX {
            self.wrong.push(what);
        }
    }
}

/// Callers of one gateway.
#[derive(Debug)]
pub(super) struct EnduranceLoad {
    address: SocketAddr,
    token: String,
    calls_per_second: u32,
}

impl EnduranceLoad {
    pub(super) fn new(address: SocketAddr, token: &str, calls_per_second: u32) -> Self {
        Self {
            address,
            token: token.to_owned(),
            calls_per_second,
        }
    }

    /// Calls until the end and returns the totals.
    pub(super) fn run(&self, end: Instant) -> Result<CallTotals> {
        let every = Duration::from_secs(1) * CALLERS / self.calls_per_second;
        thread::scope(|scope| {
            let callers = (0..CALLERS).map(|nth| {
                let pace = CallPacer::new(every, nth, CALLERS, end);
                scope.spawn(move || self.call_until_end(nth, pace))
            });
            let callers: Vec<_> = callers.collect();
            let mut all = CallTotals::default();
            for caller in callers {
                all.merge(caller.join().ok().context("a caller panicked")??);
            }
            Ok(all)
        })
    }

    fn call_until_end(&self, nth: u32, mut pace: CallPacer) -> Result<CallTotals> {
        let kind = match nth % 8 {
            0..=4 => EnduranceCallKind::Process,
            5 | 6 => EnduranceCallKind::Read,
            _ => EnduranceCallKind::Write,
        };
        let mut client = BlockingClient::open_session(self.address, &self.token)?;
        let mut calls = CallTotals::default();
        let mut number = u64::from(nth) * NUMBERS_PER_WRITER;
        while pace.wait_next() {
            number += 1;
            let (tool, arguments) = build_call(kind, number);
            let answer = client.call_tool(&tool, &arguments)?;
            let Some(answer) = classify_response(kind, number, &answer) else {
                calls.add_wrong(answer.to_string().chars().take(300).collect());
                continue;
            };
            if kind == EnduranceCallKind::Write {
                calls.writes.insert(number, answer.clone());
            }
            if answer != EnduranceOutcome::Live {
                calls.failures.push(EnduranceFailure {
                    kind,
                    outcome: answer.clone(),
                    failed_at: process::now(),
                });
            }
            *calls.outcomes.entry((kind, answer)).or_default() += 1;
        }
        calls.late_calls = pace.late_calls;
        client.close_session()?;
        Ok(calls)
    }
}

fn build_call(kind: EnduranceCallKind, number: u64) -> (String, Value) {
    let message = json!({"message": number.to_string()});
    match kind {
        EnduranceCallKind::Process => (format!("{PIPE}__echo"), message),
        EnduranceCallKind::Read => (format!("{WEB}__echo"), message),
        EnduranceCallKind::Write => (format!("{WEB}__write_once"), json!({"number": number})),
    }
}

/// Returns how a call ended; `None` if the response does not belong to this call.
fn classify_response(
    kind: EnduranceCallKind,
    number: u64,
    answer: &Value,
) -> Option<EnduranceOutcome> {
    if let Some(data) = answer.pointer("/error/data") {
        let word = |key: &str| data.get(key).and_then(Value::as_str);
        let code = word("code")?.to_owned();
        return match word("execution")? {
            "not_started" => Some(EnduranceOutcome::NotStarted(code)),
            "unknown" => Some(EnduranceOutcome::Unknown(code)),
            _ => None,
        };
    }
    let result = answer.get("result")?;
    if kind == EnduranceCallKind::Write {
        let content = result.get("structuredContent")?;
        if content.get("queued") == Some(&json!(true)) {
            return Some(EnduranceOutcome::Queued);
        }
        return (content.get("number") == Some(&json!(number))).then_some(EnduranceOutcome::Live);
    }
    let text = result.pointer("/content/0/text")?.as_str()?;
    (text == number.to_string()).then_some(EnduranceOutcome::Live)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_to_other_call_is_wrong() {
        let echo = |text: &str| json!({"result": {"content": [{"text": text}]}});
        assert_eq!(
            classify_response(EnduranceCallKind::Read, 7, &echo("7")),
            Some(EnduranceOutcome::Live)
        );
        assert_eq!(
            classify_response(EnduranceCallKind::Read, 7, &echo("8")),
            None
        );
        let written = json!({"result": {"structuredContent": {"number": 7}}});
        assert_eq!(
            classify_response(EnduranceCallKind::Write, 7, &written),
            Some(EnduranceOutcome::Live)
        );
        assert_eq!(
            classify_response(EnduranceCallKind::Write, 8, &written),
            None
        );
        let queued = json!({"result": {"structuredContent": {"queued": true}}});
        assert_eq!(
            classify_response(EnduranceCallKind::Write, 8, &queued),
            Some(EnduranceOutcome::Queued)
        );
        let refused = json!({"error": {"data": {"execution": "not_started", "code": "x"}}});
        let not_started = EnduranceOutcome::NotStarted("x".to_owned());
        assert_eq!(
            classify_response(EnduranceCallKind::Read, 1, &refused),
            Some(not_started)
        );
    }
}
