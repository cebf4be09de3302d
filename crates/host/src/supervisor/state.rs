//! What a server can be doing, and what a person can want it to do.

use std::sync::Arc;

use bowline_core::error::Class;
use bowline_core::time::Now;

use super::cause::Blame;

/// What a server is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The next call starts it.
    Idle,
    /// A person stopped it.
    Stopped,
    /// It is being started.
    Starting,
    /// It serves.
    Ready,
    /// It failed and is tried again later.
    Backoff {
        /// When.
        until: Now,
        /// What it failed with.
        reason: Arc<str>,
        /// What kind of failure that was.
        class: Class,
        /// What it said about the credentials that it wants, if that was it.
        challenge: Option<Arc<str>>,
        /// What failed.
        blame: Blame,
    },
    /// It failed too often.
    Ejected {
        /// What it failed with last.
        reason: Arc<str>,
    },
    /// It is being stopped.
    Draining,
}

impl State {
    /// Returns the word used in status.
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

    /// Returns why it does not serve, where something failed.
    #[must_use]
    pub const fn reason(&self) -> Option<&Arc<str>> {
        match self {
            Self::Backoff { reason, .. } | Self::Ejected { reason } => Some(reason),
            Self::Idle | Self::Stopped | Self::Starting | Self::Ready | Self::Draining => None,
        }
    }

    /// Whether nothing is under way: the server serves, or does not and will not soon.
    #[must_use]
    pub const fn is_settled(&self) -> bool {
        !matches!(self, Self::Starting | Self::Draining)
    }
}

/// What a person wants a server to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Run.
    Start,
    /// Stop, and refuse calls until started.
    Stop,
    /// Stop, forget past failures, and run.
    Restart,
    /// Let calls in flight end, then as `Restart`; what was idle stays so until it is needed.
    Reload,
}
