//! Record of the actions of all scripted servers, in order.

use std::sync::Arc;
use std::time::Duration;

use bowline_runtime::{Clock as _, SystemClock};
use tokio::sync::watch;

use crate::sim::history::{HistoryEntry, HistoryEvent};

/// Entries of each kind; more indicate a runaway test.
const ENTRIES_MAX: usize = 100_000;

/// Wait limit for an entry, in test time.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// One tool call received by a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolExecution {
    /// The server.
    pub server: Arc<str>,
    /// The generation of the server.
    pub generation: u64,
    /// The tool name as received.
    pub tool: String,
    /// The arguments as received.
    pub arguments: String,
}

/// One instance of a server, from process start to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInstance {
    /// The server.
    pub server: Arc<str>,
    /// The generation, starting at 1.
    pub generation: u64,
}

/// Everything recorded so far.
#[derive(Clone, Debug, Default)]
pub struct SimRecord {
    /// All events in order.
    pub history: Vec<HistoryEntry>,
    /// Started processes, including failed starts.
    pub starts: Vec<ServerInstance>,
    /// Ended processes.
    pub ends: Vec<ServerInstance>,
    /// Executed tools.
    pub executions: Vec<ToolExecution>,
    /// Cancelled tools.
    pub cancellations: Vec<ToolExecution>,
    /// Requested tool pages: server and cursor, empty for the first page.
    pub pages: Vec<(Arc<str>, String)>,
    /// Requests except tool calls and tool lists: server, generation, and method with parameters
    /// separated by a space.
    pub requests: Vec<(Arc<str>, u64, String)>,
}

impl SimRecord {
    /// Returns the number of starts of `server`.
    #[must_use]
    pub fn start_count(&self, server: &str) -> usize {
        count_matching(&self.starts, |instance| *instance.server == *server)
    }

    /// Returns the number of live processes of `server`.
    #[must_use]
    pub fn live_count(&self, server: &str) -> usize {
        self.start_count(server)
            - count_matching(&self.ends, |instance| *instance.server == *server)
    }

    /// Returns the requests of a server except tool calls and lists, in order.
    #[must_use]
    pub fn server_requests(&self, server: &str) -> Vec<&str> {
        let own = self.requests.iter().filter(|(name, ..)| **name == *server);
        own.map(|(.., request)| request.as_str()).collect()
    }

    /// Returns the number of executions with exactly these arguments.
    #[must_use]
    pub fn execution_count(&self, arguments: &str) -> usize {
        count_matching(&self.executions, |execution| {
            execution.arguments == arguments
        })
    }
}

fn count_matching<T>(entries: &[T], predicate: impl Fn(&T) -> bool) -> usize {
    entries.iter().filter(|entry| predicate(entry)).count()
}

/// The ledger of all servers of a world. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SimLedger {
    record: Arc<watch::Sender<SimRecord>>,
    clock: SystemClock,
}

impl Default for SimLedger {
    fn default() -> Self {
        Self {
            record: Arc::default(),
            clock: SystemClock::start(),
        }
    }
}

impl SimLedger {
    /// Returns the current record.
    #[must_use]
    pub fn record(&self) -> SimRecord {
        self.record.borrow().clone()
    }

    /// Borrows the current record.
    pub fn with_record<T>(&self, at: impl FnOnce(&SimRecord) -> T) -> T {
        at(&self.record.borrow())
    }

    /// Waits until the record satisfies `wanted` and returns the record; gives up after an hour of
    /// test time and returns the record as is.
    pub async fn wait_until(&self, condition: impl FnMut(&SimRecord) -> bool + Send) -> SimRecord {
        let mut record = self.record.subscribe();
        let _ = tokio::time::timeout(WAIT_MAX, record.wait_for(condition)).await;
        self.record()
    }

    /// Returns the milliseconds since the start of the world.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now().0
    }

    /// Records an event.
    pub(crate) fn record_event(&self, event: HistoryEvent) {
        let at_ms = self.now_ms();
        self.record.send_modify(|record| {
            match &event {
                HistoryEvent::Started(instance) => {
                    push_bounded(&mut record.starts, instance.clone())
                }
                HistoryEvent::Ended(instance) => push_bounded(&mut record.ends, instance.clone()),
                HistoryEvent::Executed(execution) => {
                    push_bounded(&mut record.executions, execution.clone())
                }
                HistoryEvent::Cancelled(execution) => {
                    push_bounded(&mut record.cancellations, execution.clone())
                }
                _ => {}
            }
            push_bounded(&mut record.history, HistoryEntry { at_ms, event });
        });
    }

    pub(crate) fn record_request(&self, instance: &ServerInstance, method: &str, params: &str) {
        let text = format!("{method} {params}").trim_end().to_owned();
        let entry = (Arc::clone(&instance.server), instance.generation, text);
        self.record
            .send_modify(|record| push_bounded(&mut record.requests, entry));
    }

    pub(crate) fn record_page(&self, server: &Arc<str>, cursor: &str) {
        let page = (Arc::clone(server), cursor.to_owned());
        self.record
            .send_modify(|record| push_bounded(&mut record.pages, page));
    }
}

fn push_bounded<T>(entries: &mut Vec<T>, entry: T) {
    debug_assert!(entries.len() < ENTRIES_MAX, "the ledger is full");
    if entries.len() < ENTRIES_MAX {
        entries.push(entry);
    }
}
