//! A gate that blocks tasks until released by a test.

use std::sync::Arc;

use bowline_runtime::fifo_watch;

/// Blocks waiting tasks until released; open afterwards.
#[derive(Clone, Debug)]
pub struct ReleaseGate(Arc<fifo_watch::FifoSender<bool>>);

impl ReleaseGate {
    /// Returns a closed gate.
    #[must_use]
    pub fn new_closed() -> Self {
        Self(Arc::new(fifo_watch::FifoSender::new(false)))
    }

    /// Opens the gate permanently.
    pub fn release(&self) {
        self.0.send_replace(true);
    }

    /// Waits for the release.
    pub(crate) async fn wait_released(&self) {
        // The sender is owned here, so the channel cannot close.
        let _ = self.0.subscribe().wait_for(|released| *released).await;
    }
}
