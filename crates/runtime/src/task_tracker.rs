//! The only place for spawning tasks: each task has a name, and the end of all tasks is awaited.

use std::future::Future;
use std::sync::Arc;

use bowline_core::BoxFuture;
use tokio::sync::watch;
use tracing::Instrument as _;

/// The port for tasks: a component spawns through it and does not know who waits for the tasks.
pub trait TaskSpawner: Send + Sync {
    /// Runs a task to completion.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);
}

/// Spawns tasks and waits for all of them. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TaskTracker {
    /// Number of live tasks.
    live: Arc<watch::Sender<usize>>,
}

impl Default for TaskTracker {
    fn default() -> Self {
        Self {
            live: Arc::new(watch::Sender::new(0)),
        }
    }
}

/// Counts a live task until dropped.
#[derive(Debug)]
struct TaskGuard(Arc<watch::Sender<usize>>);

impl TaskGuard {
    fn new(live: &Arc<watch::Sender<usize>>) -> Self {
        live.send_modify(|count| *count += 1);
        Self(Arc::clone(live))
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl TaskTracker {
    /// Spawns `task` under `name`.
    #[expect(clippy::disallowed_methods, reason = "the one place that starts tasks")]
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let living = TaskGuard::new(&self.live);
        let task = async move {
            let _living = living;
            task.await;
        };
        tokio::spawn(task.instrument(tracing::debug_span!("task", name)));
    }

    /// Waits until no task is left.
    pub async fn wait_finished(&self) {
        // This struct owns the sender, so the channel stays open.
        let _ = self.live.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl TaskSpawner for TaskTracker {
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        Self::spawn(self, name, task);
    }
}
