//! The stdio front: forwards the messages of an MCP client on a pipe to a gateway's HTTP endpoint.
//!
//! The front survives the gateway: [`GatewayLocator`] finds or starts another one, and the session
//! of the client is opened again.

mod delivery;
mod message;
mod notification_stream;
mod pipe_lines;
mod shim;
mod stateless;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use self::message::{ShimFailure, ShimMessageKind};
use self::pipe_lines::{PipeLine, PipeLineReader};
pub use self::shim::StdioShim;
use self::stateless::listen_stream::ShimListenStream;
use self::stateless::{ShimHeaders, ShimInFlight};
use crate::gateway_client::GatewayAccess;

/// Maximum concurrent requests at the gateway.
const REQUESTS_MAX: usize = 64;
/// Maximum messages in flight or queued; further requests are refused.
const MESSAGES_MAX: usize = 1024;
/// Maximum open listen streams of one client.
const LISTEN_STREAMS_MAX: usize = 64;
/// Maximum output lines waiting for the client.
const OUTPUT_LINES_MAX: usize = 256;
/// Maximum wait for responses after the client has closed stdin.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(300);

/// Locates the gateway of a shim; the command line knows where gateways run and how they start.
pub trait GatewayLocator: fmt::Debug + Send + Sync {
    /// Reads address and token of the gateway again, without a connection. `None` if they cannot be
    /// read.
    fn reload_access(&self) -> Option<GatewayAccess>;

    /// Returns a gateway that listens: the running one, or a new one. The error is one clause for
    /// the client.
    fn ensure_gateway(&self) -> BoxFuture<'_, Result<GatewayAccess, String>>;
}

/// Forwards lines in both directions until the client closes stdin or stdout.
pub async fn forward_lines<R, W>(shim: Arc<StdioShim>, input: R, output: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(OUTPUT_LINES_MAX);
    let mut writer = JoinSet::new();
    writer.spawn(write_lines(receiver, output));
    let mut traffic = ShimTraffic {
        shim,
        lines: sender,
        request_permits: Arc::new(Semaphore::new(REQUESTS_MAX)),
        messages: JoinSet::new(),
        notification_stream: JoinSet::new(),
        listen_streams: JoinSet::new(),
        in_flight: ShimInFlight::default(),
    };
    let mut input = PipeLineReader::new(input);
    loop {
        tokio::select! {
            line = input.next_line() => match line {
                Ok(Some(line)) => traffic.handle_line(line).await,
                Ok(None) | Err(_) => break,
            },
            _ = writer.join_next() => return,
            Some(_) = traffic.messages.join_next(), if !traffic.messages.is_empty() => {}
            Some(_) = traffic.listen_streams.join_next(),
                if !traffic.listen_streams.is_empty() => {}
        }
    }
    tokio::select! {
        _ = tokio::time::timeout(DRAIN_TIMEOUT, traffic.drain()) => {}
        _ = writer.join_next() => return,
    }
    // The last sender is dropped, so the writer ends after the last line.
    drop(traffic);
    writer.join_next().await;
}

async fn write_lines<W: AsyncWrite + Unpin>(mut lines: mpsc::Receiver<Bytes>, mut output: W) {
    while let Some(line) = lines.recv().await {
        let written = async {
            output.write_all(&line).await?;
            output.write_all(b"\n").await?;
            output.flush().await
        };
        if written.await.is_err() {
            return;
        }
    }
}

/// Messages and streams in flight for one client.
struct ShimTraffic {
    shim: Arc<StdioShim>,
    lines: shim::ClientLines,
    /// Permits for requests at the gateway.
    request_permits: Arc<Semaphore>,
    messages: JoinSet<()>,
    /// The stream of messages unrelated to a request.
    notification_stream: JoinSet<()>,
    /// Listen streams of a stateless client.
    listen_streams: JoinSet<()>,
    /// Requests of a stateless client.
    in_flight: ShimInFlight,
}

impl ShimTraffic {
    async fn handle_line(&mut self, line: PipeLine) {
        let PipeLine::Complete(line) = line else {
            return self
                .send_line(message::malformed_response(
                    -32600,
                    "The message is over 8 MiB.",
                ))
                .await;
        };
        let line = Bytes::from(line);
        match message::classify_message(&line) {
            None if serde_json::from_slice::<serde::de::IgnoredAny>(&line).is_err() => {
                self.send_line(message::malformed_response(-32700, "The line is not JSON."))
                    .await;
            }
            None => {
                self.send_line(message::malformed_response(
                    -32600,
                    "The line is no message.",
                ))
                .await
            }
            // Later messages depend on the session, so both are awaited.
            Some(ShimMessageKind::Request { id, method }) if method == "initialize" => {
                self.notification_stream.abort_all();
                self.shim.forward_initialize(line, &id, &self.lines).await;
            }
            Some(ShimMessageKind::Notification { method })
                if method == "notifications/initialized" =>
            {
                if self
                    .shim
                    .forward_notification(line, &self.lines)
                    .await
                    .is_ok()
                {
                    self.notification_stream.abort_all();
                    self.notification_stream
                        .spawn(notification_stream::forward_notifications(
                            self.shim.clone(),
                            self.lines.clone(),
                        ));
                }
            }
            Some(ShimMessageKind::Request { id, method }) => match ShimHeaders::from_request(&line)
            {
                Some(headers) if method == "subscriptions/listen" => {
                    self.open_listen_stream(line, headers, id).await;
                }
                Some(headers) => self.forward_stateless(line, headers, id).await,
                None => self.forward_request(line, id).await,
            },
            Some(ShimMessageKind::Notification { method })
                if method == "notifications/cancelled" && self.in_flight.abort_cancelled(&line) => {
            }
            Some(ShimMessageKind::Notification { .. } | ShimMessageKind::Response { .. }) => {
                self.forward_notification(line).await
            }
        }
    }

    /// Forwards a request of a stateless client.
    async fn forward_stateless(&mut self, line: Bytes, headers: ShimHeaders, id: String) {
        let Some(id) = self.admit_request(id).await else {
            return;
        };
        let (shim, lines, request_permits) = (
            self.shim.clone(),
            self.lines.clone(),
            self.request_permits.clone(),
        );
        let request_id = id.clone();
        let task = self.messages.spawn(async move {
            let _permit = request_permits.acquire().await;
            shim.forward_stateless(line, &headers, &request_id, &lines)
                .await;
        });
        self.in_flight.register(&id, task);
    }

    /// Opens a listen stream, which needs no request permit.
    async fn open_listen_stream(&mut self, line: Bytes, headers: ShimHeaders, id: String) {
        if self.listen_streams.len() >= LISTEN_STREAMS_MAX {
            let full = ShimFailure::not_started("Too many streams are open; close one first.");
            return self.send_line(full.error_response(&id)).await;
        }
        let stream = ShimListenStream {
            shim: self.shim.clone(),
            line,
            headers,
            id: id.clone(),
            lines: self.lines.clone(),
        };
        let task = self.listen_streams.spawn(stream.run());
        self.in_flight.register(&id, task);
    }

    /// Admits one more request, or refuses it.
    async fn admit_request(&self, id: String) -> Option<String> {
        if self.messages.len() < MESSAGES_MAX {
            return Some(id);
        }
        let full = ShimFailure::not_started("Too many requests are under way; try again later.");
        self.send_line(full.error_response(&id)).await;
        None
    }

    async fn forward_request(&mut self, line: Bytes, id: String) {
        let Some(id) = self.admit_request(id).await else {
            return;
        };
        let (shim, lines, request_permits) = (
            self.shim.clone(),
            self.lines.clone(),
            self.request_permits.clone(),
        );
        self.messages.spawn(async move {
            let _permit = request_permits.acquire().await;
            shim.forward_request(line, &id, &lines).await;
        });
    }

    /// Forwards responses and cancellations, which never queue behind requests waiting for them.
    async fn forward_notification(&mut self, line: Bytes) {
        if self.messages.len() >= MESSAGES_MAX {
            self.messages.join_next().await;
        }
        let (shim, lines) = (self.shim.clone(), self.lines.clone());
        let is_stateless = self.in_flight.has_requests() && !shim.has_initialized();
        self.messages.spawn(async move {
            // A notification has no response, so failures are dropped.
            let _result = match is_stateless {
                true => shim.forward_stateless_notification(line).await,
                false => shim.forward_notification(line, &lines).await,
            };
        });
    }

    async fn send_line(&self, line: Bytes) {
        let _sent = self.lines.send(line).await;
    }

    /// Waits for all requests, then stops listening.
    async fn drain(&mut self) {
        while self.messages.join_next().await.is_some() {}
        self.notification_stream.shutdown().await;
        self.listen_streams.shutdown().await;
    }
}
