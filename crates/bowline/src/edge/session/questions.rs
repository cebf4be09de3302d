//! Questions of servers that a session's caller has not answered yet.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use bowline_core::caller::{Question, QuestionId};
use bowline_core::sync::lock;
use bowline_wire::Message;
use bowline_wire::splice::replace;
use bytes::Bytes;
use foldhash::fast::RandomState;

/// Questions one session may have open; one more is refused.
pub(super) const QUESTIONS_MAX: usize = 64;

/// The open questions of one session, by the ids that we gave them.
#[derive(Debug, Default)]
pub struct Questions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    open: HashMap<u64, Open, RandomState>,
    /// Set when the session ends: nobody answers any more.
    closed: bool,
}

#[derive(Debug)]
struct Open {
    question: Question,
    /// The call or session it was put to.
    asker: u64,
}

impl Questions {
    /// Remembers a question; `false` when there is no room, and then it is refused.
    #[must_use]
    pub fn open(&self, id: QuestionId, asker: u64, question: Question) -> bool {
        let refused = {
            let mut state = self.state();
            if state.closed || state.open.len() >= QUESTIONS_MAX {
                Some(question)
            } else {
                state.open.insert(id.0, Open { question, asker });
                None
            }
        };
        // Dropped here, and so refused, because its server is told without the lock.
        refused.is_none()
    }

    /// Gives the caller's answer to the server that asked, under the server's own id. An answer
    /// to no open question is nobody's.
    pub fn answer(&self, answer: &Message) {
        let Some(at) = answer.id_span() else { return };
        let Some(open) = read_id(at.of(answer.bytes())).and_then(|id| self.take(id)) else {
            return;
        };
        let text = replace(answer.bytes(), at, open.question.id());
        open.question.answer(text.into());
    }

    /// Forgets a question, which refuses it; `false` when it was not open.
    pub fn withdraw(&self, id: QuestionId) -> bool {
        self.take(id.0).is_some()
    }

    /// Refuses all that was put to `asker`.
    pub fn refuse_of(&self, asker: u64) {
        let refused: Vec<_> = {
            let mut state = self.state();
            let of = state.open.extract_if(|_, open| open.asker == asker);
            of.collect()
        };
        drop(refused);
    }

    /// Refuses all, and whatever would follow.
    pub fn close(&self) {
        let refused = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.open)
        };
        drop(refused);
    }

    /// Whether no question is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state().open.is_empty()
    }

    fn take(&self, id: u64) -> Option<Open> {
        self.state().open.remove(&id)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }
}

/// Writes a question under the id we gave it; every other byte stays the server's.
#[must_use]
pub(super) fn write(question: &Question, id: QuestionId) -> Bytes {
    let at = bowline_wire::Span {
        start: question.id_at.start,
        end: question.id_at.end,
    };
    replace(&question.request, at, id.0.to_string().as_bytes()).into()
}

/// Returns the id if it is written as we write ours.
fn read_id(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let id: u64 = text.parse().ok()?;
    (id.to_string() == text).then_some(id)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use bowline_core::caller::Ability;

    use super::*;

    const ASKED: &[u8] = br#"{"id" : "s\u0031","method":"roots/list","x":1.0}"#;

    fn question() -> (Question, mpsc::Receiver<Option<Bytes>>) {
        let (told, heard) = mpsc::channel();
        let asked = Bytes::from_static(ASKED);
        let question = Question::new(asked, 8..17, Ability::Roots, move |answer| {
            // Nobody may listen any more.
            let _ = told.send(answer);
        });
        (question, heard)
    }

    fn answer(text: &'static str) -> Message {
        Message::parse(text.into()).unwrap()
    }

    #[test]
    fn only_the_id_is_another_on_the_way_there_and_back() {
        let questions = Questions::default();
        let (question, heard) = question();
        assert_eq!(question.id(), br#""s\u0031""#);
        let text = write(&question, QuestionId(7));
        assert_eq!(
            text,
            br#"{"id" : 7,"method":"roots/list","x":1.0}"#[..],
            "{text:?}"
        );
        assert!(questions.open(QuestionId(7), 1, question));
        for other in [
            r#"{"jsonrpc":"2.0","id":8,"result":{}}"#,
            r#"{"jsonrpc":"2.0","id":"7","result":{}}"#,
            r#"{"jsonrpc":"2.0","id":-7,"result":{}}"#,
            r#"{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}"#,
        ] {
            questions.answer(&answer(other));
            assert!(heard.try_recv().is_err(), "{other}");
        }
        let given = r#"{ "jsonrpc":"2.0","result":{"roots":[],"n":1.00},"id":7 }"#;
        questions.answer(&answer(given));
        let want = given.replace("\"id\":7", r#""id":"s\u0031""#);
        assert_eq!(heard.try_recv().unwrap().unwrap(), want.as_bytes());
        assert!(questions.is_empty());
        questions.answer(&answer(given));
        assert!(heard.try_recv().is_err(), "answered twice");
    }

    #[test]
    fn questions_without_room_or_caller_are_refused() {
        let questions = Questions::default();
        let mut heard = Vec::new();
        for id in 0..QUESTIONS_MAX as u64 {
            let (question, refused) = question();
            assert!(questions.open(QuestionId(id), id % 2, question));
            heard.push(refused);
        }
        let (one_more, refused) = question();
        assert!(!questions.open(QuestionId(1_000), 0, one_more));
        assert_eq!(refused.try_recv(), Ok(None));
        questions.refuse_of(1);
        for (id, refused) in heard.iter().enumerate() {
            assert_eq!(refused.try_recv().is_ok(), id % 2 == 1, "{id}");
        }
        assert!(questions.withdraw(QuestionId(0)));
        assert!(!questions.withdraw(QuestionId(0)));
        questions.close();
        assert!(questions.is_empty());
        let (late, refused) = question();
        assert!(!questions.open(QuestionId(2), 0, late));
        assert_eq!(refused.try_recv(), Ok(None));
    }
}
