//! One connection that has the name of an executor, until it ends or another one has it.

use std::sync::Arc;

use bowline_link::BoxFuture;
use bowline_link::executor::{
    Attached, CREDENTIAL_OVER, Carrier as _, FENCED, GOING_DOWN, Session, Tunnel,
};
use bowline_link::websocket::{Ended, Incoming, Outgoing};
use bowline_wire::broker::Refusal;
use bowline_wire::executor::Hello;

use super::entry::{Entry, Here};
use super::{Shared, Via, random_name};

/// A connection that has the name.
#[derive(Debug)]
pub(super) struct Seat {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    number: u64,
    attached: Attached,
}

impl Seat {
    /// Takes the name. Who had it is told and does not come back by itself; the session is the one
    /// before where it is the same start of the same executor.
    pub(super) fn take(
        shared: &Arc<Shared>,
        entry: &Arc<Entry>,
        hello: &Hello,
        via: Via,
        from: &str,
    ) -> Self {
        let mut over = None;
        let mut state = entry.state();
        state.seat += 1;
        state.fence();
        let before = state.session.take();
        let session = match before {
            Some(session) if *session.instance() == hello.instance => session,
            before => {
                over = before;
                let instance = Arc::clone(&hello.instance);
                Session::new(random_name(), instance, shared.options.flow)
            }
        };
        state.session = Some(Arc::clone(&session));
        state.via = Some(via);
        state.peer = Some(from.into());
        let number = state.seat;
        let attached = session.attach();
        drop(state);
        if let Some(over) = over {
            over.end("the executor was started anew");
        }
        Self {
            shared: Arc::clone(shared),
            entry: Arc::clone(entry),
            number,
            attached,
        }
    }

    /// Opens the session and serves until the end; returns how it ended, and why its right did
    /// where that is why.
    pub(super) async fn serve(
        self,
        hello: &Hello,
        io: (Outgoing, Incoming),
        credential: BoxFuture<'static, Refusal>,
    ) -> (Ended, Option<Refusal>) {
        let Self {
            shared,
            entry,
            number,
            attached,
        } = self;
        // Whatever becomes of this future, the connection leaves.
        let mut leaving = Leaving {
            shared: Arc::clone(&shared),
            entry: Arc::clone(&entry),
            number,
            ended: Ended::Local,
        };
        let outgoing = io.0.clone();
        let opening = Tunnel::open(hello, attached, io, &shared.tasks);
        let tunnel = match opening.await {
            Ok(tunnel) => Arc::new(tunnel),
            Err(error) => {
                error.tell(&outgoing);
                leaving.ended = Ended::Invalid(error.to_string().into());
                return (leaving.ended.clone(), None);
            }
        };
        drop(outgoing);
        if !publish(&shared, &entry, number, &tunnel) {
            tunnel.close(FENCED, "another connection has this name now");
            return (Ended::Local, None);
        }
        tokio::select! {
            biased;
            ended = tunnel.over() => leaving.ended = ended,
            refusal = credential => {
                tunnel.close(CREDENTIAL_OVER, &refusal.reason);
                leaving.ended = tunnel.over().await;
                return (leaving.ended.clone(), Some(refusal));
            }
            () = shared.closed() => {
                tunnel.close(GOING_DOWN, "the gateway goes down");
                leaving.ended = tunnel.over().await;
            }
        }
        (leaving.ended.clone(), None)
    }
}

/// Makes a connection the one that callers use; `false` where another one has the name by now.
fn publish(shared: &Shared, entry: &Entry, number: u64, tunnel: &Arc<Tunnel>) -> bool {
    {
        let mut state = entry.state();
        if state.seat != number {
            return false;
        }
        state.offers = tunnel.offers().clone();
        state.since_ms = Some(shared.clock.unix_ms());
        state.lost = None;
        state.lost_at = None;
        state.hope = None;
        state.here = Some(Here {
            carrier: Arc::clone(tunnel) as _,
            tunnel: Some(Arc::clone(tunnel)),
        });
    }
    entry.told();
    shared.tell(entry.name(), "connected", None);
    true
}

/// A connection that is still to leave.
#[derive(Debug)]
struct Leaving {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    number: u64,
    ended: Ended,
}

impl Drop for Leaving {
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
            state.since_ms = Some(shared.clock.unix_ms());
            state.lost = Some(Arc::clone(&reason));
            state.lost_at = Some(now);
            state.hope = (!in_order).then(|| now.plus(shared.options.recovery));
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
