//! Which answers belong to which thing of which server, and what is counted of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::{About, CacheView, Key, Sharing, Stale};
use crate::call::Kind;

/// Things without an answer of which is remembered that theirs can be kept; the longest idle is
/// forgotten first.
const IDLE_MAX: usize = 4_096;

type Map<T> = HashMap<Arc<str>, T, RandomState>;

/// What is known of the answers of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// What its last answer was, where that could be kept.
    pub gives: Option<Sharing>,
    /// Whether answers for all are kept.
    pub public: bool,
    /// Whether answers for one principal are kept.
    pub private: bool,
}

impl Known {
    /// Whether answers of this kind matter, or one may be waited for.
    #[must_use]
    pub fn matters(self, sharing: Sharing) -> bool {
        let kept = match sharing {
            Sharing::Public => self.public,
            Sharing::Private => self.private,
        };
        kept || self.gives == Some(sharing)
    }
}

/// Where an answer belongs.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) server: Arc<str>,
    kind: Kind,
    name: Arc<str>,
}

impl Place {
    fn about(&self) -> About<'_> {
        About {
            server: &self.server,
            kind: self.kind,
            name: &self.name,
        }
    }
}

/// All servers.
#[derive(Debug, Default)]
pub(super) struct Shelves {
    servers: Map<Part>,
    /// Counts purges.
    era: u64,
    /// The era in which a server was last forgotten: of one that is not known, nothing older may
    /// be kept.
    floor: u64,
    known: usize,
    idle: BTreeMap<u64, Place>,
    /// Numbers the times at which something became idle.
    idled: u64,
}

/// One server.
#[derive(Debug)]
struct Part {
    things: [Map<Thing>; 3],
    /// For each kind, the era in which answers of it were last purged.
    purged: [u64; 3],
    view: CacheView,
}

/// One tool, prompt or resource.
#[derive(Debug, Default)]
struct Thing {
    gives: Option<Sharing>,
    /// Its answers, the oldest first.
    answers: BTreeSet<(u64, Key)>,
    public: usize,
    /// Under which number it is idle.
    idle: Option<u64>,
}

impl Shelves {
    pub(super) const fn era(&self) -> u64 {
        self.era
    }

    pub(super) const fn known(&self) -> usize {
        self.known
    }

    pub(super) fn knows(&self, about: About<'_>) -> Option<Known> {
        let thing = self.thing(about)?;
        Some(Known {
            gives: thing.gives,
            public: thing.public > 0,
            private: thing.answers.len() > thing.public,
        })
    }

    /// Whether nothing was purged since that era that answers of this thing may be among.
    pub(super) fn is_current(&self, about: About<'_>, era: u64) -> bool {
        let Some(at) = index(about.kind) else {
            return false;
        };
        let part = self.servers.get(about.server);
        let purged = part.and_then(|part| part.purged.get(at).copied());
        era >= purged.unwrap_or(self.floor)
    }

    pub(super) fn len(&self, about: About<'_>) -> usize {
        self.thing(about).map_or(0, |thing| thing.answers.len())
    }

    pub(super) fn oldest(&self, about: About<'_>) -> Option<Key> {
        let (_, key) = self.thing(about)?.answers.first()?;
        Some(*key)
    }

    /// Returns the answers that are too many for one thing.
    pub(super) fn beyond(&self, most: usize) -> Vec<Key> {
        let parts = self.servers.values().flat_map(|part| &part.things);
        let things = parts.flat_map(HashMap::values);
        let beyond = things.flat_map(|thing| {
            let many = thing.answers.len().saturating_sub(most);
            thing.answers.iter().take(many).map(|(_, key)| *key)
        });
        beyond.collect()
    }

    /// Notes that the answers of a thing can be kept.
    pub(super) fn hinted(&mut self, about: About<'_>, sharing: Sharing) {
        if let Some(thing) = self.thing_or_new(about) {
            thing.gives = Some(sharing);
        }
        self.settle(about);
    }

    pub(super) fn unhinted(&mut self, about: About<'_>) {
        if let Some(thing) = self.thing_mut(about) {
            thing.gives = None;
        }
        self.settle(about);
    }

    pub(super) fn put(
        &mut self,
        about: About<'_>,
        answer: (u64, Key),
        sharing: Sharing,
        bytes: usize,
    ) -> Place {
        if let Some(thing) = self.thing_or_new(about) {
            thing.answers.insert(answer);
            thing.public += usize::from(sharing == Sharing::Public);
        }
        self.settle(about);
        if let Some(part) = self.servers.get_mut(about.server) {
            part.view.entries += 1;
            part.view.bytes += bytes;
        }
        Place {
            server: Arc::clone(about.server),
            kind: about.kind,
            name: Arc::clone(about.name),
        }
    }

    pub(super) fn take(
        &mut self,
        place: &Place,
        answer: (u64, Key),
        sharing: Sharing,
        bytes: usize,
    ) {
        let about = place.about();
        if let Some(thing) = self.thing_mut(about) {
            thing.answers.remove(&answer);
            thing.public -= usize::from(sharing == Sharing::Public);
        }
        self.settle(about);
        if let Some(part) = self.servers.get_mut(about.server) {
            part.view.entries -= 1;
            part.view.bytes -= bytes;
        }
    }

    /// Begins an era and returns the answers that are no longer good.
    pub(super) fn purge(&mut self, server: &Arc<str>, stale: Stale<'_>) -> Vec<Key> {
        self.era += 1;
        let era = self.era;
        let part = self.part(server);
        let mut keys = Vec::new();
        for kind in KINDS.into_iter().filter(|kind| stale.may_mean(*kind)) {
            let Some(at) = index(kind) else { continue };
            if let Some(purged) = part.purged.get_mut(at) {
                *purged = era;
            }
            let things = part.things.get(at).into_iter().flatten();
            let meant = things.filter(|(name, _)| match stale {
                Stale::All | Stale::Of(_) => true,
                Stale::Resource(uri) => ***name == *uri,
                Stale::Named(globs) => globs.iter().any(|glob| glob.fits(server, name)),
            });
            let answers = meant.flat_map(|(_, thing)| thing.answers.iter());
            keys.extend(answers.map(|(_, key)| *key));
        }
        keys
    }

    /// Forgets a server of which no answer is left.
    pub(super) fn forget(&mut self, server: &str) {
        self.floor = self.era;
        let Some(part) = self.servers.remove(server) else {
            return;
        };
        for thing in part.things.iter().flat_map(HashMap::values) {
            self.known -= 1;
            if let Some(idle) = thing.idle {
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

    pub(super) fn view_of(&self, server: &str) -> CacheView {
        let part = self.servers.get(server);
        part.map(|part| part.view).unwrap_or_default()
    }

    pub(super) fn view(&self) -> CacheView {
        let views = self.servers.values().map(|part| part.view);
        views.fold(CacheView::default(), |sum, view| CacheView {
            entries: sum.entries + view.entries,
            bytes: sum.bytes + view.bytes,
            hits: sum.hits + view.hits,
            misses: sum.misses + view.misses,
            evictions: sum.evictions + view.evictions,
        })
    }

    /// Files a thing as what it is now: with answers, idle, or not worth remembering.
    fn settle(&mut self, about: About<'_>) {
        let next = self.idled + 1;
        let Some(thing) = self.thing_mut(about) else {
            return;
        };
        let is_idle = thing.answers.is_empty();
        if is_idle && thing.gives.is_none() {
            let was = thing.idle;
            self.drop_thing(about);
            was.map(|was| self.idle.remove(&was));
            return;
        }
        match (is_idle, thing.idle) {
            (true, None) => {
                thing.idle = Some(next);
                self.idled = next;
                let place = Place {
                    server: Arc::clone(about.server),
                    kind: about.kind,
                    name: Arc::clone(about.name),
                };
                self.idle.insert(next, place);
                self.bound();
            }
            (false, Some(was)) => {
                thing.idle = None;
                self.idle.remove(&was);
            }
            (true, Some(_)) | (false, None) => {}
        }
    }

    fn bound(&mut self) {
        while self.idle.len() > IDLE_MAX
            && let Some((_, place)) = self.idle.pop_first()
        {
            self.drop_thing(place.about());
        }
    }

    fn drop_thing(&mut self, about: About<'_>) {
        let things = index(about.kind).and_then(|at| {
            let part = self.servers.get_mut(about.server)?;
            part.things.get_mut(at)
        });
        if things.and_then(|all| all.remove(about.name)).is_some() {
            self.known -= 1;
        }
    }

    fn thing(&self, about: About<'_>) -> Option<&Thing> {
        let part = self.servers.get(about.server)?;
        part.things.get(index(about.kind)?)?.get(about.name)
    }

    fn thing_mut(&mut self, about: About<'_>) -> Option<&mut Thing> {
        let part = self.servers.get_mut(about.server)?;
        part.things.get_mut(index(about.kind)?)?.get_mut(about.name)
    }

    fn thing_or_new(&mut self, about: About<'_>) -> Option<&mut Thing> {
        let at = index(about.kind)?;
        if self.thing(about).is_none() {
            self.known += 1;
        }
        let things = self.part(about.server).things.get_mut(at)?;
        Some(things.entry(Arc::clone(about.name)).or_default())
    }

    fn part(&mut self, server: &Arc<str>) -> &mut Part {
        let floor = self.floor;
        self.servers
            .entry(Arc::clone(server))
            .or_insert_with(|| Part {
                things: Default::default(),
                purged: [floor; 3],
                view: CacheView::default(),
            })
    }
}

/// The kinds of things whose answers can be kept.
const KINDS: [Kind; 3] = [Kind::Tool, Kind::Prompt, Kind::Resource];

const fn index(kind: Kind) -> Option<usize> {
    match kind {
        Kind::Tool => Some(0),
        Kind::Prompt => Some(1),
        Kind::Resource => Some(2),
        Kind::Task => None,
    }
}
