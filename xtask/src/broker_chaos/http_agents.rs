//! Agents that call numbered tools over HTTP and retry each number until its result is known.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    broker_tally::{BrokerCallEnd, BrokerCallRecord},
    seeded_random::SeededRandom,
};
use crate::{blocking_client::BlockingClient, process};

/// Timeout of a response: longer than every fault.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(150);

/// Longest time to retry a number that never starts.
const NUMBER_TIMEOUT: Duration = Duration::from_secs(240);

/// Pause before a retry.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// One call in this many is a read and goes live; the remaining calls are writes.
const CALLS_PER_READ: u64 = 4;

/// Longest deliberate delay of a tool, so that faults hit calls in flight.
const TOOL_MS_MAX: u64 = 30;

/// Parameters of one agent.
#[derive(Debug)]
pub(super) struct HttpAgent {
    pub(super) address: SocketAddr,
    pub(super) token: String,
    /// Server of the called tools.
    pub(super) server: String,
    pub(super) first_number: u64,
    pub(super) count: u64,
}

impl HttpAgent {
    /// Calls all numbers and reports the end of each.
    pub(super) fn call_all(&self, report: impl Fn(&BrokerCallRecord)) {
        let mut random = SeededRandom::new(self.first_number + 1);
        let mut client = None;
        for number in self.first_number..self.first_number + self.count {
            let ms = random.below(TOOL_MS_MAX);
            let call = if random.below(CALLS_PER_READ) == 0 {
                NumberedCall::read_call(&self.server, number, ms)
            } else {
                NumberedCall::write_call(&self.server, number, ms)
            };
            report(&self.call_until_known(&mut client, &call));
        }
    }

    fn call_until_known(
        &self,
        client: &mut Option<BlockingClient>,
        call: &NumberedCall,
    ) -> BrokerCallRecord {
        let start = process::now();
        let (mut refused, mut last_code) = (0, String::new());
        loop {
            let (end, mut code) = self.send_call(client, call);
            if end == BrokerCallEnd::Answered {
                code.clone_from(&last_code);
            }
            let retry = match end {
                BrokerCallEnd::NotStarted => true,
                // Reads may be retried until they succeed.
                BrokerCallEnd::Unknown | BrokerCallEnd::GatewayGone => !call.is_write,
                BrokerCallEnd::Answered
                | BrokerCallEnd::WrongResponse
                | BrokerCallEnd::Failed
                | BrokerCallEnd::NoReply => false,
            };
            if !retry || start.elapsed() > NUMBER_TIMEOUT {
                return BrokerCallRecord {
                    number: call.number,
                    end,
                    code,
                    retries: refused,
                    is_write: call.is_write,
                    has_receipt: false,
                    took_ms: elapsed_ms(start),
                };
            }
            refused += 1;
            last_code = code;
            thread::sleep(RETRY_PAUSE);
        }
    }

    fn send_call(
        &self,
        client: &mut Option<BlockingClient>,
        call: &NumberedCall,
    ) -> (BrokerCallEnd, String) {
        let mut now = match client.take().map_or_else(|| self.open_session(), Ok) {
            Ok(client) => client,
            Err(error) => return (BrokerCallEnd::NotStarted, format!("{error:#}")),
        };
        match now.call_tool(&call.tool, &call.arguments) {
            Ok(response) => {
                // An unknown session is dropped, and the next attempt opens a new session.
                if response
                    .get("error")
                    .is_none_or(|error| error.get("data").is_some())
                {
                    *client = Some(now);
                }
                call.classify_response(&response)
            }
            Err(error) => (BrokerCallEnd::GatewayGone, format!("{error:#}")),
        }
    }

    fn open_session(&self) -> Result<BlockingClient> {
        BlockingClient::open_session(self.address, &self.token)?.with_timeout(RESPONSE_TIMEOUT)
    }
}

fn elapsed_ms(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// One numbered call.
#[derive(Debug)]
struct NumberedCall {
    number: u64,
    tool: String,
    arguments: Value,
    is_write: bool,
}

impl NumberedCall {
    fn write_call(server: &str, number: u64, ms: u64) -> Self {
        Self {
            number,
            tool: format!("{server}__write_again"),
            arguments: json!({"number": number, "ms": ms}),
            is_write: true,
        }
    }

    fn read_call(server: &str, number: u64, ms: u64) -> Self {
        Self {
            number,
            tool: format!("{server}__slow"),
            arguments: json!({"message": number.to_string(), "ms": ms}),
            is_write: false,
        }
    }

    fn classify_response(&self, response: &Value) -> (BrokerCallEnd, String) {
        if let Some(error) = response.get("error") {
            let word = |key: &str| error.pointer(key).and_then(Value::as_str);
            let end = match word("/data/execution") {
                Some("not_started") => BrokerCallEnd::NotStarted,
                Some("unknown") => BrokerCallEnd::Unknown,
                Some("completed") => BrokerCallEnd::Failed,
                // Rejected before dispatch: the tool is not offered yet, or the session is unknown.
                _ => BrokerCallEnd::NotStarted,
            };
            let code = word("/data/code").or_else(|| word("/message"));
            return (end, code.unwrap_or("?").to_owned());
        }
        let Some(result) = response.get("result") else {
            return (BrokerCallEnd::WrongResponse, response.to_string());
        };
        if result.get("isError") == Some(&json!(true)) {
            return (BrokerCallEnd::Failed, result.to_string());
        }
        let number = if self.is_write {
            result
                .pointer("/structuredContent/number")
                .and_then(Value::as_u64)
        } else {
            let text = result.pointer("/content/0/text").and_then(Value::as_str);
            text.and_then(|text| text.parse().ok())
        };
        if number == Some(self.number) {
            (BrokerCallEnd::Answered, String::new())
        } else {
            (BrokerCallEnd::WrongResponse, result.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_is_classified_by_number_and_execution() {
        let write = NumberedCall::write_call("a", 7, 0);
        let said = |number: u64| json!({"result": {"structuredContent": {"number": number}}});
        let error = |execution: &str| json!({"error": {"data": {"execution": execution}}});
        for (answer, end) in [
            (said(7), BrokerCallEnd::Answered),
            (said(8), BrokerCallEnd::WrongResponse),
            (json!({"result": {"isError": true}}), BrokerCallEnd::Failed),
            (error("not_started"), BrokerCallEnd::NotStarted),
            (error("unknown"), BrokerCallEnd::Unknown),
            (
                json!({"error": {"message": "no such tool"}}),
                BrokerCallEnd::NotStarted,
            ),
            (json!({}), BrokerCallEnd::WrongResponse),
        ] {
            assert_eq!(write.classify_response(&answer).0, end, "{answer}");
        }
        let read = NumberedCall::read_call("a", 7, 0);
        let text = |text: &str| json!({"result": {"content": [{"text": text}]}});
        assert_eq!(
            read.classify_response(&text("7")).0,
            BrokerCallEnd::Answered
        );
        assert_eq!(
            read.classify_response(&text("9")).0,
            BrokerCallEnd::WrongResponse
        );
    }
}
