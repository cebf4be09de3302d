//! What a router does not lead to, though it is there.

use std::collections::BTreeSet;
use std::sync::Arc;

use bowline_core::name::slug;

use super::Shared;

/// Servers and tools that are switched off.
#[derive(Clone, Debug, Default)]
pub(super) struct Switches {
    servers: BTreeSet<Arc<str>>,
    /// Server and tool.
    tools: BTreeSet<(Arc<str>, Arc<str>)>,
}

impl Switches {
    pub(super) fn is_off(&self, server: &Arc<str>, tool: &Arc<str>) -> bool {
        self.servers.contains(server)
            || self.tools.contains(&(Arc::clone(server), Arc::clone(tool)))
    }

    pub(super) fn add_server(&mut self, server: &str) {
        self.servers.insert(slug(server).into());
    }

    pub(super) fn remove_server(&mut self, server: &str) {
        self.servers.remove(&*slug(server));
    }

    pub(super) fn add_tool(&mut self, server: &str, tool: &str) {
        self.tools.insert((slug(server).into(), tool.into()));
    }

    pub(super) fn remove_tool(&mut self, server: &str, tool: &str) {
        self.tools.remove(&(slug(server).into(), tool.into()));
    }
}

impl Shared {
    /// Changes the switches; calls see them as they were before or as they are after.
    pub(super) fn switch(&self, change: impl Fn(&mut Switches)) {
        self.switches.rcu(|old| {
            let mut new = Switches::clone(old);
            change(&mut new);
            new
        });
    }
}
