//! The floods themselves: each runs until it is told to stop, on threads of its own.

use std::{
    io::Read,
    net::TcpStream,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::json;

use super::gateway::Gateway;
use super::http::{Wire, request};
use crate::socket::Socket;

/// A flood by its name.
#[derive(Debug)]
pub(super) struct Attack {
    pub(super) name: &'static str,
    pub(super) run: fn(&Gateway, &AtomicBool, Size) -> Flood,
}

/// How much a flood sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Full,
    /// What a gateway without optimisation takes in seconds.
    Short,
}

/// What a flooder got through, and what it was refused.
#[derive(Debug, Default)]
pub(super) struct Flood {
    pub(super) taken: u64,
    pub(super) refused: u64,
}

pub(super) const ATTACKS: &[Attack] = &[
    attack("sessions", sessions),
    attack("streams", streams),
    attack("subscriptions", subscriptions),
    attack("bodies", bodies),
    attack("responses", responses),
    attack("deliveries", deliveries),
    attack("ping", ping),
    attack("prehello", prehello),
    attack("idle", idle),
];

const fn attack(name: &'static str, run: fn(&Gateway, &AtomicBool, Size) -> Flood) -> Attack {
    Attack { name, run }
}

/// Threads of one flooder.
const THREADS: usize = 4;

/// Bytes of a body just below what the gateway takes.
const BODY_BYTES: usize = 8 * 1024 * 1024;

/// Time until a flooder that was refused tries again.
const PAUSE: Duration = Duration::from_millis(5);

/// Counts of all threads of a flood.
#[derive(Debug, Default)]
struct Count {
    taken: AtomicU64,
    refused: AtomicU64,
}

impl Count {
    fn note<T>(&self, done: Result<T>) -> Option<T> {
        match done {
            Ok(done) => {
                self.taken.fetch_add(1, Relaxed);
                Some(done)
            }
            Err(_) => {
                self.refused.fetch_add(1, Relaxed);
                thread::sleep(PAUSE);
                None
            }
        }
    }
}

/// Runs `one` on every thread, again and again, until it is time to stop.
fn flood(stop: &AtomicBool, one: impl Fn(&Count) + Sync) -> Flood {
    let count = Count::default();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    one(&count);
                }
            });
        }
    });
    Flood {
        taken: count.taken.load(Relaxed),
        refused: count.refused.load(Relaxed),
    }
}

/// `initialize`, as fast as it goes.
fn sessions(gateway: &Gateway, stop: &AtomicBool, _: Size) -> Flood {
    flood(stop, |count| {
        let Ok(mut wire) = Wire::connect(gateway.address, Some(&gateway.mallory)) else {
            return thread::sleep(PAUSE);
        };
        while !stop.load(Relaxed) {
            let opened = wire.initialize("/mcp").and_then(|response| {
                anyhow::ensure!(response.status == 200, "status {}", response.status);
                Ok(())
            });
            if count.note(opened).is_none() {
                return;
            }
        }
    })
}

/// Opens a connection and keeps it for as long as the flood lasts.
fn hold(stop: &AtomicBool, limit: usize, open: impl Fn() -> Result<TcpStream> + Sync) -> Flood {
    let held = std::sync::Mutex::new(Vec::new());
    let result = flood(stop, |count| {
        let full = held.lock().is_ok_and(|held| held.len() >= limit);
        if full {
            // Those that the gateway closed are opened again.
            if let Ok(mut held) = held.lock() {
                held.retain(is_alive);
            }
            return thread::sleep(Duration::from_millis(50));
        }
        if let Some(stream) = count.note(open())
            && let Ok(mut held) = held.lock()
        {
            held.push(stream);
        }
    });
    drop(held);
    result
}

fn is_alive(stream: &TcpStream) -> bool {
    let mut one = [0];
    let quiet = stream.set_nonblocking(true);
    quiet.is_ok()
        && match stream.peek(&mut one) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
}

/// Streams of 2024-11-05 that listen.
fn streams(gateway: &Gateway, stop: &AtomicBool, _: Size) -> Flood {
    hold(stop, 8_200, || {
        let mut wire = Wire::connect(gateway.address, Some(&gateway.mallory))?;
        wire.head("GET /sse", "Accept: text/event-stream\r\n")?;
        let (head, _) = wire.response_head()?;
        anyhow::ensure!(head.status == 200, "status {}", head.status);
        Ok(wire.socket().try_clone()?)
    })
}

/// `resources/subscribe`, with URIs of 6.7 MiB and of a hundred bytes in turns.
fn subscriptions(gateway: &Gateway, stop: &AtomicBool, _: Size) -> Flood {
    let next = AtomicU64::new(0);
    flood(stop, |count| {
        let path = "/servers/lab/mcp";
        let opened = Wire::connect(gateway.address, Some(&gateway.reader)).and_then(|mut wire| {
            let id = wire.initialize(path)?.session.context("no session")?;
            Ok((wire, id))
        });
        let Ok((mut wire, id)) = opened else {
            count.refused.fetch_add(1, Relaxed);
            return thread::sleep(PAUSE);
        };
        for _ in 0..64 {
            let number = next.fetch_add(1, Relaxed);
            let length = if number.is_multiple_of(8) {
                6_700_000
            } else {
                100
            };
            let uri = format!("file:///{number}/{}", "x".repeat(length));
            let body = request("resources/subscribe", &json!({"uri": uri})).to_string();
            let sent = wire
                .post(path, Some(&id), body.as_bytes())
                .and_then(|()| wire.response());
            if count.note(sent).is_none() || stop.load(Relaxed) {
                return;
            }
        }
    })
}

/// Bodies of 8 MiB that lack their last byte, over two hundred connections.
fn bodies(gateway: &Gateway, stop: &AtomicBool, _: Size) -> Flood {
    let body = vec![b' '; BODY_BYTES - 1];
    hold(stop, 200, || {
        let mut wire = Wire::connect(gateway.address, Some(&gateway.mallory))?;
        wire.post_head("/mcp", None, BODY_BYTES)?;
        wire.write(&body)?;
        Ok(wire.socket().try_clone()?)
    })
}

/// Results of 7.6 MiB of which hardly anything is read, over three hundred connections.
fn responses(gateway: &Gateway, stop: &AtomicBool, size: Size) -> Flood {
    let connections = match size {
        Size::Full => 300,
        Size::Short => 20,
    };
    let arguments = json!({"name": "lab__big", "arguments": {"bytes": 7_600_000}});
    let call = request("tools/call", &arguments).to_string();
    let held = std::sync::Mutex::new(Vec::<TcpStream>::new());
    flood(stop, |count| {
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
        let opened = Wire::connect(gateway.address, Some(&gateway.reader)).and_then(|mut wire| {
            let id = wire.initialize("/mcp")?.session;
            wire.post("/mcp", id.as_deref(), call.as_bytes())?;
            wire.socket().set_nonblocking(true)?;
            Ok(wire.socket().try_clone()?)
        });
        if let Some(stream) = count.note(opened)
            && let Ok(mut held) = held.lock()
        {
            held.push(stream);
        }
    })
}

/// Deliveries of 2 MB to the hub, whose replies nobody reads.
fn deliveries(gateway: &Gateway, stop: &AtomicBool, _: Size) -> Flood {
    let next = AtomicU64::new(0);
    let arguments = "y".repeat(2_000_000);
    flood(stop, |count| {
        let part = next.fetch_add(1, Relaxed);
        let name = format!("mallory#{part}");
        let Some(mut socket) = count.note(Socket::join(gateway.address, &name, &gateway.mallory))
        else {
            return;
        };
        while !stop.load(Relaxed) {
            let id = next.fetch_add(1, Relaxed);
            let frame = format!(
                "{{\"kind\":\"deliver\",\"to\":\"hub\",\"message\":{{\"id\":\"m-{id}\",\
                 \"kind\":\"mcp_request\",\"body\":{{\"op\":\"call\",\"tool\":\"lab__add\",\
                 \"arguments\":{{\"x\":\"{arguments}\"}}}}}}}}"
            );
            if count.note(socket.say_text(&frame)).is_none() {
                return;
            }
        }
    })
}

/// `ping` with 8 MiB of short keys.
fn ping(gateway: &Gateway, stop: &AtomicBool, _: Size) -> Flood {
    let mut params = String::with_capacity(BODY_BYTES);
    let mut number = 0_u32;
    while params.len() < BODY_BYTES - 1024 {
        params.push_str(&format!("\"k{number}\":1,"));
        number += 1;
    }
    let body = format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\",\"params\":{{{params}\"end\":1}}}}"
    );
    flood(stop, |count| {
        let opened = Wire::connect(gateway.address, Some(&gateway.mallory)).and_then(|mut wire| {
            let id = wire.initialize("/mcp")?.session;
            Ok((wire, id))
        });
        let Ok((mut wire, Some(id))) = opened else {
            return thread::sleep(PAUSE);
        };
        while !stop.load(Relaxed) {
            let sent = wire
                .post("/mcp", Some(&id), body.as_bytes())
                .and_then(|()| wire.response())
                .and_then(|response| {
                    anyhow::ensure!(response.status == 200, "status {}", response.status);
                    Ok(())
                });
            if count.note(sent).is_none() {
                return;
            }
        }
    })
}

/// Half frames of 9 MiB at the broker, before anybody said who it is.
fn prehello(gateway: &Gateway, stop: &AtomicBool, _: Size) -> Flood {
    let mut frame = vec![0x81, 0xff];
    frame.extend_from_slice(&(9_u64 * 1024 * 1024).to_be_bytes());
    frame.resize(9 * 1024 * 1024, 0);
    hold(stop, 255, || {
        let mut wire = Wire::connect(gateway.address, None)?;
        let lines = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        wire.head("GET /broker", lines)?;
        let (head, _) = wire.response_head()?;
        anyhow::ensure!(head.status == 101, "status {}", head.status);
        wire.write(&frame)?;
        Ok(wire.socket().try_clone()?)
    })
}

/// Connections that ask once whether the gateway lives, and then nothing.
fn idle(gateway: &Gateway, stop: &AtomicBool, _: Size) -> Flood {
    hold(stop, 16_600, || {
        let mut wire = Wire::connect(gateway.address, None)?;
        wire.head("GET /livez", "")?;
        wire.response()?;
        Ok(wire.socket().try_clone()?)
    })
}
