//! Memory of an executor with unread data, in a separate process so that no other test counts.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use bowline_executor::flow::FlowLimits;
use bowline_executor::frames::{ExecutorFrame, RequestHead};
use bowline_testkit::{RawUpstream, resident_bytes, spawn_task, write_bytes};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

#[allow(dead_code, reason = "shared with other tests")]
#[path = "executor/executor_service/service_rig.rs"]
mod rig;

use rig::*;

/// Concurrent streams: the limit.
const STREAMS: u64 = 1_024;

/// Memory per stream beside the body bytes: task, socket and buffers. The upstream server runs in
/// the same process and is included.
const STREAM_BYTES_MAX: usize = 24 * 1024;

fn to_megabytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Both ends of every connection are in this process.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Writes more than the peer reads.
async fn write_endlessly(mut stream: TcpStream, words: Arc<Vec<u8>>) {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n";
    write_bytes(&mut stream, head).await;
    while stream.write_all(&words).await.is_ok() {}
}

#[tokio::test]
async fn unread_data_stays_within_memory_bound() {
    allow_many_files();
    check_unread_responses().await;
    check_blocked_uploads().await;
}

/// Every upstream responds endlessly, and the gateway grants only the minimum credit.
async fn check_unread_responses() {
    let upstream = RawUpstream::start().await;
    let mut gateway = ScriptedGateway::new(offer_for(&upstream)).await;
    let url = upstream.url.clone();
    let floor = FlowLimits::default().stream_floor();
    let words = Arc::new(vec![b'x'; 256 * 1024]);
    let before = resident_bytes(std::process::id());
    let _serving = {
        let words = Arc::clone(&words);
        spawn_task(async move {
            for _ in 0..STREAMS {
                let (stream, _) = upstream.accept_request().await;
                spawn_task(write_endlessly(stream, Arc::clone(&words)));
            }
            upstream
        })
    };
    for number in 1..=STREAMS {
        let asked = RequestHead {
            credit: floor,
            ..get(&url)
        };
        gateway.send_request(number, asked).await;
    }
    let mut came = 0;
    while came < STREAMS * floor {
        if let ExecutorFrame::Data { bytes, .. } = gateway.next().await {
            came += bytes.len() as u64;
        }
    }
    let grew = resident_bytes(std::process::id()).saturating_sub(before);
    let bound = usize::try_from(STREAMS).unwrap() * STREAM_BYTES_MAX;
    tell(&format!(
        "{STREAMS} answers that nobody reads on: {:.1} MiB",
        to_megabytes(grew)
    ));
    assert!(grew <= bound, "{grew} of {bound} bytes");
    // A stream that is read proceeds unaffected.
    gateway.credit(7, 3 * floor).await;
    let mut more = 0;
    while more < 3 * floor {
        match gateway.next().await {
            ExecutorFrame::Data {
                stream: 7, bytes, ..
            } => more += bytes.len() as u64,
            other => panic!("{other:?}"),
        }
    }
    gateway.disconnect();
}

/// No upload can leave, and the gateway sends up to the credit.
async fn check_blocked_uploads() {
    let upstream = RawUpstream::start().await;
    let mut offer = offer_for(&upstream);
    offer.limits.client.connect = Duration::from_secs(600);
    let (servant, tasks) = new_service(offer.clone());
    let (mut gateway, hello, _) = ScriptedGateway::open(&servant, &tasks, &offer, "one").await;
    // Over TLS with a peer that never handshakes: no body byte leaves.
    let url: Arc<str> = upstream.url.replace("http:", "https:").into();
    let serving = spawn_task(async move {
        let mut held = Vec::new();
        while held.len() < usize::try_from(STREAMS).unwrap() {
            held.push(upstream.listener.accept().await.unwrap().0);
        }
        held
    });
    let before = resident_bytes(std::process::id());
    let mut allowed = vec![hello.credit; usize::try_from(STREAMS).unwrap()];
    for number in 1..=STREAMS {
        let asked = RequestHead {
            method: "POST".into(),
            body_len: None,
            url: Arc::clone(&url),
            ..get("")
        };
        gateway.send_request(number, asked).await;
    }
    // A refused request marks the end: all credit frames arrived before.
    gateway.send_request(STREAMS + 1, get(&url)).await;
    loop {
        match gateway.next().await {
            ExecutorFrame::Credit { stream, bytes } => {
                allowed[usize::try_from(stream).unwrap() - 1] += bytes;
            }
            ExecutorFrame::Fault { stream, .. } if stream == STREAMS + 1 => break,
            other => panic!("{other:?}"),
        }
    }
    let sum: u64 = allowed.iter().sum();
    assert!(sum <= FlowLimits::default().connection_bytes_max);
    for (number, allowed) in (1..).zip(&allowed) {
        let mut offset = 0;
        // In chunks so small that the overhead dominates.
        while offset < *allowed {
            let count = (*allowed - offset).min(256);
            let piece = vec![b'y'; usize::try_from(count).unwrap()];
            gateway.send(number, offset, piece).await;
            offset += count;
        }
    }
    // A refusal shows that all earlier frames were processed.
    let refused = STREAMS + 2;
    gateway.send_request(refused, get(&url)).await;
    while !matches!(
        gateway.next().await,
        ExecutorFrame::Fault { stream, .. } if stream == refused
    ) {}
    let grew = resident_bytes(std::process::id()).saturating_sub(before);
    let bound = usize::try_from(sum).unwrap() * 2;
    let bound = bound + usize::try_from(STREAMS).unwrap() * STREAM_BYTES_MAX;
    tell(&format!(
        "{STREAMS} requests that cannot leave, {:.1} MiB allowed: {:.1} MiB",
        to_megabytes(usize::try_from(sum).unwrap()),
        to_megabytes(grew)
    ));
    assert!(grew <= bound, "{grew} of {bound} bytes");
    drop(serving);
}
