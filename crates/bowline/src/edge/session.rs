//! One caller's session: what it agreed on, what it has under way, and how it is told and asked.

mod end;
mod ended;
mod inflight;
mod lost;
mod narrow;
mod questions;
mod streams;
mod table;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use arc_swap::ArcSwap;
use bowline_core::call::{Contexts, Principal, Scope};
use bowline_core::caller::{Abilities, Question, QuestionId, SessionKey};
use bowline_core::level::Level;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_host::catalog::{ListKind, PerList};
use bowline_wire::jsonrpc::write_notification;
use bowline_wire::mcp::{Revision, method};
use bowline_wire::object;
use bytes::Bytes;

use super::seal::Seal;
use super::stream::{EventBody, Kept, Label, Line, Opening, Place, Source};
use lost::SessionMark;
use questions::Questions;
use streams::Streams;

pub use end::{CallEnd, Home};
pub use inflight::{Cancelled, InFlight, Withdrawal};
pub use lost::Replay;
pub use narrow::{NARROWED_MAX, NarrowError};
pub use table::{AGE_MAX, IDLE, OpenError, Seat, Sessions};

/// Characters of what a client calls itself that are remembered.
const CLIENT_CHARS_MAX: usize = 64;

/// The lists of which a session is told that they changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// `notifications/tools/list_changed`.
    Tools,
    /// `notifications/prompts/list_changed`.
    Prompts,
    /// `notifications/resources/list_changed`, for resources and templates.
    Resources,
}

impl News {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tools, Self::Prompts, Self::Resources];

    /// Returns the notification that tells them.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Self::Tools => method::TOOLS_LIST_CHANGED,
            Self::Prompts => method::PROMPTS_LIST_CHANGED,
            Self::Resources => method::RESOURCES_LIST_CHANGED,
        }
    }

    /// Whether any of the lists they are about differs.
    pub(super) fn differs(self, known: &Lists, lists: &Lists) -> bool {
        let mut own = self.lists().iter().copied();
        own.any(|kind| known.get(kind) != lists.get(kind))
    }

    /// Takes over the lists they are about.
    pub(super) fn learn(self, known: &mut Lists, lists: &Lists) {
        for kind in self.lists().iter().copied() {
            *known.get_mut(kind) = *lists.get(kind);
        }
    }

    /// Returns the lists they are about.
    const fn lists(self) -> &'static [ListKind] {
        match self {
            Self::Tools => &[ListKind::Tools],
            Self::Prompts => &[ListKind::Prompts],
            Self::Resources => &[ListKind::Resources, ListKind::Templates],
        }
    }
}

/// Fingerprints of the lists that a session sees.
pub type Lists = PerList<[u8; 32]>;

/// What all sessions of this process share.
#[derive(Debug)]
struct Shared {
    /// Names streams and questions; never the same twice, not even after a restart, as far as
    /// chance allows.
    next_serial: AtomicU64,
    kept: Kept,
    /// Seals names of streams, and ids.
    seal: Seal,
}

impl Shared {
    fn serial(&self) -> u64 {
        self.next_serial.fetch_add(1, Ordering::Relaxed)
    }
}

/// What a session agreed on when it was opened.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Who opened it.
    pub principal: Arc<Principal>,
    /// The endpoint it belongs to.
    pub scope: Scope,
    /// The revision agreed on.
    pub revision: Revision,
    /// What its client can be asked for.
    pub abilities: Abilities,
}

/// One caller's session.
#[derive(Debug)]
pub struct Session {
    /// Tells it from every other session of this process.
    pub key: SessionKey,
    /// Who opened it, as the credential says.
    pub principal: Arc<Principal>,
    /// The endpoint it belongs to.
    pub scope: Scope,
    /// The revision agreed on.
    pub revision: Revision,
    /// When it was opened, in seconds since 1970.
    pub issued_s: u64,
    /// The same for every life of the session.
    lasting_id: u64,
    /// The same principal, narrowed by what was set for this session.
    asker: ArcSwap<Principal>,
    /// What was set.
    contexts: Mutex<Contexts>,
    /// Its calls under way, so that they can be cancelled.
    pub in_flight: InFlight,
    /// What servers want to know from its caller.
    pub questions: Questions,
    shared: Arc<Shared>,
    /// Bits of [`Abilities`].
    abilities: AtomicU8,
    /// Index of the least [`Level`] it wants to hear and one more; 0 where it did not say.
    level: AtomicU8,
    /// What it is told outside calls.
    home: Line,
    home_label: Label,
    /// Stands in the names of its streams.
    mark: SessionMark,
    /// The streams of its calls.
    streams: Streams,
    /// The lists it knows; different ones are news.
    known: Mutex<Lists>,
    /// What its client calls itself, with its version, as far as it said so to this process.
    client: OnceLock<(Arc<str>, Arc<str>)>,
    used_ms: AtomicU64,
    /// Whether nobody listened at the last sweep.
    quiet: AtomicBool,
    closed: AtomicBool,
}

impl Session {
    fn new(id: &str, key: SessionKey, terms: Terms, shared: &Arc<Shared>, at: Beginning) -> Self {
        Self {
            key,
            asker: ArcSwap::new(Arc::clone(&terms.principal)),
            contexts: Mutex::default(),
            principal: terms.principal,
            scope: terms.scope,
            revision: terms.revision,
            issued_s: at.issued_s,
            lasting_id: end::lasting_id(id),
            in_flight: InFlight::default(),
            questions: Questions::default(),
            shared: Arc::clone(shared),
            abilities: AtomicU8::new(terms.abilities.bits()),
            level: AtomicU8::new(0),
            // Numbers go on after a restart, so that no old place is taken for a new one.
            home: Line::after(at.unix_ms),
            home_label: lost::home_label(id),
            mark: lost::mark_of(id),
            streams: Streams::default(),
            known: Mutex::default(),
            client: OnceLock::new(),
            used_ms: AtomicU64::new(at.now.0),
            quiet: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Returns who asks in it: its principal, narrowed by what was set for it.
    #[must_use]
    pub fn asker(&self) -> Arc<Principal> {
        self.asker.load_full()
    }

    /// Returns the same as one that asks from where this request of it came.
    #[must_use]
    pub fn asker_of(&self, request: &Principal) -> Arc<Principal> {
        let asker = self.asker();
        if asker.peer.0 == request.peer.0 {
            return asker;
        }
        Arc::new(asker.at_peer(request.peer))
    }

    /// Returns what was set to narrow it.
    #[must_use]
    pub fn contexts(&self) -> Contexts {
        lock(&self.contexts).clone()
    }

    /// Narrows it by these rules from now on, and by no others.
    fn narrow(&self, contexts: &Contexts) {
        let mut own = lock(&self.contexts);
        *own = contexts.clone();
        let narrowed = self.principal.narrowed(contexts);
        self.asker.store(Arc::new(narrowed));
    }

    /// Whether it was opened by this principal with this credential. Another credential of the
    /// same principal may allow less, and may be revoked alone.
    fn is_of(&self, principal: &Principal) -> bool {
        self.principal.name == principal.name && self.principal.credential == principal.credential
    }

    /// Returns how many of its streams are open, the one it listens on included.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        usize::from(self.is_listening()) + self.streams.open_count()
    }

    /// Returns when it was last used.
    #[must_use]
    pub fn used(&self) -> Now {
        Now(self.used_ms.load(Ordering::Relaxed))
    }

    /// Returns what its client can be asked for.
    #[must_use]
    pub fn abilities(&self) -> Abilities {
        Abilities::from_bits(self.abilities.load(Ordering::Relaxed))
    }

    /// Returns what its client calls itself, and its version.
    #[must_use]
    pub fn client(&self) -> Option<(&Arc<str>, &Arc<str>)> {
        self.client.get().map(|(name, version)| (name, version))
    }

    /// Notes what its client says of itself in the parameters of `initialize`.
    pub fn note_client(&self, params: &[u8]) {
        let info = object::field(params, "clientInfo").map_or(&b"{}"[..], |at| at.of(params));
        let text = |key| -> Arc<str> {
            let text = object::text(info, key).unwrap_or_default();
            text.chars()
                .take(CLIENT_CHARS_MAX)
                .collect::<String>()
                .into()
        };
        let _known = self.client.set((text("name"), text("version")));
    }

    /// Takes what a client declared after its session was opened.
    pub fn declare(&self, abilities: Abilities) {
        self.abilities.store(abilities.bits(), Ordering::Relaxed);
    }

    /// Hears log messages of this level and above from now on.
    pub fn set_level(&self, level: Level) {
        self.level.store(level as u8 + 1, Ordering::Relaxed);
    }

    /// Returns from which level on it hears log messages, where its client said so.
    fn level(&self) -> Option<Level> {
        let stored = usize::from(self.level.load(Ordering::Relaxed));
        Level::ALL.get(stored.checked_sub(1)?).copied()
    }

    /// Whether its caller may come back to a stream it lost.
    #[must_use]
    pub fn resumes(&self) -> bool {
        self.revision >= Revision::V2025_03_26
    }

    /// Whether its streams begin with a place to come back to.
    fn is_primed(&self) -> bool {
        self.revision >= Revision::V2025_11_25
    }

    /// Opens the stream it listens on; an earlier one ends.
    #[must_use]
    pub fn listen(self: &Arc<Self>) -> EventBody {
        let source = Home::of(self) as Arc<dyn Source>;
        if !self.resumes() {
            return EventBody::new(source, self.home.read(), None, Opening::Comment);
        }
        self.home.keep(self.shared.kept.clone());
        let reader = self.home.read();
        let after = self.home.last_sent();
        let opening = if self.is_primed() {
            Opening::Both { after }
        } else {
            Opening::Comment
        };
        EventBody::new(source, reader, Some(self.home_label.into()), opening)
    }

    /// Opens the stream again in which a caller has been at `place`; `None` when it is not one of
    /// this session. The stream of a call that is not known any more says that its outcome is
    /// unknown.
    #[must_use]
    pub fn resume(self: &Arc<Self>, place: Place<'_>, now: Now) -> Option<(EventBody, Replay)> {
        if !self.resumes() {
            return None;
        }
        if place.label != self.home_label {
            let events = match self.streams.find(place.label, now) {
                Some(end) => end.resume(place.number),
                None => self.answer_lost(place),
            };
            return events.map(|events| (events, Replay::Whole));
        }
        self.home.keep(self.shared.kept.clone());
        let (replay, opening) = match self.home.has_all_after(place.number) {
            true => (Replay::Whole, Opening::Comment),
            false => (Replay::Partial, Opening::Gap),
        };
        let Some(reader) = self.home.read_after(place.number) else {
            return Some((self.listen(), replay));
        };
        let source = Home::of(self) as Arc<dyn Source>;
        let name = Some(self.home_label.into());
        Some((EventBody::new(source, reader, name, opening), replay))
    }

    /// Says something outside calls; `false` when it does not listen.
    pub fn tell(&self, notification: Bytes) -> bool {
        if self.closed.load(Ordering::Relaxed) || !self.home.was_read() {
            return false;
        }
        if !self.hears(&notification) {
            return true;
        }
        self.say(notification)
    }

    /// Answers a request outside any stream of its own.
    pub fn answer_at_home(&self, answer: Bytes) -> bool {
        self.say(answer)
    }

    /// Notes that the session was shown a list with this fingerprint.
    pub fn knows(&self, kind: ListKind, fingerprint: [u8; 32]) {
        *lock(&self.known).get_mut(kind) = fingerprint;
    }

    /// Notes that the session is opened while the lists are these.
    pub fn knows_all(&self, lists: Lists) {
        *lock(&self.known) = lists;
    }

    /// Tells a listening session which of these lists are news to it.
    pub fn announce(&self, lists: &Lists) {
        if !self.home.is_read() {
            return;
        }
        let mut known = lock(&self.known);
        for news in News::ALL {
            if !news.differs(&known, lists) {
                continue;
            }
            let mut message = Vec::new();
            write_notification(&mut message, news.method(), None);
            if !self.say(message.into()) {
                return;
            }
            news.learn(&mut known, lists);
        }
    }

    /// Ends what is under way, because the session ends.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.in_flight.cancel_all();
        self.questions.close();
        self.streams.close();
        self.home.interrupt();
        self.home.clear();
    }

    /// Says something on the stream it listens on. A caller so far behind that there is no room
    /// had better come back and list anew.
    fn say(&self, message: Bytes) -> bool {
        let said = self.home.push(message);
        if !said {
            self.home.interrupt();
        }
        said
    }

    /// Whether a notification is loud enough for this session.
    fn hears(&self, notification: &[u8]) -> bool {
        match self.level() {
            None | Some(Level::Debug) => true,
            Some(least) => level_of(notification).is_none_or(|level| level >= least),
        }
    }

    /// Puts a question to the caller on `line`.
    fn put(&self, line: &Line, asker: u64, question: Question) -> Option<QuestionId> {
        if !self.abilities().has(question.ability) {
            return None;
        }
        let id = QuestionId(self.shared.serial());
        let text = questions::write(&question, id);
        if !self.questions.open(id, asker, question) {
            return None;
        }
        if line.push(text) {
            return Some(id);
        }
        self.questions.withdraw(id);
        None
    }

    /// Takes a question back and tells the caller so.
    fn withdraw(&self, line: &Line, id: QuestionId) {
        if !self.questions.withdraw(id) {
            return;
        }
        let params = format!("{{\"requestId\":{}}}", id.0);
        let mut text = Vec::new();
        write_notification(&mut text, method::CANCELLED, Some(params.as_bytes()));
        line.push(text.into());
    }

    /// Lets go of what is kept for a caller that has not come back for it.
    fn sweep(&self, now: Now) {
        self.streams.sweep(now);
        let quiet = !self.home.is_read();
        if self.quiet.swap(quiet, Ordering::Relaxed) && quiet {
            self.home.clear();
        }
    }

    /// Whether it was opened by a stream of 2024-11-05 that is still there.
    #[must_use]
    pub fn is_old(&self) -> bool {
        self.revision == Revision::V2024_11_05 && self.is_listening()
    }

    fn is_listening(&self) -> bool {
        self.home.is_read()
    }

    fn is_busy(&self) -> bool {
        self.is_listening()
            || !self.in_flight.is_empty()
            || !self.streams.is_empty()
            || !self.questions.is_empty()
    }
}

/// When a session begins, or comes back to life.
#[derive(Clone, Copy, Debug)]
struct Beginning {
    now: Now,
    unix_ms: u64,
    issued_s: u64,
}

/// Returns the level of a log message; nothing for any other message.
fn level_of(notification: &[u8]) -> Option<Level> {
    let text = |within: &[u8], key| {
        let at = object::field(within, key)?;
        object::string(at.of(within)).map(|text| text.into_owned())
    };
    if text(notification, "method")? != method::MESSAGE {
        return None;
    }
    let params = object::field(notification, "params")?.of(notification);
    Level::parse(&text(params, "level")?)
}
