//! Names that servers are given, and the names that they have: one rule for files and for
//! programs that embed the host.

use std::collections::HashMap;
use std::sync::Arc;

use bowline_core::name;
use thiserror::Error;

use super::ServerSpec;

/// Two given names that are the same server name. Neither server takes the place of the other.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the names `{first}` and `{second}` both stand for server `{server}`: rename one of them")]
pub struct NameClash {
    /// The server name.
    pub server: Arc<str>,
    /// The name that was given first.
    pub first: Arc<str>,
    /// The name that was refused.
    pub second: Arc<str>,
}

impl ServerSpec {
    /// Returns the spec under a server name; a name that is none becomes its slug.
    #[must_use]
    pub(crate) fn with_slug(mut self) -> Self {
        // An empty name is a mistake, and never a server named `server`.
        if !self.name.is_empty() && !name::is_server(&self.name) {
            let slug = name::slug(&self.name).as_ref().into();
            self.given_name = Some(std::mem::replace(&mut self.name, slug));
        }
        self
    }

    /// Returns the name as it was given.
    pub(crate) fn given_name(&self) -> &Arc<str> {
        self.given_name.as_ref().unwrap_or(&self.name)
    }

    /// Refuses the server name of `other` where each was given another name.
    pub(crate) fn check_clash(&self, other: &Self) -> Result<(), NameClash> {
        if self.name != other.name || self.given_name() == other.given_name() {
            return Ok(());
        }
        Err(NameClash {
            server: Arc::clone(&self.name),
            first: Arc::clone(other.given_name()),
            second: Arc::clone(self.given_name()),
        })
    }
}

/// Gives every spec its server name. Of two that were given different names with one slug, the
/// later one is left out and noted among `clashes`; where the given names are the same, the last
/// counts.
pub(crate) fn settle_names(
    given: Vec<ServerSpec>,
    clashes: &mut Vec<NameClash>,
) -> Vec<ServerSpec> {
    let mut places: HashMap<Arc<str>, usize> = HashMap::new();
    let mut specs: Vec<ServerSpec> = Vec::with_capacity(given.len());
    for spec in given.into_iter().map(ServerSpec::with_slug) {
        let place = places.get(&spec.name).copied();
        match place.and_then(|place| specs.get_mut(place)) {
            None => {
                places.insert(Arc::clone(&spec.name), specs.len());
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
