//! Answers that stay good for a while, because their server says so: which are kept, for how
//! long, and who waits for one that is under way.

mod hint;
mod key;
mod shelf;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::RandomState;

use self::shelf::{Place, Shelves};
use crate::call::Kind;
use crate::era::Era;
use crate::policy::Pattern;
use crate::time::Now;

pub use hint::{Hint, Sharing};
pub use key::{Key, KeyBase};
pub use shelf::Known;

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// Answers in all.
    pub entries_max: usize,
    /// Bytes of all answers together.
    pub bytes_max: usize,
    /// Answers of one tool, prompt or resource.
    pub per_tool_max: usize,
    /// Bytes of one answer; a longer one is not kept.
    pub answer_bytes_max: usize,
    /// No answer is kept longer, whatever its server says.
    pub ttl_max: Duration,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self {
            entries_max: 4_096,
            bytes_max: 64 << 20,
            per_tool_max: 64,
            answer_bytes_max: 1 << 20,
            ttl_max: Duration::from_secs(60 * 60),
        }
    }
}

/// Expired answers that one insertion takes away at most; each insertion adds one, so that they
/// cannot gather.
const SWEEP_MAX: usize = 64;

/// The longest name or URI of which answers are kept.
pub const NAME_BYTES_MAX: usize = 1_024;

/// What an answer is about.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The server.
    pub server: &'a Arc<str>,
    /// What kind of thing of it.
    pub kind: Kind,
    /// The server's own name of it, or its URI.
    pub name: &'a Arc<str>,
}

/// A result as its server wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The result.
    pub result: Bytes,
    /// Where in it the number of `ttlMs` stands.
    pub ttl_at: Range<usize>,
    /// The era it is written in.
    pub era: Era,
}

/// An answer that is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// What the server said.
    pub answer: Answer,
    /// How long it stays good.
    pub left: Duration,
}

/// Names one call that goes to its server while others may wait for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlightId(u64);

/// A flight that others may follow, for the one who leads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lead {
    /// Its name.
    pub id: FlightId,
    /// What is asked for.
    pub key: Key,
}

/// What came of asking for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entered {
    /// There is one.
    Hit(Hit),
    /// Nobody asks the server yet: this call does, and others may wait for its answer.
    Lead(Lead),
    /// That call asks the server already.
    Follow(FlightId),
    /// The server must be asked, and nobody can wait for this call's answer.
    Alone,
}

/// The keys of one call, as far as [`Known`] says that they count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keys {
    /// Under which an answer for all is kept.
    pub public: Option<Key>,
    /// Under which an answer for this principal alone is kept.
    pub private: Option<Key>,
}

/// An answer to be kept.
#[derive(Clone, Debug)]
pub struct Landing {
    /// Under which key.
    pub key: Key,
    /// For whom.
    pub sharing: Sharing,
    /// The era in which its call began.
    pub era: u64,
    /// When it is no longer good.
    pub expires: Now,
    /// What the server said.
    pub answer: Answer,
}

/// Which answers of a server are no longer good.
#[derive(Clone, Copy, Debug)]
pub enum Stale<'a> {
    /// All.
    All,
    /// Those of one kind.
    Of(Kind),
    /// Those of one resource.
    Resource(&'a str),
    /// Those of things whose name fits one of these.
    Named(&'a [Pattern]),
}

/// What people can see of the answers of one server, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheView {
    /// Answers that are kept.
    pub entries: usize,
    /// How long they are together.
    pub bytes: usize,
    /// Calls answered without the server.
    pub hits: u64,
    /// Calls that had to go to the server though its answers can be kept.
    pub misses: u64,
    /// Answers that went before their time, to make room.
    pub evictions: u64,
}

/// All answers that are kept.
#[derive(Debug)]
pub struct Cache {
    limits: CacheLimits,
    entries: HashMap<Key, Entry, RandomState>,
    shelves: Shelves,
    /// When each is no longer good; the number tells apart those that end together.
    expiry: BTreeSet<(Now, u64, Key)>,
    /// In which order they came.
    order: BTreeSet<(u64, Key)>,
    /// Numbers what is inserted, and flights.
    numbers: u64,
    bytes: usize,
    /// Calls under way whose answers others may wait for. Each belongs to a call in flight, of
    /// which there is a limit elsewhere.
    flights: HashMap<Key, Flight, RandomState>,
}

#[derive(Debug)]
struct Entry {
    place: Place,
    sharing: Sharing,
    number: u64,
    expires: Now,
    answer: Answer,
}

#[derive(Debug)]
struct Flight {
    id: FlightId,
    server: Arc<str>,
    kind: Kind,
}

impl Cache {
    /// Returns an empty one.
    #[must_use]
    pub fn new(limits: CacheLimits) -> Self {
        Self {
            limits,
            entries: HashMap::default(),
            shelves: Shelves::default(),
            expiry: BTreeSet::new(),
            order: BTreeSet::new(),
            numbers: 0,
            bytes: 0,
            flights: HashMap::default(),
        }
    }

    /// Returns the limits in force.
    #[must_use]
    pub const fn limits(&self) -> CacheLimits {
        self.limits
    }

    /// Puts other limits into force; what is beyond them goes, the oldest first.
    pub fn relimit(&mut self, limits: CacheLimits, now: Now) {
        self.limits = limits;
        self.sweep(usize::MAX, now);
        self.make_room(0, 0);
        for oldest in self.shelves.beyond(limits.per_tool_max) {
            self.evict(oldest);
        }
    }

    /// Returns the era: a call that begins in one may not leave an answer of things that were
    /// purged in a later one.
    #[must_use]
    pub const fn era(&self) -> u64 {
        self.shelves.era()
    }

    /// Returns how many things are known to give answers that can be kept.
    #[must_use]
    pub const fn known(&self) -> usize {
        self.shelves.known()
    }

    /// Says what is known of the answers of a thing; nothing where none could ever be kept.
    #[must_use]
    pub fn knows(&self, about: About<'_>) -> Option<Known> {
        self.shelves.knows(about)
    }

    /// Looks for an answer. Without one, says whether to ask the server or to wait for a call
    /// that does; whoever leads must [`end`](Self::end) the flight.
    pub fn enter(&mut self, about: About<'_>, keys: Keys, era: u64, now: Now) -> Entered {
        for key in [keys.public, keys.private].into_iter().flatten() {
            if let Some(hit) = self.hit(key, now) {
                self.shelves.count_hit(about.server);
                return Entered::Hit(hit);
            }
        }
        let sharing = self.knows(about).and_then(|known| known.gives);
        let key = match sharing {
            Some(Sharing::Public) => keys.public,
            Some(Sharing::Private) => keys.private,
            None => None,
        };
        // What could not be kept in the end is nothing to wait for.
        let key = key.filter(|_| self.shelves.is_current(about, era));
        let Some(key) = key else {
            self.shelves.count_miss(about.server);
            return Entered::Alone;
        };
        if let Some(flight) = self.flights.get(&key) {
            return Entered::Follow(flight.id);
        }
        self.shelves.count_miss(about.server);
        let id = FlightId(self.next());
        let flight = Flight {
            id,
            server: Arc::clone(about.server),
            kind: about.kind,
        };
        self.flights.insert(key, flight);
        Entered::Lead(Lead { id, key })
    }

    /// Notes that a flight is over; whoever comes next leads.
    pub fn end(&mut self, lead: Lead) {
        let flight = self.flights.get(&lead.key);
        if flight.is_some_and(|flight| flight.id == lead.id) {
            self.flights.remove(&lead.key);
        }
    }

    /// Counts a call that waited in vain and asks the server itself.
    pub fn count_miss(&mut self, server: &str) {
        self.shelves.count_miss(server);
    }

    /// Keeps an answer; `false` where it may not or need not be.
    pub fn keep(&mut self, about: About<'_>, landing: Landing, now: Now) -> bool {
        if !self.shelves.is_current(about, landing.era) {
            self.shelves.hinted(about, landing.sharing);
            return false;
        }
        let size = landing.answer.result.len();
        let CacheLimits {
            entries_max,
            bytes_max,
            per_tool_max,
            answer_bytes_max,
            ..
        } = self.limits;
        let fits = size <= answer_bytes_max.min(bytes_max)
            && entries_max.min(per_tool_max) > 0
            && about.name.len() <= NAME_BYTES_MAX;
        if !fits || landing.expires <= now {
            self.unhinted(about);
            return false;
        }
        self.sweep(SWEEP_MAX, now);
        self.remove(&landing.key);
        while self.shelves.len(about) >= per_tool_max
            && let Some(oldest) = self.shelves.oldest(about)
        {
            self.evict(oldest);
        }
        self.make_room(size, 1);
        self.insert(about, landing);
        true
    }

    /// Notes that a thing gave an answer that cannot be kept: nobody waits for its next one.
    pub fn unhinted(&mut self, about: About<'_>) {
        self.shelves.unhinted(about);
    }

    /// Forgets answers of a server. Calls that began before may not leave theirs, and nobody
    /// follows them any more.
    pub fn purge(&mut self, server: &Arc<str>, stale: Stale<'_>) {
        for key in self.shelves.purge(server, stale) {
            self.remove(&key);
        }
        self.flights
            .retain(|_, flight| *flight.server != **server || !stale.may_mean(flight.kind));
    }

    /// Forgets all about a server that is gone.
    pub fn forget(&mut self, server: &Arc<str>) {
        self.purge(server, Stale::All);
        self.shelves.forget(server);
    }

    /// Returns what people can see of one server.
    pub fn view_of(&mut self, server: &str, now: Now) -> CacheView {
        self.sweep(usize::MAX, now);
        self.shelves.view_of(server)
    }

    /// Returns what people can see of all servers together.
    pub fn view(&mut self, now: Now) -> CacheView {
        self.sweep(usize::MAX, now);
        self.shelves.view()
    }

    fn hit(&mut self, key: Key, now: Now) -> Option<Hit> {
        let entry = self.entries.get(&key)?;
        if entry.expires <= now {
            self.remove(&key);
            return None;
        }
        Some(Hit {
            answer: entry.answer.clone(),
            left: now.until(entry.expires),
        })
    }

    fn insert(&mut self, about: About<'_>, landing: Landing) {
        let number = self.next();
        let Landing {
            key,
            sharing,
            expires,
            answer,
            ..
        } = landing;
        self.shelves.hinted(about, sharing);
        let size = answer.result.len();
        let place = self.shelves.put(about, (number, key), sharing, size);
        self.expiry.insert((expires, number, key));
        self.order.insert((number, key));
        self.bytes += size;
        let entry = Entry {
            place,
            sharing,
            number,
            expires,
            answer,
        };
        self.entries.insert(key, entry);
        debug_assert_eq!(self.entries.len(), self.order.len());
    }

    /// Evicts the oldest until there is room for so much more.
    fn make_room(&mut self, bytes: usize, entries: usize) {
        while self.entries.len() + entries > self.limits.entries_max
            || self.bytes + bytes > self.limits.bytes_max
        {
            let Some((_, oldest)) = self.order.first().copied() else {
                return;
            };
            self.evict(oldest);
        }
    }

    fn evict(&mut self, key: Key) {
        if let Some(server) = self.remove(&key) {
            self.shelves.count_eviction(&server);
        }
    }

    /// Takes away what is no longer good, but not more than so many.
    fn sweep(&mut self, most: usize, now: Now) {
        for _ in 0..most {
            match self.expiry.first().copied() {
                Some((expires, _, key)) if expires <= now => drop(self.remove(&key)),
                Some(_) | None => return,
            }
        }
    }

    /// Takes one away and says whose it was.
    fn remove(&mut self, key: &Key) -> Option<Arc<str>> {
        let entry = self.entries.remove(key)?;
        let size = entry.answer.result.len();
        self.expiry.remove(&(entry.expires, entry.number, *key));
        self.order.remove(&(entry.number, *key));
        self.bytes -= size;
        let removed = (entry.number, *key);
        self.shelves
            .take(&entry.place, removed, entry.sharing, size);
        Some(entry.place.server)
    }

    const fn next(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

impl Stale<'_> {
    /// Whether answers of this kind may be among them.
    const fn may_mean(self, kind: Kind) -> bool {
        match self {
            Self::All | Self::Named(_) => true,
            Self::Of(only) => kind as u8 == only as u8,
            Self::Resource(_) => matches!(kind, Kind::Resource),
        }
    }
}
