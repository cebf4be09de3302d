//! Given names and server names: a single rule for config files and embedding programs.

use std::collections::HashMap;
use std::sync::Arc;

use bowline_core::name;
use thiserror::Error;

use super::ServerSpec;

/// Two given names with the same server name. Neither server replaces the other.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the names `{first}` and `{second}` both stand for server `{server}`: rename one of them")]
pub struct NameClash {
    /// The server name.
    pub server: Arc<str>,
    /// The first given name.
    pub first: Arc<str>,
    /// The refused given name.
    pub second: Arc<str>,
}

impl ServerSpec {
    /// Replaces an invalid server name by its slug.
    #[must_use]
    pub fn with_slug(mut self) -> Self {
        // An empty name is an error, never a server named `server`.
        if !self.name.is_empty() && !name::is_server_name(&self.name) {
            let slug = name::to_slug(&self.name).as_ref().into();
            self.given_name = Some(std::mem::replace(&mut self.name, slug));
        }
        self
    }

    /// Returns the given name.
    pub fn display_name(&self) -> &Arc<str> {
        self.given_name.as_ref().unwrap_or(&self.name)
    }

    /// Fails if `other` has the same server name with a different given name.
    pub fn check_clash(&self, other: &Self) -> Result<(), NameClash> {
        if self.name != other.name || self.display_name() == other.display_name() {
            return Ok(());
        }
        Err(NameClash {
            server: Arc::clone(&self.name),
            first: Arc::clone(other.display_name()),
            second: Arc::clone(self.display_name()),
        })
    }
}

/// Assigns server names. Of two different given names with the same slug, the later spec is omitted
/// and recorded in `clashes`; of equal given names, the last wins.
pub fn resolve_names(configured: Vec<ServerSpec>, clashes: &mut Vec<NameClash>) -> Vec<ServerSpec> {
    let mut indexes: HashMap<Arc<str>, usize> = HashMap::new();
    let mut specs: Vec<ServerSpec> = Vec::with_capacity(configured.len());
    for spec in configured.into_iter().map(ServerSpec::with_slug) {
        let index = indexes.get(&spec.name).copied();
        match index.and_then(|index| specs.get_mut(index)) {
            None => {
                indexes.insert(Arc::clone(&spec.name), specs.len());
                specs.push(spec);
            }
            Some(before) => match spec.check_clash(before) {
                Ok(()) => *before = spec,
                Err(clash) => clashes.push(clash),
            },
        }
    }
    specs
}
