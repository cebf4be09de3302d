//! HTTP servers with invalid responses: the caller's error, and the effect on the server's breaker.

use bowline_testkit::gateway::{FaultyNetwork, FixtureServer, Gateway, Session};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

/// The caller's error, and whether repeated responses of this kind open the breaker.
struct FaultCase {
    fault: &'static str,
    code: &'static str,
    class: &'static str,
    execution: &'static str,
    retry: &'static str,
    /// One more member of the error data.
    extra_field: (&'static str, Value),
    /// Whether the response counts as a failure of the server.
    is_counted: bool,
}

/// Failures in a row to open a breaker.
const FAILURES_MAX: usize = 5;

fn start_faulty_server(fault: &str) -> (FixtureServer, Gateway, Session) {
    let served = FixtureServer::start(&["--fault", fault]);
    let gateway = Gateway::start(&format!("[servers.s]\nurl = {}\n", json!(served.url)));
    gateway.wait_for_state("s", "ready");
    let session = gateway.open_session("/servers/s/mcp");
    (served, gateway, session)
}

fn assert_fault_case(case: &FaultCase) {
    let fault = case.fault;
    let (_served, gateway, mut session) = start_faulty_server(fault);
    let echo = json!({"message": "hi"});
    for _ in 0..FAILURES_MAX {
        let error = session.call("echo", &echo)["error"].clone();
        let data = &error["data"];
        assert_eq!(data["code"], case.code, "{fault}: {error}");
        assert_eq!(data["class"], case.class, "{fault}: {error}");
        assert_eq!(data["execution"], case.execution, "{fault}: {error}");
        assert_eq!(data["retry"], case.retry, "{fault}: {error}");
        assert_eq!(data["origin"], "upstream", "{fault}: {error}");
        let (key, value) = &case.extra_field;
        assert_eq!(data.get(key), Some(value), "{fault}: {error}");
        let message = error["message"].as_str().unwrap();
        let may_have = message.contains("may have run");
        assert_eq!(may_have, case.execution == "unknown", "{fault}: {message}");
    }
    let status = gateway.server_status("s");
    // A breaker that found the server reachable while open takes one failure less to open again.
    let failures = status["consecutive_failures"].as_u64().unwrap();
    let is_counted = failures >= FAILURES_MAX as u64 - 1;
    assert_eq!(is_counted, case.is_counted, "{fault}: {status}");
    // The server responds, so no link is lost and no restart happens.
    assert_eq!(status["generation"], 1, "{fault}: {status}");
    assert_eq!(status["restart_count"], 0, "{fault}: {status}");
    assert_eq!(status["state"], "ready", "{fault}: {status}");
}

#[test]
fn unauthorized_server_leaves_breaker_closed() {
    for (fault, code, challenge) in [
        (
            "http-status=401:9",
            "auth_required",
            "Bearer realm=\"fixture\"",
        ),
        (
            "http-status=403:9",
            "scope_required",
            "Bearer error=\"insufficient_scope\", scope=\"calls\"",
        ),
    ] {
        assert_fault_case(&FaultCase {
            fault,
            code,
            class: code,
            execution: "not_started",
            retry: "never",
            extra_field: ("challenge", json!(challenge)),
            is_counted: false,
        });
    }
}

#[test]
fn throttling_server_opens_breaker_with_retry_after() {
    for (fault, execution, retry) in [
        ("http-status=429:9", "not_started", "after"),
        // The status may come from a proxy in front of the server.
        ("http-status=503:9", "unknown", "never"),
    ] {
        assert_fault_case(&FaultCase {
            fault,
            code: "throttled",
            class: "throttled",
            execution,
            retry,
            extra_field: ("retry_after_ms", json!(2_000)),
            is_counted: true,
        });
    }
}

#[test]
fn error_status_leaves_execution_unknown() {
    for (fault, status, class, is_counted) in [
        ("http-status=500:9", 500, "connection_lost", true),
        ("http-status=502:9", 502, "connection_lost", true),
        ("http-status=400:9", 400, "protocol_error", false),
    ] {
        assert_fault_case(&FaultCase {
            fault,
            code: "http_status",
            class,
            execution: "unknown",
            retry: "never",
            extra_field: ("status", json!(status)),
            is_counted,
        });
    }
}

#[test]
fn wrong_content_type_is_protocol_error() {
    assert_fault_case(&FaultCase {
        fault: "wrong-type",
        code: "no_message",
        class: "protocol_error",
        execution: "unknown",
        retry: "never",
        extra_field: ("origin", json!("upstream")),
        is_counted: false,
    });
}

#[test]
fn call_after_refusal_is_served() {
    let (_served, gateway, mut session) = start_faulty_server("http-status=500:1");
    let echo = json!({"message": "hi"});
    assert_eq!(
        session.call("echo", &echo)["error"]["data"]["status"],
        500,
        "the first is refused"
    );
    assert_eq!(session.call_text("echo", &echo), "hi");
    assert_eq!(gateway.server_status("s")["circuit"], "closed");
}

#[test]
fn cross_origin_redirect_is_not_followed() {
    let served = FixtureServer::start(&["--fault", "redirect=other"]);
    let gateway = Gateway::start(&format!("[servers.s]\nurl = {}\n", json!(served.url)));
    let status = gateway.wait_for_state("s", "backoff");
    let message = status["last_error"]["message"].as_str().unwrap();
    assert!(message.contains("redirects"), "{status}");
    assert_eq!(status["last_error"]["class"], "protocol_error", "{status}");
}

/// Requests per session of the fixture.
const SESSION_REQUESTS: usize = 20;

#[test]
fn lost_session_restores_log_level_and_subscriptions() {
    let (_served, gateway, mut session) =
        start_faulty_server(&format!("session-expires={SESSION_REQUESTS}"));
    let watched = json!({"uri": "test://watched-resource"});
    let subscribed = session.request("resources/subscribe", &watched);
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    let levelled = session.request("logging/setLevel", &json!({"level": "error"}));
    assert_eq!(levelled["result"], json!({}), "{levelled}");
    let notified = |session: &mut Session| {
        let touched = session.call("touch", &watched);
        let told = touched["result"]["structuredContent"]["notified"].clone();
        told.as_bool().unwrap_or_else(|| panic!("{touched}"))
    };
    assert!(notified(&mut session), "the server took the subscription");
    // The requests span more than one session of the server.
    for _ in 0..SESSION_REQUESTS {
        notified(&mut session);
    }
    wait_until("the server is told of the subscription again", || {
        notified(&mut session)
    });
    wait_until("the server is told of the level again", || {
        let call = json!({
            "jsonrpc": "2.0", "id": "l", "method": "tools/call",
            "params": {"name": "test_tool_with_logging", "arguments": {}},
        });
        // At level `error` the server sends no log line before the response.
        let said = session.post(&call).text();
        assert!(said.contains("result"), "{said}");
        !said.contains("notifications/message")
    });
    assert_eq!(gateway.server_status("s")["generation"], 1);
}

/// Calls a slow tool, cuts all connections while the call runs, and returns the response.
fn cut_call_in_flight(tool: &'static str, arguments: Value) -> (FixtureServer, Value) {
    let served = FixtureServer::start(&[]);
    let network = FaultyNetwork::start(served.address());
    let config = format!("[servers.s]\nurl = \"http://{}/mcp\"\n", network.address);
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("s", "ready");
    let mut session = gateway.open_session("/servers/s/mcp");
    let call = std::thread::spawn(move || session.call(tool, &arguments));
    wait_until("it runs", || count_calls(&served, tool) == 1);
    network.cut_connections();
    (served, call.join().unwrap())
}

/// How often a tool was called, by the server's own count.
fn count_calls(served: &FixtureServer, tool: &str) -> u64 {
    let mut direct = Session::open(served.address(), "/mcp", None);
    let counted = direct.call_text("counter", &json!({}));
    let counted: Value = serde_json::from_str(&counted).unwrap();
    counted["by_tool"][tool].as_u64().unwrap_or(0)
}

#[test]
fn interrupted_read_is_retried() {
    let (served, answer) = cut_call_in_flight("slow", json!({"ms": 1_000, "message": "seven"}));
    assert_eq!(answer["result"]["content"][0]["text"], "seven", "{answer}");
    assert_eq!(count_calls(&served, "slow"), 2);
}

/// A write whose connection is cut may have run, and is not sent again.
#[test]
fn interrupted_write_is_not_retried() {
    let (served, answer) = cut_call_in_flight("effect", json!({"ms": 1_000, "key": "seven"}));
    let data = &answer["error"]["data"];
    assert_eq!(data["execution"], "unknown", "{answer}");
    assert_eq!(count_calls(&served, "effect"), 1);
}
