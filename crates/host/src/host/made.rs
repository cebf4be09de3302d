//! Tasks whose callers hold ids that say whose they are.

use std::sync::Arc;

use bowline_core::caller::SessionKey;
use bowline_core::sync::lock;
use bowline_core::tasks::{Made, MadeBy};

use super::Host;

impl Host {
    /// Returns what is known of a task that a call of this session has made.
    #[must_use]
    pub fn task_made(&self, principal: &str, session: SessionKey, id: &str) -> Option<Made> {
        let now = self.path.clock.now();
        let tasks = lock(&self.path.memory.tasks);
        let own = tasks.of(principal, now);
        // The newest is the last.
        own.filter(|made| *made.id == *id && made.session == Some(session))
            .last()
            .cloned()
    }

    /// Remembers a task again that this principal made, by what its id said of it.
    pub fn adopt_task(&self, principal: &Arc<str>, session: SessionKey, by: MadeBy<'_>, id: &str) {
        let now = self.path.clock.now();
        let mut tasks = lock(&self.path.memory.tasks);
        let known = tasks
            .of(principal, now)
            .any(|made| *made.id == *id && made.server == *by.server && made.link == by.link);
        if !known {
            tasks.note(principal, Some(session), by, id, now);
        }
    }
}
