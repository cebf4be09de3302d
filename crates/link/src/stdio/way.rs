//! In which way a process is met, and in which way the next one is where that was not the right
//! one. A server is never started while another process of it lives: it may have a lock, a port
//! or a profile that only one can have.
//!
//! A server of both eras is spoken to in the legacy one. Servers whose tools ask by requests of
//! their own, as nearly all that ask do, can do so in that one only; what they ask comes to
//! callers of either era.

use std::time::Duration;

use bowline_core::era::{Era, Speaks};
use tokio::time::Instant;

use super::handshake::PROBE_WAIT;
use super::{ConnectError, StdioLimits};
use crate::desk::now;

/// How a process is met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is asked how it speaks, and is to shake hands whatever it says.
    Ask,
    /// With a handshake.
    Shake,
    /// With a handshake until then, and with the question where it does not take it. A process
    /// before it said that it is modern, and took no handshake after that.
    ShakeFirst(Instant),
    /// With the question.
    Modern,
}

/// Why a process was not kept.
#[derive(Debug)]
pub(super) enum Unstarted {
    /// It may be that the question was too much for it.
    Asked(ConnectError),
    /// It said that it is modern, after this time, and took no handshake then. Some take the era
    /// that they are opened in and no other.
    Modern(Duration),
    /// Anything else.
    Failed(ConnectError),
}

impl From<ConnectError> for Unstarted {
    fn from(error: ConnectError) -> Self {
        Self::Failed(error)
    }
}

impl From<Speaks> for Way {
    fn from(speaks: Speaks) -> Self {
        match speaks {
            Speaks::Auto => Self::Ask,
            Speaks::Only(Era::Legacy) => Self::Shake,
            Speaks::Only(Era::Modern) => Self::Modern,
        }
    }
}

impl Way {
    /// Returns how the next process is to be met, or why there is none.
    pub(super) fn next(self, met: Unstarted, deadline: Instant) -> Result<Self, ConnectError> {
        let is_time = now() < deadline;
        match (self, met) {
            (Self::Ask, Unstarted::Asked(_)) if is_time => Ok(Self::Shake),
            (Self::Ask, Unstarted::Modern(took)) if is_time_for_two(took, deadline) => {
                Ok(Self::ShakeFirst(now() + took + PROBE_WAIT))
            }
            (_, Unstarted::Modern(_)) => Ok(Self::Modern),
            (Self::ShakeFirst(_), Unstarted::Failed(_)) if is_time => Ok(Self::Modern),
            (_, Unstarted::Asked(error) | Unstarted::Failed(error)) => Err(error),
        }
    }
}

/// Whether a process that said after `took` that it is modern can be given up for another one: if
/// that is in vain, there must be time for a third.
pub(super) fn is_to_spare(took: Duration, limits: &StdioLimits, deadline: Instant) -> bool {
    let gone = now() + limits.stop_stdin + limits.stop_term;
    gone + took + PROBE_WAIT + took < deadline
}

fn is_time_for_two(took: Duration, deadline: Instant) -> bool {
    now() + took + PROBE_WAIT + took < deadline
}
