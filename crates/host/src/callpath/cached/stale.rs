//! When answers are no longer good before their time.

use std::sync::Arc;

use bowline_core::cache::Stale;
use bowline_core::call::{Effect, Kind, Route};
use bowline_link::LinkEvent;

use super::Answers;
use crate::spec::{ServerSpec, ToolRule};

impl Answers {
    /// Forgets all answers of a server.
    pub(crate) fn purge(&self, server: &Arc<str>) {
        self.stale(server, Stale::All);
    }

    /// Forgets all about a server that is gone.
    pub(crate) fn forget(&self, server: &Arc<str>) {
        self.change(|kept| kept.cache.forget(server));
    }

    /// Forgets what a server says has changed.
    pub(crate) fn heard(&self, server: &Arc<str>, event: &LinkEvent) {
        let stale = match event {
            LinkEvent::ToolsChanged => Stale::Of(Kind::Tool),
            LinkEvent::PromptsChanged => Stale::Of(Kind::Prompt),
            LinkEvent::ResourcesChanged => Stale::Of(Kind::Resource),
            LinkEvent::ResourceUpdated { uri, .. } => Stale::Resource(uri),
            LinkEvent::TaskStatus { .. }
            | LinkEvent::Told { .. }
            | LinkEvent::Renewed
            | LinkEvent::Ambiguous
            | LinkEvent::Log(_)
            | LinkEvent::Other(_) => return,
        };
        self.stale(server, stale);
    }

    /// Forgets what a tool changes that a person said writes.
    pub(super) fn written(&self, server: &Arc<str>, rule: &ToolRule) {
        let stale = match rule.invalidates.as_slice() {
            [] => Stale::All,
            named => Stale::Named(named),
        };
        self.stale(server, stale);
    }

    fn stale(&self, server: &Arc<str>, stale: Stale<'_>) {
        self.change(|kept| kept.cache.purge(server, stale));
    }
}

/// Returns the rule of a tool that a person said writes. What a server says of its own tool is
/// not enough to forget others' answers: most say it of all their tools.
pub(super) fn write_rule<'a>(route: &Route, spec: &'a ServerSpec) -> Option<&'a ToolRule> {
    if route.effect != Effect::Write {
        return None;
    }
    let rule = spec.tools.get(route.name.as_ref())?;
    (rule.effect == Some(Effect::Write)).then_some(rule)
}
