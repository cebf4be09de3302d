//! Tasks by principal: a task belongs to the principal that created the task.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::client_handle::SessionKey;
use crate::time::MonotonicTime;

/// Tasks per principal; the oldest is dropped first.
pub const TASKS_MAX: usize = 1_024;

/// Retention of a task.
pub const TASK_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Longer ids are ignored.
const ID_BYTES_MAX: usize = 1_024;

/// The tasks of all principals.
#[derive(Debug, Default)]
pub struct TaskTable(HashMap<Arc<str>, VecDeque<TaskRecord>>);

/// The link of a task. A server with one process per link may use an id once per link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkKey(pub u64);

impl LinkKey {
    /// The shared link, across reconnects.
    pub const SHARED: Self = Self(0);
}

/// A created task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRecord {
    /// The id given by the server.
    pub id: Arc<str>,
    /// The server.
    pub server: Arc<str>,
    /// The creating tool. A principal without access to the tool has no access to the task.
    pub tool: Arc<str>,
    /// The link of the creating call.
    pub link: LinkKey,
    /// The session of the creating call.
    pub session: Option<SessionKey>,
    expires_at: MonotonicTime,
}

impl TaskRecord {
    fn matches_id(&self, server: &str, link: LinkKey, id: &str) -> bool {
        *self.id == *id && *self.server == *server && self.link == link
    }
}

/// The origin of a task: a tool of a server, and the link of the call.
#[derive(Clone, Copy, Debug)]
pub struct TaskOrigin<'a> {
    /// The server.
    pub server: &'a Arc<str>,
    /// The upstream name of the tool.
    pub tool: &'a Arc<str>,
    /// The link.
    pub link: LinkKey,
}

/// Content of a sealed task id, presented by a sessionless client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedTaskId {
    /// The server of the task.
    pub server: Arc<str>,
    /// The creating tool.
    pub tool: Arc<str>,
    /// The link of the task.
    pub link: LinkKey,
    /// The gateway process of the creating call.
    pub origin_process: OriginProcess,
}

/// The gateway process of a task's creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginProcess {
    /// This process, which has the task in its table.
    Current,
    /// An earlier process, whose table is lost.
    Earlier,
}

/// The holder of a task, as far as known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskHolder {
    /// The requesting principal.
    Requester,
    /// A different principal.
    OtherPrincipal,
    /// Not in the table.
    Unknown,
}

/// The owning server of a task id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskOwner {
    /// A single server.
    One(Arc<str>),
    /// Several servers use the id.
    Several(Arc<str>),
    /// No task of the principal has the id.
    Unknown,
}

impl TaskTable {
    /// Records a task just created for `principal`.
    ///
    /// A server reusing an id has dropped the older task, so the older owner must not reach the new
    /// task.
    ///
    /// Returns the record; `None` if the id is too long.
    pub fn record_task(
        &mut self,
        principal: &Arc<str>,
        session: Option<SessionKey>,
        origin: TaskOrigin<'_>,
        id: &str,
        now: MonotonicTime,
    ) -> Option<&TaskRecord> {
        let TaskOrigin { server, tool, link } = origin;
        if id.len() > ID_BYTES_MAX {
            return None;
        }
        for tasks in self.0.values_mut() {
            tasks.retain(|record| !record.matches_id(server, link, id) && record.expires_at > now);
        }
        self.0.retain(|_, tasks| !tasks.is_empty());
        let tasks = self.0.entry(Arc::clone(principal)).or_default();
        if tasks.len() >= TASKS_MAX {
            tasks.pop_front();
        }
        tasks.push_back(TaskRecord {
            id: id.into(),
            server: Arc::clone(server),
            tool: Arc::clone(tool),
            link,
            session,
            expires_at: now.plus(TASK_TTL),
        });
        tasks.back()
    }

    /// Returns the holder of the task at the location in `sealed`. Extends the retention for the
    /// requesting principal.
    pub fn find_holder(
        &mut self,
        principal: &str,
        sealed: &SealedTaskId,
        id: &str,
        now: MonotonicTime,
    ) -> TaskHolder {
        let mut holder = TaskHolder::Unknown;
        for (who, tasks) in &mut self.0 {
            let mut all = tasks.iter_mut();
            let Some(record) =
                all.find(|record| record.matches_id(&sealed.server, sealed.link, id))
            else {
                continue;
            };
            if **who != *principal {
                return TaskHolder::OtherPrincipal;
            }
            if record.expires_at > now {
                record.expires_at = now.plus(TASK_TTL);
                holder = TaskHolder::Requester;
            }
        }
        holder
    }

    /// Returns the server of the principal's task with this id, among the `wanted` servers.
    #[must_use]
    pub fn find_owner(
        &self,
        principal: &str,
        id: &str,
        now: MonotonicTime,
        is_candidate: impl Fn(&str) -> bool,
    ) -> TaskOwner {
        let mut owner: Option<&Arc<str>> = None;
        for record in self.principal_tasks(principal, now) {
            if *record.id != *id || !is_candidate(&record.server) {
                continue;
            }
            match owner {
                Some(first) if *first != record.server => {
                    return TaskOwner::Several(Arc::clone(first));
                }
                Some(_) => {}
                None => owner = Some(&record.server),
            }
        }
        owner.map_or(TaskOwner::Unknown, |server| {
            TaskOwner::One(Arc::clone(server))
        })
    }

    /// Returns the tasks of a principal, oldest first.
    pub fn principal_tasks(
        &self,
        principal: &str,
        now: MonotonicTime,
    ) -> impl Iterator<Item = &TaskRecord> {
        let tasks = self.0.get(principal).into_iter().flatten();
        tasks.filter(move |record| record.expires_at > now)
    }

    /// Returns the principal's task for a request with `id`: the task created by `session`, else
    /// the newest.
    #[must_use]
    pub fn find_task(
        &self,
        principal: &str,
        session: Option<SessionKey>,
        server: &str,
        id: &str,
    ) -> Option<&TaskRecord> {
        let tasks = self.0.get(principal)?.iter();
        let matching = tasks.filter(|record| *record.server == *server && *record.id == *id);
        // Of equal keys the last wins, the newest.
        matching.max_by_key(|record| session.is_some() && record.session == session)
    }

    /// Whether a live task exists at the link.
    #[must_use]
    pub fn has_task_at(&self, server: &str, link: LinkKey, now: MonotonicTime) -> bool {
        let mut all = self.0.values().flatten();
        all.any(|record| {
            *record.server == *server && record.link == link && record.expires_at > now
        })
    }

    /// Returns the task of `server` on the link, of any principal.
    #[must_use]
    pub fn task_at(&self, server: &str, link: LinkKey, id: &str) -> Option<&TaskRecord> {
        let mut all = self.0.values().flatten();
        all.find(|record| record.matches_id(server, link, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Arc<str> {
        text.into()
    }

    /// Records a task created on the shared link.
    fn record(table: &mut TaskTable, who: &str, server: &str, id: &str) {
        table.record_task(
            &name(who),
            None,
            origin(&name(server), LinkKey::SHARED, &name("t")),
            id,
            MonotonicTime(0),
        );
    }

    fn origin<'a>(server: &'a Arc<str>, link: LinkKey, tool: &'a Arc<str>) -> TaskOrigin<'a> {
        TaskOrigin { server, tool, link }
    }

    #[test]
    fn task_belongs_to_its_principal() {
        let mut table = TaskTable::default();
        let at = MonotonicTime(0);
        let (server, tool) = (name("s"), name("t"));
        let made_by = origin(&server, LinkKey::SHARED, &tool);
        table.record_task(&name("ann"), Some(SessionKey(3)), made_by, "1", at);
        let owner = |who, id, now| table.find_owner(who, id, now, |_| true);
        assert_eq!(owner("ann", "1", at), TaskOwner::One(name("s")));
        assert_eq!(owner("bob", "1", at), TaskOwner::Unknown);
        assert_eq!(owner("ann", "2", at), TaskOwner::Unknown);
        assert_eq!(owner("ann", "1", at.plus(TASK_TTL)), TaskOwner::Unknown);
        let session = |link| table.task_at("s", link, "1").and_then(|made| made.session);
        assert_eq!(session(LinkKey::SHARED), Some(SessionKey(3)));
        assert_eq!(session(LinkKey(1)), None);
        assert_eq!(
            table.find_owner("ann", "1", at, |server| server == "t"),
            TaskOwner::Unknown
        );
    }

    #[test]
    fn id_of_two_servers_is_ambiguous() {
        let mut table = TaskTable::default();
        record(&mut table, "ann", "s", "1");
        record(&mut table, "ann", "t", "1");
        assert_eq!(
            table.find_owner("ann", "1", MonotonicTime(0), |_| true),
            TaskOwner::Several(name("s"))
        );
        let only = table.find_owner("ann", "1", MonotonicTime(0), |server| server == "t");
        assert_eq!(only, TaskOwner::One(name("t")));
    }

    #[test]
    fn reused_id_moves_to_new_owner() {
        let mut table = TaskTable::default();
        record(&mut table, "ann", "s", "1");
        record(&mut table, "bob", "s", "1");
        assert_eq!(
            table.find_owner("ann", "1", MonotonicTime(0), |_| true),
            TaskOwner::Unknown
        );
        assert_eq!(
            table.find_owner("bob", "1", MonotonicTime(0), |_| true),
            TaskOwner::One(name("s"))
        );
    }

    #[test]
    fn sealed_id_matches_only_its_task() {
        let mut table = TaskTable::default();
        record(&mut table, "ann", "s", "1");
        record(&mut table, "ann", "t", "1");
        let sealed = |server, link| SealedTaskId {
            server: name(server),
            tool: name("t"),
            link,
            origin_process: OriginProcess::Current,
        };
        let at = sealed("s", LinkKey::SHARED);
        let late = MonotonicTime(0).plus(TASK_TTL);
        let last = MonotonicTime(late.0 - 1);
        assert_eq!(
            table.find_holder("ann", &at, "1", last),
            TaskHolder::Requester
        );
        assert_eq!(
            table.find_holder("ann", &at, "1", late),
            TaskHolder::Requester,
            "renewed"
        );
        assert_eq!(
            table.find_holder("bob", &at, "1", last),
            TaskHolder::OtherPrincipal
        );
        assert_eq!(
            table.find_holder("ann", &at, "2", last),
            TaskHolder::Unknown
        );
        let other = sealed("s", LinkKey(8));
        assert_eq!(
            table.find_holder("ann", &other, "1", last),
            TaskHolder::Unknown
        );
        let other = sealed("t", LinkKey::SHARED);
        assert_eq!(
            table.find_holder("ann", &other, "1", late),
            TaskHolder::Unknown,
            "old"
        );
        record(&mut table, "bob", "s", "1");
        assert_eq!(
            table.find_holder("ann", &at, "1", MonotonicTime(0)),
            TaskHolder::OtherPrincipal
        );
        assert_eq!(
            table.find_holder("bob", &at, "1", MonotonicTime(0)),
            TaskHolder::Requester
        );
    }

    #[test]
    fn links_of_server_may_share_id() {
        let mut table = TaskTable::default();
        for (who, session, link) in [("ann", 1, 8), ("bob", 2, 9), ("ann", 3, 10)] {
            let (server, tool) = (name("s"), name(&format!("t{link}")));
            let made_by = origin(&server, LinkKey(link), &tool);
            table.record_task(
                &name(who),
                Some(SessionKey(session)),
                made_by,
                "1",
                MonotonicTime(0),
            );
        }
        let find = |who, session| table.find_task(who, Some(SessionKey(session)), "s", "1");
        let link = |who, session| find(who, session).map(|made| made.link);
        assert_eq!(find("ann", 1).map(|made| &*made.tool), Some("t8"));
        assert_eq!(link("ann", 1), Some(LinkKey(8)));
        assert_eq!(link("ann", 3), Some(LinkKey(10)));
        assert_eq!(link("ann", 7), Some(LinkKey(10)), "the newest");
        assert_eq!(link("bob", 1), Some(LinkKey(9)));
        assert_eq!(link("eve", 1), None);
        let made = table.task_at("s", LinkKey(9), "1").unwrap();
        assert_eq!(made.session, Some(SessionKey(2)));
        let any = |link, now| table.has_task_at("s", LinkKey(link), now);
        assert!(
            any(8, MonotonicTime(0))
                && !any(7, MonotonicTime(0))
                && !any(8, MonotonicTime(0).plus(TASK_TTL))
        );
    }

    #[test]
    fn oldest_task_is_evicted_first() {
        let mut table = TaskTable::default();
        for nth in 0..=TASKS_MAX {
            record(&mut table, "ann", "s", &nth.to_string());
        }
        assert_eq!(
            table.principal_tasks("ann", MonotonicTime(0)).count(),
            TASKS_MAX
        );
        assert_eq!(
            table.find_owner("ann", "0", MonotonicTime(0), |_| true),
            TaskOwner::Unknown
        );
    }
}
