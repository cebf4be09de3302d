//! The floods: each runs on separate threads until stopped.

use std::{
    io::Read,
    net::TcpStream,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::flood_gateway::FloodGateway;
use super::raw_http::{RawConnection, json_rpc_request};
use crate::raw_websocket::RawWebSocket;

/// A flood and its name.
#[derive(Debug)]
pub(super) struct FloodAttack {
    pub(super) name: &'static str,
    pub(super) run: fn(&FloodGateway, &AtomicBool, FloodSize) -> FloodCounts,
}

/// Amount of data in a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloodSize {
    Full,
    /// An amount that a debug build handles in seconds.
    Short,
}

/// Accepted and rejected requests of a flooder.
#[derive(Debug, Default)]
pub(super) struct FloodCounts {
    pub(super) taken: u64,
    pub(super) refused: u64,
}

pub(super) const ATTACKS: &[FloodAttack] = &[
    new_attack("sessions", flood_sessions),
    new_attack("streams", flood_streams),
    new_attack("subscriptions", flood_subscriptions),
    new_attack("bodies", flood_bodies),
    new_attack("responses", flood_responses),
    new_attack("deliveries", flood_deliveries),
    new_attack("ping", flood_ping),
    new_attack("prehello", flood_prehello),
    new_attack("idle", flood_idle_connections),
];

const fn new_attack(
    name: &'static str,
    run: fn(&FloodGateway, &AtomicBool, FloodSize) -> FloodCounts,
) -> FloodAttack {
    FloodAttack { name, run }
}

/// Threads of one flooder.
const FLOOD_THREADS: usize = 4;

/// Body size just below the gateway's limit.
const BODY_BYTES: usize = 8 * 1024 * 1024;

/// Pause after a rejected request.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Counters shared by all threads of a flood.
#[derive(Debug, Default)]
struct FloodCounters {
    taken: AtomicU64,
    refused: AtomicU64,
}

impl FloodCounters {
    fn count_result<T>(&self, done: Result<T>) -> Option<T> {
        match done {
            Ok(done) => {
                self.taken.fetch_add(1, Relaxed);
                Some(done)
            }
            Err(_) => {
                self.refused.fetch_add(1, Relaxed);
                thread::sleep(RETRY_PAUSE);
                None
            }
        }
    }
}

/// Runs `one` repeatedly on every thread until stopped.
fn run_threads(stop: &AtomicBool, one: impl Fn(&FloodCounters) + Sync) -> FloodCounts {
    let count = FloodCounters::default();
    thread::scope(|scope| {
        for _ in 0..FLOOD_THREADS {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    one(&count);
                }
            });
        }
    });
    FloodCounts {
        taken: count.taken.load(Relaxed),
        refused: count.refused.load(Relaxed),
    }
}

/// Sends `initialize` as fast as possible.
fn flood_sessions(gateway: &FloodGateway, stop: &AtomicBool, _: FloodSize) -> FloodCounts {
    run_threads(stop, |count| {
        let Ok(mut wire) = RawConnection::connect(gateway.address, Some(&gateway.mallory_token))
        else {
            return thread::sleep(RETRY_PAUSE);
        };
        while !stop.load(Relaxed) {
            let opened = wire.initialize("/mcp").and_then(|response| {
                anyhow::ensure!(response.status == 200, "status {}", response.status);
                Ok(())
            });
            if count.count_result(opened).is_none() {
                return;
            }
        }
    })
}

/// Opens up to `limit` connections and keeps them open until stopped.
fn hold_connections(
    stop: &AtomicBool,
    limit: usize,
    open: impl Fn() -> Result<TcpStream> + Sync,
) -> FloodCounts {
    let held = std::sync::Mutex::new(Vec::new());
    let result = run_threads(stop, |count| {
        let full = held.lock().is_ok_and(|held| held.len() >= limit);
        if full {
            // Connections that the gateway closed are opened again.
            if let Ok(mut held) = held.lock() {
                held.retain(is_stream_open);
            }
            return thread::sleep(Duration::from_millis(50));
        }
        if let Some(stream) = count.count_result(open())
            && let Ok(mut held) = held.lock()
        {
            held.push(stream);
        }
    });
    drop(held);
    result
}

fn is_stream_open(stream: &TcpStream) -> bool {
    let mut one = [0];
    let quiet = stream.set_nonblocking(true);
    quiet.is_ok()
        && match stream.peek(&mut one) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
}

/// Opens 2024-11-05 SSE streams.
fn flood_streams(gateway: &FloodGateway, stop: &AtomicBool, _: FloodSize) -> FloodCounts {
    hold_connections(stop, 8_200, || {
        let mut wire = RawConnection::connect(gateway.address, Some(&gateway.mallory_token))?;
        wire.write_head("GET /sse", "Accept: text/event-stream\r\n")?;
        let (head, _) = wire.read_response_head()?;
        anyhow::ensure!(head.status == 200, "status {}", head.status);
        Ok(wire.tcp_stream().try_clone()?)
    })
}

/// Sends `resources/subscribe` with URIs of 6.7 MiB and of a hundred bytes.
fn flood_subscriptions(gateway: &FloodGateway, stop: &AtomicBool, _: FloodSize) -> FloodCounts {
    let next = AtomicU64::new(0);
    run_threads(stop, |count| {
        let path = "/servers/lab/mcp";
        let opened = RawConnection::connect(gateway.address, Some(&gateway.reader_token)).and_then(
            |mut wire| {
                let id = wire.initialize(path)?.session.context("no session")?;
                Ok((wire, id))
            },
        );
        let Ok((mut wire, id)) = opened else {
            count.refused.fetch_add(1, Relaxed);
            return thread::sleep(RETRY_PAUSE);
        };
        for _ in 0..64 {
            let number = next.fetch_add(1, Relaxed);
            let length = if number.is_multiple_of(8) {
                6_700_000
            } else {
                100
            };
            let uri = format!("file:///{number}/{}", "x".repeat(length));
            let body = json_rpc_request("resources/subscribe", &json!({"uri": uri})).to_string();
            let sent = wire
                .send_post(path, Some(&id), body.as_bytes())
                .and_then(|()| wire.read_response());
            if count.count_result(sent).is_none() || stop.load(Relaxed) {
                return;
            }
        }
    })
}

/// Sends bodies of 8 MiB without the last byte over two hundred connections.
fn flood_bodies(gateway: &FloodGateway, stop: &AtomicBool, _: FloodSize) -> FloodCounts {
    let body = vec![b' '; BODY_BYTES - 1];
    hold_connections(stop, 200, || {
        let mut wire = RawConnection::connect(gateway.address, Some(&gateway.mallory_token))?;
        wire.write_post_head("/mcp", None, BODY_BYTES)?;
        wire.write_bytes(&body)?;
        Ok(wire.tcp_stream().try_clone()?)
    })
}

/// Requests results of 7.6 MiB over three hundred connections and reads them very slowly.
fn flood_responses(gateway: &FloodGateway, stop: &AtomicBool, size: FloodSize) -> FloodCounts {
    let connections = match size {
        FloodSize::Full => 300,
        FloodSize::Short => 20,
    };
    let arguments = json!({"name": "lab__big", "arguments": {"bytes": 7_600_000}});
    let call = json_rpc_request("tools/call", &arguments).to_string();
    let held = std::sync::Mutex::new(Vec::<TcpStream>::new());
    run_threads(stop, |count| {
        if let Ok(mut held) = held.lock()
            && held.len() >= connections
        {
            let mut some = [0; 2048];
            held.retain_mut(|stream| match stream.read(&mut some) {
                Ok(count) => count > 0,
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            });
            drop(held);
            return thread::sleep(Duration::from_millis(500));
        }
        let opened = RawConnection::connect(gateway.address, Some(&gateway.reader_token)).and_then(
            |mut wire| {
                let id = wire.initialize("/mcp")?.session;
                wire.send_post("/mcp", id.as_deref(), call.as_bytes())?;
                wire.tcp_stream().set_nonblocking(true)?;
                Ok(wire.tcp_stream().try_clone()?)
            },
        );
        if let Some(stream) = count.count_result(opened)
            && let Ok(mut held) = held.lock()
        {
            held.push(stream);
        }
    })
}

/// Delivers messages of 2 MB to the hub and never reads the replies.
fn flood_deliveries(gateway: &FloodGateway, stop: &AtomicBool, _: FloodSize) -> FloodCounts {
    let next = AtomicU64::new(0);
    let arguments = "y".repeat(2_000_000);
    run_threads(stop, |count| {
        let part = next.fetch_add(1, Relaxed);
        let name = format!("mallory#{part}");
        let Some(mut socket) = count.count_result(RawWebSocket::connect_peer(
            gateway.address,
            &name,
            &gateway.mallory_token,
        )) else {
            return;
        };
        while !stop.load(Relaxed) {
            let id = next.fetch_add(1, Relaxed);
            let frame = format!(
                "{{\"kind\":\"deliver\",\"to\":\"hub\",\"message\":{{\"id\":\"m-{id}\",\
                 \"kind\":\"mcp_request\",\"body\":{{\"op\":\"call\",\"tool\":\"lab__add\",\
                 \"arguments\":{{\"x\":\"{arguments}\"}}}}}}}}"
            );
            if count.count_result(socket.send_text(&frame)).is_none() {
                return;
            }
        }
    })
}

/// Sends `ping` with 8 MiB of short keys.
fn flood_ping(gateway: &FloodGateway, stop: &AtomicBool, _: FloodSize) -> FloodCounts {
    let mut params = String::with_capacity(BODY_BYTES);
    let mut number = 0_u32;
    while params.len() < BODY_BYTES - 1024 {
        params.push_str(&format!("\"k{number}\":1,"));
        number += 1;
    }
    let body = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{{{params}\"end\":1}}}}"
    );
    run_threads(stop, |count| {
        let opened = RawConnection::connect(gateway.address, Some(&gateway.mallory_token))
            .and_then(|mut wire| {
                let id = wire.initialize("/mcp")?.session;
                Ok((wire, id))
            });
        let Ok((mut wire, Some(id))) = opened else {
            return thread::sleep(RETRY_PAUSE);
        };
        while !stop.load(Relaxed) {
            let sent = wire
                .send_post("/mcp", Some(&id), body.as_bytes())
                .and_then(|()| wire.read_response())
                .and_then(|response| {
                    anyhow::ensure!(response.status == 200, "status {}", response.status);
                    Ok(())
                });
            if count.count_result(sent).is_none() {
                return;
            }
        }
    })
}

/// Sends incomplete frames of 9 MiB to the broker before `hello`.
fn flood_prehello(gateway: &FloodGateway, stop: &AtomicBool, _: FloodSize) -> FloodCounts {
    let mut frame = vec![0x81, 0xff];
    frame.extend_from_slice(&(9_u64 * 1024 * 1024).to_be_bytes());
    frame.resize(9 * 1024 * 1024, 0);
    hold_connections(stop, 255, || {
        let mut wire = RawConnection::connect(gateway.address, None)?;
        let lines = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        wire.write_head("GET /broker", lines)?;
        let (head, _) = wire.read_response_head()?;
        anyhow::ensure!(head.status == 101, "status {}", head.status);
        wire.write_bytes(&frame)?;
        Ok(wire.tcp_stream().try_clone()?)
    })
}

/// Opens connections, sends `GET /livez` once and leaves them idle.
fn flood_idle_connections(gateway: &FloodGateway, stop: &AtomicBool, _: FloodSize) -> FloodCounts {
    hold_connections(stop, 16_600, || {
        let mut wire = RawConnection::connect(gateway.address, None)?;
        wire.write_head("GET /livez", "")?;
        wire.read_response()?;
        Ok(wire.tcp_stream().try_clone()?)
    })
}
