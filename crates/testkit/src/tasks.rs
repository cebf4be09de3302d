//! Tasks of tests, which have no `TaskTracker`.

use std::sync::Mutex;

use bowline_core::BoxFuture;
use bowline_core::sync::lock;
use bowline_runtime::TaskSpawner;
use tokio::task::JoinHandle;

use crate::waits::wait_bounded;

/// Spawns a task that the test joins or drops.
#[expect(clippy::disallowed_methods, reason = "the one spawn of tests")]
pub fn spawn_task<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(task)
}

/// Runs a future in a runtime of its own, for a test that is not asynchronous.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(future)
}

/// Spawns tasks and remembers them, so that a test can await their end.
#[derive(Debug, Default)]
pub struct TestSpawner(Mutex<Vec<JoinHandle<()>>>);

impl TaskSpawner for TestSpawner {
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        lock(&self.0).push(spawn_task(task));
    }
}

impl TestSpawner {
    /// Waits until every task has ended.
    pub async fn wait_idle(&self) {
        let tasks = std::mem::take(&mut *lock(&self.0));
        for task in tasks {
            wait_bounded(task).await.unwrap();
        }
    }
}
