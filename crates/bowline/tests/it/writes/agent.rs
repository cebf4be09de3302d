//! An agent that writes numbers, and knows what it was told of each.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{NUMBERS, World};
use crate::harness::{PATIENCE, last};

/// What an agent was told of one write in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// It ran.
    Acknowledged,
    /// It will run.
    Queued,
    /// Nobody knows.
    Unknown,
}

/// What came of one try.
#[derive(Debug)]
enum Try {
    Told(Told),
    /// It did not start, so it may be tried again by anybody.
    NotStarted,
    /// No answer, or one that says that it may have run.
    Unsure,
}

/// One principal with one session, which outlives every gateway.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) server: &'static str,
    pub(super) tool: &'static str,
    first: u64,
    count: u64,
    token: String,
    session: String,
    connection: Option<(SocketAddr, BufReader<TcpStream>)>,
    told: Vec<Told>,
    pub(super) tally: Tally,
}

/// What is counted of one agent, or of all.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) sent: u64,
    acknowledged: u64,
    queued: u64,
    unknown: u64,
    repeated: u64,
    executed: u64,
    twice: u64,
}

impl Agent {
    pub(super) fn new(
        (server, tool): (&'static str, &'static str),
        (first, count): (u64, u64),
        token: String,
        session: String,
    ) -> Self {
        Self {
            server,
            tool,
            first,
            count,
            token,
            session,
            connection: None,
            told: Vec::new(),
            tally: Tally::default(),
        }
    }

    pub(super) fn owns(&self, number: u64) -> bool {
        (self.first..self.first + NUMBERS).contains(&number)
    }

    fn repeats(&self) -> bool {
        self.tool == "write_once"
    }

    /// Writes all its numbers.
    pub(super) fn work(&mut self, world: &World) {
        for number in self.first..self.first + self.count {
            let told = self.write(world, number);
            self.told.push(told);
            self.tally.sent += 1;
            match told {
                Told::Acknowledged => self.tally.acknowledged += 1,
                Told::Queued => self.tally.queued += 1,
                Told::Unknown => self.tally.unknown += 1,
            }
            world.done.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Writes one number, again where it may, until it is told what became of it.
    fn write(&mut self, world: &World, number: u64) -> Told {
        let end = Instant::now() + PATIENCE;
        loop {
            // Looked up each time: a killed gateway comes back elsewhere.
            let address = world.gateway.lock().unwrap().address;
            match self.attempt(address, number) {
                Try::Told(told) => return told,
                Try::Unsure if !self.repeats() => return Told::Unknown,
                Try::Unsure | Try::NotStarted => {}
            }
            self.tally.repeated += 1;
            assert!(Instant::now() < end, "{number} gets no answer");
            last(Duration::from_millis(20));
        }
    }

    fn attempt(&mut self, address: SocketAddr, number: u64) -> Try {
        if self
            .connection
            .as_ref()
            .is_none_or(|(known, _)| *known != address)
        {
            self.connection = match connect(address) {
                Ok(stream) => Some((address, stream)),
                Err(_) => return Try::NotStarted,
            };
        }
        let body = json!({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {
            "name": format!("{}__{}", self.server, self.tool),
            "arguments": {"number": number},
            "_meta": {"dev.bowline/idempotencyKey": format!("key-{number}")},
        }});
        let answered = self.exchange(address, &body.to_string());
        match answered {
            Ok((200, answer)) => self.judge(number, &answer),
            Ok((status, answer)) => panic!("{number}: {status} {answer}"),
            Err(_) => {
                self.connection = None;
                Try::Unsure
            }
        }
    }

    fn judge(&self, number: u64, answer: &Value) -> Try {
        let said = &answer["result"]["structuredContent"];
        if said["queued"] == true {
            assert!(self.repeats(), "{answer}");
            assert_eq!(said["idempotencyKey"], format!("key-{number}"), "{answer}");
            return Try::Told(Told::Queued);
        }
        if answer["result"].is_object() {
            assert_eq!(said["number"], number, "{answer}");
            return Try::Told(Told::Acknowledged);
        }
        match answer["error"]["data"]["execution"].as_str() {
            Some("not_started") => Try::NotStarted,
            Some("unknown") => Try::Unsure,
            _ => panic!("{number}: {answer}"),
        }
    }

    fn exchange(&mut self, address: SocketAddr, body: &str) -> io::Result<(u16, Value)> {
        let Some((_, stream)) = &mut self.connection else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        // Without streams an answer is one piece of JSON.
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
        read(stream)
    }

    /// Holds what the ledger shows against what it was told.
    pub(super) fn check(&self, executed: &[u64]) {
        let numbers = self.first..self.first + self.count;
        if self.repeats() {
            let all: Vec<u64> = numbers.collect();
            assert!(!self.told.contains(&Told::Unknown));
            assert_eq!(executed, all, "{}: each once, and in order", self.server);
            return;
        }
        for (number, told) in numbers.zip(&self.told) {
            let times = executed.iter().filter(|one| **one == number).count();
            let may = match told {
                Told::Acknowledged => 1..=1,
                Told::Unknown => 0..=1,
                Told::Queued => panic!("{number} was queued"),
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
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

pub(super) fn read(stream: &mut BufReader<TcpStream>) -> io::Result<(u16, Value)> {
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

impl Tally {
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

impl fmt::Display for Tally {
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
