//! Schedules lanes: one lane at a time probes a server not known to be up; after a successful
//! delivery the server's lanes drain in parallel.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::retry::{JitterSource, Retry};
use crate::time::MonotonicTime;

/// Lanes draining at the same time.
pub const DRAINS_MAX: usize = 64;

/// A draining lane accepts one new write per this number of deliveries.
pub const DELIVERED_PER_ADDED: u64 = 2;

/// Backoff of lanes and servers between attempts.
pub const RETRY_BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(5 * 60),
};

/// The lanes with pending writes; at most principals times servers.
#[derive(Debug, Default)]
pub struct LaneScheduler {
    lanes: BTreeMap<Arc<str>, LaneState>,
    servers: HashMap<Arc<str>, LaneServerState>,
    draining_lanes: usize,
    jitter: JitterSource,
}

#[derive(Debug)]
struct LaneState {
    server: Arc<str>,
    /// Time of the next attempt.
    due_at: MonotonicTime,
    /// Consecutive failures.
    retry: Retry,
    /// Whether a drain holds the lane.
    is_draining: bool,
    /// Progress of the current or last drain.
    progress: DrainProgress,
    /// Whether the server received the last failed write, so that the write may be the cause.
    is_suspect: bool,
    /// Counts writes added to the lane.
    added_seq: u64,
    /// The value of `added_seq` when the drain last read the lane.
    seen_seq: u64,
}

/// Progress of a drain while the server is up.
#[derive(Clone, Copy, Debug, Default)]
struct DrainProgress {
    /// Time of the first delivery.
    first_at: MonotonicTime,
    /// Time of the last delivery.
    last_at: MonotonicTime,
    /// Delivered writes.
    delivered: u64,
    /// Writes added meanwhile.
    added: u64,
}

/// Admission of a new write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneAdmission {
    /// The lane is empty: send at once.
    Live,
    /// The lane is draining: the caller waits for its turn.
    WaitTurn,
    /// The server is unreachable: queue.
    Queue,
}

#[derive(Debug)]
struct LaneServerState {
    /// Whether the last delivery reached the server.
    is_up: bool,
    /// Consecutive failures.
    retry: Retry,
    /// Time of the next attempt while not up.
    due_at: MonotonicTime,
    /// Lanes draining to the server.
    draining_lanes: usize,
}

impl LaneServerState {
    /// Returns the state of a server that no delivery has reached yet.
    fn new(server: &str, jitter: JitterSource) -> Self {
        Self {
            is_up: false,
            retry: Retry::new(RETRY_BACKOFF, jitter.for_part(server)),
            due_at: MonotonicTime::default(),
            draining_lanes: 0,
        }
    }
}

/// Schedule of a lane, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneTimes {
    /// Time of the next attempt.
    pub due_at: MonotonicTime,
    /// Consecutive failures.
    pub failures: u32,
    /// Whether a drain holds the lane.
    pub is_draining: bool,
}

impl LaneScheduler {
    /// Returns a scheduler without lanes; `jitter` spreads the retries of lanes and servers.
    #[must_use]
    pub fn new(jitter: JitterSource) -> Self {
        Self {
            jitter,
            ..Self::default()
        }
    }

    /// Returns the state of a server with lanes.
    fn server_state(&mut self, server: &Arc<str>) -> &mut LaneServerState {
        let new = || LaneServerState::new(server, self.jitter);
        self.servers.entry(Arc::clone(server)).or_insert_with(new)
    }

    /// Marks a lane as pending after a write was added.
    pub fn mark_pending(&mut self, lane: &Arc<str>, server: &Arc<str>, now: MonotonicTime) {
        let state = self.lanes.entry(Arc::clone(lane)).or_insert_with(|| {
            let new = || LaneServerState::new(server, self.jitter);
            self.servers.entry(Arc::clone(server)).or_insert_with(new);
            LaneState {
                server: Arc::clone(server),
                due_at: now,
                retry: Retry::new(RETRY_BACKOFF, self.jitter.for_part(lane)),
                is_draining: false,
                progress: DrainProgress::default(),
                is_suspect: false,
                added_seq: 0,
                seen_seq: 0,
            }
        });
        state.added_seq += 1;
        // The new write may succeed although the previous write failed.
        if state.is_suspect && !state.is_draining {
            let soon = now.plus(RETRY_BACKOFF.base);
            state.due_at = state.due_at.min(soon);
            if let Some(server) = self.servers.get_mut(&state.server) {
                server.due_at = server.due_at.min(soon);
            }
        }
    }

    /// Notes that the server received the failed write.
    pub fn mark_suspect(&mut self, lane: &str) {
        if let Some(state) = self.lanes.get_mut(lane) {
            state.is_suspect = true;
        }
    }

    /// Whether a lane has pending writes, as far as known; new writes go behind them.
    #[must_use]
    pub fn has_pending(&self, lane: &str) -> bool {
        self.lanes.contains_key(lane)
    }

    /// Whether no lane has pending writes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Returns the names of all lanes.
    pub fn lane_names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.lanes.keys()
    }

    /// Makes a lane and its server due at once, ignoring earlier failures.
    pub fn expedite(&mut self, lane: &str, now: MonotonicTime) {
        if let Some(state) = self.lanes.get_mut(lane) {
            state.due_at = now;
            state.retry.reset();
            let server = Arc::clone(&state.server);
            self.server_state(&server).due_at = now;
        }
    }

    /// Makes a ready server due at once for one lane.
    pub fn on_server_ready(&mut self, server: &str, now: MonotonicTime) {
        let Some(state) = self.servers.get_mut(server) else {
            return;
        };
        state.due_at = now;
        state.retry.reset();
        for lane in self.lanes.values_mut().filter(|l| *l.server == *server) {
            lane.due_at = lane.due_at.min(now);
        }
    }

    /// Returns the next due lane, longest waiting first to avoid starvation, and marks the lane as
    /// draining.
    pub fn next_lane(
        &mut self,
        now: MonotonicTime,
        reaches: impl Fn(&str) -> bool,
    ) -> Option<Arc<str>> {
        if self.draining_lanes >= DRAINS_MAX {
            return None;
        }
        let may = self.lanes.iter().filter(|(_, lane)| {
            let server = self.servers.get(&lane.server);
            let open = server.is_none_or(|server| match server.is_up {
                true => true,
                false => server.draining_lanes == 0 && server.due_at <= now,
            });
            !lane.is_draining && lane.due_at <= now && open && reaches(&lane.server)
        });
        let (name, _) = may.min_by_key(|(_, lane)| lane.due_at)?;
        let name = Arc::clone(name);
        let lane = self.lanes.get_mut(&name)?;
        (lane.is_draining, lane.seen_seq) = (true, lane.added_seq);
        let server = Arc::clone(&lane.server);
        self.server_state(&server).draining_lanes += 1;
        self.draining_lanes += 1;
        Some(name)
    }

    /// Returns the earliest due time of lanes not yet due.
    #[must_use]
    pub fn next_due(&self, reaches: impl Fn(&str) -> bool) -> Option<MonotonicTime> {
        let waiting = self.lanes.values().filter(|lane| !lane.is_draining);
        let waiting = waiting.filter(|lane| reaches(&lane.server));
        let dues = waiting.filter_map(|lane| match self.servers.get(&lane.server) {
            Some(server) if !server.is_up => {
                (server.draining_lanes == 0).then(|| lane.due_at.max(server.due_at))
            }
            _ => Some(lane.due_at),
        });
        dues.min()
    }

    /// Marks all writes added so far as seen by the drain.
    pub fn mark_seen(&mut self, lane: &str) {
        if let Some(state) = self.lanes.get_mut(lane) {
            state.seen_seq = state.added_seq;
        }
    }

    /// Records a delivery or a response: the server is up.
    pub fn on_delivered(&mut self, lane: &str, now: MonotonicTime) {
        let Some(state) = self.lanes.get_mut(lane) else {
            return;
        };
        state.retry.reset();
        state.is_suspect = false;
        let was_up = self.servers.get(&state.server).is_some_and(|one| one.is_up);
        if !was_up || state.progress.delivered == 0 {
            state.progress = DrainProgress {
                first_at: now,
                ..DrainProgress::default()
            };
        }
        state.progress.delivered += 1;
        state.progress.last_at = now;
        let server = Arc::clone(&state.server);
        let server = self.server_state(&server);
        server.is_up = true;
        server.retry.reset();
    }

    /// Releases a lane after a drain; remaining writes stay due.
    pub fn release_lane(&mut self, lane: &str, now: MonotonicTime) {
        let Some(state) = self.lanes.get_mut(lane) else {
            return;
        };
        if std::mem::take(&mut state.is_draining) {
            state.due_at = state.due_at.max(now);
            self.draining_lanes = self.draining_lanes.saturating_sub(1);
            if let Some(server) = self.servers.get_mut(&state.server) {
                server.draining_lanes = server.draining_lanes.saturating_sub(1);
            }
        }
    }

    /// Releases a drained lane, and removes the lane unless writes were added since.
    pub fn on_drained(&mut self, lane: &str, now: MonotonicTime) {
        self.release_lane(lane, now);
        let is_empty = |state: &LaneState| state.seen_seq == state.added_seq;
        if self.lanes.get(lane).is_some_and(is_empty)
            && let Some(removed) = self.lanes.remove(lane)
            && !self
                .lanes
                .values()
                .any(|other| other.server == removed.server)
        {
            self.servers.remove(&removed.server);
        }
    }

    /// Records an unreachable server: lane and server back off, at least for `after`.
    pub fn on_unreachable(&mut self, lane: &str, after: Option<Duration>, now: MonotonicTime) {
        let Some(state) = self.lanes.get_mut(lane) else {
            return;
        };
        let least = after.unwrap_or_default();
        // Writes sent together fail together and count as one failure.
        if state.due_at <= now {
            state.retry.count_failure();
        }
        state.is_suspect = false;
        let rest = state.retry.wait(now).max(least);
        state.due_at = state.due_at.max(now.plus(rest));
        let server = Arc::clone(&state.server);
        let server = self.server_state(&server);
        server.is_up = false;
        if server.due_at <= now {
            server.retry.count_failure();
        }
        let rest = server.retry.wait(now).max(least);
        server.due_at = server.due_at.max(now.plus(rest));
    }

    /// Returns the admission of a new write.
    #[must_use]
    pub fn lane_admission(&self, lane: &str) -> LaneAdmission {
        match self.lanes.get(lane) {
            None => LaneAdmission::Live,
            Some(state) => match self.is_server_up(&state.server) {
                true => LaneAdmission::WaitTurn,
                false => LaneAdmission::Queue,
            },
        }
    }

    /// Whether the last delivery reached the server.
    #[must_use]
    pub fn is_server_up(&self, server: &str) -> bool {
        self.servers.get(server).is_some_and(|server| server.is_up)
    }

    /// Whether a drain should release its lane in favour of waiting lanes.
    #[must_use]
    pub fn should_yield(&self, now: MonotonicTime) -> bool {
        self.draining_lanes >= DRAINS_MAX
            && self.lanes.values().any(|lane| {
                let up = self.is_server_up(&lane.server);
                !lane.is_draining && lane.due_at <= now && up
            })
    }

    /// Estimates the delivery time of `position` writes from the pace of the last drain.
    #[must_use]
    pub fn delivery_time(&self, lane: &str, position: u64) -> Option<Duration> {
        let progress = self.lanes.get(lane)?.progress;
        // One delivery has no pace.
        let gaps = progress.delivered.checked_sub(1).filter(|gaps| *gaps > 0)?;
        let took = progress.last_at.millis_since(progress.first_at);
        Some(Duration::from_millis(took.saturating_mul(position) / gaps))
    }

    /// Lets a caller leave its write in the lane after a wait in vain: allowed while the lane
    /// is short, or after every [`DELIVERED_PER_ADDED`] deliveries. So the backlog of a live server
    /// never grows for long, regardless of the rate of new writes. Counts the write if allowed.
    pub fn try_append(&mut self, lane: &str, position: u64, wait: Duration) -> bool {
        let is_short = self
            .delivery_time(lane, position)
            .is_none_or(|time| time <= wait);
        let Some(state) = self.lanes.get_mut(lane) else {
            return true;
        };
        let progress = &mut state.progress;
        let has_credit = progress.added * DELIVERED_PER_ADDED < progress.delivered;
        if is_short || has_credit {
            progress.added += 1;
        }
        is_short || has_credit
    }

    /// Returns the schedule of a lane.
    #[must_use]
    pub fn lane_times(&self, lane: &str) -> Option<LaneTimes> {
        let state = self.lanes.get(lane)?;
        let server = self.servers.get(&state.server).filter(|one| !one.is_up);
        Some(LaneTimes {
            due_at: state
                .due_at
                .max(server.map_or(MonotonicTime(0), |server| server.due_at)),
            failures: state.retry.failures(),
            is_draining: state.is_draining,
        })
    }
}

#[cfg(test)]
mod tests;
