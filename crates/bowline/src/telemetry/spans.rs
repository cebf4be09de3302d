//! Watches the span of each call, and hands it on when the call has ended.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bowline_core::trace::{SpanId, TraceId};
use tokio::sync::mpsc;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::export::SpanCounts;

/// A call that has ended.
#[derive(Clone, Debug)]
pub(super) struct Span {
    /// When it began, by the wall clock.
    pub(super) began: Duration,
    /// How long it took.
    pub(super) took: Duration,
    pub(super) told: Told,
}

/// What the fields of the span tell. Neither arguments nor results are among them.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    pub(super) trace: Option<TraceId>,
    pub(super) span: Option<SpanId>,
    pub(super) parent: Option<SpanId>,
    pub(super) method: Option<String>,
    pub(super) server: Option<String>,
    pub(super) tool: Option<String>,
    pub(super) generation: Option<u64>,
    /// Absent where the caller went away first.
    pub(super) outcome: Option<String>,
    /// How the answer came, where its server was not asked.
    pub(super) origin: Option<String>,
}

/// A call under way.
#[derive(Debug)]
struct Open {
    wall: SystemTime,
    clock: Instant,
    told: Told,
}

#[expect(
    clippy::disallowed_methods,
    reason = "spans are timed by the clocks of this machine, which nothing decides by"
)]
fn clocks() -> (SystemTime, Instant) {
    (SystemTime::now(), Instant::now())
}

/// Hands spans of calls to the exporter, without waiting.
#[derive(Debug)]
pub(super) struct Spans {
    pub(super) queue: mpsc::Sender<Span>,
    pub(super) counts: Arc<SpanCounts>,
}

impl<S> Layer<S> for Spans
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut told = Told::default();
        attributes.record(&mut told);
        // One that is not recorded has no name.
        if told.span.is_none() {
            return;
        }
        if let Some(span) = context.span(id) {
            let (wall, clock) = clocks();
            span.extensions_mut().insert(Open { wall, clock, told });
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<Open>()
        {
            values.record(&mut open.told);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id);
        let open = span.and_then(|span| span.extensions_mut().remove::<Open>());
        let Some(open) = open else {
            return;
        };
        let span = Span {
            began: open.wall.duration_since(UNIX_EPOCH).unwrap_or_default(),
            took: clocks().1.saturating_duration_since(open.clock),
            told: open.told,
        };
        if self.queue.try_send(span).is_err() {
            self.counts.lose(1);
        }
    }
}

impl Told {
    fn set(&mut self, field: &Field, text: &str) {
        match field.name() {
            "trace_id" => self.trace = TraceId::parse(text),
            "span_id" => self.span = SpanId::parse(text),
            "parent_id" => self.parent = SpanId::parse(text),
            "method" => self.method = Some(text.to_owned()),
            "server" => self.server = Some(text.to_owned()),
            "tool" => self.tool = Some(text.to_owned()),
            "outcome" => self.outcome = Some(text.to_owned()),
            "origin" => self.origin = Some(text.to_owned()),
            _ => {}
        }
    }
}

impl Visit for Told {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "generation" {
            self.generation = Some(value);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing::field::Empty;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    fn watched(room: usize, work: impl FnOnce()) -> (Vec<Span>, u64) {
        let (queue, mut spans) = mpsc::channel(room);
        let counts = Arc::<SpanCounts>::default();
        let layer = Spans {
            queue,
            counts: Arc::clone(&counts),
        };
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, work);
        let mut all = Vec::new();
        while let Ok(span) = spans.try_recv() {
            all.push(span);
        }
        (all, counts.dropped())
    }

    fn call(span: &str) -> tracing::Span {
        tracing::info_span!(
            "call",
            trace_id = TRACE,
            span_id = span,
            server = Empty,
            generation = Empty,
            outcome = Empty
        )
    }

    #[test]
    fn a_span_is_handed_on_when_it_ends_with_all_that_was_said_of_it() {
        let (spans, dropped) = watched(4, || {
            let span = call("b7ad6b7169203331");
            span.record("server", "files");
            span.record("generation", 7_u64);
            span.record("outcome", "ok");
            drop(span);
            // This one has no name, and so is not recorded.
            drop(tracing::info_span!("call", server = "files"));
        });
        let [span] = &spans[..] else {
            panic!("{spans:?}");
        };
        assert_eq!(span.told.trace, TraceId::parse(TRACE));
        assert_eq!(span.told.span, SpanId::parse("b7ad6b7169203331"));
        assert_eq!(span.told.server.as_deref(), Some("files"));
        assert_eq!(span.told.generation, Some(7));
        assert_eq!(span.told.outcome.as_deref(), Some("ok"));
        assert!(span.began > Duration::from_secs(1_500_000_000));
        assert_eq!(dropped, 0);
    }

    #[test]
    fn spans_that_find_no_room_are_counted_and_nobody_waits() {
        let (spans, dropped) = watched(2, || {
            for _ in 0..5 {
                drop(call("b7ad6b7169203331"));
            }
        });
        assert_eq!((spans.len(), dropped), (2, 3));
    }
}
