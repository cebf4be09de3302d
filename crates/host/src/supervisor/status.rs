//! What a person can see of a server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::breaker::Circuit;
use bowline_core::cache::CacheView;
use bowline_core::era::Speaks;
use bowline_core::error::CallError;
use bowline_core::time::{Now, millis};
use bowline_link::Processes;
use serde::Serialize;

use super::{Blame, State, Supervisor, lock};
use crate::catalog::{Age, ListKind, Offer};
use crate::pins::Summary;
use crate::spec::{ChildLimits, Reach, ServerSpec};

/// One server's line in `status`.
#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    /// Its name.
    pub name: Arc<str>,
    /// What it is doing; `probing` in place of `ready` while one call tries whether it is well.
    pub state: &'static str,
    /// Whether it serves right now.
    pub active: bool,
    /// Whether it waits for its first call before it is started.
    pub lazy: bool,
    /// How it is reached.
    pub transport: &'static str,
    /// How it speaks: `legacy`, `modern`, or `auto` where that is not known yet.
    pub era: &'static str,
    /// The program, or the address; without arguments and credentials.
    pub command: String,
    /// The address, where it is reached over HTTP; without credentials.
    pub url: Option<String>,
    /// Where its card is, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub card: Option<Arc<str>>,
    /// How often it was started.
    pub generation: u64,
    /// The process that runs it.
    pub pid: Option<u32>,
    /// How long it has served.
    pub uptime_ms: Option<u64>,
    /// How many processes it has; measured only where it is asked for.
    pub processes: Option<u64>,
    /// The resident memory of all of them; measured only where it is asked for.
    pub memory_bytes: Option<u64>,
    /// How many tools the catalog holds of it.
    pub tools: usize,
    /// Its lists that do not fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOutStatus>,
    /// How its tools stand to their pins.
    #[serde(flatten)]
    pub pins: Summary,
    /// Where the catalog has them from: the link that serves, or the last one that did.
    pub manifest: &'static str,
    /// Whether they are shown as last known, because it is down or being started.
    pub stale: bool,
    /// Callers that hold it: calls under way, and those that wait for it.
    pub ref_count: usize,
    /// Calls that it has to answer.
    pub in_flight: usize,
    /// Calls that wait for a place among those it may have in flight.
    pub queued: usize,
    /// Calls ended since the gateway started.
    pub calls: u64,
    /// Of those, the ones without an answer of the server.
    pub errors: u64,
    /// Calls refused because too many were under way, or waited for that too long.
    pub sheds: u64,
    /// The share of errors among the calls of the last five to ten minutes.
    pub error_rate: f64,
    /// Half of those that the server had took at most this long.
    pub p50_us: Option<u64>,
    /// Nearly all of them did.
    pub p99_us: Option<u64>,
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
    /// Its answers that are kept.
    #[serde(flatten)]
    pub cache: CacheStatus,
    /// When it is tried again: a start that failed, or calls after the breaker's rest.
    pub retry_after_ms: Option<u64>,
    /// What it failed with last.
    pub last_error: Option<LastError>,
    /// What it is held to.
    pub limits: Limits,
    /// Whether secrets may stand among its arguments, where every user of the machine sees them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub argv_secrets: bool,
    /// Whether secrets that the gateway holds are taken out of its results.
    pub redact_results: bool,
    /// What it may reach; absent where it is no process of ours.
    pub sandbox: Option<SandboxStatus>,
}

/// The sandbox of a server.
#[derive(Clone, Debug, Serialize)]
pub struct SandboxStatus {
    /// The level that its entry asks for.
    pub level: &'static str,
    /// What the kernel does not have of it.
    pub lacks: Option<String>,
}

impl SandboxStatus {
    fn from_spec(spec: &ServerSpec) -> Option<Self> {
        let Reach::Child(child) = &spec.reach else {
            return None;
        };
        Some(Self {
            level: child.sandbox.level.as_str(),
            lacks: child.sandbox_lacks.map(|lack| lack.to_string()),
        })
    }
}

/// Why a server that all shared is shared no longer.
const INTERACTIVE: &str = "it asked a client for something while calls of several sessions were \
                           in flight";

/// A list of which entries are left out, because it is longer than its server's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOutStatus {
    /// Which list: the member of its result.
    pub list: &'static str,
    /// How many entries are left out, as far as they were seen.
    pub entries: usize,
    /// Whether there are more pages that were not read.
    pub more: bool,
}

/// What is kept of a server's answers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CacheStatus {
    /// How many there are.
    #[serde(rename = "cache_entries")]
    pub entries: usize,
    /// How long they are together.
    #[serde(rename = "cache_bytes")]
    pub bytes: usize,
    /// Calls answered with them.
    #[serde(rename = "cache_hits")]
    pub hits: u64,
    /// Calls of things whose answers can be kept that had to go to the server.
    #[serde(rename = "cache_misses")]
    pub misses: u64,
    /// Answers that went before their time, to make room.
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

/// A failure that is over.
#[derive(Clone, Debug, Serialize)]
pub struct LastError {
    /// The code word that calls are refused with, while the program of the server is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Its class.
    pub class: &'static str,
    /// What happened.
    pub message: Arc<str>,
    /// How long ago.
    pub age_ms: u64,
}

/// What a server is held to.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Limits {
    /// Calls it has in flight at most.
    pub calls_max: usize,
    /// Calls that wait for one of those places at most.
    pub queue_max: usize,
    /// Entries of one of its lists that are offered at most.
    pub list_max: usize,
    /// How long one call may take, unless its tool has a limit of its own.
    pub call_timeout_ms: u64,
    /// How long it may take to start.
    pub start_timeout_ms: u64,
    /// How often it may be restarted...
    pub restarts_max: u32,
    /// ...within this time.
    pub restart_window_ms: u64,
    /// Memory of all its processes; absent where there is no limit.
    pub memory_bytes_max: Option<u64>,
    /// Processes; absent where it has none here.
    pub processes_max: Option<u64>,
    /// The largest file that it may write.
    pub file_bytes_max: Option<u64>,
    /// Files that one of its processes has open.
    pub open_files_max: Option<u64>,
}

impl Limits {
    fn of(spec: &ServerSpec) -> Self {
        // Only a reaper keeps them.
        let child = match &spec.reach {
            Reach::Child(child) if child.reaper.is_some() => Some(child.limits.in_force()),
            Reach::Child(_)
            | Reach::Placed(_)
            | Reach::Remote(_)
            | Reach::InProcess(_)
            | Reach::Peer(_) => None,
        };
        let child = |limit: fn(ChildLimits) -> Option<u64>| child.and_then(limit);
        Self {
            calls_max: spec.calls_max,
            queue_max: spec.queue_max,
            list_max: spec.list_max,
            call_timeout_ms: millis(spec.call_timeout),
            start_timeout_ms: millis(spec.start_timeout),
            restarts_max: spec.restart.restarts_max,
            restart_window_ms: millis(spec.restart.window),
            memory_bytes_max: child(|limits| limits.memory_bytes_max),
            processes_max: child(|limits| limits.processes_max),
            file_bytes_max: child(|limits| limits.file_bytes_max),
            open_files_max: child(|limits| limits.open_files_max),
        }
    }
}

impl ServerStatus {
    /// Whether a person should look at it: it failed, and is not well again yet.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        matches!(self.state, "backoff" | "ejected") || self.circuit != "closed"
    }
}

/// When the next start is due, where one is.
const fn due(state: &State, now: Now) -> Option<Duration> {
    match state {
        State::Backoff { until, .. } => Some(now.until(*until)),
        State::Idle
        | State::Stopped
        | State::Starting
        | State::Ready
        | State::Ejected { .. }
        | State::Draining => None,
    }
}

impl Supervisor {
    /// Returns what a person can see now; `offer` is what the catalog holds of the server, and
    /// `cache` what is kept of its answers. What it takes to see more than what we know ourselves
    /// is left out.
    #[must_use]
    pub fn status(&self, offer: Option<&Offer>, cache: CacheView) -> ServerStatus {
        let shared = &self.shared;
        let spec = &shared.spec;
        let now = shared.clock.now();
        let state = shared.state.borrow().clone();
        let ready = shared.ready.load_full();
        let (load, totals) = (self.load(), self.totals());
        let (circuit, consecutive_failures, rest) = {
            let breaker = lock(&shared.breaker);
            (breaker.circuit(now), breaker.failures(), breaker.rest(now))
        };
        let in_flight =
            ready.as_ref().map_or(0, |ready| ready.link.in_flight()) + shared.own.in_flight();
        ServerStatus {
            name: Arc::clone(&spec.name),
            state: match (&state, circuit) {
                (State::Ready, Circuit::HalfOpen) => "probing",
                (state, _) => state.as_str(),
            },
            active: state == State::Ready,
            lazy: spec.lazy,
            transport: spec.reach.transport(),
            era: match (&ready, spec.speaks) {
                (Some(ready), _) => ready.link.era().as_str(),
                (None, Speaks::Only(era)) => era.as_str(),
                (None, Speaks::Auto) => "auto",
            },
            command: self.shown(),
            url: matches!(spec.reach, Reach::Remote(_)).then(|| self.shown()),
            card: spec.card.as_ref().map(|card| Arc::clone(&card.source)),
            generation: shared.counts.generation.load(Ordering::Relaxed),
            pid: ready.as_ref().and_then(|ready| ready.link.pid()),
            uptime_ms: ready.as_ref().map(|ready| now.millis_since(ready.since)),
            processes: None,
            memory_bytes: None,
            tools: offer.map_or(0, |offer| offer.tools.len()),
            left_out: self.left_out(),
            pins: Summary::of(&shared.pins, spec),
            manifest: match (offer, &state) {
                (None, _) => "none",
                (Some(_), State::Ready) => "live",
                (Some(_), _) => "last_known",
            },
            stale: offer.is_some_and(|offer| offer.age == Age::LastKnown),
            // A call waits for a place, has one, or is a request that needs none.
            ref_count: self.turns_taken().max(in_flight) + self.queued(),
            in_flight,
            queued: self.queued(),
            calls: totals.awaited(),
            errors: totals.errors(),
            sheds: totals.sheds(),
            error_rate: load.error_rate,
            p50_us: load.p50_us,
            p99_us: load.p99_us,
            restart_count: shared.counts.restarts.load(Ordering::Relaxed),
            consecutive_failures,
            isolation: spec.isolation.as_str(),
            own_links: shared.own.len(),
            isolated_because: shared.is_interactive().then_some(INTERACTIVE),
            circuit: word(circuit),
            ejected: matches!(state, State::Ejected { .. }),
            cache: cache.into(),
            retry_after_ms: due(&state, now).or(rest).map(millis),
            last_error: self.last_error(),
            limits: Limits::of(spec),
            argv_secrets: spec.argv_secrets,
            redact_results: spec.redact_results.is_some(),
            sandbox: SandboxStatus::from_spec(spec),
        }
    }

    /// Says why no call would get through now, if none would; a start that is under way, or due
    /// with the next call, is no reason.
    pub(crate) fn gate(&self) -> Option<CallError> {
        let shared = &self.shared;
        let server = || Arc::clone(&shared.spec.name);
        let state = shared.state.borrow().clone();
        match state {
            State::Stopped => return Some(CallError::Stopped { server: server() }),
            State::Backoff { reason, .. } | State::Ejected { reason } => {
                return Some(CallError::Ejected {
                    server: server(),
                    reason,
                });
            }
            State::Idle | State::Starting | State::Ready | State::Draining => {}
        }
        let rest = lock(&shared.breaker).rest(shared.clock.now());
        rest.map(|rest| CallError::Resting {
            server: server(),
            rest,
        })
    }

    /// Returns what the server failed with last.
    #[must_use]
    pub fn last_error(&self) -> Option<LastError> {
        let shared = &self.shared;
        let now = shared.clock.now();
        let lacks_program = matches!(
            *shared.state.borrow(),
            State::Backoff {
                blame: Blame::Program,
                ..
            }
        );
        let last = lock(&shared.last_error);
        last.as_ref().map(|(class, message, at)| LastError {
            code: lacks_program.then_some("program_not_found"),
            class: class.as_str(),
            message: shared.spec.secrets.clean_shared(message),
            age_ms: now.millis_since(*at),
        })
    }

    fn left_out(&self) -> Vec<LeftOutStatus> {
        let left_out = lock(&self.shared.left_out);
        let lists = ListKind::ALL
            .into_iter()
            .map(|kind| (kind, *left_out.get(kind)));
        let lists = lists.filter(|(_, left_out)| !left_out.is_empty());
        let lists = lists.map(|(kind, left_out)| LeftOutStatus {
            list: kind.member(),
            entries: left_out.entries,
            more: left_out.more,
        });
        lists.collect()
    }

    /// Returns the processes behind each of its links.
    #[must_use]
    pub fn processes(&self) -> Vec<Processes> {
        let shared = &self.shared;
        let ready = shared.ready.load_full();
        let shared_link = ready.and_then(|ready| ready.link.processes());
        let mut all = shared.own.processes();
        all.extend(shared_link);
        all
    }

    /// What people may read of how it is reached.
    fn shown(&self) -> String {
        let spec = &self.shared.spec;
        spec.secrets.clean(&spec.reach.shown()).into_owned()
    }
}

const fn word(circuit: Circuit) -> &'static str {
    match circuit {
        Circuit::Closed => "closed",
        Circuit::Open => "open",
        Circuit::HalfOpen => "half_open",
    }
}
