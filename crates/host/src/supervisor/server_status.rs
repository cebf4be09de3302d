//! Status of a server for operators.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::breaker::CircuitState;
use bowline_core::cache::CacheView;
use bowline_core::era::EraSetting;
use bowline_core::error::CallError;
use bowline_core::time::{MonotonicTime, to_millis};
use bowline_link::ProcessSet;
use serde::Serialize;

use super::{FailureSource, ServerState, Supervisor, lock};
use crate::catalog::{ListKind, ServerCatalog, Staleness};
use crate::pins::PinSummary;
use crate::spec::{ChildLimits, ServerSpec, ServerTransport};

/// A server in `status`.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    /// The name.
    pub name: Arc<str>,
    /// The state; `probing` instead of `ready` while the breaker is half-open.
    pub state: &'static str,
    /// True while ready.
    pub active: bool,
    /// True for a server started by its first call.
    pub lazy: bool,
    /// The transport.
    pub transport: &'static str,
    /// The era: `legacy`, `modern`, or `auto` while unknown.
    pub era: &'static str,
    /// Program or address, without arguments and credentials.
    pub command: String,
    /// Address of an HTTP server, without credentials.
    pub url: Option<String>,
    /// Location of the server card, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<Arc<str>>,
    /// Number of starts.
    pub generation: u64,
    /// Process id.
    pub pid: Option<u32>,
    /// Time since the link became ready.
    pub uptime_ms: Option<u64>,
    /// Number of processes; measured on request only.
    pub processes: Option<u64>,
    /// Resident memory of all processes; measured on request only.
    pub memory_bytes: Option<u64>,
    /// Number of tools in the catalog.
    pub tools: usize,
    /// Truncated lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<OmittedStatus>,
    /// Pin summary.
    #[serde(flatten)]
    pub pins: PinSummary,
    /// Source of the catalog entries: the current link, or the last link.
    pub manifest: &'static str,
    /// True if the entries are last known, because the server is down or starting.
    pub stale: bool,
    /// Calls in flight or waiting.
    pub ref_count: usize,
    /// Calls in flight at the server.
    pub in_flight: usize,
    /// Calls queued for a permit.
    pub queued: usize,
    /// Calls finished since the gateway started.
    pub calls: u64,
    /// Calls finished without a response of the server.
    pub errors: u64,
    /// Calls refused by a full queue, or timed out in the queue.
    pub sheds: u64,
    /// Error rate over the last five to ten minutes.
    pub error_rate: f64,
    /// Median duration of the calls in this window.
    pub p50_us: Option<u64>,
    /// 99th percentile of these durations.
    pub p99_us: Option<u64>,
    /// Restarts still counted against the budget.
    pub restart_count: u64,
    /// Consecutive failures seen by the breaker.
    pub consecutive_failures: u32,
    /// Isolation of links.
    pub isolation: &'static str,
    /// Number of dedicated links.
    pub own_links: usize,
    /// Why sessions have dedicated links, if caused by the server.
    pub isolated_because: Option<&'static str>,
    /// State of the breaker.
    pub circuit: &'static str,
    /// True after too many restarts.
    pub ejected: bool,
    /// Cached responses.
    #[serde(flatten)]
    pub cache: CacheStatus,
    /// Time until the next attempt: a start in backoff, or the end of the breaker's open period.
    pub retry_after_ms: Option<u64>,
    /// The last failure.
    pub last_error: Option<ServerLastError>,
    /// The limits.
    pub limits: ServerLimits,
    /// True if arguments may contain secrets, visible to every user of the machine.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub argv_secrets: bool,
    /// True if known secrets are redacted from results.
    pub redact_results: bool,
    /// The sandbox; `None` for servers without a child process.
    pub sandbox: Option<SandboxStatus>,
}

/// The sandbox of a server.
#[derive(Clone, Debug, Serialize)]
pub struct SandboxStatus {
    /// Configured level.
    pub level: &'static str,
    /// Features missing in the kernel.
    pub lacks: Option<String>,
}

impl SandboxStatus {
    fn from_spec(spec: &ServerSpec) -> Option<Self> {
        let ServerTransport::Child(child) = &spec.transport else {
            return None;
        };
        Some(Self {
            level: child.sandbox.level.as_str(),
            lacks: child.sandbox_lacks.map(|lack| lack.to_string()),
        })
    }
}

/// Why a shared server became isolated.
const INTERACTIVE: &str = "it asked a client for something while calls of several sessions were \
                           in flight";

/// A list truncated at the server's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OmittedStatus {
    /// The list, named by its result member.
    pub list: &'static str,
    /// Number of omitted entries seen.
    pub entries: usize,
    /// True if further pages were not read.
    pub more: bool,
}

/// Cached responses of a server.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CacheStatus {
    /// Number of entries.
    #[serde(rename = "cache_entries")]
    pub entries: usize,
    /// Total bytes.
    #[serde(rename = "cache_bytes")]
    pub bytes: usize,
    /// Calls served from the cache.
    #[serde(rename = "cache_hits")]
    pub hits: u64,
    /// Cacheable calls sent to the server.
    #[serde(rename = "cache_misses")]
    pub misses: u64,
    /// Entries evicted before expiry.
    #[serde(rename = "cache_evictions")]
    pub evictions: u64,
}

impl From<CacheView> for CacheStatus {
    fn from(view: CacheView) -> Self {
        Self {
            entries: view.entries,
            bytes: view.bytes,
            hits: view.hits,
            misses: view.misses,
            evictions: view.evictions,
        }
    }
}

/// The last failure.
#[derive(Clone, Debug, Serialize)]
pub struct ServerLastError {
    /// Error code of calls while the program is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Failure class.
    pub class: &'static str,
    /// Failure message.
    pub message: Arc<str>,
    /// Time since the failure.
    pub age_ms: u64,
}

/// Limits of a server.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ServerLimits {
    /// Calls in flight.
    pub calls_max: usize,
    /// Queued calls.
    pub queue_max: usize,
    /// Entries per list.
    pub list_max: usize,
    /// Call timeout, unless the tool has its own.
    pub call_timeout_ms: u64,
    /// Start timeout.
    pub start_timeout_ms: u64,
    /// Restarts...
    pub restarts_max: u32,
    /// ...within this window.
    pub restart_window_ms: u64,
    /// Memory of all processes; `None` if unlimited.
    pub memory_bytes_max: Option<u64>,
    /// Processes; `None` without local processes.
    pub processes_max: Option<u64>,
    /// Largest writable file.
    pub file_bytes_max: Option<u64>,
    /// Open files per process.
    pub open_files_max: Option<u64>,
}

impl ServerLimits {
    fn from_spec(spec: &ServerSpec) -> Self {
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
        Self {
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
}

impl ServerStatus {
    /// True if the server failed and has not recovered.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        matches!(self.state, "backoff" | "ejected") || self.circuit != "closed"
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
                (ServerState::Ready, CircuitState::HalfOpen) => "probing",
                (state, _) => state.as_str(),
            },
            active: state == ServerState::Ready,
            lazy: spec.lazy,
            transport: spec.transport.name(),
            era: match (&ready, spec.era) {
                (Some(ready), _) => ready.link.era().as_str(),
                (None, EraSetting::Only(era)) => era.as_str(),
                (None, EraSetting::Auto) => "auto",
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
            pins: PinSummary::from_registry(&shared.pins, spec),
            manifest: manifest_name(catalog, &state),
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
            isolation: spec.isolation.as_str(),
            own_links: shared.dedicated.len(),
            isolated_because: shared.is_interactive().then_some(INTERACTIVE),
            circuit: circuit_name(circuit),
            ejected: matches!(state, ServerState::Ejected { .. }),
            cache: cache.into(),
            retry_after_ms: time_to_start(&state, now).or(rest).map(to_millis),
            last_error: self.last_error(),
            limits: ServerLimits::from_spec(spec),
            argv_secrets: spec.argv_secrets,
            redact_results: spec.redact_results.is_some(),
            sandbox: SandboxStatus::from_spec(spec),
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
            code: lacks_program.then_some("program_not_found"),
            class: class.as_str(),
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
            list: kind.member(),
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

const fn circuit_name(circuit: CircuitState) -> &'static str {
    match circuit {
        CircuitState::Closed => "closed",
        CircuitState::Open => "open",
        CircuitState::HalfOpen => "half_open",
    }
}
