//! The door to HTTP: one request goes out, its answer comes back piece by piece.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bowline_core::error::Execution;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, StatusCode};
use thiserror::Error;
use tokio::time::Instant;

use crate::link::BoxFuture;

/// Carries HTTP requests, from this machine or from another one. It follows no redirects, keeps
/// no cookies, unpacks no bodies and sends a request at most once.
pub trait HttpClient: fmt::Debug + Send + Sync {
    /// Sends a request to its absolute address and waits for the head of the answer. Dropping the
    /// future, or the body of the answer, takes the request off the wire.
    fn send<'a>(
        &'a self,
        request: Request<Bytes>,
        wait: Wait<'a>,
    ) -> BoxFuture<'a, Result<Response, HttpError>>;

    /// Lets go of what nobody has used for a while; called now and then.
    fn tidy(&self) {}
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
    pub headers: HeaderMap,
    /// The body.
    pub body: Box<dyn Chunks>,
}

/// A body that arrives piece by piece.
pub trait Chunks: fmt::Debug + Send {
    /// Returns the next piece; nothing after the last one.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, HttpError>>>;
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
    pub const fn execution(&self) -> Execution {
        match self {
            Self::Unreachable(_) | Self::ConnectTimeout | Self::Invalid(_) => Execution::NotStarted,
            Self::FirstByteTimeout | Self::Head(_) | Self::Lost(_) | Self::TooLong { .. } => {
                Execution::Unknown
            }
        }
    }
}

impl dyn Chunks + '_ {
    /// Waits for the next piece.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, HttpError>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// Reads to the end. A body that comes in one piece is not copied.
    ///
    /// # Errors
    /// `TooLong` as soon as the limit is passed, or what broke the body.
    pub async fn whole(&mut self, bytes_max: usize) -> Result<Bytes, HttpError> {
        let mut first = Bytes::new();
        while first.is_empty() {
            match self.chunk().await {
                Some(chunk) => first = chunk?,
                None => return Ok(first),
            }
        }
        let mut all = match self.chunk().await {
            None if first.len() > bytes_max => return Err(HttpError::TooLong { bytes_max }),
            None => return Ok(first),
            Some(chunk) => {
                let chunk = chunk?;
                let mut all = BytesMut::with_capacity((first.len() + chunk.len()) * 2);
                all.extend_from_slice(&first);
                all.extend_from_slice(&chunk);
                all
            }
        };
        while all.len() <= bytes_max {
            match self.chunk().await {
                Some(chunk) => all.extend_from_slice(&chunk?),
                None => return Ok(all.freeze()),
            }
        }
        Err(HttpError::TooLong { bytes_max })
    }

    /// Reads the first bytes of a body that nobody wants whole; what breaks it ends it.
    pub async fn start(&mut self, bytes_max: usize) -> Bytes {
        let mut all = BytesMut::new();
        while all.len() < bytes_max
            && let Some(Ok(chunk)) = self.chunk().await
        {
            all.extend_from_slice(&chunk);
        }
        all.truncate(bytes_max);
        all.freeze()
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
