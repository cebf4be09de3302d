//! Link to a server over HTTP.
//!
//! Without the feature `http` only the types that describe such a server are here.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::client_handle::ClientHandle;
use bowline_core::era::EraSetting;
use endpoint::HttpEndpoint;
use upstream_credentials::UpstreamCredentials;

use crate::link::LargeResponseLimits;

#[cfg(feature = "http")]
mod background;
#[cfg(feature = "http")]
mod change_stream;
#[cfg(feature = "http")]
mod conversation;
pub mod endpoint;
#[cfg(feature = "http")]
mod event_stream;
#[cfg(feature = "http")]
mod header_retry;
#[cfg(feature = "http")]
pub mod http1;
#[cfg(feature = "http")]
pub mod http_client;
#[cfg(feature = "http")]
mod http_discover;
#[cfg(feature = "http")]
mod http_link;
#[cfg(feature = "http")]
mod http_session;
#[cfg(feature = "http")]
mod legacy_session;
#[cfg(feature = "http")]
mod pending_guard;
#[cfg(feature = "http")]
mod post_request;
mod redirect_error;
#[cfg(feature = "http")]
pub mod remote_failure;
#[cfg(feature = "http")]
mod routing_headers;
#[cfg(feature = "http")]
mod sender;
#[cfg(feature = "http")]
mod sse_listener;
#[cfg(feature = "http")]
mod status_error;
pub mod upstream_credentials;

#[cfg(feature = "http")]
pub use http_link::connect;
pub use redirect_error::RedirectError;
#[cfg(feature = "http")]
pub use sender::to_link_error;

/// Configuration of an HTTP link.
#[derive(Clone, Debug)]
pub struct HttpSpec {
    /// Server name, for messages.
    pub server: Arc<str>,
    /// Server address.
    pub url: HttpEndpoint,
    /// HTTP transport.
    pub transport: HttpTransport,
    /// Credentials, read for every request.
    pub credentials: Arc<dyn UpstreamCredentials>,
    /// Configured era, if known.
    pub era_setting: EraSetting,
    /// Session that owns the link exclusively; absent for a shared link.
    pub owner: Option<Arc<dyn ClientHandle>>,
    /// Limits.
    pub limits: HttpLimits,
}

/// HTTP transport of MCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpTransport {
    /// Streamable HTTP, with fallback to HTTP+SSE.
    #[default]
    Auto,
    /// Streamable HTTP.
    Streamable,
    /// HTTP+SSE of 2024-11-05.
    Sse,
}

/// Limits of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// Longest body, line or event.
    pub body_bytes_max: usize,
    /// Longest list and result; one such response of a link is read at a time.
    pub large: LargeResponseLimits,
    /// Requests in flight.
    pub in_flight_max: usize,
    /// Queued messages without a response.
    pub outbox_max: usize,
    /// Queued events.
    pub events_max: usize,
    /// Timeout for a message without a response.
    pub post_timeout: Duration,
    /// Timeout for ending the session.
    pub stop_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            body_bytes_max: 8 * 1024 * 1024,
            large: LargeResponseLimits::default(),
            in_flight_max: 1024,
            outbox_max: 256,
            events_max: 64,
            post_timeout: Duration::from_secs(10),
            stop_timeout: Duration::from_secs(3),
        }
    }
}
