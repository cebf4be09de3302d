//! The rounds of a call: each ends with the answer, or with what servers want to know.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_wire::object;

use super::brought::{Refusal, refused};
use super::written::Written;
use super::{Asked, Told, asking, wants};
use crate::edge::body::{self, Answer};
use crate::edge::mcp::call::read_params;
use crate::edge::modern::end::{End, Next, Outcome, Round};
use crate::edge::modern::parked::Stale;
use crate::edge::modern::state::{Refused, Ticket};
use crate::edge::stream::Source as _;

/// A round that takes longer is answered with a stream, which keeps the connection alive.
const STREAM_AFTER: Duration = Duration::from_secs(5);

/// How long the first question waits for others that a server asks with it.
const GATHER: Duration = Duration::from_millis(5);

/// A call under way that owns all it needs, so that it can move into a task.
pub(super) type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Takes the call back unless its caller was answered: who goes away before wants nothing more.
struct Leaving<'a> {
    told: &'a Told,
    end: &'a Arc<End>,
    answered: bool,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.end.cancel();
            over(self.told, self.end);
        }
    }
}

/// Forgets a call that is over, where it ever waited.
fn over(told: &Told, end: &End) {
    if let Some(handle) = end.handle() {
        lock(&told.edge.calls.parked).end(handle);
    }
}

/// Answers the first request of a call.
pub(super) async fn first(
    told: Told,
    end: Arc<End>,
    round: Arc<Round>,
    mut running: Running,
) -> Answer {
    // No timer of its own: the keeper of the connection looks at what is under way now and then.
    let clock = told.edge.host.clock();
    let until = clock.now().plus(STREAM_AFTER);
    let moved = poll_fn(|cx| {
        if let Poll::Ready(outcome) = running.as_mut().poll(cx) {
            return Poll::Ready(Moved::Over(outcome));
        }
        if end.poll_asked(cx).is_ready() {
            return Poll::Ready(Moved::Asked);
        }
        let said = round.line().poll_waiting(cx).is_ready();
        if told.streams && (said || clock.now() >= until) {
            return Poll::Ready(Moved::Said);
        }
        Poll::Pending
    })
    .await;
    let streams = match moved {
        Moved::Over(outcome) => {
            let written = told.outcome(&end, outcome);
            return deliver(&told, &round, written);
        }
        Moved::Asked => false,
        Moved::Said => true,
    };
    // From here on the call outlives the request.
    let call = Arc::clone(&end);
    told.edge.host.tasks().spawn("call", async move {
        let outcome = running.await;
        call.finish(outcome);
    });
    Box::pin(rest(Arc::new(told), end, round, streams)).await
}

/// What happens first to a call.
enum Moved {
    /// It is over.
    Over(Outcome),
    /// Its server wants to know something.
    Asked,
    /// Its server says something on the way, or takes long.
    Said,
}

/// Answers a request that brings answers to a call that waits here.
pub(super) async fn go_on(asked: &Asked<'_>, told: Told, ticket: Ticket) -> Answer {
    let Some(named) = read_params(&told.params, told.ask) else {
        return told.invalid(told.ask.missing());
    };
    let now = told.edge.host.clock().now();
    let resumed = lock(&told.edge.calls.parked).resume(ticket.handle, ticket.round, now);
    let end = match resumed {
        Ok(end) => end,
        Err(Stale::Over | Stale::Used) => return told.failed(&refused(Refusal::Used)),
        Err(Stale::Expired) => return told.failed(&refused(Refusal::State(Refused::Expired))),
    };
    let round = end.again(wants(asked, &told.params, &named));
    if let Some(answers) = object::field(&told.params, "inputResponses") {
        let answers = answers.of(&told.params);
        for (key, at) in object::fields(answers) {
            end.answer(&key, at.of(answers));
        }
    }
    rest(Arc::new(told), end, round, false).await
}

/// Sees a round of a call that runs in a task to its end.
async fn rest(told: Arc<Told>, end: Arc<End>, round: Arc<Round>, streams: bool) -> Answer {
    let mut deciding = Box::pin(decided(Arc::clone(&told), Arc::clone(&end)));
    if !streams {
        let mut leaving = Leaving {
            told: &told,
            end: &end,
            answered: false,
        };
        let clock = told.edge.host.clock();
        let until = clock.now().plus(STREAM_AFTER);
        let written = poll_fn(|cx| {
            if let Poll::Ready(written) = deciding.as_mut().poll(cx) {
                return Poll::Ready(Some(written));
            }
            let said = round.line().poll_waiting(cx).is_ready();
            if told.streams && (said || clock.now() >= until) {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await;
        leaving.answered = true;
        if let Some(written) = written {
            return deliver(&told, &round, written);
        }
    }
    let events = round.open();
    told.edge.host.tasks().spawn("call stream", async move {
        let written = deciding.await;
        round.line().finish(written.answer);
    });
    body::events(events)
}

/// Waits for what ends a round: the outcome, or questions for which the call is parked.
async fn decided(told: Arc<Told>, end: Arc<End>) -> Written {
    loop {
        if let Next::Over(outcome) = poll_fn(|cx| end.poll_next(cx)).await {
            over(&told, &end);
            return told.outcome(&end, outcome);
        }
        // A server that asks several things at once is given the time to do so.
        tokio::time::sleep(GATHER).await;
        if !end.is_asked() {
            continue;
        }
        if let Some(result) = asking::park(&told, &end) {
            end.gone();
            return told.result(&result);
        }
        // It cannot wait here, so nobody can be asked.
        end.refuse();
    }
}

/// Answers with plain JSON, or with a stream where something was said before.
fn deliver(told: &Told, round: &Arc<Round>, written: Written) -> Answer {
    if !told.streams || round.line().is_empty() {
        return written.alone();
    }
    let events = round.open();
    round.line().finish(written.answer);
    body::events(events)
}
