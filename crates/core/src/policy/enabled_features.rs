//! Features enabled or disabled for everyone, regardless of roles.

use super::pattern_index::ByName;
use crate::call::FeatureKind;

/// Individually enabled or disabled features, with a default for the rest. Narrows, never grants.
/// Names are exact: `*` is a literal name.
#[derive(Clone, Debug)]
pub struct EnabledFeatures {
    default_enabled: bool,
    /// By server and name.
    servers: ByName<ByName<Vec<(FeatureKind, bool)>>>,
}

/// Everything enabled.
impl Default for EnabledFeatures {
    fn default() -> Self {
        Self::new(true)
    }
}

impl EnabledFeatures {
    /// Returns a set with only a default.
    #[must_use]
    pub fn new(default_enabled: bool) -> Self {
        Self {
            default_enabled,
            servers: ByName::default(),
        }
    }

    /// Enables or disables one feature, replacing an earlier setting.
    #[must_use]
    pub fn with_feature(
        mut self,
        kind: FeatureKind,
        server: &str,
        name: &str,
        enabled: bool,
    ) -> Self {
        let names = self.servers.entry(server.into()).or_default();
        let kinds = names.entry(name.into()).or_default();
        kinds.retain(|(entry_kind, _)| *entry_kind != kind);
        kinds.push((kind, enabled));
        self
    }

    /// Whether a feature is enabled.
    #[must_use]
    pub fn is_enabled(&self, kind: FeatureKind, server: &str, name: &str) -> bool {
        let kinds = self.servers.get(server).and_then(|names| names.get(name));
        let entry =
            kinds.and_then(|kinds| kinds.iter().find(|(entry_kind, _)| *entry_kind == kind));
        entry.map_or(self.default_enabled, |(_, enabled)| *enabled)
    }

    /// Whether any feature of a server may be enabled; `false` is definite.
    pub(super) fn may_reach_server(&self, server: &str) -> bool {
        let mut entries = self.servers.get(server).into_iter().flatten();
        self.default_enabled || entries.any(|(_, kinds)| kinds.iter().any(|(_, enabled)| *enabled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_switch_individually_and_last_wins() {
        let list = EnabledFeatures::new(true)
            .with_feature(FeatureKind::Tool, "s", "a", false)
            .with_feature(FeatureKind::Prompt, "s", "b", false)
            .with_feature(FeatureKind::Prompt, "s", "b", true)
            .with_feature(FeatureKind::Tool, "s", "*", false);
        assert!(
            !list.is_enabled(FeatureKind::Tool, "s", "a")
                && list.is_enabled(FeatureKind::Prompt, "s", "a")
        );
        assert!(
            list.is_enabled(FeatureKind::Tool, "s", "c")
                && list.is_enabled(FeatureKind::Tool, "t", "a")
        );
        assert!(list.is_enabled(FeatureKind::Prompt, "s", "b"));
        let closed = EnabledFeatures::new(false).with_feature(FeatureKind::Tool, "s", "a", true);
        assert!(
            closed.is_enabled(FeatureKind::Tool, "s", "a")
                && !closed.is_enabled(FeatureKind::Tool, "s", "b")
        );
        assert!(
            closed.may_reach_server("s")
                && !closed.may_reach_server("t")
                && list.may_reach_server("t")
        );
        assert!(
            !EnabledFeatures::new(false)
                .with_feature(FeatureKind::Tool, "s", "a", false)
                .may_reach_server("s")
        );
    }
}
