//! Index of patterns by server; the cost of a lookup is independent of patterns for unrelated
//! servers.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::pattern::FeaturePattern;
use crate::call::FeatureKind;

/// The meaning of a pattern without a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KindDefault {
    /// Tools only, for granting patterns.
    ToolsOnly,
    /// All kinds, for denying patterns.
    All,
}

/// Patterns by server.
#[derive(Clone, Debug, Default)]
pub(super) struct PatternIndex {
    by_server: HashMap<Box<str>, ServerPatterns, RandomState>,
    /// Patterns with a wildcard server.
    any_server: Vec<FeaturePattern>,
    /// All patterns, in configured order.
    all: Vec<FeaturePattern>,
}

#[derive(Clone, Debug, Default)]
struct ServerPatterns {
    exact: HashMap<Box<str>, Vec<FeaturePattern>, RandomState>,
    wild: Vec<FeaturePattern>,
}

impl PatternIndex {
    pub(super) fn new(patterns: impl IntoIterator<Item = FeaturePattern>) -> Self {
        let mut rules = Self::default();
        for pattern in patterns {
            rules.all.push(pattern.clone());
            let Some(server) = pattern.server() else {
                rules.any_server.push(pattern);
                continue;
            };
            let own = rules.by_server.entry(server.into()).or_default();
            match pattern.name() {
                Some(name) => own.exact.entry(name.into()).or_default().push(pattern),
                None => own.wild.push(pattern),
            }
        }
        rules
    }

    /// Returns the first matching pattern.
    pub(super) fn find_match(
        &self,
        kind_default: KindDefault,
        kind: FeatureKind,
        server: &str,
        name: &str,
    ) -> Option<&FeaturePattern> {
        let of_kind = |pattern: &&FeaturePattern| match pattern.kind {
            Some(pattern_kind) => pattern_kind == kind,
            None => kind_default == KindDefault::All || kind == FeatureKind::Tool,
        };
        let own = self.by_server.get(server);
        let exact = own
            .and_then(|own| own.exact.get(name))
            .into_iter()
            .flatten();
        let wild = own.into_iter().flat_map(|own| &own.wild);
        exact
            .chain(wild)
            .chain(&self.any_server)
            .filter(of_kind)
            .find(|pattern| pattern.matches_feature(server, name))
    }

    /// Whether the patterns cover every feature of a server.
    pub(super) fn covers_server(&self, server: &str) -> bool {
        self.patterns_for_server(server)
            .any(|pattern| pattern.kind.is_none() && pattern.is_any_name())
    }

    /// Returns the patterns that may match a feature of a server.
    fn patterns_for_server<'a>(
        &'a self,
        server: &'a str,
    ) -> impl Iterator<Item = &'a FeaturePattern> {
        let own = self.by_server.get(server).into_iter();
        let own = own.flat_map(|own| own.exact.values().flatten().chain(&own.wild));
        let everywhere = self.any_server.iter();
        own.chain(everywhere.filter(|pattern| pattern.may_match_server(server)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &FeaturePattern> {
        self.all.iter()
    }
}

/// Features matching `allow` and not matching `deny`.
#[derive(Clone, Debug, Default)]
pub(super) struct AccessFilter {
    pub(super) allow: PatternIndex,
    pub(super) deny: PatternIndex,
}

/// The result of a filter for one feature, with the pattern.
#[derive(Clone, Copy, Debug)]
pub(super) enum FilterMatch<'p> {
    Allowed(&'p FeaturePattern),
    Denied(&'p FeaturePattern),
    NotListed,
}

impl AccessFilter {
    pub(super) fn new(allow: Vec<FeaturePattern>, deny: Vec<FeaturePattern>) -> Self {
        Self {
            allow: PatternIndex::new(allow),
            deny: PatternIndex::new(deny),
        }
    }

    /// Whether any feature of a server may pass; `false` is definite.
    pub(super) fn may_reach_server(&self, server: &str) -> bool {
        self.allow.patterns_for_server(server).next().is_some() && !self.deny.covers_server(server)
    }

    /// Matches a feature; deny takes precedence.
    pub(super) fn match_feature(
        &self,
        kind: FeatureKind,
        server: &str,
        name: &str,
    ) -> FilterMatch<'_> {
        if let Some(pattern) = self.deny.find_match(KindDefault::All, kind, server, name) {
            return FilterMatch::Denied(pattern);
        }
        match self
            .allow
            .find_match(KindDefault::ToolsOnly, kind, server, name)
        {
            Some(pattern) => FilterMatch::Allowed(pattern),
            None => FilterMatch::NotListed,
        }
    }
}

/// Map by name.
pub(super) type ByName<T> = HashMap<Arc<str>, T, RandomState>;
