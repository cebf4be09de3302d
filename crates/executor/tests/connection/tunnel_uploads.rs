//! Request bodies within the credit of the executor.

use std::sync::Arc;
use std::task::{Context, Poll};

use bowline_executor::connection::ExecutorTunnel;
use bowline_executor::frames::ExecutorFrame;
use bowline_link::http::http_client::{BodyChunks, HttpError, HttpResponse, RequestBody};
use bowline_testkit::spawn_task;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::scripted_executor::{
    CREDIT, ScriptedExecutor, read_chunks, read_text, send_request, tunnel_pair,
};

fn start_upload(
    tunnel: &Arc<ExecutorTunnel>,
    body: Vec<u8>,
) -> JoinHandle<Result<HttpResponse, HttpError>> {
    let tunnel = Arc::clone(tunnel);
    spawn_task(async move { send_request(&tunnel, "/", RequestBody::Whole(&body)).await })
}

/// Reads `bytes` of a request body without granting credit.
async fn read_body(script: &mut ScriptedExecutor, stream: u64, from: u64, bytes: u64) -> Vec<u8> {
    let mut body = Vec::new();
    while u64::try_from(body.len()).unwrap() < bytes {
        let ExecutorFrame::Data {
            stream: of,
            offset,
            bytes,
        } = script.next_frame().await
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
async fn long_upload_follows_credit() {
    let (tunnel, mut script) = tunnel_pair().await;
    let body: Vec<u8> = (0..300_000_u32).map(|at| at.to_le_bytes()[1]).collect();
    let asking = start_upload(&tunnel, body.clone());
    let (stream, asked) = script.receive_request().await;
    assert_eq!(asked.body_len, Some(300_000));
    let mut came = read_body(&mut script, stream, 0, CREDIT).await;
    assert_eq!(u64::try_from(came.len()).unwrap(), CREDIT);
    while came.len() < body.len() {
        let granted = 50_000.min(body.len() - came.len());
        let granted = u64::try_from(granted).unwrap();
        let bytes = granted;
        script
            .send_frame(ExecutorFrame::Credit { stream, bytes })
            .await;
        let from = u64::try_from(came.len()).unwrap();
        let more = read_body(&mut script, stream, from, granted).await;
        assert_eq!(u64::try_from(more.len()).unwrap(), granted);
        came.extend(more);
    }
    assert_eq!(came, body);
    let ExecutorFrame::End { offset, .. } = script.next_frame().await else {
        panic!("no end");
    };
    assert_eq!(offset, 300_000);
    script.respond_whole(stream, "thanks").await;
    assert_eq!(
        read_text(&mut asking.await.unwrap().unwrap()).await,
        "thanks"
    );
}

#[tokio::test]
async fn early_response_is_returned_during_upload() {
    let (tunnel, mut script) = tunnel_pair().await;
    let asking = start_upload(&tunnel, vec![1; 300_000]);
    let (stream, _) = script.receive_request().await;
    read_body(&mut script, stream, 0, CREDIT).await;
    script.respond_whole(stream, "enough").await;
    assert_eq!(
        read_text(&mut asking.await.unwrap().unwrap()).await,
        "enough"
    );
}

/// A body fed by the test.
#[derive(Debug)]
struct ChannelBody(mpsc::Receiver<Result<Bytes, HttpError>>);

impl BodyChunks for ChannelBody {
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>> {
        self.0.poll_recv(cx)
    }

    fn take_trailers(&mut self) -> Bytes {
        Bytes::from_static(b"x-sum: 3\r\n")
    }
}

type ChunkSender = mpsc::Sender<Result<Bytes, HttpError>>;

fn start_streamed_upload(
    tunnel: &Arc<ExecutorTunnel>,
) -> (ChunkSender, JoinHandle<Result<HttpResponse, HttpError>>) {
    let (source, chunks) = mpsc::channel(4);
    let tunnel = Arc::clone(tunnel);
    let asking = spawn_task(async move {
        let body = RequestBody::Streaming {
            chunks: Box::new(ChannelBody(chunks)),
            length: None,
        };
        send_request(&tunnel, "/", body).await
    });
    (source, asking)
}

#[tokio::test]
async fn streamed_upload_continues_during_response() {
    let (tunnel, mut script) = tunnel_pair().await;
    let (source, asking) = start_streamed_upload(&tunnel);
    let (stream, asked) = script.receive_request().await;
    assert_eq!(asked.body_len, None);
    source.send(Ok("one".into())).await.unwrap();
    assert_eq!(read_body(&mut script, stream, 0, 3).await, b"one");
    script.send_head(stream).await;
    script.send_data(stream, 0, "heard one").await;
    let mut response = asking.await.unwrap().unwrap();
    let heard = response.body.next_chunk().await.unwrap().unwrap();
    assert_eq!(heard, "heard one");
    source.send(Ok("two".into())).await.unwrap();
    drop(source);
    let reading = spawn_task(async move { read_chunks(&mut response).await });
    assert_eq!(read_body(&mut script, stream, 3, 3).await, b"two");
    let ExecutorFrame::End {
        offset, trailers, ..
    } = script.next_frame().await
    else {
        panic!("no end");
    };
    assert_eq!((offset, &trailers[..]), (6, &b"x-sum: 3\r\n"[..]));
    script.send_data(stream, 9, "heard two").await;
    script.send_end(stream, 18).await;
    let (rest, error) = reading.await.unwrap();
    assert_eq!((rest.concat(), error), (b"heard two".to_vec(), None));
}

#[tokio::test]
async fn broken_upload_cancels_request() {
    let (tunnel, mut script) = tunnel_pair().await;
    let (source, asking) = start_streamed_upload(&tunnel);
    let (stream, _) = script.receive_request().await;
    source.send(Ok("one".into())).await.unwrap();
    read_body(&mut script, stream, 0, 3).await;
    script.send_head(stream).await;
    let mut response = asking.await.unwrap().unwrap();
    let broken = HttpError::Lost("the source broke".into());
    source.send(Err(broken.clone())).await.unwrap();
    let (read, error) = read_chunks(&mut response).await;
    assert_eq!((read, error), (vec![], Some(broken)));
    assert_eq!(script.next_frame().await, ExecutorFrame::Cancel { stream });
}
