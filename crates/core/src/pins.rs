//! Pins of one server: approved definitions, and deviations from approved definitions.

mod pin_kind;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::lint::LintFinding;

pub use pin_kind::PinKind;

/// Pinned tools per server, including removed tools.
pub const TOOLS_MAX: usize = 32_768;

/// Pinned prompts per server, including removed prompts; the same limit applies to templates.
pub const PROMPTS_MAX: usize = 2_048;

/// Pinned resources per server, including removed resources.
pub const RESOURCES_MAX: usize = 8_192;

/// Entries with longer names or URIs are not pinned.
pub const NAME_BYTES_MAX: usize = 1_024;

/// Longer definitions are pinned by hash only.
pub const DEFINITION_BYTES_MAX: usize = 128 * 1024;

/// Total bytes of a server's tool definitions; further definitions are pinned by hash only. All
/// remaining kinds share a second budget of the same size.
pub const DEFINITIONS_BYTES_MAX: usize = 4 * 1024 * 1024;

/// SHA-256 of a definition in canonical form.
pub type DefinitionHash = [u8; 32];

/// Parses a hash in hexadecimal form.
#[must_use]
pub fn parse_hash(text: &str) -> Option<DefinitionHash> {
    let mut hash = [0; 32];
    let digits: Vec<_> = text.chars().map(|digit| digit.to_digit(16)).collect();
    if digits.len() != 64 {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let [Some(high), Some(low)] = pair else {
            return None;
        };
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(hash)
}

/// One definition at the time of observation or approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinitionVersion {
    /// The hash.
    pub hash: DefinitionHash,
    /// The text as sent by the server; absent if too long.
    pub definition: Option<Bytes>,
    /// Wall-clock time in milliseconds.
    pub at_ms: u64,
}

/// The pin of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The approved definition.
    pub approved: DefinitionVersion,
    /// The previously approved definition, replaced by a manual acceptance.
    pub previous: Option<DefinitionVersion>,
    /// Whether a person accepted the definition; otherwise approved as the first seen.
    pub is_reviewed: bool,
    /// The state of the entry.
    pub state: PinState,
    /// Lint findings of the current definition, unless a person accepted the definition.
    pub findings: Vec<LintFinding>,
}

/// State of a pinned entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinState {
    /// The current definition is approved.
    Approved,
    /// The definition changed since approval.
    Changed {
        /// The last deviating definition.
        seen: DefinitionVersion,
        /// Time of the first deviation in milliseconds.
        since_ms: u64,
        /// Whether the server reverted to the approved definition. The state stays `Changed`,
        /// because the deviating definition may have been used meanwhile.
        reverted: bool,
    },
    /// Not reviewed, with lint findings.
    Quarantined,
}

impl PinState {
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

/// An entry of a list.
#[derive(Clone, Debug)]
pub struct ListedDefinition {
    /// The kind.
    pub kind: PinKind,
    /// The upstream name or URI.
    pub name: Arc<str>,
    /// The hash of the definition.
    pub hash: DefinitionHash,
    /// The definition.
    pub definition: Bytes,
    /// Lint findings.
    pub findings: Vec<LintFinding>,
}

/// A change of state of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinChange {
    /// The kind.
    pub kind: PinKind,
    /// The name or URI.
    pub name: Arc<str>,
    /// The new state.
    pub state: &'static str,
}

/// A manual acceptance of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinAcceptance {
    /// The kind.
    pub kind: PinKind,
    /// The name or URI.
    pub name: Arc<str>,
    /// The previously approved hash.
    pub old_hash: DefinitionHash,
    /// The newly approved hash.
    pub new_hash: DefinitionHash,
}

/// Why an entry was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinAcceptError {
    /// The entry was never seen.
    Unknown,
    /// The definition changed after the review.
    Changed {
        /// The current hash.
        current_hash: DefinitionHash,
    },
}

/// The pins of one server, by kind and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerPins {
    tools: PinMap,
    prompts: PinMap,
    resources: PinMap,
    templates: PinMap,
    introduction: PinMap,
}

type PinMap = BTreeMap<Arc<str>, Pin>;

impl ServerPins {
    /// Restores persisted pins.
    #[must_use]
    pub fn from_entries(pins: impl IntoIterator<Item = (PinKind, Arc<str>, Pin)>) -> Self {
        let mut restored = Self::default();
        for (kind, name, pin) in pins {
            restored.entries_mut(kind).insert(name, pin);
        }
        restored
    }

    /// Returns the pin of an entry.
    #[must_use]
    pub fn get(&self, kind: PinKind, name: &str) -> Option<&Pin> {
        self.entries(kind).get(name)
    }

    /// Iterates over the pins of one kind, by name.
    pub fn iter(&self, kind: PinKind) -> impl Iterator<Item = (&Arc<str>, &Pin)> {
        self.entries(kind).iter()
    }

    /// Counts the entries of all kinds with a matching state.
    #[must_use]
    pub fn count_states(&self, predicate: impl Fn(&PinState) -> bool) -> usize {
        self.all_pins().filter(|pin| predicate(&pin.state)).count()
    }

    /// Whether observing this entry would change anything.
    #[must_use]
    pub fn is_new(&self, entry: &ListedDefinition) -> bool {
        let entries = self.entries(entry.kind);
        let Some(pin) = entries.get(&entry.name) else {
            return entries.len() < entry.kind.entries_max() && entry.name.len() <= NAME_BYTES_MAX;
        };
        let is_other = entry.hash != pin.approved.hash;
        match &pin.state {
            // New findings of an approved definition are ignored: a new server must not be able to
            // have tools of existing servers withdrawn.
            PinState::Approved => is_other,
            PinState::Changed { seen, reverted, .. } => {
                *reverted == is_other || (is_other && entry.hash != seen.hash)
            }
            PinState::Quarantined => is_other,
        }
    }

    /// Observes one list of the server. Entries missing from the list keep their pins.
    pub fn observe_list(&mut self, listed: &[ListedDefinition], now_ms: u64) -> Vec<PinChange> {
        let mut changes = Vec::new();
        let (mut tools, mut others) = (
            self.free_definition_bytes(is_tool_kind),
            self.free_definition_bytes(is_other_kind),
        );
        for entry in listed
            .iter()
            .filter(|entry| self.is_new(entry))
            .collect::<Vec<_>>()
        {
            let room = match entry.kind {
                PinKind::Tool => &mut tools,
                _ => &mut others,
            };
            let version = capture_version(entry, now_ms, room);
            let entries = self.entries_mut(entry.kind);
            let Some(pin) = entries.get_mut(&entry.name) else {
                if entries.len() < entry.kind.entries_max() {
                    entries.insert(Arc::clone(&entry.name), new_pin(entry, version));
                    changes.extend(
                        (!entry.findings.is_empty()).then(|| to_pin_change(entry, "quarantined")),
                    );
                }
                continue;
            };
            let before = pin.state.as_str();
            pin.observe(entry, version);
            // Every further change is reported as well, since an earlier review is outdated.
            if pin.state.as_str() != before || matches!(pin.state, PinState::Changed { .. }) {
                changes.push(to_pin_change(entry, pin.state.as_str()));
            }
        }
        changes
    }

    /// Accepts the current definition of an entry. A hash restricts the acceptance to the current
    /// definition, or reverts to the previously approved definition.
    pub fn accept_definition(
        &mut self,
        kind: PinKind,
        name: &str,
        hash: Option<&DefinitionHash>,
        now_ms: u64,
    ) -> Result<Option<PinAcceptance>, PinAcceptError> {
        let entries = self.entries_mut(kind);
        let (name, pin) = match entries.get_key_value(name) {
            Some((name, pin)) => (Arc::clone(name), pin),
            None => return Err(PinAcceptError::Unknown),
        };
        let mut pin = pin.clone();
        let old = pin.approved.hash;
        let is_undone = hash.is_some_and(|hash| pin.revert_to(hash));
        if !is_undone && !pin.accept_current(hash, now_ms)? {
            return Ok(None);
        }
        let new = pin.approved.hash;
        entries.insert(Arc::clone(&name), pin);
        Ok(Some(PinAcceptance {
            kind,
            name,
            old_hash: old,
            new_hash: new,
        }))
    }

    /// Accepts the current definitions of all entries.
    pub fn accept_all(&mut self, now_ms: u64) -> Vec<PinAcceptance> {
        let mut accepted = Vec::new();
        for kind in PinKind::ALL {
            let names: Vec<_> = self.entries(kind).keys().cloned().collect();
            let each = names
                .iter()
                .map(|name| self.accept_definition(kind, name, None, now_ms));
            accepted.extend(each.filter_map(|accepted| accepted.ok().flatten()));
        }
        accepted
    }

    /// Evicts entries no longer offered, for kinds at their limit.
    pub fn evict_unlisted(&mut self, is_offered: impl Fn(PinKind, &str) -> bool) {
        for kind in PinKind::ALL {
            let entries = self.entries_mut(kind);
            if entries.len() >= kind.entries_max() {
                entries.retain(|name, _| is_offered(kind, name));
            }
        }
    }

    /// Returns the definition bytes left for these kinds.
    fn free_definition_bytes(&self, is_counted: fn(PinKind) -> bool) -> usize {
        let version_bytes =
            |version: &DefinitionVersion| version.definition.as_ref().map_or(0, Bytes::len);
        let kinds = PinKind::ALL.into_iter();
        let kinds = kinds.filter(|kind| is_counted(*kind));
        let each = kinds
            .flat_map(|kind| self.entries(kind).values())
            .map(|pin| {
                let seen = match &pin.state {
                    PinState::Changed { seen, .. } => version_bytes(seen),
                    PinState::Approved | PinState::Quarantined => 0,
                };
                version_bytes(&pin.approved) + pin.previous.as_ref().map_or(0, version_bytes) + seen
            });
        DEFINITIONS_BYTES_MAX.saturating_sub(each.sum())
    }

    fn all_pins(&self) -> impl Iterator<Item = &Pin> {
        let kinds = PinKind::ALL.into_iter();
        kinds.flat_map(|kind| self.entries(kind).values())
    }

    const fn entries(&self, kind: PinKind) -> &PinMap {
        match kind {
            PinKind::Tool => &self.tools,
            PinKind::Prompt => &self.prompts,
            PinKind::Resource => &self.resources,
            PinKind::Template => &self.templates,
            PinKind::Introduction => &self.introduction,
        }
    }

    const fn entries_mut(&mut self, kind: PinKind) -> &mut PinMap {
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
    /// Returns the definition at the last observation.
    #[must_use]
    pub const fn current(&self) -> &DefinitionVersion {
        match &self.state {
            PinState::Changed {
                seen,
                reverted: false,
                ..
            } => seen,
            PinState::Changed { .. } | PinState::Approved | PinState::Quarantined => &self.approved,
        }
    }

    fn observe(&mut self, entry: &ListedDefinition, version: DefinitionVersion) {
        let is_other = entry.hash != self.approved.hash;
        match &mut self.state {
            PinState::Changed { seen, reverted, .. } => {
                *reverted = !is_other;
                if is_other {
                    *seen = version;
                }
            }
            state if is_other => {
                *state = PinState::Changed {
                    since_ms: version.at_ms,
                    seen: version,
                    reverted: false,
                };
            }
            PinState::Approved | PinState::Quarantined => {}
        }
        let is_known = self.is_reviewed && !is_other;
        self.findings = if is_known {
            Vec::new()
        } else {
            entry.findings.clone()
        };
    }

    /// Approves the current definition; returns `false` if already reviewed.
    fn accept_current(
        &mut self,
        hash: Option<&DefinitionHash>,
        now_ms: u64,
    ) -> Result<bool, PinAcceptError> {
        let current_hash = self.current().hash;
        if hash.is_some_and(|hash| *hash != current_hash) {
            return Err(PinAcceptError::Changed { current_hash });
        }
        let is_news = self.state != PinState::Approved || !self.is_reviewed;
        self.is_reviewed = true;
        self.findings.clear();
        let state = std::mem::replace(&mut self.state, PinState::Approved);
        if let PinState::Changed {
            mut seen,
            reverted: false,
            ..
        } = state
        {
            seen.at_ms = now_ms;
            self.previous = Some(std::mem::replace(&mut self.approved, seen));
        }
        Ok(is_news)
    }

    /// Reverts to the previously approved definition; returns `false` if the hash does not match.
    fn revert_to(&mut self, hash: &DefinitionHash) -> bool {
        if *hash == self.current().hash {
            return false;
        }
        let Some(before) = self.previous.take_if(|before| before.hash == *hash) else {
            return false;
        };
        let since_ms = self.approved.at_ms;
        let now = self.current().clone();
        self.approved = before;
        self.state = PinState::Changed {
            seen: now,
            since_ms,
            reverted: false,
        };
        true
    }
}

fn new_pin(entry: &ListedDefinition, approved: DefinitionVersion) -> Pin {
    Pin {
        approved,
        previous: None,
        is_reviewed: false,
        state: if entry.findings.is_empty() {
            PinState::Approved
        } else {
            PinState::Quarantined
        },
        findings: entry.findings.clone(),
    }
}

/// Keeps the text while the byte budget lasts.
fn capture_version(entry: &ListedDefinition, at_ms: u64, room: &mut usize) -> DefinitionVersion {
    let bytes = entry.definition.len();
    let fits = bytes <= DEFINITION_BYTES_MAX && bytes <= *room;
    if fits {
        *room -= bytes;
    }
    DefinitionVersion {
        hash: entry.hash,
        // Copied, because the enclosing page may be much larger.
        definition: fits.then(|| Bytes::copy_from_slice(&entry.definition)),
        at_ms,
    }
}

fn is_tool_kind(kind: PinKind) -> bool {
    kind == PinKind::Tool
}

fn is_other_kind(kind: PinKind) -> bool {
    kind != PinKind::Tool
}

fn to_pin_change(entry: &ListedDefinition, state: &'static str) -> PinChange {
    PinChange {
        kind: entry.kind,
        name: Arc::clone(&entry.name),
        state,
    }
}
