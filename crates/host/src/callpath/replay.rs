//! The road of a write that waited: everything is asked again but what was paid for.

use std::sync::Arc;

use bowline_core::call::{Call, Reply, Scope};
use bowline_core::error::CallError;

use super::resolve::Ask;
use super::{CallPath, Way, key_scope};
use crate::supervisor::Supervisor;

/// Which idempotency key a stored write is sent with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentKey {
    /// The one that its principal is bound to.
    Scoped,
    /// The one that it was stored with: an older gateway may have sent it already.
    AsStored,
}

impl CallPath {
    /// Returns how many calls a server has answered; 0 for one that is not configured.
    pub(crate) fn answered_calls(&self, server: &str) -> u64 {
        let servers = self.servers.load();
        servers.get(server).map_or(0, Supervisor::answered_calls)
    }

    /// Returns how many calls a server takes at the same time.
    pub(crate) fn places_of(&self, server: &str) -> usize {
        let servers = self.servers.load();
        servers.get(server).map_or(1, |one| one.spec().calls_max)
    }

    /// Sends a write that was queued, for whom it was stored. It was charged when it was stored,
    /// nobody waits for it, and no answer of another call can be its own. Its end is noted by the
    /// outbox, not each try.
    pub(crate) async fn replay(
        &self,
        call: &Call,
        server: &Arc<str>,
        key: SentKey,
    ) -> Result<Reply, CallError> {
        let started = self.clock.moment();
        let there = self.servers.load().get(server).cloned();
        let there = there.ok_or_else(|| CallError::UnknownServer {
            server: Arc::clone(server),
        })?;
        // A connection that is not there is not waited for: its return is told.
        self.outbox.check_way(there.spec())?;
        // What it offers now, and not what it offered when it went away, decides.
        let limit = started.now().plus(there.spec().call_timeout);
        there.listed(limit).await?;
        // By the server's own name: the visible one may lead elsewhere by now.
        let scope = Scope::Server(Arc::clone(server));
        let own = Ask {
            scope: &scope,
            ..call.into()
        };
        let (route, server) = self.resolve(own, started.now()).await?;
        self.outbox.check_reachable(&route, server.spec())?;
        self.permit(call.into(), &route).await?;
        let way = Way::new(call, &route, &server, started.now());
        let scoped = match key {
            SentKey::Scoped => key_scope::scope_key(&self.keys, call, &route),
            SentKey::AsStored => None,
        };
        let sent = scoped.as_deref().unwrap_or(call);
        self.run(sent, way, started).await.map(|(reply, _)| reply)
    }
}
