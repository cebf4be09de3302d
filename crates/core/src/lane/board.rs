//! Which lane may send next: one by one to a server that is not known to be up, and side by side
//! once it has taken a write.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::time::Now;

/// Lanes that send at the same time at most.
pub const DRAINS_MAX: usize = 64;

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
    sending: bool,
    /// Whether somebody else holds its first message.
    blocked: bool,
    /// Counts what was put into the lane.
    news: u64,
    /// How much of that was known when the lane was last looked into.
    seen: u64,
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
    /// Whether it sends now.
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
                blocked: false,
                news: 0,
                seen: 0,
            }
        });
        state.news += 1;
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

    /// Makes a lane due that waited for whoever held its first message.
    pub fn unblock(&mut self, lane: &str, now: Now) {
        if let Some(state) = self.lanes.get_mut(lane) {
            state.news += 1;
            if std::mem::take(&mut state.blocked) {
                state.due = state.due.min(now);
            }
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
        (lane.sending, lane.blocked, lane.seen) = (true, false, lane.news);
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

    /// The server of a lane took a write, or answered it: it is up, and the next is due.
    pub fn answered(&mut self, lane: &str, now: Now) {
        let Some(server) = self.stop(lane, now) else {
            return;
        };
        if let Some(server) = self.servers.get_mut(&server) {
            (server.up, server.failures) = (true, 0);
        }
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.failures = 0;
        }
    }

    /// A lane got on without its server being asked; the next is due.
    pub fn passed(&mut self, lane: &str, now: Now) {
        self.stop(lane, now);
    }

    /// The first message of a lane is held by somebody, who will say when he is done.
    pub fn blocked(&mut self, lane: &str, until: Now, now: Now) {
        self.stop(lane, now);
        if let Some(state) = self.lanes.get_mut(lane)
            && state.seen == state.news
        {
            (state.due, state.blocked) = (until, true);
        }
    }

    /// A lane was found empty; what was put into it since is not forgotten.
    pub fn emptied(&mut self, lane: &str, now: Now) {
        self.stop(lane, now);
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
        let server = self.stop(lane, now);
        let least = after.unwrap_or_default();
        if let Some(state) = self.lanes.get_mut(lane) {
            state.failures = state.failures.saturating_add(1);
            state.due = now.plus(PACE.wait(state.failures, jitter).max(least));
        }
        if let Some(server) = server.and_then(|server| self.servers.get_mut(&server)) {
            server.up = false;
            // Those that were sent together fail together, which is one failure.
            if server.due <= now {
                server.failures = server.failures.saturating_add(1);
            }
            let rest = PACE.wait(server.failures.max(1), jitter).max(least);
            server.due = server.due.max(now.plus(rest));
        }
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

    /// Counts a lane as not sending any more, due at once, and returns its server.
    fn stop(&mut self, lane: &str, now: Now) -> Option<Arc<str>> {
        let state = self.lanes.get_mut(lane)?;
        if state.sending {
            state.sending = false;
            state.due = now;
            self.sending = self.sending.saturating_sub(1);
            if let Some(server) = self.servers.get_mut(&state.server) {
                server.sending = server.sending.saturating_sub(1);
            }
        }
        Some(Arc::clone(&state.server))
    }
}

#[cfg(test)]
mod tests;
