//! Registry entry of one executor, connected or not.

use std::sync::{Arc, Mutex, MutexGuard};

use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_link::http::http_client::HttpError;
use bowline_link::websocket::close_codes;
use bowline_runtime::Clock;

use crate::connection::{
    ExecutorConnection, ExecutorInfo, ExecutorSession, ExecutorTraffic, ExecutorTunnel, away_error,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::{DialDirection, DialSpec, ExecutorProtocol, ExecutorStatus, RegistryShared};

/// One executor.
#[derive(Debug)]
pub(crate) struct ExecutorEntry {
    name: Arc<str>,
    state: Mutex<ExecutorState>,
    /// Counts changes of the state.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(super) struct ExecutorState {
    /// Number of name claims so far; the newest claim owns the name.
    pub(super) claim_number: u64,
    pub(super) current: Option<CurrentConnection>,
    /// The session, which may outlive a connection.
    pub(super) session: Option<Arc<ExecutorSession>>,
    /// The executor's latest info.
    pub(super) offers: ExecutorInfo,
    pub(super) direction: Option<DialDirection>,
    pub(super) protocol: ExecutorProtocol,
    pub(super) peer: Option<Arc<str>>,
    /// Start of the current state, connected or away, by the wall clock.
    pub(super) since_ms: Option<u64>,
    /// Time of the last loss.
    pub(super) lost_at: Option<MonotonicTime>,
    /// Why the executor is not connected.
    pub(super) lost_reason: Option<Arc<str>>,
    /// Callers wait for the executor until this time.
    pub(super) wait_until: Option<MonotonicTime>,
    /// Traffic of earlier connections.
    pub(super) past_traffic: ExecutorTraffic,
    /// Handle of the dial loop.
    dial: Option<DialHandle>,
}

/// The current connection.
#[derive(Clone, Debug)]
pub(crate) struct CurrentConnection {
    pub(crate) connection: Arc<dyn ExecutorConnection>,
    /// The same connection, if over Bowline's protocol.
    pub(crate) tunnel: Option<Arc<ExecutorTunnel>>,
}

/// Control of the dial loop.
#[derive(Debug)]
struct DialHandle {
    /// `None` stops the loop.
    spec: watch::Sender<Option<DialSpec>>,
}

impl ExecutorEntry {
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

    pub(super) fn state(&self) -> MutexGuard<'_, ExecutorState> {
        lock(&self.state)
    }

    /// Wakes all waiters.
    pub(super) fn notify_changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn is_dialled(&self) -> bool {
        self.state().dial.is_some()
    }

    /// Whether the entry may be forgotten.
    pub(super) fn is_idle(self: &Arc<Self>) -> bool {
        let state = self.state();
        Arc::strong_count(self) == 1 && state.current.is_none() && state.dial.is_none()
    }

    /// Whether a live connection exists.
    pub(super) fn is_connected(&self) -> bool {
        let state = self.state();
        let current = state.current.as_ref();
        current.is_some_and(|current| current.connection.disconnect_reason().is_none())
    }

    /// Whether callers wait for the executor.
    pub(super) fn is_awaited(&self, now: MonotonicTime) -> bool {
        self.state()
            .wait_until
            .is_some_and(|wait_until| wait_until > now)
    }

    pub(super) fn lost_at(&self) -> Option<MonotonicTime> {
        self.state().lost_at
    }

    /// Returns the current connection; waits for a recently lost executor.
    pub(crate) async fn wait_connection(
        &self,
        clock: &dyn Clock,
        until: Option<Instant>,
    ) -> Result<CurrentConnection, HttpError> {
        if let Some(current) = self.state().current.as_ref()
            && current.connection.disconnect_reason().is_none()
        {
            return Ok(current.clone());
        }
        let mut changes = self.changes.subscribe();
        loop {
            let wait_until = {
                let state = self.state();
                match &state.current {
                    Some(current) if current.connection.disconnect_reason().is_none() => {
                        return Ok(current.clone());
                    }
                    // The claim has not noticed the end yet, and will set `wait_until`.
                    Some(_) => None,
                    None => match state
                        .wait_until
                        .filter(|wait_until| *wait_until > clock.now())
                    {
                        Some(wait_until) => Some(clock.instant(wait_until)),
                        None => return Err(self.away_error(&state)),
                    },
                }
            };
            let until = match (wait_until, until) {
                (Some(wait_until), Some(until)) => Some(wait_until.min(until)),
                (wait_until, until) => wait_until.or(until),
            };
            let in_time = match until {
                Some(until) => timeout_at(until, changes.changed()).await.is_ok(),
                None => changes.changed().await.is_ok(),
            };
            if !in_time {
                return Err(self.away_error(&self.state()));
            }
        }
    }

    /// Waits until the executor connects or reconnects.
    pub(super) async fn wait_reconnected(&self) {
        let claim_number = |state: &ExecutorState| {
            let current = state.current.as_ref();
            current
                .filter(|current| current.connection.disconnect_reason().is_none())
                .map(|_| state.claim_number)
        };
        let mut changes = self.changes.subscribe();
        let previous = claim_number(&self.state());
        loop {
            let now = claim_number(&self.state());
            // The sender lives in `self`, so the channel cannot close.
            if (now.is_some() && now != previous) || changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn away_error(&self, state: &ExecutorState) -> HttpError {
        let reason = state.lost_reason.as_deref().unwrap_or("it has not joined");
        away_error(&format!(
            "executor `{}` is not connected: {reason}",
            self.name
        ))
    }

    pub(crate) fn status(&self) -> ExecutorStatus {
        let state = self.state();
        let current = state.current.as_ref();
        let now = current
            .map(|current| current.connection.traffic())
            .unwrap_or_default();
        let lost_reason = match current {
            Some(_) => None,
            None => state.lost_reason.clone(),
        };
        ExecutorStatus {
            name: Arc::clone(&self.name),
            connected: current
                .is_some_and(|current| current.connection.disconnect_reason().is_none()),
            direction: state.direction,
            protocol: state.protocol,
            peer: state.peer.clone(),
            software: Arc::clone(&state.offers.software),
            servers: state.offers.servers.clone(),
            secrets: state.offers.secrets.clone(),
            traffic: add_traffic(state.past_traffic, now),
            since_ms: state.since_ms,
            lost_reason,
        }
    }

    /// Sets the dial spec; returns a receiver for a new dial loop if none is running.
    pub(super) fn start_dialling(
        &self,
        shared: &RegistryShared,
        spec: DialSpec,
    ) -> Option<watch::Receiver<Option<DialSpec>>> {
        let mut state = self.state();
        state.direction = Some(DialDirection::Dialled);
        state.protocol = spec.protocol;
        state.peer = Some(spec.endpoint.to_string().into());
        if let Some(dial) = &state.dial {
            dial.spec.send_replace(Some(spec));
            return None;
        }
        // Callers wait for the first attempt.
        state.wait_until = Some(shared.clock.now().plus(shared.options.recovery_wait));
        let (sender, receiver) = watch::channel(Some(spec));
        state.dial = Some(DialHandle { spec: sender });
        Some(receiver)
    }

    pub(super) fn stop_dialling(&self) {
        let dial = {
            let mut state = self.state();
            state.wait_until = None;
            state.dial.take()
        };
        if let Some(dial) = dial {
            dial.spec.send_replace(None);
            self.close(close_codes::NORMAL, "it is not used any more");
            self.notify_changed();
        }
    }

    /// Records a failed dial attempt: callers stop waiting, unless the executor was lost recently.
    pub(super) fn record_dial_failure(&self, reason: Arc<str>) {
        let mut state = self.state();
        if state.lost_at.is_none() {
            state.wait_until = None;
        }
        state.lost_reason = Some(reason);
        drop(state);
        self.notify_changed();
    }

    pub(super) fn close(&self, code: u16, reason: &str) {
        let current = self.state().current.clone();
        if let Some(current) = current {
            current.connection.close(code, reason);
        }
    }
}

impl ExecutorState {
    /// Closes the connection of the former owner of the name.
    pub(super) fn fence_connection(&mut self) {
        if let Some(current) = self.current.take() {
            self.past_traffic = add_traffic(
                self.past_traffic,
                without_open_streams(current.connection.traffic()),
            );
            current
                .connection
                .close(close_codes::FENCED, "another connection has this name now");
        }
    }

    pub(super) fn drop_connection(&mut self) {
        if let Some(current) = self.current.take() {
            self.past_traffic = add_traffic(
                self.past_traffic,
                without_open_streams(current.connection.traffic()),
            );
        }
    }
}

const fn without_open_streams(traffic: ExecutorTraffic) -> ExecutorTraffic {
    ExecutorTraffic {
        streams: 0,
        ..traffic
    }
}

const fn add_traffic(one: ExecutorTraffic, two: ExecutorTraffic) -> ExecutorTraffic {
    ExecutorTraffic {
        streams: one.streams + two.streams,
        opened: one.opened + two.opened,
        sent_bytes: one.sent_bytes + two.sent_bytes,
        received_bytes: one.received_bytes + two.received_bytes,
    }
}
