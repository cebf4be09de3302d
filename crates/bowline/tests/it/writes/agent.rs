//! An agent that writes numbers and records the reported status of each.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use bowline_testkit::WAIT_MAX;
use serde_json::{Value, json};

use super::{ChaosSetup, NUMBERS};
use crate::stimulus::sleep_as_stimulus;

/// Pause of an agent before it retries a write.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The final status of a write as reported to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteStatus {
    /// The write ran.
    Acknowledged,
    /// The write is queued.
    Queued,
    /// The outcome is unknown.
    Unknown,
}

/// The result of an attempt.
#[derive(Debug)]
enum AttemptResult {
    Reported(WriteStatus),
    /// The write did not start, so every agent may retry it.
    NotStarted,
    /// No response, or a response that says the write may have run.
    Unsure,
}

/// A principal with a session that outlives every gateway.
#[derive(Debug)]
pub(super) struct WriteAgent {
    pub(super) server: &'static str,
    pub(super) tool: &'static str,
    first_number: u64,
    count: u64,
    token: String,
    session: String,
    connection: Option<(SocketAddr, BufReader<TcpStream>)>,
    statuses: Vec<WriteStatus>,
    pub(super) counts: WriteCounts,
}

/// Counts of an agent, or of all.
#[derive(Debug, Default)]
pub(super) struct WriteCounts {
    pub(super) sent: u64,
    acknowledged: u64,
    queued: u64,
    unknown: u64,
    repeated: u64,
    executed: u64,
    twice: u64,
}

impl WriteAgent {
    pub(super) fn new(
        server: &'static str,
        tool: &'static str,
        first_number: u64,
        count: u64,
        token: String,
        session: String,
    ) -> Self {
        Self {
            server,
            tool,
            first_number,
            count,
            token,
            session,
            connection: None,
            statuses: Vec::new(),
            counts: WriteCounts::default(),
        }
    }

    pub(super) fn is_own_number(&self, number: u64) -> bool {
        (self.first_number..self.first_number + NUMBERS).contains(&number)
    }

    fn can_retry(&self) -> bool {
        self.tool == "write_once"
    }

    /// Writes all numbers.
    pub(super) fn write_all(&mut self, world: &ChaosSetup) {
        for number in self.first_number..self.first_number + self.count {
            let told = self.write_number(world, number);
            self.statuses.push(told);
            self.counts.sent += 1;
            match told {
                WriteStatus::Acknowledged => self.counts.acknowledged += 1,
                WriteStatus::Queued => self.counts.queued += 1,
                WriteStatus::Unknown => self.counts.unknown += 1,
            }
            world.completed_writes.add_one();
        }
    }

    /// Writes a number, with allowed retries, until the status is known.
    fn write_number(&mut self, world: &ChaosSetup, number: u64) -> WriteStatus {
        let end = Instant::now() + WAIT_MAX;
        loop {
            // Looked up each time: a killed gateway restarts at another address.
            let address = world.gateway.lock().unwrap().address;
            match self.attempt_write(address, number) {
                AttemptResult::Reported(told) => return told,
                AttemptResult::Unsure if !self.can_retry() => return WriteStatus::Unknown,
                AttemptResult::Unsure | AttemptResult::NotStarted => {}
            }
            self.counts.repeated += 1;
            assert!(Instant::now() < end, "{number} gets no answer");
            sleep_as_stimulus(RETRY_PAUSE);
        }
    }

    fn attempt_write(&mut self, address: SocketAddr, number: u64) -> AttemptResult {
        if self
            .connection
            .as_ref()
            .is_none_or(|(known, _)| *known != address)
        {
            self.connection = match connect(address) {
                Ok(stream) => Some((address, stream)),
                Err(_) => return AttemptResult::NotStarted,
            };
        }
        let body = json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {
            "name": format!("{}__{}", self.server, self.tool),
            "arguments": {"number": number},
            "_meta": {"dev.bowline/idempotencyKey": format!("key-{number}")},
        }});
        let answered = self.exchange_http(address, &body.to_string());
        match answered {
            Ok((200, answer)) => self.classify_response(number, &answer),
            Ok((status, answer)) => panic!("{number}: {status} {answer}"),
            Err(_) => {
                self.connection = None;
                AttemptResult::Unsure
            }
        }
    }

    fn classify_response(&self, number: u64, answer: &Value) -> AttemptResult {
        let said = &answer["result"]["structuredContent"];
        if said["queued"] == true {
            assert!(self.can_retry(), "{answer}");
            assert_eq!(said["idempotencyKey"], format!("key-{number}"), "{answer}");
            return AttemptResult::Reported(WriteStatus::Queued);
        }
        if answer["result"].is_object() {
            assert_eq!(said["number"], number, "{answer}");
            return AttemptResult::Reported(WriteStatus::Acknowledged);
        }
        match answer["error"]["data"]["execution"].as_str() {
            Some("not_started") => AttemptResult::NotStarted,
            Some("unknown") => AttemptResult::Unsure,
            _ => panic!("{number}: {answer}"),
        }
    }

    fn exchange_http(&mut self, address: SocketAddr, body: &str) -> io::Result<(u16, Value)> {
        let Some((_, stream)) = &mut self.connection else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        // Without a stream, a response is a JSON body.
        let request = format!(
            "POST /mcp HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {}\r\n\
             Mcp-Session-Id: {}\r\nMCP-Protocol-Version: 2025-11-25\r\n\
             Content-Type: application/json\r\nAccept: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.token,
            self.session,
            body.len()
        );
        stream.get_mut().write_all(request.as_bytes())?;
        read_response(stream)
    }

    /// Compares the ledger with the reported statuses.
    pub(super) fn assert_executed(&self, executed: &[u64]) {
        let numbers = self.first_number..self.first_number + self.count;
        if self.can_retry() {
            let all: Vec<u64> = numbers.collect();
            assert!(!self.statuses.contains(&WriteStatus::Unknown));
            assert_eq!(executed, all, "{}: each once, and in order", self.server);
            return;
        }
        for (number, told) in numbers.zip(&self.statuses) {
            let times = executed.iter().filter(|one| **one == number).count();
            let may = match told {
                WriteStatus::Acknowledged => 1..=1,
                WriteStatus::Unknown => 0..=1,
                WriteStatus::Queued => panic!("{number} was queued"),
            };
            assert!(
                may.contains(&times),
                "{number}: {told:?}, but {times} times"
            );
        }
        assert!(executed.is_sorted(), "{}: in order", self.server);
    }
}

pub(super) fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

pub(super) fn read_response(stream: &mut BufReader<TcpStream>) -> io::Result<(u16, Value)> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let status = line.split_whitespace().nth(1);
    let status = status.and_then(|status| status.parse().ok());
    let status = status.ok_or(io::ErrorKind::UnexpectedEof)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    let answer = serde_json::from_slice(&body);
    Ok((status, answer.map_err(|_| io::ErrorKind::InvalidData)?))
}

impl WriteCounts {
    pub(super) fn add(&mut self, other: &Self, executed: &[u64]) {
        let distinct: BTreeSet<_> = executed.iter().collect();
        self.sent += other.sent;
        self.acknowledged += other.acknowledged;
        self.queued += other.queued;
        self.unknown += other.unknown;
        self.repeated += other.repeated;
        self.executed += executed.len() as u64;
        self.twice += (executed.len() - distinct.len()) as u64;
    }
}

impl fmt::Display for WriteCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sent,
            acknowledged,
            queued,
            unknown,
            repeated,
            executed,
            twice,
        } = self;
        write!(
            f,
            "{sent} sent, {acknowledged} acknowledged, {queued} queued, {unknown} unknown; \
             tried again {repeated} times; {executed} executed, {twice} of them twice"
        )
    }
}
