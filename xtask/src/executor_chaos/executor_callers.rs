//! Callers of executor-chaos; each number has a unique correct response.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

use super::{
    executor_setup::{HTTP_SERVER, STDIO_SERVER},
    executor_tally::{ExecutorCallEnd, ExecutorCallKind, ExecutorCallRecord},
};
use crate::{blocking_client::BlockingClient, broker_chaos::seeded_random::SeededRandom, process};

/// Longest time of a call: an executor session expires after half a minute.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest deliberate delay of a tool, so that cuts hit calls in flight.
const TOOL_MS_MAX: u64 = 40;

/// Longest echoed text, in bytes.
const TEXT_BYTES_MAX: u64 = 600_000;

/// A caller that runs until stopped.
#[derive(Debug)]
pub(super) struct ExecutorCaller {
    pub(super) address: SocketAddr,
    pub(super) token: String,
    pub(super) kind: ExecutorCallKind,
    /// First number of this caller.
    pub(super) first_number: u64,
}

impl ExecutorCaller {
    pub(super) fn call_until_stopped(
        &self,
        stop: &AtomicBool,
        report: impl Fn(ExecutorCallRecord),
    ) {
        let mut random = SeededRandom::new(self.first_number);
        let mut client = None;
        let mut number = self.first_number;
        while !stop.load(Ordering::SeqCst) {
            number += 1;
            let call = ExpectedCall::random_call(self.kind, number, &mut random);
            let start = process::now();
            let (end, why) = self.send_call(&mut client, &call);
            let took = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            report(ExecutorCallRecord {
                number,
                kind: self.kind,
                end,
                reason: why,
                took_ms: took,
            });
        }
    }

    fn send_call(
        &self,
        client: &mut Option<BlockingClient>,
        call: &ExpectedCall,
    ) -> (ExecutorCallEnd, String) {
        let open =
            || BlockingClient::open_session(self.address, &self.token)?.with_timeout(CALL_TIMEOUT);
        let mut now = match client.take().map_or_else(open, Ok) {
            Ok(client) => client,
            Err(error) => return (ExecutorCallEnd::NoResponse, format!("{error:#}")),
        };
        match now.call_tool(&call.tool, &call.arguments) {
            Ok(response) => {
                *client = Some(now);
                call.classify_response(&response)
            }
            Err(error) => (ExecutorCallEnd::NoResponse, format!("{error:#}")),
        }
    }
}

/// One call and its only correct response.
#[derive(Debug)]
struct ExpectedCall {
    tool: String,
    arguments: Value,
    /// JSON pointer into the result, and the expected value.
    expected: (&'static str, Value),
}

impl ExpectedCall {
    fn random_call(kind: ExecutorCallKind, number: u64, random: &mut SeededRandom) -> Self {
        let ms = random.below(TOOL_MS_MAX);
        let text = |text: String| ("/content/0/text", Value::String(text));
        let (tool, arguments, expected) = match kind {
            ExecutorCallKind::SmallRead => {
                let message = number.to_string();
                let arguments = json!({"message": message, "ms": ms});
                (format!("{HTTP_SERVER}__slow"), arguments, text(message))
            }
            ExecutorCallKind::LargeRead => {
                let message = numbered_text(number, random.below(TEXT_BYTES_MAX));
                let arguments = json!({"message": message});
                (format!("{HTTP_SERVER}__echo"), arguments, text(message))
            }
            ExecutorCallKind::HttpWrite | ExecutorCallKind::StdioWrite => {
                let server = if kind == ExecutorCallKind::StdioWrite {
                    STDIO_SERVER
                } else {
                    HTTP_SERVER
                };
                let wanted = ("/structuredContent/number", json!(number));
                let arguments = json!({"number": number, "ms": ms});
                (format!("{server}__write_again"), arguments, wanted)
            }
        };
        Self {
            tool,
            arguments,
            expected,
        }
    }

    fn classify_response(&self, response: &Value) -> (ExecutorCallEnd, String) {
        if let Some(error) = response.get("error") {
            let word = |key: &str| error.pointer(key).and_then(Value::as_str);
            let end = match word("/data/execution") {
                Some("not_started") => ExecutorCallEnd::NotStarted,
                Some("unknown") => ExecutorCallEnd::Unknown,
                _ => ExecutorCallEnd::Failed,
            };
            let reason = ["/data/code", "/message"].map(|key| word(key).unwrap_or("?"));
            return (end, reason.join(": "));
        }
        let result = response.get("result").unwrap_or(&Value::Null);
        if result.get("isError") == Some(&json!(true)) {
            return (ExecutorCallEnd::Failed, shorten(result));
        }
        let (place, wanted) = &self.expected;
        if result.pointer(place) == Some(wanted) {
            (ExecutorCallEnd::Answered, String::new())
        } else {
            (ExecutorCallEnd::Wrong, shorten(response))
        }
    }
}

/// Returns a text of which no part occurs in the text of another number.
fn numbered_text(number: u64, bytes: u64) -> String {
    let bytes = usize::try_from(bytes).unwrap_or(0);
    let mut text = String::with_capacity(bytes + 32);
    let mut nth = 0;
    while text.len() < bytes {
        text.push_str(&format!("{number}:{nth} "));
        nth += 1;
    }
    text
}

/// Returns the first 200 characters of a value.
fn shorten(value: &Value) -> String {
    value.to_string().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_must_match_to_the_byte() {
        let call =
            ExpectedCall::random_call(ExecutorCallKind::LargeRead, 7, &mut SeededRandom::new(3));
        let text = call.expected.1.as_str().unwrap();
        let said = |text: &str| json!({"result": {"content": [{"text": text}]}});
        assert_eq!(
            call.classify_response(&said(text)).0,
            ExecutorCallEnd::Answered
        );
        let cut = text.get(..text.len() - 1).unwrap();
        assert_eq!(call.classify_response(&said(cut)).0, ExecutorCallEnd::Wrong);
        let other = numbered_text(8, text.len() as u64);
        assert_eq!(
            call.classify_response(&said(&other)).0,
            ExecutorCallEnd::Wrong
        );
        assert_eq!(call.classify_response(&json!({})).0, ExecutorCallEnd::Wrong);
    }

    #[test]
    fn failure_is_classified_by_execution() {
        let call =
            ExpectedCall::random_call(ExecutorCallKind::HttpWrite, 7, &mut SeededRandom::new(3));
        let error = |execution: &str| json!({"error": {"data": {"execution": execution}}});
        assert_eq!(
            call.classify_response(&error("unknown")).0,
            ExecutorCallEnd::Unknown
        );
        assert_eq!(
            call.classify_response(&error("not_started")).0,
            ExecutorCallEnd::NotStarted
        );
        assert_eq!(
            call.classify_response(&error("completed")).0,
            ExecutorCallEnd::Failed
        );
        let said = json!({"result": {"structuredContent": {"number": 7}}});
        assert_eq!(call.classify_response(&said).0, ExecutorCallEnd::Answered);
    }
}
