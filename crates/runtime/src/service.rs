//! The shape of a long-lived task.

use std::future::Future;

use crate::Shutdown;

/// A long-lived task of a component: a struct with what the task owns. Handles of the component
/// reach the task through state that both share, or through a bounded channel of a closed command
/// enum. Started with [`TaskTracker::start`](crate::TaskTracker::start).
pub trait Service: Send + 'static {
    /// The name of the task in traces.
    const NAME: &'static str;

    /// Runs until the shutdown, or until the task has nothing left to do.
    fn run(self, shutdown: Shutdown) -> impl Future<Output = ()> + Send;
}
