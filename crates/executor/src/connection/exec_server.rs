//! Client of a third-party exec-server, an executor with a different wire protocol.
//!
//! The protocol has no cancel and no credit, so data for a dropped request is discarded. While the
//! buffered bytes of all responses reach the limit, the socket is not read and the exec-server is
//! slowed down. A reader that stops, or delays further responses for too long, loses the response
//! with an overflow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_link::http::http_client::{HttpError, HttpResponse, SendOptions};
use bowline_link::websocket::close_codes;
use bowline_link::websocket::{
    DisconnectReason, MessageFormat, WebSocketConnection, WebSocketLimits, WebSocketReceiver,
    WebSocketSender,
};
use bowline_runtime::TaskSpawner;
use bowline_wire::FrameError;

use crate::execserver::{
    self, BODY_BYTES_MAX, ExecMessage, ExecMethod, ExecRefusal, ExecRequestId, InitializeParams,
    MESSAGE_BYTES_MAX, code,
};
use bytes::Bytes;
use thiserror::Error;
use tokio::time::timeout;

use self::exchange_table::ExchangeTable;
use self::exec_exchange::ResponseMode;
use super::{ExecutorConnection, ExecutorInfo, ExecutorRequest, ExecutorTraffic};

mod exchange_guard;
mod exchange_table;
mod exec_exchange;
mod request_message;

/// Timeout of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Id of the first request.
const FIRST_REQUEST_ID: i64 = 1;

/// Software name of an exec-server with a reported version.
const SOFTWARE: &str = "codex exec-server";

/// Why the handshake failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ExecServerOpenError {
    /// The connection ended.
    #[error("the connection ended in the handshake")]
    Ended(#[from] DisconnectReason),
    /// The peer sent an invalid message.
    #[error("what came is not valid")]
    Frame(#[from] FrameError),
    /// Another connection holds the session, perhaps an undetected dead connection.
    #[error("another connection has the session")]
    Attached,
    /// The exec-server refused the client or does not know the session.
    #[error("the handshake was refused with {code}: {message}")]
    Refused {
        /// The error code.
        code: i64,
        /// The error message.
        message: Arc<str>,
    },
    /// The handshake timed out.
    #[error("no handshake in time")]
    Timeout,
}

/// Returns the WebSocket limits for this protocol.
#[must_use]
pub fn socket_limits() -> WebSocketLimits {
    WebSocketLimits {
        format: MessageFormat::TextOrBytes,
        message_bytes_max: MESSAGE_BYTES_MAX,
        ..WebSocketLimits::default()
    }
}

/// One connection with an exec-server. Closed when the last handle and the last response body are
/// dropped.
#[derive(Debug)]
pub struct ExecServerConnection {
    shared: Arc<ExecServerShared>,
    info: ExecutorInfo,
    session_id: Arc<str>,
}

/// State shared by a connection and all response bodies.
#[derive(Debug)]
struct ExecServerShared {
    sender: WebSocketSender,
    exchanges: Arc<ExchangeTable>,
    sent_bytes: AtomicU64,
}

impl Drop for ExecServerShared {
    fn drop(&mut self) {
        self.sender.close(1000, "");
    }
}

impl ExecServerConnection {
    /// Performs the handshake over a dialled connection. `resume` takes over the session of an
    /// earlier connection.
    ///
    /// # Errors
    /// The exec-server violated the handshake or does not know the session.
    pub async fn open(
        socket: WebSocketConnection,
        client: &str,
        resume: Option<Arc<str>>,
        spawner: &dyn TaskSpawner,
    ) -> Result<Self, ExecServerOpenError> {
        let WebSocketConnection {
            sender: outgoing,
            receiver: mut incoming,
        } = socket;
        let first = InitializeParams {
            client_name: client.into(),
            resume_session: resume,
        };
        let handshake = async {
            outgoing
                .send(execserver::write_initialize(FIRST_REQUEST_ID, &first))
                .await?;
            let initialize_result = receive_initialize_result(&mut incoming).await?;
            outgoing.send(execserver::write_initialized()).await?;
            Ok::<_, ExecServerOpenError>(execserver::parse_session(&initialize_result)?)
        };
        let outcome = timeout(HANDSHAKE_TIMEOUT, handshake).await;
        let (session, version) = outcome.map_err(|_late| ExecServerOpenError::Timeout)??;
        let exchanges = Arc::<ExchangeTable>::default();
        let reader = ExecServerReader {
            receiver: incoming,
            sender: outgoing.clone(),
            exchanges: Arc::clone(&exchanges),
        };
        spawner.spawn("exec-server reader", Box::pin(reader.run()));
        let software = version.map(|version| format!("{SOFTWARE} {version}").into());
        let shared = ExecServerShared {
            sender: outgoing,
            exchanges,
            sent_bytes: AtomicU64::new(0),
        };
        Ok(Self {
            shared: Arc::new(shared),
            info: ExecutorInfo {
                software: software.unwrap_or_else(|| SOFTWARE.into()),
                ..ExecutorInfo::default()
            },
            session_id: session,
        })
    }

    /// Returns the session id for a later connection to resume.
    #[must_use]
    pub const fn session_id(&self) -> &Arc<str> {
        &self.session_id
    }
}

/// Waits for the response to `initialize`.
async fn receive_initialize_result(
    incoming: &mut WebSocketReceiver,
) -> Result<Bytes, ExecServerOpenError> {
    loop {
        match ExecMessage::parse(&incoming.next().await?)? {
            ExecMessage::Result { id, result } if id == ExecRequestId::Number(FIRST_REQUEST_ID) => {
                return Ok(result);
            }
            ExecMessage::Error { refusal, .. } if refusal.code == code::SESSION_ATTACHED => {
                return Err(ExecServerOpenError::Attached);
            }
            ExecMessage::Error { refusal, .. } => {
                return Err(ExecServerOpenError::Refused {
                    code: refusal.code,
                    message: refusal.message,
                });
            }
            ExecMessage::Request { .. }
            | ExecMessage::Notification { .. }
            | ExecMessage::Result { .. } => {}
        }
    }
}

impl ExecServerShared {
    async fn run_exchange(
        self: &Arc<Self>,
        exec_request: ExecutorRequest<'_>,
        wait: SendOptions<'_>,
        kind: ResponseMode,
    ) -> Result<HttpResponse, HttpError> {
        let (mut body, request) = request_message::take_body(exec_request.request).await?;
        let (call, exchange) = self.exchanges.add_exchange(kind)?;
        let guard = exchange_guard::ExecExchangeGuard::new(Arc::clone(self), call, exchange);
        let timeout = match kind {
            ResponseMode::Streamed => None,
            // The timeout covers the whole response, as the caller waits for the end.
            ResponseMode::Whole => wait.first_byte_by,
        };
        let stream = guard.exchange.stream_id();
        let message = request_message::request_message(
            &request,
            body.as_deref(),
            exec_request.secret_headers,
            call,
            stream,
            timeout,
        )?;
        let sent = body.take().map_or(0, |body| body.len());
        (wait.on_send)();
        let sending = self.sender.send(message);
        match request_message::with_deadline(wait.connect_by, sending).await {
            Some(sent) => sent.map_err(|reason| not_connected_error(&reason))?,
            None => return Err(HttpError::ConnectTimeout),
        }
        let sent = u64::try_from(sent).unwrap_or(u64::MAX);
        self.sent_bytes.fetch_add(sent, Ordering::Relaxed);
        match request_message::with_deadline(wait.first_byte_by, guard.exchange.receive_head())
            .await
        {
            Some(head) => guard.into_response(head?, kind),
            None => Err(HttpError::FirstByteTimeout),
        }
    }
}

fn not_connected_error(reason: &DisconnectReason) -> HttpError {
    HttpError::Unreachable(format!("the executor is not connected any more: {reason}").into())
}

impl ExecutorConnection for ExecServerConnection {
    fn send_request<'a>(
        &'a self,
        exec_request: ExecutorRequest<'a>,
        wait: SendOptions<'a>,
    ) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(
            self.shared
                .run_exchange(exec_request, wait, ResponseMode::Streamed),
        )
    }

    fn fetch_whole<'a>(
        &'a self,
        exec_request: ExecutorRequest<'a>,
        wait: SendOptions<'a>,
        bytes_max: usize,
    ) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(async move {
            let mut response = self
                .shared
                .run_exchange(exec_request, wait, ResponseMode::Whole)
                .await?;
            response.body = response
                .body
                .read_whole(bytes_max.min(BODY_BYTES_MAX))
                .await?
                .into();
            Ok(response)
        })
    }

    fn info(&self) -> &ExecutorInfo {
        &self.info
    }

    fn traffic(&self) -> ExecutorTraffic {
        let sent_bytes = self.shared.sent_bytes.load(Ordering::Relaxed);
        self.shared.exchanges.traffic(sent_bytes)
    }

    fn disconnect_reason(&self) -> Option<DisconnectReason> {
        self.shared.sender.disconnect_reason()
    }

    fn wait_closed(&self) -> BoxFuture<'_, DisconnectReason> {
        Box::pin(self.shared.sender.wait_closed())
    }

    fn close(&self, code: u16, reason: &str) {
        self.shared.sender.close(code, reason);
    }
}

/// Reads messages and delivers each message to an exchange.
#[derive(Debug)]
struct ExecServerReader {
    receiver: WebSocketReceiver,
    sender: WebSocketSender,
    exchanges: Arc<ExchangeTable>,
}

/// Disconnects all exchanges, however the reader task ends.
impl Drop for ExecServerReader {
    fn drop(&mut self) {
        let reason = self
            .sender
            .disconnect_reason()
            .unwrap_or(DisconnectReason::Local);
        self.exchanges.disconnect(&reason);
    }
}

impl ExecServerReader {
    async fn run(mut self) {
        loop {
            let message = match self.receiver.next().await {
                Ok(message) => message,
                Err(cause) => return self.exchanges.disconnect(&cause),
            };
            let handled = match ExecMessage::parse(&message) {
                Ok(parsed) => self.handle_message(parsed).await,
                Err(error) => Err(error),
            };
            if let Err(error) = handled {
                let reason = error.to_string();
                self.sender.close(close_codes::PROTOCOL_ERROR, &reason);
                return self
                    .exchanges
                    .disconnect(&DisconnectReason::Invalid(reason.into()));
            }
        }
    }

    async fn handle_message(&mut self, message: ExecMessage) -> Result<(), FrameError> {
        match message {
            ExecMessage::Notification {
                method: ExecMethod::BodyDelta,
                params,
            } => self.exchanges.deliver_delta(&params).await?,
            ExecMessage::Notification { .. } => {}
            ExecMessage::Result { id, result } => self.exchanges.deliver_response(&id, Ok(result)),
            ExecMessage::Error { id, refusal } => {
                self.exchanges.deliver_response(&id, Err(refusal))
            }
            ExecMessage::Request { id, method, .. } => {
                let refusal = ExecRefusal {
                    code: code::METHOD,
                    message: format!("`{}` is not offered", method.as_str()).into(),
                    stream_fault: None,
                };
                // A peer with unread replies gets no further reply.
                let _ = self
                    .sender
                    .try_send(execserver::write_refusal(&id, &refusal));
            }
        }
        Ok(())
    }
}
