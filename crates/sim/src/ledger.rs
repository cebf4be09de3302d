//! What the scripted servers did, in the order in which they did it.

use std::sync::Arc;
use std::time::Duration;

use bowline_host::ports::{Clock as _, SystemClock};
use tokio::sync::watch;

use crate::history::{Happened, Moment};

/// Entries of each kind that a ledger keeps; a test that writes more has gone astray.
const ENTRIES_MAX: usize = 100_000;

/// How long a test waits for an entry, on the clock of the test.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// One tool call that reached a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    /// The server.
    pub server: Arc<str>,
    /// Which of its lives.
    pub generation: u64,
    /// The tool's name as the server read it.
    pub tool: String,
    /// The arguments as the server read them.
    pub arguments: String,
}

/// One life of a server, from the start of its process to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The server.
    pub server: Arc<str>,
    /// The first is 1.
    pub generation: u64,
}

/// Everything that happened so far.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// All of it, in one order.
    pub history: Vec<Moment>,
    /// Processes that were started, be it in vain.
    pub starts: Vec<Life>,
    /// Processes that are gone.
    pub ends: Vec<Life>,
    /// Tools that ran.
    pub executions: Vec<Deed>,
    /// Tools that ran and were told that nobody waits for them any more.
    pub cancellations: Vec<Deed>,
    /// Pages of tools that were asked for: the server and the cursor, empty for the first page.
    pub pages: Vec<(Arc<str>, String)>,
    /// Requests other than those of tools: the server, which of its lives, the method and its
    /// parameters, with a space between them.
    pub requests: Vec<(Arc<str>, u64, String)>,
}

impl Record {
    /// Returns how often `server` was started.
    #[must_use]
    pub fn starts_of(&self, server: &str) -> usize {
        count(&self.starts, |life| *life.server == *server)
    }

    /// Returns how many processes of `server` live.
    #[must_use]
    pub fn alive(&self, server: &str) -> usize {
        self.starts_of(server) - count(&self.ends, |life| *life.server == *server)
    }

    /// Returns the requests that reached a server, other than those of tools, in order.
    #[must_use]
    pub fn requests_of(&self, server: &str) -> Vec<&str> {
        let own = self.requests.iter().filter(|(name, ..)| **name == *server);
        own.map(|(.., request)| request.as_str()).collect()
    }

    /// Returns how many calls with exactly these arguments ran.
    #[must_use]
    pub fn executions_with(&self, arguments: &str) -> usize {
        count(&self.executions, |deed| deed.arguments == arguments)
    }
}

fn count<T>(entries: &[T], wanted: impl Fn(&T) -> bool) -> usize {
    entries.iter().filter(|entry| wanted(entry)).count()
}

/// Takes the entries of all servers of a world. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Ledger {
    record: Arc<watch::Sender<Record>>,
    clock: SystemClock,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            record: Arc::default(),
            clock: SystemClock::start(),
        }
    }
}

impl Ledger {
    /// Returns what happened so far.
    #[must_use]
    pub fn record(&self) -> Record {
        self.record.borrow().clone()
    }

    /// Looks at what happened so far.
    pub fn look<T>(&self, at: impl FnOnce(&Record) -> T) -> T {
        at(&self.record.borrow())
    }

    /// Waits until the record is as `wanted` and returns it; gives up after an hour of the test's
    /// clock and returns the record as it is.
    pub async fn until(&self, wanted: impl FnMut(&Record) -> bool + Send) -> Record {
        let mut record = self.record.subscribe();
        let _ = tokio::time::timeout(WAIT_MAX, record.wait_for(wanted)).await;
        self.record()
    }

    /// Returns the milliseconds since the world began.
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now().0
    }

    /// Enters what happened.
    pub(crate) fn enter(&self, what: Happened) {
        let at_ms = self.now_ms();
        self.record.send_modify(|record| {
            match &what {
                Happened::Started(life) => push(&mut record.starts, life.clone()),
                Happened::Ended(life) => push(&mut record.ends, life.clone()),
                Happened::Executed(deed) => push(&mut record.executions, deed.clone()),
                Happened::Cancelled(deed) => push(&mut record.cancellations, deed.clone()),
                _ => {}
            }
            push(&mut record.history, Moment { at_ms, what });
        });
    }

    pub(crate) fn asked(&self, life: &Life, method: &str, params: &str) {
        let text = format!("{method} {params}").trim_end().to_owned();
        let entry = (Arc::clone(&life.server), life.generation, text);
        self.record
            .send_modify(|record| push(&mut record.requests, entry));
    }

    pub(crate) fn paged(&self, server: &Arc<str>, cursor: &str) {
        let page = (Arc::clone(server), cursor.to_owned());
        self.record
            .send_modify(|record| push(&mut record.pages, page));
    }
}

fn push<T>(entries: &mut Vec<T>, entry: T) {
    debug_assert!(entries.len() < ENTRIES_MAX, "the ledger is full");
    if entries.len() < ENTRIES_MAX {
        entries.push(entry);
    }
}
