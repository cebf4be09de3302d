//! The caller's end of a call without a session: what servers say goes to the round that its
//! caller waits in, and what they ask waits until the caller can be told.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Waker};

use bowline_core::call::Reply;
use bowline_core::caller::{Abilities, Ability, CallerEnd, Question, QuestionId, SessionKey};
use bowline_core::error::CallError;
use bowline_core::level::Level;
use bowline_core::sync::lock;
use bowline_core::tasks::Made;
use bowline_wire::jsonrpc::write_result;
use bowline_wire::mcp::method;
use bowline_wire::object;
use bowline_wire::splice::replace;
use bytes::Bytes;
use tokio::sync::oneshot;

use super::client::Client;
use crate::edge::stream::{EventBody, Line, Opening, Reader, Source, Told};

/// Questions that one call may have open; one more is refused.
pub(crate) const QUESTIONS_MAX: usize = 16;

/// A longer id of a server's question is not its key.
const KEY_BYTES_MAX: usize = 128;

/// What came of a call.
pub(crate) type Outcome = Result<Reply, CallError>;

/// What one request of the caller says about being told and asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wants {
    /// What it can be asked for.
    pub(crate) abilities: Abilities,
    /// From which level on it hears log messages; none where absent.
    pub(crate) level: Option<Level>,
    /// Its progress token, as it wrote it.
    pub(crate) token: Option<Bytes>,
}

/// The caller's end of one call, over all of its rounds.
#[derive(Debug)]
pub(crate) struct End {
    client: Arc<Client>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    round: Arc<Round>,
    questions: Vec<Open>,
    /// Numbers the questions; none is given twice in a call.
    last: u64,
    /// What came of the call, until its caller is told.
    outcome: Option<Outcome>,
    /// Set when nobody can be asked any more.
    over: bool,
    /// What a server wanted to ask that the caller cannot be asked.
    lacks: Option<Ability>,
    /// The task that its server made of it.
    task: Option<Made>,
    /// What it is called while it waits for its caller.
    handle: Option<u64>,
    /// Whether its caller was asked and is not back: what is said meanwhile is heard by nobody.
    away: bool,
    /// Takes the call back.
    cancel: Option<oneshot::Sender<()>>,
    waker: Option<Waker>,
}

#[derive(Debug)]
struct Open {
    id: u64,
    key: String,
    question: Question,
}

/// One request of the caller: the first, or one that brings answers.
#[derive(Debug)]
pub(crate) struct Round {
    line: Line,
    wants: Wants,
    /// Whether the call began with it: words of servers carry its progress token.
    is_first: bool,
    end: Weak<End>,
}

/// What a caller is to be told next.
#[derive(Debug)]
pub(crate) enum Next {
    /// The call is over.
    Over(Outcome),
    /// Servers want to know something.
    Asked,
}

impl End {
    /// Returns the end of a call that begins, its first round, and the signal that takes it back.
    pub(crate) fn new(
        client: Arc<Client>,
        wants: Wants,
    ) -> (Arc<Self>, Arc<Round>, oneshot::Receiver<()>) {
        let (cancel, cancelled) = oneshot::channel();
        let end = Arc::new_cyclic(|end| {
            let round = Round::new(wants, true, end.clone());
            Self {
                client,
                state: Mutex::new(State {
                    round: Arc::new(round),
                    questions: Vec::new(),
                    last: 0,
                    outcome: None,
                    over: false,
                    lacks: None,
                    task: None,
                    handle: None,
                    away: false,
                    cancel: Some(cancel),
                    waker: None,
                }),
            }
        });
        let round = Arc::clone(&end.state().round);
        (end, round, cancelled)
    }

    /// Numbers its questions from here on: keys of a task are never given twice.
    pub(crate) fn number_from(&self, last: u64) {
        self.state().last = last;
    }

    /// Whether the call is over, so that nobody asks anything any more.
    pub(crate) fn is_over(&self) -> bool {
        self.state().over
    }

    /// Takes what came of the call, where it is over.
    pub(crate) fn take_outcome(&self) -> Option<Outcome> {
        self.state().outcome.take()
    }

    /// Begins a round in which the caller brings answers.
    pub(crate) fn again(self: &Arc<Self>, wants: Wants) -> Arc<Round> {
        let round = Arc::new(Round::new(wants, false, Arc::downgrade(self)));
        let mut state = self.state();
        state.round = Arc::clone(&round);
        state.away = false;
        // What was wanted in vain before counts no more: the caller went on.
        state.lacks = None;
        round
    }

    /// Gives the caller's answer to the question of this key to the server that asked it; nothing
    /// happens where none is open.
    pub(crate) fn answer(&self, key: &str, value: &[u8]) {
        let open = {
            let mut state = self.state();
            let at = state.questions.iter().position(|open| open.key == key);
            at.map(|at| state.questions.remove(at))
        };
        if let Some(Open { question, .. }) = open {
            let mut text = Vec::with_capacity(value.len() + 64);
            write_result(&mut text, question.id(), value);
            question.answer(text.into());
        }
    }

    /// Calls `tell` with the key and the whole request of every open question.
    pub(crate) fn each_open(&self, mut tell: impl FnMut(&str, &[u8])) {
        let state = self.state();
        for open in &state.questions {
            tell(&open.key, &open.question.request);
        }
    }

    /// Whether anything is asked that was not answered.
    pub(crate) fn is_asked(&self) -> bool {
        !self.state().questions.is_empty()
    }

    /// Refuses what is asked now.
    pub(crate) fn refuse(&self) {
        let refused = std::mem::take(&mut self.state().questions);
        // Their servers are told without the lock.
        drop(refused);
    }

    /// Notes what came of the call, for whoever waits or comes for it.
    pub(crate) fn finish(&self, outcome: Outcome) {
        let (refused, waker) = {
            let mut state = self.state();
            state.over = true;
            state.outcome = Some(outcome);
            (std::mem::take(&mut state.questions), state.waker.take())
        };
        drop(refused);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the call back; nothing happens where it is over.
    pub(crate) fn cancel(&self) {
        let (refused, cancel) = {
            let mut state = self.state();
            state.over = true;
            (std::mem::take(&mut state.questions), state.cancel.take())
        };
        drop(refused);
        if let Some(cancel) = cancel {
            // A call that ended meanwhile no longer listens.
            let _ = cancel.send(());
        }
    }

    /// Returns who made the call.
    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Returns what a server wanted to ask that the caller cannot be asked.
    pub(crate) fn lacking(&self) -> Option<Ability> {
        self.state().lacks
    }

    /// Returns the task that its server made of the call.
    pub(crate) fn task(&self) -> Option<Made> {
        self.state().task.clone()
    }

    /// Returns what the call is called while it waits for its caller; absent where it never did.
    pub(crate) fn handle(&self) -> Option<u64> {
        self.state().handle
    }

    /// Notes what the call is called while it waits for its caller.
    pub(crate) fn parked_as(&self, handle: u64) {
        self.state().handle = Some(handle);
    }

    /// Notes that the caller was given what it is asked, and that its request is over.
    pub(crate) fn gone(&self) {
        self.state().away = true;
    }

    /// Ready when a server wants to know something.
    pub(crate) fn poll_asked(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if !state.questions.is_empty() {
            return Poll::Ready(());
        }
        state.wait(cx);
        Poll::Pending
    }

    /// Ready when the caller is to be told something that ends its round.
    pub(crate) fn poll_next(&self, cx: &Context<'_>) -> Poll<Next> {
        let mut state = self.state();
        if let Some(outcome) = state.outcome.take() {
            return Poll::Ready(Next::Over(outcome));
        }
        if !state.questions.is_empty() {
            return Poll::Ready(Next::Asked);
        }
        state.wait(cx);
        Poll::Pending
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl CallerEnd for End {
    fn session(&self) -> SessionKey {
        self.client.key
    }

    fn abilities(&self) -> Abilities {
        self.state().round.wants.abilities
    }

    fn level(&self) -> Option<Level> {
        self.state().round.wants.level
    }

    fn push(&self, notification: Bytes) {
        let state = self.state();
        if state.away {
            return;
        }
        let round = Arc::clone(&state.round);
        drop(state);
        round.push(notification);
    }

    fn ask(&self, question: Question) -> Option<QuestionId> {
        let (id, waker) = {
            let mut state = self.state();
            if state.over
                || state.questions.len() >= QUESTIONS_MAX
                || !state.round.wants.abilities.has(question.ability)
            {
                drop(state);
                // Refused without the lock.
                drop(question);
                return None;
            }
            state.last += 1;
            let id = state.last;
            let key = state.key_for(id, &question);
            state.questions.push(Open { id, key, question });
            (id, state.waker.take())
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Some(QuestionId(id))
    }

    fn answers_later(&self) -> bool {
        true
    }

    fn lacks(&self, ability: Ability) {
        self.state().lacks = Some(ability);
    }

    fn task_made(&self, task: &Made) {
        self.state().task = Some(task.clone());
    }

    fn withdraw(&self, question: QuestionId) {
        let withdrawn = {
            let mut state = self.state();
            let at = state
                .questions
                .iter()
                .position(|open| open.id == question.0);
            at.map(|at| state.questions.remove(at))
        };
        drop(withdrawn);
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(Home {
            key: self.client.key,
            abilities: self.abilities(),
        })
    }
}

impl State {
    fn wait(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.waker = Some(cx.waker().clone()),
        }
    }

    /// Returns the key of a question: what its server calls it, where that is a word and free.
    fn key_for(&self, id: u64, question: &Question) -> String {
        let word = object::string(question.id());
        let word = word.filter(|word| {
            !word.is_empty() && word.len() <= KEY_BYTES_MAX && !word.starts_with("ask-")
        });
        let word = word.filter(|word| self.questions.iter().all(|open| open.key != **word));
        word.map_or_else(|| format!("ask-{id}"), |word| word.into_owned())
    }
}

/// Nobody waits for it any more: what is asked is refused by its drop.
impl Drop for End {
    fn drop(&mut self) {
        self.refuse();
    }
}

impl Round {
    fn new(wants: Wants, is_first: bool, end: Weak<End>) -> Self {
        Self {
            line: Line::default(),
            wants,
            is_first,
            end,
        }
    }

    /// Opens the stream that carries what was said so far and what follows.
    pub(crate) fn open(self: &Arc<Self>) -> EventBody {
        let source = Arc::clone(self) as Arc<dyn Source>;
        EventBody::new(source, self.line.read(), None, Opening::Plain)
    }

    fn push(&self, notification: Bytes) {
        let Some(kind) = object::text(&notification, "method") else {
            return;
        };
        match kind.as_ref() {
            method::MESSAGE if !self.hears(&notification) => {}
            // Callers of this era are told by answers to their next request.
            method::ELICITATION_COMPLETE => {}
            method::PROGRESS if !self.is_first => {
                drop(kind);
                self.progress(&notification);
            }
            _ => {
                drop(kind);
                self.line.push(notification);
            }
        }
    }

    fn hears(&self, message: &[u8]) -> bool {
        let params = object::field(message, "params").map(|at| at.of(message));
        let said = params.and_then(|params| object::text(params, "level"));
        let said = said.and_then(|word| Level::parse(&word));
        match (self.wants.level, said) {
            (Some(least), Some(level)) => level >= least,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// Passes on progress under the token of this round; what servers know is that of the first.
    fn progress(&self, notification: &Bytes) {
        let at = object::field(notification, "params").and_then(|params| {
            let token = object::field(params.of(notification), "progressToken")?;
            Some(token.shift(params.start))
        });
        if let (Some(at), Some(token)) = (at, &self.wants.token) {
            self.line.push(replace(notification, at, token).into());
        }
    }
}

impl Source for Round {
    fn line(&self) -> &Line {
        &self.line
    }

    fn left(&self, reader: Reader, _: Told) {
        // Without its answer: that is how a caller of this era takes a call back.
        if self.line.leave(reader)
            && !self.line.is_ended()
            && let Some(end) = self.end.upgrade()
        {
            end.cancel();
        }
    }
}

/// The end of a client outside calls, where it can be told and asked nothing.
#[derive(Debug)]
struct Home {
    key: SessionKey,
    /// What it can be asked for in calls.
    abilities: Abilities,
}

impl CallerEnd for Home {
    fn session(&self) -> SessionKey {
        self.key
    }

    fn abilities(&self) -> Abilities {
        self.abilities
    }

    fn push(&self, _: Bytes) {}

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(Self { ..*self })
    }
}

#[cfg(test)]
mod tests;
