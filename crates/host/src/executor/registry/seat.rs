//! One connection that has the name of an executor, until it ends or another one has it.

use std::sync::Arc;

use bowline_core::time::Now;
use bowline_link::BoxFuture;
use bowline_link::executor::{Attached, CREDENTIAL_OVER, FENCED, GOING_DOWN, Session};
use bowline_link::websocket::Ended;
use bowline_wire::broker::Refusal;
use bowline_wire::executor::Hello;

use super::entry::{Entry, Here};
use super::{Shared, Via, random_name};

/// A connection that has the name. Dropped, it gives the name back.
#[derive(Debug)]
pub(super) struct Seat {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    number: u64,
    /// How its connection ended.
    ended: Ended,
    /// Whether callers used it.
    was_used: bool,
    /// Until when callers waited before it came.
    hope: Option<Now>,
}

impl Seat {
    /// Takes the name. Who had it is told, and does not come back by itself.
    pub(super) fn take(shared: &Arc<Shared>, entry: &Arc<Entry>, via: Via, from: &str) -> Self {
        let mut state = entry.state();
        state.seat += 1;
        state.fence();
        state.via = Some(via);
        state.peer = Some(from.into());
        // Callers wait for its handshake.
        let until = shared.clock.now().plus(shared.options.recovery);
        let hope = state.hope.replace(until);
        Self {
            shared: Arc::clone(shared),
            entry: Arc::clone(entry),
            number: state.seat,
            ended: Ended::Local,
            was_used: false,
            hope,
        }
    }

    /// Returns the session: the one before where it is the same start of the same executor, and
    /// none where another connection has the name by now.
    pub(super) fn attach(&self, hello: &Hello) -> Option<Attached> {
        let mut over = None;
        let mut state = self.entry.state();
        if state.seat != self.number {
            return None;
        }
        let session = match state.session.take() {
            Some(session) if *session.instance() == hello.instance => session,
            before => {
                over = before;
                let instance = Arc::clone(&hello.instance);
                Session::new(random_name(), instance, self.shared.options.flow)
            }
        };
        state.session = Some(Arc::clone(&session));
        let attached = session.attach();
        drop(state);
        if let Some(over) = over {
            over.end("the executor was started anew");
        }
        Some(attached)
    }

    /// Notes why the connection came to nothing.
    pub(super) fn fail(mut self, reason: &str) {
        self.ended = Ended::Invalid(reason.into());
    }

    /// Lets callers use a connection until its end; returns how it ended, and why its right did
    /// where that is why.
    pub(super) async fn serve(
        mut self,
        here: Here,
        credential: BoxFuture<'static, Refusal>,
    ) -> (Ended, Option<Refusal>) {
        let carrier = Arc::clone(&here.carrier);
        if !self.publish(here) {
            carrier.close(FENCED, "another connection has this name now");
            return (Ended::Local, None);
        }
        let shared = Arc::clone(&self.shared);
        let mut over = None;
        self.ended = tokio::select! {
            biased;
            ended = carrier.over() => ended,
            refusal = credential => {
                carrier.close(CREDENTIAL_OVER, &refusal.reason);
                over = Some(refusal);
                carrier.over().await
            }
            () = shared.closed() => {
                carrier.close(GOING_DOWN, "the gateway goes down");
                carrier.over().await
            }
        };
        (self.ended.clone(), over)
    }

    /// Makes a connection the one that callers use; `false` where another one has the name by now.
    fn publish(&mut self, here: Here) -> bool {
        {
            let mut state = self.entry.state();
            if state.seat != self.number {
                return false;
            }
            state.offers = here.carrier.offers().clone();
            state.since_ms = Some(self.shared.clock.unix_ms());
            state.lost = None;
            state.lost_at = None;
            state.hope = None;
            state.here = Some(here);
        }
        self.was_used = true;
        self.entry.told();
        self.shared.tell(self.entry.name(), "connected", None);
        true
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let (shared, entry) = (&self.shared, &self.entry);
        let reason: Arc<str> = self.ended.to_string().into();
        // Who closes in order takes its servers along, and is not waited for.
        let in_order = matches!(self.ended, Ended::Closed { .. } | Ended::Local);
        let session = {
            let mut state = entry.state();
            if state.seat != self.number {
                drop(state);
                return shared.tell(entry.name(), "fenced", Some(reason));
            }
            let now = shared.clock.now();
            state.leave();
            state.lost = Some(Arc::clone(&reason));
            if self.was_used {
                state.since_ms = Some(shared.clock.unix_ms());
                state.lost_at = Some(now);
                state.hope = (!in_order).then(|| now.plus(shared.options.recovery));
            } else {
                state.hope = self.hope;
            }
            state.session.clone()
        };
        entry.told();
        let word = if in_order { "left" } else { "lost" };
        shared.tell(entry.name(), word, Some(reason));
        let Some(session) = session else {
            return;
        };
        if in_order {
            return forget(entry, self.number, &session);
        }
        let (entry, number) = (Arc::clone(entry), self.number);
        let (keep, mut closing) = (shared.options.keep, shared.closing.subscribe());
        shared.tasks.spawn("executor session", async move {
            tokio::select! {
                () = tokio::time::sleep(keep) => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
            forget(&entry, number, &session);
        });
    }
}

/// Ends a session that nobody came back to.
fn forget(entry: &Entry, number: u64, session: &Session) {
    {
        let mut state = entry.state();
        if state.seat != number {
            return;
        }
        state.session = None;
    }
    session.end("the executor did not come back");
}
