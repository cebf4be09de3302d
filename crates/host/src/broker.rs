//! Tools across machines: mailboxes in the journal, and peers that use or offer tools over them.
//!
//! The **hub** ([`Hub`]) keeps a mailbox for each peer, lets peers in that prove who they are, and
//! answers requests that go to itself. A **client** dials a hub: [`RemoteTools`] runs the hub's
//! tools, [`serve_supervised`] serves tools of one's own, and a worker does both. Whoever answers
//! requests does it through one engine, [`serve`], with a [`ledger`] that keeps a redelivered
//! request from running twice.

mod asking;
mod backend;
mod client;
mod failures;
mod federation;
mod hub;
mod ledger;
mod link;
mod remote;
mod serve;
mod supervise;
mod visitors;
mod wares;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bowline_core::caller::CallerEnd;
use bowline_core::error::{Execution, Failure};
use bowline_core::time::Now;
use bowline_link::{BoxFuture, Revision};
use bowline_wire::broker::{Answer, Ask, From, Item, SessionEvent};
use bytes::Bytes;

pub use crate::credential::Credential;
pub use backend::{Backend, Credentials, ExecutorBackend, Guests, HostBackend, Job, TracePlacer};
pub use client::{Client, ClientOptions, ConnectError, DeliverError, Line, Reconnect, Served};
pub use failures::{BAD_REQUEST, EXPIRED, OUTCOME_UNKNOWN, TOOL_FAILED, expired, outcome_unknown};
pub use federation::{Federation, Following, Takes, WORKER_KEEP};
pub use hub::{
    Admitted, BROKE_PROTOCOL, CREDENTIAL_OVER, FENCED, GOING_DOWN, Hub, HubAliases, HubCounts,
    HubError, HubLimits, HubOptions, LetterView, MailboxView, NOT_ADMITTED, Offers, PeerView,
    Porter, Rights, Untaken,
};
pub use ledger::{Ledger, LedgerError};
pub(crate) use link::{Acquainted, PeerLink, away};
pub use remote::RemoteTools;
pub use serve::{Courier, Incoming, ReplyError, ServeLimits, Serving, reply_id};
pub use supervise::{Attending, ServeOptions, serve_supervised, serve_with};
pub use visitors::Visitors;
pub use wares::Wares;

// What a porter is told and says, so that whoever lets peers in depends on this crate alone.
pub use bowline_wire::broker::{Hello, Refusal};

/// How long a request is worth answering where nobody says.
pub const REQUEST_TTL: Duration = Duration::from_secs(300);

/// Tools that an offer tells of, in bytes: what stands around them fits into the frame.
pub(crate) const OFFER_BYTES_MAX: usize = 6 * 1024 * 1024;

/// What a server may say of itself in an offer, in bytes.
pub(crate) const INTRODUCTION_BYTES_MAX: usize = 64 * 1024;

/// What one peer wants of another.
#[derive(Clone, Debug)]
pub struct Errand {
    /// What.
    pub ask: Ask,
    /// Whether it is stored before it is carried out, and so survives a lost connection; otherwise
    /// it goes live.
    pub stored: bool,
    /// When waiting ends.
    pub deadline: Now,
    /// On whose behalf; what the hub stamps where it is the hub that asks.
    pub caller: Option<From>,
    /// Hears what the tool says before it answers.
    pub sink: Option<Arc<dyn CallerEnd>>,
}

/// Why an errand has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrandError {
    /// It never left: there is no connection, or no room.
    NotSent(Arc<str>),
    /// The connection was lost after it may have left.
    Lost(Arc<str>),
    /// The deadline came first.
    Timeout(Execution),
    /// The broker refused it; it was not carried out.
    Refused(Failure),
}

impl ErrandError {
    /// Returns what is known about whether it was carried out.
    #[must_use]
    pub const fn execution(&self) -> Execution {
        match self {
            Self::NotSent(_) => Execution::NotStarted,
            Self::Lost(_) => Execution::Unknown,
            Self::Timeout(execution) => *execution,
            Self::Refused(failure) => failure.execution,
        }
    }
}

/// What a peer offers, whole: swapped at once, never changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Which one.
    pub revision: u64,
    /// Its tools.
    pub items: Vec<Item>,
    /// What it says of those of its servers that offer more than tools.
    pub servers: Vec<Ware>,
}

/// A server of a peer, whole: what it said of itself, and which lists it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ware {
    /// Its name.
    pub name: Arc<str>,
    /// The revision that it speaks.
    pub revision: Revision,
    /// The result of `initialize`, or what stands for it (see [`ServerInfo`]).
    ///
    /// [`ServerInfo`]: bowline_link::ServerInfo
    pub initialize: Bytes,
    /// Tells two states of each of its lists apart.
    pub lists: Lists,
}

/// Digests of the lists of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// Of the tools, where they are too many to be told with the offer: they are asked for.
    pub tools: Option<Arc<str>>,
    /// Of the prompts.
    pub prompts: Arc<str>,
    /// Of the resources and their templates.
    pub resources: Arc<str>,
}

/// Hears what a server of a peer says between requests.
pub trait Hears: fmt::Debug + Send + Sync {
    /// Takes one whole notification, for one session or for those that the hub looks after.
    /// Never waits.
    fn hear(&self, session: Option<&str>, notification: Bytes);
}

/// The other side of a connection that may come and go: the hub as a client sees it, or a worker as
/// the hub sees it.
pub trait Remote: fmt::Debug + Send + Sync {
    /// Carries an errand out. Dropping the future takes it back, and tells the other side.
    fn ask(&self, errand: Errand) -> BoxFuture<'_, Result<Answer, ErrandError>>;

    /// Returns what it offers, as far as is known without asking.
    fn manifest(&self) -> Arc<Manifest>;

    /// Sees every new manifest, and when it is connected or not.
    fn changes(&self) -> tokio::sync::watch::Receiver<u64>;

    /// Whether it is there now.
    fn is_connected(&self) -> bool;

    /// Returns who it is, for people.
    fn name(&self) -> Arc<str>;

    /// Has `ear` hear what a server says between requests, in place of who did before. A peer
    /// that offers tools only says nothing.
    fn hear(&self, server: &Arc<str>, ear: Weak<dyn Hears>) {
        let _ = (server, ear);
    }

    /// Tells what became of a session for which a server was asked; best effort.
    fn session(&self, server: &Arc<str>, session: Arc<str>, event: SessionEvent) {
        let _ = (server, session, event);
    }
}
