//! HTTP client interface: sends one request and streams its response.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::egress::DeniedDestination;
use bowline_core::error::{ExecutionStatus, FailureReport};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use thiserror::Error;
use tokio::time::Instant;

use super::endpoint::HttpEndpoint;

mod header_lines;
mod http_body;
mod request_body;
pub use header_lines::write_header_line;
pub use header_lines::{HeaderLines, ResponseHeaders};
pub use http_body::{BodyChunks, HttpBody};
pub use request_body::RequestBody;

/// Sends HTTP requests, from this machine or through an executor. Follows no redirects, keeps no
/// cookies, decompresses no bodies, and sends a request at most once.
pub trait HttpClient: fmt::Debug + Send + Sync {
    /// Sends a request and waits for the response head. Dropping the future, or the response body,
    /// cancels the request.
    fn send<'a>(
        &'a self,
        request: HttpRequest<'a>,
        wait: SendOptions<'a>,
    ) -> BoxFuture<'a, Result<HttpResponse, HttpError>>;

    /// Closes idle connections; called periodically.
    fn close_idle(&self) {}
}

/// An HTTP request. The client adds `host`, `content-length`, `connection` and `transfer-encoding`,
/// so neither header field may contain them.
#[derive(Debug)]
pub struct HttpRequest<'a> {
    /// HTTP method.
    pub method: Method,
    /// Destination.
    pub endpoint: &'a HttpEndpoint,
    /// Prepared header lines, shared by many requests.
    pub shared_headers: Cow<'a, HeaderLines>,
    /// Headers of this request.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body.
    pub body: RequestBody<'a>,
}

impl<'a> HttpRequest<'a> {
    /// Returns a request without headers and body.
    #[must_use]
    pub fn new(method: Method, endpoint: &'a HttpEndpoint) -> Self {
        Self {
            method,
            endpoint,
            shared_headers: Cow::Owned(HeaderLines::default()),
            headers: Vec::new(),
            body: RequestBody::default(),
        }
    }
}

/// Deadlines of a request, and a callback for the first byte.
#[derive(Clone, Copy)]
pub struct SendOptions<'a> {
    /// Connect deadline, if before the client's own limit.
    pub connect_by: Option<Instant>,
    /// Deadline of the response head; absent if the caller cancels by dropping the future.
    pub first_byte_by: Option<Instant>,
    /// Called before the first byte may leave.
    pub on_send: &'a (dyn Fn() + Send + Sync),
}

impl fmt::Debug for SendOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendOptions")
            .field("connect", &self.connect_by)
            .field("first_byte", &self.first_byte_by)
            .finish_non_exhaustive()
    }
}

/// Response head and streaming body.
#[derive(Debug)]
pub struct HttpResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: ResponseHeaders,
    /// The body.
    pub body: HttpBody,
}

/// Why a request or its response body failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HttpError {
    /// The connection failed.
    #[error("the server cannot be reached: {0}")]
    Unreachable(Arc<str>),
    /// The connection timed out.
    #[error("no connection in time")]
    ConnectTimeout,
    /// The egress policy denies the destination.
    #[error("{0}")]
    Denied(Arc<DeniedDestination>),
    /// The request is invalid.
    #[error("the request cannot be sent: {0}")]
    Invalid(&'static str),
    /// The response head timed out.
    #[error("no answer in time")]
    FirstByteTimeout,
    /// The response head violates a limit or the grammar.
    #[error("the head of the answer is not valid: {0}")]
    BadHead(Arc<str>),
    /// The connection ended before the response.
    #[error("the connection was lost: {0}")]
    Lost(Arc<str>),
    /// The executor disconnected before the end of the response.
    #[error("the executor is not connected any more: {0}")]
    Disconnected(Arc<str>),
    /// The response arrived faster than it was read and was dropped.
    #[error("the answer came faster than it was read: {0}")]
    Overflow(Arc<str>),
    /// The executor reports the failure.
    #[error("{}", .0.reason)]
    RemoteFailure(Arc<FailureReport>),
    /// The body exceeds the limit.
    #[error("the answer is longer than {bytes_max} bytes")]
    TooLong {
        /// The limit.
        bytes_max: usize,
    },
}

impl HttpError {
    /// Returns whether the request may have run.
    #[must_use]
    pub fn execution(&self) -> ExecutionStatus {
        match self {
            Self::RemoteFailure(failure) => failure.execution,
            Self::Unreachable(_) | Self::ConnectTimeout | Self::Denied(_) | Self::Invalid(_) => {
                ExecutionStatus::NotStarted
            }
            Self::FirstByteTimeout
            | Self::BadHead(_)
            | Self::Lost(_)
            | Self::Disconnected(_)
            | Self::Overflow(_)
            | Self::TooLong { .. } => ExecutionStatus::Unknown,
        }
    }
}

/// Returns an error with its chain of causes as one clause.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> Arc<str> {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some libraries repeat their cause.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text.into()
}
