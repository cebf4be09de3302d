//! Client of a gateway: HTTP exchanges of the stdio front and the command line with it, sent by the
//! client that serves links too.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::path::PathBuf;
use std::time::Duration;

use bowline_config::state::OwnerCredential;
use bowline_core::error::ExecutionStatus;
use bowline_link::http::endpoint::{EndpointError, HttpEndpoint};
use bowline_link::http::http_client::{
    HeaderLines, HttpClient as _, HttpError, HttpRequest, HttpResponse, RequestBody, SendOptions,
};
use bowline_link::http::http1::{Http1Client, HttpClientLimits};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method};
use thiserror::Error;

/// Maximum size of a response.
pub const RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// URL and credential of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayAccess {
    /// Base URL, without a trailing slash.
    pub url: String,
    /// The owner's token.
    pub token: OwnerCredential,
    /// Path of the token, for messages.
    pub token_file: PathBuf,
}

/// Sends requests to a gateway.
#[derive(Debug)]
pub struct GatewayHttp(Http1Client);

/// A request to a gateway, with the gateway's credential.
#[derive(Debug)]
pub struct GatewayRequest {
    method: Method,
    endpoint: HttpEndpoint,
    headers: HeaderLines,
    body: Bytes,
}

/// Why a request cannot be built.
#[derive(Debug, Error)]
pub enum GatewayRequestError {
    /// The address of the gateway is invalid.
    #[error("the address of the gateway is not valid")]
    Address(#[source] EndpointError),
    /// The token contains bytes that a header cannot hold.
    #[error("the token is no header text")]
    Token,
}

/// TLS cannot be set up.
#[derive(Debug, Error)]
#[error("cannot start TLS")]
pub struct TlsSetupError(#[source] Box<dyn StdError + Send + Sync>);

impl GatewayHttp {
    /// Returns a client without connections.
    pub fn new() -> Result<Self, TlsSetupError> {
        let limits = HttpClientLimits {
            connect: CONNECT_TIMEOUT,
            ..HttpClientLimits::default()
        };
        let client = Http1Client::new(limits);
        client
            .map(Self)
            .map_err(|error| TlsSetupError(Box::new(error)))
    }

    /// Sends a request and waits for the response head.
    pub async fn send(&self, request: &GatewayRequest) -> Result<HttpResponse, HttpError> {
        // A shim lives long: connections that the gateway closed since must not accumulate.
        self.0.close_idle();
        let mut outgoing = HttpRequest::new(request.method.clone(), &request.endpoint);
        outgoing.shared_headers = Cow::Borrowed(&request.headers);
        outgoing.body = RequestBody::Whole(&request.body);
        let options = SendOptions {
            connect_by: None,
            first_byte_by: None,
            on_send: &|| {},
        };
        self.0.send(outgoing, options).await
    }
}

impl GatewayRequest {
    /// Builds a request for `path` of a gateway.
    pub fn new(
        method: Method,
        gateway: &GatewayAccess,
        path: &str,
        accept: &'static str,
        body: Bytes,
    ) -> Result<Self, GatewayRequestError> {
        let endpoint = HttpEndpoint::parse(&format!("{}{path}", gateway.url))
            .map_err(GatewayRequestError::Address)?;
        let token = HeaderValue::try_from(format!("Bearer {}", gateway.token.expose()))
            .map_err(|_invalid| GatewayRequestError::Token)?;
        let mut headers = HeaderLines::default();
        headers.push(&AUTHORIZATION, &token);
        headers.push(&CONTENT_TYPE, &HeaderValue::from_static("application/json"));
        headers.push(&ACCEPT, &HeaderValue::from_static(accept));
        Ok(Self {
            method,
            endpoint,
            headers,
            body,
        })
    }

    /// Adds a header.
    pub fn push_header(&mut self, name: &HeaderName, value: &HeaderValue) {
        self.headers.push(name, value);
    }
}

/// Returns whether the gateway was not reached, so nothing ran.
pub fn is_unreached(error: &HttpError) -> bool {
    error.execution() == ExecutionStatus::NotStarted
}
