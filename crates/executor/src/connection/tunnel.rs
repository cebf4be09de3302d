//! Client of an executor over our own protocol.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_link::http::http_client::{
    HttpError, HttpRequest as Request, HttpResponse, SendOptions, write_header_line,
};
use bowline_link::websocket::close_codes;
use bowline_link::websocket::{
    DisconnectReason, WebSocketConnection, WebSocketReceiver, WebSocketSender,
};
use bowline_runtime::{TaskSpawner, timer};
use bowline_wire::FrameError;

use crate::frames::{ExecutorFrame, ExecutorHello, OpenSession, RequestHead, VERSION};
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use super::executor_session::{ExecutorSession, SessionAttachment};
use super::frame_writer::FrameWriter;
use super::http_exchange::HttpExchange;
use super::{ExecutorConnection, ExecutorInfo, ExecutorRequest, ExecutorTraffic, fault_map};

mod tunnel_response;
mod tunnel_upload;

use tunnel_upload::RequestUpload;

/// Timeout of each handshake step.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Default wait for a stream permit.
const STREAM_PERMIT_WAIT: Duration = Duration::from_secs(10);

/// Why the handshake failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ExecutorHandshakeError {
    /// The connection ended.
    #[error("the connection ended in the handshake")]
    Ended(#[from] DisconnectReason),
    /// The peer sent an invalid frame.
    #[error("what came is not valid")]
    Frame(#[from] FrameError),
    /// The peer sent an unexpected frame.
    #[error("the handshake was not kept")]
    Unexpected,
    /// The executor speaks an unsupported revision.
    #[error("the executor speaks revision {0}")]
    Version(u64),
    /// The handshake timed out.
    #[error("no handshake in time")]
    Timeout,
}

impl ExecutorHandshakeError {
    /// Closes a connection after a failed handshake, with the reason.
    pub fn close_connection(&self, outgoing: &WebSocketSender) {
        outgoing.close(close_codes::PROTOCOL_ERROR, &self.to_string());
    }
}

/// Waits for the hello frame of an executor.
///
/// # Errors
/// The hello is missing, late or invalid.
pub async fn receive_hello(
    incoming: &mut WebSocketReceiver,
) -> Result<ExecutorHello, ExecutorHandshakeError> {
    match next_frame(incoming).await? {
        ExecutorFrame::Hello(hello) if hello.protocol_version == VERSION => Ok(hello),
        ExecutorFrame::Hello(hello) => Err(ExecutorHandshakeError::Version(hello.protocol_version)),
        _ => Err(ExecutorHandshakeError::Unexpected),
    }
}

async fn next_frame(
    incoming: &mut WebSocketReceiver,
) -> Result<ExecutorFrame, ExecutorHandshakeError> {
    let message = timeout(STEP_TIMEOUT, incoming.next()).await;
    let message = message.map_err(|_late| ExecutorHandshakeError::Timeout)??;
    Ok(ExecutorFrame::parse(&message)?)
}

/// One connection with an executor. Closed when the last handle and the last body are dropped.
#[derive(Debug)]
pub struct ExecutorTunnel {
    shared: Arc<TunnelShared>,
    info: ExecutorInfo,
}

/// State shared by a connection and its response bodies.
#[derive(Debug)]
struct TunnelShared {
    session: Arc<ExecutorSession>,
    /// Number of this connection in its session.
    connection_id: u64,
    writer: FrameWriter,
    /// Initial send credit of a request body.
    credit: u64,
    /// Streams that the executor accepts.
    stream_permits: Arc<Semaphore>,
    received_bytes: Arc<AtomicU64>,
    /// Streams of the session before this connection.
    streams_before: u64,
}

impl Drop for TunnelShared {
    fn drop(&mut self) {
        self.writer.close(1000, "");
    }
}

impl ExecutorTunnel {
    /// Opens or resumes a session with an executor after its hello.
    ///
    /// # Errors
    /// The executor violated the handshake.
    pub async fn open(
        hello: &ExecutorHello,
        attached: SessionAttachment,
        socket: WebSocketConnection,
        spawner: &dyn TaskSpawner,
    ) -> Result<Self, ExecutorHandshakeError> {
        let WebSocketConnection {
            sender: outgoing,
            receiver: mut incoming,
        } = socket;
        let session = &attached.session;
        let open = ExecutorFrame::OpenSession(OpenSession {
            protocol_version: VERSION,
            session: Arc::clone(session.id()),
            marks: session.resume_marks(),
        });
        let sent = timeout(STEP_TIMEOUT, outgoing.send(open.to_bytes())).await;
        sent.map_err(|_late| ExecutorHandshakeError::Timeout)??;
        let ExecutorFrame::OpenSessionReply(opened) = next_frame(&mut incoming).await? else {
            return Err(ExecutorHandshakeError::Unexpected);
        };
        let writer = FrameWriter::new(outgoing, spawner);
        let marks = match opened.is_resumed {
            true => opened.marks,
            false => Vec::new(),
        };
        attached.resume_streams(&marks, &writer);
        let SessionAttachment {
            session,
            connection,
        } = attached;
        let received = Arc::<AtomicU64>::default();
        let reader = TunnelReader {
            receiver: incoming,
            session: Arc::clone(&session),
            connection_id: connection,
            writer: writer.clone(),
            received_bytes: Arc::clone(&received),
        };
        spawner.spawn("executor reader", Box::pin(reader.run()));
        let permits = match hello.streams_max {
            0 => session.limits().streams_max,
            theirs => theirs.min(session.limits().streams_max),
        };
        let permits = usize::try_from(permits).unwrap_or(Semaphore::MAX_PERMITS);
        let shared = TunnelShared {
            connection_id: connection,
            writer,
            credit: hello.credit,
            stream_permits: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))),
            received_bytes: received,
            streams_before: session.stream_count(),
            session,
        };
        let info = ExecutorInfo {
            software: Arc::clone(&hello.software),
            servers: hello.servers.clone(),
            secrets: hello.secrets.clone(),
        };
        Ok(Self {
            shared: Arc::new(shared),
            info,
        })
    }

    /// Returns the session of this connection.
    #[must_use]
    pub fn session(&self) -> &Arc<ExecutorSession> {
        &self.shared.session
    }

    /// Returns the frame writer.
    pub(crate) fn writer(&self) -> &FrameWriter {
        &self.shared.writer
    }

    /// Returns the number of this connection in its session.
    pub(crate) fn connection_id(&self) -> u64 {
        self.shared.connection_id
    }

    /// Waits for the permit for a new stream.
    pub(crate) async fn acquire_stream_permit(
        &self,
        until: Option<Instant>,
    ) -> Result<OwnedSemaphorePermit, HttpError> {
        let until = until.unwrap_or_else(|| timer::deadline_after(STREAM_PERMIT_WAIT));
        let permit = Arc::clone(&self.shared.stream_permits).acquire_owned();
        tokio::select! {
            biased;
            place = timeout_at(until, permit) => match place {
                Ok(Ok(place)) => Ok(place),
                Ok(Err(_)) | Err(_) => {
                    Err(fault_map::busy_error("the executor has too many streams open"))
                }
            },
            ended = self.shared.writer.wait_closed() => Err(not_connected_error(&ended)),
        }
    }

    async fn run_exchange(
        &self,
        exec_request: ExecutorRequest<'_>,
        wait: SendOptions<'_>,
    ) -> Result<HttpResponse, HttpError> {
        let permit = self.acquire_stream_permit(wait.connect_by).await?;
        let shared = &self.shared;
        let window = shared.session.budget().open_stream();
        let window =
            window.ok_or_else(|| fault_map::busy_error("too many answers are not read yet"))?;
        let head = request_head(&exec_request, &wait, window.size());
        let number = shared.session.next_stream_id();
        let session = Arc::clone(&shared.session);
        let exchange = Arc::new(HttpExchange::new(
            number,
            session,
            window,
            shared.credit,
            permit,
        ));
        let mut guard = tunnel_response::TunnelExchangeGuard {
            exchange: Arc::clone(&exchange),
            shared: Arc::clone(shared),
            was_sent: false,
        };
        let added = shared
            .session
            .add_stream(shared.connection_id, number, exchange);
        added.map_err(|reason| not_connected_error(&reason))?;
        (wait.on_send)();
        let request = ExecutorFrame::Request {
            stream: number,
            head,
        };
        let sending = shared.writer.send(&request);
        match with_deadline(wait.connect_by, sending).await {
            Some(sent) => sent.map_err(|reason| not_connected_error(&reason))?,
            None => return Err(HttpError::ConnectTimeout),
        }
        guard.was_sent = true;
        let mut upload =
            RequestUpload::new(&guard.exchange, &shared.writer, exec_request.request.body);
        let exchange = Arc::clone(&guard.exchange);
        let mut is_sent = false;
        let response_head = poll_fn(|cx| {
            if let Poll::Ready(response_head) = exchange.poll_head(cx) {
                return Poll::Ready(response_head);
            }
            if !is_sent && let Poll::Ready(sent) = upload.poll(cx) {
                is_sent = true;
                if let Err(broken) = sent {
                    return Poll::Ready(Err(broken));
                }
            }
            Poll::Pending
        });
        let Some(response_head) = with_deadline(wait.first_byte_by, response_head).await else {
            return Err(HttpError::FirstByteTimeout);
        };
        let rest = upload.into_streaming().filter(|_| !is_sent);
        guard.into_response(&response_head?, rest)
    }
}

/// Awaits a future until the optional deadline.
async fn with_deadline<T>(until: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(future.await),
        Some(until) => timeout_at(until, future).await.ok(),
    }
}

fn not_connected_error(reason: &DisconnectReason) -> HttpError {
    fault_map::away_error(&format!("the executor is not connected any more: {reason}"))
}

fn request_head(
    exec_request: &ExecutorRequest<'_>,
    wait: &SendOptions<'_>,
    credit: u64,
) -> RequestHead {
    let request: &Request<'_> = &exec_request.request;
    let mut lines = request.shared_headers.as_bytes().to_vec();
    for (name, value) in &request.headers {
        write_header_line(&mut lines, name, value);
    }
    let left = |until: Instant| {
        let left = until.saturating_duration_since(timer::now());
        bowline_core::time::to_millis(left)
    };
    RequestHead {
        server: exec_request.server.into(),
        credit,
        connect_ms: wait.connect_by.map(left),
        first_byte_ms: wait.first_byte_by.map(left),
        body_len: request.body.length(),
        secret_headers: exec_request.secret_headers.to_vec(),
        method: request.method.as_str().into(),
        url: request.endpoint.uri().to_string().into(),
        header_lines: lines.into(),
    }
}

impl ExecutorConnection for ExecutorTunnel {
    fn send_request<'a>(
        &'a self,
        exec_request: ExecutorRequest<'a>,
        wait: SendOptions<'a>,
    ) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(self.run_exchange(exec_request, wait))
    }

    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn traffic(&self) -> ExecutorTraffic {
        let session = &self.shared.session;
        ExecutorTraffic {
            streams: u64::try_from(session.open_streams()).unwrap_or(u64::MAX),
            opened: session
                .stream_count()
                .saturating_sub(self.shared.streams_before),
            sent_bytes: self.shared.writer.sent_bytes(),
            received_bytes: self.shared.received_bytes.load(Ordering::Relaxed),
        }
    }

    fn disconnect_reason(&self) -> Option<DisconnectReason> {
        self.shared.writer.disconnect_reason()
    }

    fn wait_closed(&self) -> BoxFuture<'_, DisconnectReason> {
        Box::pin(self.shared.writer.wait_closed())
    }

    fn close(&self, code: u16, reason: &str) {
        self.shared.writer.close(code, reason);
    }
}

/// Reads frames and delivers them to their streams. Never waits for a slow reader.
#[derive(Debug)]
struct TunnelReader {
    receiver: WebSocketReceiver,
    session: Arc<ExecutorSession>,
    connection_id: u64,
    writer: FrameWriter,
    received_bytes: Arc<AtomicU64>,
}

/// Disconnects all streams, however the reader task ends.
impl Drop for TunnelReader {
    fn drop(&mut self) {
        let reason = self
            .writer
            .disconnect_reason()
            .unwrap_or(DisconnectReason::Local);
        self.session.disconnect(self.connection_id, &reason);
    }
}

impl TunnelReader {
    async fn run(mut self) {
        loop {
            let message = match self.receiver.next().await {
                Ok(message) => message,
                Err(reason) => return self.session.disconnect(self.connection_id, &reason),
            };
            let Ok(frame) = ExecutorFrame::parse(&message) else {
                return self.close_invalid("what came is no frame");
            };
            let number = match &frame {
                ExecutorFrame::Data { stream, bytes, .. } => {
                    let count = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                    self.received_bytes.fetch_add(count, Ordering::Relaxed);
                    *stream
                }
                ExecutorFrame::Response { stream, .. }
                | ExecutorFrame::End { stream, .. }
                | ExecutorFrame::Credit { stream, .. }
                | ExecutorFrame::Fault { stream, .. }
                | ExecutorFrame::ServerStarted { stream, .. }
                | ExecutorFrame::Stderr { stream, .. }
                | ExecutorFrame::ServerExit { stream, .. } => *stream,
                ExecutorFrame::Hello(_)
                | ExecutorFrame::OpenSession(_)
                | ExecutorFrame::OpenSessionReply(_)
                | ExecutorFrame::Request { .. }
                | ExecutorFrame::Cancel { .. }
                | ExecutorFrame::StartServer { .. }
                | ExecutorFrame::StopServer { .. } => {
                    return self.close_invalid("an executor does not say that");
                }
            };
            self.session
                .deliver_frame(self.connection_id, number, frame, &self.writer);
        }
    }

    fn close_invalid(&self, reason: &str) {
        self.writer.close(close_codes::PROTOCOL_ERROR, reason);
        let invalid = DisconnectReason::Invalid(reason.into());
        self.session.disconnect(self.connection_id, &invalid);
    }
}
