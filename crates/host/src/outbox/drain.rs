//! Starts lane workers: a single lane at a time for a server not known to be up, concurrently for a
//! server that is up.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bowline_core::lane::LaneScheduler;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_journal::audit::AuditRowKind;
use bowline_runtime::{Service, Shutdown};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;

use super::lane_worker::drain_lane;
use super::queue_view::lane_parties;
use super::write_record::WriteRecord;
use super::{LANE_PREFIX, OutboxShared};
use crate::audit::AuditOutcome;
use crate::callpath::CallPath;
use crate::events::{EventKind, HostEvent};

/// Interval of the sweep for expired writes.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// Maximum wait for workers at shutdown.
const WORKERS_WAIT: Duration = Duration::from_secs(2);

/// Delivers until shutdown or the end of the host.
pub(super) struct OutboxDrain {
    pub(super) shared: Arc<OutboxShared>,
    pub(super) path: Weak<CallPath>,
    pub(super) events: broadcast::Receiver<HostEvent>,
}

impl Service for OutboxDrain {
    const NAME: &'static str = "outbox";

    async fn run(self, shutdown: Shutdown) {
        let mut workers = JoinSet::new();
        load_lanes(&self.shared).await;
        self.start_due_lanes(&shutdown, &mut workers).await;
        let all = async { while workers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(WORKERS_WAIT, all).await;
    }
}

impl OutboxDrain {
    /// Starts a worker for every lane that becomes due, and sweeps, until shutdown.
    async fn start_due_lanes(self, shutdown: &Shutdown, workers: &mut JoinSet<()>) {
        let Self {
            shared,
            path,
            mut events,
        } = self;
        let (shared, path) = (&shared, &path);
        let mut sweep = shared.clock.now().plus(SWEEP_EVERY);
        loop {
            start_workers(shared, path, workers);
            let due = {
                let servers = configured_servers(path);
                let scheduler = lock(&shared.scheduler);
                let next = scheduler.next_due(&servers);
                let sweep = (!scheduler.is_empty()).then_some(sweep);
                next.into_iter().chain(sweep).min()
            };
            tokio::select! {
                biased;
                () = shutdown.wait_closing() => return,
                () = shared.scheduler.wait_until(&*shared.clock, due) => {}
                Some(_) = workers.join_next(), if !workers.is_empty() => {}
                event = events.recv() => on_event(shared, &event),
            }
            let now = shared.clock.now();
            if sweep <= now {
                sweep = now.plus(SWEEP_EVERY);
                // Each sweep dead-letters a bounded number.
                while expire_writes(shared, LANE_PREFIX).await > 0 {}
            }
        }
    }
}

/// Loads the lanes left by the previous run.
async fn load_lanes(shared: &OutboxShared) {
    if let Err(error) = shared.delivered.load_numbers(&*shared.journal).await {
        tracing::warn!(%error, "index of delivered writes cannot be loaded");
    }
    let lanes = shared
        .journal
        .lane_stats(LANE_PREFIX, shared.timestamps())
        .await;
    let lanes = match lanes {
        Ok(lanes) => lanes,
        Err(error) => {
            tracing::error!(%error, "queued writes cannot be loaded");
            return;
        }
    };
    let now = shared.clock.now();
    let mut board = lock(&shared.scheduler);
    for lane in lanes.iter().filter(|lane| lane.queued > 0) {
        let (_, server) = lane_parties(lane.lane.as_str());
        board.mark_pending(&lane.lane.as_str().into(), &server.into(), now);
    }
}

/// Returns a predicate for configured servers.
fn configured_servers(path: &Weak<CallPath>) -> impl Fn(&str) -> bool + use<> {
    let servers = path.upgrade().map(|path| path.servers.load_full());
    move |server| servers.as_ref().is_some_and(|all| all.contains_key(server))
}

/// Starts a worker for every lane due.
fn start_workers(shared: &Arc<OutboxShared>, path: &Weak<CallPath>, workers: &mut JoinSet<()>) {
    let servers = configured_servers(path);
    let now = shared.clock.now();
    loop {
        let next = lock(&shared.scheduler).next_lane(now, &servers);
        let Some((lane, path)) = next.zip(path.upgrade()) else {
            return;
        };
        let shared = Arc::clone(shared);
        workers.spawn(drain_lane(shared, path, lane));
    }
}

fn on_event(shared: &OutboxShared, event: &Result<HostEvent, RecvError>) {
    let now = shared.clock.now();
    let mut board = lock(&shared.scheduler);
    match event.as_ref().map(|event| &event.kind) {
        Ok(EventKind::State { server, state, .. }) if state == "ready" => {
            board.on_server_ready(server, now);
        }
        Ok(EventKind::Executor { state, .. }) if state == "connected" => {
            try_all_lanes(&mut board, now);
        }
        Err(RecvError::Lagged(_)) => try_all_lanes(&mut board, now),
        Ok(_) | Err(RecvError::Closed) => {}
    }
}

/// Tries every lane, where it is unknown which servers an event concerns: after lagging, or when an
/// executor connects. A single attempt per server is cheap.
fn try_all_lanes(board: &mut LaneScheduler, now: MonotonicTime) {
    let lanes: Vec<_> = board.lane_names().cloned().collect();
    for lane in lanes {
        board.on_server_ready(lane_parties(&lane).1, now);
    }
}

/// Dead-letters expired writes and notifies.
pub(super) async fn expire_writes(shared: &OutboxShared, lanes: &str) -> usize {
    let past = shared
        .journal
        .expire_messages(lanes, shared.timestamps())
        .await;
    let past = past.unwrap_or_else(|error| {
        tracing::error!(%error, "expired writes cannot be swept");
        Vec::new()
    });
    for entry in &past {
        if let Some(record) = WriteRecord::parse(&entry.body) {
            let end = AuditOutcome::Word("expired");
            shared.on_dead_letter(entry, &record, AuditRowKind::Expired, end);
        }
    }
    past.len()
}
