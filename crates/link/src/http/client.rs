//! The door to HTTP: one request goes out, its answer comes back piece by piece.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use bowline_core::egress::Denied;
use bowline_core::error::{Execution, Failure};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use thiserror::Error;
use tokio::time::Instant;

use super::endpoint::Endpoint;
use crate::link::BoxFuture;

mod body;
mod headers;
mod upload;
pub use body::{Body, Chunks};
pub(crate) use headers::write_line;
pub use headers::{Headers, Lines};
pub use upload::Upload;

/// Carries HTTP requests, from this machine or from another one. It follows no redirects, keeps
/// no cookies, unpacks no bodies and sends a request at most once.
pub trait HttpClient: fmt::Debug + Send + Sync {
    /// Sends a request and waits for the head of the answer. Dropping the future, or the body of
    /// the answer, takes the request off the wire.
    fn send<'a>(
        &'a self,
        request: Outgoing<'a>,
        wait: Wait<'a>,
    ) -> BoxFuture<'a, Result<Response, HttpError>>;

    /// Lets go of what nobody has used for a while; called now and then.
    fn tidy(&self) {}
}

/// A request. Where it goes and how long it is, is said by who carries it: neither `lines` nor
/// `headers` hold `host`, `content-length`, `connection` or `transfer-encoding`.
#[derive(Debug)]
pub struct Outgoing<'a> {
    /// What is asked for.
    pub method: Method,
    /// Where it goes.
    pub to: &'a Endpoint,
    /// The headers that it shares with many requests.
    pub lines: Cow<'a, Lines>,
    /// Its own headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body.
    pub body: Upload<'a>,
}

impl<'a> Outgoing<'a> {
    /// Returns a request without headers and body.
    #[must_use]
    pub fn new(method: Method, to: &'a Endpoint) -> Self {
        Self {
            method,
            to,
            lines: Cow::Owned(Lines::default()),
            headers: Vec::new(),
            body: Upload::default(),
        }
    }
}

/// How long a request may take to be answered, and who is told when it leaves.
#[derive(Clone, Copy)]
pub struct Wait<'a> {
    /// When a connection must stand, if that is before the client's own limit.
    pub connect: Option<Instant>,
    /// When the head of the answer must be there; absent where the caller ends the wait by
    /// dropping it.
    pub first_byte: Option<Instant>,
    /// Called before the first byte may leave.
    pub leaving: &'a (dyn Fn() + Send + Sync),
}

impl fmt::Debug for Wait<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wait")
            .field("connect", &self.connect)
            .field("first_byte", &self.first_byte)
            .finish_non_exhaustive()
    }
}

/// The head of an answer, and its body to be read.
#[derive(Debug)]
pub struct Response {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: Headers,
    /// The body.
    pub body: Body,
}

/// Why there is no answer, or no more of it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HttpError {
    /// No connection came about.
    #[error("the server cannot be reached: {0}")]
    Unreachable(Arc<str>),
    /// No connection came about in time.
    #[error("no connection in time")]
    ConnectTimeout,
    /// Who carries it may not go there.
    #[error("{0}")]
    Denied(Arc<Denied>),
    /// The request cannot be sent as it is.
    #[error("the request cannot be sent: {0}")]
    Invalid(&'static str),
    /// The head of the answer did not come in time.
    #[error("no answer in time")]
    FirstByteTimeout,
    /// The head of the answer breaks a limit or the grammar.
    #[error("the head of the answer is not valid: {0}")]
    Head(Arc<str>),
    /// The connection ended before the answer did.
    #[error("the connection was lost: {0}")]
    Lost(Arc<str>),
    /// The connection with the executor that carries it ended before the answer did.
    #[error("the executor is not connected any more: {0}")]
    Disconnected(Arc<str>),
    /// The answer came faster than it was read, and no more of it is kept.
    #[error("the answer came faster than it was read: {0}")]
    Overflow(Arc<str>),
    /// Who carries it says why there is none.
    #[error("{}", .0.reason)]
    Elsewhere(Arc<Failure>),
    /// The body is longer than the limit.
    #[error("the answer is longer than {bytes_max} bytes")]
    TooLong {
        /// The limit.
        bytes_max: usize,
    },
}

impl HttpError {
    /// Returns what is known about whether the request was carried out.
    #[must_use]
    pub fn execution(&self) -> Execution {
        match self {
            Self::Elsewhere(failure) => failure.execution,
            Self::Unreachable(_) | Self::ConnectTimeout | Self::Denied(_) | Self::Invalid(_) => {
                Execution::NotStarted
            }
            Self::FirstByteTimeout
            | Self::Head(_)
            | Self::Lost(_)
            | Self::Disconnected(_)
            | Self::Overflow(_)
            | Self::TooLong { .. } => Execution::Unknown,
        }
    }
}

/// Returns an error and what caused it as one clause.
pub(crate) fn causes(error: &dyn std::error::Error) -> Arc<str> {
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
