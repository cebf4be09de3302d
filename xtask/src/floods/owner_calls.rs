//! The owner's calls during a flood, and open connections of other principals.

use std::{
    io::{ErrorKind, Read},
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::flood_gateway::FloodGateway;
use super::raw_http::RawConnection;
use crate::blocking_client::BlockingClient;
use crate::process;

/// Time between two calls of the owner.
const CALL_INTERVAL: Duration = Duration::from_millis(10);

/// One of this many owner calls uses a new connection and session.
const NEW_SESSION_EVERY: u32 = 10;

/// A call that takes longer has failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Results of the owner's calls.
#[derive(Debug, Default)]
pub(super) struct OwnerStats {
    /// Latencies of calls over an open session.
    pub(super) latencies: Vec<Duration>,
    /// Failed calls, connections and sessions.
    pub(super) refused: usize,
}

impl OwnerStats {
    /// Returns the latency that `percent` percent of the calls did not exceed.
    pub(super) fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.latencies.clone();
        sorted.sort();
        let last = sorted.len().saturating_sub(1);
        let at = (sorted.len() * percent / 100).min(last);
        sorted.get(at).copied().unwrap_or_default()
    }
}

/// Calls a tool as the owner for `time`.
pub(super) fn call_as_owner(gateway: &FloodGateway, time: Duration) -> Result<OwnerStats> {
    let start = process::now();
    let mut stats = OwnerStats::default();
    let mut client = None;
    let mut number = 0_u32;
    while start.elapsed() < time {
        number += 1;
        if number.is_multiple_of(NEW_SESSION_EVERY) {
            let fresh = open_owner_session(gateway).and_then(|mut fresh| {
                call_add(&mut fresh)?;
                fresh.close_session()
            });
            stats.refused += usize::from(fresh.is_err());
        }
        let sent_at = process::now();
        let called = match client
            .take()
            .map_or_else(|| open_owner_session(gateway), Ok)
        {
            Ok(mut open) => call_add(&mut open).map(|()| open),
            Err(error) => Err(error),
        };
        match called {
            Ok(open) => {
                client = Some(open);
                stats.latencies.push(sent_at.elapsed());
            }
            Err(error) => {
                if stats.refused == 0 {
                    eprintln!("floods: a call of the owner failed: {error:#}");
                }
                stats.refused += 1;
            }
        }
        thread::sleep(CALL_INTERVAL.saturating_sub(sent_at.elapsed()));
    }
    if let Some(client) = client {
        let _ = client.close_session();
    }
    Ok(stats)
}

fn open_owner_session(gateway: &FloodGateway) -> Result<BlockingClient> {
    BlockingClient::open_session(gateway.address, &gateway.owner_token)?.with_timeout(CALL_TIMEOUT)
}

fn call_add(client: &mut BlockingClient) -> Result<()> {
    let response = client.call_tool("lab__add", &json!({"a": 2, "b": 3}))?;
    ensure_sum(&response)
}

fn ensure_sum(answer: &Value) -> Result<()> {
    let text = answer.pointer("/result/content/0/text");
    let right = text
        .and_then(Value::as_str)
        .is_some_and(|text| text.contains('5'));
    anyhow::ensure!(right, "{answer}");
    Ok(())
}

/// Open connections of other principals: an idle session, an SSE stream, and a call in flight.
#[derive(Debug)]
pub(super) struct Bystanders {
    session: BlockingClient,
    stream: RawConnection,
    call: thread::JoinHandle<Result<Value>>,
}

impl Bystanders {
    pub(super) fn connect_all(gateway: &FloodGateway, flood: Duration) -> Result<Self> {
        let session = BlockingClient::open_session(gateway.address, &gateway.bob_token)?;
        let mut stream = RawConnection::connect(gateway.address, Some(&gateway.bob_token))?;
        let opened = stream.initialize("/mcp")?;
        let id = opened.session.context("no session for the stream")?;
        let lines = format!(
            "Accept: text/event-stream\r\nMcp-Session-Id: {id}\r\n\
             MCP-Protocol-Version: 2025-11-25\r\n"
        );
        stream.write_head("GET /mcp", &lines)?;
        let (head, _) = stream.read_response_head()?;
        anyhow::ensure!(head.status == 200, "stream: status {}", head.status);
        let (address, owner) = (gateway.address, gateway.owner_token.clone());
        let ms = (flood + Duration::from_secs(2)).as_millis();
        let call = thread::spawn(move || {
            let mut client = BlockingClient::open_session(address, &owner)?;
            client.call_tool("lab__slow", &json!({"ms": ms, "message": "done"}))
        });
        Ok(Self {
            session,
            stream,
            call,
        })
    }

    /// Returns the connections and calls that did not survive.
    pub(super) fn broken_parts(mut self, gateway: &FloodGateway) -> Vec<String> {
        let mut broken = Vec::new();
        if let Err(error) = call_add(&mut self.session) {
            broken.push(format!("an idle session of another principal: {error:#}"));
        }
        if let Err(error) = ensure_stream_open(&self.stream) {
            broken.push(format!("a stream of another principal: {error:#}"));
        }
        match self.call.join() {
            Ok(Ok(answer)) if answer.pointer("/result/content/0/text").is_some() => {}
            Ok(Ok(answer)) => broken.push(format!("a call under way: {answer}")),
            Ok(Err(error)) => broken.push(format!("a call under way: {error:#}")),
            Err(_panic) => broken.push("a call under way".to_owned()),
        }
        if let Err(error) = open_owner_session(gateway).and_then(|mut client| call_add(&mut client))
        {
            broken.push(format!("the gateway after the flood: {error:#}"));
        }
        broken
    }
}

/// Discards pending bytes of a stream; a closed stream is an error.
fn ensure_stream_open(stream: &RawConnection) -> Result<()> {
    let mut socket = stream.tcp_stream();
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
    fn percentile_sorts_latencies() {
        let seen = OwnerStats {
            latencies: (1..=100).rev().map(Duration::from_millis).collect(),
            refused: 0,
        };
        assert_eq!(seen.percentile(50), Duration::from_millis(51));
        assert_eq!(seen.percentile(100), Duration::from_millis(100));
        assert_eq!(OwnerStats::default().percentile(99), Duration::ZERO);
    }
}
