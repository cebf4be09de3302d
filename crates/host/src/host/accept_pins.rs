//! Pin status, and approval of changed definitions.

use std::sync::Arc;

use bowline_core::error::CallError;
use bowline_core::pins::PinAcceptance;

use super::Host;
use crate::pins::{AcceptPinsError, PinTarget, ServerPinState};

impl Host {
    /// Returns the pins of a server.
    pub fn pins(&self, server: &str) -> Result<ServerPinState, CallError> {
        let server = self.server(server)?;
        Ok(self.deps.pins.server_pins(&server.spec().name))
    }

    /// Approves the current definition of an item, or of all items of a server. Withdrawn items are
    /// listed again at once.
    ///
    /// With a hash, the item is approved only if the hash matches the current definition, or the
    /// definition before the last approval. The latter reverts the last approval.
    pub async fn accept_pins(
        &self,
        server: &str,
        target: Option<PinTarget<'_>>,
    ) -> Result<Result<Vec<PinAcceptance>, AcceptPinsError>, CallError> {
        let server = self.server(server)?;
        let spec = server.spec();
        let catalog = self.catalog();
        let offer = catalog.server(&spec.name).map(Arc::as_ref);
        let accepted = self.deps.pins.accept_pins(&spec.name, target, offer).await;
        if accepted.is_ok() {
            let judge = |offer: &_| self.deps.pins.filter_catalog(spec, offer);
            self.deps.catalog.refilter_server(&spec.name, judge);
        }
        Ok(accepted)
    }
}
