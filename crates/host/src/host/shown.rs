//! Has servers started that a list would show, and of which nothing is known yet.

use std::sync::Arc;

use bowline_core::call::{Principal, Scope};

use super::Host;

impl Host {
    /// Starts the servers that a list of `scope` would show and that nobody has ever seen, and
    /// waits for what they tell, but not long. Later lists find nothing to do here.
    pub async fn shown(&self, scope: &Scope) {
        self.rouse(self.path.catalog.unlisted.take(scope, |_| true))
            .await;
    }

    /// The same of those servers of which `principal` may see anything.
    pub async fn shown_to(&self, principal: &Principal, scope: &Scope) {
        let reaches = |server: &str| self.path.decider.reaches(principal, scope, server);
        self.rouse(self.path.catalog.unlisted.take(scope, reaches))
            .await;
    }

    async fn rouse(&self, names: Vec<Arc<str>>) {
        if names.is_empty() {
            return;
        }
        let servers = self.path.servers.load_full();
        let servers: Vec<_> = names.iter().filter_map(|name| servers.get(name)).collect();
        for server in &servers {
            server.rouse();
        }
        let deadline = self
            .path
            .clock
            .now()
            .plus(self.limits.load().first_list_wait);
        for server in servers {
            // Why it tells nothing is for its status to say.
            let _untold = server.listed(deadline).await;
        }
    }
}
