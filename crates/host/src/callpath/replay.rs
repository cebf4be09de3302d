//! Replays a queued write. All checks run again except the budget charge.

use std::sync::Arc;

use bowline_core::call::{CallReply, CallRequest, EndpointScope};
use bowline_core::error::CallError;

use super::resolve::AccessRequest;
use super::{CallPath, ResolvedCall, repeated_arguments};
use crate::supervisor::Supervisor;

/// The idempotency key sent with a stored write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayKey {
    /// Bound to the principal.
    Scoped,
    /// As stored: an older gateway may have sent the write already.
    AsStored,
}

impl CallPath {
    /// Returns the number of calls a server has answered; 0 for an unconfigured server.
    pub(crate) fn answered_calls(&self, server: &str) -> u64 {
        let servers = self.servers.load();
        servers.get(server).map_or(0, Supervisor::answered_calls)
    }

    /// Returns the limit of concurrent calls of a server.
    pub(crate) fn concurrency_limit(&self, server: &str) -> usize {
        let servers = self.servers.load();
        servers.get(server).map_or(1, |one| one.spec().calls_max)
    }

    /// Sends a queued write on behalf of its principal. The charge happened when it was stored, no
    /// caller waits, and the cache is not used. The outbox writes the audit entry at the end, not
    /// for each attempt.
    pub(crate) async fn replay_write(
        &self,
        call: &CallRequest,
        server: &Arc<str>,
        key: ReplayKey,
    ) -> Result<CallReply, CallError> {
        let started = self.clock.reading();
        let supervisor = self.servers.load().get(server).cloned();
        let supervisor = supervisor.ok_or_else(|| CallError::UnknownServer {
            server: Arc::clone(server),
        })?;
        // A connection that is down is not awaited: its return wakes the outbox.
        self.outbox.check_connection_path(supervisor.spec())?;
        // The current lists decide, not those from before the outage.
        let limit = started.now().plus(supervisor.spec().call_timeout);
        supervisor.wait_listed(limit).await?;
        // Resolved by the server's own name: the visible name may belong to a different server now.
        let scope = EndpointScope::Server(Arc::clone(server));
        let request = AccessRequest {
            scope: &scope,
            ..call.into()
        };
        let (route, server) = self.resolve(request, started.now()).await?;
        self.outbox.check_reachable(&route, server.spec())?;
        self.authorize(call.into(), &route).await?;
        let resolved = ResolvedCall::new(call, &route, &server, started.now());
        let scoped = match key {
            ReplayKey::Scoped => repeated_arguments::scope_key(&self.key_scope, call, &route),
            ReplayKey::AsStored => None,
        };
        let sent_call = scoped.as_deref().unwrap_or(call);
        self.send_counted(sent_call, resolved, started)
            .await
            .map(|(reply, _)| reply)
    }
}
