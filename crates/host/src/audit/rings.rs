//! Two audit rings: calls that may have run, and refusals, which are merged and rate limited.
//!
//! A refusal costs its caller nothing, so it must cost the trail little: the first of a kind gets a
//! row, repeats within a second share a row with a count, and the excess of a principal or address
//! shares a row per minute. No refusal displaces a call.

use std::fmt;
use std::hash::BuildHasher as _;
use std::path::Path;
use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::coalesce::{
    CoalesceLimits, CoalesceOutcome, Coalescer, FlushScope, MergedEvents,
};
use bowline_core::error::{CallError, FailureOrigin};
use bowline_core::sync::lock;
use bowline_journal::audit::{self, AuditError, AuditLimits, AuditRowKind, FileAuditTrail};
use bowline_runtime::{Clock, Work};
use bytes::Bytes;
use foldhash::fast::RandomState;

use super::{
    AuditEntry, AuditOutcome, AuditSink, AuditTarget, AuditTrail, REFUSED_TEXT_BYTES_MAX,
    RenderOptions, RepeatCount, target_names,
};

/// Maximum bytes of the parameters held for hashing in a refused call.
const REFUSED_PARAMS_BYTES_MAX: usize = 64 * 1024;

/// Rows of refusals per principal or address.
const REFUSALS: CoalesceLimits = CoalesceLimits {
    burst_events_max: 64,
    refill_ms: 1_000,
    window_ms: 1_000,
    overflow_window_ms: 60_000,
    sources_max: 1_024,
};

/// Reason of a row with merged refusals of different kinds.
const MIXED_REASON: &str = "refusals of several kinds, counted together";

/// Options of one ring.
#[derive(Debug)]
pub struct RingOptions {
    /// Limits of the files.
    pub limits: AuditLimits,
    /// Rendering of the rows.
    pub render: RenderOptions,
}

/// The audit trail on disk, in two rings.
pub struct AuditRings {
    calls: AuditTrail,
    denials: AuditTrail,
    /// Wakes the sweep when refusals are counted without a row.
    refusals: Work<Coalescer<AuditEntry>>,
    keys: RandomState,
    clock: Arc<dyn Clock>,
}

impl AuditRings {
    /// Opens the rings in a directory used exclusively; the ring of refusals is an existing
    /// subdirectory.
    ///
    /// # Errors
    /// The files cannot be created or written.
    pub fn open(
        directory: &Path,
        calls: RingOptions,
        denials: RingOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, AuditError> {
        let denials_limits = AuditLimits {
            ring: Some(audit::DENIALS_RING),
            ..denials.limits
        };
        let refused = audit::denials_directory(directory);
        let (calls_clock, denials_clock) = (Arc::clone(&clock), Arc::clone(&clock));
        Ok(Self {
            calls: AuditTrail::open(directory, calls.limits, calls_clock, calls.render)?,
            denials: AuditTrail::open(&refused, denials_limits, denials_clock, denials.render)?,
            refusals: Work::new(Coalescer::new(REFUSALS)),
            keys: RandomState::default(),
            clock,
        })
    }

    /// Returns the ring of calls.
    #[must_use]
    pub const fn calls(&self) -> &FileAuditTrail {
        self.calls.file()
    }

    /// Returns the ring of refusals.
    #[must_use]
    pub const fn denials(&self) -> &FileAuditTrail {
        self.denials.file()
    }

    /// Waits until refusals are counted without a row.
    pub async fn wait_counted(&self) {
        self.refusals.wait().await;
    }

    /// Writes the rows of expired windows; `false` if no refusal is pending.
    pub fn sweep(&self) -> bool {
        self.write_counted(FlushScope::Expired);
        !lock(&self.refusals).is_empty()
    }

    /// Waits until all entries so far are on disk or lost, including counted refusals.
    pub async fn flush(&self) {
        self.write_counted(FlushScope::All);
        self.calls().flush().await;
        self.denials().flush().await;
    }

    /// Writes all entries and the end marker, and accepts no more.
    pub async fn close(&self) {
        self.write_counted(FlushScope::All);
        self.denials().close().await;
        self.calls().close().await;
    }

    fn write_counted(&self, due: FlushScope) {
        let now_ms = self.clock.unix_ms();
        let counted = lock(&self.refusals).take_due(due, now_ms);
        for one in counted {
            self.denials.append_entry(&to_entry(one, now_ms));
        }
    }

    fn record_refusal(&self, entry: AuditEntry) {
        let (source, key) = (refusal_source(&entry), self.merge_key(&entry));
        let keep = || entry.to_short();
        let fold = {
            let mut refusals = lock(&self.refusals);
            if self.denials().has_room() {
                refusals.add_event(&source, key, entry.at_ms, keep)
            } else {
                refusals.add_overflow(&source, key, entry.at_ms, keep)
            }
        };
        self.refusals.wake();
        if fold == CoalesceOutcome::Separate {
            let is_long = entry.params.len() > REFUSED_PARAMS_BYTES_MAX;
            let entry = if is_long { entry.to_short() } else { entry };
            self.denials.append_entry(&entry);
        }
    }

    /// Returns the merge key of a refusal: principal, target and rule.
    fn merge_key(&self, entry: &AuditEntry) -> u64 {
        let credential = entry
            .principal
            .as_ref()
            .map(|principal| &*principal.credential);
        let (server, name) = target_names(entry);
        let method = entry.subject.as_ref().map(|subject| subject.method());
        let rule = match &entry.outcome {
            AuditOutcome::Failed(CallError::Denied { reason, .. }) => Some(&**reason),
            AuditOutcome::Failed(error) => Some(error.failure_class().as_str()),
            AuditOutcome::Cancelled
            | AuditOutcome::Reply(_)
            | AuditOutcome::Refused { .. }
            | AuditOutcome::Word(_) => None,
        };
        let target = (entry.kind.as_str(), credential, server, name);
        let cause = (entry.method.or(method), rule, entry.reason.as_deref());
        self.keys.hash_one((target, cause))
    }
}

impl AuditSink for AuditRings {
    fn has_room(&self) -> bool {
        self.calls().has_room()
    }

    fn wait_room(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.calls().wait_for_room())
    }

    fn record(&self, note: AuditEntry) {
        if note.is_refusal() {
            self.record_refusal(note);
            return;
        }
        self.calls.append_entry(&note);
    }
}

impl fmt::Debug for AuditRings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditRings")
            .field("calls", &self.calls)
            .field("denials", &self.denials)
            .finish_non_exhaustive()
    }
}

impl AuditEntry {
    /// Returns the reduced form of a counted refusal, with short names and reasons.
    fn to_short(&self) -> Self {
        let (server, name) = target_names(self);
        let method = self.subject.as_ref().map(|subject| subject.method());
        let end = match &self.outcome {
            AuditOutcome::Failed(error) => AuditOutcome::Refused {
                class: error.failure_class(),
                execution: error.execution_status(),
                origin: error.failure_origin(),
                // A failure text of a server is part of its response, and not kept.
                reason: match error.failure_origin() {
                    FailureOrigin::Upstream => Arc::default(),
                    _ => truncate(&error.to_string()),
                },
            },
            other => other.clone(),
        };
        Self {
            scope: self.scope.clone(),
            method: self.method.or(method),
            target: match name {
                Some(name) => AuditTarget::Named {
                    server: server.map(truncate),
                    name: truncate(name),
                },
                None => AuditTarget::Unknown,
            },
            outcome: end,
            principal: self.principal.clone(),
            session: self.session,
            reason: self.reason.as_deref().map(truncate),
            peer: self.peer,
            subject: None,
            params: Bytes::new(),
            ..Self::new(self.kind, self.at_ms, "failed")
        }
    }
}

/// Returns the source of a refusal: a principal, or an unauthenticated address.
fn refusal_source(note: &AuditEntry) -> Arc<str> {
    match (&note.principal, note.peer) {
        (Some(principal), _) => Arc::clone(&principal.name),
        // No principal name begins with `@`.
        (None, Some(peer)) => format!("@{}", peer.ip()).into(),
        (None, None) => "@".into(),
    }
}

fn to_entry(merged: MergedEvents<AuditEntry>, now_ms: u64) -> AuditEntry {
    let MergedEvents {
        source,
        first,
        count,
        is_mixed,
    } = merged;
    let count = RepeatCount {
        number: count,
        since_ms: first.at_ms,
    };
    let note = if is_mixed {
        let is_shared = source.is_empty();
        let kind = match first.kind {
            AuditRowKind::Unauthenticated => AuditRowKind::Unauthenticated,
            _ => AuditRowKind::Denied,
        };
        AuditEntry {
            principal: first.principal.filter(|_| !is_shared),
            peer: first.peer.filter(|_| !is_shared),
            reason: Some(MIXED_REASON.into()),
            ..AuditEntry::new(kind, now_ms, "failed")
        }
    } else {
        first
    };
    AuditEntry {
        at_ms: now_ms,
        count: Some(count),
        ..note
    }
}

/// Truncates a text.
fn truncate(text: &str) -> Arc<str> {
    // A byte beyond the limit tells the row that the text was truncated.
    let mut end = text.len().min(REFUSED_TEXT_BYTES_MAX + 1);
    while !text.is_char_boundary(end) {
        end += 1;
    }
    text.get(..end).unwrap_or(text).into()
}
