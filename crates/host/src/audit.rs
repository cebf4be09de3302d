//! The port for the trail of what was called and what was refused.
//!
//! A [`Note`] shares what a call has in hand anyway. Reading it, hashing it and taking secrets
//! out of it is the work of [`render`], which runs on the thread of the trail.

mod render;
mod rings;

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bowline_core::call::{Call, Principal, Reply, Route, Scope, Subject};
use bowline_core::error::{CallError, Class, Execution, Origin};
use bowline_journal::BoxFuture;
use bowline_journal::audit::{self, AuditError, Kind, Limits};
use bytes::Bytes;

use crate::ports::Clock;

pub use render::{Clean, PAYLOAD_BYTES_MAX, Shows, render};
pub use rings::{REFUSED_TEXT_BYTES_MAX, Rings};

/// The trail of a host on disk.
pub type Trail = audit::Trail<Note>;

/// The same in memory.
pub type MemoryTrail = audit::Memory<Note>;

/// Takes one note for each call, however it ended. Cheap: a call is not held up by it.
pub trait Audit: fmt::Debug + Send + Sync {
    /// Whether anything is kept.
    fn is_kept(&self) -> bool {
        true
    }

    /// Whether a call may begin at once.
    fn has_room(&self) -> bool {
        true
    }

    /// Waits until a call may begin.
    fn room(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Takes a note, room or not.
    fn note(&self, note: Note);
}

/// Keeps no trail.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unaudited;

impl Audit for Unaudited {
    fn is_kept(&self) -> bool {
        false
    }

    fn note(&self, _: Note) {}
}

impl Audit for Trail {
    fn has_room(&self) -> bool {
        Self::has_room(self)
    }

    fn room(&self) -> BoxFuture<'_, ()> {
        Box::pin(Self::room(self))
    }

    fn note(&self, note: Note) {
        let bytes = note.bytes();
        Self::note(self, note, bytes);
    }
}

impl Audit for MemoryTrail {
    fn note(&self, note: Note) {
        Self::note(self, &note);
    }
}

/// Opens the trail of a directory that is ours alone.
///
/// # Errors
/// Its files cannot be made or written to.
pub fn open(
    directory: &Path,
    limits: Limits,
    clock: Arc<dyn Clock>,
    shows: Shows,
) -> Result<Trail, AuditError> {
    let wall = Arc::new(move || clock.unix_ms());
    Trail::open(directory, limits, wall, render(shows))
}

/// What is noted of one thing that happened.
#[derive(Clone, Debug)]
pub struct Note {
    /// What kind of thing it was.
    pub kind: Kind,
    /// When it was over, in milliseconds since 1970.
    pub at_ms: u64,
    /// Who asked.
    pub principal: Option<Arc<Principal>>,
    /// The session it was asked in; 0 where there was none.
    pub session: u64,
    /// Where the name was looked up.
    pub scope: Option<Scope>,
    /// The method of the request, where it is not that of the subject.
    pub method: Option<&'static str>,
    /// What was asked for, by the name that the caller used.
    pub subject: Option<Subject>,
    /// What that is.
    pub target: Target,
    /// How it ended.
    pub end: End,
    /// How long it took, in microseconds.
    pub took_us: Option<u64>,
    /// The parameters of the request.
    pub params: Bytes,
    /// The idempotency key.
    pub key: Option<Arc<str>>,
    /// Names a stored call.
    pub id: Option<Arc<str>>,
    /// What a person should know besides.
    pub reason: Option<Arc<str>>,
    /// Where it came from, where no principal says so.
    pub peer: Option<SocketAddr>,
    /// How many alike it stands for, and when the first of them was; absent for one.
    pub count: Option<Count>,
}

/// How many alike a note stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub number: u64,
    /// When the first of them was, in milliseconds since 1970.
    pub since_ms: u64,
}

/// What something was about.
#[derive(Clone, Debug, Default)]
pub enum Target {
    /// It is not known, or the failure says it.
    #[default]
    Unknown,
    /// Where a call went.
    Route(Arc<Route>),
    /// Something of a server, by the server's own name.
    Named {
        /// The server; absent where it is about no server.
        server: Option<Arc<str>>,
        /// The name.
        name: Arc<str>,
    },
}

/// How something ended.
#[derive(Clone, Debug, Default)]
pub enum End {
    /// Its caller went away, or took it back.
    #[default]
    Cancelled,
    /// With this reply.
    Reply(Reply),
    /// With this failure.
    Failed(CallError),
    /// With a failure of which only this is kept.
    Refused {
        /// Its class.
        class: Class,
        /// Whether it ran.
        execution: Execution,
        /// Where it came from.
        origin: Origin,
        /// Why, as far as it may be told.
        reason: Arc<str>,
    },
    /// In one word.
    Word(&'static str),
}

impl Note {
    /// Returns a note of something that ended in one word; the rest is filled in by whoever makes
    /// it.
    #[must_use]
    pub const fn new(kind: Kind, at_ms: u64, word: &'static str) -> Self {
        Self {
            kind,
            at_ms,
            principal: None,
            session: 0,
            scope: None,
            method: None,
            subject: None,
            target: Target::Unknown,
            end: End::Word(word),
            took_us: None,
            params: Bytes::new(),
            key: None,
            id: None,
            reason: None,
            peer: None,
            count: None,
        }
    }

    /// Returns a note of a call that has no end yet.
    pub(crate) fn of(call: &Call, at_ms: u64) -> Self {
        Self {
            kind: Kind::Call,
            at_ms,
            principal: Some(Arc::clone(&call.principal)),
            session: call.caller.as_ref().map_or(0, |caller| caller.session().0),
            scope: Some(call.scope.clone()),
            method: None,
            subject: Some(call.subject.clone()),
            target: Target::Unknown,
            end: End::Cancelled,
            took_us: None,
            params: call.params.clone(),
            key: call.key.clone(),
            id: None,
            reason: None,
            peer: None,
            count: None,
        }
    }

    /// Returns how many bytes it keeps alive.
    fn bytes(&self) -> usize {
        let answer = match &self.end {
            End::Reply(reply) => reply.answer.len(),
            End::Cancelled | End::Failed(_) | End::Refused { .. } | End::Word(_) => 0,
        };
        size_of::<Self>() + self.params.len() + answer
    }
}
