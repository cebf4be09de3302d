//! Has servers started that a list would show, and of which nothing is known yet.

use bowline_core::call::Scope;

use super::Host;

impl Host {
    /// Starts the servers that a list of `scope` would show and that nobody has ever seen, and
    /// waits for what they tell, but not long. Later lists find nothing to do here.
    pub async fn shown(&self, scope: &Scope) {
        let names = self.path.catalog.unlisted.take(scope);
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
