//! Runs a tool so that its panic ends only its own call.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use crate::{ExecuteContext, ExecuteError, ToolArguments, ToolExecutor, ToolOutput};

/// Runs a tool; `None` after a panic, which ends only this call.
pub async fn execute_caught(
    executor: &dyn ToolExecutor,
    tool: &str,
    arguments: ToolArguments,
    context: &ExecuteContext,
) -> Option<Result<ToolOutput, ExecuteError>> {
    let begin = || executor.execute(tool, arguments, context);
    let mut running = catch_unwind(AssertUnwindSafe(begin)).ok()?;
    poll_fn(|wake| {
        let step = || running.as_mut().poll(wake);
        match catch_unwind(AssertUnwindSafe(step)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(outcome)) => Poll::Ready(Some(outcome)),
            Err(_panic) => Poll::Ready(None),
        }
    })
    .await
}
