//! The port for notifications to the sessions of clients.

use std::fmt;

use bowline_core::client_handle::SessionKey;
use bytes::Bytes;

/// Receives server notifications outside calls; implemented by the edge's sessions.
pub trait NotificationSink: fmt::Debug + Send + Sync {
    /// Delivers a complete JSON-RPC notification to a session, without waiting; `false` for an
    /// unknown or full session.
    fn deliver(&self, session: SessionKey, notification: Bytes) -> bool;
}

/// Drops all notifications.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSink;

impl NotificationSink for NullSink {
    fn deliver(&self, _session: SessionKey, _notification: Bytes) -> bool {
        false
    }
}
