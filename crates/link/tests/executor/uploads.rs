//! Bodies of requests: sent as the executor takes them.

use std::sync::Arc;
use std::task::{Context, Poll};

use bowline_link::executor::Tunnel;
use bowline_link::http::client::{Chunks, HttpError, Response, Upload};
use bowline_wire::executor::Frame;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::script::{CREDIT, Script, pair, pieces, send, start, text};

fn uploading(tunnel: &Arc<Tunnel>, body: Vec<u8>) -> JoinHandle<Result<Response, HttpError>> {
    let tunnel = Arc::clone(tunnel);
    start(async move { send(&tunnel, "/", Upload::Whole(&body)).await })
}

/// Reads the body of a request up to `bytes`; nothing is granted.
async fn read(script: &mut Script, stream: u64, from: u64, bytes: u64) -> Vec<u8> {
    let mut body = Vec::new();
    while u64::try_from(body.len()).unwrap() < bytes {
        let Frame::Data {
            stream: of,
            offset,
            bytes,
        } = script.next().await
        else {
            panic!("no data");
        };
        assert_eq!(of, stream);
        assert_eq!(offset, from + u64::try_from(body.len()).unwrap());
        body.extend_from_slice(&bytes);
    }
    body
}

#[tokio::test]
async fn a_long_body_is_sent_as_far_as_the_executor_takes_it() {
    let (tunnel, mut script) = pair().await;
    let body: Vec<u8> = (0..300_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    let asking = uploading(&tunnel, body.clone());
    let (stream, asked) = script.request().await;
    assert_eq!(asked.length, Some(300_000));
    let mut came = read(&mut script, stream, 0, CREDIT).await;
    assert_eq!(u64::try_from(came.len()).unwrap(), CREDIT);
    while came.len() < body.len() {
        let granted = 50_000.min(body.len() - came.len());
        let granted = u64::try_from(granted).unwrap();
        let bytes = granted;
        script.say(Frame::Credit { stream, bytes }).await;
        let from = u64::try_from(came.len()).unwrap();
        let more = read(&mut script, stream, from, granted).await;
        assert_eq!(u64::try_from(more.len()).unwrap(), granted);
        came.extend(more);
    }
    assert_eq!(came, body);
    let Frame::End { offset, .. } = script.next().await else {
        panic!("no end");
    };
    assert_eq!(offset, 300_000);
    script.whole(stream, "thanks").await;
    assert_eq!(text(&mut asking.await.unwrap().unwrap()).await, "thanks");
}

#[tokio::test]
async fn an_answer_before_the_end_of_a_body_is_given_at_once() {
    let (tunnel, mut script) = pair().await;
    let asking = uploading(&tunnel, vec![1; 300_000]);
    let (stream, _) = script.request().await;
    read(&mut script, stream, 0, CREDIT).await;
    script.whole(stream, "enough").await;
    assert_eq!(text(&mut asking.await.unwrap().unwrap()).await, "enough");
}

/// A body that arrives when the test says so.
#[derive(Debug)]
struct Arriving(mpsc::Receiver<Result<Bytes, HttpError>>);

impl Chunks for Arriving {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        self.0.poll_recv(cx)
    }

    fn trailers(&mut self) -> Bytes {
        Bytes::from_static(b"x-sum: 3\r\n")
    }
}

type Source = mpsc::Sender<Result<Bytes, HttpError>>;

fn arriving(tunnel: &Arc<Tunnel>) -> (Source, JoinHandle<Result<Response, HttpError>>) {
    let (source, chunks) = mpsc::channel(4);
    let tunnel = Arc::clone(tunnel);
    let asking = start(async move {
        let body = Upload::Open {
            chunks: Box::new(Arriving(chunks)),
            length: None,
        };
        send(&tunnel, "/", body).await
    });
    (source, asking)
}

#[tokio::test]
async fn a_body_that_arrives_goes_on_while_the_answer_is_read() {
    let (tunnel, mut script) = pair().await;
    let (source, asking) = arriving(&tunnel);
    let (stream, asked) = script.request().await;
    assert_eq!(asked.length, None);
    source.send(Ok("one".into())).await.unwrap();
    assert_eq!(read(&mut script, stream, 0, 3).await, b"one");
    script.answer(stream).await;
    script.data(stream, 0, "heard one").await;
    let mut response = asking.await.unwrap().unwrap();
    let heard = response.body.chunk().await.unwrap().unwrap();
    assert_eq!(heard, "heard one");
    source.send(Ok("two".into())).await.unwrap();
    drop(source);
    let reading = start(async move { pieces(&mut response).await });
    assert_eq!(read(&mut script, stream, 3, 3).await, b"two");
    let Frame::End {
        offset, trailers, ..
    } = script.next().await
    else {
        panic!("no end");
    };
    assert_eq!((offset, &trailers[..]), (6, &b"x-sum: 3\r\n"[..]));
    script.data(stream, 9, "heard two").await;
    script.finish(stream, 18).await;
    let (rest, error) = reading.await.unwrap();
    assert_eq!((rest.concat(), error), (b"heard two".to_vec(), None));
}

#[tokio::test]
async fn a_body_that_breaks_takes_its_request_off_the_wire() {
    let (tunnel, mut script) = pair().await;
    let (source, asking) = arriving(&tunnel);
    let (stream, _) = script.request().await;
    source.send(Ok("one".into())).await.unwrap();
    read(&mut script, stream, 0, 3).await;
    script.answer(stream).await;
    let mut response = asking.await.unwrap().unwrap();
    let broken = HttpError::Lost("the source broke".into());
    source.send(Err(broken.clone())).await.unwrap();
    let (read, error) = pieces(&mut response).await;
    assert_eq!((read, error), (vec![], Some(broken)));
    assert_eq!(script.next().await, Frame::Cancel { stream });
}
