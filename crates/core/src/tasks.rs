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

/// Which link of a server a task lives at. A server that has several processes, one for each of
/// its links, may give out an id at each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkKey(pub u64);

impl LinkKey {
    /// The link that all share, however often it was made anew.
    pub const SHARED: Self = Self(0);
}

/// One task that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// Its id, given by the server.
    pub id: Arc<str>,
    /// The server.
    pub server: Arc<str>,
    /// The tool whose call made it: who may not use that any more does not reach the task.
    pub tool: Arc<str>,
    /// The link it was made on.
    pub link: LinkKey,
    /// The session whose call made it.
    pub session: Option<SessionKey>,
    until: Now,
}

impl Made {
    fn is(&self, server: &str, link: LinkKey, id: &str) -> bool {
        *self.id == *id && *self.server == *server && self.link == link
    }
}

/// Where a task is made: a tool of a server, and the link that carried the call.
#[derive(Clone, Copy, Debug)]
pub struct MadeBy<'a> {
    /// The server.
    pub server: &'a Arc<str>,
    /// Its own name of the tool.
    pub tool: &'a Arc<str>,
    /// The link.
    pub link: LinkKey,
}

/// What the id that a caller without a session brings says of its task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// The server that has it.
    pub server: Arc<str>,
    /// The tool whose call made it.
    pub tool: Arc<str>,
    /// The link it lives at.
    pub link: LinkKey,
    /// Which process of the gateway it was made through.
    pub made_in: MadeIn,
}

/// Which process of the gateway a task was made through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MadeIn {
    /// This one, which remembers whose it is.
    This,
    /// One before it, which took its memory along.
    Earlier,
}

/// Who is known to have a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Who asks.
    Asker,
    /// Somebody else.
    Another,
    /// Nobody that is remembered.
    Nobody,
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
    /// Remembers a task that a server has just given to `principal`.
    ///
    /// A server that gives out an id again has forgotten the older task of that id, so whoever
    /// made that one must not reach the new one.
    ///
    /// Returns what is remembered; nothing where the id is too long for that.
    pub fn note(
        &mut self,
        principal: &Arc<str>,
        session: Option<SessionKey>,
        by: MadeBy<'_>,
        id: &str,
        now: Now,
    ) -> Option<&Made> {
        let MadeBy { server, tool, link } = by;
        if id.len() > ID_BYTES_MAX {
            return None;
        }
        for tasks in self.0.values_mut() {
            tasks.retain(|made| !made.is(server, link, id) && made.until > now);
        }
        self.0.retain(|_, tasks| !tasks.is_empty());
        let tasks = self.0.entry(Arc::clone(principal)).or_default();
        if tasks.len() >= TASKS_MAX {
            tasks.pop_front();
        }
        tasks.push_back(Made {
            id: id.into(),
            server: Arc::clone(server),
            tool: Arc::clone(tool),
            link,
            session,
            until: now.plus(TASK_TTL),
        });
        tasks.back()
    }

    /// Says who has the task of that id at the place that `sealed` names. Where it is who asks, it
    /// is remembered for longer.
    pub fn holder(&mut self, principal: &str, sealed: &Sealed, id: &str, now: Now) -> Holder {
        let mut holder = Holder::Nobody;
        for (who, tasks) in &mut self.0 {
            let mut all = tasks.iter_mut();
            let Some(made) = all.find(|made| made.is(&sealed.server, sealed.link, id)) else {
                continue;
            };
            if **who != *principal {
                return Holder::Another;
            }
            if made.until > now {
                made.until = now.plus(TASK_TTL);
                holder = Holder::Asker;
            }
        }
        holder
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

    /// Returns the task of `principal` that a request for `id` means. Of several with that id it
    /// is the one that `session` made, else the newest.
    #[must_use]
    pub fn find(
        &self,
        principal: &str,
        session: Option<SessionKey>,
        server: &str,
        id: &str,
    ) -> Option<&Made> {
        let tasks = self.0.get(principal)?.iter();
        let found = tasks.filter(|made| *made.server == *server && *made.id == *id);
        // Of equals the last counts, and that is the newest.
        found.max_by_key(|made| session.is_some() && made.session == session)
    }

    /// Whether a task that is still remembered lives at that link.
    #[must_use]
    pub fn any_at(&self, server: &str, link: LinkKey, now: Now) -> bool {
        let mut all = self.0.values().flatten();
        all.any(|made| *made.server == *server && made.link == link && made.until > now)
    }

    /// Returns the task of `server` on that link, whoever made it.
    #[must_use]
    pub fn made(&self, server: &str, link: LinkKey, id: &str) -> Option<&Made> {
        let mut all = self.0.values().flatten();
        all.find(|made| made.is(server, link, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Arc<str> {
        text.into()
    }

    /// Notes a task made on the link that all share.
    fn note(table: &mut TaskTable, who: &str, server: &str, id: &str) {
        table.note(
            &name(who),
            None,
            by(&name(server), LinkKey::SHARED, &name("t")),
            id,
            Now(0),
        );
    }

    fn by<'a>(server: &'a Arc<str>, link: LinkKey, tool: &'a Arc<str>) -> MadeBy<'a> {
        MadeBy { server, tool, link }
    }

    #[test]
    fn a_task_belongs_to_the_principal_that_made_it() {
        let mut table = TaskTable::default();
        let at = Now(0);
        let (server, tool) = (name("s"), name("t"));
        let made_by = by(&server, LinkKey::SHARED, &tool);
        table.note(&name("ann"), Some(SessionKey(3)), made_by, "1", at);
        let owner = |who, id, now| table.owner(who, id, now, |_| true);
        assert_eq!(owner("ann", "1", at), Owner::One(name("s")));
        assert_eq!(owner("bob", "1", at), Owner::Unknown);
        assert_eq!(owner("ann", "2", at), Owner::Unknown);
        assert_eq!(owner("ann", "1", at.plus(TASK_TTL)), Owner::Unknown);
        let session = |link| table.made("s", link, "1").and_then(|made| made.session);
        assert_eq!(session(LinkKey::SHARED), Some(SessionKey(3)));
        assert_eq!(session(LinkKey(1)), None);
        assert_eq!(
            table.owner("ann", "1", at, |server| server == "t"),
            Owner::Unknown
        );
    }

    #[test]
    fn an_id_that_two_servers_gave_out_is_ambiguous() {
        let mut table = TaskTable::default();
        note(&mut table, "ann", "s", "1");
        note(&mut table, "ann", "t", "1");
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
        note(&mut table, "ann", "s", "1");
        note(&mut table, "bob", "s", "1");
        assert_eq!(table.owner("ann", "1", Now(0), |_| true), Owner::Unknown);
        assert_eq!(
            table.owner("bob", "1", Now(0), |_| true),
            Owner::One(name("s"))
        );
    }

    #[test]
    fn a_sealed_id_means_the_task_of_its_own_place_and_of_nobody_else() {
        let mut table = TaskTable::default();
        note(&mut table, "ann", "s", "1");
        note(&mut table, "ann", "t", "1");
        let sealed = |server, link| Sealed {
            server: name(server),
            tool: name("t"),
            link,
            made_in: MadeIn::This,
        };
        let at = sealed("s", LinkKey::SHARED);
        let late = Now(0).plus(TASK_TTL);
        let last = Now(late.0 - 1);
        assert_eq!(table.holder("ann", &at, "1", last), Holder::Asker);
        assert_eq!(
            table.holder("ann", &at, "1", late),
            Holder::Asker,
            "renewed"
        );
        assert_eq!(table.holder("bob", &at, "1", last), Holder::Another);
        assert_eq!(table.holder("ann", &at, "2", last), Holder::Nobody);
        let other = sealed("s", LinkKey(8));
        assert_eq!(table.holder("ann", &other, "1", last), Holder::Nobody);
        let other = sealed("t", LinkKey::SHARED);
        assert_eq!(
            table.holder("ann", &other, "1", late),
            Holder::Nobody,
            "old"
        );
        note(&mut table, "bob", "s", "1");
        assert_eq!(table.holder("ann", &at, "1", Now(0)), Holder::Another);
        assert_eq!(table.holder("bob", &at, "1", Now(0)), Holder::Asker);
    }

    #[test]
    fn each_link_of_a_server_may_give_out_an_id() {
        let mut table = TaskTable::default();
        for (who, session, link) in [("ann", 1, 8), ("bob", 2, 9), ("ann", 3, 10)] {
            let (server, tool) = (name("s"), name(&format!("t{link}")));
            let made_by = by(&server, LinkKey(link), &tool);
            table.note(&name(who), Some(SessionKey(session)), made_by, "1", Now(0));
        }
        let find = |who, session| table.find(who, Some(SessionKey(session)), "s", "1");
        let link = |who, session| find(who, session).map(|made| made.link);
        assert_eq!(find("ann", 1).map(|made| &*made.tool), Some("t8"));
        assert_eq!(link("ann", 1), Some(LinkKey(8)));
        assert_eq!(link("ann", 3), Some(LinkKey(10)));
        assert_eq!(link("ann", 7), Some(LinkKey(10)), "the newest");
        assert_eq!(link("bob", 1), Some(LinkKey(9)));
        assert_eq!(link("eve", 1), None);
        let made = table.made("s", LinkKey(9), "1").unwrap();
        assert_eq!(made.session, Some(SessionKey(2)));
        let any = |link, now| table.any_at("s", LinkKey(link), now);
        assert!(any(8, Now(0)) && !any(7, Now(0)) && !any(8, Now(0).plus(TASK_TTL)));
    }

    #[test]
    fn the_oldest_task_of_a_principal_goes_first() {
        let mut table = TaskTable::default();
        for nth in 0..=TASKS_MAX {
            note(&mut table, "ann", "s", &nth.to_string());
        }
        assert_eq!(table.of("ann", Now(0)).count(), TASKS_MAX);
        assert_eq!(table.owner("ann", "0", Now(0), |_| true), Owner::Unknown);
    }
}
