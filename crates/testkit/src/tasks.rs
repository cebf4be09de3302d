//! Tasks of tests that have no `TaskTracker`.

use std::sync::Mutex;

use bowline_core::BoxFuture;
use bowline_core::sync::lock;
use bowline_runtime::TaskSpawner;
use tokio::task::JoinHandle;

use crate::waits::wait_bounded;

/// Spawns a task.
#[expect(clippy::disallowed_methods, reason = "the one spawn of tests")]
pub fn spawn_task<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(task)
}

/// Runs a future in a new runtime, for a synchronous test.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(future)
}

/// A spawner for tasks that end with the runtime.
#[derive(Clone, Copy, Debug)]
pub struct DetachedSpawner;

impl TaskSpawner for DetachedSpawner {
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        spawn_task(task);
    }
}

/// A spawner that keeps the handles, so that a test can join all tasks.
#[derive(Debug, Default)]
pub struct JoiningSpawner(Mutex<Vec<JoinHandle<()>>>);

impl TaskSpawner for JoiningSpawner {
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        lock(&self.0).push(spawn_task(task));
    }
}

impl JoiningSpawner {
    /// Waits for the end of every task. A panic of a task fails the test.
    pub async fn wait_idle(&self) {
        let tasks = std::mem::take(&mut *lock(&self.0));
        for task in tasks {
            wait_bounded(task).await.unwrap();
        }
    }
}
