//! Tracing layer that records the span of each call and queues it for export at its end.

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

use bowline_edge::ExportCounts;

/// The span of a finished call.
#[derive(Clone, Debug)]
pub(super) struct CallSpan {
    /// Start time by the wall clock.
    pub(super) started_at: Duration,
    /// Duration of the call.
    pub(super) duration: Duration,
    pub(super) fields: CallSpanFields,
}

/// Recorded fields of a call span; never arguments or results.
#[derive(Clone, Debug, Default)]
pub(super) struct CallSpanFields {
    pub(super) trace: Option<TraceId>,
    pub(super) span: Option<SpanId>,
    pub(super) parent: Option<SpanId>,
    pub(super) method: Option<String>,
    pub(super) server: Option<String>,
    pub(super) tool: Option<String>,
    pub(super) generation: Option<u64>,
    /// Absent when the caller disconnected first.
    pub(super) outcome: Option<String>,
    /// Origin of a response served without asking the server.
    pub(super) origin: Option<String>,
}

/// The span of a running call.
#[derive(Debug)]
struct OpenCallSpan {
    started_at: SystemTime,
    started: Instant,
    fields: CallSpanFields,
}

#[expect(
    clippy::disallowed_methods,
    reason = "spans are timed by the clocks of this machine, which nothing decides by"
)]
fn read_clocks() -> (SystemTime, Instant) {
    (SystemTime::now(), Instant::now())
}

/// Queues finished call spans for the exporter without blocking.
#[derive(Debug)]
pub(super) struct CallSpanLayer {
    pub(super) queue: mpsc::Sender<CallSpan>,
    pub(super) counts: Arc<ExportCounts>,
}

impl<S> Layer<S> for CallSpanLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = CallSpanFields::default();
        attributes.record(&mut fields);
        // Spans without an id are not recorded.
        if fields.span.is_none() {
            return;
        }
        if let Some(span) = context.span(id) {
            let (wall, clock) = read_clocks();
            span.extensions_mut().insert(OpenCallSpan {
                started_at: wall,
                started: clock,
                fields,
            });
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(open) = span.extensions_mut().get_mut::<OpenCallSpan>()
        {
            values.record(&mut open.fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id);
        let open = span.and_then(|span| span.extensions_mut().remove::<OpenCallSpan>());
        let Some(open) = open else {
            return;
        };
        let span = CallSpan {
            started_at: open
                .started_at
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
            duration: read_clocks().1.saturating_duration_since(open.started),
            fields: open.fields,
        };
        if self.queue.try_send(span).is_err() {
            self.counts.add_lost(1);
        }
    }
}

impl CallSpanFields {
    fn set_field(&mut self, field: &Field, text: &str) {
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

impl Visit for CallSpanFields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "generation" {
            self.generation = Some(value);
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set_field(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set_field(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing::field::Empty;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    fn record_spans(capacity: usize, work: impl FnOnce()) -> (Vec<CallSpan>, u64) {
        let (queue, mut spans) = mpsc::channel(capacity);
        let counts = Arc::<ExportCounts>::default();
        let layer = CallSpanLayer {
            queue,
            counts: Arc::clone(&counts),
        };
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, work);
        let mut all = Vec::new();
        while let Ok(span) = spans.try_recv() {
            all.push(span);
        }
        (all, counts.lost_count())
    }

    fn call_span(span: &str) -> tracing::Span {
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
    fn ended_span_is_queued_with_all_fields() {
        let (spans, dropped) = record_spans(4, || {
            let span = call_span("b7ad6b7169203331");
            span.record("server", "files");
            span.record("generation", 7_u64);
            span.record("outcome", "ok");
            drop(span);
            // A span without an id is not recorded.
            drop(tracing::info_span!("call", server = "files"));
        });
        let [span] = &spans[..] else {
            panic!("{spans:?}");
        };
        assert_eq!(span.fields.trace, TraceId::parse(TRACE));
        assert_eq!(span.fields.span, SpanId::parse("b7ad6b7169203331"));
        assert_eq!(span.fields.server.as_deref(), Some("files"));
        assert_eq!(span.fields.generation, Some(7));
        assert_eq!(span.fields.outcome.as_deref(), Some("ok"));
        assert!(span.started_at > Duration::from_secs(1_500_000_000));
        assert_eq!(dropped, 0);
    }

    #[test]
    fn full_span_queue_drops_and_counts() {
        let (spans, dropped) = record_spans(2, || {
            for _ in 0..5 {
                drop(call_span("b7ad6b7169203331"));
            }
        });
        assert_eq!((spans.len(), dropped), (2, 3));
    }
}
