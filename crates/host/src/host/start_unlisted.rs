//! Starts lazy servers without known lists when a list would show them.

use std::sync::Arc;

use bowline_core::call::{EndpointScope, Principal};

use super::Host;

impl Host {
    /// Starts the never listed servers in `scope` and waits for their lists, at most
    /// `first_list_wait`. Later lists find nothing to start.
    pub async fn start_unlisted(&self, scope: &EndpointScope) {
        self.start_and_wait_listed(
            self.call_path
                .catalog
                .unlisted
                .take_in_scope(scope, |_| true),
        )
        .await;
    }

    /// Like [`start_unlisted`](Self::start_unlisted), for the servers reachable by `principal`.
    pub async fn start_unlisted_for(&self, principal: &Principal, scope: &EndpointScope) {
        let reaches = |server: &str| {
            self.call_path
                .authorizer
                .can_reach(principal, scope, server)
        };
        self.start_and_wait_listed(
            self.call_path
                .catalog
                .unlisted
                .take_in_scope(scope, reaches),
        )
        .await;
    }

    async fn start_and_wait_listed(&self, names: Vec<Arc<str>>) {
        if names.is_empty() {
            return;
        }
        let servers = self.call_path.servers.load_full();
        let servers: Vec<_> = names.iter().filter_map(|name| servers.get(name)).collect();
        for server in &servers {
            server.wake();
        }
        let deadline = self
            .call_path
            .clock
            .now()
            .plus(self.limits.load().first_list_wait);
        for server in servers {
            // The server's status reports the failure.
            let _untold = server.wait_listed(deadline).await;
        }
    }
}
