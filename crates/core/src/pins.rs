//! The pins of one server: which definitions of its tools were approved, and which are others now.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::lint::Finding;

/// Tools of one server that are remembered, gone ones included.
pub const TOOLS_MAX: usize = 2_048;

/// Tools with longer names are not remembered.
pub const NAME_BYTES_MAX: usize = 1_024;

/// A definition longer than this is remembered by its hash alone.
pub const DEFINITION_BYTES_MAX: usize = 128 * 1024;

/// Definitions of one server longer than this together are remembered by their hashes alone.
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

/// A tool as a list shows it.
#[derive(Clone, Debug)]
pub struct Sight {
    /// The server's own name of it.
    pub tool: Arc<str>,
    /// The hash of its definition.
    pub hash: Hash,
    /// Its definition.
    pub definition: Bytes,
    /// What is odd about it.
    pub findings: Vec<Finding>,
}

/// A tool that stands otherwise than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct News {
    /// The tool.
    pub tool: Arc<str>,
    /// How it stands now.
    pub state: &'static str,
}

/// A tool that a person accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The tool.
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

/// The pins of one server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    pins: BTreeMap<Arc<str>, Pin>,
}

impl Pins {
    /// Takes up what was remembered.
    #[must_use]
    pub fn restore(pins: impl IntoIterator<Item = (Arc<str>, Pin)>) -> Self {
        Self {
            pins: pins.into_iter().collect(),
        }
    }

    /// Returns what is known of one tool.
    #[must_use]
    pub fn get(&self, tool: &str) -> Option<&Pin> {
        self.pins.get(tool)
    }

    /// Returns all that is known, by tool.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Pin)> {
        self.pins.iter()
    }

    /// Returns how many tools stand in which state.
    #[must_use]
    pub fn count(&self, is: impl Fn(&State) -> bool) -> usize {
        self.pins.values().filter(|pin| is(&pin.state)).count()
    }

    /// Whether seeing this would change anything.
    #[must_use]
    pub fn is_news(&self, sight: &Sight) -> bool {
        let Some(pin) = self.pins.get(&sight.tool) else {
            return self.pins.len() < TOOLS_MAX && sight.tool.len() <= NAME_BYTES_MAX;
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

    /// Takes in one list of the server. A tool that is not in it keeps its pin.
    pub fn see(&mut self, sights: &[Sight], now_ms: u64) -> Vec<News> {
        let mut news = Vec::new();
        let mut room = self.room();
        for sight in sights
            .iter()
            .filter(|sight| self.is_news(sight))
            .collect::<Vec<_>>()
        {
            let version = version(sight, now_ms, &mut room);
            let Some(pin) = self.pins.get_mut(&sight.tool) else {
                if self.pins.len() < TOOLS_MAX {
                    self.pins
                        .insert(Arc::clone(&sight.tool), first(sight, version));
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

    /// Approves a tool as it is now. With a hash, only where it is the one of what the tool is
    /// now, or of what counted before: that takes the last approval back.
    pub fn accept(
        &mut self,
        tool: &str,
        hash: Option<&Hash>,
        now_ms: u64,
    ) -> Result<Option<Accepted>, Unaccepted> {
        let (name, pin) = match self.pins.get_key_value(tool) {
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
        self.pins.insert(Arc::clone(&name), pin);
        Ok(Some(Accepted {
            tool: name,
            old,
            new,
        }))
    }

    /// Approves every tool as it is now.
    pub fn accept_all(&mut self, now_ms: u64) -> Vec<Accepted> {
        let tools: Vec<_> = self.pins.keys().cloned().collect();
        let accepted = tools.iter().map(|tool| self.accept(tool, None, now_ms));
        accepted
            .filter_map(|accepted| accepted.ok().flatten())
            .collect()
    }

    /// Forgets tools that are not offered any more, where there is no room for others.
    pub fn make_room(&mut self, is_offered: impl Fn(&str) -> bool) {
        if self.pins.len() >= TOOLS_MAX {
            self.pins.retain(|tool, _| is_offered(tool));
        }
    }

    /// How many bytes of definitions may still be remembered.
    fn room(&self) -> usize {
        let held = |version: &Version| version.definition.as_ref().map_or(0, Bytes::len);
        let each = self.pins.values().map(|pin| {
            let seen = match &pin.state {
                State::Changed { seen, .. } => held(seen),
                State::Approved | State::Quarantined => 0,
            };
            held(&pin.approved) + pin.before.as_ref().map_or(0, held) + seen
        });
        DEFINITIONS_BYTES_MAX.saturating_sub(each.sum())
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

fn told(sight: &Sight, state: &'static str) -> News {
    News {
        tool: Arc::clone(&sight.tool),
        state,
    }
}
