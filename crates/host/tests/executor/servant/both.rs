//! Both ends at once: what a gateway asks for through its door is done by an executor that joined.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bowline_core::error::Execution;
use bowline_host::BoxFuture;
use bowline_host::broker::Refusal;
use bowline_host::executor::{Credential, Executors, ExecutorsOptions, Offer, Porter, run};
use bowline_host::ports::SystemClock;
use bowline_link::executor::EGRESS_DENIED;
use bowline_link::http::client::{Chunks, HttpClient, HttpError, Outgoing, Upload, Wait};
use bowline_link::http::endpoint::Endpoint;
use bowline_link::websocket::accept;
use bowline_wire::executor::Hello;
use bytes::Bytes;
use http::Method;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::rig::*;

const WAIT: Wait<'static> = Wait {
    connect: None,
    first_byte: None,
    leaving: &|| {},
};

/// Lets everybody in.
#[derive(Debug)]
struct Everybody;

impl Porter for Everybody {
    fn admit(&self, _: &Hello) -> Result<BoxFuture<'static, Refusal>, Refusal> {
        Ok(Box::pin(std::future::pending()))
    }
}

/// A gateway, and an executor that joined it.
struct Both {
    client: Arc<dyn HttpClient>,
    _tasks: [JoinHandle<()>; 2],
}

impl Both {
    async fn new(offer: Offer) -> Self {
        let clock = Arc::new(SystemClock::start());
        let executors = Executors::new(tasks(), clock, ExecutorsOptions::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let door = executors.clone();
        let attending = spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let caller = accept(stream, now() + Duration::from_secs(10))
                .await
                .unwrap();
            let io = caller.upgrade(door.socket(), &tasks()).await.unwrap();
            door.attend(io, "here", &Everybody).await;
        });
        let running = spawn(async move {
            let credential = Credential::fixed("token");
            let _ = run(&url, credential, offer, std::future::pending()).await;
        });
        let until = now() + Duration::from_secs(10);
        while executors.ready("office", until).await.is_err() {
            tokio::task::yield_now().await;
        }
        Self {
            client: executors.client("office", "tracker", Vec::new()),
            _tasks: [attending, running],
        }
    }
}

/// So many bytes, each by its place, in pieces of some size.
#[derive(Debug)]
struct Counting {
    sent: usize,
    length: usize,
}

fn byte(place: usize) -> u8 {
    (place % 251) as u8
}

impl Chunks for Counting {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        let count = (self.length - self.sent).min(1 + self.sent % 100_000);
        let from = self.sent;
        self.sent += count;
        let piece: Vec<u8> = (from..self.sent).map(byte).collect();
        Poll::Ready(Some(Ok(piece.into())).filter(|_| count > 0))
    }
}

#[tokio::test]
async fn long_bodies_go_both_ways_at_once_and_arrive_as_they_were() {
    const LENGTH: usize = 6 << 20;
    let upstream = Upstream::new().await;
    let both = Both::new(upstream.offer()).await;
    let to = Endpoint::parse(&upstream.url).unwrap();
    let echo = spawn(async move {
        let (mut stream, head) = upstream.taken().await;
        assert!(head.contains(&format!("content-length: {LENGTH}\r\n")));
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LENGTH}\r\n\r\n");
        write(&mut stream, head).await;
        let mut left = LENGTH;
        while left > 0 {
            let piece = read(&mut stream, left.min(10_000)).await;
            left -= piece.len();
            write(&mut stream, &piece).await;
        }
    });
    let mut request = Outgoing::new(Method::POST, &to);
    request.body = Upload::Open {
        chunks: Box::new(Counting {
            sent: 0,
            length: LENGTH,
        }),
        length: Some(LENGTH as u64),
    };
    let mut response = soon(both.client.send(request, WAIT)).await.unwrap();
    assert_eq!(response.status, 200);
    let mut came = 0;
    while let Some(piece) = soon(response.body.chunk()).await {
        let piece = piece.unwrap();
        let is_right = |(at, found): (usize, &u8)| *found == byte(came + at);
        assert!(piece.iter().enumerate().all(is_right));
        came += piece.len();
    }
    assert_eq!(came, LENGTH);
    echo.await.unwrap();
}

#[tokio::test]
async fn who_drops_an_answer_or_the_wait_for_it_frees_the_server_behind_the_executor() {
    let upstream = Upstream::new().await;
    let both = Both::new(upstream.offer()).await;
    let to = Endpoint::parse(&upstream.url).unwrap();
    for _ in 0..5 {
        let (client, to) = (Arc::clone(&both.client), to.clone());
        let waiting = spawn(async move {
            let request = Outgoing::new(Method::GET, &to);
            client.send(request, WAIT).await.map(drop)
        });
        let (mut stream, _) = upstream.taken().await;
        let began = now();
        waiting.abort();
        closed(&mut stream).await;
        tell(&format!("no answer yet: {:?}", began.elapsed()));
    }
    for _ in 0..5 {
        let request = Outgoing::new(Method::GET, &to);
        let answering = async {
            let (mut stream, _) = upstream.taken().await;
            write(&mut stream, "HTTP/1.1 200 OK\r\n\r\n: on and on\n\n").await;
            stream
        };
        let sending = both.client.send(request, WAIT);
        let (response, mut stream) = soon(async { tokio::join!(sending, answering) }).await;
        let mut response = response.unwrap();
        let piece = soon(response.body.chunk()).await;
        assert_eq!(piece.unwrap().unwrap(), ": on and on\n\n");
        let began = now();
        drop(response);
        closed(&mut stream).await;
        tell(&format!("in the answer: {:?}", began.elapsed()));
    }
}

#[tokio::test]
async fn what_an_executor_refuses_is_told_as_that_and_never_left() {
    let upstream = Upstream::new().await;
    let both = Both::new(Offer::new("office")).await;
    let to = Endpoint::parse(&upstream.url).unwrap();
    let request = Outgoing::new(Method::GET, &to);
    let error = soon(both.client.send(request, WAIT)).await.unwrap_err();
    let HttpError::Elsewhere(failure) = error else {
        panic!("{error:?}");
    };
    assert_eq!(&*failure.code, EGRESS_DENIED);
    assert_eq!(failure.execution, Execution::NotStarted);
    upstream.was_left_alone().await;
}
