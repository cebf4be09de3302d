//! Listener of an executor dialled by the gateway.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_link::endpoint_address;
use bowline_link::websocket::{WebSocketConnection, accept_upgrade};
use bowline_runtime::{CredentialSource, SystemClock, TaskTracker};
use http::header::{AUTHORIZATION, ORIGIN};
use http::request::Parts;
use http::{Method, StatusCode};
use subtle::ConstantTimeEq as _;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::executor_service::ExecutorService;
use super::offer::ExecutorOffer;

/// Connections at once, admitted or not.
const CONNECTIONS_MAX: usize = 64;

/// How long a connection may take to close after the close frame.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Wait after a failed accept.
const ACCEPT_RETRY_WAIT: Duration = Duration::from_millis(100);

/// Authentication of callers.
#[derive(Clone, Debug)]
pub enum ListenAuth {
    /// Callers with this token; read again for every caller.
    Token(CredentialSource),
    /// Every caller on this machine.
    Loopback,
}

/// Why the executor cannot listen.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Without a token, the address would be open to other machines.
    #[error("without a token, only callers on this machine are let in")]
    Exposed,
    /// The local address is unknown.
    #[error("the address cannot be told")]
    Address(#[source] io::Error),
}

/// Serves admitted connections.
pub trait ConnectionHandler: fmt::Debug + Send + Sync {
    /// Serves a connection until the end.
    fn serve_connection(&self, socket: WebSocketConnection) -> BoxFuture<'_, ()>;
}

impl ConnectionHandler for ExecutorService {
    fn serve_connection(&self, socket: WebSocketConnection) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let service_error = Self::serve_gateway(self, socket).await;
            tracing::info!(
                error = &service_error as &dyn std::error::Error,
                "gateway disconnected"
            );
        })
    }
}

/// Offers this machine to the gateway that dials `listener`, until `shutdown` resolves.
///
/// # Errors
/// The listener would be open to other machines.
pub async fn listen(
    listener: TcpListener,
    auth: ListenAuth,
    offer: ExecutorOffer,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ListenError> {
    let clock = Arc::new(SystemClock::start());
    let service = ExecutorService::new(offer, TaskTracker::default(), clock);
    let handler = Arc::new(service.clone()) as Arc<dyn ConnectionHandler>;
    listen_with(listener, auth, handler, &service, shutdown).await
}

/// Like [`listen`], with a `handler` that may speak another protocol over `service`.
/// [`ExecutorService::status`] reports the connection state.
///
/// # Errors
/// The listener would be open to other machines.
pub async fn listen_with(
    listener: TcpListener,
    auth: ListenAuth,
    handler: Arc<dyn ConnectionHandler>,
    service: &ExecutorService,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ListenError> {
    let address = listener.local_addr().map_err(ListenError::Address)?;
    if matches!(auth, ListenAuth::Loopback) && !address.ip().is_loopback() {
        return Err(ListenError::Exposed);
    }
    let executor_listener = Arc::new(ExecutorListener {
        auth,
        handler,
        service: service.clone(),
    });
    let accepting = executor_listener.accept_loop(listener);
    tokio::select! {
        biased;
        () = pin!(shutdown) => {}
        () = accepting => {}
    }
    service.close().await;
    Ok(())
}

/// Accepts callers.
#[derive(Debug)]
struct ExecutorListener {
    auth: ListenAuth,
    handler: Arc<dyn ConnectionHandler>,
    service: ExecutorService,
}

impl ExecutorListener {
    async fn accept_loop(self: Arc<Self>, listener: TcpListener) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        loop {
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else {
                return;
            };
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "accept failed");
                    sleep(ACCEPT_RETRY_WAIT).await;
                    continue;
                }
            };
            let this = Arc::clone(&self);
            self.service
                .tasks()
                .spawn("executor connection", async move {
                    let _permit = permit;
                    tokio::select! {
                        biased;
                        () = this.serve_caller(stream) => {}
                        () = this.wait_closed() => {}
                    }
                });
        }
    }

    /// Waits for the close of the service plus a grace period for the last frames: without a reader
    /// the connection is dropped.
    async fn wait_closed(&self) {
        self.service.shutdown().wait_closing().await;
        sleep(CLOSE_GRACE).await;
    }

    /// Serves a caller, if admitted.
    async fn serve_caller(&self, stream: TcpStream) {
        // Send each frame at once.
        let _unlikely = stream.set_nodelay(true);
        let clock = self.service.clock();
        let limits = self.service.offer().limits;
        let deadline = clock.instant(clock.now().plus(limits.handshake_step));
        let Ok(caller) = accept_upgrade(stream, deadline).await else {
            return;
        };
        let response = match self.check_request(&caller.parts) {
            AdmitDecision::Admit => {
                let socket = caller.upgrade(limits.socket, self.service.tasks()).await;
                if let Ok(socket) = socket {
                    self.handler.serve_connection(socket).await;
                }
                return;
            }
            AdmitDecision::Ready => caller.respond(StatusCode::OK, "ready\n"),
            AdmitDecision::NotFound => caller.respond(StatusCode::NOT_FOUND, "not found\n"),
            AdmitDecision::Browser => caller.respond(StatusCode::FORBIDDEN, "not from a browser\n"),
            AdmitDecision::Unauthorized => {
                caller.respond(StatusCode::UNAUTHORIZED, "a token is needed\n")
            }
        };
        // Delivery of the refusal does not matter.
        let _ = response.await;
    }

    fn check_request(&self, parts: &Parts) -> AdmitDecision {
        if parts.headers.contains_key(ORIGIN) {
            tracing::warn!("browser request refused");
            return AdmitDecision::Browser;
        }
        let path = parts.uri.path();
        if path == "/readyz" && parts.method == Method::GET {
            return AdmitDecision::Ready;
        }
        if path != "/" && path != endpoint_address::EXECUTOR_PATH {
            return AdmitDecision::NotFound;
        }
        match self.is_authorized(parts) {
            true => AdmitDecision::Admit,
            false => {
                tracing::warn!("caller without the token refused");
                AdmitDecision::Unauthorized
            }
        }
    }

    fn is_authorized(&self, parts: &Parts) -> bool {
        let ListenAuth::Token(credential) = &self.auth else {
            return true;
        };
        let token = match credential.read() {
            Ok(token) => token,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot read the token"
                );
                return false;
            }
        };
        let token = token.trim().as_bytes();
        let mut header = parts.headers.get_all(AUTHORIZATION).iter();
        let (Some(header), None) = (header.next(), header.next()) else {
            return false;
        };
        let header = header.as_bytes();
        let bearer = header.split_at_checked("bearer ".len());
        let bearer = bearer.filter(|(word, _)| word.eq_ignore_ascii_case(b"bearer "));
        // An empty token is no secret.
        !token.is_empty() && bearer.is_some_and(|(_, header)| bool::from(header.ct_eq(token)))
    }
}

/// Decision about a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AdmitDecision {
    Admit,
    Ready,
    NotFound,
    Browser,
    Unauthorized,
}
