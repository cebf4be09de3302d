//! Connects to servers over HTTP.

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::era::{Era, EraSetting};
use bowline_link::http::http_client::HttpClient;
use bowline_link::http::http1::{Http1Client, HttpClientLimits};
use bowline_link::http::{self, HttpLimits, HttpSpec};
use bowline_link::{EraNegotiation, LinkConnectError, LinkError};

use super::{DialAttempt, TransportDial, in_flight_max, large_limits};
use crate::spec::{RemoteSpec, ServerTransport};
use crate::supervisor::DialedLink;

/// Connects to servers over HTTP from this machine.
#[derive(Debug)]
pub struct HttpDial {
    /// Sends the requests.
    pub client: Arc<dyn HttpClient>,
    /// Limits of the links.
    pub limits: HttpLimits,
}

impl HttpDial {
    /// Creates a connector with its own client and default limits.
    ///
    /// # Errors
    /// TLS setup failed.
    pub fn new() -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self {
            client: Arc::new(Http1Client::new(HttpClientLimits::default())?),
            limits: HttpLimits::default(),
        })
    }
}

impl TransportDial for HttpDial {
    fn connect<'a>(
        &'a self,
        attempt: DialAttempt<'a>,
    ) -> BoxFuture<'a, Result<DialedLink, LinkConnectError>> {
        Box::pin(async move {
            let ServerTransport::Remote(remote) = &attempt.spec.transport else {
                return Err(wrong_transport(&attempt));
            };
            connect_remote(remote, Arc::clone(&self.client), self.limits, attempt).await
        })
    }
}

/// Opens a link whose requests `client` sends.
pub(super) async fn connect_remote(
    remote: &RemoteSpec,
    client: Arc<dyn HttpClient>,
    limits: HttpLimits,
    attempt: DialAttempt<'_>,
) -> Result<DialedLink, LinkConnectError> {
    let server = attempt.spec;
    // Support for a second era is detected at run time.
    let era_setting = match attempt.negotiation {
        EraNegotiation::Remembered(Era::Legacy) => EraSetting::Only(Era::Legacy),
        _ => server.era,
    };
    let spec = HttpSpec {
        server: Arc::clone(&server.name),
        url: remote.url.clone(),
        transport: remote.transport,
        credentials: Arc::clone(&remote.credentials),
        era_setting,
        owner: attempt.owner,
        limits: HttpLimits {
            in_flight_max: in_flight_max(limits.in_flight_max, server),
            large: large_limits(server),
            ..limits
        },
    };
    let (info, tasks) = (attempt.dial.client.clone(), &attempt.dial.tasks);
    http::connect(&spec, client, info, attempt.deadline, tasks).await
}

/// A connector was given a server of another transport.
pub(super) fn wrong_transport(attempt: &DialAttempt<'_>) -> LinkConnectError {
    debug_assert!(false, "the dial selects the connector by the transport");
    LinkConnectError::Refused {
        server: Arc::clone(&attempt.spec.name),
        source: LinkError::Unreachable("its transport is another".into()),
    }
}
