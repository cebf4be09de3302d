//! The only place that starts a task: each has a name, and all are waited for at the end.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::watch;
use tracing::Instrument as _;

/// Starts tasks and waits for their end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tasks {
    /// How many tasks live.
    live: Arc<watch::Sender<usize>>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self {
            live: Arc::new(watch::Sender::new(0)),
        }
    }
}

/// Counts a task for as long as it lives, however it ends.
#[derive(Debug)]
struct Living(Arc<watch::Sender<usize>>);

impl Living {
    fn new(live: &Arc<watch::Sender<usize>>) -> Self {
        live.send_modify(|count| *count += 1);
        Self(Arc::clone(live))
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Tasks {
    /// Starts `task` under `name`.
    #[expect(clippy::disallowed_methods, reason = "the one place that starts tasks")]
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let living = Living::new(&self.live);
        let task = async move {
            let _living = living;
            task.await;
        };
        tokio::spawn(task.instrument(tracing::debug_span!("task", name)));
    }

    /// Returns once no task lives any more.
    pub async fn finished(&self) {
        // The sender is ours, so the channel cannot close under us.
        let _ = self.live.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl bowline_link::Spawner for Tasks {
    fn spawn(&self, name: &'static str, task: bowline_link::BoxFuture<'static, ()>) {
        Self::spawn(self, name, task);
    }
}
