//! Serves clients over the exec-server protocol: HTTP requests only.
//!
//! Processes and files are not offered: no message from the network names a command.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::sync::lock;
use bowline_link::websocket::close_codes;
use bowline_link::websocket::{
    DisconnectReason, WebSocketConnection, WebSocketReceiver, WebSocketSender,
};
use bowline_runtime::{Lifecycle, SystemClock, TaskTracker};

use crate::connection::exec_server_limits;
use crate::execserver::{
    self, ExecHttpRequest, ExecMessage, ExecMethod, ExecRefusal, ExecRequestId, InitializeParams,
    code,
};
use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::adapter_request::AdapterRequest;
use self::adapter_sessions::{AdapterSessionGuard, AdapterSessions, AttachError};
use super::executor_listener::{ConnectionHandler, ListenAuth, ListenError, listen_with};
use super::executor_service::{ExecutorService, ServiceStatus};
use super::http_egress::HttpEgress;
use super::offer::ExecutorOffer;

mod adapter_request;
mod adapter_sessions;
mod follow_redirects;

/// Timeout for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of whole request and response bodies in memory per connection.
const BODIES_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Offers this machine to exec-server clients that dial `listener`, until `shutdown` resolves.
///
/// # Errors
/// The listener would be open to other machines.
pub async fn listen_as_exec_server(
    listener: TcpListener,
    auth: ListenAuth,
    offer: ExecutorOffer,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ListenError> {
    let service = ExecutorService::new(
        with_exec_server_limits(offer),
        TaskTracker::default(),
        Arc::new(SystemClock::start()),
    );
    let adapter = Arc::new(ExecServerAdapter::new(&service));
    listen_with(listener, auth, adapter, &service, shutdown).await
}

/// Returns the offer with the WebSocket limits of the exec-server protocol.
#[must_use]
pub fn with_exec_server_limits(mut offer: ExecutorOffer) -> ExecutorOffer {
    let queue_bytes_max = offer.limits.socket.queue_bytes_max;
    offer.limits.socket = exec_server_limits();
    offer.limits.socket.queue_bytes_max = queue_bytes_max;
    offer
}

/// Serves exec-server clients with an [`ExecutorService`].
#[derive(Debug)]
pub struct ExecServerAdapter {
    service: ExecutorService,
    sessions: Arc<AdapterSessions>,
}

impl ExecServerAdapter {
    /// Returns an adapter without sessions. Connections must use the limits of
    /// [`with_exec_server_limits`].
    #[must_use]
    pub fn new(service: &ExecutorService) -> Self {
        let keep = service.offer().limits.session_retention;
        Self {
            service: service.clone(),
            sessions: AdapterSessions::new(keep, service.tasks().clone()),
        }
    }
}

impl ConnectionHandler for ExecServerAdapter {
    fn serve_connection(&self, socket: WebSocketConnection) -> BoxFuture<'_, ()> {
        let WebSocketConnection {
            sender: outgoing,
            receiver: incoming,
        } = socket;
        let shared = AdapterShared {
            egress: Arc::clone(self.service.egress()),
            outgoing,
            active_streams: Mutex::default(),
            body_permits: Arc::new(Semaphore::new(BODIES_BYTES_MAX)),
        };
        let streams_max = self.service.offer().limits.flow.streams_max;
        let streams_max = usize::try_from(streams_max).unwrap_or(usize::MAX);
        let connection = AdapterConnection {
            shared: Arc::new(shared),
            sessions: Arc::clone(&self.sessions),
            tasks: self.service.tasks().clone(),
            request_permits: Arc::new(Semaphore::new(streams_max.min(Semaphore::MAX_PERMITS))),
            lifecycle: Lifecycle::default(),
            phase: AdapterPhase::New,
        };
        Box::pin(async move {
            let reason = connection.serve(incoming, &self.service).await;
            self.service
                .set_status(ServiceStatus::Away("the client is gone".into()));
            tracing::info!(
                error = &reason as &dyn std::error::Error,
                "exec-server client disconnected"
            );
        })
    }
}

/// State shared by a connection and the connection's requests.
#[derive(Debug)]
struct AdapterShared {
    egress: Arc<HttpEgress>,
    outgoing: WebSocketSender,
    /// Open response streams, by the client's stream name.
    active_streams: Mutex<HashSet<Arc<str>>>,
    /// Byte permits for whole bodies.
    body_permits: Arc<Semaphore>,
}

/// Handshake phase of a client.
#[derive(Debug)]
enum AdapterPhase {
    /// No message yet.
    New,
    /// The session was sent.
    Initializing(AdapterSessionGuard),
    /// Requests are allowed.
    Ready { _session: AdapterSessionGuard },
}

/// One connection; dropping the connection stops all requests.
#[derive(Debug)]
struct AdapterConnection {
    shared: Arc<AdapterShared>,
    sessions: Arc<AdapterSessions>,
    tasks: TaskTracker,
    /// Permits for concurrent requests.
    request_permits: Arc<Semaphore>,
    /// Its drop stops the requests.
    lifecycle: Lifecycle,
    phase: AdapterPhase,
}

impl Drop for AdapterConnection {
    fn drop(&mut self) {
        self.shared.outgoing.close(close_codes::GOING_AWAY, "");
    }
}

impl AdapterConnection {
    async fn serve(
        mut self,
        mut incoming: WebSocketReceiver,
        service: &ExecutorService,
    ) -> DisconnectReason {
        let handshake = timeout(HANDSHAKE_TIMEOUT, async {
            while !matches!(self.phase, AdapterPhase::Ready { .. }) {
                self.handle_next(&mut incoming).await?;
            }
            Ok(())
        });
        match handshake.await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => return reason,
            Err(_late) => return self.close_broken("no handshake in time"),
        }
        service.set_status(ServiceStatus::Connected);
        loop {
            if let Err(reason) = self.handle_next(&mut incoming).await {
                return reason;
            }
        }
    }

    /// Handles the next message.
    async fn handle_next(
        &mut self,
        incoming: &mut WebSocketReceiver,
    ) -> Result<(), DisconnectReason> {
        let message = incoming.next().await?;
        match ExecMessage::parse(&message) {
            Ok(parsed) => self.dispatch_message(parsed).await,
            // A malformed message affects no other request.
            Err(error) => {
                self.shared
                    .outgoing
                    .send(execserver::write_malformed(error))
                    .await
            }
        }
    }

    async fn dispatch_message(&mut self, message: ExecMessage) -> Result<(), DisconnectReason> {
        match message {
            ExecMessage::Request { id, method, params } => {
                let response = match method {
                    ExecMethod::Initialize => self.handle_initialize(&id, &params),
                    ExecMethod::HttpRequest => match self.start_request(&id, &params) {
                        Ok(()) => return Ok(()),
                        Err(refusal) => Err(refusal),
                    },
                    ExecMethod::Status => {
                        self.ensure_ready().map(|()| execserver::status_ready(&id))
                    }
                    ExecMethod::Initialized | ExecMethod::BodyDelta | ExecMethod::Unknown(_) => {
                        let reason = format!("`{}` is not offered", method.as_str());
                        Err(build_refusal(code::METHOD, &reason))
                    }
                };
                let response =
                    response.unwrap_or_else(|refusal| execserver::write_refusal(&id, &refusal));
                self.shared.outgoing.send(response).await
            }
            ExecMessage::Notification {
                method: ExecMethod::Initialized,
                ..
            } => match std::mem::replace(&mut self.phase, AdapterPhase::New) {
                AdapterPhase::New => {
                    Err(self.close_broken("`initialized` comes before `initialize`"))
                }
                AdapterPhase::Initializing(session) | AdapterPhase::Ready { _session: session } => {
                    self.phase = AdapterPhase::Ready { _session: session };
                    Ok(())
                }
            },
            ExecMessage::Notification { .. } => {
                Err(self.close_broken("there is no such notification"))
            }
            ExecMessage::Result { .. } | ExecMessage::Error { .. } => {
                Err(self.close_broken("nothing was asked"))
            }
        }
    }

    /// Closes a connection after a protocol error.
    fn close_broken(&self, reason: &str) -> DisconnectReason {
        self.shared
            .outgoing
            .close(close_codes::PROTOCOL_ERROR, reason);
        DisconnectReason::Invalid(reason.into())
    }

    fn handle_initialize(
        &mut self,
        id: &ExecRequestId,
        params: &Bytes,
    ) -> Result<Bytes, ExecRefusal> {
        if !matches!(self.phase, AdapterPhase::New) {
            let reason = "initialize may only be sent once per connection";
            return Err(build_refusal(code::INVALID_REQUEST, reason));
        }
        let first = InitializeParams::parse(params)
            .map_err(|error| build_refusal(code::INVALID_PARAMS, &error.to_string()))?;
        let session = match first.resume_session {
            None => self.sessions.open(),
            Some(session_id) => {
                self.sessions
                    .resume(&session_id)
                    .map_err(|attach_error| match attach_error {
                        AttachError::Unknown => {
                            let reason = format!("unknown session id {session_id}");
                            build_refusal(code::INVALID_REQUEST, &reason)
                        }
                        AttachError::Attached => {
                            let reason = format!("session {session_id} is already attached");
                            build_refusal(code::SESSION_ATTACHED, &reason)
                        }
                    })?
            }
        };
        let response = execserver::write_session(id, session.id());
        self.phase = AdapterPhase::Initializing(session);
        Ok(response)
    }

    /// Refuses a request before the handshake is complete.
    fn ensure_ready(&self) -> Result<(), ExecRefusal> {
        let reason = match &self.phase {
            AdapterPhase::New => "client must call initialize first",
            AdapterPhase::Initializing(_) => "client must send initialized first",
            AdapterPhase::Ready { .. } => return Ok(()),
        };
        Err(build_refusal(code::INVALID_REQUEST, reason))
    }

    /// Starts a request in a task; the task sends the response.
    fn start_request(&self, id: &ExecRequestId, params: &Bytes) -> Result<(), ExecRefusal> {
        self.ensure_ready()?;
        let request_head = ExecHttpRequest::parse(params)
            .map_err(|error| build_refusal(code::INVALID_PARAMS, &error.to_string()))?;
        let permit = Arc::clone(&self.request_permits).try_acquire_owned();
        let permit =
            permit.map_err(|_full| adapter_request::busy_refusal("too many requests at once"))?;
        let weight = request_head.body.as_ref().map_or(0, Bytes::len);
        let weight = u32::try_from(weight).unwrap_or(u32::MAX);
        let body_permit = Arc::clone(&self.shared.body_permits).try_acquire_many_owned(weight);
        let body_permit = body_permit
            .map_err(|_full| adapter_request::busy_refusal("too many bodies at once"))?;
        let active = match request_head.is_streamed {
            true => Some(self.shared.claim_stream(&request_head.request_id)?),
            false => None,
        };
        let request = AdapterRequest {
            shared: Arc::clone(&self.shared),
            id: id.clone(),
            active,
        };
        let shutdown = self.lifecycle.shutdown().clone();
        self.tasks.spawn("exec-server request", async move {
            let _held = (permit, body_permit);
            tokio::select! {
                biased;
                () = shutdown.wait_closing() => {}
                () = request.run(request_head) => {}
            }
        });
        Ok(())
    }
}

/// Exclusive use of a stream name.
#[derive(Debug)]
struct ActiveStreamGuard {
    shared: Arc<AdapterShared>,
    name: Arc<str>,
}

impl Drop for ActiveStreamGuard {
    fn drop(&mut self) {
        lock(&self.shared.active_streams).remove(&self.name);
    }
}

impl AdapterShared {
    fn claim_stream(self: &Arc<Self>, name: &Arc<str>) -> Result<ActiveStreamGuard, ExecRefusal> {
        if !lock(&self.active_streams).insert(Arc::clone(name)) {
            let reason = format!("http/request requestId `{name}` is already active");
            return Err(build_refusal(code::INVALID_PARAMS, &reason));
        }
        Ok(ActiveStreamGuard {
            shared: Arc::clone(self),
            name: Arc::clone(name),
        })
    }
}

fn build_refusal(code: i64, message: &str) -> ExecRefusal {
    ExecRefusal {
        code,
        message: message.into(),
        stream_fault: None,
    }
}
