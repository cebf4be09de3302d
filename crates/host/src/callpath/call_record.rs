//! What is recorded of a call: exactly one audit entry, however the call ends, its span, and log
//! lines for retries and failures.

use std::sync::Arc;

use bowline_core::call::{CallReply, CallRequest, ReplyOrigin, Route};
use bowline_core::error::{CallError, FailureOrigin};
use bowline_core::load::CallOutcome;
use bowline_journal::audit::AuditRowKind;
use bowline_runtime::{Clock, ClockReading};
use bowline_wire::mcp::method;
use tracing::Span;
use tracing::field::Empty;

use super::ResolvedCall;
use crate::audit::{AuditEntry, AuditOutcome, AuditSink, AuditTarget};
use crate::callpath::resolve::AccessRequest;

/// Opens an audit guard for each call.
#[derive(Debug)]
pub(crate) struct CallAuditor {
    sink: Arc<dyn AuditSink>,
    clock: Arc<dyn Clock>,
    is_enabled: bool,
}

/// Audit data of a running call. Dropping the guard without an outcome records a cancellation.
#[derive(Debug)]
pub(crate) struct CallAuditGuard<'a> {
    /// `None` if auditing is off, or once the entry is written.
    auditor: Option<&'a CallAuditor>,
    call: &'a CallRequest,
    started: ClockReading,
    route: Option<Arc<Route>>,
    key: Option<Arc<str>>,
    /// True if a rule refused the call, whatever error the caller gets.
    is_denied: bool,
}

impl CallAuditor {
    pub(crate) fn new(sink: Arc<dyn AuditSink>, clock: Arc<dyn Clock>) -> Self {
        let is_enabled = sink.is_enabled();
        Self {
            sink,
            clock,
            is_enabled,
        }
    }

    /// Opens the audit guard of a call. If the sink is full, the call waits: otherwise it would run
    /// without an audit entry.
    pub(crate) async fn open_guard<'a>(&'a self, call: &'a CallRequest) -> CallAuditGuard<'a> {
        let started = if self.is_enabled {
            self.clock.reading()
        } else {
            ClockReading::default()
        };
        let record = CallAuditGuard {
            auditor: self.is_enabled.then_some(self),
            call,
            started,
            route: None,
            key: None,
            is_denied: false,
        };
        // Boxed because it is rare: keeps the future of an ordinary call small.
        if self.is_enabled && !self.sink.has_room() {
            self.sink.wait_room().await;
        }
        record
    }

    /// Records an event that is not a call.
    pub(crate) fn record_entry(&self, note: AuditEntry) {
        if self.is_enabled {
            self.sink.record(note);
        }
    }

    /// Records a subscription denied by a rule.
    pub(crate) fn record_denied_subscription(
        &self,
        request: AccessRequest<'_>,
        target: AuditTarget,
        error: &CallError,
    ) {
        let mut entry = AuditEntry::new(AuditRowKind::Denied, self.clock.unix_ms(), "failed");
        entry.principal = Some(Arc::new(request.principal.clone()));
        entry.session = request.session.map_or(0, |session| session.0);
        entry.scope = Some(request.scope.clone());
        entry.method = Some(method::RESOURCES_SUBSCRIBE);
        entry.subject = Some(request.subject.clone());
        entry.target = target;
        entry.outcome = AuditOutcome::Failed(error.clone());
        self.record_entry(entry);
    }

    pub(crate) const fn sink(&self) -> &Arc<dyn AuditSink> {
        &self.sink
    }
}

impl CallAuditGuard<'_> {
    /// Records the resolved route.
    pub(crate) fn set_route(&mut self, route: &Arc<Route>) {
        if self.auditor.is_some() {
            self.route = Some(Arc::clone(route));
        }
    }

    /// Records a refusal by a rule.
    pub(crate) const fn mark_denied(&mut self) {
        self.is_denied = true;
    }

    /// Records the idempotency key.
    pub(crate) fn set_key(&mut self, key: Arc<str>) {
        if self.auditor.is_some() {
            self.key = Some(key);
        }
    }

    /// Writes the entry with the outcome.
    pub(crate) fn close(mut self, outcome: &Result<CallReply, CallError>) {
        if self.auditor.is_none() {
            return;
        }
        match outcome {
            Ok(reply) => {
                let kind = match reply.origin {
                    ReplyOrigin::Queued => AuditRowKind::Queued,
                    ReplyOrigin::Live | ReplyOrigin::Cached | ReplyOrigin::Recorded => {
                        AuditRowKind::Call
                    }
                };
                self.write_entry(kind, AuditOutcome::Reply(reply.clone()));
            }
            Err(error) => {
                let refused = self.is_denied || error.failure_origin() == FailureOrigin::Policy;
                let kind = if refused {
                    AuditRowKind::Denied
                } else {
                    AuditRowKind::Call
                };
                self.write_entry(kind, AuditOutcome::Failed(error.clone()));
            }
        }
    }

    fn write_entry(&mut self, kind: AuditRowKind, end: AuditOutcome) {
        let Some(auditor) = self.auditor.take() else {
            return;
        };
        let mut entry = AuditEntry::from_call(self.call, auditor.clock.unix_ms());
        entry.kind = kind;
        entry.outcome = end;
        entry.took_us = Some(auditor.clock.reading().micros_since(self.started));
        if let Some(route) = self.route.take() {
            entry.target = AuditTarget::Route(route);
        }
        if self.key.is_some() {
            entry.key = self.key.take();
        }
        auditor.sink.record(entry);
    }
}

impl Drop for CallAuditGuard<'_> {
    fn drop(&mut self) {
        self.write_entry(AuditRowKind::Call, AuditOutcome::Cancelled);
    }
}

/// Returns the span of a call. Attach the span to the call's future and never enter it across an
/// await: calls share threads.
///
/// Trace and span id are set for recorded traces only, for exporters.
pub(super) fn call_span(call: &CallRequest, route: &Route) -> Span {
    let Route { server, name, .. } = route;
    let trace = call
        .message
        .trace
        .as_deref()
        .filter(|trace| trace.is_recorded);
    tracing::debug_span!(
        "call",
        method = call.subject.method(),
        %server,
        tool = %name,
        generation = Empty,
        outcome = Empty,
        origin = Empty,
        trace_id = trace.map(|trace| display(trace.context.trace)),
        span_id = trace.map(|trace| display(trace.context.span)),
        parent_id = trace.and_then(|trace| trace.parent_span).map(display),
    )
}

/// Records a call served from the cache.
pub(super) fn record_cache_hit(call: &CallRequest, route: &Route) {
    let span = call_span(call, route);
    span.record("outcome", CallOutcome::Succeeded.as_str());
    span.record("origin", ReplyOrigin::Cached.as_str());
}

/// Logs a retry.
pub(super) fn log_retry(resolved: ResolvedCall<'_>, first: &CallError, generation: u64) {
    let (server, tool) = (&resolved.route.server, &resolved.route.name);
    let class = first.failure_class().as_str();
    tracing::info!(%server, %tool, class, generation, "call retried on a new link");
}

/// Logs a failed call if the failure counts against the server; refusals concern the caller only.
pub(super) fn log_failure(span: &Span, resolved: ResolvedCall<'_>, error: Option<&CallError>) {
    let Some(error) = error.filter(|error| error.counts_against_server()) else {
        return;
    };
    let (server, tool) = (&resolved.route.server, &resolved.route.name);
    let (class, execution) = (
        error.failure_class().as_str(),
        error.execution_status().as_str(),
    );
    let message = error.to_string();
    let reason = resolved.server.spec().secrets.redact_text(&message);
    span.in_scope(|| {
        tracing::warn!(%server, %tool, class, execution, %reason, "call failed");
    });
}
