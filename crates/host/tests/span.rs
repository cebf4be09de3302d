//! The span of a call is attached to its future: calls on the same thread never share spans.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::error::FailureClass;
use bowline_core::sync::lock;
use bowline_host::spec::ServerSpec;
use bowline_host::{Host, HostLimits};
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, SimWorld, ToolBehaviour, server_spec, tool_call,
    wait_for_state,
};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

type Fields = HashMap<&'static str, String>;

/// Records spans, their events, and the nesting depth.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<RecordedSpans>>);

#[derive(Debug, Default)]
struct RecordedSpans {
    spans: Vec<Fields>,
    /// Currently entered spans, innermost last.
    entered: Vec<u64>,
    deepest: usize,
    /// Events with their span.
    events: Vec<(Fields, Option<u64>)>,
}

struct FieldVisitor<'a>(&'a mut Fields);

impl Visit for FieldVisitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("bowline_host::callpath")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields::from([("span", span.metadata().name().to_owned())]);
        span.record(&mut FieldVisitor(&mut fields));
        let mut seen = lock(&self.0);
        seen.spans.push(fields);
        Id::from_u64(seen.spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut seen = lock(&self.0);
        let at = usize::try_from(span.into_u64()).unwrap() - 1;
        values.record(&mut FieldVisitor(&mut seen.spans[at]));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut FieldVisitor(&mut fields));
        fields.insert("level", event.metadata().level().to_string());
        let mut seen = lock(&self.0);
        let inside = seen.entered.last().copied();
        seen.events.push((fields, inside));
    }

    fn enter(&self, span: &Id) {
        let mut seen = lock(&self.0);
        seen.entered.push(span.into_u64());
        seen.deepest = seen.deepest.max(seen.entered.len());
    }

    fn exit(&self, span: &Id) {
        let mut seen = lock(&self.0);
        let left = seen.entered.pop();
        assert_eq!(left, Some(span.into_u64()), "left in order");
    }
}

impl fmt::Display for RecordedSpans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#?}", (&self.spans, &self.events))
    }
}

/// Two tools that fail at different times, and a retryable tool that dies once.
async fn traced_host() -> (SimWorld, Host) {
    let definition = |name: &str, hints: &str| {
        format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"annotations":{hints}}}"#)
    };
    let definitions = [
        definition("hangs", "{}"),
        definition("slow", "{}"),
        definition("reads", r#"{"readOnlyHint":true}"#),
    ];
    let offer = |reads| {
        GenerationScript::with_definitions(&definitions)
            .with_behaviour("hangs", ToolBehaviour::BlockOn(ReleaseGate::new_closed()))
            .with_behaviour("slow", ToolBehaviour::RespondAfter(Duration::from_secs(3)))
            .with_behaviour("reads", reads)
    };
    let script =
        ServerScript::always(offer(ToolBehaviour::Exit)).then(offer(ToolBehaviour::Respond));
    let world = SimWorld::new([("s", script)]);
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(5),
        ..server_spec("s")
    };
    let host = world.start_host(vec![spec], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    (world, host)
}

/// Advances the paused clock.
async fn advance_second() {
    let silence = std::future::pending::<()>();
    let _over = tokio::time::timeout(Duration::from_secs(1), silence).await;
}

/// Makes interleaved calls on this thread: each ends while another runs.
async fn make_calls(host: &Host, recorder: &Recorder) {
    let between = async {
        for _ in 0..4 {
            advance_second().await;
            assert!(lock(&recorder.0).entered.is_empty(), "entered by nobody");
        }
    };
    let (hung, slow, ()) = tokio::join!(
        host.call(tool_call("s__hangs", "{}")),
        host.call(tool_call("s__slow", "{}")),
        between,
    );
    assert_eq!(hung.unwrap_err().failure_class(), FailureClass::Timeout);
    slow.unwrap();
    let lost = tokio::join!(
        host.call(tool_call("s__hangs", "{}")),
        host.call(tool_call("s__reads", "{}"))
    );
    lost.0.unwrap_err();
    lost.1.unwrap();
    tokio::select! {
        biased;
        _ = host.call(tool_call("s__hangs", "{}")) => panic!("it hangs"),
        () = advance_second() => {}
    }
}

#[tokio::test(start_paused = true)]
async fn calls_on_one_thread_keep_separate_spans() {
    let recorder = Recorder::default();
    let _guard = tracing::subscriber::set_default(recorder.clone());
    let (_world, host) = traced_host().await;

    make_calls(&host, &recorder).await;

    let seen = lock(&recorder.0);
    assert!(seen.entered.is_empty());
    assert_eq!(seen.deepest, 1, "never one inside another: {seen}");
    let told: Vec<_> = seen
        .spans
        .iter()
        .map(|span| {
            let of = |key: &str| span.get(key).map_or("", String::as_str);
            [
                of("span"),
                of("server"),
                of("tool"),
                of("generation"),
                of("outcome"),
            ]
        })
        .collect();
    let expect = [
        ["call", "s", "hangs", "1", "timeout"],
        ["call", "s", "slow", "1", "ok"],
        ["call", "s", "hangs", "1", "connection_lost"],
        ["call", "s", "reads", "2", "ok"],
        ["call", "s", "hangs", "2", "cancelled"],
    ];
    assert_eq!(told, expect);

    let events: Vec<_> = seen
        .events
        .iter()
        .map(|(fields, inside)| {
            let inside = usize::try_from(inside.expect("told inside a span")).unwrap() - 1;
            assert_eq!(fields["tool"], seen.spans[inside]["tool"], "{seen}");
            (
                fields["level"].as_str(),
                fields["tool"].as_str(),
                fields["class"].as_str(),
            )
        })
        .collect();
    let expect = [
        ("WARN", "hangs", "timeout"),
        ("WARN", "hangs", "connection_lost"),
        ("INFO", "reads", "connection_lost"),
    ];
    assert_eq!(events, expect, "{seen}");
    assert_eq!(seen.events[2].0["generation"], "2");
}

#[tokio::test(start_paused = true)]
async fn cache_hit_is_recorded_in_span() {
    let recorder = Recorder::default();
    let _guard = tracing::subscriber::set_default(recorder.clone());
    let says = r#"{"content":[],"ttlMs":60000,"cacheScope":"public"}"#;
    let offer = GenerationScript::with_tools([("do", ToolBehaviour::RespondWith(says.to_owned()))]);
    let world = SimWorld::new([("s", ServerScript::always(offer))]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    for _ in 0..2 {
        host.call(tool_call("s__do", "{}")).await.unwrap();
    }
    let seen = lock(&recorder.0);
    let told = seen.spans.iter().map(|span| {
        let of = |key: &str| span.get(key).map_or("", String::as_str);
        [of("tool"), of("generation"), of("outcome"), of("origin")]
    });
    let told: Vec<_> = told.collect();
    assert_eq!(told, [["do", "1", "ok", ""], ["do", "", "ok", "cached"]]);
}
