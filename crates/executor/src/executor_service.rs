//! The executor's side of the protocol: serves a gateway over successive connections.

mod request_streams;
mod service_error;
mod service_exchange;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::error::ExecutionStatus;
use bowline_core::hex::to_hex;
use bowline_core::sync::lock;
use bowline_link::websocket::close_codes;
use bowline_link::websocket::{
    DisconnectReason, WebSocketConnection, WebSocketReceiver, WebSocketSender,
};
use bowline_runtime::{Clock, Lifecycle, Shutdown, TaskTracker};

use crate::connection::FrameWriter;
use crate::frames::{
    ExecutorFrame, ExecutorHello, OpenSession, OpenSessionReply, RequestHead, StreamFault,
    StreamFaultCode, VERSION,
};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::http_egress::HttpEgress;
use super::offer::ExecutorOffer;
use super::session_servers::SessionServers;

use self::request_streams::{RequestStreams, StopReason, StreamOpenError};
use self::service_exchange::ServiceExchange;

pub use self::service_error::ServiceError;

/// Interval for closing idle connections to servers.
const TIDY_INTERVAL: Duration = Duration::from_secs(10);

/// How long a gateway may take to read the last frames.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Software name sent to the gateway.
const SOFTWARE: &str = concat!("bowline/", env!("CARGO_PKG_VERSION"));

/// Longest server name of a gateway, in bytes.
const SERVER_NAME_BYTES_MAX: usize = 256;

/// Serves gateways. Cheap to clone; serves one session at a time.
#[derive(Clone, Debug)]
pub struct ExecutorService(Arc<ServiceInner>);

#[derive(Debug)]
struct ServiceInner {
    offer: ExecutorOffer,
    /// Random per start.
    instance: Arc<str>,
    egress: Arc<HttpEgress>,
    state: Mutex<ServiceState>,
    status: watch::Sender<ServiceStatus>,
    lifecycle: Lifecycle,
    tasks: TaskTracker,
}

/// The served session and connection.
#[derive(Debug, Default)]
struct ServiceState {
    session: Option<Arc<ServiceSession>>,
    /// The connection attached to the session.
    attached: Option<AttachedConnection>,
    /// Number of the last connection.
    last_connection: u64,
}

/// A connection attached to the session.
#[derive(Debug)]
struct AttachedConnection {
    connection: u64,
    writer: FrameWriter,
    streams: Arc<RequestStreams>,
}

/// Connection state of an executor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ServiceStatus {
    /// No gateway connected yet.
    #[default]
    Waiting,
    /// A gateway opened a session.
    Connected,
    /// The gateway disconnected or cannot be reached, with the reason.
    Away(Arc<str>),
    /// The gateway rejects this executor, as far as known; the executor keeps trying.
    Refused {
        /// The HTTP status, if the upgrade failed.
        status: Option<u16>,
        /// The reason.
        reason: Arc<str>,
    },
    /// Closed locally.
    Closed,
}

/// A session of a gateway, resumable after a disconnect.
#[derive(Debug)]
struct ServiceSession {
    id: Arc<str>,
    servers: SessionServers,
}

impl ExecutorService {
    /// Returns a service without a session.
    #[must_use]
    pub fn new(offer: ExecutorOffer, tasks: TaskTracker, clock: Arc<dyn Clock>) -> Self {
        let mut random = [0; 16];
        // Without entropy two starts look alike; the new process holds nothing of the old session.
        let _unlikely = getrandom::fill(&mut random);
        Self(Arc::new(ServiceInner {
            instance: to_hex(&random).into(),
            egress: Arc::new(HttpEgress::new(&offer, clock)),
            state: Mutex::default(),
            status: watch::Sender::default(),
            lifecycle: Lifecycle::default(),
            offer,
            tasks,
        }))
    }

    /// Serves the gateway at the far end of a connection until the end.
    ///
    /// # Errors
    /// Always: the reason of the end.
    pub async fn serve_gateway(&self, socket: WebSocketConnection) -> ServiceError {
        let outgoing_copy = socket.sender.clone();
        let result = self.run_session(socket.sender, socket.receiver).await;
        let Err(error) = result;
        error.close_connection(&outgoing_copy);
        error
    }

    async fn run_session(
        &self,
        outgoing: WebSocketSender,
        mut incoming: WebSocketReceiver,
    ) -> Result<std::convert::Infallible, ServiceError> {
        let step = self.0.offer.limits.handshake_step;
        let open = timeout(step, self.handshake(&outgoing, &mut incoming));
        let open = open.await.map_err(|_late| ServiceError::Timeout)??;
        let outgoing_copy = outgoing.clone();
        let writer = FrameWriter::new(outgoing, &self.0.tasks);
        let attached = self.attach_session(&open, &writer)?;
        let opened = ExecutorFrame::OpenSessionReply(OpenSessionReply {
            is_resumed: attached.resumed,
            marks: attached.session.servers.resume_servers(&open.marks),
        });
        let result = timeout(step, writer.send(&opened)).await;
        result.map_err(|_late| ServiceError::Timeout)??;
        attached.session.servers.attach_writer(&writer);
        self.set_status(ServiceStatus::Connected);
        let Err(error) = attached.read_frames(&mut incoming).await;
        if attached.is_fenced() {
            return Err(ServiceError::Fenced);
        }
        // Close with the error before the drop of `attached` closes without one.
        error.close_connection(&outgoing_copy);
        Err(error)
    }

    /// Sends `hello` and waits for `open`.
    async fn handshake(
        &self,
        outgoing: &WebSocketSender,
        incoming: &mut WebSocketReceiver,
    ) -> Result<OpenSession, ServiceError> {
        let offer = &self.0.offer;
        let hello = ExecutorFrame::Hello(ExecutorHello {
            protocol_version: VERSION,
            name: Arc::clone(&offer.name),
            instance: Arc::clone(&self.0.instance),
            software: SOFTWARE.into(),
            servers: offer.servers.keys().cloned().collect(),
            secrets: offer.secrets.names(),
            streams_max: offer.limits.flow.streams_max,
            credit: offer.limits.flow.stream_floor(),
        });
        outgoing.send(hello.to_bytes()).await?;
        match ExecutorFrame::parse(&incoming.next().await?)? {
            ExecutorFrame::OpenSession(open) if open.protocol_version == VERSION => Ok(open),
            ExecutorFrame::OpenSession(open) => Err(ServiceError::Version(open.protocol_version)),
            _ => Err(ServiceError::Unexpected("the session must be opened first")),
        }
    }

    /// Opens a session, or resumes the current session. A different session ends, with all servers.
    fn attach_session(
        &self,
        open: &OpenSession,
        writer: &FrameWriter,
    ) -> Result<SessionConnection, ServiceError> {
        let streams = RequestStreams::new(self.0.offer.limits.flow, writer.clone());
        let streams = Arc::new(streams);
        let mut state = lock(&self.0.state);
        if self.shutdown().is_closing() {
            writer.close(close_codes::GOING_AWAY, "");
            return Err(ServiceError::Ended(DisconnectReason::Local));
        }
        state.last_connection += 1;
        let connection = state.last_connection;
        let previous = state.attached.replace(AttachedConnection {
            connection,
            writer: writer.clone(),
            streams: Arc::clone(&streams),
        });
        let existing = state
            .session
            .take_if(|existing| existing.id == open.session);
        let other = state.session.take();
        let resumed = existing.is_some();
        let session = existing.unwrap_or_else(|| {
            Arc::new(ServiceSession {
                id: Arc::clone(&open.session),
                servers: SessionServers::new(&self.0.offer, &self.0.tasks),
            })
        });
        state.session = Some(Arc::clone(&session));
        drop(state);
        if let Some(previous) = previous {
            previous.streams.shut_down();
            let reason = "another connection took its place";
            previous.writer.close(close_codes::FENCED, reason);
            session.servers.detach_writer();
        }
        if let Some(other) = other {
            other.servers.kill_all();
        }
        Ok(SessionConnection {
            service: self.clone(),
            session,
            connection,
            resumed,
            writer: writer.clone(),
            streams,
        })
    }

    /// Ends a session after the retention time.
    async fn expire_session(self, session: Arc<ServiceSession>, connection: u64) {
        tokio::select! {
            biased;
            () = self.shutdown().wait_closing() => return,
            () = sleep(self.0.offer.limits.session_retention) => {}
        }
        let mut state = lock(&self.0.state);
        if state.last_connection != connection || state.attached.is_some() {
            return;
        }
        state.session = None;
        drop(state);
        session.servers.kill_all();
        self.0.egress.close_idle();
    }

    /// Watches the connection state.
    #[must_use]
    pub fn status(&self) -> watch::Receiver<ServiceStatus> {
        self.0.status.subscribe()
    }

    /// Sets the connection state, unless closed.
    pub(super) fn set_status(&self, new_status: ServiceStatus) {
        self.0.status.send_if_modified(|status| {
            let is_new = *status != ServiceStatus::Closed && *status != new_status;
            if is_new {
                *status = new_status;
            }
            is_new
        });
    }

    pub(super) fn shutdown(&self) -> &Shutdown {
        self.0.lifecycle.shutdown()
    }

    /// Shuts down: ends all servers and requests, and notifies the gateway.
    pub async fn close(&self) {
        let (session, attached) = {
            let mut state = lock(&self.0.state);
            // Under the lock: no connection attaches after the take.
            self.0.lifecycle.close();
            (state.session.take(), state.attached.take())
        };
        // No frame can be sent after the close.
        if let Some(session) = session {
            session.servers.kill_all();
        }
        if let Some(attached) = &attached {
            attached.streams.fail_all(&StreamFault {
                code: StreamFaultCode::Closing,
                execution: ExecutionStatus::Unknown,
                reason: "the executor goes down".into(),
            });
            attached.writer.close(close_codes::GOING_AWAY, "");
        }
        // A waiter on the status drops the connection, so the close frame must be queued before.
        self.set_status(ServiceStatus::Closed);
        if let Some(attached) = attached {
            let _ = timeout(CLOSE_GRACE, attached.writer.wait_closed()).await;
        }
    }

    /// Returns the offer.
    #[must_use]
    pub fn offer(&self) -> &ExecutorOffer {
        &self.0.offer
    }

    pub(super) fn egress(&self) -> &Arc<HttpEgress> {
        &self.0.egress
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        self.0.egress.clock()
    }

    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }
}

/// A connection attached to a session; dropping the connection stops all requests.
#[derive(Debug)]
struct SessionConnection {
    service: ExecutorService,
    session: Arc<ServiceSession>,
    connection: u64,
    resumed: bool,
    writer: FrameWriter,
    streams: Arc<RequestStreams>,
}

impl Drop for SessionConnection {
    fn drop(&mut self) {
        self.streams.shut_down();
        self.writer.close(close_codes::GOING_AWAY, "");
        let inner = &self.service.0;
        let mut state = lock(&inner.state);
        let ours = |attached: &mut AttachedConnection| attached.connection == self.connection;
        if state.attached.take_if(ours).is_none() {
            return;
        }
        drop(state);
        self.service
            .set_status(ServiceStatus::Away("the gateway is gone".into()));
        self.session.servers.detach_writer();
        let expiry = self
            .service
            .clone()
            .expire_session(Arc::clone(&self.session), self.connection);
        inner.tasks.spawn("executor session", expiry);
    }
}

impl SessionConnection {
    fn is_fenced(&self) -> bool {
        lock(&self.service.0.state).last_connection != self.connection
    }

    /// Reads and dispatches frames until the connection ends.
    async fn read_frames(
        &self,
        incoming: &mut WebSocketReceiver,
    ) -> Result<std::convert::Infallible, ServiceError> {
        let mut tidy = tokio::time::interval(TIDY_INTERVAL);
        tidy.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let message = tokio::select! {
                biased;
                message = incoming.next() => message?,
                _ = tidy.tick() => {
                    self.service.0.egress.close_idle();
                    continue;
                }
            };
            self.dispatch_frame(ExecutorFrame::parse(&message)?)?;
        }
    }

    /// Dispatches one frame, without waiting.
    fn dispatch_frame(&self, frame: ExecutorFrame) -> Result<(), ServiceError> {
        match frame {
            ExecutorFrame::Request { stream, head } => return self.start_request(stream, head),
            ExecutorFrame::Data {
                stream,
                offset,
                ref bytes,
            } => {
                if let Some(stream) = self.streams.get(stream) {
                    self.streams.push_data(&stream, offset, bytes.clone());
                    return Ok(());
                }
            }
            ExecutorFrame::End {
                stream,
                offset,
                ref trailers,
            } => {
                if let Some(stream) = self.streams.get(stream) {
                    self.streams.push_end(&stream, offset, trailers.clone());
                    return Ok(());
                }
            }
            ExecutorFrame::Credit { stream, bytes } => {
                if let Some(stream) = self.streams.get(stream) {
                    stream.add_credit(bytes);
                    return Ok(());
                }
            }
            ExecutorFrame::Cancel { stream } => {
                if let Some(stream) = self.streams.get(stream) {
                    self.streams.stop_stream(&stream, StopReason::Cancelled);
                    return Ok(());
                }
            }
            ExecutorFrame::StartServer { .. } | ExecutorFrame::StopServer { .. } => {}
            ExecutorFrame::Hello(_)
            | ExecutorFrame::OpenSession(_)
            | ExecutorFrame::OpenSessionReply(_)
            | ExecutorFrame::Response { .. }
            | ExecutorFrame::Fault { .. }
            | ExecutorFrame::ServerStarted { .. }
            | ExecutorFrame::Stderr { .. }
            | ExecutorFrame::ServerExit { .. } => {
                return Err(ServiceError::Unexpected("that is not the gateway's to say"));
            }
        }
        // The stream belongs to a server, or is already closed.
        self.session.servers.dispatch_frame(&frame, &self.writer);
        Ok(())
    }

    /// Starts an HTTP request.
    fn start_request(&self, number: u64, request_head: RequestHead) -> Result<(), ServiceError> {
        let refuse = |code, reason: &str| {
            self.writer.push_frame(&ExecutorFrame::Fault {
                stream: number,
                fault: StreamFault {
                    code,
                    execution: ExecutionStatus::NotStarted,
                    reason: reason.into(),
                },
            });
            Ok(())
        };
        if request_head.server.len() > SERVER_NAME_BYTES_MAX {
            return refuse(
                StreamFaultCode::Invalid,
                "the name of the server is too long",
            );
        }
        let stream = match self.streams.open_stream(number, &request_head) {
            Ok(stream) => stream,
            Err(StreamOpenError::Busy) => {
                return refuse(StreamFaultCode::Busy, "too many requests at once");
            }
            Err(StreamOpenError::Closed) => {
                return refuse(StreamFaultCode::Closing, "the executor goes down");
            }
            Err(StreamOpenError::InUse) => {
                return Err(ServiceError::Unexpected("a stream is asked for twice"));
            }
        };
        let inner = &self.service.0;
        let exchange = ServiceExchange {
            streams: Arc::clone(&self.streams),
            stream,
            writer: self.writer.clone(),
            egress: Arc::clone(&inner.egress),
        };
        inner
            .tasks
            .spawn("executor request", exchange.run(request_head));
        Ok(())
    }
}
