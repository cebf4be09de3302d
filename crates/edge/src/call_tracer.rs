//! Selects the calls to record, and assigns span ids.

use std::sync::Arc;

use bowline_core::trace::{CallTrace, SpanId, TraceContext, TraceId};
use bowline_host::broker::TracePlacer;

/// Assigns calls to traces.
#[derive(Clone, Copy, Debug)]
pub struct CallTracer {
    /// Fraction of root traces to record; absent when tracing is off.
    sample: Option<f64>,
}

impl CallTracer {
    /// Records nothing; trace contexts of callers pass through.
    #[must_use]
    pub const fn noop() -> Self {
        Self { sample: None }
    }

    /// Records calls sampled by their caller, and this fraction of calls without a trace context.
    #[must_use]
    pub const fn new(sample: f64) -> Self {
        Self {
            sample: Some(sample),
        }
    }

    /// Returns the trace of a call: a new child span when the call is recorded, else the caller's
    /// trace unchanged.
    #[must_use]
    pub fn assign_trace(self, caller_trace: Option<CallTrace>) -> Option<Arc<CallTrace>> {
        let Some(sample) = self.sample else {
            return caller_trace.map(Arc::new);
        };
        let trace = match caller_trace {
            Some(caller_trace) if caller_trace.context.is_sampled() => {
                Self::child_span(&caller_trace).unwrap_or(caller_trace)
            }
            Some(caller_trace) => caller_trace,
            None => Self::root_span(sample)?,
        };
        Some(Arc::new(trace))
    }

    fn child_span(caller_trace: &CallTrace) -> Option<CallTrace> {
        let caller = caller_trace.context;
        Some(CallTrace {
            context: TraceContext {
                span: random_span_id()?,
                ..caller
            },
            trace_state: caller_trace.trace_state.clone(),
            parent_span: Some(caller.span),
            is_recorded: true,
            in_params: false,
        })
    }

    fn root_span(sample: f64) -> Option<CallTrace> {
        let trace = TraceId::new(random_bytes()?)?;
        // The last bits of the trace id decide, so other samplers decide the same way.
        if sample < 1.0 && trace.sampling_ratio() >= sample {
            return None;
        }
        Some(CallTrace {
            context: TraceContext::new_sampled(trace, random_span_id()?),
            trace_state: None,
            parent_span: None,
            is_recorded: true,
            in_params: false,
        })
    }
}

impl TracePlacer for CallTracer {
    fn place_in_trace(&self, caller_trace: Option<CallTrace>) -> Option<Arc<CallTrace>> {
        Self::assign_trace(*self, caller_trace)
    }
}

fn random_span_id() -> Option<SpanId> {
    SpanId::new(random_bytes()?)
}

/// Returns random bytes; a call without an id is not recorded but still runs.
fn random_bytes<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn caller_trace(parent: &str) -> CallTrace {
        CallTrace {
            in_params: true,
            ..CallTrace::parse(parent, Some("a=1")).unwrap()
        }
    }

    #[test]
    fn disabled_tracer_passes_caller_trace_through() {
        let placed = CallTracer::noop()
            .assign_trace(Some(caller_trace(SAMPLED)))
            .unwrap();
        assert_eq!(*placed, caller_trace(SAMPLED));
        assert_eq!(CallTracer::noop().assign_trace(None), None);
    }

    #[test]
    fn sampled_caller_trace_gets_child_span() {
        let placed = CallTracer::new(0.0)
            .assign_trace(Some(caller_trace(SAMPLED)))
            .unwrap();
        let caller = caller_trace(SAMPLED).context;
        assert_eq!(placed.context.trace, caller.trace);
        assert_ne!(placed.context.span, caller.span);
        assert_eq!(placed.parent_span, Some(caller.span));
        assert_eq!(placed.trace_state.as_deref(), Some("a=1"));
        assert!(placed.is_recorded && placed.context.is_sampled());
        assert!(!placed.in_params, "the server must hear of our span");
    }

    #[test]
    fn unsampled_caller_trace_stays_unrecorded() {
        let unsampled = SAMPLED.replace("-01", "-00");
        let placed = CallTracer::new(1.0)
            .assign_trace(Some(caller_trace(&unsampled)))
            .unwrap();
        assert_eq!(*placed, caller_trace(&unsampled));
    }

    #[test]
    fn root_traces_are_sampled_by_fraction() {
        let recorded = |sample| {
            let placed = (0..1_000).filter_map(|_| CallTracer::new(sample).assign_trace(None));
            placed.filter(|trace| trace.is_recorded).count()
        };
        assert_eq!(recorded(0.0), 0);
        assert!((300..700).contains(&recorded(0.5)));
        assert_eq!(recorded(1.0), 1_000);
    }
}
