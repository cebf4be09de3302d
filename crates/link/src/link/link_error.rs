//! Why a request on a link has no response, and whether the request may have run.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::{ExecutionStatus, FailureReport};
use bowline_core::pending_table::SendState;
use thiserror::Error;

use super::LinkExit;
use crate::http::RedirectError;
use crate::http::upstream_credentials::CredentialError;

/// Characters of a preview in an error message.
const PREVIEW_CHARS_MAX: usize = 200;

/// Why a request has no response.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LinkError {
    /// Too many requests are in flight; not sent.
    #[error("{in_flight_max} requests are in flight already")]
    Busy {
        /// The limit.
        in_flight_max: usize,
    },
    /// The link closed before the request was sent.
    #[error("the link is closed: {0}")]
    Closed(LinkExit),
    /// The request could not be queued; not sent.
    #[error("the request was not sent: {0}")]
    NotSent(NotSentReason),
    /// The link closed after the request may have been sent.
    #[error("the server went away: {0}")]
    Lost(LinkExit),
    /// The connection of this request was lost after it may have been sent; the link may remain
    /// open.
    #[error("the connection was lost: {0}")]
    ConnectionLost(Arc<str>),
    /// The deadline passed.
    #[error("no answer in time")]
    Timeout {
        /// Whether the request may have been sent.
        sent: SendState,
    },
    /// The response exceeded the size limit.
    #[error("the answer is longer than {bytes_max} bytes")]
    TooLong {
        /// The limit.
        bytes_max: usize,
    },
    /// The response is invalid.
    #[error("the answer is not valid: {0}")]
    BadResponse(Arc<str>),
    /// The server is unreachable; not sent.
    #[error("the server cannot be reached: {0}")]
    Unreachable(Arc<str>),
    /// The credentials are unreadable; not sent.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    /// The server rejects the credentials (401) or their rights (403).
    #[error("the server refused our credentials with status {status}")]
    Unauthorized {
        /// 401 or 403.
        status: u16,
        /// `WWW-Authenticate` challenge.
        challenge: Option<Arc<str>>,
    },
    /// The server throttles requests.
    #[error("the server takes no more requests for now (status {status})")]
    Throttled {
        /// 429 or 503.
        status: u16,
        /// Requested delay.
        after: Option<Duration>,
    },
    /// The server sent an HTTP status without a message.
    #[error("the server answered with status {status}{}", preview_suffix(.preview))]
    Http {
        /// The status.
        status: u16,
        /// Start of the body.
        preview: Arc<str>,
    },
    /// The server sent an unexpected content type.
    #[error("the server answered with `{content_type}`{}", preview_suffix(.preview))]
    ContentType {
        /// Content type.
        content_type: Arc<str>,
        /// Start of the body.
        preview: Arc<str>,
    },
    /// The response head violates a limit or the HTTP grammar.
    #[error("the head of the answer is not valid: {0}")]
    BadHead(Arc<str>),
    /// A redirect was not followed.
    #[error("the server redirects: {0}")]
    Redirect(RedirectError),
    /// The server needs input that the client did not provide.
    #[error(transparent)]
    InputFailed(#[from] InputRequestError),
    /// The peer or executor that hosts the server reports the failure.
    #[error("{}", .0.reason)]
    RemoteFailure(Arc<FailureReport>),
}

impl LinkError {
    /// Returns whether the request may have run.
    #[must_use]
    pub fn execution(&self) -> ExecutionStatus {
        match self {
            Self::Busy { .. }
            | Self::Closed(_)
            | Self::NotSent(_)
            | Self::Unreachable(_)
            | Self::Credentials(_)
            | Self::Unauthorized { .. }
            | Self::Throttled { status: 429, .. }
            | Self::Timeout {
                sent: SendState::NotSent,
            } => ExecutionStatus::NotStarted,
            // A proxy may send a status after forwarding the request.
            Self::Lost(_)
            | Self::ConnectionLost(_)
            | Self::Throttled { .. }
            | Self::Http { .. }
            | Self::ContentType { .. }
            | Self::BadHead(_)
            | Self::Redirect(_)
            | Self::InputFailed(_)
            | Self::Timeout {
                sent: SendState::MaybeSent,
            } => ExecutionStatus::Unknown,
            Self::TooLong { .. } | Self::BadResponse(_) => ExecutionStatus::Completed,
            Self::RemoteFailure(failure) => failure.execution,
        }
    }
}

/// Why a request was not sent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NotSentReason {
    /// The write queue stayed full until the deadline.
    #[error("the queue to the server stayed full")]
    QueueFull,
    /// The server did not read until the deadline.
    #[error("the server does not read")]
    NotRead,
    /// The request carries credentials over an unencrypted connection.
    #[error("credentials are sent over https only, or to this machine")]
    Exposed,
    /// The request exceeds the queue size.
    #[error("it is larger than {bytes_max} bytes")]
    TooLarge {
        /// The limit.
        bytes_max: usize,
    },
}

/// Why an input request of a server has no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InputRequestError {
    /// The request has no client, as it comes from the gateway.
    #[error("the server asks for input, and there is nobody to ask")]
    NoClient,
    /// The client has not declared the capability.
    #[error("the server asks for `{method}`, which its caller has not declared")]
    Undeclared {
        /// Method of the input request.
        method: Arc<str>,
    },
    /// The client returned an error or no answer.
    #[error("the caller gave no answer to `{method}`")]
    Refused {
        /// Method of the input request.
        method: Arc<str>,
    },
    /// Too many input requests at once.
    #[error("the server asks more than {questions_max} things at once")]
    TooMany {
        /// The limit.
        questions_max: usize,
    },
    /// Too many rounds of input requests.
    #[error("the server asked {rounds_max} times and gave no answer")]
    Rounds {
        /// The limit.
        rounds_max: usize,
    },
    /// The answers could not be sent.
    #[error("what the caller answered was not sent: {0}")]
    NotSent(Arc<str>),
}

fn preview_suffix(preview: &str) -> String {
    let line = preview.trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(PREVIEW_CHARS_MAX) {
        _ if line.is_empty() => String::new(),
        None => format!(": {line}"),
        // The ellipsis tells a redactor that a secret may be cut in half.
        Some((cut, _)) => format!(": {}…", line.get(..cut).unwrap_or_default()),
    }
}
