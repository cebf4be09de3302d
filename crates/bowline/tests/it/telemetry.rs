//! Traces received by a collector, and the trace context sent to servers.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, ReceivedRequest, Session, StubServer, fixture_config};
use serde_json::{Value, json};

use crate::metrics::scrape_metrics;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

fn telemetry_config(collector: &StubServer) -> String {
    format!("[telemetry]\notlp = {}\n", json!(collector.url))
}

fn remote_server(server: &StubServer) -> String {
    format!(
        "[servers.web]\nurl = {}\n",
        json!(format!("{}/mcp", server.url))
    )
}

/// Responds to a call with an empty result.
fn respond_empty(asked: &ReceivedRequest) -> (u16, String) {
    let id = asked.json()["id"].clone();
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}});
    (200, answer.to_string())
}

/// Posts a call with the given extra headers and the given bytes as parameters.
fn post_call(session: &mut Session, headers: &[(&str, &str)], params: &str) -> Value {
    let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    let own = session.request_headers();
    let mut all: Vec<_> = own.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    all.extend_from_slice(headers);
    let path = session.path().to_owned();
    let response = session.http.post(&path, &all, body.as_bytes());
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

/// The parameters received by a fixture, byte for byte.
fn received_params(session: &mut Session, headers: &[(&str, &str)], params: &str) -> String {
    let answer = post_call(session, headers, params);
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

fn span_attribute<'a>(span: &'a Value, key: &str) -> Option<&'a str> {
    let attributes = span["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|one| one["key"] == key)?;
    let value = &found["value"];
    let text = value["stringValue"].as_str();
    text.or_else(|| value["intValue"].as_str())
}

#[test]
fn trace_context_passes_unchanged_without_tracing() {
    let web = StubServer::start_mcp(respond_empty);
    let gateway = Gateway::start(&[fixture_config("pipe", &[]), remote_server(&web)].concat());
    gateway.wait_for_state("pipe", "ready");
    gateway.wait_for_state("web", "ready");
    let mut pipe = gateway.open_session("/servers/pipe/mcp");
    // Without a context nothing is added; a context in the call keeps all bytes.
    let plain = r#"{ "name":"received","arguments":{"n":1.0} }"#;
    let own = format!(
        r#"{{"name":"received","arguments":{{}},"_meta":{{ "traceparent" : "{PARENT}","k":1.0}}}}"#
    );
    assert_eq!(received_params(&mut pipe, &[], plain), plain);
    assert_eq!(received_params(&mut pipe, &[], &own), own);
    let other = [(
        "traceparent",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
    )];
    assert_eq!(
        received_params(&mut pipe, &other, &own),
        own,
        "the call is nearer than its headers"
    );
    // A context in headers reaches a stdio server in `_meta`.
    let header = [("traceparent", PARENT), ("tracestate", "a=1")];
    let told = received_params(&mut pipe, &header, plain);
    let meta = format!(r#""_meta":{{"traceparent":"{PARENT}","tracestate":"a=1"}},"#);
    assert_eq!(told.replacen(&meta, "", 1), plain);
    assert_ne!(told, plain);
    // An invalid context is silently ignored.
    let bad = [("traceparent", "00-xyz")];
    assert_eq!(received_params(&mut pipe, &bad, plain), plain);

    let mut remote = gateway.open_session("/servers/web/mcp");
    let look = r#"{"name":"look","arguments":{"n":1.0}}"#;
    let meta = format!(r#"{{"name":"look","_meta":{{"traceparent":"{PARENT}"}}}}"#);
    post_call(&mut remote, &[], look);
    post_call(&mut remote, &header, look);
    post_call(&mut remote, &[], &meta);
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
fn call_span_links_caller_and_server() {
    let collector = StubServer::start_collector();
    let web = StubServer::start_mcp(respond_empty);
    let config = [
        telemetry_config(&collector),
        fixture_config("pipe", &[]),
        remote_server(&web),
    ]
    .concat();
    let mut gateway = Gateway::start(&config);
    gateway.wait_for_state("pipe", "ready");
    gateway.wait_for_state("web", "ready");
    let mut all = gateway.open_session("/mcp");
    let asked = format!(
        r#"{{"name":"pipe__received","arguments":{{"a":1.0}},"_meta":{{"traceparent":"{PARENT}","tracestate":"a=1"}}}}"#
    );
    let told = received_params(&mut all, &[], &asked);
    post_call(
        &mut all,
        &[("traceparent", PARENT)],
        r#"{"name":"web__look"}"#,
    );
    post_call(&mut all, &[], r#"{"name":"web__look"}"#);
    let refused = post_call(
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
            .filter(|span| span_attribute(span, "gen_ai.tool.name") == Some(tool));
        named.collect::<Vec<_>>()
    };
    assert_eq!(spans.len(), 4, "{spans:#?}");
    let span = of("received")[0];
    assert_eq!(span["traceId"], TRACE);
    assert_eq!(span["parentSpanId"], SPAN);
    assert_eq!(span["name"], "tools/call received");
    assert_eq!(span["kind"], 3);
    assert_eq!(span_attribute(span, "mcp.method.name"), Some("tools/call"));
    assert_eq!(span_attribute(span, "bowline.server"), Some("pipe"));
    assert_eq!(span_attribute(span, "bowline.generation"), Some("1"));
    assert_eq!(span_attribute(span, "bowline.outcome"), Some("ok"));
    let time = |key: &str| span[key].as_str().unwrap().parse::<u64>().unwrap();
    assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"));
    // The server's parent is the gateway's span, and no other byte changed.
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
    assert_eq!(span_attribute(failed, "bowline.outcome"), Some("rpc_error"));
}

/// Number of concurrent callers, and calls of each.
const CALLERS: usize = 8;
const CALLS: usize = 20;

#[test]
fn interleaved_calls_have_own_spans() {
    let collector = StubServer::start_collector();
    let config = [
        telemetry_config(&collector),
        fixture_config("a", &[]),
        fixture_config("b", &[]),
    ]
    .concat();
    let mut gateway = Gateway::start(&config);
    gateway.wait_for_state("a", "ready");
    gateway.wait_for_state("b", "ready");
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let gateway = &gateway;
            scope.spawn(move || {
                let mut session = gateway.open_session("/mcp");
                for number in 0..CALLS {
                    let server = if number % 2 == 0 { "a" } else { "b" };
                    let parent = format!("00-{:032x}-{:016x}-01", caller + 1, number + 1);
                    let params = json!({
                        "name": format!("{server}__slow"), "arguments": {"ms": number % 3},
                    });
                    let headers = [("traceparent", parent.as_str())];
                    post_call(&mut session, &headers, &params.to_string());
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
        assert_eq!(
            span_attribute(span, "bowline.server"),
            Some(server),
            "{span}"
        );
        assert_eq!(
            span_attribute(span, "bowline.outcome"),
            Some("ok"),
            "{span}"
        );
        assert!(ids.insert(text("spanId")));
        assert!(parents.insert((text("traceId"), text("parentSpanId"))));
    }
}

#[test]
fn zero_sampling_records_only_sampled_callers() {
    let collector = StubServer::start_collector();
    let config = format!(
        "{}sample = 0.0\n{}",
        telemetry_config(&collector),
        fixture_config("s", &[])
    );
    let mut gateway = Gateway::start(&config);
    gateway.wait_for_state("s", "ready");
    let mut session = gateway.open_session("/servers/s/mcp");
    let plain = r#"{"name":"received","arguments":{}}"#;
    assert_eq!(received_params(&mut session, &[], plain), plain);
    let unsampled = PARENT.replace("-01", "-00");
    let told = received_params(&mut session, &[("traceparent", &unsampled)], plain);
    assert!(told.contains(&unsampled), "{told}");
    received_params(&mut session, &[("traceparent", PARENT)], plain);
    assert!(gateway.stop());
    let spans = collector.spans();
    assert_eq!(spans.len(), 1, "{spans:#?}");
    assert_eq!(spans[0]["traceId"], TRACE);
}

/// A collector that accepts requests and never responds delays neither calls nor the shutdown.
#[test]
fn dead_collector_delays_nothing() {
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let deaf = StubServer::start(move |_| {
        // Blocks until the test ends.
        let _never = held.lock().unwrap().recv();
        (500, String::new())
    });
    let mut gateway = Gateway::start(&[telemetry_config(&deaf), fixture_config("s", &[])].concat());
    gateway.wait_for_state("s", "ready");
    let mut session = gateway.open_session("/servers/s/mcp");
    let began = Instant::now();
    // More than a batch and the queue can hold.
    for _ in 0..3_000 {
        session.call_text("echo", &json!({"message": "x"}));
    }
    let took = began.elapsed();
    // Waiting for the collector in a single call would take the whole timeout.
    assert!(took < Duration::from_secs(60), "{took:?}");
    let page = scrape_metrics(&gateway);
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
fn refusing_collector_leaves_calls_working() {
    let refusing = StubServer::start(|_| (503, String::new()));
    let mut gateway =
        Gateway::start(&[telemetry_config(&refusing), fixture_config("s", &[])].concat());
    gateway.wait_for_state("s", "ready");
    let mut session = gateway.open_session("/servers/s/mcp");
    session.call_text("echo", &json!({"message": "x"}));
    refusing.wait_for_requests("the collector was asked", |requests| !requests.is_empty());
    session.call_text("echo", &json!({"message": "x"}));
    assert!(gateway.stop());
    let asked = refusing.requests();
    assert_eq!(asked[0].path, "/v1/traces");
    assert_eq!(asked[0].method, "POST");
    assert_eq!(asked[0].header("content-type"), Some("application/json"));
}
