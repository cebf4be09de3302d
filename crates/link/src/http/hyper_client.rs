//! HTTP/1.1 from this machine: connections that are kept and used again, TLS by rustls.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::egress::Denied;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use rustls::crypto::ring;
use tokio::time::{Instant, timeout_at};
use tower::ServiceExt;

use super::client::{HttpClient, HttpError, Outgoing, Response, Wait, causes};
use super::endpoint::Endpoint;
use crate::link::BoxFuture;

mod gate;
mod pool;
mod wire;
use gate::Gated;
pub use gate::{Gate, Lookup, SystemLookup};
use pool::Pool;
use wire::{Refused, Uploading, Wire};

/// A peer that vanished is noticed by the kernel after about this long without a word.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The bounds of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// How long a connection may take to come about, TLS included.
    pub connect: Duration,
    /// Connections to one origin that may wait to be used again.
    pub idle_max: usize,
    /// Headers of one answer.
    pub headers_max: usize,
    /// Bytes of the head of one answer.
    pub head_bytes_max: usize,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            idle_max: 256,
            headers_max: 100,
            head_bytes_max: 64 * 1024,
        }
    }
}

/// Sends requests from this machine. It reads no proxy settings.
///
/// A connection is driven by the task whose request it carries, so an answer costs no other task
/// and no wake-up between two.
pub struct HyperClient {
    connector: Connector,
    pool: Arc<Pool>,
    limits: ClientLimits,
}

/// What dials.
#[derive(Clone)]
enum Connector {
    Open(HttpsConnector<HttpConnector>),
    Gated(Gate, HttpsConnector<Gated>),
}

impl fmt::Debug for HyperClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HyperClient")
            .field("limits", &self.limits)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl HyperClient {
    /// Returns a client that trusts the roots of the web.
    ///
    /// # Errors
    /// The cryptography provider does not support the protocol versions.
    pub fn new(limits: ClientLimits) -> Result<Self, rustls::Error> {
        Ok(Self::with_tls(limits, web_roots()?))
    }

    /// Returns a client that trusts what `tls` says.
    #[must_use]
    pub fn with_tls(limits: ClientLimits, tls: ClientConfig) -> Self {
        Self {
            connector: Connector::Open(connector(limits.connect, tls)),
            pool: Arc::new(Pool::new(limits.idle_max)),
            limits,
        }
    }

    /// Returns a client that trusts the roots of the web and dials only what `gate` lets through.
    ///
    /// # Errors
    /// The cryptography provider does not support the protocol versions.
    pub fn gated(limits: ClientLimits, gate: Gate) -> Result<Self, rustls::Error> {
        Ok(Self::gated_with_tls(limits, gate, web_roots()?))
    }

    /// Returns a client that trusts what `tls` says and dials only what `gate` lets through.
    #[must_use]
    pub fn gated_with_tls(limits: ClientLimits, gate: Gate, tls: ClientConfig) -> Self {
        let gated = Gated {
            gate: gate.clone(),
            tcp: tcp(limits.connect),
            connect: limits.connect,
        };
        Self {
            connector: Connector::Gated(gate, over_tls(gated, tls)),
            pool: Arc::new(Pool::new(limits.idle_max)),
            limits,
        }
    }

    async fn exchange(
        &self,
        mut request: Outgoing<'_>,
        wait: Wait<'_>,
    ) -> Result<Response, HttpError> {
        let to = request.to.origin();
        let mut upload = Uploading::of(&mut request);
        // Each round takes one connection out of the pool, and the last one makes a new one.
        loop {
            let kept = self.pool.take(to).await;
            let (wire, is_new) = match kept {
                Some(wire) => (wire, false),
                None => (Box::pin(self.dial(request.to, wait.connect)).await?, true),
            };
            (wait.leaving)();
            let sent = wire.send(&request, &mut upload, &self.limits, wait.first_byte);
            match sent.await {
                Ok(answered) => return Ok(self.pool.response(to, answered)),
                // It was closed while it waited, before a byte was written.
                Err(Refused::Unsent(_)) if !is_new => {}
                Err(Refused::Unsent(reason)) => return Err(HttpError::Unreachable(reason)),
                Err(Refused::Failed(error)) => {
                    self.pool.failed(to, &error);
                    return Err(error);
                }
            }
        }
    }

    async fn dial(&self, to: &Endpoint, by: Option<Instant>) -> Result<Box<Wire>, HttpError> {
        let address = address(to)?;
        let connecting = tokio::time::timeout(self.limits.connect, async {
            let stream = match self.connector.clone() {
                Connector::Open(open) => open.oneshot(address).await,
                Connector::Gated(gate, gated) => {
                    // Before TLS has a word on the name.
                    gate.host(&address)
                        .map_err(|denied| HttpError::Denied(Arc::new(denied)))?;
                    gated.oneshot(address).await
                }
            };
            let stream = stream.map_err(|error| not_reached(&*error))?;
            Ok(Box::new(Wire::from(stream)))
        });
        let dialed = match by {
            Some(deadline) => timeout_at(deadline, connecting).await.ok(),
            None => Some(connecting.await),
        };
        match dialed {
            Some(Ok(wire)) => wire,
            Some(Err(_)) | None => Err(HttpError::ConnectTimeout),
        }
    }
}

impl HttpClient for HyperClient {
    fn send<'a>(
        &'a self,
        request: Outgoing<'a>,
        wait: Wait<'a>,
    ) -> BoxFuture<'a, Result<Response, HttpError>> {
        Box::pin(self.exchange(request, wait))
    }

    fn tidy(&self) {
        self.pool.tidy();
    }
}

/// Returns what trusts the roots of the web.
///
/// # Errors
/// The cryptography provider does not support the protocol versions.
pub(crate) fn web_roots() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider);
    Ok(tls
        .with_safe_default_protocol_versions()?
        .with_webpki_roots()
        .with_no_client_auth())
}

/// Returns what dials: plain, or over TLS.
pub(crate) fn connector(connect: Duration, tls: ClientConfig) -> HttpsConnector<HttpConnector> {
    over_tls(tcp(connect), tls)
}

fn tcp(connect: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_connect_timeout(Some(connect));
    tcp
}

fn over_tls<T>(tcp: T, tls: ClientConfig) -> HttpsConnector<T> {
    HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp)
}

fn not_reached(error: &(dyn Error + 'static)) -> HttpError {
    let mut next = Some(error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<io::Error>();
        if io.is_some_and(|io| io.kind() == io::ErrorKind::TimedOut) {
            return HttpError::ConnectTimeout;
        }
        if let Some(denied) = cause.downcast_ref::<Denied>() {
            return HttpError::Denied(Arc::new(denied.clone()));
        }
        next = cause.source();
    }
    HttpError::Unreachable(causes(error))
}

/// Returns where to connect to: the path, which may be a secret, is not told to the connector.
pub(crate) fn address(to: &Endpoint) -> Result<Uri, HttpError> {
    let mut parts = to.uri().clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static("/"));
    Uri::from_parts(parts).map_err(|_| HttpError::Invalid("the address is not absolute"))
}
