//! Servers and tools disabled in a router.

use std::collections::BTreeSet;
use std::sync::Arc;

use bowline_core::name::to_slug;

use super::RouterShared;

/// Disabled servers and tools.
#[derive(Clone, Debug, Default)]
pub(super) struct DisabledTools {
    servers: BTreeSet<Arc<str>>,
    /// Server and tool name.
    tools: BTreeSet<(Arc<str>, Arc<str>)>,
}

impl DisabledTools {
    pub(super) fn is_disabled(&self, server: &Arc<str>, tool: &Arc<str>) -> bool {
        self.servers.contains(server)
            || self.tools.contains(&(Arc::clone(server), Arc::clone(tool)))
    }

    pub(super) fn disable_server(&mut self, server: &str) {
        self.servers.insert(to_slug(server).into());
    }

    pub(super) fn enable_server(&mut self, server: &str) {
        self.servers.remove(&*to_slug(server));
    }

    pub(super) fn disable_tool(&mut self, server: &str, tool: &str) {
        self.tools.insert((to_slug(server).into(), tool.into()));
    }

    pub(super) fn enable_tool(&mut self, server: &str, tool: &str) {
        self.tools.remove(&(to_slug(server).into(), tool.into()));
    }
}

impl RouterShared {
    /// Updates the disabled set atomically for concurrent calls.
    pub(super) fn update_disabled(&self, change: impl Fn(&mut DisabledTools)) {
        self.disabled.rcu(|old| {
            let mut new = DisabledTools::clone(old);
            change(&mut new);
            new
        });
    }
}
