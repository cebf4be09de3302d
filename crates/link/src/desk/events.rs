//! The way to who listens to a server outside calls.

use std::sync::Mutex;

use bowline_core::sync::lock;
use tokio::sync::mpsc;

use crate::link::LinkEvent;

/// What must not be lost, though it may come once for many.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Tools,
    Prompts,
    Resources,
    Renewed,
    Ambiguous,
}

/// The sending end, shared by all streams of one link.
#[derive(Debug)]
pub(crate) struct Events {
    channel: mpsc::Sender<LinkEvent>,
    /// Changes that found no room yet: at most one of each kind, so none is lost.
    due: Mutex<Vec<LinkEvent>>,
}

impl Events {
    pub(crate) const fn new(channel: mpsc::Sender<LinkEvent>) -> Self {
        Self {
            channel,
            due: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn is_due(&self) -> bool {
        !lock(&self.due).is_empty()
    }

    pub(crate) fn changed(&self, change: Change) {
        let event = match change {
            Change::Tools => LinkEvent::ToolsChanged,
            Change::Prompts => LinkEvent::PromptsChanged,
            Change::Resources => LinkEvent::ResourcesChanged,
            Change::Renewed => LinkEvent::Renewed,
            Change::Ambiguous => LinkEvent::Ambiguous,
        };
        let mut due = lock(&self.due);
        if due.contains(&event) {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(event)) = self.channel.try_send(event) {
            due.push(event);
        }
    }

    /// Hands over what may be lost; `false` when it is.
    pub(crate) fn pass(&self, event: impl FnOnce() -> LinkEvent) -> bool {
        match self.channel.try_reserve() {
            Ok(permit) => {
                permit.send(event());
                true
            }
            Err(_) => false,
        }
    }

    /// Waits for room for one change that is due.
    pub(crate) async fn deliver(&self) {
        match self.channel.reserve().await {
            Ok(permit) => {
                if let Some(event) = lock(&self.due).pop() {
                    permit.send(event);
                }
            }
            // Nobody listens.
            Err(_) => lock(&self.due).clear(),
        }
    }
}
