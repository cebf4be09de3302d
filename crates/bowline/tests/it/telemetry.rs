//! Traces as a collector receives them, and where servers are told that a call stands.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::listener::{Asked, Listener};
use crate::harness::{Gateway, Session, eventually, fixture};
use crate::metrics::scrape;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn telemetry(collector: &Listener) -> String {
    format!("[telemetry]\notlp = {}\n", json!(collector.url))
}

fn remote(server: &Listener) -> String {
    format!(
        "[servers.web]\nurl = {}\n",
        json!(format!("{}/mcp", server.url))
    )
}

/// Answers a call with an empty result.
fn answered(asked: &Asked) -> (u16, String) {
    let id = asked.json()["id"].clone();
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}});
    (200, answer.to_string())
}

/// Posts a call with these headers besides those of the session, and these bytes as parameters.
fn call(session: &mut Session, headers: &[(&str, &str)], params: &str) -> Value {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    let own = session.headers();
    let mut all: Vec<_> = own.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    all.extend_from_slice(headers);
    let path = session.path().to_owned();
    let response = session.http.post(&path, &all, body.as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

/// The parameters that a fixture received, byte for byte.
fn received(session: &mut Session, headers: &[(&str, &str)], params: &str) -> String {
    let answer = call(session, headers, params);
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

fn attribute<'a>(span: &'a Value, key: &str) -> Option<&'a str> {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|one| one["key"] == key)?;
    let value = &found["value"];
    let text = value["stringValue"].as_str();
    text.or_else(|| value["intValue"].as_str())
}

#[test]
fn without_tracing_a_context_is_passed_on_and_nothing_is_added_of_ours() {
    let web = Listener::mcp(answered);
    let gateway = Gateway::up(&[fixture("pipe", &[]), remote(&web)].concat());
    gateway.wait_for("pipe", "ready");
    gateway.wait_for("web", "ready");
    let mut pipe = gateway.session("/servers/pipe/mcp");
    // Nothing said, nothing added; what is said by the call itself stays the bytes it is.
    let plain = r#"{ "name":"received","arguments":{"n":1.0} }"#;
    let own = format!(
        r#"{{"name":"received","arguments":{{}},"_meta":{{ "traceparent" : "{PARENT}","k":1.0}}}}"#
    );
    assert_eq!(received(&mut pipe, &[], plain), plain);
    assert_eq!(received(&mut pipe, &[], &own), own);
    let other = [(
        "traceparent",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
    )];
    assert_eq!(
        received(&mut pipe, &other, &own),
        own,
        "the call is nearer than its headers"
    );
    // What the headers say reaches a pipe in `_meta`.
    let header = [("traceparent", PARENT), ("tracestate", "a=1")];
    let told = received(&mut pipe, &header, plain);
    let meta = format!(r#""_meta":{{"traceparent":"{PARENT}","tracestate":"a=1"}},"#);
    assert_eq!(told.replacen(&meta, "", 1), plain);
    assert_ne!(told, plain);
    // What is not valid is passed over in silence.
    let bad = [("traceparent", "00-xyz")];
    assert_eq!(received(&mut pipe, &bad, plain), plain);

    let mut remote = gateway.session("/servers/web/mcp");
    let look = r#"{"name":"look","arguments":{"n":1.0}}"#;
    let meta = format!(r#"{{"name":"look","_meta":{{"traceparent":"{PARENT}"}}}}"#);
    call(&mut remote, &[], look);
    call(&mut remote, &header, look);
    call(&mut remote, &[], &meta);
    let calls = web.calls();
    let seen = |at: usize| {
        let body = String::from_utf8(calls[at].body.clone()).unwrap();
        let parent = calls[at].header("traceparent").map(str::to_owned);
        let state = calls[at].header("tracestate").map(str::to_owned);
        (parent, state, body)
    };
    let (parent, state, body) = seen(0);
    assert_eq!((parent, state), (None, None));
    assert!(body.contains(look), "{body}");
    let (parent, state, body) = seen(1);
    assert_eq!(
        (parent.as_deref(), state.as_deref()),
        (Some(PARENT), Some("a=1"))
    );
    assert!(body.contains(look), "{body}");
    let (parent, _, body) = seen(2);
    assert_eq!(parent.as_deref(), Some(PARENT));
    assert!(body.contains(&meta), "{body}");
}

#[test]
fn a_call_is_a_span_within_its_callers_and_its_server_is_told_of_ours() {
    let collector = Listener::collector();
    let web = Listener::mcp(answered);
    let config = [telemetry(&collector), fixture("pipe", &[]), remote(&web)].concat();
    let mut gateway = Gateway::up(&config);
    gateway.wait_for("pipe", "ready");
    gateway.wait_for("web", "ready");
    let mut all = gateway.session("/mcp");
    let asked = format!(
        r#"{{"name":"pipe__received","arguments":{{"a":1.0}},"_meta":{{"traceparent":"{PARENT}","tracestate":"a=1"}}}}"#
    );
    let told = received(&mut all, &[], &asked);
    call(
        &mut all,
        &[("traceparent", PARENT)],
        r#"{"name":"web__look"}"#,
    );
    call(&mut all, &[], r#"{"name":"web__look"}"#);
    let refused = call(
        &mut all,
        &[("traceparent", PARENT)],
        r#"{"name":"pipe__rpc_error","arguments":{"code":-32000,"message":"no"}}"#,
    );
    assert!(refused["error"].is_object(), "{refused}");
    assert!(gateway.stop());

    let spans = collector.spans();
    let of = |tool: &str| {
        let named = spans
            .iter()
            .filter(|span| attribute(span, "gen_ai.tool.name") == Some(tool));
        named.collect::<Vec<_>>()
    };
    assert_eq!(spans.len(), 4, "{spans:#?}");
    let span = of("received")[0];
    assert_eq!(span["traceId"], TRACE);
    assert_eq!(span["parentSpanId"], SPAN);
    assert_eq!(span["name"], "tools/call received");
    assert_eq!(span["kind"], 3);
    assert_eq!(attribute(span, "mcp.method.name"), Some("tools/call"));
    assert_eq!(attribute(span, "bowline.server"), Some("pipe"));
    assert_eq!(attribute(span, "bowline.generation"), Some("1"));
    assert_eq!(attribute(span, "bowline.outcome"), Some("ok"));
    let time = |key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
    assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"));
    // The server's parent is our span, and nothing else of what it received changed.
    let ours = format!("00-{TRACE}-{}-01", span["spanId"].as_str().unwrap());
    assert_eq!(told, asked.replace(PARENT, &ours).replace("pipe__", ""));

    let looks = of("look");
    let within = looks.iter().find(|span| span["traceId"] == TRACE).unwrap();
    assert_eq!(within["parentSpanId"], SPAN);
    let root = looks.iter().find(|span| span["traceId"] != TRACE).unwrap();
    assert!(root["parentSpanId"].is_null(), "{root}");
    let headers: Vec<_> = web
        .calls()
        .iter()
        .map(|call| call.header("traceparent").unwrap().to_owned())
        .collect();
    for (span, header) in [within, root].into_iter().zip(headers) {
        let (trace, id) = (
            span["traceId"].as_str().unwrap(),
            span["spanId"].as_str().unwrap(),
        );
        assert_eq!(header, format!("00-{trace}-{id}-01"));
    }
    let failed = of("rpc_error")[0];
    assert_eq!(attribute(failed, "bowline.outcome"), Some("rpc_error"));
}

/// How many callers call side by side, and how often each.
const CALLERS: usize = 8;
const CALLS: usize = 20;

#[test]
fn calls_that_interleave_have_their_own_spans() {
    let collector = Listener::collector();
    let config = [telemetry(&collector), fixture("a", &[]), fixture("b", &[])].concat();
    let mut gateway = Gateway::up(&config);
    gateway.wait_for("a", "ready");
    gateway.wait_for("b", "ready");
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let gateway = &gateway;
            scope.spawn(move || {
                let mut session = gateway.session("/mcp");
                for number in 0..CALLS {
                    let server = if number % 2 == 0 { "a" } else { "b" };
                    let parent = format!("00-{:032x}-{:016x}-01", caller + 1, number + 1);
                    let params = json!({
                        "name": format!("{server}__slow"), "arguments": {"ms": number % 3},
                    });
                    let headers = [("traceparent", parent.as_str())];
                    call(&mut session, &headers, &params.to_string());
                }
            });
        }
    });
    assert!(gateway.stop());
    let spans = collector.spans();
    assert_eq!(spans.len(), CALLERS * CALLS);
    let mut ids = HashSet::new();
    let mut parents = HashSet::new();
    for span in &spans {
        let text = |key: &str| span[key].as_str().unwrap().to_owned();
        let number = u64::from_str_radix(&text("parentSpanId"), 16).unwrap() - 1;
        let server = if number % 2 == 0 { "a" } else { "b" };
        assert_eq!(attribute(span, "bowline.server"), Some(server), "{span}");
        assert_eq!(attribute(span, "bowline.outcome"), Some("ok"), "{span}");
        assert!(ids.insert(text("spanId")));
        assert!(parents.insert((text("traceId"), text("parentSpanId"))));
    }
}

#[test]
fn a_share_of_nothing_records_only_what_callers_record() {
    let collector = Listener::collector();
    let config = format!(
        "{}sample = 0.0\n{}",
        telemetry(&collector),
        fixture("s", &[])
    );
    let mut gateway = Gateway::up(&config);
    gateway.wait_for("s", "ready");
    let mut session = gateway.session("/servers/s/mcp");
    let plain = r#"{"name":"received","arguments":{}}"#;
    assert_eq!(received(&mut session, &[], plain), plain);
    let unsampled = PARENT.replace("-01", "-00");
    let told = received(&mut session, &[("traceparent", &unsampled)], plain);
    assert!(told.contains(&unsampled), "{told}");
    received(&mut session, &[("traceparent", PARENT)], plain);
    assert!(gateway.stop());
    let spans = collector.spans();
    assert_eq!(spans.len(), 1, "{spans:#?}");
    assert_eq!(spans[0]["traceId"], TRACE);
}

/// A collector that takes requests and never answers holds up neither calls nor the end.
#[test]
fn a_collector_that_is_dead_slows_nothing() {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let deaf = Listener::start(move |_| {
        // Until the test ends.
        let _never = held.lock().unwrap().recv();
        (500, String::new())
    });
    let mut gateway = Gateway::up(&[telemetry(&deaf), fixture("s", &[])].concat());
    gateway.wait_for("s", "ready");
    let mut session = gateway.session("/servers/s/mcp");
    let began = Instant::now();
    // More than fit into one batch and the queue behind it.
    for _ in 0..3_000 {
        session.text("echo", &json!({"message": "x"}));
    }
    let took = began.elapsed();
    // A wait for the collector in each call, or even in one, would be as long as its timeout.
    assert!(took < Duration::from_secs(60), "{took:?}");
    let page = scrape(&gateway);
    let dropped = page
        .lines()
        .find_map(|line| line.strip_prefix(r#"bowline_spans_total{outcome="dropped"} "#));
    let dropped: u64 = dropped.unwrap().parse().unwrap();
    assert!(dropped > 0, "{page}");
    let began = Instant::now();
    assert!(gateway.stop());
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    drop(hold);
}

#[test]
fn a_collector_that_refuses_is_told_of_once_and_calls_go_on() {
    let refusing = Listener::start(|_| (503, String::new()));
    let mut gateway = Gateway::up(&[telemetry(&refusing), fixture("s", &[])].concat());
    gateway.wait_for("s", "ready");
    let mut session = gateway.session("/servers/s/mcp");
    session.text("echo", &json!({"message": "x"}));
    eventually("the collector was asked", || !refusing.asked().is_empty());
    session.text("echo", &json!({"message": "x"}));
    assert!(gateway.stop());
    let asked = refusing.asked();
    assert_eq!(asked[0].path, "/v1/traces");
    assert_eq!(asked[0].method, "POST");
    assert_eq!(asked[0].header("content-type"), Some("application/json"));
}
