//! Connections that are cut at any point: nothing hangs, nothing ends as if it were whole, and no
//! bytes reach another stream.

use std::sync::Arc;

use bowline_core::flow::FlowLimits;
use bowline_link::executor::{Session, Tunnel};
use bowline_link::http::client::HttpError;
use bowline_link::http::endpoint::Endpoint;
use bowline_link::websocket::{accept, dial};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::script::{Script, Tokio, get, hello, join, limits, session, soon, start, within};
use crate::worker::{fits, work};

/// Copies bytes both ways until it has copied so many of them, then cuts.
async fn relay(one: TcpStream, two: TcpStream, mut budget: usize) {
    one.set_zero_linger().unwrap();
    two.set_zero_linger().unwrap();
    let (mut one, mut two) = (one, two);
    let (mut left, mut right) = (vec![0; 4_096], vec![0; 4_096]);
    while budget > 0 {
        let count = tokio::select! {
            read = one.read(&mut left) => match read {
                Ok(count @ 1..) => {
                    let count = count.min(budget);
                    if two.write_all(&left[..count]).await.is_err() { return }
                    count
                }
                _ => return,
            },
            read = two.read(&mut right) => match read {
                Ok(count @ 1..) => {
                    let count = count.min(budget);
                    if one.write_all(&right[..count]).await.is_err() { return }
                    count
                }
                _ => return,
            },
        };
        budget -= count;
    }
}

/// Returns a connection whose wire is cut after so many bytes; none where that was too early.
async fn connected(session: &Arc<Session>, budget: usize) -> Option<Arc<Tunnel>> {
    let gateway = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (to, via) = (gateway.local_addr().unwrap(), between.local_addr().unwrap());
    start(async move {
        let (one, _) = between.accept().await.unwrap();
        let two = TcpStream::connect(to).await.unwrap();
        relay(one, two, budget).await;
    });
    start(async move {
        let endpoint = Endpoint::parse(&format!("http://{via}/executor")).unwrap();
        let dialled = dial(&endpoint, None, soon(), limits(), &Tokio::default()).await;
        let Ok((out, incoming)) = dialled else {
            return;
        };
        let hello = hello();
        out.send(bowline_wire::executor::Frame::Hello(hello).to_bytes())
            .await
            .ok();
        let mut script = Script { out, incoming };
        let Ok(_open) = script.incoming.next().await else {
            return;
        };
        let opened = bowline_wire::executor::Opened {
            resumed: true,
            marks: Vec::new(),
        };
        let opened = bowline_wire::executor::Frame::Opened(opened);
        if script.out.send(opened.to_bytes()).await.is_ok() {
            work(script).await;
        }
    });
    let (stream, _) = gateway.accept().await.unwrap();
    let caller = accept(stream, soon()).await.ok()?;
    let io = caller.upgrade(limits(), &Tokio::default()).await.ok()?;
    join(io, Arc::clone(session)).await.ok()
}

/// Reads `/SEED/LENGTH`; returns whether it came whole.
async fn fetch(tunnel: &Tunnel, seed: u64, length: u64) -> bool {
    let mut response = match get(tunnel, &format!("/{seed}/{length}")).await {
        Ok(response) => response,
        Err(HttpError::Disconnected(_) | HttpError::Elsewhere(_)) => return false,
        Err(other) => panic!("{other:?}"),
    };
    let mut offset = 0;
    loop {
        match within(response.body.chunk()).await {
            Some(Ok(piece)) => {
                assert!(fits(seed, offset, &piece), "crossed in {seed} at {offset}");
                offset += u64::try_from(piece.len()).unwrap();
            }
            Some(Err(HttpError::Disconnected(_))) => return false,
            Some(Err(other)) => panic!("{other:?}"),
            None => {
                assert_eq!(offset, length, "a clean end of half a body");
                return true;
            }
        }
    }
}

#[tokio::test]
async fn cuts_at_random_leave_no_hang_no_false_end_and_no_crossed_bytes() {
    let mut random = fastrand::Rng::with_seed(7);
    let (mut whole, mut cut, mut connections) = (0, 0, 0);
    let session = session(FlowLimits::default());
    for _ in 0..100 {
        let budget = random.usize(600..600_000);
        let Some(tunnel) = connected(&session, budget).await else {
            continue;
        };
        connections += 1;
        let fetching: Vec<_> = (0..12)
            .map(|_| {
                let (tunnel, seed) = (Arc::clone(&tunnel), random.u64(1..1_000_000));
                let length = random.u64(0..100_000);
                start(async move { fetch(&tunnel, seed, length).await })
            })
            .collect();
        for fetch in fetching {
            match within(fetch).await.unwrap() {
                true => whole += 1,
                false => cut += 1,
            }
        }
    }
    assert!(whole > 100 && cut > 100, "{whole} whole, {cut} cut");
    assert!(connections > 50, "{connections}");
    assert_eq!(session.open_streams(), 0);
    assert_eq!(session.waiting_bytes(), 0);
}
