//! The caller's end of a call and of a session: what servers say and ask goes in here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bowline_core::caller::{Abilities, CallerEnd, Deaf, Question, QuestionId, SessionKey};
use bowline_core::level::Level;
use bowline_core::time::Now;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::Session;
use crate::edge::stream::{EventBody, Label, Line, Opening, Reader, Source, StreamName, Told};

/// The caller's end of one call, or of the calls of one batch. Until something is said before
/// the answer it is nothing but this.
#[derive(Debug)]
pub struct CallEnd {
    session: Arc<Session>,
    /// Names the stream, and what was asked on it.
    serial: u64,
    line: Line,
    asked: AtomicBool,
    /// The calls, to take them back when the caller leaves for good.
    id: Bytes,
    more: Vec<Bytes>,
    /// Made when the stream is first opened.
    name: OnceLock<StreamName>,
}

impl CallEnd {
    /// Returns the end of the call `id`, and of `more` that were asked with it.
    #[must_use]
    pub fn new(session: &Arc<Session>, id: Bytes, more: Vec<Bytes>) -> Arc<Self> {
        Arc::new(Self {
            serial: session.shared.serial(),
            session: Arc::clone(session),
            line: Line::default(),
            asked: AtomicBool::new(false),
            id,
            more,
            name: OnceLock::new(),
        })
    }

    /// Returns the name of the stream.
    #[must_use]
    pub const fn label(&self) -> Label {
        Label(self.serial)
    }

    /// Opens the stream that carries what was said so far and what follows.
    #[must_use]
    pub fn open(self: &Arc<Self>) -> EventBody {
        let source = Arc::clone(self) as Arc<dyn Source>;
        if !self.session.resumes() {
            return EventBody::new(source, self.line.read(), None, Opening::Plain);
        }
        self.line.keep(self.session.shared.kept.clone());
        self.session.streams.add(self);
        let opening = if self.session.is_primed() {
            Opening::Primed { after: 0 }
        } else {
            Opening::Plain
        };
        EventBody::new(source, self.line.read(), Some(self.name()), opening)
    }

    /// Returns the name of the stream in the ids of its events: the same for every reader.
    fn name(&self) -> StreamName {
        let name = self.name.get_or_init(|| {
            let ids = std::iter::once(&self.id).chain(&self.more);
            self.session.name_stream(self.label(), ids)
        });
        name.clone()
    }

    /// Opens the stream again, after the message with this number.
    #[must_use]
    pub fn resume(self: &Arc<Self>, number: u64) -> Option<EventBody> {
        let reader = self.line.read_after(number)?;
        let source = Arc::clone(self) as Arc<dyn Source>;
        let name = Some(self.name());
        Some(EventBody::new(source, reader, name, Opening::Comment))
    }

    /// Gives the answer, after which nothing follows.
    pub fn finish(&self, answer: Bytes, now: Now) {
        self.refuse_open();
        self.line.finish(answer);
        self.session.streams.ended(self.label(), now);
    }

    fn refuse_open(&self) {
        if self.asked.load(Ordering::Relaxed) {
            self.session.questions.refuse_of(self.serial);
        }
    }
}

impl CallerEnd for CallEnd {
    fn session(&self) -> SessionKey {
        self.session.key
    }

    fn lasting_id(&self) -> Option<u64> {
        Some(self.session.lasting_id)
    }

    fn abilities(&self) -> Abilities {
        self.session.abilities()
    }

    fn level(&self) -> Option<Level> {
        self.session.level()
    }

    fn push(&self, notification: Bytes) {
        if self.session.hears(&notification) {
            // A caller that does not read its progress loses progress, never its answer.
            self.line.push(notification);
        }
    }

    fn ask(&self, question: Question) -> Option<QuestionId> {
        self.asked.store(true, Ordering::Relaxed);
        self.session.put(&self.line, self.serial, question)
    }

    fn withdraw(&self, question: QuestionId) {
        self.session.withdraw(&self.line, question);
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        Home::of(&self.session)
    }
}

impl Source for CallEnd {
    fn line(&self) -> &Line {
        &self.line
    }

    fn left(&self, reader: Reader, told: Told) {
        if !self.line.leave(reader) || self.line.is_ended() {
            return;
        }
        if told == Told::Something && self.session.resumes() {
            // The caller knows where it was, and can come back for the rest.
            return;
        }
        for id in std::iter::once(&self.id).chain(&self.more) {
            self.session.in_flight.cancel(id);
        }
    }
}

impl Drop for CallEnd {
    fn drop(&mut self) {
        self.refuse_open();
    }
}

/// The caller's end of a whole session: the stream it listens on.
#[derive(Debug)]
pub struct Home(Arc<Session>);

impl Home {
    /// Returns the end of this session.
    #[must_use]
    pub fn of(session: &Arc<Session>) -> Arc<Self> {
        Arc::new(Self(Arc::clone(session)))
    }
}

impl CallerEnd for Home {
    fn session(&self) -> SessionKey {
        self.0.key
    }

    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }

    fn level(&self) -> Option<Level> {
        self.0.level()
    }

    fn push(&self, notification: Bytes) {
        self.0.tell(notification);
    }

    fn ask(&self, question: Question) -> Option<QuestionId> {
        if !self.0.home.is_read() {
            return None;
        }
        self.0.put(&self.0.home, HOME_ASKER, question)
    }

    fn withdraw(&self, question: QuestionId) {
        self.0.withdraw(&self.0.home, question);
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        Self::of(&self.0)
    }
}

/// Questions outside calls end with their session only; no call has this serial.
const HOME_ASKER: u64 = 0;

impl Source for Home {
    fn line(&self) -> &Line {
        &self.0.home
    }

    fn left(&self, reader: Reader, _: Told) {
        self.0.home.leave(reader);
    }
}

impl Session {
    /// Returns the end of a call whose caller takes no stream. It has the lasting id of the
    /// session, or its queued writes would be another session's after a restart.
    pub(in crate::edge) fn without_stream(&self) -> Arc<dyn CallerEnd> {
        Arc::new(Deaf::new(self.key).with_lasting_id(self.lasting_id))
    }
}

/// Numbers a session by its id, which does not follow from the number.
pub(super) fn lasting_id(id: &str) -> u64 {
    let digest = Sha256::digest(id.as_bytes());
    let first = digest.first_chunk().copied();
    first.map_or(0, u64::from_be_bytes)
}
