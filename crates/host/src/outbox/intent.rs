//! A write that is stored and under way: what becomes of it is written down, also when its caller
//! leaves.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Body, Call, Reply};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_core::lane::{Verdict, is_own_limit, live, may_be_poison};
use bowline_core::sync::lock;
use bowline_journal::{JournalError, Lane, MessageId, Receipt};
use bowline_wire::era::result::{ResultKind, kind};
use bowline_wire::object;
use bytes::Bytes;

use super::Shared;
use super::answer::{Queued, Reason, queued};
use super::flights::Flight;
use super::parked::TurnGuard;
use super::record::Record;

/// Largest result that is kept for callers who come again with the same key, in bytes.
pub(super) const RESULT_BYTES_MAX: usize = 256 * 1024;

/// A call that is stored and under way.
#[derive(Debug)]
pub(crate) struct Intent {
    shared: Arc<Shared>,
    receipt: Receipt,
    id: MessageId,
    position: u64,
    lane: Lane,
    record: Record,
    /// The call with its key in place.
    call: Call,
    /// What is to be written down, while it is not.
    ending: Option<Ending>,
    /// Keeps its key until it is over.
    flight: Option<Flight>,
    /// Its share of what the callers of a draining lane have in flight.
    turn: Option<TurnGuard>,
}

/// What becomes of a stored write.
#[derive(Clone, Debug)]
enum Ending {
    /// It was done.
    Done(Option<Bytes>),
    /// It waits.
    Wait,
    /// It was never to be done.
    Withdraw,
}

/// Whether the journal still has a stored write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    /// The write is on the disk, whether or not its ending is.
    Kept,
    /// The files of the journal are gone, and the write with them.
    Lost,
}

impl Intent {
    pub(super) fn new(
        shared: Arc<Shared>,
        (receipt, id, position): (Receipt, MessageId, u64),
        (lane, record): (Lane, Record),
        asked: &Call,
        (flight, turn): (Flight, Option<TurnGuard>),
    ) -> Self {
        let stored = record.call();
        let call = Call {
            params: stored.params,
            subject: stored.subject,
            name_at: stored.name_at,
            progress_at: stored.progress_at.filter(|_| asked.progress_at.is_some()),
            key: stored.key,
            ..asked.clone()
        };
        Self {
            shared,
            receipt,
            id,
            position,
            lane,
            record,
            call,
            ending: Some(Ending::Withdraw),
            flight: Some(flight),
            turn,
        }
    }

    /// Returns the call as it is to be sent.
    pub(crate) const fn call(&self) -> &Call {
        &self.call
    }

    /// Returns its idempotency key.
    pub(crate) fn key(&self) -> Arc<str> {
        Arc::clone(&self.record.head.key)
    }

    /// Takes it back: it was not sent, and will be stored anew.
    pub(crate) async fn withdraw(mut self: Box<Self>) {
        self.write(Ending::Withdraw).await;
    }

    /// Writes down what became of it: done, or queued where its server was away. What was done is
    /// told as done, also where that could not be written down. `serves` says whether the server
    /// answered other calls meanwhile.
    pub(crate) async fn settle(
        mut self: Box<Self>,
        outcome: Result<Reply, CallError>,
        serves: bool,
    ) -> Result<Reply, CallError> {
        let verdict = match &outcome {
            Ok(reply) => {
                let ending = match result_of(reply) {
                    Some(result) => Ending::Done(kept(result)),
                    // It was refused, so that its key is free for another try; or its server asks
                    // for something first, and is to be tried again with the answer.
                    None => Ending::Withdraw,
                };
                self.write(ending).await;
                return outcome;
            }
            Err(error) => (live(error), reason_of(error, serves)),
        };
        let (verdict, reason) = verdict;
        match verdict {
            Verdict::Refused => {
                self.write(Ending::Withdraw).await;
            }
            Verdict::Ran => {
                self.write(Ending::Done(None)).await;
            }
            Verdict::Wait(after) => {
                // Before it can be handed out, so that whatever comes now comes behind it.
                self.waits(reason, after);
                // Without its record nobody would send it later: its caller gets the error.
                if self.write(Ending::Wait).await == Storage::Lost {
                    return outcome;
                }
                let session = self.call.caller.as_ref().map(|caller| caller.session());
                if let Err(error) = &outcome {
                    self.shared.failed(self.id, error);
                }
                let head = &self.record.head;
                self.shared.is_queued(self.id, session, head);
                let told = Queued {
                    id: self.id,
                    position: self.position,
                    head,
                };
                return Ok(queued(&told, reason, &self.call.id));
            }
        }
        outcome
    }

    fn waits(&self, reason: Reason, after: Option<Duration>) {
        let (lane, now) = (Arc::from(self.lane.as_str()), self.shared.clock.now());
        let jitter = self.shared.jitter(&lane);
        {
            let mut board = lock(&self.shared.board);
            board.note(&lane, &self.record.head.server, now);
            if reason == Reason::Away {
                board.failed(&lane, after, now, jitter);
            }
        }
        if reason == Reason::Away {
            self.shared.parked.release(&self.lane, reason);
        }
    }

    /// Writes an ending down; where this is dropped in the middle, it is written all the same.
    async fn write(&mut self, ending: Ending) -> Storage {
        self.ending = Some(ending.clone());
        let is_done = matches!(ending, Ending::Done(_));
        let written = end(&self.shared, self.receipt, ending).await;
        self.ending = None;
        let storage = match &written {
            Err(JournalError::Replaced) => Storage::Lost,
            Ok(()) | Err(_) => Storage::Kept,
        };
        report(&self.shared, (self.id, &self.lane), written);
        if is_done {
            let now = self.shared.clock.now();
            lock(&self.shared.board).ready(&self.record.head.server, now);
        }
        storage
    }
}

/// A caller that leaves takes its write back; when the gateway goes down instead, the write stays.
impl Drop for Intent {
    fn drop(&mut self) {
        let Some(ending) = self.ending.take() else {
            return;
        };
        // A gateway that goes down leaves what is under way to the next one.
        let ending = match ending {
            Ending::Withdraw if self.shared.is_closing() => Ending::Wait,
            ending => ending,
        };
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let (receipt, id, lane) = (self.receipt, self.id, self.lane.clone());
        let held = (self.flight.take(), self.turn.take());
        self.shared.tasks.spawn("outbox.end", async move {
            let written = end(&shared, receipt, ending).await;
            report(&shared, (id, &lane), written);
            // Whoever comes with the same key finds what was written.
            drop(held);
        });
    }
}

async fn end(shared: &Shared, receipt: Receipt, ending: Ending) -> Result<(), JournalError> {
    let (journal, at) = (&shared.journal, shared.at());
    match ending {
        Ending::Done(result) => journal.ack(receipt, result, at).await,
        Ending::Wait => shared.give_back(receipt).await,
        Ending::Withdraw => journal.withdraw(receipt, at).await,
    }
}

/// Lets those behind it go on. What could not be written is sent again after a restart, under the
/// same key.
fn report(shared: &Shared, (id, lane): (MessageId, &Lane), written: Result<(), JournalError>) {
    if let Err(error) = written {
        tracing::error!(id = id.0, %lane, %error, "what became of a write was not written down");
    }
    shared.wake_lane(lane.as_str());
    if lock(&shared.board).is_busy(lane.as_str()) {
        shared.poke.notify_one();
    }
}

/// Says why a write waits that failed: a server that answers others is not away.
fn reason_of(error: &CallError, serves: bool) -> Reason {
    match is_own_limit(error) || (serves && may_be_poison(error)) {
        true => Reason::Failed,
        false => Reason::Away,
    }
}

/// Whether the server asks for something before it carries a write out.
pub(super) fn is_question(reply: &Reply) -> bool {
    let body = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
    reply.era == Era::Modern
        && reply.body == Body::Result
        && matches!(kind(body), ResultKind::InputRequired | ResultKind::Unknown)
}

/// Returns the result of a write that its server carried out, or has taken as a task.
pub(super) fn result_of(reply: &Reply) -> Option<&[u8]> {
    if is_question(reply) {
        return None;
    }
    let body = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
    let is_error = object::field(body, "isError").is_some_and(|at| at.of(body) != b"false");
    (reply.body == Body::Result && !is_error).then_some(body)
}

/// Returns a result to keep, unless it is too large.
pub(super) fn kept(result: &[u8]) -> Option<Bytes> {
    (result.len() <= RESULT_BYTES_MAX).then(|| Bytes::copy_from_slice(result))
}
