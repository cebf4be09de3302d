//! Tracing of a call: span, and log lines for retries and failures.

use bowline_core::call::{CallRequest, ReplyOrigin, Route};
use bowline_core::error::CallError;
use bowline_core::load::CallOutcome;
use tracing::Span;
use tracing::field::Empty;

use super::ResolvedCall;

/// Returns the span of a call. Attach the span to the call's future and never enter it across an
/// await: calls share threads.
///
/// Trace and span id are set for recorded traces only, for exporters.
pub(super) fn call_span(call: &CallRequest, route: &Route) -> Span {
    let Route { server, name, .. } = route;
    let trace = call.trace.as_deref().filter(|trace| trace.is_recorded);
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
