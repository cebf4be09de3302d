//! Who waits for a server's answers, and whose a word of the server can be.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::caller::{CallerEnd, QuestionId, SessionKey};
use bowline_core::era::Era;
use bowline_core::pending::{Pending, Sent};
use bowline_wire::mcp::method;
use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::questions::{Open, Questions};
use crate::link::{Answer, LinkError, Request};
use crate::message_limits::ResponseKind;

/// How long a call may wait for a person in all, before its own time runs on.
pub const ASKED_MAX: Duration = Duration::from_secs(3_600);

/// A question that is open when the time is up gives the call at least this much more.
const GRACE: Duration = Duration::from_secs(1);

/// Where an answer arrives.
pub(crate) type Receiver = oneshot::Receiver<Result<Answer, LinkError>>;

/// One caller that waits.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) answer: oneshot::Sender<Result<Answer, LinkError>>,
    /// The caller's id.
    pub(crate) reply_id: Bytes,
    /// The era that the request was sent in.
    pub(crate) era: Era,
    /// Absent for requests of the gateway's own.
    pub(crate) caller: Option<Arc<dyn CallerEnd>>,
    /// The caller's progress token, as it wrote it.
    token: Option<Bytes>,
    asked: Asked,
    /// What is waited for, as far as its length goes.
    pub(crate) kind: ResponseKind,
    /// Whether it is a request during which servers ask, as far as the protocol foresees.
    may_ask: bool,
    /// Present where it is no call, but a stream of changes.
    stream: Option<Stream>,
}

/// A stream of changes that is asked for or open.
#[derive(Debug)]
struct Stream {
    /// Takes what the server agrees to; absent once it did.
    agreed: Option<oneshot::Sender<Bytes>>,
}

/// The time a call has spent waiting for its own caller.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    /// Questions that are open.
    open: u32,
    /// Since when at least one is.
    since: Option<Instant>,
    /// How long earlier ones took.
    before: Duration,
}

impl Asked {
    fn begin(&mut self, now: Instant) {
        self.open += 1;
        self.since.get_or_insert(now);
    }

    fn end(&mut self, now: Instant) {
        self.open = self.open.saturating_sub(1);
        if self.open == 0
            && let Some(since) = self.since.take()
        {
            self.before += now.saturating_duration_since(since);
        }
    }

    fn in_all(&self, now: Instant) -> Duration {
        let running = self.since.map(|since| now.saturating_duration_since(since));
        (self.before + running.unwrap_or_default()).min(ASKED_MAX)
    }
}

impl Waiter {
    /// Returns the waiter of a request, and where its answer arrives.
    pub(crate) fn new(request: &Request) -> (Self, Receiver) {
        let (answer, receiver) = oneshot::channel();
        let token = request.caller.as_ref().and_then(|_| {
            let at = request.progress_at.clone()?;
            // Copied: the parameters can be large, and the wait long.
            Some(Bytes::copy_from_slice(request.params.as_ref()?.get(at)?))
        });
        let waiter = Self {
            answer,
            reply_id: request.reply_id.clone(),
            era: request.era,
            caller: request.caller.clone(),
            token,
            asked: Asked::default(),
            kind: ResponseKind::from_method(&request.method),
            may_ask: may_ask(&request.method),
            stream: None,
        };
        (waiter, receiver)
    }

    /// Makes it one that waits for a stream of changes; `agreed` takes what the server agrees to.
    pub(crate) fn listening(mut self, agreed: oneshot::Sender<Bytes>) -> Self {
        self.stream = Some(Stream {
            agreed: Some(agreed),
        });
        self
    }
}

/// Everyone who waits on one link.
#[derive(Debug)]
pub(crate) struct Waiters {
    pub(crate) pending: Pending<Waiter>,
    pub(crate) questions: Questions,
    /// The one session that the link belongs to, where it is not shared.
    owner: Option<Arc<dyn CallerEnd>>,
}

/// Whose a word of the server can be.
#[derive(Debug)]
pub(super) enum Whose {
    /// Only this caller's.
    Of {
        caller: Arc<dyn CallerEnd>,
        /// The call it came with.
        call: Option<u64>,
    },
    /// Calls of several callers are in flight.
    Several,
    /// No call is in flight.
    Nobody,
}

impl Waiters {
    pub(crate) fn new(in_flight_max: usize, owner: Option<Arc<dyn CallerEnd>>) -> Self {
        Self {
            pending: Pending::new(in_flight_max),
            questions: Questions::default(),
            owner,
        }
    }

    /// Says whose a word is that came on the stream of `via`, or on one that all share.
    pub(super) fn whose(&self, via: Option<u64>) -> Whose {
        let of = |call: u64, caller: &Arc<dyn CallerEnd>| Whose::Of {
            caller: Arc::clone(caller),
            call: Some(call),
        };
        if let Some(id) = via {
            let waiter = self.pending.get(id);
            return match waiter.and_then(|waiter| waiter.caller.as_ref()) {
                Some(caller) => of(id, caller),
                None => self.owned(),
            };
        }
        let mut candidates = Candidates::default();
        for (id, waiter) in self.pending.iter() {
            if let Some(caller) = &waiter.caller
                && !candidates.add(id, caller, waiter.may_ask)
            {
                return Whose::Several;
            }
        }
        match candidates.newest {
            None => self.owned(),
            // Calls without a session have nothing in common but what their clients call
            // themselves.
            Some((_, caller)) if candidates.count > 1 && caller.answers_later() => Whose::Several,
            Some((id, caller)) => of(id, caller),
        }
    }

    fn owned(&self) -> Whose {
        match &self.owner {
            Some(owner) => Whose::Of {
                caller: Arc::clone(owner),
                call: None,
            },
            None => Whose::Nobody,
        }
    }

    /// Whether a request is a stream of changes.
    pub(super) fn listens(&self, id: u64) -> bool {
        let waiter = self.pending.get(id);
        waiter.is_some_and(|waiter| waiter.stream.is_some())
    }

    /// Takes out who is to be told what the server agrees to.
    pub(super) fn agreed(&mut self, id: u64) -> Option<oneshot::Sender<Bytes>> {
        self.pending.get_mut(id)?.stream.as_mut()?.agreed.take()
    }

    /// Returns a caller of this session that waits.
    pub(super) fn newest_of(&self, session: SessionKey) -> Option<Arc<dyn CallerEnd>> {
        let of_session = self.pending.iter().filter_map(|(id, waiter)| {
            let caller = waiter.caller.as_ref()?;
            (caller.session() == session).then_some((id, caller))
        });
        of_session
            .max_by_key(|(id, _)| *id)
            .map(|(_, caller)| Arc::clone(caller))
    }

    /// Returns where the progress of a request goes, and under which token.
    pub(super) fn progress(&self, id: u64) -> Option<(Arc<dyn CallerEnd>, Bytes)> {
        let waiter = self.pending.get(id)?;
        Some((Arc::clone(waiter.caller.as_ref()?), waiter.token.clone()?))
    }

    /// Enters a question to a caller; `false` when there is no room for it.
    pub(super) fn open(
        &mut self,
        id: &Bytes,
        caller: &Arc<dyn CallerEnd>,
        call: Option<u64>,
    ) -> bool {
        let open = Open {
            caller: Arc::clone(caller),
            number: None,
            call,
        };
        let opened = self.questions.open(id, open);
        if opened && let Some(waiter) = call.and_then(|call| self.pending.get_mut(call)) {
            waiter.asked.begin(now());
        }
        opened
    }

    /// Closes a question, because it is answered or taken back.
    pub(super) fn close(&mut self, id: &[u8]) -> Option<(Arc<dyn CallerEnd>, Option<QuestionId>)> {
        let open = self.questions.close(id)?;
        if let Some(waiter) = open.call.and_then(|call| self.pending.get_mut(call)) {
            waiter.asked.end(now());
        }
        Some((open.caller, open.number))
    }

    /// Ends the wait of a caller that gave up. Returns whether its request may have left, and the
    /// questions that it will not answer: they are to be withdrawn, outside the lock.
    pub(crate) fn give_up(&mut self, id: u64) -> Option<(Sent, Vec<Unasked>)> {
        let (_, sent) = self.pending.take(id)?;
        let unasked = self.questions.close_of(id);
        Some((sent, unasked.into_iter().map(Unasked).collect()))
    }

    /// Returns until when a wait that began with `deadline` goes on, after it lasted `until` some
    /// moment; `None` when its time is up.
    pub(super) fn patience(&self, id: u64, deadline: Instant, until: Instant) -> Option<Instant> {
        let asked = self.pending.get(id)?.asked;
        let now = now();
        let more = deadline.checked_add(asked.in_all(now))?;
        if more > until {
            // While a question is open the end moves on with the clock.
            let least = if asked.open > 0 { now + GRACE } else { more };
            Some(more.max(least))
        } else {
            None
        }
    }
}

/// The calls of one session whose a word of the server can be: those during which servers ask,
/// where there are any, and else all.
#[derive(Default)]
struct Candidates<'a> {
    newest: Option<(u64, &'a Arc<dyn CallerEnd>)>,
    count: usize,
    may_ask: bool,
}

impl<'a> Candidates<'a> {
    /// Takes a call in; `false` where it is of another session than those before it.
    fn add(&mut self, id: u64, caller: &'a Arc<dyn CallerEnd>, may_ask: bool) -> bool {
        match self.newest {
            Some((_, seen)) if seen.session() != caller.session() => return false,
            Some(_) if self.may_ask && !may_ask => {}
            Some((seen, _)) if self.may_ask == may_ask => {
                self.count += 1;
                if id > seen {
                    self.newest = Some((id, caller));
                }
            }
            Some(_) | None => {
                *self = Self {
                    newest: Some((id, caller)),
                    count: 1,
                    may_ask,
                };
            }
        }
        true
    }
}

/// Whether a server may ask during a request.
fn may_ask(asked: &str) -> bool {
    matches!(
        asked,
        method::TOOLS_CALL | method::PROMPTS_GET | method::RESOURCES_READ | method::TASKS_RESULT
    )
}

/// A question whose call is over.
#[derive(Debug)]
pub(crate) struct Unasked(Open);

impl Unasked {
    /// Tells the caller that nobody waits for its answer any more.
    pub(crate) fn withdraw(self) {
        if let Some(number) = self.0.number {
            self.0.caller.withdraw(number);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a person takes is measured on the clock that deadlines go by"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests;
