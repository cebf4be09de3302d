//! Invalidates cached responses before their TTL ends.

use std::sync::Arc;

use bowline_core::cache::PurgeScope;
use bowline_core::call::{Effect, FeatureKind, Route};
use bowline_link::LinkEvent;

use super::ResponseCache;
use crate::spec::{ServerSpec, ToolRule};

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

/// Returns the rule of a tool configured as a write tool. A server's own annotation does not
/// suffice: most servers annotate all tools as writing.
pub(super) fn configured_write_rule<'a>(
    route: &Route,
    spec: &'a ServerSpec,
) -> Option<&'a ToolRule> {
    if route.effect != Effect::Write {
        return None;
    }
    let rule = spec.tools.get(route.name.as_ref())?;
    (rule.effect == Some(Effect::Write)).then_some(rule)
}
