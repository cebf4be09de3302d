//! What tasks of servers of the other era ask: they do so while somebody waits for their result,
//! so somebody does, on behalf of a caller that only asks now and then.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::{Reply, TaskVerb};
use bowline_core::sync::lock;
use bowline_core::tasks::LinkKey;
use bowline_core::time::Now;
use bowline_wire::era::input;
use bowline_wire::object;
use foldhash::fast::RandomState;

use super::Request;
use crate::edge::modern::call::{asking, carry};
use crate::edge::modern::end::End;
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
        self.let_go(|one| one.until <= now);
    }

    /// Lets go of those that were attended to for a credential that counts no more.
    pub(crate) fn dismiss(&self, credential: &str) {
        self.let_go(|one| one.end.client().is_of(credential));
    }

    fn let_go(&self, which: impl Fn(&One) -> bool) {
        let gone: Vec<_> = {
            let mut tasks = lock(&self.tasks);
            let gone = tasks.extract_if(|_, one| which(one));
            gone.map(|(_, one)| one.end).collect()
        };
        for end in gone {
            end.cancel();
        }
    }

    /// Returns who waits for a task; nobody where the wait is over.
    fn find(&self, name: &Name, now: Now) -> Option<Arc<End>> {
        let mut tasks = lock(&self.tasks);
        let one = tasks.get_mut(name)?;
        one.until = now.plus(STATE_TTL);
        (!one.end.is_over()).then(|| Arc::clone(&one.end))
    }

    /// Has `end` wait for a task, or returns who does already: of two that come at once, the
    /// questions are put to one.
    fn enter(&self, name: Name, end: &Arc<End>, now: Now) -> Entered {
        let until = now.plus(STATE_TTL);
        let mut tasks = lock(&self.tasks);
        if let Some(one) = tasks.get_mut(&name)
            && !one.end.is_over()
        {
            one.until = until;
            return Entered::Waits(Arc::clone(&one.end));
        }
        if tasks.len() >= ATTENDED_MAX && !tasks.contains_key(&name) {
            return Entered::Full;
        }
        let end = Arc::clone(end);
        // A wait that ended before the task did leaves nothing that is worth keeping.
        tasks.insert(name, One { end, until });
        Entered::New
    }

    /// Returns what a wait for a task came to, where that is an answer of its server. A wait that
    /// failed says nothing of the task.
    fn take(&self, name: &Name) -> Option<Reply> {
        let mut tasks = lock(&self.tasks);
        let one = tasks.remove(name)?;
        if !one.end.is_over() {
            tasks.insert(name.clone(), one);
            return None;
        }
        drop(tasks);
        one.end.take_outcome()?.ok()
    }
}

/// What came of having somebody wait for a task.
#[derive(Debug)]
enum Entered {
    /// It waits from now on.
    New,
    /// This one waits already.
    Waits(Arc<End>),
    /// Too many are attended to.
    Full,
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
    pub(super) fn attended_reply(&self) -> Option<Reply> {
        self.told.edge.calls.attended.take(&self.name())
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
        match attended.enter(self.name(), &end, edge.host.clock().now()) {
            Entered::New => {}
            Entered::Waits(other) => return Some(other),
            Entered::Full => return None,
        }
        let (running, told) = (carry(Arc::clone(edge), call, cancelled), Arc::clone(&end));
        edge.host.tasks().spawn("task attended", async move {
            let outcome = running.await;
            told.finish(outcome);
        });
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::call::{Principal, Role, Scope};
    use bowline_core::caller::Abilities;
    use bowline_core::error::CallError;
    use tokio::sync::oneshot;

    use super::*;
    use crate::edge::modern::client::Clients;
    use crate::edge::modern::end::Wants;
    use crate::edge::session::Sessions;

    fn end() -> Arc<End> {
        begun("").0
    }

    fn begun(credential: &str) -> (Arc<End>, oneshot::Receiver<()>) {
        let ann = Principal {
            credential: credential.into(),
            ..Principal::new("ann", Role::Owner)
        };
        let (clients, sessions) = (Clients::default(), Sessions::new(&[1; 32]));
        let what = (Abilities::default(), &b""[..]);
        let (client, _) = clients.enter(&sessions, (&ann, &Scope::All), what, Now(0));
        let (end, _, cancelled) = End::new(client, Wants::default());
        (end, cancelled)
    }

    fn name(link: LinkKey) -> Name {
        ("ann".into(), "s".into(), link, "1".into())
    }

    #[test]
    fn of_two_who_begin_to_wait_for_a_task_one_does() {
        let attended = Attended::default();
        let (first, second) = (end(), end());
        let enter = |link, end: &Arc<End>| attended.enter(name(LinkKey(link)), end, Now(0));
        assert!(matches!(enter(0, &first), Entered::New));
        let Entered::Waits(waits) = enter(0, &second) else {
            panic!("both wait");
        };
        assert!(Arc::ptr_eq(&waits, &first));
        assert!(matches!(enter(1, &second), Entered::New), "another task");
        let found = attended.find(&name(LinkKey(0)), Now(0)).unwrap();
        assert!(Arc::ptr_eq(&found, &first));
    }

    #[test]
    fn who_waits_with_a_token_that_was_revoked_waits_no_longer() {
        let attended = Attended::default();
        let (end, mut cancelled) = begun("token");
        attended.enter(name(LinkKey::SHARED), &end, Now(0));
        attended.dismiss("another");
        assert!(cancelled.try_recv().is_err());
        attended.dismiss("token");
        assert_eq!(cancelled.try_recv(), Ok(()));
        assert!(lock(&attended.tasks).is_empty());
    }

    #[test]
    fn a_wait_that_failed_is_no_end_of_its_task_and_makes_room_for_the_next() {
        let attended = Attended::default();
        let name = name(LinkKey::SHARED);
        let (first, second) = (end(), end());
        attended.enter(name.clone(), &first, Now(0));
        assert!(attended.take(&name).is_none());
        assert!(attended.find(&name, Now(0)).is_some(), "it waits on");
        first.finish(Err(CallError::ShuttingDown));
        assert!(attended.find(&name, Now(0)).is_none());
        assert!(matches!(
            attended.enter(name.clone(), &second, Now(0)),
            Entered::New
        ));
        second.finish(Err(CallError::ShuttingDown));
        assert!(attended.take(&name).is_none(), "no answer");
        assert!(lock(&attended.tasks).is_empty());
    }
}
