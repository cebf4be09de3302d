//! What people see of pins, and how they approve what changed.

use std::sync::Arc;

use bowline_core::error::CallError;
use bowline_core::pins::Accepted;

use super::Host;
use crate::pins::{AcceptError, Kept, PinTarget};

impl Host {
    /// Returns what is known of the definitions of one server.
    pub fn pins(&self, server: &str) -> Result<Kept, CallError> {
        let server = self.server(server)?;
        Ok(self.around.pins.kept(&server.spec().name))
    }

    /// Approves one entry of a server as it is now, or all of them. What was withdrawn is offered
    /// again at once.
    ///
    /// With a hash, the entry is approved only where that is the hash of what it is now, or of what
    /// counted before the last approval, which is taken back so.
    pub async fn accept_pins(
        &self,
        server: &str,
        target: Option<PinTarget<'_>>,
    ) -> Result<Result<Vec<Accepted>, AcceptError>, CallError> {
        let server = self.server(server)?;
        let spec = server.spec();
        let catalog = self.catalog();
        let offer = catalog.offer(&spec.name).map(Arc::as_ref);
        let accepted = self.around.pins.accept(&spec.name, target, offer).await;
        if accepted.is_ok() {
            let judge = |offer: &_| self.around.pins.judge(spec, offer);
            self.around.catalog.judge_again(&spec.name, judge);
        }
        Ok(accepted)
    }
}
