//! Two rings: calls that ran or may have run in one, refusals in the other, coalesced and rated.
//!
//! A refusal costs its caller nothing, so it must cost the trail little: the first of a kind has a
//! row, its repeats within a second have one row with a count, and a principal or an address that
//! causes too many has one row a minute for the rest. No refusal takes the place of a call.

use std::fmt;
use std::hash::BuildHasher as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bowline_core::coalesce::{CoalesceLimits, Coalescer, Due, Fold, Merged};
use bowline_core::error::{CallError, Execution, Origin};
use bowline_core::sync::lock;
use bowline_journal::BoxFuture;
use bowline_journal::audit::{self, AuditError, Kind, Limits};
use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::sync::Notify;

use super::render::{Shows, render, target};
use super::{Audit, Count, End, Note, Target, Trail};
use crate::ports::Clock;

/// Longest name and longest reason of a refusal, in bytes.
pub const REFUSED_TEXT_BYTES_MAX: usize = 256;

/// Parameters of a refused call that are longer are not held to be hashed, in bytes.
const REFUSED_PARAMS_BYTES_MAX: usize = 64 * 1024;

/// How many rows of refusals one principal or one address may cause.
const REFUSALS: CoalesceLimits = CoalesceLimits {
    burst_events_max: 64,
    refill_ms: 1_000,
    window_ms: 1_000,
    overflow_window_ms: 60_000,
    sources_max: 1_024,
};

/// Said of refusals that are counted together and differ.
const SEVERAL: &str = "refusals of several kinds, counted together";

/// The trail of a host on disk, in two rings.
pub struct Rings {
    calls: Trail,
    denials: Trail,
    refusals: Mutex<Coalescer<Note>>,
    keys: RandomState,
    clock: Arc<dyn Clock>,
    /// Told when refusals are counted that have no row yet.
    counted: Notify,
}

impl Rings {
    /// Opens the rings of a directory that is ours alone; that of the refusals is a directory in
    /// it, which exists.
    ///
    /// # Errors
    /// Their files cannot be made or written to.
    pub fn open(
        directory: &Path,
        (calls, denials): (Limits, Limits),
        clock: Arc<dyn Clock>,
        (shows, refusals_show): (Shows, Shows),
    ) -> Result<Self, AuditError> {
        let denials = Limits {
            ring: Some(audit::DENIALS),
            ..denials
        };
        let wall = {
            let clock = Arc::clone(&clock);
            Arc::new(move || clock.unix_ms())
        };
        let refused = audit::denials(directory);
        Ok(Self {
            calls: Trail::open(directory, calls, Arc::clone(&wall) as _, render(shows))?,
            denials: Trail::open(&refused, denials, wall, render(refusals_show))?,
            refusals: Mutex::new(Coalescer::new(REFUSALS)),
            keys: RandomState::default(),
            clock,
            counted: Notify::new(),
        })
    }

    /// Returns the ring of the calls.
    #[must_use]
    pub const fn calls(&self) -> &Trail {
        &self.calls
    }

    /// Returns the ring of the refusals.
    #[must_use]
    pub const fn denials(&self) -> &Trail {
        &self.denials
    }

    /// Waits until refusals are counted that have no row yet.
    pub async fn counted(&self) {
        self.counted.notified().await;
    }

    /// Writes rows of the refusals whose time is over; `false` when none is counted any more.
    pub fn sweep(&self) -> bool {
        self.write_counted(Due::Over);
        !lock(&self.refusals).is_empty()
    }

    /// Waits until what was noted so far is on disk, or lost; refusals that are being counted
    /// have their rows, too.
    pub async fn flush(&self) {
        self.write_counted(Due::All);
        self.calls.flush().await;
        self.denials.flush().await;
    }

    /// Writes what was noted, says that this was all, and takes no more.
    pub async fn close(&self) {
        self.write_counted(Due::All);
        self.denials.close().await;
        self.calls.close().await;
    }

    fn write_counted(&self, due: Due) {
        let now_ms = self.clock.unix_ms();
        let counted = lock(&self.refusals).take(due, now_ms);
        for one in counted {
            let note = to_note(one, now_ms);
            let bytes = note.bytes();
            self.denials.note(note, bytes);
        }
    }

    fn refuse(&self, note: Note) {
        let (source, key) = (source(&note), self.key(&note));
        let keep = || note.shortened();
        let fold = {
            let mut refusals = lock(&self.refusals);
            let event = (&*source, key);
            if self.denials.has_room() {
                refusals.add(event, note.at_ms, keep)
            } else {
                refusals.add_overflow(event, note.at_ms, keep)
            }
        };
        self.counted.notify_one();
        if fold == Fold::Separate {
            let is_long = note.params.len() > REFUSED_PARAMS_BYTES_MAX;
            let note = if is_long { note.shortened() } else { note };
            let bytes = note.bytes();
            self.denials.note(note, bytes);
        }
    }

    /// Tells refusals apart: who was refused what, and by what.
    fn key(&self, note: &Note) -> u64 {
        let credential = note.principal.as_ref().map(|who| &*who.credential);
        let (server, name) = target(note);
        let method = note.subject.as_ref().map(|subject| subject.method());
        let rule = match &note.end {
            End::Failed(CallError::Denied { reason, .. }) => Some(&**reason),
            End::Failed(error) => Some(error.class().as_str()),
            End::Cancelled | End::Reply(_) | End::Refused { .. } | End::Word(_) => None,
        };
        let what = (note.kind.as_str(), credential, server, name);
        let why = (note.method.or(method), rule, note.reason.as_deref());
        self.keys.hash_one((what, why))
    }
}

impl Audit for Rings {
    fn has_room(&self) -> bool {
        self.calls.has_room()
    }

    fn room(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.calls.room())
    }

    fn note(&self, note: Note) {
        if note.is_refusal() {
            self.refuse(note);
            return;
        }
        let bytes = note.bytes();
        self.calls.note(note, bytes);
    }
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rings")
            .field("calls", &self.calls)
            .field("denials", &self.denials)
            .finish_non_exhaustive()
    }
}

impl Note {
    /// Whether it tells of something that was refused before it could run.
    pub(super) fn is_refusal(&self) -> bool {
        match (&self.kind, &self.end) {
            (Kind::Denied | Kind::Unauthenticated, _) => true,
            (Kind::Call, End::Failed(error)) => error.execution() == Execution::NotStarted,
            (Kind::Call, End::Refused { .. }) => true,
            _ => false,
        }
    }

    /// Returns what is kept of a refusal that is counted: names and words, none of them long.
    fn shortened(&self) -> Self {
        let (server, name) = target(self);
        let method = self.subject.as_ref().map(|subject| subject.method());
        let end = match &self.end {
            End::Failed(error) => End::Refused {
                class: error.class(),
                execution: error.execution(),
                origin: error.origin(),
                // What a server said of a failure is its answer, and not kept.
                reason: match error.origin() {
                    Origin::Upstream => Arc::default(),
                    _ => shorten(&error.to_string()),
                },
            },
            other => other.clone(),
        };
        Self {
            scope: self.scope.clone(),
            method: self.method.or(method),
            target: match name {
                Some(name) => Target::Named {
                    server: server.map(shorten),
                    name: shorten(name),
                },
                None => Target::Unknown,
            },
            end,
            principal: self.principal.clone(),
            session: self.session,
            reason: self.reason.as_deref().map(shorten),
            peer: self.peer,
            subject: None,
            params: Bytes::new(),
            ..Self::new(self.kind, self.at_ms, "failed")
        }
    }
}

/// Returns whose refusals are counted together: those of a principal, or of an address that
/// proved nobody.
fn source(note: &Note) -> Arc<str> {
    match (&note.principal, note.peer) {
        (Some(principal), _) => Arc::clone(&principal.name),
        // No principal can be called so.
        (None, Some(peer)) => format!("@{}", peer.ip()).into(),
        (None, None) => "@".into(),
    }
}

fn to_note(merged: Merged<Note>, now_ms: u64) -> Note {
    let Merged {
        source,
        first,
        count,
        is_mixed,
    } = merged;
    let count = Count {
        number: count,
        since_ms: first.at_ms,
    };
    let note = if is_mixed {
        let is_shared = source.is_empty();
        let kind = match first.kind {
            Kind::Unauthenticated => Kind::Unauthenticated,
            _ => Kind::Denied,
        };
        Note {
            principal: first.principal.filter(|_| !is_shared),
            peer: first.peer.filter(|_| !is_shared),
            reason: Some(SEVERAL.into()),
            ..Note::new(kind, now_ms, "failed")
        }
    } else {
        first
    };
    Note {
        at_ms: now_ms,
        count: Some(count),
        ..note
    }
}

/// Returns the beginning of a text.
fn shorten(text: &str) -> Arc<str> {
    // One byte more than fits is how the row knows that it was cut.
    let mut end = text.len().min(REFUSED_TEXT_BYTES_MAX + 1);
    while !text.is_char_boundary(end) {
        end += 1;
    }
    text.get(..end).unwrap_or(text).into()
}
