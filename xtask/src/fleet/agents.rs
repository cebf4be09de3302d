//! Agents that call numbered tools over HTTP, each number until it is known what became of it.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    random::Random,
    tally::{End, Ended},
};
use crate::{client::Client, process};

/// How long one answer may take: longer than every fault.
const ANSWER: Duration = Duration::from_secs(150);

/// How long a number is tried that nobody starts.
const NUMBER: Duration = Duration::from_secs(240);

/// The pause before a number is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// One call in so many reads, and so goes live; the others write.
const READS: u64 = 4;

/// Longest time a tool takes on purpose, so that faults meet calls that run.
const TOOL_MS_MAX: u64 = 30;

/// What one agent does.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) address: SocketAddr,
    pub(super) token: String,
    /// The server whose tools it calls.
    pub(super) server: String,
    pub(super) first: u64,
    pub(super) count: u64,
}

impl Agent {
    /// Calls all its numbers, and says what became of each.
    pub(super) fn work(&self, say: impl Fn(&Ended)) {
        let mut random = Random::new(self.first + 1);
        let mut client = None;
        for number in self.first..self.first + self.count {
            let ms = random.below(TOOL_MS_MAX);
            let call = if random.below(READS) == 0 {
                Call::read(&self.server, number, ms)
            } else {
                Call::write(&self.server, number, ms)
            };
            say(&self.carry_out(&mut client, &call));
        }
    }

    fn carry_out(&self, client: &mut Option<Client>, call: &Call) -> Ended {
        let start = process::now();
        let (mut refused, mut why) = (0, String::new());
        loop {
            let (end, mut code) = self.attempt(client, call);
            if end == End::Answered {
                code.clone_from(&why);
            }
            let again = match end {
                End::NotStarted => true,
                // What only reads may be tried until it is answered.
                End::Unknown | End::Gone => !call.writes,
                End::Answered | End::Crossed | End::Failed | End::Silent => false,
            };
            if !again || start.elapsed() > NUMBER {
                return Ended {
                    number: call.number,
                    end,
                    code,
                    refused,
                    writes: call.writes,
                    receipt: false,
                    took: taken(start),
                };
            }
            refused += 1;
            why = code;
            thread::sleep(AGAIN);
        }
    }

    fn attempt(&self, client: &mut Option<Client>, call: &Call) -> (End, String) {
        let mut now = match client.take().map_or_else(|| self.open(), Ok) {
            Ok(client) => client,
            Err(error) => return (End::NotStarted, format!("{error:#}")),
        };
        match now.call(&call.tool, &call.arguments) {
            Ok(answer) => {
                // A session that is not known any more is opened anew.
                if answer
                    .get("error")
                    .is_none_or(|error| error.get("data").is_some())
                {
                    *client = Some(now);
                }
                call.judge(&answer)
            }
            Err(error) => (End::Gone, format!("{error:#}")),
        }
    }

    fn open(&self) -> Result<Client> {
        Client::open(self.address, &self.token)?.patient(ANSWER)
    }
}

fn taken(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// One numbered call.
#[derive(Debug)]
struct Call {
    number: u64,
    tool: String,
    arguments: Value,
    writes: bool,
}

impl Call {
    fn write(server: &str, number: u64, ms: u64) -> Self {
        Self {
            number,
            tool: format!("{server}__write_again"),
            arguments: json!({"number": number, "ms": ms}),
            writes: true,
        }
    }

    fn read(server: &str, number: u64, ms: u64) -> Self {
        Self {
            number,
            tool: format!("{server}__slow"),
            arguments: json!({"message": number.to_string(), "ms": ms}),
            writes: false,
        }
    }

    fn judge(&self, answer: &Value) -> (End, String) {
        if let Some(error) = answer.get("error") {
            let word = |key: &str| error.pointer(key).and_then(Value::as_str);
            let end = match word("/data/execution") {
                Some("not_started") => End::NotStarted,
                Some("unknown") => End::Unknown,
                Some("completed") => End::Failed,
                // Refused before it was a call: no such tool yet, no such session any more.
                _ => End::NotStarted,
            };
            let code = word("/data/code").or_else(|| word("/message"));
            return (end, code.unwrap_or("?").to_owned());
        }
        let Some(result) = answer.get("result") else {
            return (End::Crossed, answer.to_string());
        };
        if result.get("isError") == Some(&json!(true)) {
            return (End::Failed, result.to_string());
        }
        let said = if self.writes {
            result
                .pointer("/structuredContent/number")
                .and_then(Value::as_u64)
        } else {
            let text = result.pointer("/content/0/text").and_then(Value::as_str);
            text.and_then(|text| text.parse().ok())
        };
        if said == Some(self.number) {
            (End::Answered, String::new())
        } else {
            (End::Crossed, result.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_judged_by_its_number_and_by_what_it_says_of_the_execution() {
        let write = Call::write("a", 7, 0);
        let said = |number: u64| json!({"result": {"structuredContent": {"number": number}}});
        let error = |execution: &str| json!({"error": {"data": {"execution": execution}}});
        for (answer, end) in [
            (said(7), End::Answered),
            (said(8), End::Crossed),
            (json!({"result": {"isError": true}}), End::Failed),
            (error("not_started"), End::NotStarted),
            (error("unknown"), End::Unknown),
            (
                json!({"error": {"message": "no such tool"}}),
                End::NotStarted,
            ),
            (json!({}), End::Crossed),
        ] {
            assert_eq!(write.judge(&answer).0, end, "{answer}");
        }
        let read = Call::read("a", 7, 0);
        let text = |text: &str| json!({"result": {"content": [{"text": text}]}});
        assert_eq!(read.judge(&text("7")).0, End::Answered);
        assert_eq!(read.judge(&text("9")).0, End::Crossed);
    }
}
