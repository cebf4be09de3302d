//! Durable writes: queue policy, idempotency keys, disposition after failures, lane scheduling.

mod disposition;
mod key_scope;
mod lane_window;
mod scheduler;

use std::sync::Arc;
use std::time::Duration;

pub use disposition::{
    RETRY_AFTER_MAX, WriteDisposition, is_gateway_limit, may_be_poison, on_live_error,
    on_replay_error,
};
pub use key_scope::{KeyScope, SCOPE_SECRET_BYTES};
pub use lane_window::{LANE_SENDS_MAX, LaneWindow, SendAction, WINDOW_MAX};
pub use scheduler::{
    DELIVERED_PER_ADDED, DRAINS_MAX, LaneAdmission, LaneScheduler, LaneTimes, RETRY_BACKOFF,
};

/// Failed deliveries of a write, each while the server served different writes, before the write
/// becomes a dead letter.
pub const POISON_TRIES_MAX: u32 = 5;

/// Longest wait of a caller for delivery of the writes ahead in the lane.
pub const TURN_WAIT_MAX: Duration = Duration::from_secs(10);

/// Queueing of a tool's calls while the server is unreachable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueuePolicy {
    /// Maximum age of a queued call at delivery.
    pub max_age: Duration,
    /// Transport of the idempotency key.
    pub key_channel: KeyChannel,
}

/// Transport of the idempotency key of a call, so that the server can deduplicate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyChannel {
    /// None: the server cannot detect a repeated call.
    #[default]
    None,
    /// As the argument of this name.
    Argument(Arc<str>),
    /// As the HTTP header of this name.
    Header(Arc<str>),
    /// In `_meta`, under [`KEY_META`].
    Meta,
}

/// The `_meta` member with an idempotency key: sent to servers, and accepted from clients.
pub const KEY_META: &str = "dev.bowline/idempotencyKey";

impl KeyChannel {
    /// Whether the server receives the key and can deduplicate.
    #[must_use]
    pub const fn carries_key(&self) -> bool {
        !matches!(self, Self::None)
    }
}
