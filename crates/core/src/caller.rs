//! The caller's end of a call: where a server's words go before it answers, and who can be asked.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::level::Level;
use crate::tasks::Made;

/// Tells sessions apart in this process. A session that comes back to life has a new one; 0 is no
/// session's, and stands for callers without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(pub u64);

/// What a server may ask a client for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ability {
    /// `sampling/createMessage`.
    Sampling,
    /// The same with `tools`.
    SamplingTools,
    /// `elicitation/create` with a form.
    ElicitationForm,
    /// `elicitation/create` with an address to open.
    ElicitationUrl,
    /// `roots/list`.
    Roots,
}

impl Ability {
    /// Every ability.
    pub const ALL: [Self; 5] = [
        Self::Sampling,
        Self::SamplingTools,
        Self::ElicitationForm,
        Self::ElicitationUrl,
        Self::Roots,
    ];
}

/// What a client declared that it can be asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Abilities(u8);

impl Abilities {
    /// Adds an ability.
    #[must_use]
    pub const fn with(self, ability: Ability) -> Self {
        Self(self.0 | 1 << ability as u8)
    }

    /// Whether the client has it.
    #[must_use]
    pub const fn has(self, ability: Ability) -> bool {
        self.0 & (1 << ability as u8) != 0
    }

    /// Whether the client can be asked for anything at all.
    #[must_use]
    pub const fn any(self) -> bool {
        self.0 != 0
    }

    /// Returns a number that [`from_bits`](Self::from_bits) reads back.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Reads what [`bits`](Self::bits) wrote; bits of no ability are dropped.
    #[must_use]
    pub fn from_bits(bits: u8) -> Self {
        Ability::ALL
            .into_iter()
            .filter(|ability| Self(bits).has(*ability))
            .fold(Self::default(), Self::with)
    }
}

/// Names a question that was put to a caller, to take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuestionId(pub u64);

/// The caller's end of one call, or of a session outside calls. Owned by the edge, bounded, never
/// blocking.
pub trait CallerEnd: fmt::Debug + Send + Sync {
    /// Returns the session it belongs to.
    fn session(&self) -> SessionKey;

    /// Returns a number that its session keeps when it comes back to life, also in another
    /// process, where there is such a one. Two sessions hardly ever share it.
    fn lasting_id(&self) -> Option<u64> {
        None
    }

    /// Returns what the caller can be asked for: nothing, unless it says otherwise.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    /// Returns from which level on the caller wants to hear log messages, where it said so.
    fn level(&self) -> Option<Level> {
        None
    }

    /// Hands over one whole JSON-RPC notification; it is dropped when there is no room.
    fn push(&self, notification: Bytes);

    /// Puts a request of the server to the caller. A question that cannot be put is dropped,
    /// which refuses it; so are all, unless the caller says otherwise.
    fn ask(&self, question: Question) -> Option<QuestionId> {
        drop(question);
        None
    }

    /// Notes that a server wanted to ask what the caller cannot be asked, and was refused.
    fn lacks(&self, ability: Ability) {
        let _ = ability;
    }

    /// Whether what is asked is answered only in a later request, if ever, so that the call may
    /// stay in flight for long. Such a caller keeps no session: two calls of one client may be of
    /// two programs, and what is asked during one is not for the other.
    fn answers_later(&self) -> bool {
        false
    }

    /// Takes a question back because its server did.
    fn withdraw(&self, question: QuestionId) {
        let _ = question;
    }

    /// Notes the task that the server made of the call.
    fn task_made(&self, task: &Made) {
        let _ = task;
    }

    /// Returns the end of the whole session, for what is said outside this call.
    fn home(&self) -> Arc<dyn CallerEnd>;
}

/// The end of a caller that takes no words and no questions, only its answer.
#[derive(Clone, Copy, Debug)]
pub struct Deaf {
    session: SessionKey,
    lasting_id: Option<u64>,
}

impl Deaf {
    /// Makes the end of a call of this session.
    #[must_use]
    pub const fn new(session: SessionKey) -> Self {
        Self {
            session,
            lasting_id: None,
        }
    }

    /// The same, for a session that has a lasting id.
    #[must_use]
    pub const fn with_lasting_id(self, id: u64) -> Self {
        Self {
            lasting_id: Some(id),
            ..self
        }
    }
}

impl CallerEnd for Deaf {
    fn session(&self) -> SessionKey {
        self.session
    }

    fn lasting_id(&self) -> Option<u64> {
        self.lasting_id
    }

    fn push(&self, _: Bytes) {}

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(*self)
    }
}

/// A request of a server that waits for the caller's answer.
pub struct Question {
    /// The whole JSON-RPC request, as the server wrote it.
    pub request: Bytes,
    /// Where the server's id stands in it.
    pub id_at: Range<usize>,
    /// What the caller needs to be able to do.
    pub ability: Ability,
    reply: Option<Reply>,
}

/// Takes the caller's whole JSON-RPC answer under the server's id, or the news that none comes.
type Reply = Box<dyn FnOnce(Option<Bytes>) + Send>;

impl Question {
    /// Returns a question; `reply` is called exactly once.
    #[must_use]
    pub fn new(
        request: Bytes,
        id_at: Range<usize>,
        ability: Ability,
        reply: impl FnOnce(Option<Bytes>) + Send + 'static,
    ) -> Self {
        Self {
            request,
            id_at,
            ability,
            reply: Some(Box::new(reply)),
        }
    }

    /// Returns the id of the server, as it wrote it.
    #[must_use]
    pub fn id(&self) -> &[u8] {
        self.request.get(self.id_at.clone()).unwrap_or_default()
    }

    /// Gives the caller's answer: a whole JSON-RPC message under the server's id.
    pub fn answer(mut self, answer: Bytes) {
        if let Some(reply) = self.reply.take() {
            reply(Some(answer));
        }
    }
}

/// A question that nobody will answer is refused, so that its server does not wait for ever.
impl Drop for Question {
    fn drop(&mut self) {
        if let Some(reply) = self.reply.take() {
            reply(None);
        }
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Question")
            .field("ability", &self.ability)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn question() -> (Question, mpsc::Receiver<Option<Bytes>>) {
        let (told, heard) = mpsc::channel();
        let request = Bytes::from_static(br#"{"id":"a","method":"roots/list"}"#);
        let question = Question::new(request, 6..9, Ability::Roots, move |answer| {
            told.send(answer).unwrap();
        });
        (question, heard)
    }

    #[test]
    fn a_question_is_answered_once_or_refused_when_dropped() {
        let (asked, heard) = question();
        assert_eq!(asked.id(), b"\"a\"");
        asked.answer(Bytes::from_static(b"{}"));
        assert_eq!(heard.try_recv(), Ok(Some(Bytes::from_static(b"{}"))));
        assert!(heard.try_recv().is_err(), "told twice");
        let (asked, heard) = question();
        drop(asked);
        assert_eq!(heard.try_recv(), Ok(None));
    }

    #[test]
    fn abilities_survive_being_a_number() {
        let some = Abilities::default()
            .with(Ability::Roots)
            .with(Ability::Sampling);
        assert!(some.has(Ability::Roots) && !some.has(Ability::ElicitationUrl));
        assert_eq!(Abilities::from_bits(some.bits()), some);
        assert_eq!(Abilities::from_bits(0x80), Abilities::default());
        assert!(some.any() && !Abilities::default().any());
    }
}
