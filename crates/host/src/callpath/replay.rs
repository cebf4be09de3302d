//! The road of a write that waited: everything is asked again but what was paid for.

use std::sync::Arc;

use bowline_core::call::{Call, Reply, Scope};
use bowline_core::error::CallError;

use super::audited::Record;
use super::resolve::Ask;
use super::{CallPath, Way};

impl CallPath {
    /// Sends a write that was queued, for whom it was stored. It was charged when it was stored,
    /// nobody waits for it, and no answer of another call can be its own.
    pub(crate) async fn replay(&self, call: &Call, server: &Arc<str>) -> Result<Reply, CallError> {
        let mut record = self.auditor.open(call).await;
        let outcome = self.sent_again(call, server, &mut record).await;
        record.close(&outcome);
        outcome
    }

    async fn sent_again(
        &self,
        call: &Call,
        server: &Arc<str>,
        record: &mut Record<'_>,
    ) -> Result<Reply, CallError> {
        let started = self.clock.moment();
        // By the server's own name: the visible one may lead elsewhere by now.
        let scope = Scope::Server(Arc::clone(server));
        let own = Ask {
            scope: &scope,
            ..call.into()
        };
        let (route, server) = self.resolve(own, started.now()).await?;
        record.goes(&route);
        self.permit(call.into(), &route)?;
        let way = Way::new(call, &route, &server, started.now());
        self.run(call, way, started).await.map(|(reply, _)| reply)
    }
}
