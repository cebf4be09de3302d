//! Delivers server notifications outside calls: to the host's own sink, to an attached gateway, and
//! to sessions of a hub.

use std::sync::{Arc, Mutex, Weak};

use arc_swap::ArcSwapOption;
use bowline_core::client_handle::{REMOTE_SESSIONS_FROM, SessionKey};
use bowline_core::sync::lock;
use bytes::Bytes;
use thiserror::Error;

use crate::host::Host;
use crate::ports::NotificationSink;

/// Distributes notifications to the sinks.
#[derive(Debug)]
pub(crate) struct NotificationFanout {
    own: Arc<dyn NotificationSink>,
    attached: ArcSwapOption<Arc<dyn NotificationSink>>,
    /// Weak, because remote sessions hold the host.
    remote: Mutex<Option<Weak<dyn NotificationSink>>>,
}

/// An attached sink; detached on drop.
#[derive(Debug)]
pub struct AttachedSink {
    fanout: Arc<NotificationFanout>,
}

/// A gateway is attached already: the sessions of two gateways would be confused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the host is served by another gateway already")]
pub struct SinkOccupied;

impl NotificationFanout {
    pub(crate) fn new(own: Arc<dyn NotificationSink>) -> Self {
        Self {
            own,
            attached: ArcSwapOption::empty(),
            remote: Mutex::default(),
        }
    }
}

impl NotificationSink for NotificationFanout {
    fn deliver(&self, session: SessionKey, notification: Bytes) -> bool {
        if session.0 >= REMOTE_SESSIONS_FROM {
            let remote_sink = lock(&self.remote).as_ref().and_then(Weak::upgrade);
            return remote_sink
                .is_some_and(|remote_sink| remote_sink.deliver(session, notification));
        }
        let attached = self.attached.load();
        match attached.as_ref() {
            Some(attached) if attached.deliver(session, notification.clone()) => true,
            _ => self.own.deliver(session, notification),
        }
    }
}

impl Drop for AttachedSink {
    fn drop(&mut self) {
        self.fanout.attached.store(None);
    }
}

impl Host {
    /// Sets the sink of remote sessions, replacing the previous sink.
    #[cfg(feature = "broker")]
    pub(crate) fn set_remote_sink(&self, sink: &Arc<dyn NotificationSink>) {
        *lock(&self.notification_fanout().remote) = Some(Arc::downgrade(sink));
    }

    /// Attaches the sink of a gateway's sessions.
    ///
    /// # Errors
    /// A gateway is attached already.
    pub fn attach_sink(
        &self,
        sink: Arc<dyn NotificationSink>,
    ) -> Result<AttachedSink, SinkOccupied> {
        let shared_fanout = Arc::clone(self.notification_fanout());
        let none: Option<Arc<Arc<dyn NotificationSink>>> = None;
        let before = shared_fanout
            .attached
            .compare_and_swap(&none, Some(Arc::new(sink)));
        match before.as_ref() {
            Some(_) => Err(SinkOccupied),
            None => {
                drop(before);
                Ok(AttachedSink {
                    fanout: shared_fanout,
                })
            }
        }
    }
}
