//! The owner at work during a flood, and what others have open meanwhile.

use std::{
    io::{ErrorKind, Read},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::gateway::Gateway;
use super::http::Wire;
use crate::client::Client;
use crate::process;

/// Time from one call of the owner to the next.
const PACE: Duration = Duration::from_millis(10);

/// Of the owner's calls, one in so many comes over a new connection and session.
const FRESH_EVERY: u32 = 10;

/// A call that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the owner saw.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Of every call over an open session.
    pub(super) latencies: Vec<Duration>,
    /// Calls, connections and sessions that were not served.
    pub(super) refused: usize,
}

impl Seen {
    /// Returns the latency that so many percent of the calls did not exceed.
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort();
        let last = sorted.len().saturating_sub(1);
        let at = (sorted.len() * percent / 100).min(last);
        sorted.get(at).copied().unwrap_or_default()
    }
}

/// Lets the owner call a tool for this long.
pub(super) fn work(gateway: &Gateway, time: Duration) -> Result<Seen> {
    let start = process::now();
    let mut seen = Seen::default();
    let mut client = None;
    let mut number = 0_u32;
    while start.elapsed() < time {
        number += 1;
        if number.is_multiple_of(FRESH_EVERY) {
            let fresh = open(gateway).and_then(|mut fresh| {
                add(&mut fresh)?;
                fresh.close()
            });
            seen.refused += usize::from(fresh.is_err());
        }
        let asked = process::now();
        let called = match client.take().map_or_else(|| open(gateway), Ok) {
            Ok(mut open) => add(&mut open).map(|()| open),
            Err(error) => Err(error),
        };
        match called {
            Ok(open) => {
                client = Some(open);
                seen.latencies.push(asked.elapsed());
            }
            Err(error) => {
                if seen.refused == 0 {
                    eprintln!("floods: a call of the owner failed: {error:#}");
                }
                seen.refused += 1;
            }
        }
        thread::sleep(PACE.saturating_sub(asked.elapsed()));
    }
    if let Some(client) = client {
        let _ = client.close();
    }
    Ok(seen)
}

fn open(gateway: &Gateway) -> Result<Client> {
    Client::open(gateway.address, &gateway.owner)?.patient(PATIENCE)
}

fn add(client: &mut Client) -> Result<()> {
    let answer = client.call("lab__add", &json!({"a": 2, "b": 3}))?;
    is_five(&answer)
}

fn is_five(answer: &Value) -> Result<()> {
    let text = answer.pointer("/result/content/0/text");
    let right = text
        .and_then(Value::as_str)
        .is_some_and(|text| text.contains('5'));
    anyhow::ensure!(right, "{answer}");
    Ok(())
}

/// What others have open: an idle session, a stream that listens, and a call under way.
#[derive(Debug)]
pub(super) struct Bystanders {
    session: Client,
    stream: Wire,
    call: thread::JoinHandle<Result<Value>>,
}

impl Bystanders {
    pub(super) fn settle(gateway: &Gateway, flood: Duration) -> Result<Self> {
        let session = Client::open(gateway.address, &gateway.bob)?;
        let mut stream = Wire::connect(gateway.address, Some(&gateway.bob))?;
        let opened = stream.initialize("/mcp")?;
        let id = opened.session.context("no session for the stream")?;
        let lines = format!(
            "Accept: text/event-stream\r\nMcp-Session-Id: {id}\r\n\
             MCP-Protocol-Version: 2025-11-25\r\n"
        );
        stream.head("GET /mcp", &lines)?;
        let (head, _) = stream.response_head()?;
        anyhow::ensure!(head.status == 200, "stream: status {}", head.status);
        let (address, owner) = (gateway.address, gateway.owner.clone());
        let ms = (flood + Duration::from_secs(2)).as_millis();
        let call = thread::spawn(move || {
            let mut client = Client::open(address, &owner)?;
            client.call("lab__slow", &json!({"ms": ms, "message": "done"}))
        });
        Ok(Self {
            session,
            stream,
            call,
        })
    }

    /// Names what did not survive.
    pub(super) fn broken(mut self, gateway: &Gateway) -> Vec<String> {
        let mut broken = Vec::new();
        if let Err(error) = add(&mut self.session) {
            broken.push(format!("an idle session of another principal: {error:#}"));
        }
        if let Err(error) = is_open(&self.stream) {
            broken.push(format!("a stream of another principal: {error:#}"));
        }
        match self.call.join() {
            Ok(Ok(answer)) if answer.pointer("/result/content/0/text").is_some() => {}
            Ok(Ok(answer)) => broken.push(format!("a call under way: {answer}")),
            Ok(Err(error)) => broken.push(format!("a call under way: {error:#}")),
            Err(_panic) => broken.push("a call under way".to_owned()),
        }
        if let Err(error) = open(gateway).and_then(|mut client| add(&mut client)) {
            broken.push(format!("the gateway after the flood: {error:#}"));
        }
        broken
    }
}

/// Reads what came on a stream; its end is an error.
fn is_open(stream: &Wire) -> Result<()> {
    let mut socket = stream.socket();
    socket.set_nonblocking(true)?;
    let mut some = [0; 4096];
    loop {
        match socket.read(&mut some) {
            Ok(0) => anyhow::bail!("the gateway closed it"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_sorted_latencies() {
        let seen = Seen {
            latencies: (1..=100).rev().map(Duration::from_millis).collect(),
            refused: 0,
        };
        assert_eq!(seen.percentile(50), Duration::from_millis(51));
        assert_eq!(seen.percentile(100), Duration::from_millis(100));
        assert_eq!(Seen::default().percentile(99), Duration::ZERO);
    }
}
