//! A running tool of a scripted server, from start to response or cancellation.

use std::sync::atomic::Ordering;

use super::ScriptedLink;
use crate::sim::history::HistoryEvent;
use crate::sim::sim_ledger::{ServerInstance, ToolExecution};

/// A running tool; cancelled if dropped before the response.
#[derive(Debug)]
pub(super) struct ExecutionGuard<'a> {
    link: &'a ScriptedLink,
    pub(super) execution: ToolExecution,
    pub(super) is_finished: bool,
    /// Whether the tool continues after a cancellation; the late response has no receiver.
    pub(super) ignores_cancel: bool,
}

impl<'a> ExecutionGuard<'a> {
    pub(super) fn start(link: &'a ScriptedLink, tool: &str, arguments: &str) -> Self {
        let ServerInstance { server, generation } = link.process.instance.clone();
        let execution = ToolExecution {
            server,
            generation,
            tool: tool.to_owned(),
            arguments: arguments.to_owned(),
        };
        let ran = HistoryEvent::Executed(execution.clone());
        link.process.ledger.record_event(ran);
        link.running.fetch_add(1, Ordering::Relaxed);
        Self {
            link,
            execution,
            is_finished: false,
            ignores_cancel: false,
        }
    }
}

impl Drop for ExecutionGuard<'_> {
    fn drop(&mut self) {
        self.link.running.fetch_sub(1, Ordering::Relaxed);
        let execution = self.execution.clone();
        self.link.process.ledger.record_event(if self.is_finished {
            HistoryEvent::Finished(execution)
        } else {
            HistoryEvent::Cancelled(execution)
        });
        if !self.is_finished && self.ignores_cancel {
            let execution = self.execution.clone();
            self.link
                .process
                .ledger
                .record_event(HistoryEvent::FinishedLate(execution));
        }
    }
}
