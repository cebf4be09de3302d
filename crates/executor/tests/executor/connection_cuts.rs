//! A connection cut at random bytes, many times, under load.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::egress::EgressRule;
use bowline_executor::{
    ExecutorClient, ExecutorClientOptions, ExecutorHttpRequest, ExecutorOffer, ExecutorProtocol,
    ExecutorRegistryOptions, ListenAuth, listen, listen_as_exec_server,
};
use bowline_testkit::{spawn_task, wait_bounded};
use http::Method;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Number of cuts.
const CUTS: u64 = 100;

/// Bodies read concurrently.
const READERS: u64 = 24;

/// Longest body, in bytes.
const BODY_BYTES_MAX: u64 = 300_000;

/// Most bytes of a connection before the cut.
const CARRIED_BYTES_MAX: u64 = 1_500_000;

/// Byte at a position of a numbered body; distinct bodies differ everywhere.
fn byte(number: u64, at: u64) -> u8 {
    let mixed = ((number << 32) ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

fn body(number: u64, from: u64, length: u64) -> Vec<u8> {
    (from..from + length).map(|at| byte(number, at)).collect()
}

/// Serves `GET /NUMBER/LENGTH`; every second body has no content length.
async fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    spawn_task(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn_task(answer(stream));
        }
    });
    address
}

async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut lines = BufReader::new(reader).lines();
    let mut asked = None;
    while let Some(line) = lines.next_line().await? {
        if asked.is_none() {
            let mut words = line.split(' ').nth(1).unwrap().split('/').skip(1);
            let mut number = || words.next().unwrap().parse::<u64>().unwrap();
            asked = Some((number(), number()));
        }
        if !line.is_empty() {
            continue;
        }
        let (number, length) = asked.take().unwrap();
        let is_chunked = number % 2 == 0;
        let kind = if is_chunked {
            "Transfer-Encoding: chunked".to_owned()
        } else {
            format!("Content-Length: {length}")
        };
        let head = format!("HTTP/1.1 200 OK\r\n{kind}\r\n\r\n");
        writer.write_all(head.as_bytes()).await?;
        let mut at = 0;
        while at < length {
            let piece = body(number, at, (length - at).min(7_001));
            at += piece.len() as u64;
            if is_chunked {
                let size = format!("{:x}\r\n", piece.len());
                writer.write_all(size.as_bytes()).await?;
            }
            writer.write_all(&piece).await?;
            if is_chunked {
                writer.write_all(b"\r\n").await?;
            }
        }
        if is_chunked {
            writer.write_all(b"0\r\n\r\n").await?;
        }
    }
    Ok(())
}

/// Proxies to an executor, and cuts each connection after a random number of bytes.
#[derive(Debug, Default)]
struct CuttingProxy {
    cuts: AtomicU64,
}

impl CuttingProxy {
    async fn open(self: Arc<Self>, to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        spawn_task(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let this = Arc::clone(&self);
                spawn_task(async move { this.forward_until_cut(stream, to).await });
            }
        });
        address
    }

    async fn forward_until_cut(&self, mut near: TcpStream, to: SocketAddr) -> std::io::Result<()> {
        let mut far = TcpStream::connect(to).await?;
        let mut left = fastrand::u64(1..CARRIED_BYTES_MAX);
        let (mut up, mut down) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
        loop {
            let is_over = self.cuts.load(Ordering::SeqCst) >= CUTS;
            let (length, piece, out) = tokio::select! {
                length = near.read(&mut up) => (length?, &up, &mut far),
                length = far.read(&mut down) => (length?, &down, &mut near),
            };
            if length == 0 {
                return Ok(());
            }
            let cut = !is_over && length as u64 >= left;
            let goes = if cut { left as usize } else { length };
            out.write_all(&piece[..goes]).await?;
            if cut {
                self.cuts.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            if !is_over {
                left -= length as u64;
            }
        }
    }

    fn is_done(&self) -> bool {
        self.cuts.load(Ordering::SeqCst) >= CUTS
    }
}

/// Outcomes of the bodies.
#[derive(Debug, Default)]
struct BodyCounts {
    whole: AtomicU64,
    /// Ended by an error after some bytes.
    broken: AtomicU64,
    /// Without a response head.
    unanswered: AtomicU64,
}

#[tokio::test]
async fn hundred_cuts_keep_bodies_intact() {
    run_with_cuts(ExecutorProtocol::Bowline).await;
}

#[tokio::test]
async fn hundred_cuts_keep_exec_server_bodies_intact() {
    run_with_cuts(ExecutorProtocol::ExecServer).await;
}

async fn run_with_cuts(protocol: ExecutorProtocol) {
    let backend = backend().await;
    let mut offer = ExecutorOffer::new("office");
    offer.egress.all = vec![EgressRule::parse(&backend.to_string()).unwrap()];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let executor = listener.local_addr().unwrap();
    spawn_task(async move {
        let door = ListenAuth::Loopback;
        match protocol {
            ExecutorProtocol::Bowline => drop(listen(listener, door, offer, pending()).await),
            ExecutorProtocol::ExecServer => {
                drop(listen_as_exec_server(listener, door, offer, pending()).await);
            }
        }
    });
    let scissors = Arc::new(CuttingProxy::default());
    let address = Arc::clone(&scissors).open(executor).await;
    let options = ExecutorClientOptions {
        protocol,
        registry: ExecutorRegistryOptions {
            recovery_interval: Duration::from_millis(5),
            backoff: Backoff {
                base: Duration::from_millis(5),
                cap: Duration::from_millis(20),
            },
            ..ExecutorRegistryOptions::default()
        },
        ..ExecutorClientOptions::default()
    };
    // The handshake may be cut too.
    let client = loop {
        let url = format!("ws://{address}");
        let connected = ExecutorClient::connect(&url, None, options.clone());
        if let Ok(client) = wait_bounded(connected).await {
            break client;
        }
    };
    let count = Arc::new(BodyCounts::default());
    let readers: Vec<_> = (0..READERS)
        .map(|reader| {
            let (client, scissors) = (client.clone(), Arc::clone(&scissors));
            let count = Arc::clone(&count);
            spawn_task(async move {
                let mut number = reader;
                while !scissors.is_done() {
                    number += READERS;
                    let read = fetch(&client, backend, number, &count);
                    wait_bounded(read).await;
                }
            })
        })
        .collect();
    for reader in readers {
        reader.await.unwrap();
    }
    // After the last cut everything works as without cuts.
    let before = count.whole.load(Ordering::SeqCst);
    wait_bounded(async {
        while count.whole.load(Ordering::SeqCst) == before {
            fetch(&client, backend, 1_000_001, &count).await;
        }
    })
    .await;
    assert!(count.broken.load(Ordering::SeqCst) > 0, "{count:?}");
    assert_eq!(client.status().traffic.streams, 0);
}

/// Reads a body and compares each byte; a clean end must be complete.
async fn fetch(client: &ExecutorClient, backend: SocketAddr, number: u64, count: &BodyCounts) {
    let length = 1 + number.wrapping_mul(0x9e37_79b9) % BODY_BYTES_MAX;
    let request =
        ExecutorHttpRequest::new(Method::GET, &format!("http://{backend}/{number}/{length}"));
    let Ok((head, mut stream)) = client.request_stream(request).await else {
        count.unanswered.fetch_add(1, Ordering::SeqCst);
        return;
    };
    assert_eq!(head.status, 200);
    let mut at = 0;
    while let Some(piece) = stream.recv().await {
        let Ok(piece) = piece else {
            count.broken.fetch_add(1, Ordering::SeqCst);
            return;
        };
        assert!(piece == body(number, at, piece.len() as u64), "crossed");
        at += piece.len() as u64;
    }
    assert_eq!(at, length, "it ended well, and is not whole");
    count.whole.fetch_add(1, Ordering::SeqCst);
}
