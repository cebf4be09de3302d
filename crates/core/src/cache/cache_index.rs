//! Index of cached results by server and subject, with statistics.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::{CacheScope, CacheSubject, CacheView, PurgeScope, ResultKey};
use crate::call::FeatureKind;

/// Cacheable subjects without results in the index; the longest idle is evicted first.
const IDLE_MAX: usize = 4_096;

type NameMap<T> = HashMap<Arc<str>, T, RandomState>;

/// Cache state of one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubjectSummary {
    /// The scope of the last result, if cacheable.
    pub last_scope: Option<CacheScope>,
    /// Whether public results are cached.
    pub has_public: bool,
    /// Whether private results are cached.
    pub has_private: bool,
}

impl SubjectSummary {
    /// Whether a cached result or a flight of this scope may exist.
    #[must_use]
    pub fn is_relevant(self, sharing: CacheScope) -> bool {
        let has_entries = match sharing {
            CacheScope::Public => self.has_public,
            CacheScope::Private => self.has_private,
        };
        has_entries || self.last_scope == Some(sharing)
    }
}

/// An owned [`CacheSubject`].
#[derive(Clone, Debug)]
pub(super) struct SubjectKey {
    pub(super) server: Arc<str>,
    kind: FeatureKind,
    name: Arc<str>,
}

impl SubjectKey {
    fn as_subject(&self) -> CacheSubject<'_> {
        CacheSubject {
            server: &self.server,
            kind: self.kind,
            name: &self.name,
        }
    }
}

/// The index of all servers.
#[derive(Debug, Default)]
pub(super) struct CacheIndex {
    servers: NameMap<ServerIndex>,
    /// Counts purges.
    purge_epoch: u64,
    /// The epoch of the last removed server: an unknown server stores no older results.
    epoch_floor: u64,
    subject_count: usize,
    idle: BTreeMap<u64, SubjectKey>,
    /// The last number in `idle`.
    last_idle_number: u64,
}

/// The index of one server.
#[derive(Debug)]
struct ServerIndex {
    subjects: [NameMap<SubjectEntry>; 3],
    /// For each kind, the epoch of the last purge.
    purged_at: [u64; 3],
    view: CacheView,
}

/// One tool, prompt or resource.
#[derive(Debug, Default)]
struct SubjectEntry {
    last_scope: Option<CacheScope>,
    /// The keys of cached results, oldest first.
    result_keys: BTreeSet<(u64, ResultKey)>,
    public_count: usize,
    /// The number in `CacheIndex::idle`.
    idle_number: Option<u64>,
}

impl CacheIndex {
    pub(super) const fn purge_epoch(&self) -> u64 {
        self.purge_epoch
    }

    pub(super) const fn subject_count(&self) -> usize {
        self.subject_count
    }

    pub(super) fn subject_summary(&self, subject: CacheSubject<'_>) -> Option<SubjectSummary> {
        let entry = self.subject(subject)?;
        Some(SubjectSummary {
            last_scope: entry.last_scope,
            has_public: entry.public_count > 0,
            has_private: entry.result_keys.len() > entry.public_count,
        })
    }

    /// Whether no purge since `epoch` covers this subject.
    pub(super) fn is_current_epoch(&self, subject: CacheSubject<'_>, epoch: u64) -> bool {
        let Some(at) = kind_index(subject.kind) else {
            return false;
        };
        let part = self.servers.get(subject.server);
        let purged = part.and_then(|part| part.purged_at.get(at).copied());
        epoch >= purged.unwrap_or(self.epoch_floor)
    }

    pub(super) fn result_count(&self, subject: CacheSubject<'_>) -> usize {
        self.subject(subject)
            .map_or(0, |entry| entry.result_keys.len())
    }

    pub(super) fn oldest_key(&self, subject: CacheSubject<'_>) -> Option<ResultKey> {
        let (_, key) = self.subject(subject)?.result_keys.first()?;
        Some(*key)
    }

    /// Returns the oldest keys beyond the limit per subject.
    pub(super) fn excess_keys(&self, limit: usize) -> Vec<ResultKey> {
        let parts = self.servers.values().flat_map(|part| &part.subjects);
        let things = parts.flat_map(HashMap::values);
        let beyond = things.flat_map(|entry| {
            let many = entry.result_keys.len().saturating_sub(limit);
            entry.result_keys.iter().take(many).map(|(_, key)| *key)
        });
        beyond.collect()
    }

    /// Marks a subject as cacheable.
    pub(super) fn mark_cacheable(&mut self, subject: CacheSubject<'_>, sharing: CacheScope) {
        if let Some(entry) = self.subject_or_insert(subject) {
            entry.last_scope = Some(sharing);
        }
        self.update_idle(subject);
    }

    pub(super) fn mark_uncacheable(&mut self, subject: CacheSubject<'_>) {
        if let Some(entry) = self.subject_mut(subject) {
            entry.last_scope = None;
        }
        self.update_idle(subject);
    }

    pub(super) fn add_result(
        &mut self,
        subject: CacheSubject<'_>,
        number: u64,
        key: ResultKey,
        sharing: CacheScope,
        bytes: usize,
    ) -> SubjectKey {
        if let Some(entry) = self.subject_or_insert(subject) {
            entry.result_keys.insert((number, key));
            entry.public_count += usize::from(sharing == CacheScope::Public);
        }
        self.update_idle(subject);
        if let Some(part) = self.servers.get_mut(subject.server) {
            part.view.entries += 1;
            part.view.bytes += bytes;
        }
        SubjectKey {
            server: Arc::clone(subject.server),
            kind: subject.kind,
            name: Arc::clone(subject.name),
        }
    }

    pub(super) fn remove_result(
        &mut self,
        subject_key: &SubjectKey,
        number: u64,
        key: ResultKey,
        sharing: CacheScope,
        bytes: usize,
    ) {
        let subject = subject_key.as_subject();
        if let Some(entry) = self.subject_mut(subject) {
            entry.result_keys.remove(&(number, key));
            entry.public_count -= usize::from(sharing == CacheScope::Public);
        }
        self.update_idle(subject);
        if let Some(part) = self.servers.get_mut(subject.server) {
            part.view.entries -= 1;
            part.view.bytes -= bytes;
        }
    }

    /// Starts a new epoch and returns the purged keys.
    pub(super) fn purge_server(
        &mut self,
        server: &Arc<str>,
        scope: PurgeScope<'_>,
    ) -> Vec<ResultKey> {
        self.purge_epoch += 1;
        let epoch = self.purge_epoch;
        let part = self.server_or_insert(server);
        let mut keys = Vec::new();
        for kind in CACHEABLE_KINDS
            .into_iter()
            .filter(|kind| scope.covers_kind(*kind))
        {
            let Some(at) = kind_index(kind) else { continue };
            if let Some(purged) = part.purged_at.get_mut(at) {
                *purged = epoch;
            }
            let subjects = part.subjects.get(at).into_iter().flatten();
            let matching = subjects.filter(|(name, _)| match scope {
                PurgeScope::All | PurgeScope::Kind(_) => true,
                PurgeScope::Resource(uri) => ***name == *uri,
                PurgeScope::Matching(globs) => {
                    globs.iter().any(|glob| glob.matches_feature(server, name))
                }
            });
            let results = matching.flat_map(|(_, entry)| entry.result_keys.iter());
            keys.extend(results.map(|(_, key)| *key));
        }
        keys
    }

    /// Removes a server without results.
    pub(super) fn forget_server(&mut self, server: &str) {
        self.epoch_floor = self.purge_epoch;
        let Some(part) = self.servers.remove(server) else {
            return;
        };
        for entry in part.subjects.iter().flat_map(HashMap::values) {
            self.subject_count -= 1;
            if let Some(idle) = entry.idle_number {
                self.idle.remove(&idle);
            }
        }
    }

    pub(super) fn count_hit(&mut self, server: &str) {
        if let Some(part) = self.servers.get_mut(server) {
            part.view.hits += 1;
        }
    }

    pub(super) fn count_miss(&mut self, server: &str) {
        if let Some(part) = self.servers.get_mut(server) {
            part.view.misses += 1;
        }
    }

    pub(super) fn count_eviction(&mut self, server: &str) {
        if let Some(part) = self.servers.get_mut(server) {
            part.view.evictions += 1;
        }
    }

    pub(super) fn server_view(&self, server: &str) -> CacheView {
        let part = self.servers.get(server);
        part.map(|part| part.view).unwrap_or_default()
    }

    pub(super) fn total_view(&self) -> CacheView {
        let views = self.servers.values().map(|part| part.view);
        views.fold(CacheView::default(), |sum, view| CacheView {
            entries: sum.entries + view.entries,
            bytes: sum.bytes + view.bytes,
            hits: sum.hits + view.hits,
            misses: sum.misses + view.misses,
            evictions: sum.evictions + view.evictions,
        })
    }

    /// Updates the idle list after a change of a subject, and drops useless subjects.
    fn update_idle(&mut self, subject: CacheSubject<'_>) {
        let next = self.last_idle_number + 1;
        let Some(entry) = self.subject_mut(subject) else {
            return;
        };
        let is_idle = entry.result_keys.is_empty();
        if is_idle && entry.last_scope.is_none() {
            let idle_number = entry.idle_number;
            self.drop_subject(subject);
            idle_number.map(|idle_number| self.idle.remove(&idle_number));
            return;
        }
        match (is_idle, entry.idle_number) {
            (true, None) => {
                entry.idle_number = Some(next);
                self.last_idle_number = next;
                let subject_key = SubjectKey {
                    server: Arc::clone(subject.server),
                    kind: subject.kind,
                    name: Arc::clone(subject.name),
                };
                self.idle.insert(next, subject_key);
                self.evict_idle();
            }
            (false, Some(idle_number)) => {
                entry.idle_number = None;
                self.idle.remove(&idle_number);
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    fn evict_idle(&mut self) {
        while self.idle.len() > IDLE_MAX
            && let Some((_, subject_key)) = self.idle.pop_first()
        {
            self.drop_subject(subject_key.as_subject());
        }
    }

    fn drop_subject(&mut self, subject: CacheSubject<'_>) {
        let things = kind_index(subject.kind).and_then(|at| {
            let part = self.servers.get_mut(subject.server)?;
            part.subjects.get_mut(at)
        });
        if things.and_then(|all| all.remove(subject.name)).is_some() {
            self.subject_count -= 1;
        }
    }

    fn subject(&self, subject: CacheSubject<'_>) -> Option<&SubjectEntry> {
        let part = self.servers.get(subject.server)?;
        part.subjects
            .get(kind_index(subject.kind)?)?
            .get(subject.name)
    }

    fn subject_mut(&mut self, subject: CacheSubject<'_>) -> Option<&mut SubjectEntry> {
        let part = self.servers.get_mut(subject.server)?;
        part.subjects
            .get_mut(kind_index(subject.kind)?)?
            .get_mut(subject.name)
    }

    fn subject_or_insert(&mut self, subject: CacheSubject<'_>) -> Option<&mut SubjectEntry> {
        let at = kind_index(subject.kind)?;
        if self.subject(subject).is_none() {
            self.subject_count += 1;
        }
        let things = self.server_or_insert(subject.server).subjects.get_mut(at)?;
        Some(things.entry(Arc::clone(subject.name)).or_default())
    }

    fn server_or_insert(&mut self, server: &Arc<str>) -> &mut ServerIndex {
        let floor = self.epoch_floor;
        self.servers
            .entry(Arc::clone(server))
            .or_insert_with(|| ServerIndex {
                subjects: Default::default(),
                purged_at: [floor; 3],
                view: CacheView::default(),
            })
    }
}

/// The kinds with cacheable results.
const CACHEABLE_KINDS: [FeatureKind; 3] = [
    FeatureKind::Tool,
    FeatureKind::Prompt,
    FeatureKind::Resource,
];

const fn kind_index(kind: FeatureKind) -> Option<usize> {
    match kind {
        FeatureKind::Tool => Some(0),
        FeatureKind::Prompt => Some(1),
        FeatureKind::Resource => Some(2),
        FeatureKind::Task => None,
    }
}
