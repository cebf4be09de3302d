//! Writes that must not be lost: which may be queued, how their server knows one again, what
//! becomes of one that failed, and which lane may send next.

mod board;
mod scope;
mod verdict;
mod window;

use std::sync::Arc;
use std::time::Duration;

pub use board::{Admission, Board, DELIVERED_PER_ADDED, DRAINS_MAX, LaneTimes, PACE};
pub use scope::{KeyScope, SCOPE_SECRET_BYTES};
pub use verdict::{RETRY_AFTER_MAX, Verdict, is_own_limit, live, may_be_poison, replayed};
pub use window::{LANE_SENDS_MAX, Turn, WINDOW_MAX, Window};

/// Tries of a write that failed, each while its server served others, before it is a dead letter.
pub const POISON_TRIES_MAX: u32 = 5;

/// How long a caller waits at most until the writes before its own are delivered.
pub const TURN_WAIT_MAX: Duration = Duration::from_secs(10);

/// How a tool's calls are queued where their server cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Queueing {
    /// How long a call is worth delivering.
    pub keep: Duration,
    /// How the server is told which call it is.
    pub channel: Channel,
}

/// How the idempotency key of a call travels, so that its server can know the call again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Channel {
    /// It does not: the server cannot tell a repeated call from a new one.
    #[default]
    None,
    /// As the argument of this name.
    Argument(Arc<str>),
    /// As the HTTP header of this name.
    Header(Arc<str>),
    /// In `_meta`, under [`KEY_META`].
    Meta,
}

/// The member of `_meta` that holds an idempotency key: ours towards servers, and a caller's own
/// towards us.
pub const KEY_META: &str = "dev.bowline/idempotencyKey";

impl Channel {
    /// Whether a server that is told a key this way can know a call again.
    #[must_use]
    pub const fn is_told(&self) -> bool {
        !matches!(self, Self::None)
    }
}
