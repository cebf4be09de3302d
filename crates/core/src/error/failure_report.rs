//! A failure reported by a gateway or worker, in the same terms as local failures.

use std::sync::Arc;

use super::{ExecutionStatus, FailureClass, FailureOrigin, RetryAdvice};

/// The code of a failure reported without a code.
const UNKNOWN_PEER_CODE: &str = "peer_error";

/// A peer's report of a failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureReport {
    /// The failure class.
    pub class: FailureClass,
    /// Whether the tool may have run.
    pub execution: ExecutionStatus,
    /// Retry advice.
    pub retry: RetryAdvice,
    /// The origin.
    pub origin: FailureOrigin,
    /// The code word, as in `docs/errors`.
    pub code: Arc<str>,
    /// One clause for people.
    pub reason: Arc<str>,
}

impl FailureReport {
    /// Returns the report for a peer's failure with a text only: the tool may have run, so the call
    /// must not be repeated.
    #[must_use]
    pub fn from_reason(reason: Arc<str>) -> Self {
        Self {
            class: FailureClass::ProtocolError,
            execution: ExecutionStatus::Unknown,
            retry: RetryAdvice::Never,
            origin: FailureOrigin::Broker,
            code: UNKNOWN_PEER_CODE.into(),
            reason,
        }
    }

    /// Returns the display text before the server name.
    pub(super) const fn subject_prefix(&self) -> &'static str {
        match self.origin {
            FailureOrigin::Executor => "on the way to",
            _ => "the peer that has",
        }
    }

    /// Returns the display text between the server name and the reason.
    pub(super) const fn reason_separator(&self) -> &'static str {
        match self.origin {
            FailureOrigin::Executor => ":",
            _ => " says:",
        }
    }
}
