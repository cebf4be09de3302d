//! Writes at a steady rate while their server goes away and comes back, with the shipped defaults.
//!
//! Senders do not wait for one another: a write is sent when it is due, whatever became of the one
//! before it. So a queue that drains more slowly than writes arrive never gets empty, and shows.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::agent::{connect, read};
use super::{await_empty_outbox, tools};
use crate::harness::network::{Network, Weather};
use crate::harness::served::Served;
use crate::harness::{Gateway, last};

/// Writes that are due each second, of all sessions together.
const WRITES_PER_SECOND: u32 = 95;

/// How long the server takes over one write.
const WRITE_MS: u64 = 20;

/// Connections of each session, so that its writes are in flight together as they are due.
const CONNECTIONS: usize = 16;

/// How long the server is away.
const OUTAGE: Duration = Duration::from_secs(1);

/// The time from the end of the last outage in which answers become live again.
const LIVE_AGAIN: Duration = Duration::from_secs(5);

/// The load goes on for this long after the last outage.
const LOAD_AFTER: Duration = Duration::from_secs(8);

/// Numbers of one session.
const NUMBERS: u64 = 1_000_000;

/// What a sender was told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Live,
    Queued,
    /// Refused with this code; the write did not start.
    Refused(String),
}

/// One write that was answered.
#[derive(Clone, Debug)]
struct Sent {
    number: u64,
    sent: Instant,
    answered: Instant,
    answer: Answer,
}

/// One session whose writes are due at a steady rate.
#[derive(Debug)]
struct Session {
    address: SocketAddr,
    token: String,
    id: String,
    first: u64,
    every: Duration,
    start: Instant,
    end: Instant,
    /// The next write, counted from 0.
    next: Mutex<u32>,
    sent: Mutex<Vec<Sent>>,
}

impl Session {
    /// Sends writes as they are due until the end, over one connection.
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
            last(due.saturating_duration_since(Instant::now()));
            let sent = self.write(&mut stream, self.first + u64::from(nth));
            self.sent.lock().unwrap().push(sent);
        }
    }

    fn write(&self, stream: &mut BufReader<TcpStream>, number: u64) -> Sent {
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
        let (status, answer) = read(stream).unwrap();
        assert_eq!(status, 200, "{answer}");
        Sent {
            number,
            sent,
            answered: Instant::now(),
            answer: classify(&answer),
        }
    }

    /// Checks that each write ran as often as it was told, and that none overtook one that was
    /// answered before it was sent.
    fn check(&self, executed: &[u64]) {
        let sent = self.sent.lock().unwrap();
        let by_number: BTreeMap<u64, &Sent> = sent.iter().map(|one| (one.number, one)).collect();
        for one in sent.iter() {
            let times = executed.iter().filter(|number| **number == one.number);
            let wanted = usize::from(!matches!(one.answer, Answer::Refused(_)));
            assert_eq!(times.count(), wanted, "executions of {one:?}");
        }
        let mut latest: Option<&Sent> = None;
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

fn classify(answer: &Value) -> Answer {
    if answer["result"]["structuredContent"]["queued"] == true {
        return Answer::Queued;
    }
    if answer["result"].is_object() {
        return Answer::Live;
    }
    let data = &answer["error"]["data"];
    assert_eq!(data["execution"], "not_started", "{answer}");
    Answer::Refused(data["code"].as_str().unwrap().to_owned())
}

/// Runs the load of `sessions` sessions through outages that begin at these times after the start.
fn run(sessions: u64, outages: &[Duration]) {
    let dir = tempfile::tempdir().unwrap();
    let ledger = dir.path().join("web");
    let web = Served::start(&["--toolset", "writes", "--ledger", ledger.to_str().unwrap()]);
    let network = Network::to(web.address());
    let config = [
        "[roles.agent]\nallow = [\"*\"]\n".to_owned(),
        format!("[servers.web]\nurl = \"http://{}/mcp\"\n", network.address),
        tools("web", "header:Idempotency-Key"),
    ];
    let gateway = Gateway::up(&config.concat());
    gateway.wait_for("web", "ready");
    let start = Instant::now();
    let back = start + *outages.last().unwrap() + OUTAGE;
    let agents = (0..sessions).map(|nth| {
        let wanted = json!({"principal": format!("agent-{nth}"), "role": "agent"});
        let (_, token) = gateway.token_of(&wanted);
        Session {
            address: gateway.address,
            id: gateway.session_as(&token, "/mcp").id,
            token,
            first: nth * NUMBERS,
            every: Duration::from_secs(sessions) / WRITES_PER_SECOND,
            start,
            end: back + LOAD_AFTER,
            next: Mutex::default(),
            sent: Mutex::default(),
        }
    });
    let agents: Vec<Session> = agents.collect();
    std::thread::scope(|scope| {
        for agent in &agents {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| agent.send_due_writes());
            }
        }
        for begin in outages {
            last((start + *begin).saturating_duration_since(Instant::now()));
            network.turn(Weather::Down);
            last(OUTAGE);
            network.turn(Weather::Fair);
        }
    });
    assert_ne!(gateway.status("web")["state"], "ejected");
    await_empty_outbox(&gateway);
    check_answers(&agents, back, &ledger);
}

fn check_answers(agents: &[Session], back: Instant, ledger: &Path) {
    let ledger = std::fs::read_to_string(ledger).unwrap();
    let executed = super::numbers(&ledger);
    let mut latest = Duration::ZERO;
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for agent in agents {
        let own = |number: &&u64| (agent.first..agent.first + NUMBERS).contains(*number);
        let executed: Vec<u64> = executed.iter().filter(own).copied().collect();
        agent.check(&executed);
        for one in agent.sent.lock().unwrap().iter() {
            *counts.entry(format!("{:?}", one.answer)).or_default() += 1;
            if one.answer != Answer::Live {
                latest = latest.max(one.answered.saturating_duration_since(back));
            }
        }
    }
    eprintln!("outage: {counts:?}; the last answer that was not live came {latest:?} after it");
    assert!(counts.contains_key("Queued"), "no outage: {counts:?}");
    assert!(latest < LIVE_AGAIN, "not live again: {latest:?}");
}

#[test]
fn outage_of_one_session_ends_with_live_answers() {
    run(1, &[Duration::from_secs(2)]);
}

#[test]
fn outage_of_many_sessions_ends_with_live_answers() {
    run(8, &[Duration::from_secs(2)]);
}

#[test]
fn flapping_server_is_not_ejected_and_recovers() {
    let begins = (0..7).map(|nth| Duration::from_millis(1_000 + nth * 3_600));
    run(4, &begins.collect::<Vec<_>>());
}
