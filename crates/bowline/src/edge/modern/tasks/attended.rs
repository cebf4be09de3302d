//! What tasks of servers of the other era ask: they do so while somebody waits for their result,
//! so somebody does, on behalf of a caller that only asks now and then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::TaskVerb;
use bowline_core::sync::lock;
use bowline_core::tasks::LinkKey;
use bowline_core::time::Now;
use bowline_wire::era::input;
use bowline_wire::object;
use foldhash::fast::RandomState;

use super::Request;
use crate::edge::modern::call::{asking, carry};
use crate::edge::modern::end::{End, Outcome};
use crate::edge::modern::state::STATE_TTL;

/// Tasks that are attended to; what one more asks is not heard.
const ATTENDED_MAX: usize = 1_024;

/// How long a request waits for what a task asks, once somebody listens.
const HEARD_WAIT: Duration = Duration::from_millis(200);

/// How often it looks.
const LOOK: Duration = Duration::from_millis(10);

/// Room between the numbers of questions of one attendance and the next.
const NUMBERS: u64 = 1 << 16;

/// A task, by who made it, its server, the link it lives at, and its id there.
type Name = (Arc<str>, Arc<str>, LinkKey, Arc<str>);

/// The tasks that are attended to.
#[derive(Debug, Default)]
pub(crate) struct Attended {
    tasks: Mutex<HashMap<Name, One, RandomState>>,
    /// Numbers the attendances, so that no key is given twice.
    count: AtomicU64,
}

#[derive(Debug)]
struct One {
    end: Arc<End>,
    until: Now,
}

impl Attended {
    /// Lets go of those that nobody asked about for long.
    pub(crate) fn sweep(&self, now: Now) {
        let late: Vec<_> = {
            let mut tasks = lock(&self.tasks);
            let late = tasks.extract_if(|_, one| one.until <= now);
            late.map(|(_, one)| one.end).collect()
        };
        for end in late {
            end.cancel();
        }
    }

    fn find(&self, name: &Name, now: Now) -> Option<Arc<End>> {
        let mut tasks = lock(&self.tasks);
        let one = tasks.get_mut(name)?;
        one.until = now.plus(STATE_TTL);
        Some(Arc::clone(&one.end))
    }
}

impl Request {
    fn name(&self) -> Name {
        let who = Arc::clone(&self.told.principal.name);
        let at = &self.task.sealed;
        let inner = Arc::clone(&self.task.inner);
        (who, Arc::clone(&at.server), at.link, inner)
    }

    fn attending(&self) -> Option<Arc<End>> {
        let edge = &self.told.edge;
        edge.calls
            .attended
            .find(&self.name(), edge.host.clock().now())
    }

    /// Returns what somebody has waited for on the caller's behalf.
    pub(super) fn attended_outcome(&self) -> Option<Outcome> {
        let outcome = self.attending()?.take_outcome()?;
        lock(&self.told.edge.calls.attended.tasks).remove(&self.name());
        Some(outcome)
    }

    /// Gives answers to what a task asks; `false` where nobody attends to it.
    pub(super) fn answered(&self, answers: &[u8]) -> bool {
        let Some(end) = self.attending() else {
            return false;
        };
        for (key, at) in object::fields(answers) {
            end.answer(&key, at.of(answers));
        }
        true
    }

    /// Has somebody wait for the result of a task, and returns what it asks.
    pub(super) async fn attend(&self) -> Option<Vec<u8>> {
        let end = match self.attending() {
            Some(end) => end,
            None => self.begin()?,
        };
        let clock = self.told.edge.host.clock();
        let until = clock.now().plus(HEARD_WAIT);
        while !end.is_asked() && clock.now() < until {
            tokio::time::sleep(LOOK).await;
        }
        let open = asking::open(&end);
        let asks: Vec<_> = open.iter().map(asking::Open::ask).collect();
        (!asks.is_empty()).then(|| input::requests(&asks))
    }

    fn begin(&self) -> Option<Arc<End>> {
        let edge = &self.told.edge;
        let attended = &edge.calls.attended;
        let (end, _, cancelled) = End::new(Arc::clone(&self.client), self.wants.clone());
        let nth = attended.count.fetch_add(1, Ordering::Relaxed);
        end.number_from(nth.saturating_mul(NUMBERS));
        let call = self.to_call(TaskVerb::Result, &end)?;
        {
            let mut tasks = lock(&attended.tasks);
            if tasks.len() >= ATTENDED_MAX {
                return None;
            }
            let until = edge.host.clock().now().plus(STATE_TTL);
            let one = One {
                end: Arc::clone(&end),
                until,
            };
            tasks.insert(self.name(), one);
        }
        let (running, told) = (carry(Arc::clone(edge), call, cancelled), Arc::clone(&end));
        edge.host.tasks().spawn("task attended", async move {
            let outcome = running.await;
            told.finish(outcome);
        });
        Some(end)
    }
}
