//! One executor by its name, whether it is connected or not.

use std::sync::{Arc, Mutex, MutexGuard};

use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_link::executor::{Carried, Carrier, FENCED, Offers, Session, Tunnel, away};
use bowline_link::http::client::HttpError;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::{DialSpec, ExecutorStatus, Protocol, Shared, Via};
use crate::ports::Clock;

/// The close code of an end in order.
const DONE: u16 = 1000;

/// One executor.
#[derive(Debug)]
pub(in crate::executor) struct Entry {
    name: Arc<str>,
    state: Mutex<State>,
    /// Counts what happens to it.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Counts who had the name; the newest has it.
    pub(super) seat: u64,
    pub(super) here: Option<Here>,
    /// What outlives a connection, while it may.
    pub(super) session: Option<Arc<Session>>,
    /// What it said of itself last.
    pub(super) offers: Offers,
    pub(super) via: Option<Via>,
    pub(super) protocol: Protocol,
    pub(super) peer: Option<Arc<str>>,
    /// Since when it is connected or away, by the wall clock.
    pub(super) since_ms: Option<u64>,
    /// When it was lost.
    pub(super) lost_at: Option<Now>,
    /// Why it is not connected.
    pub(super) lost: Option<Arc<str>>,
    /// Until when callers wait for it.
    pub(super) hope: Option<Now>,
    /// What earlier connections carried.
    pub(super) past: Carried,
    /// What dials it.
    dial: Option<Order>,
}

/// A connection.
#[derive(Clone, Debug)]
pub(in crate::executor) struct Here {
    pub(in crate::executor) carrier: Arc<dyn Carrier>,
    /// The same, where it speaks our protocol.
    pub(in crate::executor) tunnel: Option<Arc<Tunnel>>,
}

/// What one that is dialled is dialled by.
#[derive(Debug)]
struct Order {
    /// Absent when it is over.
    spec: watch::Sender<Option<DialSpec>>,
}

impl Entry {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            state: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }

    pub(super) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Wakes all who wait.
    pub(super) fn told(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn is_dialled(&self) -> bool {
        self.state().dial.is_some()
    }

    /// Whether nobody misses it.
    pub(super) fn is_idle(self: &Arc<Self>) -> bool {
        let state = self.state();
        Arc::strong_count(self) == 1 && state.here.is_none() && state.dial.is_none()
    }

    /// Whether it has a connection that did not end.
    pub(super) fn is_connected(&self) -> bool {
        let state = self.state();
        let here = state.here.as_ref();
        here.is_some_and(|here| here.carrier.ended().is_none())
    }

    /// Whether callers wait for it.
    pub(super) fn is_hoped_for(&self, now: Now) -> bool {
        self.state().hope.is_some_and(|hope| hope > now)
    }

    pub(super) fn lost_at(&self) -> Option<Now> {
        self.state().lost_at
    }

    /// Returns the connection; waits for one that was lost just now.
    pub(in crate::executor) async fn connected(
        &self,
        clock: &dyn Clock,
        until: Option<Instant>,
    ) -> Result<Here, HttpError> {
        if let Some(here) = self.state().here.as_ref()
            && here.carrier.ended().is_none()
        {
            return Ok(here.clone());
        }
        let mut changes = self.changes.subscribe();
        loop {
            let hope = {
                let state = self.state();
                match &state.here {
                    Some(here) if here.carrier.ended().is_none() => return Ok(here.clone()),
                    // Who serves it has not noticed yet, and says what then.
                    Some(_) => None,
                    None => match state.hope.filter(|hope| *hope > clock.now()) {
                        Some(hope) => Some(clock.instant(hope)),
                        None => return Err(self.away(&state)),
                    },
                }
            };
            let until = match (hope, until) {
                (Some(hope), Some(until)) => Some(hope.min(until)),
                (hope, until) => hope.or(until),
            };
            let in_time = match until {
                Some(until) => timeout_at(until, changes.changed()).await.is_ok(),
                None => changes.changed().await.is_ok(),
            };
            if !in_time {
                return Err(self.away(&self.state()));
            }
        }
    }

    /// Waits until it connects, or connects anew.
    pub(super) async fn back(&self) {
        let seat = |state: &State| {
            let here = state.here.as_ref();
            here.filter(|here| here.carrier.ended().is_none())
                .map(|_| state.seat)
        };
        let mut changes = self.changes.subscribe();
        let before = seat(&self.state());
        loop {
            let now = seat(&self.state());
            // The sender is ours, so the channel cannot close under us.
            if (now.is_some() && now != before) || changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn away(&self, state: &State) -> HttpError {
        let why = state.lost.as_deref().unwrap_or("it has not joined");
        away(&format!("executor `{}` is not connected: {why}", self.name))
    }

    pub(in crate::executor) fn status(&self) -> ExecutorStatus {
        let state = self.state();
        let here = state.here.as_ref();
        let now = here.map(|here| here.carrier.carried()).unwrap_or_default();
        let lost = match here {
            Some(_) => None,
            None => state.lost.clone(),
        };
        ExecutorStatus {
            name: Arc::clone(&self.name),
            connected: here.is_some_and(|here| here.carrier.ended().is_none()),
            via: state.via,
            protocol: state.protocol,
            peer: state.peer.clone(),
            software: Arc::clone(&state.offers.software),
            servers: state.offers.servers.clone(),
            secrets: state.offers.secrets.clone(),
            carried: sum(state.past, now),
            since_ms: state.since_ms,
            lost,
        }
    }

    /// Notes how it is to be dialled; returns what its dialler goes by, where there is none yet.
    pub(super) fn order(
        &self,
        shared: &Shared,
        spec: DialSpec,
    ) -> Option<watch::Receiver<Option<DialSpec>>> {
        let mut state = self.state();
        state.via = Some(Via::Dialled);
        state.protocol = spec.protocol;
        state.peer = Some(spec.endpoint.to_string().into());
        if let Some(order) = &state.dial {
            order.spec.send_replace(Some(spec));
            return None;
        }
        // The first attempt is waited for.
        state.hope = Some(shared.clock.now().plus(shared.options.recovery));
        let (sender, receiver) = watch::channel(Some(spec));
        state.dial = Some(Order { spec: sender });
        Some(receiver)
    }

    pub(super) fn cancel_order(&self) {
        let order = {
            let mut state = self.state();
            state.hope = None;
            state.dial.take()
        };
        if let Some(order) = order {
            order.spec.send_replace(None);
            self.close(DONE, "it is not used any more");
            self.told();
        }
    }

    /// Notes that an attempt to dial failed: nobody waits for it any longer than that, unless it
    /// was lost just now.
    pub(super) fn failed(&self, reason: Arc<str>) {
        let mut state = self.state();
        if state.lost_at.is_none() {
            state.hope = None;
        }
        state.lost = Some(reason);
        drop(state);
        self.told();
    }

    pub(super) fn close(&self, code: u16, reason: &str) {
        let here = self.state().here.clone();
        if let Some(here) = here {
            here.carrier.close(code, reason);
        }
    }
}

impl State {
    /// Takes the name from who had it.
    pub(super) fn fence(&mut self) {
        if let Some(here) = self.here.take() {
            self.past = sum(self.past, finished(here.carrier.carried()));
            here.carrier
                .close(FENCED, "another connection has this name now");
        }
    }

    pub(super) fn leave(&mut self) {
        if let Some(here) = self.here.take() {
            self.past = sum(self.past, finished(here.carrier.carried()));
        }
    }
}

const fn finished(carried: Carried) -> Carried {
    Carried {
        streams: 0,
        ..carried
    }
}

const fn sum(one: Carried, two: Carried) -> Carried {
    Carried {
        streams: one.streams + two.streams,
        opened: one.opened + two.opened,
        sent_bytes: one.sent_bytes + two.sent_bytes,
        received_bytes: one.received_bytes + two.received_bytes,
    }
}
