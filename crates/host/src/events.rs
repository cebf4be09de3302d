//! What happens to servers, told as it happens to whoever watches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use tokio::sync::{broadcast, watch};

use crate::ports::Clock;
use crate::tasks::Tasks;

/// Events that a slow watcher may be behind before it misses some.
const BEHIND_MAX: usize = 1_024;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Counts events; a gap means that some were missed.
    pub seq: u64,
    /// When, by the wall clock.
    pub at_ms: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A server does something else now.
    State {
        /// The server.
        server: Arc<str>,
        /// What it does.
        state: &'static str,
        /// How often it was started.
        generation: u64,
        /// Why, where something failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// The breaker of a server opened, closed or lets one call through.
    Circuit {
        /// The server.
        server: Arc<str>,
        /// How it stands.
        circuit: &'static str,
    },
    /// What servers offer changed.
    Catalog {
        /// The version of the catalog.
        version: u64,
    },
    /// A definition is not as approved, was accepted, or the pins of a server are in trouble.
    Pin {
        /// The server.
        server: Arc<str>,
        /// What it is; absent where it is about all of them.
        #[serde(skip_serializing_if = "Option::is_none")]
        kind: Option<&'static str>,
        /// Its name or URI, as its server has it; absent where it is about all of them.
        #[serde(skip_serializing_if = "Option::is_none")]
        tool: Option<Arc<str>>,
        /// How it stands.
        state: &'static str,
        /// Why, where something failed.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// Another configuration is in force.
    Config {
        /// Servers that are new.
        added: Vec<Arc<str>>,
        /// Servers that are started anew because their entry changed.
        changed: Vec<Arc<str>>,
        /// Servers that are gone.
        removed: Vec<Arc<str>>,
    },
    /// Somebody was denied something. A flood of denials is told in part.
    Denied {
        /// Who asked.
        principal: Arc<str>,
        /// Of which server.
        server: Arc<str>,
        /// The server's own name of it.
        name: Arc<str>,
        /// Which sort of rule refused.
        rule: &'static str,
        /// Why.
        reason: Arc<str>,
        /// How many were counted and not told before this one.
        untold: u64,
    },
    /// A write was queued, delivered, or cannot be delivered.
    Outbox {
        /// Its number.
        id: Arc<str>,
        /// Who made it.
        principal: Arc<str>,
        /// The server it is for.
        server: Arc<str>,
        /// The server's own name of the tool.
        tool: Arc<str>,
        /// How it stands.
        state: &'static str,
        /// Why, where it cannot be delivered.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// A peer of the broker came, went, lost its place to another, or was refused something.
    Peer {
        /// Its mailbox.
        mailbox: Arc<str>,
        /// What happened: `joined`, `left`, `fenced` or `refused`.
        state: &'static str,
        /// Why, where it was refused something.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// An executor came or went.
    Executor {
        /// Its name.
        name: Arc<str>,
        /// What happened: `connected`, `lost`, `left`, `fenced` or `refused`.
        state: &'static str,
        /// Why, where it is not connected.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<Arc<str>>,
    },
    /// A changed configuration was refused, and nothing of it is in force.
    ConfigRefused {
        /// Why.
        reason: Arc<str>,
    },
}

impl What {
    /// Returns the word by which a stream of events names it.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::State { .. } => "state",
            Self::Circuit { .. } => "circuit",
            Self::Catalog { .. } => "catalog",
            Self::Pin { .. } => "pin",
            Self::Config { .. } => "config",
            Self::Denied { .. } => "denied",
            Self::Outbox { .. } => "outbox",
            Self::Peer { .. } => "peer",
            Self::Executor { .. } => "executor",
            Self::ConfigRefused { .. } => "config_refused",
        }
    }
}

/// Takes events and hands them to all who watch. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Events {
    sender: broadcast::Sender<Event>,
    seq: Arc<AtomicU64>,
    clock: Arc<dyn Clock>,
    /// Set once, when nothing more will be told.
    ended: Arc<watch::Sender<bool>>,
}

impl Events {
    /// Returns a teller that nobody watches yet.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            sender: broadcast::Sender::new(BEHIND_MAX),
            seq: Arc::default(),
            clock,
            ended: Arc::new(watch::Sender::new(false)),
        }
    }

    /// Tells what happened, without waiting.
    pub fn tell(&self, what: What) {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed) + 1;
        let at_ms = self.clock.unix_ms();
        // Nobody watches: nothing is lost.
        let _unheard = self.sender.send(Event { seq, at_ms, what });
    }

    /// Returns the number of the last event.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// Tells every change of the catalog; several that come at once are told as one.
    pub(crate) fn follow(&self, mut versions: watch::Receiver<u64>, tasks: &Tasks) {
        let (events, mut ended) = (self.clone(), self.ended.subscribe());
        tasks.spawn("events.catalog", async move {
            loop {
                tokio::select! {
                    changed = versions.changed() => if changed.is_err() {
                        return;
                    },
                    _ = ended.wait_for(|ended| *ended) => return,
                }
                let version = *versions.borrow_and_update();
                events.tell(What::Catalog { version });
            }
        });
    }

    /// Returns how many watch.
    #[must_use]
    pub fn watchers(&self) -> usize {
        self.sender.receiver_count()
    }

    /// Tells all who watch that nothing more will come.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// Returns what is told the end.
    #[must_use]
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Returns a receiver of all that happens from now on.
    #[must_use]
    pub fn watch(&self) -> broadcast::Receiver<Event> {
        self.sender.subscribe()
    }
}
