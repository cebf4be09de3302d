//! What is switched on for anybody at all, thing by thing, whatever roles say.

use super::rules::Named;
use crate::call::Kind;

/// Things that are switched on or off one by one, and what holds for all others. Takes away and
/// never grants. Names are exact: `*` is a name like any other.
#[derive(Clone, Debug)]
pub struct Enabled {
    otherwise: bool,
    /// By server and name.
    servers: Named<Named<Vec<(Kind, bool)>>>,
}

/// Nothing is switched off.
impl Default for Enabled {
    fn default() -> Self {
        Self::new(true)
    }
}

impl Enabled {
    /// Returns what says the same of everything.
    #[must_use]
    pub fn new(otherwise: bool) -> Self {
        Self {
            otherwise,
            servers: Named::default(),
        }
    }

    /// Switches one thing on or off; what was said of it before is gone.
    #[must_use]
    pub fn with(mut self, kind: Kind, server: &str, name: &str, enabled: bool) -> Self {
        let names = self.servers.entry(server.into()).or_default();
        let kinds = names.entry(name.into()).or_default();
        kinds.retain(|(known, _)| *known != kind);
        kinds.push((kind, enabled));
        self
    }

    /// Whether a thing is switched on.
    #[must_use]
    pub fn has(&self, kind: Kind, server: &str, name: &str) -> bool {
        let kinds = self.servers.get(server).and_then(|names| names.get(name));
        let said = kinds.and_then(|kinds| kinds.iter().find(|(known, _)| *known == kind));
        said.map_or(self.otherwise, |(_, enabled)| *enabled)
    }

    /// Whether anything of a server may be switched on; `false` is certain.
    pub(super) fn reaches(&self, server: &str) -> bool {
        let mut said = self.servers.get(server).into_iter().flatten();
        self.otherwise || said.any(|(_, kinds)| kinds.iter().any(|(_, enabled)| *enabled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_is_switched_by_itself_and_the_last_word_counts() {
        let list = Enabled::new(true)
            .with(Kind::Tool, "s", "a", false)
            .with(Kind::Prompt, "s", "b", false)
            .with(Kind::Prompt, "s", "b", true)
            .with(Kind::Tool, "s", "*", false);
        assert!(!list.has(Kind::Tool, "s", "a") && list.has(Kind::Prompt, "s", "a"));
        assert!(list.has(Kind::Tool, "s", "c") && list.has(Kind::Tool, "t", "a"));
        assert!(list.has(Kind::Prompt, "s", "b"));
        let closed = Enabled::new(false).with(Kind::Tool, "s", "a", true);
        assert!(closed.has(Kind::Tool, "s", "a") && !closed.has(Kind::Tool, "s", "b"));
        assert!(closed.reaches("s") && !closed.reaches("t") && list.reaches("t"));
        assert!(
            !Enabled::new(false)
                .with(Kind::Tool, "s", "a", false)
                .reaches("s")
        );
    }
}
