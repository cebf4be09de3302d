//! Sessions of exec-server clients. A session outlives the connection for a while and holds only an
//! id, since requests end with the connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::hex::to_hex;
use bowline_core::sync::lock;
use bowline_runtime::TaskTracker;
use tokio::time::sleep;

/// Sessions without a connection; beyond the limit the oldest is evicted.
const DETACHED_MAX: usize = 1_024;

/// All sessions.
#[derive(Debug)]
pub(super) struct AdapterSessions {
    retention: Duration,
    tasks: TaskTracker,
    table: Mutex<AdapterSessionTable>,
}

#[derive(Debug, Default)]
struct AdapterSessionTable {
    /// Counts detaches.
    tick: u64,
    /// Detach tick of each session; `None` while attached.
    detached_at: HashMap<Arc<str>, Option<u64>>,
}

/// Why a session cannot be attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachError {
    /// Unknown or expired.
    Unknown,
    /// Attached to another connection.
    Attached,
}

/// A session attached to a connection; detached on drop.
#[derive(Debug)]
pub(super) struct AdapterSessionGuard {
    sessions: Arc<AdapterSessions>,
    id: Arc<str>,
}

impl AdapterSessionGuard {
    pub(super) fn id(&self) -> &str {
        &self.id
    }
}

impl Drop for AdapterSessionGuard {
    fn drop(&mut self) {
        AdapterSessions::detach(&self.sessions, &self.id);
    }
}

impl AdapterSessions {
    pub(super) fn new(retention: Duration, tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self {
            retention,
            tasks,
            table: Mutex::default(),
        })
    }

    /// Opens a session.
    pub(super) fn open(self: &Arc<Self>) -> AdapterSessionGuard {
        let mut random = [0; 16];
        // Without entropy the id may be guessed; the session protects nothing.
        let _unlikely = getrandom::fill(&mut random);
        let id: Arc<str> = to_hex(&random).into();
        lock(&self.table).detached_at.insert(Arc::clone(&id), None);
        AdapterSessionGuard {
            sessions: Arc::clone(self),
            id,
        }
    }

    /// Attaches an existing session.
    pub(super) fn resume(
        self: &Arc<Self>,
        id: &Arc<str>,
    ) -> Result<AdapterSessionGuard, AttachError> {
        let mut table = lock(&self.table);
        let left = table.detached_at.get_mut(id).ok_or(AttachError::Unknown)?;
        left.take().ok_or(AttachError::Attached)?;
        Ok(AdapterSessionGuard {
            sessions: Arc::clone(self),
            id: Arc::clone(id),
        })
    }

    fn detach(this: &Arc<Self>, id: &Arc<str>) {
        let tick = {
            let mut table = lock(&this.table);
            table.tick += 1;
            let tick = table.tick;
            if let Some(detached_at) = table.detached_at.get_mut(id) {
                *detached_at = Some(tick);
            }
            table.evict_oldest();
            tick
        };
        let (sessions, id) = (Arc::clone(this), Arc::clone(id));
        this.tasks.spawn("exec-server session", async move {
            sleep(sessions.retention).await;
            let mut table = lock(&sessions.table);
            if table.detached_at.get(&id) == Some(&Some(tick)) {
                table.detached_at.remove(&id);
            }
        });
    }
}

impl AdapterSessionTable {
    fn evict_oldest(&mut self) {
        let detached = self
            .detached_at
            .iter()
            .filter_map(|(id, left)| Some((id, (*left)?)));
        if detached.clone().count() > DETACHED_MAX {
            let oldest = detached.min_by_key(|(_, tick)| *tick);
            if let Some(oldest) = oldest.map(|(id, _)| Arc::clone(id)) {
                self.detached_at.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn session_survives_detach_for_retention_time() {
        let keep = Duration::from_secs(30);
        let sessions = AdapterSessions::new(keep, TaskTracker::default());
        let first = sessions.open();
        let id: Arc<str> = first.id().into();
        let resumed = |sessions: &Arc<AdapterSessions>| sessions.resume(&id).map(|_| ());
        assert_eq!(resumed(&sessions), Err(AttachError::Attached));
        drop(first);
        sleep(keep / 2).await;
        let second = sessions.resume(&id).unwrap();
        // The first retention timer fired; the second has not started.
        sleep(keep).await;
        drop(second);
        sleep(keep / 2).await;
        assert_eq!(resumed(&sessions), Ok(()));
        sleep(keep * 2).await;
        assert_eq!(resumed(&sessions), Err(AttachError::Unknown));
    }

    #[tokio::test(start_paused = true)]
    async fn detached_sessions_are_bounded() {
        let sessions = AdapterSessions::new(Duration::from_secs(30), TaskTracker::default());
        let had = sessions.open();
        for _ in 0..DETACHED_MAX + 10 {
            drop(sessions.open());
        }
        assert_eq!(lock(&sessions.table).detached_at.len(), DETACHED_MAX + 1);
        let id: Arc<str> = had.id().into();
        drop(had);
        assert!(sessions.resume(&id).is_ok());
    }
}
