//! The load of an endurance run: callers at a steady rate, each with a session of its own.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{PIPE, WEB};
use crate::{client::Client, pace::Pace, process};

/// Callers in all: five of eight call the process, two read over HTTP, one writes. The fixture's
/// ledger holds 100,000 writes, so half an hour at 300 calls a second must stay below that.
const CALLERS: u32 = 32;

/// Numbers of one writer begin at its number times this.
pub(super) const NUMBERS: u64 = 1_000_000;

/// Wrong answers that are kept for the report.
const WRONG_MAX: usize = 5;

/// What a caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Process,
    Read,
    Write,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
    Live,
    Queued,
    /// Refused with this code before it ran.
    NotStarted(String),
    /// Failed with this code, and may have run.
    Unknown(String),
}

/// A call that was not answered by its server.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    pub(super) answer: Answer,
    pub(super) at: Instant,
}

/// What all callers saw.
#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) answers: BTreeMap<(Kind, Answer), u64>,
    pub(super) failures: Vec<Failure>,
    /// Each write by number, and what its caller was told.
    pub(super) writes: BTreeMap<u64, Answer>,
    /// Answers that are not those that were asked for, and how many.
    pub(super) wrong: Vec<String>,
    pub(super) wrong_count: u64,
    pub(super) late: u64,
}

impl Calls {
    fn merge(&mut self, other: Self) {
        for (key, count) in other.answers {
            *self.answers.entry(key).or_default() += count;
        }
        self.failures.extend(other.failures);
        self.writes.extend(other.writes);
        self.wrong.extend(other.wrong);
        self.wrong.truncate(WRONG_MAX);
        self.wrong_count += other.wrong_count;
        self.late += other.late;
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
pub(super) struct Load {
    address: SocketAddr,
    token: String,
    calls_per_second: u32,
}

impl Load {
    pub(super) fn new(address: SocketAddr, token: &str, calls_per_second: u32) -> Self {
        Self {
            address,
            token: token.to_owned(),
            calls_per_second,
        }
    }

    /// Calls until the end, and returns what was seen.
    pub(super) fn run(&self, end: Instant) -> Result<Calls> {
        let every = Duration::from_secs(1) * CALLERS / self.calls_per_second;
        thread::scope(|scope| {
            let callers = (0..CALLERS).map(|nth| {
                let pace = Pace::new(every, nth, CALLERS, end);
                scope.spawn(move || self.call_until_end(nth, pace))
            });
            let callers: Vec<_> = callers.collect();
            let mut all = Calls::default();
            for caller in callers {
                all.merge(caller.join().ok().context("a caller panicked")??);
            }
            Ok(all)
        })
    }

    fn call_until_end(&self, nth: u32, mut pace: Pace) -> Result<Calls> {
        let kind = match nth % 8 {
            0..=4 => Kind::Process,
            5 | 6 => Kind::Read,
            _ => Kind::Write,
        };
        let mut client = Client::open(self.address, &self.token)?;
        let mut calls = Calls::default();
        let mut number = u64::from(nth) * NUMBERS;
        while pace.next() {
            number += 1;
            let (tool, arguments) = request(kind, number);
            let answer = client.call(&tool, &arguments)?;
            let Some(answer) = classify(kind, number, &answer) else {
                calls.add_wrong(answer.to_string().chars().take(300).collect());
                continue;
            };
            if kind == Kind::Write {
                calls.writes.insert(number, answer.clone());
            }
            if answer != Answer::Live {
                calls.failures.push(Failure {
                    kind,
                    answer: answer.clone(),
                    at: process::now(),
                });
            }
            *calls.answers.entry((kind, answer)).or_default() += 1;
        }
        calls.late = pace.late;
        client.close()?;
        Ok(calls)
    }
}

fn request(kind: Kind, number: u64) -> (String, Value) {
    let message = json!({"message": number.to_string()});
    match kind {
        Kind::Process => (format!("{PIPE}__echo"), message),
        Kind::Read => (format!("{WEB}__echo"), message),
        Kind::Write => (format!("{WEB}__write_once"), json!({"number": number})),
    }
}

/// Returns how a call ended; `None` where the answer is not one to this call.
fn classify(kind: Kind, number: u64, answer: &Value) -> Option<Answer> {
    if let Some(data) = answer.pointer("/error/data") {
        let word = |key: &str| data.get(key).and_then(Value::as_str);
        let code = word("code")?.to_owned();
        return match word("execution")? {
            "not_started" => Some(Answer::NotStarted(code)),
            "unknown" => Some(Answer::Unknown(code)),
            _ => None,
        };
    }
    let result = answer.get("result")?;
    if kind == Kind::Write {
        let content = result.get("structuredContent")?;
        if content.get("queued") == Some(&json!(true)) {
            return Some(Answer::Queued);
        }
        return (content.get("number") == Some(&json!(number))).then_some(Answer::Live);
    }
    let text = result.pointer("/content/0/text")?.as_str()?;
    (text == number.to_string()).then_some(Answer::Live)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_of_another_call_is_wrong() {
        let echo = |text: &str| json!({"result": {"content": [{"text": text}]}});
        assert_eq!(classify(Kind::Read, 7, &echo("7")), Some(Answer::Live));
        assert_eq!(classify(Kind::Read, 7, &echo("8")), None);
        let written = json!({"result": {"structuredContent": {"number": 7}}});
        assert_eq!(classify(Kind::Write, 7, &written), Some(Answer::Live));
        assert_eq!(classify(Kind::Write, 8, &written), None);
        let queued = json!({"result": {"structuredContent": {"queued": true}}});
        assert_eq!(classify(Kind::Write, 8, &queued), Some(Answer::Queued));
        let refused = json!({"error": {"data": {"execution": "not_started", "code": "x"}}});
        let not_started = Answer::NotStarted("x".to_owned());
        assert_eq!(classify(Kind::Read, 1, &refused), Some(not_started));
    }
}
