//! A failure that was told by another gateway or worker, in the same words as our own.

use std::sync::Arc;

use super::{Class, Execution, Origin, Retry};

/// The code of a failure whose peer told none.
const UNTOLD: &str = "peer_error";

/// What a peer said of a call that has no reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The class.
    pub class: Class,
    /// Whether the tool may have run.
    pub execution: Execution,
    /// Whether to try again.
    pub retry: Retry,
    /// Where it arose.
    pub origin: Origin,
    /// The code word, as in `docs/errors`.
    pub code: Arc<str>,
    /// One clause for people.
    pub reason: Arc<str>,
}

impl Failure {
    /// Returns what is known of a peer's failure when it says nothing but a text: it may have run,
    /// and nobody should repeat it.
    #[must_use]
    pub fn untold(reason: Arc<str>) -> Self {
        Self {
            class: Class::ProtocolError,
            execution: Execution::Unknown,
            retry: Retry::Never,
            origin: Origin::Broker,
            code: UNTOLD.into(),
            reason,
        }
    }

    /// Returns who says it, up to the name of the server.
    pub(super) const fn before(&self) -> &'static str {
        match self.origin {
            Origin::Executor => "on the way to",
            _ => "the peer that has",
        }
    }

    /// Returns what stands between the name of the server and the reason.
    pub(super) const fn says(&self) -> &'static str {
        match self.origin {
            Origin::Executor => ":",
            _ => " says:",
        }
    }
}
