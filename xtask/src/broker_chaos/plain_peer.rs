//! A broker peer that uses only the first protocol frames: delivers numbered requests under stable
//! ids and waits for a receipt and a reply of each, reconnecting as needed.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{
    broker_tally::{BrokerCallEnd, BrokerCallRecord},
    seeded_random::SeededRandom,
};
use crate::{
    process,
    raw_websocket::{RawWebSocket, SocketRead},
};

/// Limit of open requests.
const REQUESTS_OPEN_MAX: usize = 8;

/// One request in this many is delivered twice at once, as by a peer without a receipt.
const DUPLICATE_EVERY: u64 = 8;

/// A connection without any frame or ping for this long is closed.
const SILENCE_MAX: Duration = Duration::from_secs(25);

/// Timeout of a reply: longer than every fault.
const REPLY_TIMEOUT: Duration = Duration::from_secs(200);

/// Pause before the next connection.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

const READ_TIMEOUT: Duration = Duration::from_millis(500);

/// Longest deliberate delay of a tool.
const TOOL_MS_MAX: u64 = 30;

/// Parameters of one peer.
#[derive(Debug)]
pub(super) struct PlainBrokerPeer {
    pub(super) address: SocketAddr,
    pub(super) name: String,
    pub(super) token: String,
    pub(super) server: String,
    pub(super) first_number: u64,
    pub(super) count: u64,
}

/// A request without a reply.
#[derive(Debug)]
struct DeliveredRequest {
    number: u64,
    ms: u64,
    sent_at: Instant,
    has_receipt: bool,
    /// Deliveries after the first.
    redeliveries: u64,
}

#[derive(Debug)]
struct PeerProgress {
    next_number: u64,
    open_requests: BTreeMap<String, DeliveredRequest>,
    random: SeededRandom,
}

impl PlainBrokerPeer {
    /// Delivers all numbers and reports the end of each.
    pub(super) fn deliver_all(&self, report: impl Fn(&BrokerCallRecord)) {
        let mut open = PeerProgress {
            next_number: self.first_number,
            open_requests: BTreeMap::new(),
            random: SeededRandom::new(self.first_number + 1),
        };
        while open.next_number < self.first_number + self.count || !open.open_requests.is_empty() {
            // Open requests are delivered again over the next connection.
            if let Err(error) = self.run_connection(&mut open, &report)
                && process::env_var("BOWLINE_FLEET_VERBOSE").is_some()
            {
                eprintln!("{}: {error:#}", self.name);
            }
            self.expire_requests(&mut open, &report);
            thread::sleep(RECONNECT_PAUSE);
        }
    }

    fn run_connection(
        &self,
        open: &mut PeerProgress,
        report: &impl Fn(&BrokerCallRecord),
    ) -> Result<()> {
        let mut socket = RawWebSocket::connect_peer(self.address, &self.name, &self.token)?;
        socket.send_json(&json!({"kind": "subscribe"}))?;
        for (id, sent) in &mut open.open_requests {
            if !sent.has_receipt {
                sent.redeliveries += 1;
                socket.send_json(&self.deliver_frame(id, sent))?;
            }
        }
        loop {
            while open.open_requests.len() < REQUESTS_OPEN_MAX
                && open.next_number < self.first_number + self.count
            {
                let (id, sent) = open.new_request(&self.name);
                socket.send_json(&self.deliver_frame(&id, &sent))?;
                if open.random.below(DUPLICATE_EVERY) == 0 {
                    socket.send_json(&self.deliver_frame(&id, &sent))?;
                }
                open.open_requests.insert(id, sent);
            }
            if open.open_requests.is_empty() {
                return Ok(());
            }
            match socket.read_message(READ_TIMEOUT)? {
                SocketRead::Text(text) => {
                    let frame: Value = serde_json::from_slice(&text)?;
                    self.handle_frame(&frame, &mut socket, open, report)?;
                }
                SocketRead::TimedOut if socket.idle_time() > SILENCE_MAX => bail!("silence"),
                SocketRead::TimedOut => self.expire_requests(open, report),
                SocketRead::Closed(code) => bail!("closed {code:?}"),
            }
        }
    }

    fn deliver_frame(&self, id: &str, sent: &DeliveredRequest) -> Value {
        let arguments = json!({"number": sent.number, "ms": sent.ms}).to_string();
        let tool = format!("{}__write_again", self.server);
        json!({"kind": "deliver", "to": "hub", "message": {
            "id": id,
            "from": {"session_id": self.name},
            "kind": "mcp_request",
            "body": {"op": "call", "tool": tool, "arguments": arguments},
            "created_at": "2026-01-01T00:00:00Z",
        }})
    }

    fn handle_frame(
        &self,
        frame: &Value,
        socket: &mut RawWebSocket,
        open: &mut PeerProgress,
        report: &impl Fn(&BrokerCallRecord),
    ) -> Result<()> {
        let text = |at: &str| frame.pointer(at).and_then(Value::as_str);
        match text("/kind") {
            Some("delivered") => {
                let sent = text("/id").and_then(|id| open.open_requests.get_mut(id));
                if let Some(sent) = sent {
                    sent.has_receipt = true;
                }
            }
            Some("error") => match text("/id").and_then(|id| open.open_requests.remove_entry(id)) {
                // A rejected request was not stored.
                Some((_, sent)) => {
                    let code = text("/code").unwrap_or("?");
                    report(&sent.to_record(BrokerCallEnd::NotStarted, code));
                }
                None => bail!("{frame}"),
            },
            Some("message") => {
                let (Some(message_id), Some(request)) =
                    (text("/message/id"), text("/message/correlation_id"))
                else {
                    bail!("a message without ids: {frame}");
                };
                match open.open_requests.remove(request) {
                    Some(sent) => report(&sent.classify_reply(frame.pointer("/message/body"))),
                    // Duplicate reply: the acknowledgement was lost.
                    None if is_own_request(request, &self.name) => {}
                    None => report(&stray_reply(request)),
                }
                socket.send_json(&json!({"kind": "ack", "id": message_id}))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Ends requests that exceed the reply timeout.
    fn expire_requests(&self, open: &mut PeerProgress, report: &impl Fn(&BrokerCallRecord)) {
        open.open_requests.retain(|_, sent| {
            let over = sent.sent_at.elapsed() > REPLY_TIMEOUT;
            if over {
                let end = if sent.has_receipt {
                    BrokerCallEnd::NoReply
                } else {
                    BrokerCallEnd::GatewayGone
                };
                report(&sent.to_record(end, "no reply"));
            }
            !over
        });
    }
}

fn is_own_request(request: &str, name: &str) -> bool {
    request
        .strip_prefix(name)
        .is_some_and(|rest| rest.starts_with('.'))
}

/// Returns the record of a reply to a request of another peer.
fn stray_reply(request: &str) -> BrokerCallRecord {
    BrokerCallRecord {
        number: u64::MAX,
        end: BrokerCallEnd::WrongResponse,
        code: format!("a reply to {request}"),
        retries: 0,
        is_write: false,
        has_receipt: false,
        took_ms: 0,
    }
}

impl PeerProgress {
    fn new_request(&mut self, name: &str) -> (String, DeliveredRequest) {
        let number = self.next_number;
        self.next_number += 1;
        let sent = DeliveredRequest {
            number,
            ms: self.random.below(TOOL_MS_MAX),
            sent_at: process::now(),
            has_receipt: false,
            redeliveries: 0,
        };
        (format!("{name}.{number}"), sent)
    }
}

impl DeliveredRequest {
    /// Classifies a reply. A lost receipt is not counted.
    fn classify_reply(&self, body: Option<&Value>) -> BrokerCallRecord {
        let text = |at: &str| body?.pointer(at)?.as_str();
        if body.and_then(|body| body.get("error")).is_some() {
            let end = match text("/failure/execution") {
                Some("not_started") => BrokerCallEnd::NotStarted,
                Some("unknown") => BrokerCallEnd::Unknown,
                _ => BrokerCallEnd::Failed,
            };
            let code = text("/failure/code").or_else(|| text("/error"));
            return self.to_record(end, code.unwrap_or("?"));
        }
        let result = text("/result/result").and_then(|result| serde_json::from_str(result).ok());
        let number = result.and_then(|result: Value| result.get("number")?.as_u64());
        let success = body.and_then(|body| body.pointer("/result/success")) == Some(&json!(true));
        match number {
            Some(number) if number == self.number && success => {
                self.to_record(BrokerCallEnd::Answered, "")
            }
            Some(_) => self.to_record(BrokerCallEnd::WrongResponse, "another number"),
            None => self.to_record(BrokerCallEnd::Failed, text("/result/result").unwrap_or("?")),
        }
    }

    fn to_record(&self, end: BrokerCallEnd, code: &str) -> BrokerCallRecord {
        BrokerCallRecord {
            number: self.number,
            end,
            code: code.to_owned(),
            retries: self.redeliveries,
            is_write: true,
            has_receipt: self.has_receipt,
            took_ms: u64::try_from(self.sent_at.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_is_classified_by_number_and_failure() {
        let (_, sent) = PeerProgress {
            next_number: 7,
            open_requests: BTreeMap::new(),
            random: SeededRandom::new(1),
        }
        .new_request("peer");
        let result = |text: &str| json!({"result": {"success": true, "result": text}});
        let failure = |execution: &str| json!({"error": "no", "failure": {"execution": execution, "code": "expired"}});
        for (body, end) in [
            (result(r#"{"number":7}"#), BrokerCallEnd::Answered),
            (result(r#"{"number":8}"#), BrokerCallEnd::WrongResponse),
            (result("what?"), BrokerCallEnd::Failed),
            (failure("not_started"), BrokerCallEnd::NotStarted),
            (failure("unknown"), BrokerCallEnd::Unknown),
        ] {
            assert_eq!(sent.classify_reply(Some(&body)).end, end, "{body}");
        }
        assert!(is_own_request("peer.7", "peer") && !is_own_request("peer-2.7", "peer"));
    }
}
