//! What every engine refuses, and how it reckons times, written once so that all agree.

use std::time::Duration;

use bowline_core::time::millis;
use bytes::Bytes;

use crate::engine::{At, BODY_BYTES_MAX, JournalError, KEY_BYTES_MAX};

/// Refuses a body, result or value that is too large.
pub(crate) fn fits(bytes: &Bytes) -> Result<(), JournalError> {
    match bytes.len() {
        bytes if bytes > BODY_BYTES_MAX => Err(JournalError::TooLarge {
            bytes,
            bytes_max: BODY_BYTES_MAX,
        }),
        _ => Ok(()),
    }
}

/// Refuses what cannot be a dedupe id or the key of a value.
pub(crate) fn names(key: &str) -> Result<(), JournalError> {
    match (1..=KEY_BYTES_MAX).contains(&key.len()) {
        true => Ok(()),
        false => Err(JournalError::BadName),
    }
}

/// How much time there is between two moments, in milliseconds since 1970; none where the second
/// comes first.
pub(crate) const fn span(from: u64, to: u64) -> Duration {
    Duration::from_millis(to.saturating_sub(from))
}

/// Until when a message is worth delivering, in milliseconds since 1970.
pub(crate) fn expiry(ttl: Option<Duration>, at: At) -> Option<u64> {
    ttl.map(|ttl| at.unix_ms.saturating_add(millis(ttl)))
}
