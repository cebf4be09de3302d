//! HTTP/1.1 client of this machine: pooled connections, TLS by rustls.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::egress::DeniedDestination;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::ClientConfig;
use rustls::crypto::ring;
use tokio::time::{Instant, timeout_at};
use tower::ServiceExt;

use super::endpoint::HttpEndpoint;
use super::http_client::{
    HttpClient, HttpError, HttpRequest, HttpResponse, SendOptions, error_chain,
};

mod connection_pool;
mod egress_policy;
mod http1_connection;
use connection_pool::ConnectionPool;
use egress_policy::EgressConnector;
pub use egress_policy::{DnsLookup, EgressPolicy, SystemDnsLookup};
use http1_connection::{Http1Connection, Http1SendError, StreamingUpload};

/// TCP keepalive interval that detects vanished peers.
const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// Limits of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpClientLimits {
    /// Connect timeout, including TLS.
    pub connect: Duration,
    /// Idle connections per origin.
    pub idle_max: usize,
    /// Response headers.
    pub headers_max: usize,
    /// Bytes of a response head.
    pub head_bytes_max: usize,
}

impl Default for HttpClientLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            idle_max: 256,
            headers_max: 100,
            head_bytes_max: 64 * 1024,
        }
    }
}

/// Sends requests from this machine. Ignores proxy settings.
///
/// The task of a request drives its connection, so a response needs no second task and no wake-up
/// between tasks.
pub struct Http1Client {
    connector: Http1Connector,
    pool: Arc<ConnectionPool>,
    limits: HttpClientLimits,
}

/// Dials connections.
#[derive(Clone)]
enum Http1Connector {
    Direct(HttpsConnector<HttpConnector>),
    Egress(EgressPolicy, HttpsConnector<EgressConnector>),
}

impl fmt::Debug for Http1Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http1Client")
            .field("limits", &self.limits)
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

impl Http1Client {
    /// Returns a client that trusts the web root certificates.
    ///
    /// # Errors
    /// The cryptography provider does not support the protocol versions.
    pub fn new(limits: HttpClientLimits) -> Result<Self, rustls::Error> {
        Ok(Self::with_tls(limits, web_root_config()?))
    }

    /// Returns a client with the given TLS configuration.
    #[must_use]
    pub fn with_tls(limits: HttpClientLimits, tls: ClientConfig) -> Self {
        Self {
            connector: Http1Connector::Direct(tls_connector(limits.connect, tls)),
            pool: Arc::new(ConnectionPool::new(limits.idle_max)),
            limits,
        }
    }

    /// Returns a client with web root certificates and an egress policy.
    ///
    /// # Errors
    /// The cryptography provider does not support the protocol versions.
    pub fn with_egress(
        limits: HttpClientLimits,
        gate: EgressPolicy,
    ) -> Result<Self, rustls::Error> {
        Ok(Self::with_egress_and_tls(limits, gate, web_root_config()?))
    }

    /// Returns a client with the given TLS configuration and an egress policy.
    #[must_use]
    pub fn with_egress_and_tls(
        limits: HttpClientLimits,
        gate: EgressPolicy,
        tls: ClientConfig,
    ) -> Self {
        let gated = EgressConnector {
            policy: gate.clone(),
            tcp: tcp_connector(limits.connect),
            connect_timeout: limits.connect,
        };
        Self {
            connector: Http1Connector::Egress(gate, wrap_tls(gated, tls)),
            pool: Arc::new(ConnectionPool::new(limits.idle_max)),
            limits,
        }
    }

    async fn send_request(
        &self,
        mut request: HttpRequest<'_>,
        wait: SendOptions<'_>,
    ) -> Result<HttpResponse, HttpError> {
        let to = request.endpoint.origin();
        let mut upload = StreamingUpload::from_request(&mut request);
        // Each round takes one pooled connection; the last round dials.
        loop {
            let pooled = self.pool.take_usable(to).await;
            let (connection, is_new) = match pooled {
                Some(connection) => (connection, false),
                None => (
                    Box::pin(self.dial_endpoint(request.endpoint, wait.connect_by)).await?,
                    true,
                ),
            };
            (wait.on_send)();
            let sent = connection.send(&request, &mut upload, &self.limits, wait.first_byte_by);
            match sent.await {
                Ok(response) => return Ok(self.pool.to_response(to, response)),
                // The pooled connection was closed before a byte was written.
                Err(Http1SendError::Unsent(_)) if !is_new => {}
                Err(Http1SendError::Unsent(reason)) => return Err(HttpError::Unreachable(reason)),
                Err(Http1SendError::Failed(error)) => {
                    self.pool.drop_after_error(to, &error);
                    return Err(error);
                }
            }
        }
    }

    async fn dial_endpoint(
        &self,
        to: &HttpEndpoint,
        connect_by: Option<Instant>,
    ) -> Result<Box<Http1Connection>, HttpError> {
        let address = connect_address(to)?;
        let connecting = tokio::time::timeout(self.limits.connect, async {
            let stream = match self.connector.clone() {
                Http1Connector::Direct(open) => open.oneshot(address).await,
                Http1Connector::Egress(gate, gated) => {
                    // Check before the TLS layer sees the name.
                    gate.check_host(&address)
                        .map_err(|denied| HttpError::Denied(Arc::new(denied)))?;
                    gated.oneshot(address).await
                }
            };
            let stream = stream.map_err(|error| to_http_error(&*error))?;
            Ok(Box::new(Http1Connection::from(stream)))
        });
        let dialed = match connect_by {
            Some(deadline) => timeout_at(deadline, connecting).await.ok(),
            None => Some(connecting.await),
        };
        match dialed {
            Some(Ok(connection)) => connection,
            Some(Err(_)) | None => Err(HttpError::ConnectTimeout),
        }
    }
}

impl HttpClient for Http1Client {
    fn send<'a>(
        &'a self,
        request: HttpRequest<'a>,
        wait: SendOptions<'a>,
    ) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(self.send_request(request, wait))
    }

    fn close_idle(&self) {
        self.pool.close_idle();
    }
}

/// Returns a TLS configuration with the web root certificates.
///
/// # Errors
/// The cryptography provider does not support the protocol versions.
pub(crate) fn web_root_config() -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider);
    Ok(tls
        .with_safe_default_protocol_versions()?
        .with_webpki_roots()
        .with_no_client_auth())
}

/// Returns a connector for plain and TLS connections.
pub(crate) fn tls_connector(connect: Duration, tls: ClientConfig) -> HttpsConnector<HttpConnector> {
    wrap_tls(tcp_connector(connect), tls)
}

fn tcp_connector(connect: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(TCP_KEEPALIVE));
    tcp.set_connect_timeout(Some(connect));
    tcp
}

fn wrap_tls<T>(tcp: T, tls: ClientConfig) -> HttpsConnector<T> {
    HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_http1()
        .wrap_connector(tcp)
}

fn to_http_error(error: &(dyn Error + 'static)) -> HttpError {
    let mut next = Some(error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<io::Error>();
        if io.is_some_and(|io| io.kind() == io::ErrorKind::TimedOut) {
            return HttpError::ConnectTimeout;
        }
        if let Some(denied) = cause.downcast_ref::<DeniedDestination>() {
            return HttpError::Denied(Arc::new(denied.clone()));
        }
        next = cause.source();
    }
    HttpError::Unreachable(error_chain(error))
}

/// Returns the connect address without path and query, which may be secret.
pub(crate) fn connect_address(to: &HttpEndpoint) -> Result<Uri, HttpError> {
    let mut parts = to.uri().clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static("/"));
    Uri::from_parts(parts).map_err(|_| HttpError::Invalid("the address is not absolute"))
}
