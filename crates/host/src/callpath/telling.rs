//! What people can follow of one call: its span, and a line where it went wrong.

use bowline_core::call::{Call, Origin, Route};
use bowline_core::error::CallError;
use bowline_core::load::Outcome;
use tracing::Span;
use tracing::field::Empty;

use super::Way;

/// Returns the span of a call. It must be attached to the call's future and never be entered
/// over an await: calls share threads.
///
/// One that is recorded is named: whoever records spans reads from here under which name.
pub(super) fn span(call: &Call, route: &Route) -> Span {
    let Route { server, name, .. } = route;
    let trace = call.trace.as_deref().filter(|trace| trace.recorded);
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
        parent_id = trace.and_then(|trace| trace.parent).map(display),
    )
}

/// Tells of a call that was answered without its server.
pub(super) fn given_again(call: &Call, route: &Route) {
    let span = span(call, route);
    span.record("outcome", Outcome::Answered.as_str());
    span.record("origin", Origin::Cached.as_str());
}

/// Tells of a call that is sent a second time.
pub(super) fn retry(way: Way<'_>, first: &CallError, generation: u64) {
    let (server, tool) = (&way.route.server, &way.route.name);
    let class = first.class().as_str();
    tracing::info!(%server, %tool, class, generation, "sent again on a new link");
}

/// Tells of a call that failed where that speaks against its server; refusals are for the caller
/// alone.
pub(super) fn failure(span: &Span, way: Way<'_>, error: Option<&CallError>) {
    let Some(error) = error.filter(|error| error.counts_against_server()) else {
        return;
    };
    let (server, tool) = (&way.route.server, &way.route.name);
    let (class, execution) = (error.class().as_str(), error.execution().as_str());
    let said = error.to_string();
    let reason = way.server.spec().secrets.clean(&said);
    span.in_scope(|| {
        tracing::warn!(%server, %tool, class, execution, %reason, "call failed");
    });
}
