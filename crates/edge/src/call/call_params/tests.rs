//! Tests of parameters and traces.

use http::HeaderValue;

use super::*;

#[test]
fn params_name_subject_per_method() {
    let get = TaskOperation::Get;
    for (ask, params, want, literal) in [
        (
            CallKind::Tool,
            r#"{"name":"a\u0062","arguments":{"uri":"no"}}"#,
            CallSubject::Tool("ab".into()),
            r#""a\u0062""#,
        ),
        (
            CallKind::Prompt,
            r#"{"uri":"no","name":"p"}"#,
            CallSubject::Prompt("p".into()),
            "\"p\"",
        ),
        (
            CallKind::Resource,
            r#"{"name":"no","uri":"x://y"}"#,
            CallSubject::Resource("x://y".into()),
            "\"x://y\"",
        ),
        (
            CallKind::Task(get),
            r#"{"taskId":"t"}"#,
            CallSubject::Task {
                id: "t".into(),
                operation: get,
            },
            "\"t\"",
        ),
        (
            CallKind::Complete,
            r#"{"name":"no","ref": {"type":"ref/prompt","uri":"no","name":"p"}}"#,
            CallSubject::CompletePrompt("p".into()),
            "\"p\"",
        ),
        (
            CallKind::Complete,
            r#"{"ref":{"uri":"x://{y}","type":"ref/resource"}}"#,
            CallSubject::CompleteResource("x://{y}".into()),
            "\"x://{y}\"",
        ),
    ] {
        let asked = parse_params(params.as_bytes(), ask).unwrap();
        assert_eq!(asked.subject, want, "{params}");
        assert_eq!(&params[asked.name_at], literal, "{params}");
        assert!(!asked.makes_task);
        assert_eq!(asked.progress_at, None);
    }
    let params = r#"{"name":"a","task":{},"_meta":{"x":1,"progressToken": 7}}"#;
    let asked = parse_params(params.as_bytes(), CallKind::Tool).unwrap();
    assert!(asked.makes_task);
    assert_eq!(&params[asked.progress_at.unwrap()], "7");
}

#[test]
fn params_without_subject_are_refused() {
    for (ask, params) in [
        (CallKind::Tool, "{}"),
        (CallKind::Tool, r#"{"name":1}"#),
        (CallKind::Tool, r#"{"uri":"a"}"#),
        (CallKind::Resource, r#"{"name":"a"}"#),
        (CallKind::Complete, r#"{"name":"a"}"#),
        (
            CallKind::Complete,
            r#"{"ref":{"type":"ref/other","name":"a"}}"#,
        ),
        (
            CallKind::Complete,
            r#"{"ref":{"type":"ref/prompt","uri":"a"}}"#,
        ),
        (CallKind::Task(TaskOperation::Cancel), "[]"),
    ] {
        assert_eq!(parse_params(params.as_bytes(), ask), None, "{params}");
    }
}

fn read_claim(headers: &[&'static str], meta: Option<&str>) -> Result<Option<(String, u64)>, ()> {
    let mut map = HeaderMap::new();
    for value in headers {
        map.append(RUN_HEADER, HeaderValue::from_static(value));
    }
    let read = read_run(&map, meta.map(str::as_bytes));
    read.map(|run| run.map(|run| (run.id.into_owned(), run.calls)))
        .map_err(|InvalidRun| ())
}

#[test]
fn meta_run_wins_over_header() {
    let meta = r#"{"dev.bowline/run":{"id":"a","calls":3}}"#;
    assert_eq!(read_claim(&[], None), Ok(None));
    assert_eq!(read_claim(&[], Some("{}")), Ok(None));
    assert_eq!(read_claim(&[], Some(meta)), Ok(Some(("a".to_owned(), 3))));
    let header = ["calls=5; id=b=c"];
    assert_eq!(read_claim(&header, None), Ok(Some(("b=c".to_owned(), 5))));
    assert_eq!(
        read_claim(&header, Some(meta)),
        Ok(Some(("a".to_owned(), 3)))
    );
}

#[test]
fn unreadable_run_is_an_error() {
    for meta in [
        r#"{"dev.bowline/run":3}"#,
        r#"{"dev.bowline/run":{}}"#,
        r#"{"dev.bowline/run":{"id":"a"}}"#,
        r#"{"dev.bowline/run":{"id":"","calls":1}}"#,
        r#"{"dev.bowline/run":{"id":"a b","calls":1}}"#,
        r#"{"dev.bowline/run":{"id":"a","calls":-1}}"#,
        r#"{"dev.bowline/run":{"id":"a","calls":1.5}}"#,
        r#"{"dev.bowline/run":{"id":"a","calls":"1"}}"#,
        r#"{"dev.bowline/run":{"id":7,"calls":1}}"#,
    ] {
        assert_eq!(read_claim(&[], Some(meta)), Err(()), "{meta}");
        assert_eq!(
            read_claim(&["id=a; calls=1"], Some(meta)),
            Err(()),
            "{meta}"
        );
    }
    for header in [
        "",
        "a",
        "id=a",
        "calls=1",
        "id=a; calls=x",
        "id=a; calls=1; calls=2",
        "id=a; calls=1; more=1",
        "id=a; calls=99999999999999999999",
    ] {
        assert_eq!(read_claim(&[header], None), Err(()), "{header}");
    }
    assert_eq!(
        read_claim(&["id=a; calls=1", "id=a; calls=1"], None),
        Err(())
    );
}

fn read_text(meta: &str) -> Result<Option<Arc<str>>, InvalidKey> {
    read_key(Some(meta.as_bytes()))
}

#[test]
fn malformed_key_is_rejected_not_ignored() {
    assert_eq!(read_key(None), Ok(None));
    assert_eq!(read_text("{}"), Ok(None));
    let key = |text: &str| format!(r#"{{"dev.bowline/idempotencyKey":{text}}}"#);
    assert_eq!(read_text(&key(r#""order-7""#)), Ok(Some("order-7".into())));
    let longest = format!("\"{}\"", "k".repeat(KEY_CHARS_MAX));
    assert!(read_text(&key(&longest)).is_ok_and(|read| read.is_some()));
    let too_long = format!("\"{}\"", "k".repeat(KEY_CHARS_MAX + 1));
    for wrong in [
        "7",
        "null",
        "{}",
        r#""""#,
        r#""a b""#,
        r#""a\nb""#,
        r#""ü""#,
        &too_long,
    ] {
        assert_eq!(read_text(&key(wrong)), Err(InvalidKey), "{wrong}");
    }
}

const ONE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TWO: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

fn trace_text(headers: &[(&'static str, &'static str)], meta: Option<&str>) -> String {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_static(value));
    }
    let read = read_trace(&map, meta.map(str::as_bytes));
    read.map_or_else(String::new, |trace| {
        let state = trace.trace_state.unwrap_or_default();
        format!("{} {state} {}", trace.context, trace.in_params)
    })
}

#[test]
fn trace_is_read_from_headers() {
    assert_eq!(trace_text(&[], None), "");
    assert_eq!(
        trace_text(&[("traceparent", ONE)], None),
        format!("{ONE}  false")
    );
    let noted = [
        ("traceparent", ONE),
        ("tracestate", "a=1"),
        ("tracestate", "b=2"),
    ];
    assert_eq!(trace_text(&noted, None), format!("{ONE} a=1,b=2 false"));
}

#[test]
fn meta_trace_wins_over_headers() {
    let header = [("traceparent", ONE), ("tracestate", "h=1")];
    let meta = format!(r#"{{"traceparent":"{TWO}","tracestate":"m=1"}}"#);
    assert_eq!(trace_text(&header, Some(&meta)), format!("{TWO} m=1 true"));
    for not_valid in ["{}", r#"{"traceparent":"x"}"#, r#"{"traceparent":1}"#] {
        let want = format!("{ONE} h=1 false");
        assert_eq!(trace_text(&header, Some(not_valid)), want, "{not_valid}");
    }
}

#[test]
fn invalid_or_repeated_traceparent_is_ignored() {
    assert_eq!(trace_text(&[("traceparent", "no")], None), "");
    let two = [("traceparent", ONE), ("traceparent", TWO)];
    assert_eq!(trace_text(&two, None), "");
}

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
