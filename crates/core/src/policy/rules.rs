//! Patterns, ready to be asked on every call: what one call costs does not grow with what they
//! say of other servers.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::pattern::Pattern;
use crate::call::Kind;

/// Whether a pattern without a kind is about tools only, or about everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsaid {
    /// Tools only: what grants, grants no more than it says.
    Tools,
    /// Everything: what takes away, takes away all of that name.
    All,
}

/// Patterns by the server they name.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules {
    by_server: HashMap<Box<str>, ForServer, RandomState>,
    /// Those whose server is a wildcard.
    everywhere: Vec<Pattern>,
    /// All of them, as they were given.
    all: Vec<Pattern>,
}

#[derive(Clone, Debug, Default)]
struct ForServer {
    exact: HashMap<Box<str>, Vec<Pattern>, RandomState>,
    wild: Vec<Pattern>,
}

impl Rules {
    pub(super) fn new(patterns: impl IntoIterator<Item = Pattern>) -> Self {
        let mut rules = Self::default();
        for pattern in patterns {
            rules.all.push(pattern.clone());
            let Some(server) = pattern.server() else {
                rules.everywhere.push(pattern);
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

    /// Returns the first pattern that is about this.
    pub(super) fn find(
        &self,
        unsaid: Unsaid,
        kind: Kind,
        server: &str,
        name: &str,
    ) -> Option<&Pattern> {
        let of_kind = |pattern: &&Pattern| match pattern.kind {
            Some(said) => said == kind,
            None => unsaid == Unsaid::All || kind == Kind::Tool,
        };
        let own = self.by_server.get(server);
        let exact = own
            .and_then(|own| own.exact.get(name))
            .into_iter()
            .flatten();
        let wild = own.into_iter().flat_map(|own| &own.wild);
        exact
            .chain(wild)
            .chain(&self.everywhere)
            .filter(of_kind)
            .find(|pattern| pattern.fits(server, name))
    }

    /// Whether all of a server is meant, whatever it has.
    pub(super) fn all_of(&self, server: &str) -> bool {
        self.about(server)
            .any(|pattern| pattern.kind.is_none() && pattern.is_any_name())
    }

    /// Returns the patterns that are about anything of a server.
    fn about<'a>(&'a self, server: &'a str) -> impl Iterator<Item = &'a Pattern> {
        let own = self.by_server.get(server).into_iter();
        let own = own.flat_map(|own| own.exact.values().flatten().chain(&own.wild));
        let everywhere = self.everywhere.iter();
        own.chain(everywhere.filter(|pattern| pattern.is_about(server)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Pattern> {
        self.all.iter()
    }
}

/// What may be used: what `allow` names, without what `deny` names.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    pub(super) allow: Rules,
    pub(super) deny: Rules,
}

/// What a filter says of one thing, and by which pattern.
#[derive(Clone, Copy, Debug)]
pub(super) enum Filtered<'p> {
    Allowed(&'p Pattern),
    Denied(&'p Pattern),
    NotListed,
}

impl Filter {
    pub(super) fn new(allow: Vec<Pattern>, deny: Vec<Pattern>) -> Self {
        Self {
            allow: Rules::new(allow),
            deny: Rules::new(deny),
        }
    }

    /// Whether anything of a server may get through; `false` is certain.
    pub(super) fn reaches(&self, server: &str) -> bool {
        self.allow.about(server).next().is_some() && !self.deny.all_of(server)
    }

    /// Deny wins.
    pub(super) fn of(&self, kind: Kind, server: &str, name: &str) -> Filtered<'_> {
        if let Some(pattern) = self.deny.find(Unsaid::All, kind, server, name) {
            return Filtered::Denied(pattern);
        }
        match self.allow.find(Unsaid::Tools, kind, server, name) {
            Some(pattern) => Filtered::Allowed(pattern),
            None => Filtered::NotListed,
        }
    }
}

/// Names to what they stand for.
pub(super) type Named<T> = HashMap<Arc<str>, T, RandomState>;
