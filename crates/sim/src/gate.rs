//! Something that hangs until a test lets it go on.

use std::sync::Arc;

use bowline_host::beacon;

/// Holds back whoever waits at it until it is released, and nobody after that.
#[derive(Clone, Debug)]
pub struct Gate(Arc<beacon::Sender<bool>>);

impl Gate {
    /// Returns a closed gate.
    #[must_use]
    pub fn closed() -> Self {
        Self(Arc::new(beacon::Sender::new(false)))
    }

    /// Lets everybody through, now and later.
    pub fn release(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the gate is released.
    pub(crate) async fn passed(&self) {
        // The sender is ours, so the channel cannot close under us.
        let _ = self.0.subscribe().wait_for(|released| *released).await;
    }
}
