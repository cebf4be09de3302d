//! What a person can see of a server.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_core::breaker::Circuit;
use bowline_core::time::millis;
use serde::Serialize;

use super::{State, Supervisor, lock};

/// One server's line in `status`.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    /// Its name.
    pub name: Arc<str>,
    /// What it is doing.
    pub state: &'static str,
    /// Whether it serves right now.
    pub active: bool,
    /// Whether it waits for its first call before it is started.
    pub lazy: bool,
    /// How it is reached.
    pub transport: &'static str,
    /// The command line.
    pub command: String,
    /// How often it was started.
    pub generation: u64,
    /// The process that runs it.
    pub pid: Option<u32>,
    /// How long it has served.
    pub uptime_ms: Option<u64>,
    /// How many tools the catalog holds of it.
    pub tools: usize,
    /// Calls under way.
    pub in_flight: usize,
    /// Calls ended since the gateway started.
    pub calls: u64,
    /// Of those, the ones without an answer of the server.
    pub errors: u64,
    /// Restarts still counted against its budget.
    pub restart_count: u64,
    /// Failures in a row that the breaker has seen.
    pub consecutive_failures: u32,
    /// Who shares a link to it.
    pub isolation: &'static str,
    /// Links of single sessions or principals, beside the shared one.
    pub own_links: usize,
    /// Why sessions have links of their own, where the server itself was the reason.
    pub isolated_because: Option<&'static str>,
    /// The breaker.
    pub circuit: &'static str,
    /// Whether it was restarted too often.
    pub ejected: bool,
    /// When it is tried again.
    pub retry_after_ms: Option<u64>,
    /// What it failed with last.
    pub last_error: Option<LastError>,
}

/// Why a server that all shared is shared no longer.
const INTERACTIVE: &str = "it asked a client for something while calls of several sessions were \
                           in flight";

/// A failure that is over.
#[derive(Clone, Debug, Serialize)]
pub struct LastError {
    /// Its class.
    pub class: &'static str,
    /// What happened.
    pub message: Arc<str>,
    /// How long ago.
    pub age_ms: u64,
}

impl Supervisor {
    /// Returns what a person can see now; `tools` is what the catalog holds of the server.
    #[must_use]
    pub fn status(&self, tools: usize) -> ServerStatus {
        let shared = &self.shared;
        let now = shared.clock.now();
        let state = shared.state.borrow().clone();
        let ready = shared.ready.load_full();
        let (circuit, consecutive_failures) = {
            let breaker = lock(&shared.breaker);
            (breaker.circuit(now), breaker.failures())
        };
        let last_error = lock(&shared.last_error)
            .as_ref()
            .map(|(class, message, at)| LastError {
                class: class.as_str(),
                message: Arc::clone(message),
                age_ms: now.millis_since(*at),
            });
        ServerStatus {
            name: Arc::clone(&shared.spec.name),
            state: state.as_str(),
            active: state == State::Ready,
            lazy: shared.spec.lazy,
            transport: shared.spec.reach.transport(),
            command: shared.spec.reach.shown(),
            generation: shared.counts.generation.load(Ordering::Relaxed),
            pid: ready.as_ref().and_then(|ready| ready.link.pid()),
            uptime_ms: ready.as_ref().map(|ready| now.millis_since(ready.since)),
            tools,
            in_flight: ready.as_ref().map_or(0, |ready| ready.link.in_flight())
                + shared.own.in_flight(),
            calls: shared.counts.calls.load(Ordering::Relaxed),
            errors: shared.counts.errors.load(Ordering::Relaxed),
            restart_count: shared.counts.restarts.load(Ordering::Relaxed),
            consecutive_failures,
            isolation: shared.spec.isolation.as_str(),
            own_links: shared.own.len(),
            isolated_because: shared.is_interactive().then_some(INTERACTIVE),
            circuit: match circuit {
                Circuit::Closed => "closed",
                Circuit::Open => "open",
                Circuit::HalfOpen => "half_open",
            },
            ejected: matches!(state, State::Ejected { .. }),
            retry_after_ms: match state {
                State::Backoff { until, .. } => Some(millis(now.until(until))),
                State::Idle
                | State::Stopped
                | State::Starting
                | State::Ready
                | State::Ejected { .. }
                | State::Draining => None,
            },
            last_error,
        }
    }
}
