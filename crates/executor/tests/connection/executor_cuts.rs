//! Connections cut at random: nothing hangs, no truncated body looks complete, and no bytes reach a
//! different stream.

use std::sync::Arc;

use bowline_executor::connection::{ExecutorSession, ExecutorTunnel};
use bowline_executor::flow::FlowLimits;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::HttpError;
use bowline_link::websocket::{accept_upgrade, dial};
use bowline_testkit::{DetachedSpawner, spawn_task, test_deadline, wait_bounded};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fake_worker::{matches_body, serve_bodies};
use crate::scripted_executor::{
    ScriptedExecutor, new_session, open_tunnel, send_get, test_hello, test_limits,
};

/// Relays bytes in both directions and cuts after `budget` bytes.
async fn relay_until_cut(one: TcpStream, two: TcpStream, mut budget: usize) {
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

/// Connects over a relay with a cut after `budget` bytes; `None` if cut during the handshake.
async fn connect_with_cut(
    session: &Arc<ExecutorSession>,
    budget: usize,
) -> Option<Arc<ExecutorTunnel>> {
    let gateway = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (to, via) = (gateway.local_addr().unwrap(), between.local_addr().unwrap());
    spawn_task(async move {
        let (one, _) = between.accept().await.unwrap();
        let two = TcpStream::connect(to).await.unwrap();
        relay_until_cut(one, two, budget).await;
    });
    spawn_task(async move {
        let endpoint = HttpEndpoint::parse(&format!("http://{via}/executor")).unwrap();
        let dialled = dial(
            &endpoint,
            None,
            test_deadline(),
            test_limits(),
            &DetachedSpawner,
        )
        .await;
        let Ok(socket) = dialled else {
            return;
        };
        let hello = test_hello();
        socket
            .sender
            .send(bowline_executor::frames::ExecutorFrame::Hello(hello).to_bytes())
            .await
            .ok();
        let mut script = ScriptedExecutor { socket };
        let Ok(_open) = script.socket.receiver.next().await else {
            return;
        };
        let opened = bowline_executor::frames::OpenSessionReply {
            is_resumed: true,
            marks: Vec::new(),
        };
        let opened = bowline_executor::frames::ExecutorFrame::OpenSessionReply(opened);
        if script.socket.sender.send(opened.to_bytes()).await.is_ok() {
            serve_bodies(script).await;
        }
    });
    let (stream, _) = gateway.accept().await.unwrap();
    let caller = accept_upgrade(stream, test_deadline()).await.ok()?;
    let socket = caller.upgrade(test_limits(), &DetachedSpawner).await.ok()?;
    open_tunnel(socket, Arc::clone(session)).await.ok()
}

/// Fetches `/SEED/LENGTH`; returns whether the body arrived completely.
async fn fetch_body(tunnel: &ExecutorTunnel, seed: u64, length: u64) -> bool {
    let mut response = match send_get(tunnel, &format!("/{seed}/{length}")).await {
        Ok(response) => response,
        Err(HttpError::Disconnected(_) | HttpError::RemoteFailure(_)) => return false,
        Err(other) => panic!("{other:?}"),
    };
    let mut offset = 0;
    loop {
        match wait_bounded(response.body.next_chunk()).await {
            Some(Ok(piece)) => {
                assert!(
                    matches_body(seed, offset, &piece),
                    "crossed in {seed} at {offset}"
                );
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
async fn random_cuts_never_hang_or_mix_streams() {
    let mut random = fastrand::Rng::with_seed(7);
    let (mut whole, mut cut, mut connections) = (0, 0, 0);
    let session = new_session(FlowLimits::default());
    for _ in 0..100 {
        let budget = random.usize(600..600_000);
        let Some(tunnel) = connect_with_cut(&session, budget).await else {
            continue;
        };
        connections += 1;
        let fetching: Vec<_> = (0..12)
            .map(|_| {
                let (tunnel, seed) = (Arc::clone(&tunnel), random.u64(1..1_000_000));
                let length = random.u64(0..100_000);
                spawn_task(async move { fetch_body(&tunnel, seed, length).await })
            })
            .collect();
        for fetch in fetching {
            match wait_bounded(fetch).await.unwrap() {
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
