//! Sessions of clients: each outlives its connection for a while. They hold nothing but their name,
//! since requests do not outlive a connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::hex::hex;
use bowline_core::sync::lock;
use tokio::time::sleep;

use crate::tasks::Tasks;

/// Sessions without a connection; the oldest is forgotten where there are more.
const DETACHED_MAX: usize = 1_024;

/// All sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    keep: Duration,
    tasks: Tasks,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Counts what happens.
    turn: u64,
    /// When each was left; absent while it has a connection.
    left: HashMap<Arc<str>, Option<u64>>,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoSession {
    /// There is none, or none any more.
    Unknown,
    /// Another connection has it.
    Attached,
}

/// A session that a connection has.
#[derive(Debug)]
pub(super) struct Attached {
    sessions: Arc<Sessions>,
    id: Arc<str>,
}

impl Attached {
    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        Sessions::leave(&self.sessions, &self.id);
    }
}

impl Sessions {
    pub(super) fn new(keep: Duration, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            keep,
            tasks,
            table: Mutex::default(),
        })
    }

    /// Opens one.
    pub(super) fn open(self: &Arc<Self>) -> Attached {
        let mut random = [0; 16];
        // Without random numbers a name may be guessed, and behind it is nothing.
        let _unlikely = getrandom::fill(&mut random);
        let id: Arc<str> = hex(&random).into();
        lock(&self.table).left.insert(Arc::clone(&id), None);
        Attached {
            sessions: Arc::clone(self),
            id,
        }
    }

    /// Goes on with one.
    pub(super) fn resume(self: &Arc<Self>, id: &Arc<str>) -> Result<Attached, NoSession> {
        let mut table = lock(&self.table);
        let left = table.left.get_mut(id).ok_or(NoSession::Unknown)?;
        left.take().ok_or(NoSession::Attached)?;
        Ok(Attached {
            sessions: Arc::clone(self),
            id: Arc::clone(id),
        })
    }

    fn leave(this: &Arc<Self>, id: &Arc<str>) {
        let turn = {
            let mut table = lock(&this.table);
            table.turn += 1;
            let turn = table.turn;
            if let Some(left) = table.left.get_mut(id) {
                *left = Some(turn);
            }
            table.shorten();
            turn
        };
        let (sessions, id) = (Arc::clone(this), Arc::clone(id));
        this.tasks.spawn("exec-server session", async move {
            sleep(sessions.keep).await;
            let mut table = lock(&sessions.table);
            if table.left.get(&id) == Some(&Some(turn)) {
                table.left.remove(&id);
            }
        });
    }
}

impl Table {
    fn shorten(&mut self) {
        let detached = self
            .left
            .iter()
            .filter_map(|(id, left)| Some((id, (*left)?)));
        if detached.clone().count() > DETACHED_MAX {
            let oldest = detached.min_by_key(|(_, turn)| *turn);
            if let Some(oldest) = oldest.map(|(id, _)| Arc::clone(id)) {
                self.left.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_session_is_kept_for_a_while_and_had_by_one_connection() {
        let keep = Duration::from_secs(30);
        let sessions = Sessions::new(keep, Tasks::default());
        let first = sessions.open();
        let id: Arc<str> = first.id().into();
        let resumed = |sessions: &Arc<Sessions>| sessions.resume(&id).map(|_| ());
        assert_eq!(resumed(&sessions), Err(NoSession::Attached));
        drop(first);
        sleep(keep / 2).await;
        let second = sessions.resume(&id).unwrap();
        // The first one's time is over, and the second one's has not begun.
        sleep(keep).await;
        drop(second);
        sleep(keep / 2).await;
        assert_eq!(resumed(&sessions), Ok(()));
        sleep(keep * 2).await;
        assert_eq!(resumed(&sessions), Err(NoSession::Unknown));
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_that_nobody_has_are_bounded() {
        let sessions = Sessions::new(Duration::from_secs(30), Tasks::default());
        let had = sessions.open();
        for _ in 0..DETACHED_MAX + 10 {
            drop(sessions.open());
        }
        assert_eq!(lock(&sessions.table).left.len(), DETACHED_MAX + 1);
        let id: Arc<str> = had.id().into();
        drop(had);
        assert!(sessions.resume(&id).is_ok());
    }
}
