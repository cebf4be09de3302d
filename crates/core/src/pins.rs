//! The pins of one server: which of its definitions were approved, and which are others now.

mod kind;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::lint::Finding;

pub use kind::PinKind;

/// Tools of one server that are remembered, gone ones included.
pub const TOOLS_MAX: usize = 32_768;

/// Prompts of one server that are remembered, gone ones included; so many templates too.
pub const PROMPTS_MAX: usize = 2_048;

/// Resources of one server that are remembered, gone ones included.
pub const RESOURCES_MAX: usize = 8_192;

/// Entries with longer names or URIs are not remembered.
pub const NAME_BYTES_MAX: usize = 1_024;

/// A definition longer than this is remembered by its hash alone.
pub const DEFINITION_BYTES_MAX: usize = 128 * 1024;

/// Definitions of one server's tools longer than this together are remembered by their hashes
/// alone; the definitions of everything else have a budget of the same size.
pub const DEFINITIONS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The SHA-256 of a definition in canonical form.
pub type Hash = [u8; 32];

/// One definition, at the time when it was seen or approved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its hash.
    pub hash: Hash,
    /// Its text, as the server wrote it; absent where it is too long.
    pub definition: Option<Bytes>,
    /// When, by the wall clock in milliseconds.
    pub at_ms: u64,
}

/// What is known of one tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The definition that counts.
    pub approved: Version,
    /// The one that counted before a person accepted this one.
    pub before: Option<Version>,
    /// Whether a person accepted it; otherwise it counts because it was the first.
    pub reviewed: bool,
    /// How the tool stands.
    pub state: State,
    /// What is odd about the tool as it is now, unless a person accepted it.
    pub findings: Vec<Finding>,
}

/// How a tool stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is what was approved.
    Approved,
    /// It was something else since.
    Changed {
        /// What it was when it last was something else.
        seen: Version,
        /// When it first was, in milliseconds.
        since_ms: u64,
        /// Whether it is what was approved again. That makes it no better: it may have been used
        /// in between.
        reverted: bool,
    },
    /// Nobody looked at it yet, and something about it is odd.
    Quarantined,
}

impl State {
    /// Returns the word used in files, events and API.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Changed { .. } => "changed",
            Self::Quarantined => "quarantined",
        }
    }
}

/// An entry as a list shows it.
#[derive(Clone, Debug)]
pub struct Sight {
    /// What it is.
    pub kind: PinKind,
    /// The server's own name of it, or its URI.
    pub tool: Arc<str>,
    /// The hash of its definition.
    pub hash: Hash,
    /// Its definition.
    pub definition: Bytes,
    /// What is odd about it.
    pub findings: Vec<Finding>,
}

/// An entry that stands otherwise than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// What it is.
    pub kind: PinKind,
    /// Its name or URI.
    pub tool: Arc<str>,
    /// How it stands now.
    pub state: &'static str,
}

/// An entry that a person accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// What it is.
    pub kind: PinKind,
    /// Its name or URI.
    pub tool: Arc<str>,
    /// The hash that counted before.
    pub old: Hash,
    /// The hash that counts now.
    pub new: Hash,
}

/// Why a tool was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unaccepted {
    /// No such tool was ever seen.
    Unknown,
    /// The definition is another by now than the one that was looked at.
    Other {
        /// What it is now.
        now: Hash,
    },
}

/// The pins of one server, by kind and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    tools: Entries,
    prompts: Entries,
    resources: Entries,
    templates: Entries,
    introduction: Entries,
}

type Entries = BTreeMap<Arc<str>, Pin>;

impl Pins {
    /// Takes up what was remembered.
    #[must_use]
    pub fn restore(pins: impl IntoIterator<Item = (PinKind, Arc<str>, Pin)>) -> Self {
        let mut restored = Self::default();
        for (kind, name, pin) in pins {
            restored.entries_mut(kind).insert(name, pin);
        }
        restored
    }

    /// Returns what is known of one entry.
    #[must_use]
    pub fn get(&self, kind: PinKind, name: &str) -> Option<&Pin> {
        self.entries(kind).get(name)
    }

    /// Returns all that is known of one kind, by name.
    pub fn iter(&self, kind: PinKind) -> impl Iterator<Item = (&Arc<str>, &Pin)> {
        self.entries(kind).iter()
    }

    /// Returns how many entries of all kinds stand in which state.
    #[must_use]
    pub fn count(&self, is: impl Fn(&State) -> bool) -> usize {
        self.all().filter(|pin| is(&pin.state)).count()
    }

    /// Whether seeing this would change anything.
    #[must_use]
    pub fn is_news(&self, sight: &Sight) -> bool {
        let entries = self.entries(sight.kind);
        let Some(pin) = entries.get(&sight.tool) else {
            return entries.len() < sight.kind.entries_max() && sight.tool.len() <= NAME_BYTES_MAX;
        };
        let is_other = sight.hash != pin.approved.hash;
        match &pin.state {
            // What is odd about it by now, since another server came, does not count: nobody may
            // have the tools of others withdrawn.
            State::Approved => is_other,
            State::Changed { seen, reverted, .. } => {
                *reverted == is_other || (is_other && sight.hash != seen.hash)
            }
            State::Quarantined => is_other,
        }
    }

    /// Takes in one list of the server. An entry that is not in it keeps its pin.
    pub fn see(&mut self, sights: &[Sight], now_ms: u64) -> Vec<News> {
        let mut news = Vec::new();
        let (mut tools, mut others) = (self.room(is_tool), self.room(is_other_kind));
        for sight in sights
            .iter()
            .filter(|sight| self.is_news(sight))
            .collect::<Vec<_>>()
        {
            let room = match sight.kind {
                PinKind::Tool => &mut tools,
                _ => &mut others,
            };
            let version = version(sight, now_ms, room);
            let entries = self.entries_mut(sight.kind);
            let Some(pin) = entries.get_mut(&sight.tool) else {
                if entries.len() < sight.kind.entries_max() {
                    entries.insert(Arc::clone(&sight.tool), first(sight, version));
                    news.extend((!sight.findings.is_empty()).then(|| told(sight, "quarantined")));
                }
                continue;
            };
            let before = pin.state.as_str();
            pin.see(sight, version);
            // A change of a change is told as well: whoever looked must look again.
            if pin.state.as_str() != before || matches!(pin.state, State::Changed { .. }) {
                news.push(told(sight, pin.state.as_str()));
            }
        }
        news
    }

    /// Approves an entry as it is now. With a hash, only where it is the one of what the entry is
    /// now, or of what counted before: that takes the last approval back.
    pub fn accept(
        &mut self,
        (kind, name): (PinKind, &str),
        hash: Option<&Hash>,
        now_ms: u64,
    ) -> Result<Option<Accepted>, Unaccepted> {
        let entries = self.entries_mut(kind);
        let (name, pin) = match entries.get_key_value(name) {
            Some((name, pin)) => (Arc::clone(name), pin),
            None => return Err(Unaccepted::Unknown),
        };
        let mut pin = pin.clone();
        let old = pin.approved.hash;
        let is_undone = hash.is_some_and(|hash| pin.undo(hash));
        if !is_undone && !pin.accept(hash, now_ms)? {
            return Ok(None);
        }
        let new = pin.approved.hash;
        entries.insert(Arc::clone(&name), pin);
        Ok(Some(Accepted {
            kind,
            tool: name,
            old,
            new,
        }))
    }

    /// Approves every entry of every kind as it is now.
    pub fn accept_all(&mut self, now_ms: u64) -> Vec<Accepted> {
        let mut accepted = Vec::new();
        for kind in PinKind::ALL {
            let names: Vec<_> = self.entries(kind).keys().cloned().collect();
            let each = names
                .iter()
                .map(|name| self.accept((kind, name), None, now_ms));
            accepted.extend(each.filter_map(|accepted| accepted.ok().flatten()));
        }
        accepted
    }

    /// Forgets entries that are not offered any more, where there is no room for others.
    pub fn make_room(&mut self, is_offered: impl Fn(PinKind, &str) -> bool) {
        for kind in PinKind::ALL {
            let entries = self.entries_mut(kind);
            if entries.len() >= kind.entries_max() {
                entries.retain(|name, _| is_offered(kind, name));
            }
        }
    }

    /// How many bytes of definitions of these kinds may still be remembered.
    fn room(&self, is_counted: fn(PinKind) -> bool) -> usize {
        let held = |version: &Version| version.definition.as_ref().map_or(0, Bytes::len);
        let kinds = PinKind::ALL.into_iter();
        let kinds = kinds.filter(|kind| is_counted(*kind));
        let each = kinds
            .flat_map(|kind| self.entries(kind).values())
            .map(|pin| {
                let seen = match &pin.state {
                    State::Changed { seen, .. } => held(seen),
                    State::Approved | State::Quarantined => 0,
                };
                held(&pin.approved) + pin.before.as_ref().map_or(0, held) + seen
            });
        DEFINITIONS_BYTES_MAX.saturating_sub(each.sum())
    }

    fn all(&self) -> impl Iterator<Item = &Pin> {
        let kinds = PinKind::ALL.into_iter();
        kinds.flat_map(|kind| self.entries(kind).values())
    }

    const fn entries(&self, kind: PinKind) -> &Entries {
        match kind {
            PinKind::Tool => &self.tools,
            PinKind::Prompt => &self.prompts,
            PinKind::Resource => &self.resources,
            PinKind::Template => &self.templates,
            PinKind::Introduction => &self.introduction,
        }
    }

    const fn entries_mut(&mut self, kind: PinKind) -> &mut Entries {
        match kind {
            PinKind::Tool => &mut self.tools,
            PinKind::Prompt => &mut self.prompts,
            PinKind::Resource => &mut self.resources,
            PinKind::Template => &mut self.templates,
            PinKind::Introduction => &mut self.introduction,
        }
    }
}

impl Pin {
    /// Returns what the tool was when it was last seen.
    #[must_use]
    pub const fn now(&self) -> &Version {
        match &self.state {
            State::Changed {
                seen,
                reverted: false,
                ..
            } => seen,
            State::Changed { .. } | State::Approved | State::Quarantined => &self.approved,
        }
    }

    fn see(&mut self, sight: &Sight, version: Version) {
        let is_other = sight.hash != self.approved.hash;
        match &mut self.state {
            State::Changed { seen, reverted, .. } => {
                *reverted = !is_other;
                if is_other {
                    *seen = version;
                }
            }
            state if is_other => {
                *state = State::Changed {
                    since_ms: version.at_ms,
                    seen: version,
                    reverted: false,
                };
            }
            State::Approved | State::Quarantined => {}
        }
        let is_known = self.reviewed && !is_other;
        self.findings = if is_known {
            Vec::new()
        } else {
            sight.findings.clone()
        };
    }

    /// Approves what the tool is now; `false` where a person did so before.
    fn accept(&mut self, hash: Option<&Hash>, now_ms: u64) -> Result<bool, Unaccepted> {
        let now = self.now().hash;
        if hash.is_some_and(|hash| *hash != now) {
            return Err(Unaccepted::Other { now });
        }
        let is_news = self.state != State::Approved || !self.reviewed;
        self.reviewed = true;
        self.findings.clear();
        let state = std::mem::replace(&mut self.state, State::Approved);
        if let State::Changed {
            mut seen,
            reverted: false,
            ..
        } = state
        {
            seen.at_ms = now_ms;
            self.before = Some(std::mem::replace(&mut self.approved, seen));
        }
        Ok(is_news)
    }

    /// Lets what counted before count again; `false` where that was not meant.
    fn undo(&mut self, hash: &Hash) -> bool {
        if *hash == self.now().hash {
            return false;
        }
        let Some(before) = self.before.take_if(|before| before.hash == *hash) else {
            return false;
        };
        let since_ms = self.approved.at_ms;
        let now = self.now().clone();
        self.approved = before;
        self.state = State::Changed {
            seen: now,
            since_ms,
            reverted: false,
        };
        true
    }
}

fn first(sight: &Sight, approved: Version) -> Pin {
    Pin {
        approved,
        before: None,
        reviewed: false,
        state: if sight.findings.is_empty() {
            State::Approved
        } else {
            State::Quarantined
        },
        findings: sight.findings.clone(),
    }
}

/// Keeps the text as long as there is room for it.
fn version(sight: &Sight, at_ms: u64, room: &mut usize) -> Version {
    let bytes = sight.definition.len();
    let fits = bytes <= DEFINITION_BYTES_MAX && bytes <= *room;
    if fits {
        *room -= bytes;
    }
    Version {
        hash: sight.hash,
        // Copied, since the page it stands in may be much longer.
        definition: fits.then(|| Bytes::copy_from_slice(&sight.definition)),
        at_ms,
    }
}

fn is_tool(kind: PinKind) -> bool {
    kind == PinKind::Tool
}

fn is_other_kind(kind: PinKind) -> bool {
    kind != PinKind::Tool
}

fn told(sight: &Sight, state: &'static str) -> News {
    News {
        kind: sight.kind,
        tool: Arc::clone(&sight.tool),
        state,
    }
}
