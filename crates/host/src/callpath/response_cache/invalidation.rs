//! Invalidates cached responses before their TTL ends.

use std::sync::Arc;

use bowline_core::cache::PurgeScope;
use bowline_core::call::FeatureKind;
use bowline_link::LinkEvent;

use super::ResponseCache;
use crate::spec::ToolRule;

impl ResponseCache {
    /// Removes all responses of a server.
    pub(crate) fn purge_server(&self, server: &Arc<str>) {
        self.purge_matching(server, PurgeScope::All);
    }

    /// Removes everything about a removed server.
    pub(crate) fn forget_server(&self, server: &Arc<str>) {
        self.update(|state| state.cache.forget_server(server));
    }

    /// Removes the responses invalidated by a server's change notification.
    pub(crate) fn invalidate_on_event(&self, server: &Arc<str>, event: &LinkEvent) {
        let stale = match event {
            LinkEvent::ToolsChanged => PurgeScope::Kind(FeatureKind::Tool),
            LinkEvent::PromptsChanged => PurgeScope::Kind(FeatureKind::Prompt),
            LinkEvent::ResourcesChanged => PurgeScope::Kind(FeatureKind::Resource),
            LinkEvent::ResourceUpdated { uri, .. } => PurgeScope::Resource(uri),
            LinkEvent::TaskStatus { .. }
            | LinkEvent::SessionNotification { .. }
            | LinkEvent::SessionReset
            | LinkEvent::UnattributedRequest
            | LinkEvent::Log(_)
            | LinkEvent::Other(_) => return,
        };
        self.purge_matching(server, stale);
    }

    /// Removes the responses invalidated by a configured write tool.
    pub(super) fn invalidate_on_write(&self, server: &Arc<str>, rule: &ToolRule) {
        let stale = match rule.invalidates.as_slice() {
            [] => PurgeScope::All,
            named => PurgeScope::Matching(named),
        };
        self.purge_matching(server, stale);
    }

    fn purge_matching(&self, server: &Arc<str>, stale: PurgeScope<'_>) {
        self.update(|state| state.cache.purge_server(server, stale));
    }
}
