//! States of a server, and operator actions.

use std::sync::Arc;

use bowline_core::error::FailureClass;
use bowline_core::time::MonotonicTime;

use super::failure_cause::FailureSource;

/// State of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// The next call starts the server.
    Idle,
    /// Stopped by an operator.
    Stopped,
    /// Starting.
    Starting,
    /// Ready for calls.
    Ready,
    /// Failed; retried later.
    Backoff {
        /// Time of the next attempt.
        until: MonotonicTime,
        /// Failure message.
        reason: Arc<str>,
        /// Failure class.
        class: FailureClass,
        /// The authentication challenge of the server, if any.
        challenge: Option<Arc<str>>,
        /// The failed component.
        blame: FailureSource,
    },
    /// Failed too often.
    Ejected {
        /// The last failure message.
        reason: Arc<str>,
    },
    /// Stopping.
    Draining,
}

impl ServerState {
    /// Returns the status word.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Backoff { .. } => "backoff",
            Self::Ejected { .. } => "ejected",
            Self::Draining => "draining",
        }
    }

    /// Returns the failure message, if failed.
    #[must_use]
    pub const fn reason(&self) -> Option<&Arc<str>> {
        match self {
            Self::Backoff { reason, .. } | Self::Ejected { reason } => Some(reason),
            Self::Idle | Self::Stopped | Self::Starting | Self::Ready | Self::Draining => None,
        }
    }

    /// True unless the server is starting or stopping.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        !matches!(self, Self::Starting | Self::Draining)
    }
}

/// An operator action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerAction {
    /// Start the server.
    Start,
    /// Stop the server, and refuse calls until started.
    Stop,
    /// Stop, reset failures, and start.
    Restart,
    /// Drain calls in flight, then restart; an idle server stays idle.
    Reload,
}
