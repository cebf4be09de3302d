//! Which lane may send next: one by one to a server that is not known to be up, and side by side
//! once it has taken a write.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::time::Now;

/// Lanes that send at the same time at most.
pub const DRAINS_MAX: usize = 64;

/// A draining lane takes one new write behind the others for so many that it delivers.
pub const DELIVERED_PER_ADDED: u64 = 2;

/// How long a lane and a server rest between tries.
pub const PACE: Backoff = Backoff {
    base: Duration::from_secs(1),
    cap: Duration::from_secs(5 * 60),
};

/// The lanes in which something waits. There are no more of them than principals times servers.
#[derive(Debug, Default)]
pub struct Board {
    lanes: BTreeMap<Arc<str>, LaneState>,
    servers: HashMap<Arc<str>, ServerState>,
    sending: usize,
}

#[derive(Debug)]
struct LaneState {
    server: Arc<str>,
    /// Not before.
    due: Now,
    /// Tries in a row that failed.
    failures: u32,
    /// Whether the drain works on it.
    sending: bool,
    /// How it was drained last.
    progress: Progress,
    /// Whether its server got the last write that failed, so that the write may be the reason.
    suspect: bool,
    /// Counts what was put into the lane.
    news: u64,
    /// How much of that was known when the lane was last looked into.
    seen: u64,
}

/// How the drain of a lane gets on while its server is up.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// When the server took the first write.
    since: Now,
    /// When it took the last one.
    last: Now,
    /// Writes that it took.
    delivered: u64,
    /// Writes that were put behind them meanwhile.
    added: u64,
}

/// What becomes of a new write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Nothing waits: it is sent at once.
    Live,
    /// Others are just being delivered: its caller waits for its turn.
    Turn,
    /// The server is away: it is queued.
    Queue,
}

#[derive(Debug, Default)]
struct ServerState {
    /// Whether the last write that was sent to it arrived.
    up: bool,
    failures: u32,
    /// Not before, while it is not up.
    due: Now,
    /// Lanes that send to it.
    sending: usize,
}

/// When a lane is tried next, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneTimes {
    /// Not before.
    pub due: Now,
    /// Tries in a row that failed.
    pub failures: u32,
    /// Whether the drain works on it.
    pub sending: bool,
}

impl Board {
    /// Notes that something waits in a lane.
    pub fn note(&mut self, lane: &Arc<str>, server: &Arc<str>, now: Now) {
        let state = self.lanes.entry(Arc::clone(lane)).or_insert_with(|| {
            self.servers.entry(Arc::clone(server)).or_default();
            LaneState {
                server: Arc::clone(server),
                due: now,
                failures: 0,
                sending: false,
                progress: Progress::default(),
                suspect: false,
                news: 0,
                seen: 0,
            }
        });
        state.news += 1;
        // The new write may get through where the one before it did not.
        if state.suspect && !state.sending {
            let soon = now.plus(PACE.base);
            state.due = state.due.min(soon);
            if let Some(server) = self.servers.get_mut(&state.server) {
                server.due = server.due.min(soon);
            }
        }
    }

    /// Notes that the server of a lane got the write that failed.
    pub fn suspect(&mut self, lane: &str) {
        if let Some(state) = self.lanes.get_mut(lane) {
            state.suspect = true;
        }
    }

    /// Whether anything waits in a lane, as far as is known: then whatever comes waits behind it.
    #[must_use]
    pub fn is_busy(&self, lane: &str) -> bool {
        self.lanes.contains_key(lane)
    }

    /// Whether nothing waits anywhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Returns the names of all lanes.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.lanes.keys()
    }

    /// Makes a lane due, and its server as well, whatever failed before.
    pub fn hurry(&mut self, lane: &str, now: Now) {
        if let Some(state) = self.lanes.get_mut(lane) {
            (state.due, state.failures) = (now, 0);
            let server = self.servers.entry(Arc::clone(&state.server)).or_default();
            server.due = now;
        }
    }

    /// Notes that a server is ready: one lane tries it at once.
    pub fn ready(&mut self, server: &str, now: Now) {
        let Some(state) = self.servers.get_mut(server) else {
            return;
        };
        (state.due, state.failures) = (now, 0);
        for lane in self.lanes.values_mut().filter(|l| *l.server == *server) {
            lane.due = lane.due.min(now);
        }
    }

    /// Returns a lane that may send now, and counts it as sending. The one that waits longest
    /// comes first, so that none is passed over for ever.
    pub fn next(&mut self, now: Now, reaches: impl Fn(&str) -> bool) -> Option<Arc<str>> {
        if self.sending >= DRAINS_MAX {
            return None;
        }
        let may = self.lanes.iter().filter(|(_, lane)| {
            let server = self.servers.get(&lane.server);
            let open = server.is_none_or(|server| match server.up {
                true => true,
                false => server.sending == 0 && server.due <= now,
            });
            !lane.sending && lane.due <= now && open && reaches(&lane.server)
        });
        let (name, _) = may.min_by_key(|(_, lane)| lane.due)?;
        let name = Arc::clone(name);
        let lane = self.lanes.get_mut(&name)?;
        (lane.sending, lane.seen) = (true, lane.news);
        let server = self.servers.entry(Arc::clone(&lane.server)).or_default();
        server.sending += 1;
        self.sending += 1;
        Some(name)
    }

    /// Returns when a lane may send that may not yet.
    #[must_use]
    pub fn due(&self, reaches: impl Fn(&str) -> bool) -> Option<Now> {
        let waiting = self.lanes.values().filter(|lane| !lane.sending);
        let waiting = waiting.filter(|lane| reaches(&lane.server));
        let dues = waiting.filter_map(|lane| match self.servers.get(&lane.server) {
            Some(server) if !server.up => (server.sending == 0).then(|| lane.due.max(server.due)),
            _ => Some(lane.due),
        });
        dues.min()
    }

    /// Notes that all that was put into a lane so far is about to be looked at.
    pub fn look(&mut self, lane: &str) {
        if let Some(state) = self.lanes.get_mut(lane) {
            state.seen = state.news;
        }
    }

    /// The server of a lane took a write, or answered it: it is up.
    pub fn answered(&mut self, lane: &str, now: Now) {
        let Some(state) = self.lanes.get_mut(lane) else {
            return;
        };
        (state.failures, state.suspect) = (0, false);
        let was_up = self.servers.get(&state.server).is_some_and(|one| one.up);
        if !was_up || state.progress.delivered == 0 {
            state.progress = Progress {
                since: now,
                ..Progress::default()
            };
        }
        state.progress.delivered += 1;
        state.progress.last = now;
        let server = self.servers.entry(Arc::clone(&state.server)).or_default();
        (server.up, server.failures) = (true, 0);
    }

    /// The drain leaves a lane; what is left in it is due.
    pub fn ended(&mut self, lane: &str, now: Now) {
        let Some(state) = self.lanes.get_mut(lane) else {
            return;
        };
        if std::mem::take(&mut state.sending) {
            state.due = state.due.max(now);
            self.sending = self.sending.saturating_sub(1);
            if let Some(server) = self.servers.get_mut(&state.server) {
                server.sending = server.sending.saturating_sub(1);
            }
        }
    }

    /// The drain leaves a lane with nothing to deliver; what was put into it since is not
    /// forgotten.
    pub fn emptied(&mut self, lane: &str, now: Now) {
        self.ended(lane, now);
        let is_empty = |state: &LaneState| state.seen == state.news;
        if self.lanes.get(lane).is_some_and(is_empty)
            && let Some(gone) = self.lanes.remove(lane)
            && !self.lanes.values().any(|other| other.server == gone.server)
        {
            self.servers.remove(&gone.server);
        }
    }

    /// The server of a lane was away: lane and server rest, for `after` at least. `jitter` is any
    /// number.
    pub fn failed(&mut self, lane: &str, after: Option<Duration>, now: Now, jitter: u64) {
        let Some(state) = self.lanes.get_mut(lane) else {
            return;
        };
        let least = after.unwrap_or_default();
        // Those that were sent together fail together, which is one failure.
        if state.due <= now {
            state.failures = state.failures.saturating_add(1);
        }
        state.suspect = false;
        let rest = PACE.wait(state.failures.max(1), jitter).max(least);
        state.due = state.due.max(now.plus(rest));
        let server = self.servers.entry(Arc::clone(&state.server)).or_default();
        server.up = false;
        if server.due <= now {
            server.failures = server.failures.saturating_add(1);
        }
        let rest = PACE.wait(server.failures.max(1), jitter).max(least);
        server.due = server.due.max(now.plus(rest));
    }

    /// Says what becomes of a new write of a lane.
    #[must_use]
    pub fn admission(&self, lane: &str) -> Admission {
        match self.lanes.get(lane) {
            None => Admission::Live,
            Some(state) => match self.is_up(&state.server) {
                true => Admission::Turn,
                false => Admission::Queue,
            },
        }
    }

    /// Whether the last write that was sent to a server arrived.
    #[must_use]
    pub fn is_up(&self, server: &str) -> bool {
        self.servers.get(server).is_some_and(|server| server.up)
    }

    /// Whether the drain should leave a lane for a while, since others wait for their share.
    #[must_use]
    pub fn is_wanted(&self, now: Now) -> bool {
        self.sending >= DRAINS_MAX
            && self.lanes.values().any(|lane| {
                let up = self.is_up(&lane.server);
                !lane.sending && lane.due <= now && up
            })
    }

    /// Returns how long `position` writes of a lane take to be delivered, as far as the last drain
    /// says.
    #[must_use]
    pub fn delivery_time(&self, lane: &str, position: u64) -> Option<Duration> {
        let progress = self.lanes.get(lane)?.progress;
        // One delivery has no pace.
        let gaps = progress.delivered.checked_sub(1).filter(|gaps| *gaps > 0)?;
        let took = progress.last.millis_since(progress.since);
        Some(Duration::from_millis(took.saturating_mul(position) / gaps))
    }

    /// Lets a caller that waited for its turn in vain leave its write behind: while the lane is
    /// short, or was shortened by [`DELIVERED_PER_ADDED`] others since. So the backlog of a server
    /// that is up never grows for long, however fast new writes come.
    pub fn may_add(&mut self, lane: &str, position: u64, wait: Duration) -> bool {
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

    /// Returns when a lane is tried next.
    #[must_use]
    pub fn times(&self, lane: &str) -> Option<LaneTimes> {
        let state = self.lanes.get(lane)?;
        let server = self.servers.get(&state.server).filter(|one| !one.up);
        Some(LaneTimes {
            due: state.due.max(server.map_or(Now(0), |server| server.due)),
            failures: state.failures,
            sending: state.sending,
        })
    }
}

#[cfg(test)]
mod tests;
