//! What an executor holds while nobody reads: memory of a process of its own, so that no other
//! test is counted.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use bowline_core::flow::FlowLimits;
use bowline_wire::executor::{Asked, Frame};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

#[allow(dead_code, reason = "shared with other tests")]
#[path = "executor/servant/rig.rs"]
mod rig;

use rig::*;

/// Streams at once: all that there may be.
const STREAMS: u64 = 1_024;

/// What a stream may cost beside the bytes of its body: its task, its socket and its buffers. The
/// server at the other end, which is here too, is counted with it.
const STREAM_BYTES_MAX: usize = 24 * 1024;

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

fn megabytes(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Both ends of every connection are here.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
}

/// Says more than anybody takes.
async fn chatters(mut stream: TcpStream, words: Arc<Vec<u8>>) {
    let head = "HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n";
    write(&mut stream, head).await;
    while stream.write_all(&words).await.is_ok() {}
}

#[tokio::test]
async fn what_nobody_reads_takes_no_more_than_its_bound() {
    allow_many_files();
    answers().await;
    requests().await;
}

/// Every server answers without end, and the gateway takes of each answer what it must allow.
async fn answers() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::new(upstream.offer()).await;
    let url = upstream.url.clone();
    let floor = FlowLimits::default().floor();
    let words = Arc::new(vec![b'x'; 256 * 1024]);
    let before = resident();
    let _serving = {
        let words = Arc::clone(&words);
        spawn(async move {
            for _ in 0..STREAMS {
                let (stream, _) = upstream.taken().await;
                spawn(chatters(stream, Arc::clone(&words)));
            }
            upstream
        })
    };
    for number in 1..=STREAMS {
        let asked = Asked {
            credit: floor,
            ..get(&url)
        };
        gateway.ask(number, asked).await;
    }
    let mut came = 0;
    while came < STREAMS * floor {
        if let Frame::Data { bytes, .. } = gateway.next().await {
            came += bytes.len() as u64;
        }
    }
    let grew = resident().saturating_sub(before);
    let bound = usize::try_from(STREAMS).unwrap() * STREAM_BYTES_MAX;
    tell(&format!(
        "{STREAMS} answers that nobody reads on: {:.1} MiB",
        megabytes(grew)
    ));
    assert!(grew <= bound, "{grew} of {bound} bytes");
    // Who is read goes on as if nothing were.
    gateway.credit(7, 3 * floor).await;
    let mut more = 0;
    while more < 3 * floor {
        match gateway.next().await {
            Frame::Data {
                stream: 7, bytes, ..
            } => more += bytes.len() as u64,
            other => panic!("{other:?}"),
        }
    }
    gateway.leave();
}

/// No request can leave, and the gateway sends of each what it may.
async fn requests() {
    let upstream = Upstream::new().await;
    let mut offer = upstream.offer();
    offer.limits.client.connect = Duration::from_secs(600);
    let servant = servant(offer.clone());
    let (mut gateway, hello, _) = Gateway::open(&servant, &offer, "one").await;
    // Over TLS with who does not shake hands: nothing of a body leaves.
    let url: Arc<str> = upstream.url.replace("http:", "https:").into();
    let serving = spawn(async move {
        let mut held = Vec::new();
        while held.len() < usize::try_from(STREAMS).unwrap() {
            held.push(upstream.listener.accept().await.unwrap().0);
        }
        held
    });
    let before = resident();
    let mut allowed = vec![hello.credit; usize::try_from(STREAMS).unwrap()];
    for number in 1..=STREAMS {
        let asked = Asked {
            method: "POST".into(),
            length: None,
            url: Arc::clone(&url),
            ..get("")
        };
        gateway.ask(number, asked).await;
    }
    // A request that is refused ends the news: all that is allowed was said before.
    gateway.ask(STREAMS + 1, get(&url)).await;
    loop {
        match gateway.next().await {
            Frame::Credit { stream, bytes } => {
                allowed[usize::try_from(stream).unwrap() - 1] += bytes;
            }
            Frame::Failed { stream, .. } if stream == STREAMS + 1 => break,
            other => panic!("{other:?}"),
        }
    }
    let sum: u64 = allowed.iter().sum();
    assert!(sum <= FlowLimits::default().connection_bytes_max);
    for (number, allowed) in (1..).zip(&allowed) {
        let mut offset = 0;
        // In pieces so small that the bytes are the least of it.
        while offset < *allowed {
            let count = (*allowed - offset).min(256);
            let piece = vec![b'y'; usize::try_from(count).unwrap()];
            gateway.send(number, offset, piece).await;
            offset += count;
        }
    }
    // Once this is refused, all before it was taken.
    gateway.ask(STREAMS + 2, get(&url)).await;
    while !matches!(gateway.next().await, Frame::Failed { stream, .. } if stream == STREAMS + 2) {}
    let grew = resident().saturating_sub(before);
    let bound = usize::try_from(sum).unwrap() * 2;
    let bound = bound + usize::try_from(STREAMS).unwrap() * STREAM_BYTES_MAX;
    tell(&format!(
        "{STREAMS} requests that cannot leave, {:.1} MiB allowed: {:.1} MiB",
        megabytes(usize::try_from(sum).unwrap()),
        megabytes(grew)
    ));
    assert!(grew <= bound, "{grew} of {bound} bytes");
    drop(serving);
}
