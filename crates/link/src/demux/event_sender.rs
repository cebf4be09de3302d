//! Bounded channel for server events outside calls.

use std::sync::Mutex;

use bowline_core::sync::lock;
use tokio::sync::mpsc;

use crate::link::LinkEvent;

/// An event with guaranteed delivery, possibly merged with pending events of the same kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CoalescedEvent {
    Tools,
    Prompts,
    Resources,
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only of HTTP"))]
    SessionReset,
    UnattributedRequest,
}

/// The sending half, shared by all streams of a link.
#[derive(Debug)]
pub(crate) struct LinkEventSender {
    channel: mpsc::Sender<LinkEvent>,
    /// Coalesced events for a full channel: at most a single event of each kind, so none is lost.
    due: Mutex<Vec<LinkEvent>>,
}

impl LinkEventSender {
    pub(crate) const fn new(channel: mpsc::Sender<LinkEvent>) -> Self {
        Self {
            channel,
            due: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn has_due(&self) -> bool {
        !lock(&self.due).is_empty()
    }

    pub(crate) fn emit_coalesced(&self, change: CoalescedEvent) {
        let event = match change {
            CoalescedEvent::Tools => LinkEvent::ToolsChanged,
            CoalescedEvent::Prompts => LinkEvent::PromptsChanged,
            CoalescedEvent::Resources => LinkEvent::ResourcesChanged,
            CoalescedEvent::SessionReset => LinkEvent::SessionReset,
            CoalescedEvent::UnattributedRequest => LinkEvent::UnattributedRequest,
        };
        let mut due = lock(&self.due);
        if due.contains(&event) {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(event)) = self.channel.try_send(event) {
            due.push(event);
        }
    }

    /// Emits an event without guarantee; `false` when the channel is full.
    pub(crate) fn try_emit(&self, event: impl FnOnce() -> LinkEvent) -> bool {
        match self.channel.try_reserve() {
            Ok(permit) => {
                permit.send(event());
                true
            }
            Err(_) => false,
        }
    }

    /// Waits for room in the channel and delivers a due event.
    pub(crate) async fn deliver_due(&self) {
        match self.channel.reserve().await {
            Ok(permit) => {
                if let Some(event) = lock(&self.due).pop() {
                    permit.send(event);
                }
            }
            // The receiver is gone.
            Err(_) => lock(&self.due).clear(),
        }
    }
}
