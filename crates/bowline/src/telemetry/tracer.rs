//! Decides which calls are recorded, and names their spans.

use std::sync::Arc;

use bowline_core::trace::{Context, SpanId, Trace, TraceId};
use bowline_host::broker::TracePlacer;

/// Decides where calls stand in traces.
#[derive(Clone, Copy, Debug)]
pub struct Tracer {
    /// The share of traces that begin here and are recorded; absent where nothing is.
    sample: Option<f64>,
}

impl Tracer {
    /// Records nothing; what callers say is passed on.
    #[must_use]
    pub const fn off() -> Self {
        Self { sample: None }
    }

    /// Records what callers record, and this share of what they say nothing of.
    #[must_use]
    pub const fn new(sample: f64) -> Self {
        Self {
            sample: Some(sample),
        }
    }

    /// Returns where a call stands of which its caller said this: within a span of our own where
    /// it is recorded, else just where the caller said.
    #[must_use]
    pub fn place(self, said: Option<Trace>) -> Option<Arc<Trace>> {
        let Some(sample) = self.sample else {
            return said.map(Arc::new);
        };
        let placed = match said {
            Some(said) if said.context.is_sampled() => Self::within(&said).unwrap_or(said),
            Some(said) => said,
            None => Self::root(sample)?,
        };
        Some(Arc::new(placed))
    }

    fn within(said: &Trace) -> Option<Trace> {
        let caller = said.context;
        Some(Trace {
            context: Context {
                span: span_id()?,
                ..caller
            },
            state: said.state.clone(),
            parent: Some(caller.span),
            recorded: true,
            in_params: false,
        })
    }

    fn root(sample: f64) -> Option<Trace> {
        let trace = TraceId::new(random()?)?;
        // The last bits decide, so that others who see this trace decide alike.
        if sample < 1.0 && trace.share() >= sample {
            return None;
        }
        Some(Trace {
            context: Context::recorded(trace, span_id()?),
            state: None,
            parent: None,
            recorded: true,
            in_params: false,
        })
    }
}

impl TracePlacer for Tracer {
    fn place(&self, said: Option<Trace>) -> Option<Arc<Trace>> {
        Self::place(*self, said)
    }
}

fn span_id() -> Option<SpanId> {
    SpanId::new(random()?)
}

/// A call that cannot be named is not recorded; it is made all the same.
fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn said(parent: &str) -> Trace {
        Trace {
            in_params: true,
            ..Trace::read(parent, Some("a=1")).unwrap()
        }
    }

    #[test]
    fn what_callers_say_is_passed_on_as_it_is_where_nothing_is_recorded() {
        let placed = Tracer::off().place(Some(said(SAMPLED))).unwrap();
        assert_eq!(*placed, said(SAMPLED));
        assert_eq!(Tracer::off().place(None), None);
    }

    #[test]
    fn what_the_caller_records_is_recorded_within_its_span() {
        let placed = Tracer::new(0.0).place(Some(said(SAMPLED))).unwrap();
        let caller = said(SAMPLED).context;
        assert_eq!(placed.context.trace, caller.trace);
        assert_ne!(placed.context.span, caller.span);
        assert_eq!(placed.parent, Some(caller.span));
        assert_eq!(placed.state.as_deref(), Some("a=1"));
        assert!(placed.recorded && placed.context.is_sampled());
        assert!(!placed.in_params, "the server must hear of our span");
    }

    #[test]
    fn what_the_caller_does_not_record_is_passed_on_unrecorded() {
        let unsampled = SAMPLED.replace("-01", "-00");
        let placed = Tracer::new(1.0).place(Some(said(&unsampled))).unwrap();
        assert_eq!(*placed, said(&unsampled));
    }

    #[test]
    fn traces_that_begin_here_are_recorded_in_the_share_that_was_asked_for() {
        let recorded = |sample| {
            let placed = (0..1_000).filter_map(|_| Tracer::new(sample).place(None));
            placed.filter(|trace| trace.recorded).count()
        };
        assert_eq!(recorded(0.0), 0);
        assert!((300..700).contains(&recorded(0.5)));
        assert_eq!(recorded(1.0), 1_000);
    }
}
