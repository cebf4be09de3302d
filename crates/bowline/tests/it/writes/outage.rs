//! Writes at a steady rate during outages of their server, with the shipped defaults.
//!
//! Senders are independent: each write is sent when due, regardless of earlier writes. A queue that
//! drains more slowly than writes arrive therefore never becomes empty, and the test detects it.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{FaultyNetwork, FixtureServer, Gateway, NetworkState};
use serde_json::{Value, json};

use super::agent::{connect, read_response};
use super::{tool_config, wait_until_outbox_empty};
use crate::stimulus::sleep_as_stimulus;

/// Writes due each second, of all sessions together.
const WRITES_PER_SECOND: u32 = 95;

/// Server time of a write.
const WRITE_MS: u64 = 20;

/// Connections of each session, so its writes are in flight concurrently.
const CONNECTIONS: usize = 16;

/// Duration of an outage.
const OUTAGE: Duration = Duration::from_secs(1);

/// Time from the end of the last outage until responses must be live again.
const LIVE_AGAIN_MAX: Duration = Duration::from_secs(5);

/// Duration of the load after the last outage.
const LOAD_AFTER: Duration = Duration::from_secs(8);

/// Number range of a session.
const NUMBERS: u64 = 1_000_000;

/// The reply to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WriteReply {
    Live,
    Queued,
    /// Refused with this code; the write did not start.
    Refused(String),
}

/// An answered write.
#[derive(Clone, Debug)]
struct WriteRecord {
    number: u64,
    sent: Instant,
    answered: Instant,
    answer: WriteReply,
}

/// A session whose writes are due at a steady rate.
#[derive(Debug)]
struct WriteSession {
    address: SocketAddr,
    token: String,
    id: String,
    first: u64,
    every: Duration,
    start: Instant,
    end: Instant,
    /// The next write, counted from 0.
    next: Mutex<u32>,
    sent: Mutex<Vec<WriteRecord>>,
}

impl WriteSession {
    /// Sends due writes until the end, over a single connection.
    fn send_due_writes(&self) {
        let mut stream = connect(self.address).unwrap();
        loop {
            let nth = {
                let mut next = self.next.lock().unwrap();
                *next += 1;
                *next - 1
            };
            let due = self.start + self.every * nth;
            if due >= self.end {
                return;
            }
            sleep_as_stimulus(due.saturating_duration_since(Instant::now()));
            let sent = self.write_number(&mut stream, self.first + u64::from(nth));
            self.sent.lock().unwrap().push(sent);
        }
    }

    fn write_number(&self, stream: &mut BufReader<TcpStream>, number: u64) -> WriteRecord {
        let body = json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {
            "name": "web__write_once",
            "arguments": {"number": number, "ms": WRITE_MS},
        }});
        let body = body.to_string();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Mcp-Session-Id: {}\r\nMCP-Protocol-Version: 2025-11-25\r\n\
             Content-Type: application/json\r\nAccept: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            self.token,
            self.id,
            body.len()
        );
        let sent = Instant::now();
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        let (status, answer) = read_response(stream).unwrap();
        assert_eq!(status, 200, "{answer}");
        WriteRecord {
            number,
            sent,
            answered: Instant::now(),
            answer: classify_response(&answer),
        }
    }

    /// Checks that each write ran as reported, and that no write overtook an earlier answered
    /// write.
    fn assert_executed(&self, executed: &[u64]) {
        let sent = self.sent.lock().unwrap();
        let by_number: BTreeMap<u64, &WriteRecord> =
            sent.iter().map(|one| (one.number, one)).collect();
        for one in sent.iter() {
            let times = executed.iter().filter(|number| **number == one.number);
            let wanted = usize::from(!matches!(one.answer, WriteReply::Refused(_)));
            assert_eq!(times.count(), wanted, "executions of {one:?}");
        }
        let mut latest: Option<&WriteRecord> = None;
        for number in executed {
            let one = by_number[number];
            if let Some(before) = latest {
                assert!(before.sent < one.answered, "{before:?} ran before {one:?}");
            }
            if latest.is_none_or(|before| before.sent < one.sent) {
                latest = Some(one);
            }
        }
    }
}

fn classify_response(answer: &Value) -> WriteReply {
    if answer["result"]["structuredContent"]["queued"] == true {
        return WriteReply::Queued;
    }
    if answer["result"].is_object() {
        return WriteReply::Live;
    }
    let data = &answer["error"]["data"];
    assert_eq!(data["execution"], "not_started", "{answer}");
    WriteReply::Refused(data["code"].as_str().unwrap().to_owned())
}

/// Runs the load of `sessions` sessions through outages that begin at these times after the start.
fn run_outages(sessions: u64, outages: &[Duration]) {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("web");
    let web = FixtureServer::start(&["--toolset", "writes", "--ledger", ledger.to_str().unwrap()]);
    let network = FaultyNetwork::start(web.address());
    let config = [
        "[roles.agent]\nallow = [\"*\"]\n".to_owned(),
        format!("[servers.web]\nurl = \"http://{}/mcp\"\n", network.address),
        tool_config("web", "header:Idempotency-Key"),
    ];
    let gateway = Gateway::start(&config.concat());
    gateway.wait_for_state("web", "ready");
    let start = Instant::now();
    let back = start + *outages.last().unwrap() + OUTAGE;
    let agents = (0..sessions).map(|nth| {
        let wanted = json!({"principal": format!("agent-{nth}"), "role": "agent"});
        let (_, token) = gateway.create_token(&wanted);
        WriteSession {
            address: gateway.address,
            id: gateway.open_session_as(&token, "/mcp").id,
            token,
            first: nth * NUMBERS,
            every: Duration::from_secs(sessions) / WRITES_PER_SECOND,
            start,
            end: back + LOAD_AFTER,
            next: Mutex::default(),
            sent: Mutex::default(),
        }
    });
    let agents: Vec<WriteSession> = agents.collect();
    std::thread::scope(|scope| {
        for agent in &agents {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| agent.send_due_writes());
            }
        }
        for begin in outages {
            sleep_as_stimulus((start + *begin).saturating_duration_since(Instant::now()));
            network.set_state(NetworkState::Down);
            sleep_as_stimulus(OUTAGE);
            network.set_state(NetworkState::Up);
        }
    });
    assert_ne!(gateway.server_status("web")["state"], "ejected");
    wait_until_outbox_empty(&gateway);
    assert_replies(&agents, back, &ledger);
}

fn assert_replies(agents: &[WriteSession], back: Instant, ledger: &Path) {
    let ledger = std::fs::read_to_string(ledger).unwrap();
    let executed = super::ledger_numbers(&ledger);
    let mut latest = Duration::ZERO;
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for agent in agents {
        let own = |number: &&u64| (agent.first..agent.first + NUMBERS).contains(*number);
        let executed: Vec<u64> = executed.iter().filter(own).copied().collect();
        agent.assert_executed(&executed);
        for one in agent.sent.lock().unwrap().iter() {
            *counts.entry(format!("{:?}", one.answer)).or_default() += 1;
            if one.answer != WriteReply::Live {
                latest = latest.max(one.answered.saturating_duration_since(back));
            }
        }
    }
    eprintln!("outage: {counts:?}; the last answer that was not live came {latest:?} after it");
    assert!(counts.contains_key("Queued"), "no outage: {counts:?}");
    assert!(latest < LIVE_AGAIN_MAX, "not live again: {latest:?}");
}

#[test]
fn outage_of_one_session_ends_with_live_responses() {
    run_outages(1, &[Duration::from_secs(2)]);
}

#[test]
fn outage_of_many_sessions_ends_with_live_responses() {
    run_outages(8, &[Duration::from_secs(2)]);
}

#[test]
fn flapping_server_is_not_ejected_and_recovers() {
    let begins = (0..7).map(|nth| Duration::from_millis(1_000 + nth * 3_600));
    run_outages(4, &begins.collect::<Vec<_>>());
}
