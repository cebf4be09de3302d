//! Tells agents and people what became of queued writes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use bowline_core::caller::SessionKey;
use bowline_core::error::CallError;
use bowline_core::level::Level;
use bowline_core::sync::lock;
use bowline_journal::MessageId;
use bowline_journal::audit::Kind;
use bowline_wire::splice::write_string;

use super::answer::uri;
use super::deliver::Served;
use super::letter::{Letter, LetterState};
use super::record::{Head, Record};
use super::{LANES, Shared};
use crate::audit::{self, End};
use crate::events::What;
use crate::ports::Audience as _;

/// Queued writes of which it is remembered whom to tell and what they failed with.
const NOTES_MAX: usize = 65_536;

/// Where subscriptions to queued writes are kept: no server can have this name.
pub(super) const PLACE: &str = LANES;

/// The logger that agents hear.
const LOGGER: &str = "bowline.outbox";

/// What is known of queued writes while this process lives.
#[derive(Debug, Default)]
pub(super) struct Notes {
    of: HashMap<MessageId, Note>,
    /// Credentials that a person revoked while writes of theirs may have been under way.
    pub(super) revoked: std::collections::BTreeSet<Arc<str>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Note {
    /// Who is to be told.
    pub(super) session: Option<SessionKey>,
    /// What it failed with last.
    pub(super) error: Option<Arc<str>>,
    /// Tries that failed, each after the server had answered another call.
    tries: u32,
    /// Calls that the server had answered at the last of them.
    served: Option<u64>,
}

/// A write that waits no more.
#[derive(Debug)]
pub(super) struct Over<'a> {
    pub(super) id: MessageId,
    pub(super) record: &'a Record,
    pub(super) letter: &'a Letter,
    /// What is noted of it in the trail.
    pub(super) kind: Kind,
    /// How it ended.
    pub(super) end: End,
}

impl Notes {
    fn with(&mut self, id: MessageId, change: impl FnOnce(&mut Note)) {
        if self.of.len() < NOTES_MAX || self.of.contains_key(&id) {
            change(self.of.entry(id).or_default());
        }
    }

    /// Counts a try that failed, where its server answered other calls since the one before.
    /// Returns how many there were, and whether this one counts.
    pub(super) fn count_try(&mut self, id: MessageId, served: Served) -> (u32, bool) {
        let mut counted = (0, false);
        self.with(id, |note| {
            let counts = served.after > note.served.unwrap_or(served.before);
            note.tries = note.tries.saturating_add(u32::from(counts));
            note.served = Some(served.after);
            counted = (note.tries, counts);
        });
        counted
    }

    pub(super) fn error(&self, id: MessageId) -> Option<Arc<str>> {
        self.of.get(&id)?.error.clone()
    }
}

impl Shared {
    /// Notes that a write was queued, and for whom.
    pub(super) fn is_queued(&self, id: MessageId, session: Option<SessionKey>, head: &Head) {
        if let Some(session) = session {
            lock(&self.notes).with(id, |note| note.session = Some(session));
            let (principal, scope) = head.asker();
            self.memory.meet(session, &principal, &scope);
        }
        tracing::info!(
            id = id.0, server = %head.server, tool = %head.tool, principal = %head.principal(),
            "a write was queued"
        );
        self.event(LetterState::Queued, (id, head), None);
    }

    /// Notes what a write failed with.
    pub(super) fn failed(&self, id: MessageId, error: &CallError) {
        let said = error.to_string().into();
        lock(&self.notes).with(id, |note| note.error = Some(said));
    }

    /// Tells everybody who should know that a write waits no more.
    pub(super) fn is_over(&self, over: Over<'_>) {
        let Over {
            id, record, letter, ..
        } = over;
        let head = &record.head;
        let note = lock(&self.notes).of.remove(&id).unwrap_or_default();
        let (principal, server, tool) = (head.principal(), &head.server, &head.tool);
        let reason = letter.last_error.clone();
        match &reason {
            Some(reason) => tracing::warn!(
                id = id.0, %server, %tool, %principal, %reason,
                "a queued write could not be delivered"
            ),
            None => tracing::info!(
                id = id.0, %server, %tool, %principal, "a queued write was delivered"
            ),
        }
        self.event(letter.state, (id, head), reason.clone());
        self.notify(id, note.session, letter);
        self.audited(over, reason);
    }

    /// Tells that a person dropped a write: somebody was promised that it would be delivered.
    pub(super) fn is_dropped(&self, id: MessageId, record: &Record, letter: Letter) {
        let letter = Letter {
            state: LetterState::Dead,
            position: 0,
            last_error: Some("dropped by a person".into()),
            ..letter
        };
        self.is_over(Over {
            id,
            record,
            letter: &letter,
            kind: Kind::Dropped,
            end: End::Word("dropped"),
        });
    }

    fn audited(&self, over: Over<'_>, reason: Option<Arc<str>>) {
        if !self.audit.is_kept() {
            return;
        }
        let Over {
            id,
            record,
            kind,
            end,
            ..
        } = over;
        let mut note = audit::Note::of(&record.call(), self.clock.unix_ms());
        (note.kind, note.end, note.reason) = (kind, end, reason);
        note.id = Some(id.0.to_string().into());
        note.target = audit::Target::Named {
            server: Some(Arc::clone(&record.head.server)),
            name: Arc::clone(&record.head.tool),
        };
        self.audit.note(note);
    }

    fn notify(&self, id: MessageId, session: Option<SessionKey>, letter: &Letter) {
        let level = match letter.state {
            LetterState::Dead => Level::Error,
            LetterState::Delivered | LetterState::Queued | LetterState::Sending => Level::Info,
        };
        let may_hear = |session| self.memory.may_hear_of(session, letter.about());
        // What was queued in it says nothing of what it may see by now.
        if let Some(session) = session.filter(|session| may_hear(*session)) {
            let scope = bowline_core::call::Scope::Server(Arc::clone(&letter.server));
            let wanted = lock(&self.memory.levels).of_session(session, &scope);
            if wanted.is_none_or(|wanted| wanted <= level) {
                let message = message(level, &letter.told());
                self.hall.tell(session, message.into());
            }
        }
        let uri = uri(id);
        let wanting = lock(&self.memory.subscriptions).sessions(PLACE, &uri);
        for (session, known_as) in wanting.into_iter().filter(|(one, _)| may_hear(*one)) {
            self.hall.tell(session, updated(&known_as).into());
        }
    }

    fn event(&self, state: LetterState, (id, head): (MessageId, &Head), reason: Option<Arc<str>>) {
        self.events.tell(What::Outbox {
            id: id.0.to_string().into(),
            principal: Arc::clone(head.principal()),
            server: Arc::clone(&head.server),
            tool: Arc::clone(&head.tool),
            state: state.as_str(),
            reason,
        });
    }

    /// Well mixed, different for each lane, and the same again on the same clock.
    pub(super) fn jitter(&self, lane: &str) -> u64 {
        let mut mixer = DefaultHasher::new();
        (lane, self.clock.now()).hash(&mut mixer);
        mixer.finish()
    }
}

fn message(level: Level, data: &str) -> Vec<u8> {
    format!(
        "{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{{\"level\":\"{}\",\
         \"logger\":\"{LOGGER}\",\"data\":{data}}}}}",
        level.as_str()
    )
    .into_bytes()
}

fn updated(uri: &str) -> Vec<u8> {
    let mut said = b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/resources/updated\",\
        \"params\":{\"uri\":"
        .to_vec();
    write_string(&mut said, uri);
    said.extend_from_slice(b"}}");
    said
}
