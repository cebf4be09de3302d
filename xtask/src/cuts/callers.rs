//! Those who call, each with answers that are nobody else's.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    tally::{End, Ended, Kind},
    world::{PIPE, WEB},
};
use crate::{client::Client, fleet::random::Random, process};

/// No call may take longer: a session of an executor is given up after half a minute.
const PATIENCE: Duration = Duration::from_secs(60);

/// Longest time a tool takes on purpose, so that cuts meet calls that run.
const TOOL_MS_MAX: u64 = 40;

/// Longest text that is sent there and back, in bytes.
const TEXT_BYTES_MAX: u64 = 600_000;

/// One who calls until told to stop.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) address: SocketAddr,
    pub(super) token: String,
    pub(super) kind: Kind,
    /// Its numbers begin here.
    pub(super) first: u64,
}

impl Caller {
    pub(super) fn work(&self, stop: &AtomicBool, say: impl Fn(Ended)) {
        let mut random = Random::new(self.first);
        let mut client = None;
        let mut number = self.first;
        while !stop.load(Ordering::SeqCst) {
            number += 1;
            let call = Call::make(self.kind, number, &mut random);
            let start = process::now();
            let (end, why) = self.attempt(&mut client, &call);
            let took = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            say(Ended {
                number,
                kind: self.kind,
                end,
                why,
                took,
            });
        }
    }

    fn attempt(&self, client: &mut Option<Client>, call: &Call) -> (End, String) {
        let open = || Client::open(self.address, &self.token)?.patient(PATIENCE);
        let mut now = match client.take().map_or_else(open, Ok) {
            Ok(client) => client,
            Err(error) => return (End::Gone, format!("{error:#}")),
        };
        match now.call(&call.tool, &call.arguments) {
            Ok(answer) => {
                *client = Some(now);
                call.judge(&answer)
            }
            Err(error) => (End::Gone, format!("{error:#}")),
        }
    }
}

/// One call, and the only right answer.
#[derive(Debug)]
struct Call {
    tool: String,
    arguments: Value,
    /// Where the answer has it, and what it is.
    wanted: (&'static str, Value),
}

impl Call {
    fn make(kind: Kind, number: u64, random: &mut Random) -> Self {
        let ms = random.below(TOOL_MS_MAX);
        let text = |text: String| ("/content/0/text", Value::String(text));
        let (tool, arguments, wanted) = match kind {
            Kind::Read => {
                let message = number.to_string();
                let arguments = json!({"message": message, "ms": ms});
                (format!("{WEB}__slow"), arguments, text(message))
            }
            Kind::Large => {
                let message = long(number, random.below(TEXT_BYTES_MAX));
                let arguments = json!({"message": message});
                (format!("{WEB}__echo"), arguments, text(message))
            }
            Kind::Write | Kind::Pipe => {
                let server = if kind == Kind::Pipe { PIPE } else { WEB };
                let wanted = ("/structuredContent/number", json!(number));
                let arguments = json!({"number": number, "ms": ms});
                (format!("{server}__write_again"), arguments, wanted)
            }
        };
        Self {
            tool,
            arguments,
            wanted,
        }
    }

    fn judge(&self, answer: &Value) -> (End, String) {
        if let Some(error) = answer.get("error") {
            let word = |key: &str| error.pointer(key).and_then(Value::as_str);
            let end = match word("/data/execution") {
                Some("not_started") => End::NotStarted,
                Some("unknown") => End::Unknown,
                _ => End::Failed,
            };
            let said = ["/data/code", "/message"].map(|key| word(key).unwrap_or("?"));
            return (end, said.join(": "));
        }
        let result = answer.get("result").unwrap_or(&Value::Null);
        if result.get("isError") == Some(&json!(true)) {
            return (End::Failed, short(result));
        }
        let (place, wanted) = &self.wanted;
        if result.pointer(place) == Some(wanted) {
            (End::Answered, String::new())
        } else {
            (End::Wrong, short(answer))
        }
    }
}

/// A text that no other number has any part of.
fn long(number: u64, bytes: u64) -> String {
    let bytes = usize::try_from(bytes).unwrap_or(0);
    let mut text = String::with_capacity(bytes + 32);
    let mut nth = 0;
    while text.len() < bytes {
        text.push_str(&format!("{number}:{nth} "));
        nth += 1;
    }
    text
}

/// The beginning of what was said.
fn short(value: &Value) -> String {
    value.to_string().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_right_to_the_byte_or_it_is_wrong() {
        let call = Call::make(Kind::Large, 7, &mut Random::new(3));
        let text = call.wanted.1.as_str().unwrap();
        let said = |text: &str| json!({"result": {"content": [{"text": text}]}});
        assert_eq!(call.judge(&said(text)).0, End::Answered);
        let cut = text.get(..text.len() - 1).unwrap();
        assert_eq!(call.judge(&said(cut)).0, End::Wrong);
        let other = long(8, text.len() as u64);
        assert_eq!(call.judge(&said(&other)).0, End::Wrong);
        assert_eq!(call.judge(&json!({})).0, End::Wrong);
    }

    #[test]
    fn a_failure_is_judged_by_what_it_says_of_the_execution() {
        let call = Call::make(Kind::Write, 7, &mut Random::new(3));
        let error = |execution: &str| json!({"error": {"data": {"execution": execution}}});
        assert_eq!(call.judge(&error("unknown")).0, End::Unknown);
        assert_eq!(call.judge(&error("not_started")).0, End::NotStarted);
        assert_eq!(call.judge(&error("completed")).0, End::Failed);
        let said = json!({"result": {"structuredContent": {"number": 7}}});
        assert_eq!(call.judge(&said).0, End::Answered);
    }
}
