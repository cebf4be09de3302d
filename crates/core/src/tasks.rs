//! Who made which task, and at which server: a task belongs to the principal that made it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::caller::SessionKey;
use crate::time::Now;

/// Tasks remembered for one principal; the oldest goes first.
pub const TASKS_MAX: usize = 1_024;

/// How long a task is remembered.
pub const TASK_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// A longer id is not remembered.
const ID_BYTES_MAX: usize = 1_024;

/// The tasks of all principals.
#[derive(Debug, Default)]
pub struct TaskTable(HashMap<Arc<str>, VecDeque<Made>>);

/// One task that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Its id, given by the server.
    pub id: Arc<str>,
    /// The server.
    pub server: Arc<str>,
    /// The session whose call made it.
    pub session: Option<SessionKey>,
    until: Now,
}

/// Whose task an id is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// One server's.
    One(Arc<str>),
    /// Several servers gave it out.
    Several(Arc<str>),
    /// Nobody's that this principal may know of.
    Unknown,
}

impl TaskTable {
    /// Remembers a task that `server` has just given to `principal`.
    ///
    /// A server that gives out an id again has forgotten the older task of that id, so whoever
    /// made that one must not reach the new one.
    pub fn note(
        &mut self,
        principal: &Arc<str>,
        session: Option<SessionKey>,
        server: &Arc<str>,
        id: &str,
        now: Now,
    ) {
        if id.len() > ID_BYTES_MAX {
            return;
        }
        for tasks in self.0.values_mut() {
            tasks.retain(|made| !(*made.id == *id && made.server == *server) && made.until > now);
        }
        self.0.retain(|_, tasks| !tasks.is_empty());
        let tasks = self.0.entry(Arc::clone(principal)).or_default();
        if tasks.len() >= TASKS_MAX {
            tasks.pop_front();
        }
        tasks.push_back(Made {
            id: id.into(),
            server: Arc::clone(server),
            session,
            until: now.plus(TASK_TTL),
        });
    }

    /// Returns the server whose task of `principal` has that id, among those `wanted`.
    #[must_use]
    pub fn owner(
        &self,
        principal: &str,
        id: &str,
        now: Now,
        wanted: impl Fn(&str) -> bool,
    ) -> Owner {
        let mut found: Option<&Arc<str>> = None;
        for made in self.of(principal, now) {
            if *made.id != *id || !wanted(&made.server) {
                continue;
            }
            match found {
                Some(first) if *first != made.server => return Owner::Several(Arc::clone(first)),
                Some(_) => {}
                None => found = Some(&made.server),
            }
        }
        found.map_or(Owner::Unknown, |server| Owner::One(Arc::clone(server)))
    }

    /// Returns the tasks of a principal, oldest first.
    pub fn of(&self, principal: &str, now: Now) -> impl Iterator<Item = &Made> {
        let tasks = self.0.get(principal).into_iter().flatten();
        tasks.filter(move |made| made.until > now)
    }

    /// Returns the session whose call made a task of `server`.
    #[must_use]
    pub fn session(&self, server: &str, id: &str) -> Option<SessionKey> {
        let mut all = self.0.values().flatten();
        let made = all.find(|made| *made.id == *id && *made.server == *server)?;
        made.session
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Arc<str> {
        text.into()
    }

    #[test]
    fn a_task_belongs_to_the_principal_that_made_it() {
        let mut table = TaskTable::default();
        let at = Now(0);
        table.note(&name("ann"), Some(SessionKey(3)), &name("s"), "1", at);
        let owner = |who, id, now| table.owner(who, id, now, |_| true);
        assert_eq!(owner("ann", "1", at), Owner::One(name("s")));
        assert_eq!(owner("bob", "1", at), Owner::Unknown);
        assert_eq!(owner("ann", "2", at), Owner::Unknown);
        assert_eq!(owner("ann", "1", at.plus(TASK_TTL)), Owner::Unknown);
        assert_eq!(table.session("s", "1"), Some(SessionKey(3)));
        assert_eq!(
            table.owner("ann", "1", at, |server| server == "t"),
            Owner::Unknown
        );
    }

    #[test]
    fn an_id_that_two_servers_gave_out_is_ambiguous() {
        let mut table = TaskTable::default();
        table.note(&name("ann"), None, &name("s"), "1", Now(0));
        table.note(&name("ann"), None, &name("t"), "1", Now(0));
        assert_eq!(
            table.owner("ann", "1", Now(0), |_| true),
            Owner::Several(name("s"))
        );
        let only = table.owner("ann", "1", Now(0), |server| server == "t");
        assert_eq!(only, Owner::One(name("t")));
    }

    #[test]
    fn an_id_given_out_again_no_longer_belongs_to_who_had_it_first() {
        let mut table = TaskTable::default();
        table.note(&name("ann"), None, &name("s"), "1", Now(0));
        table.note(&name("bob"), None, &name("s"), "1", Now(0));
        assert_eq!(table.owner("ann", "1", Now(0), |_| true), Owner::Unknown);
        assert_eq!(
            table.owner("bob", "1", Now(0), |_| true),
            Owner::One(name("s"))
        );
    }

    #[test]
    fn the_oldest_task_of_a_principal_goes_first() {
        let mut table = TaskTable::default();
        for nth in 0..=TASKS_MAX {
            table.note(&name("ann"), None, &name("s"), &nth.to_string(), Now(0));
        }
        assert_eq!(table.of("ann", Now(0)).count(), TASKS_MAX);
        assert_eq!(table.owner("ann", "0", Now(0), |_| true), Owner::Unknown);
    }
}
