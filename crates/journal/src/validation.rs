//! Input checks and time arithmetic shared by all engines.

use std::time::Duration;

use bowline_core::time::to_millis;
use bytes::Bytes;

use crate::engine::{BODY_BYTES_MAX, JournalError, KEY_BYTES_MAX, Timestamps};

/// Refuses a body, result or value above the size limit.
pub(crate) fn check_size(bytes: &Bytes) -> Result<(), JournalError> {
    match bytes.len() {
        bytes if bytes > BODY_BYTES_MAX => Err(JournalError::TooLarge {
            bytes,
            bytes_max: BODY_BYTES_MAX,
        }),
        _ => Ok(()),
    }
}

/// Refuses an invalid dedupe id or value key.
pub(crate) fn check_key(key: &str) -> Result<(), JournalError> {
    match (1..=KEY_BYTES_MAX).contains(&key.len()) {
        true => Ok(()),
        false => Err(JournalError::BadName),
    }
}

/// Returns the time between two moments in milliseconds since 1970; zero if `to` is earlier.
pub(crate) const fn duration_between(from: u64, to: u64) -> Duration {
    Duration::from_millis(to.saturating_sub(from))
}

/// Returns the expiry time of a message, in milliseconds since 1970.
pub(crate) fn expiry_unix_ms(ttl: Option<Duration>, at: Timestamps) -> Option<u64> {
    ttl.map(|ttl| at.unix_ms.saturating_add(to_millis(ttl)))
}
