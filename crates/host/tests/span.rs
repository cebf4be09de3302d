//! The span of a call is attached to its future: calls that share a thread never see each
//! other's.
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

use bowline_core::error::Class;
use bowline_core::sync::lock;
use bowline_host::spec::ServerSpec;
use bowline_host::{Host, HostLimits};
use bowline_sim::{Act, Gate, Generation, Script, World, call, reaches, spec};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

type Fields = HashMap<&'static str, String>;

/// Keeps every span, what was told inside which, and how deep spans were entered.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    spans: Vec<Fields>,
    /// The spans that are entered now; the inmost last.
    entered: Vec<u64>,
    deepest: usize,
    /// What was told, and inside which span.
    events: Vec<(Fields, Option<u64>)>,
}

struct Into<'a>(&'a mut Fields);

impl Visit for Into<'_> {
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
        span.record(&mut Into(&mut fields));
        let mut seen = lock(&self.0);
        seen.spans.push(fields);
        Id::from_u64(seen.spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut seen = lock(&self.0);
        let at = usize::try_from(span.into_u64()).unwrap() - 1;
        values.record(&mut Into(&mut seen.spans[at]));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Into(&mut fields));
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

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#?}", (&self.spans, &self.events))
    }
}

/// Two tools that fail at different times, one that dies once and may be repeated.
async fn host() -> (World, Host) {
    let definition = |name: &str, hints: &str| {
        format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"annotations":{hints}}}"#)
    };
    let definitions = [
        definition("hangs", "{}"),
        definition("slow", "{}"),
        definition("reads", r#"{"readOnlyHint":true}"#),
    ];
    let offer = |reads| {
        Generation::definitions(&definitions)
            .act("hangs", Act::Hangs(Gate::closed()))
            .act("slow", Act::AnswersAfter(Duration::from_secs(3)))
            .act("reads", reads)
    };
    let script = Script::always(offer(Act::Dies)).then(offer(Act::Answers));
    let world = World::new([("s", script)]);
    let spec = ServerSpec {
        call_timeout: Duration::from_secs(5),
        ..spec("s")
    };
    let host = world.host(vec![spec], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    (world, host)
}

/// Moves the paused clock.
async fn second() {
    let silence = std::future::pending::<()>();
    let _over = tokio::time::timeout(Duration::from_secs(1), silence).await;
}

/// Makes calls that take turns on this one thread: each ends while another runs.
async fn make_calls(host: &Host, recorder: &Recorder) {
    let between = async {
        for _ in 0..4 {
            second().await;
            assert!(lock(&recorder.0).entered.is_empty(), "entered by nobody");
        }
    };
    let (hung, slow, ()) = tokio::join!(
        host.call(call("s__hangs", "{}")),
        host.call(call("s__slow", "{}")),
        between,
    );
    assert_eq!(hung.unwrap_err().class(), Class::Timeout);
    slow.unwrap();
    let lost = tokio::join!(
        host.call(call("s__hangs", "{}")),
        host.call(call("s__reads", "{}"))
    );
    lost.0.unwrap_err();
    lost.1.unwrap();
    tokio::select! {
        biased;
        _ = host.call(call("s__hangs", "{}")) => panic!("it hangs"),
        () = second() => {}
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_share_a_thread_never_see_each_others_span() {
    let recorder = Recorder::default();
    let _guard = tracing::subscriber::set_default(recorder.clone());
    let (_world, host) = host().await;

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
async fn a_call_answered_without_its_server_says_so() {
    let recorder = Recorder::default();
    let _guard = tracing::subscriber::set_default(recorder.clone());
    let says = r#"{"content":[],"ttlMs":60000,"cacheScope":"public"}"#;
    let offer = Generation::tools([("do", Act::Says(says.to_owned()))]);
    let world = World::new([("s", Script::always(offer))]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    for _ in 0..2 {
        host.call(call("s__do", "{}")).await.unwrap();
    }
    let seen = lock(&recorder.0);
    let told = seen.spans.iter().map(|span| {
        let of = |key: &str| span.get(key).map_or("", String::as_str);
        [of("tool"), of("generation"), of("outcome"), of("origin")]
    });
    let told: Vec<_> = told.collect();
    assert_eq!(told, [["do", "1", "ok", ""], ["do", "", "ok", "cached"]]);
}
