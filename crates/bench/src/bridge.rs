//! `mcpbench bridge`: the floor from HTTP to one stdio child. Ids are replaced by numbers,
//! responses find the request by number, and writes that are queued together are one write.

use std::{
    collections::HashMap,
    process::Stdio,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1::Builder;
use hyper::{Method, Request, Response, StatusCode, body::Incoming};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::{mpsc, oneshot};

use crate::build_runtime;
use crate::http_backend::empty_response;
use crate::http_listener::{bind_listener, serve_connections};
use crate::mcp_server::RpcMessage;
use crate::options::ToolOptions;

const QUEUED_LINES_MAX: usize = 1024;
const BUFFER_BYTES: usize = 64 * 1024;

#[derive(Debug)]
struct Bridge {
    lines: mpsc::Sender<Vec<u8>>,
    /// Requests without a response, by number.
    pending: Arc<Mutex<PendingReplies>>,
    next_number: AtomicU64,
}

type PendingReplies = HashMap<u64, oneshot::Sender<Vec<u8>>>;

#[derive(Deserialize)]
struct ReplyMembers<'a> {
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

pub(crate) fn serve(options: &ToolOptions) -> Result<()> {
    let listen = options.require("listen")?;
    let command = options.require("cmd")?;
    build_runtime()?.block_on(async move {
        let mut child = start_child(command)?;
        let stdin = child.stdin.take().context("no standard input")?;
        let stdout = child.stdout.take().context("no standard output")?;
        let (lines, queue) = mpsc::channel(QUEUED_LINES_MAX);
        let pending = Arc::new(Mutex::default());
        tokio::spawn(write_lines(queue, stdin));
        tokio::spawn(read_lines(stdout, Arc::clone(&pending)));
        let bridge = Arc::new(Bridge {
            lines,
            pending,
            next_number: AtomicU64::new(1),
        });
        let listener = bind_listener(listen).await?;
        let respond = move |request| {
            let bridge = Arc::clone(&bridge);
            async move {
                let response = bridge.forward_request(request).await;
                response.unwrap_or_else(empty_response)
            }
        };
        serve_connections(listener, Builder::new(), respond).await
    })
}

fn start_child(command: &str) -> Result<Child> {
    tokio::process::Command::new("sh")
        .args(["-c", &format!("exec {command}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("could not start `{command}`"))
}

async fn write_lines(mut queue: mpsc::Receiver<Vec<u8>>, mut stdin: ChildStdin) {
    let mut batch = Vec::new();
    while let Some(line) = queue.recv().await {
        batch.extend_from_slice(&line);
        while let Ok(line) = queue.try_recv() {
            batch.extend_from_slice(&line);
        }
        if stdin.write_all(&batch).await.is_err() {
            return;
        }
        batch.clear();
    }
}

async fn read_lines(stdout: ChildStdout, pending: Arc<Mutex<PendingReplies>>) {
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, stdout);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).await.unwrap_or(0) > 0 {
        let message = serde_json::from_slice::<RpcMessage<'_>>(&line).ok();
        let number = message.and_then(|message| message.id?.get().parse::<u64>().ok());
        let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = number.and_then(|number| pending.remove(&number)) {
            // The client may be gone.
            let _ = sender.send(std::mem::take(&mut line));
        }
        line.clear();
    }
}

impl Bridge {
    /// Returns the response of the child, or the status of a failure.
    async fn forward_request(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, StatusCode> {
        if request.method() != Method::POST {
            return Err(StatusCode::METHOD_NOT_ALLOWED);
        }
        let body = request.into_body().collect().await;
        let body = body.map_err(|_| StatusCode::BAD_REQUEST)?.to_bytes();
        let message: RpcMessage<'_> =
            serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
        let (Some(id), Some(method)) = (message.id, message.method) else {
            return Err(StatusCode::ACCEPTED);
        };
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let params = message.params.map_or("{}", RawValue::get);
        let line = format!(
            "{{\"jsonrpc\":\"2.0\",\"id\":{number},\"method\":\"{method}\",\"params\":{params}}}\n"
        );
        let (sender, receiver) = oneshot::channel();
        {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.insert(number, sender);
        }
        let sent = self.lines.send(line.into_bytes()).await;
        sent.map_err(|_| StatusCode::BAD_GATEWAY)?;
        let reply = receiver.await.map_err(|_| StatusCode::BAD_GATEWAY)?;
        encode_reply(id, &reply).ok_or(StatusCode::BAD_GATEWAY)
    }
}

/// Returns a response with the id of the client.
fn encode_reply(id: &RawValue, reply: &[u8]) -> Option<Response<Full<Bytes>>> {
    let members: ReplyMembers<'_> = serde_json::from_slice(reply).ok()?;
    let (key, value) = match (members.result, members.error) {
        (Some(result), _) => ("result", result),
        (None, error) => ("error", error?),
    };
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":{},"{key}":{}}}"#,
        id.get(),
        value.get()
    );
    let mut response = Response::new(Full::from(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Some(response)
}
