//! Serves a connection: with an HTTP server while requests arrive, and as a bare socket while idle.
//!
//! hyper holds buffers for the lifetime of a connection and closes connections without a timely
//! request head, whether idle or slow. Therefore hyper gets the stream only when bytes are readable
//! and returns the stream when no request is in flight; an idle connection holds only the socket.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use bowline_runtime::Shutdown;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::MissedTickBehavior;

use super::Edge;
use super::auth::LocalAddress;
use super::client_stream::{ClientStream, StreamActivity};
use super::connection_registry::ClientConnection;
use super::event_stream::StreamGuard;
use super::http_listener::route_request;
use super::linger;
use super::response_body::{EdgeBody, EdgeResponse};
use super::upgrade::{self, PendingUpgrade, UpgradedStream};

/// Time limit for a request head, including the first.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of a request head.
pub(crate) const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Idle timeout of a connection after a request.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(300);

/// Idle timeout of an unauthenticated connection.
pub(crate) const UNAUTHENTICATED_IDLE_MAX: Duration = Duration::from_secs(10);

/// Interval between checks of a busy connection.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Below this number of requests a connection turns idle at once. Above, more requests are likely,
/// and the connection turns idle only after a check interval without reads.
const EAGER_REQUESTS_MAX: u32 = 8;

/// A connection is closed after this many wake-ups that brought bytes but no request.
const EMPTY_READS_MAX: u32 = 4;

type ConnectionStream = ClientStream<TcpStream>;

/// Request counters of a connection, updated by the service.
#[derive(Debug, Default)]
struct RequestCounts {
    /// Requests passed to the service; wraps around.
    started: AtomicU32,
    /// Requests without a response, plus responses still streaming.
    unfinished: AtomicU32,
}

/// An unfinished request; finished on drop.
#[derive(Debug)]
struct OpenRequest(Arc<RequestCounts>);

impl OpenRequest {
    fn new(work: &Arc<RequestCounts>) -> Self {
        work.started.fetch_add(1, Relaxed);
        work.unfinished.fetch_add(1, Relaxed);
        Self(Arc::clone(work))
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.unfinished.fetch_sub(1, Relaxed);
    }
}

impl StreamGuard for OpenRequest {}

/// Serves a connection until closed, or until its token ends.
pub(crate) async fn serve_connection(edge: Arc<Edge>, stream: TcpStream, shutdown: &Shutdown) {
    let Ok(from) = stream.peer_addr() else { return };
    let pool_slot = edge.connection_pool.acquire_slot(from.ip());
    let eviction = pool_slot.eviction();
    let guard = edge.connections.begin_connection(from, pool_slot);
    let connection = guard.connection();
    let after = tokio::select! {
        // Polled first, so that streams of an ended session finish in order.
        biased;
        after = run_http(&edge, connection, stream, shutdown) => after,
        () = connection.wait_closed() => None,
        () = eviction.shutdown().wait_closing() => None,
    };
    if let Some(UpgradedIo { upgrade, stream }) = after {
        // Boxed to keep HTTP connections small.
        Box::pin(upgrade::serve_upgraded(&edge, connection, stream, *upgrade)).await;
    }
}

/// A connection after HTTP.
struct UpgradedIo {
    upgrade: Box<PendingUpgrade>,
    stream: UpgradedStream,
}

async fn run_http(
    edge: &Arc<Edge>,
    connection: &Arc<ClientConnection>,
    stream: TcpStream,
    shutdown: &Shutdown,
) -> Option<UpgradedIo> {
    // Without TCP_NODELAY small responses wait for acknowledgements.
    let _ = stream.set_nodelay(true);
    let local = stream.local_addr().ok()?;
    let heads = Arc::clone(&edge.large_heads);
    let mut stream = ClientStream::new(stream).with_head_limit(heads);
    let pulse = stream.activity();
    let server = ConnectionServer {
        edge: Arc::clone(edge),
        connection: Arc::clone(connection),
        local_address: Arc::new(LocalAddress::new(local)),
        activity: pulse,
        requests: Arc::default(),
    };
    let mut idle_limit = HEAD_TIMEOUT;
    let mut requests_seen = 0;
    let mut empty_reads = 0;
    while empty_reads < EMPTY_READS_MAX && server.wait_readable(&stream, idle_limit, shutdown).await
    {
        // Boxed to keep idle connections small.
        match Box::pin(server.serve_http(stream, shutdown)).await {
            ConnectionOutcome::Idle(back) => stream = back,
            ConnectionOutcome::Upgraded(upgraded) => return Some(upgraded),
            ConnectionOutcome::BodyUnread(socket) => {
                Box::pin(server.linger_close(&socket, shutdown)).await;
                return None;
            }
            ConnectionOutcome::Closed => return None,
        }
        let so_far = server.requests.started.load(Relaxed);
        if so_far == requests_seen {
            // Empty lines may precede a request; here none followed.
            empty_reads += 1;
        } else {
            requests_seen = so_far;
            empty_reads = 0;
            idle_limit = match connection.is_authenticated() {
                true => IDLE_MAX,
                false => UNAUTHENTICATED_IDLE_MAX,
            };
        }
    }
    None
}

/// State of a connection after serving HTTP.
enum ConnectionOutcome {
    /// Idle; HTTP continues on the next bytes.
    Idle(ConnectionStream),
    /// Switched to WebSocket.
    Upgraded(UpgradedIo),
    /// Response sent and write half closed, while the client still sends its request body.
    BodyUnread(TcpStream),
    /// Closed.
    Closed,
}

/// Next event on a busy connection.
enum ServeEvent {
    /// The HTTP server finished.
    Ended,
    /// No request in flight.
    Idle,
    /// A check is due.
    Check,
    /// The gateway is shutting down.
    Stop,
}

/// State of a connection for its whole lifetime.
#[derive(Debug)]
struct ConnectionServer {
    edge: Arc<Edge>,
    connection: Arc<ClientConnection>,
    local_address: Arc<LocalAddress>,
    activity: Arc<StreamActivity>,
    requests: Arc<RequestCounts>,
}

impl ConnectionServer {
    /// Waits until the socket is readable; `false` if the connection should close.
    async fn wait_readable(
        &self,
        stream: &ConnectionStream,
        patience: Duration,
        shutdown: &Shutdown,
    ) -> bool {
        tokio::select! {
            biased;
            readable = stream.get_ref().readable() => readable.is_ok(),
            () = shutdown.wait_closing() => false,
            () = tokio::time::sleep(patience) => false,
        }
    }

    /// Serves requests until none is in flight, and returns the stream.
    async fn serve_http(&self, stream: ConnectionStream, shutdown: &Shutdown) -> ConnectionOutcome {
        let service = service_fn(|request| {
            let (edge, local) = (Arc::clone(&self.edge), Arc::clone(&self.local_address));
            let connection = Arc::clone(&self.connection);
            let activity = Arc::clone(&self.activity);
            let open = OpenRequest::new(&self.requests);
            async move {
                let response = route_request(&edge, request, &local, &connection).await;
                if connection.is_authenticated() {
                    activity.mark_authenticated();
                }
                Ok::<_, Infallible>(keep_request_open(response, open))
            }
        });
        let mut serving = http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .max_header_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut checks = tokio::time::interval(CHECK_INTERVAL);
        checks.reset();
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stall_detector = StallDetector::default();
        let mut stopping = false;
        loop {
            let next = tokio::select! {
                biased;
                next = poll_fn(|cx| match Pin::new(&mut serving).poll(cx) {
                    Poll::Ready(ended) => {
                        if let Err(error) = ended {
                            let error = &error as &dyn std::error::Error;
                            tracing::debug!(error, "connection ended");
                        }
                        Poll::Ready(ServeEvent::Ended)
                    }
                    Poll::Pending if self.is_eager() && self.is_quiet() => {
                        Poll::Ready(ServeEvent::Idle)
                    }
                    Poll::Pending => Poll::Pending,
                }) => next,
                _ = checks.tick() => ServeEvent::Check,
                () = shutdown.wait_closing(), if !stopping => ServeEvent::Stop,
            };
            match next {
                ServeEvent::Ended => return self.after_http(serving.into_parts()),
                ServeEvent::Idle => break,
                ServeEvent::Check if stall_detector.observe_slow_head(&self.activity) => {
                    return ConnectionOutcome::Closed;
                }
                ServeEvent::Check
                    if !stopping
                        && stall_detector.observe_unused(&self.activity)
                        && self.is_quiet() =>
                {
                    break;
                }
                ServeEvent::Check => {}
                ServeEvent::Stop => {
                    stopping = true;
                    Pin::new(&mut serving).graceful_shutdown();
                }
            }
        }
        ConnectionOutcome::Idle(serving.into_parts().io.into_inner())
    }

    /// Decides the state of a connection after hyper finished.
    fn after_http<S>(
        &self,
        parts: http1::Parts<TokioIo<ConnectionStream>, S>,
    ) -> ConnectionOutcome {
        let Some(stream) = parts.io.into_inner().into_inner() else {
            return ConnectionOutcome::Closed;
        };
        match self.connection.take_upgrade() {
            Some(upgrade) => ConnectionOutcome::Upgraded(UpgradedIo {
                upgrade,
                stream: UpgradedStream {
                    stream,
                    read_ahead: parts.read_buf,
                },
            }),
            None if self.activity.is_in_body() => ConnectionOutcome::BodyUnread(stream),
            None => ConnectionOutcome::Closed,
        }
    }

    /// Reads on after the last response, so that the client receives the response; ends on
    /// shutdown.
    async fn linger_close(&self, socket: &TcpStream, shutdown: &Shutdown) {
        tokio::select! {
            () = linger::discard_rest(&self.edge, &self.connection, socket) => {}
            () = shutdown.wait_closing() => {}
        }
    }

    /// Whether every request was answered and no further bytes have arrived.
    fn is_quiet(&self) -> bool {
        self.activity.is_between_requests()
            && self.requests.unfinished.load(Relaxed) == 0
            && self.requests.started.load(Relaxed) == self.activity.head_count()
    }

    fn is_eager(&self) -> bool {
        self.requests.started.load(Relaxed) < EAGER_REQUESTS_MAX
    }
}

/// State kept between checks of a busy connection.
#[derive(Debug, Default)]
struct StallDetector {
    reads: u32,
    heads: u32,
    /// Consecutive checks that found the same incomplete head.
    slow_checks: u32,
}

impl StallDetector {
    /// Returns whether no read happened since the last check.
    fn observe_unused(&mut self, activity: &StreamActivity) -> bool {
        let before = std::mem::replace(&mut self.reads, activity.read_count());
        before == activity.read_count()
    }

    /// Returns whether a request head has been incomplete for too long.
    fn observe_slow_head(&mut self, activity: &StreamActivity) -> bool {
        let before = std::mem::replace(&mut self.heads, activity.head_count());
        self.slow_checks = if activity.is_in_head() && before == activity.head_count() {
            self.slow_checks + 1
        } else {
            0
        };
        CHECK_INTERVAL * self.slow_checks >= HEAD_TIMEOUT
    }
}

/// Keeps the request open while its response streams. A complete body is written, or queued for
/// writing, as soon as it is returned.
fn keep_request_open(mut response: EdgeResponse, open: OpenRequest) -> EdgeResponse {
    match response.body_mut() {
        EdgeBody::Events(events) => events.attach_guard(Box::new(open)),
        EdgeBody::Watcher(watcher) => watcher.attach_guard(Box::new(open)),
        EdgeBody::Large(large) => large.attach_guard(Box::new(open)),
        EdgeBody::Whole(_) | EdgeBody::Api(_) => {}
    }
    response
}
