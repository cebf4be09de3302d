//! The only place for spawning tasks: each task has a name, and the end of all tasks is awaited.

use std::future::Future;
use std::sync::Arc;

use bowline_core::BoxFuture;
use tracing::Instrument as _;

use crate::lifecycle::LifecycleState;
use crate::{Service, Shutdown};

/// The port for tasks: a component spawns through it and does not know who waits for the tasks.
pub trait TaskSpawner: Send + Sync {
    /// Runs a task to completion.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);
}

/// Spawns tasks and waits for all of them. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct TaskTracker {
    /// Its activities are the live tasks.
    live: Arc<LifecycleState>,
}

impl TaskTracker {
    /// Spawns `task` under `name`.
    #[expect(clippy::disallowed_methods, reason = "the one place that starts tasks")]
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let living = self.live.start_activity();
        let task = async move {
            let _living = living;
            task.await;
        };
        tokio::spawn(task.instrument(tracing::debug_span!("task", name)));
    }

    /// Spawns a service, as an activity of the component that `shutdown` ends.
    pub fn start<S: Service>(&self, service: S, shutdown: &Shutdown) {
        let (activity, shutdown) = (shutdown.start_activity(), shutdown.clone());
        self.spawn(S::NAME, async move {
            let _activity = activity;
            service.run(shutdown).await;
        });
    }

    /// Waits until no task is left.
    pub async fn wait_finished(&self) {
        self.live.wait_idle().await;
    }
}

impl TaskSpawner for TaskTracker {
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        Self::spawn(self, name, task);
    }
}
