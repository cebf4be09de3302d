//! Status of a server for operators.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_api::servers::{
    CacheStatus, OmittedStatus, PinSummary, SandboxStatus, ServerLastError, ServerLimits,
    ServerStatus,
};
use bowline_core::breaker::CircuitState;
use bowline_core::cache::CacheView;
use bowline_core::era::EraSetting;
use bowline_core::error::CallError;
use bowline_core::pins::PinState;
use bowline_core::time::{MonotonicTime, to_millis};
use bowline_link::ProcessSet;

use super::{FailureSource, ServerState, Supervisor, lock};
use crate::catalog::{ListKind, ServerCatalog, Staleness};
use crate::pins::{PinMode, PinRegistry, ServerPinState};
use crate::spec::{ChildLimits, ServerSpec, ServerTransport};

fn sandbox_status(spec: &ServerSpec) -> Option<SandboxStatus> {
    let ServerTransport::Child(child) = &spec.transport else {
        return None;
    };
    Some(SandboxStatus {
        level: child.sandbox.level.as_str().into(),
        lacks: child.sandbox_lacks.map(|lack| lack.to_string()),
    })
}

/// Why a shared server became isolated.
const INTERACTIVE: &str = "it asked a client for something while calls of several sessions were \
                           in flight";

const fn cache_status(view: CacheView) -> CacheStatus {
    CacheStatus {
        entries: view.entries,
        bytes: view.bytes,
        hits: view.hits,
        misses: view.misses,
        evictions: view.evictions,
    }
}

fn server_limits(spec: &ServerSpec) -> ServerLimits {
    // Only a reaper enforces these limits.
    let child = match &spec.transport {
        ServerTransport::Child(child) if child.reaper.is_some() => {
            Some(child.limits.with_defaults())
        }
        ServerTransport::Child(_)
        | ServerTransport::Executor(_)
        | ServerTransport::Remote(_)
        | ServerTransport::InProcess(_)
        | ServerTransport::Peer(_) => None,
    };
    let child = |limit: fn(ChildLimits) -> Option<u64>| child.and_then(limit);
    ServerLimits {
        calls_max: spec.calls_max,
        queue_max: spec.queue_max,
        list_max: spec.list_max,
        call_timeout_ms: to_millis(spec.call_timeout),
        start_timeout_ms: to_millis(spec.start_timeout),
        restarts_max: spec.restart.restarts_max,
        restart_window_ms: to_millis(spec.restart.window),
        memory_bytes_max: child(|limits| limits.memory_bytes_max),
        processes_max: child(|limits| limits.processes_max),
        file_bytes_max: child(|limits| limits.file_bytes_max),
        open_files_max: child(|limits| limits.open_files_max),
    }
}

fn pin_summary(pins: &PinRegistry, spec: &ServerSpec) -> PinSummary {
    let mode = spec.pin.as_str().into();
    if spec.pin == PinMode::Off {
        return PinSummary {
            mode,
            ..PinSummary::default()
        };
    }
    let ServerPinState { pins, trouble, .. } = pins.server_pins(&spec.name);
    PinSummary {
        mode,
        changed: pins.count_states(|state| matches!(state, PinState::Changed { .. })),
        quarantined: pins.count_states(|state| *state == PinState::Quarantined),
        error: trouble.map(|trouble| Arc::clone(trouble.reason())),
    }
}

/// Returns the time until the next start.
const fn time_to_start(state: &ServerState, now: MonotonicTime) -> Option<Duration> {
    match state {
        ServerState::Backoff { until, .. } => Some(now.duration_until(*until)),
        ServerState::Idle
        | ServerState::Stopped
        | ServerState::Starting
        | ServerState::Ready
        | ServerState::Ejected { .. }
        | ServerState::Draining => None,
    }
}

impl Supervisor {
    /// Returns the status; `catalog` holds the server's catalog entries, `cache` its cache
    /// statistics. Values that require measuring are left empty.
    #[must_use]
    pub fn status(&self, catalog: Option<&ServerCatalog>, cache: CacheView) -> ServerStatus {
        let shared = &self.shared;
        let spec = &shared.spec;
        let now = shared.clock.now();
        let state = shared.state.borrow().clone();
        let ready = shared.shared_link.load_full();
        let (load, totals) = (self.load(), self.totals());
        let (circuit, consecutive_failures, rest) = {
            let breaker = lock(&shared.breaker);
            (
                breaker.circuit_state(now),
                breaker.failure_count(),
                breaker.remaining_cooldown(now),
            )
        };
        let in_flight =
            ready.as_ref().map_or(0, |ready| ready.link.in_flight()) + shared.dedicated.in_flight();
        ServerStatus {
            name: Arc::clone(&spec.name),
            state: match (&state, circuit) {
                (ServerState::Ready, CircuitState::HalfOpen) => "probing".into(),
                (state, _) => state.as_str().into(),
            },
            active: state == ServerState::Ready,
            lazy: spec.lazy,
            transport: spec.transport.name().into(),
            era: match (&ready, spec.era) {
                (Some(ready), _) => ready.link.era().as_str().into(),
                (None, EraSetting::Only(era)) => era.as_str().into(),
                (None, EraSetting::Auto) => "auto".into(),
            },
            command: self.display_target(),
            url: matches!(spec.transport, ServerTransport::Remote(_))
                .then(|| self.display_target()),
            card: spec.card.as_ref().map(|card| Arc::clone(&card.source)),
            generation: shared.counts.generation.load(Ordering::Relaxed),
            pid: ready.as_ref().and_then(|ready| ready.link.pid()),
            uptime_ms: ready.as_ref().map(|ready| now.millis_since(ready.since)),
            processes: None,
            memory_bytes: None,
            tools: catalog.map_or(0, |catalog| catalog.tools.len()),
            left_out: self.omitted_lists(),
            pins: pin_summary(&shared.pins, spec),
            manifest: manifest_name(catalog, &state).into(),
            stale: catalog.is_some_and(|catalog| catalog.staleness == Staleness::LastKnown),
            // A call is queued, holds a permit, or is a request without a permit.
            ref_count: self.permits_in_use().max(in_flight) + self.queued_calls(),
            in_flight,
            queued: self.queued_calls(),
            calls: totals.awaited_count(),
            errors: totals.error_count(),
            sheds: totals.shed_count(),
            error_rate: load.error_rate,
            p50_us: load.p50_us,
            p99_us: load.p99_us,
            restart_count: shared.counts.restarts.load(Ordering::Relaxed),
            consecutive_failures,
            isolation: spec.isolation.as_str().into(),
            own_links: shared.dedicated.len(),
            isolated_because: shared.is_interactive().then(|| INTERACTIVE.into()),
            circuit: circuit.as_str().into(),
            ejected: matches!(state, ServerState::Ejected { .. }),
            cache: cache_status(cache),
            retry_after_ms: time_to_start(&state, now).or(rest).map(to_millis),
            last_error: self.last_error(),
            limits: server_limits(spec),
            argv_secrets: spec.argv_secrets,
            redact_results: spec.redact_results.is_some(),
            sandbox: sandbox_status(spec),
        }
    }

    /// Returns an error if no call can get through now; a start in progress or due with the next
    /// call is no error.
    pub(crate) fn blocking_error(&self) -> Option<CallError> {
        let shared = &self.shared;
        let server = || Arc::clone(&shared.spec.name);
        let state = shared.state.borrow().clone();
        match state {
            ServerState::Stopped => return Some(CallError::Stopped { server: server() }),
            ServerState::Backoff { reason, .. } | ServerState::Ejected { reason } => {
                return Some(CallError::Ejected {
                    server: server(),
                    reason,
                });
            }
            ServerState::Idle
            | ServerState::Starting
            | ServerState::Ready
            | ServerState::Draining => {}
        }
        let cooldown = lock(&shared.breaker).remaining_cooldown(shared.clock.now());
        cooldown.map(|cooldown| CallError::CircuitOpen {
            server: server(),
            cooldown,
        })
    }

    /// Returns the last failure.
    #[must_use]
    pub fn last_error(&self) -> Option<ServerLastError> {
        let shared = &self.shared;
        let now = shared.clock.now();
        let lacks_program = matches!(
            *shared.state.borrow(),
            ServerState::Backoff {
                blame: FailureSource::Program,
                ..
            }
        );
        let last = lock(&shared.last_error);
        last.as_ref().map(|(class, message, at)| ServerLastError {
            code: lacks_program.then(|| "program_not_found".into()),
            class: class.as_str().into(),
            message: shared.spec.secrets.redact_shared(message),
            age_ms: now.millis_since(*at),
        })
    }

    fn omitted_lists(&self) -> Vec<OmittedStatus> {
        let left_out = lock(&self.shared.omitted);
        let lists = ListKind::ALL
            .into_iter()
            .map(|kind| (kind, *left_out.get(kind)));
        let lists = lists.filter(|(_, left_out)| !left_out.is_empty());
        let lists = lists.map(|(kind, left_out)| OmittedStatus {
            list: kind.member().into(),
            entries: left_out.entries,
            more: left_out.more,
        });
        lists.collect()
    }

    /// Returns the processes behind each link.
    #[must_use]
    pub fn processes(&self) -> Vec<ProcessSet> {
        let shared = &self.shared;
        let ready = shared.shared_link.load_full();
        let shared_link = ready.and_then(|ready| ready.link.processes());
        let mut all = shared.dedicated.processes();
        all.extend(shared_link);
        all
    }

    /// Returns program or address, redacted.
    fn display_target(&self) -> String {
        let spec = &self.shared.spec;
        spec.secrets
            .redact_text(&spec.transport.display_target())
            .into_owned()
    }
}

/// Returns the kind of the catalog entries: none, live, or last known.
const fn manifest_name(catalog: Option<&ServerCatalog>, state: &ServerState) -> &'static str {
    match (catalog, state) {
        (None, _) => "none",
        (Some(_), ServerState::Ready) => "live",
        (Some(_), _) => "last_known",
    }
}
