//! Servers over HTTP that answer with something else than a message: what the caller reads, and
//! what it does to the server's breaker.

use serde_json::{Value, json};

use crate::harness::network::Network;
use crate::harness::served::Served;
use crate::harness::{Gateway, Session, eventually};

/// What a caller reads, and whether such answers in a row open the breaker.
struct Case {
    fault: &'static str,
    code: &'static str,
    class: &'static str,
    execution: &'static str,
    retry: &'static str,
    /// A member of the data beyond these.
    more: (&'static str, Value),
    /// Whether such answers count against the server.
    is_counted: bool,
}

/// Calls in a row that open a breaker.
const FAILURES_MAX: usize = 5;

fn behind(fault: &str) -> (Served, Gateway, Session) {
    let served = Served::start(&["--fault", fault]);
    let gateway = Gateway::up(&format!("[servers.s]\nurl = {}\n", json!(served.url)));
    gateway.wait_for("s", "ready");
    let session = gateway.session("/servers/s/mcp");
    (served, gateway, session)
}

fn check(case: &Case) {
    let fault = case.fault;
    let (_served, gateway, mut session) = behind(fault);
    let echo = json!({"message": "hi"});
    for _ in 0..FAILURES_MAX {
        let error = session.call("echo", &echo)["error"].clone();
        let data = &error["data"];
        assert_eq!(data["code"], case.code, "{fault}: {error}");
        assert_eq!(data["class"], case.class, "{fault}: {error}");
        assert_eq!(data["execution"], case.execution, "{fault}: {error}");
        assert_eq!(data["retry"], case.retry, "{fault}: {error}");
        assert_eq!(data["origin"], "upstream", "{fault}: {error}");
        let (key, value) = &case.more;
        assert_eq!(data.get(key), Some(value), "{fault}: {error}");
        let message = error["message"].as_str().unwrap();
        let may_have = message.contains("may have run");
        assert_eq!(may_have, case.execution == "unknown", "{fault}: {message}");
    }
    let status = gateway.status("s");
    // A breaker that was open and found the server reachable takes one failure less to open again.
    let failures = status["consecutive_failures"].as_u64().unwrap();
    let is_counted = failures >= FAILURES_MAX as u64 - 1;
    assert_eq!(is_counted, case.is_counted, "{fault}: {status}");
    // The server is there and answers: nothing was lost and nothing is started again.
    assert_eq!(status["generation"], 1, "{fault}: {status}");
    assert_eq!(status["restart_count"], 0, "{fault}: {status}");
    assert_eq!(status["state"], "ready", "{fault}: {status}");
}

#[test]
fn a_server_that_wants_other_credentials_says_which_and_is_not_put_to_rest() {
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
        check(&Case {
            fault,
            code,
            class: code,
            execution: "not_started",
            retry: "never",
            more: ("challenge", json!(challenge)),
            is_counted: false,
        });
    }
}

#[test]
fn a_server_that_throttles_says_when_to_come_back_and_is_put_to_rest() {
    for (fault, execution, retry) in [
        ("http-status=429:9", "not_started", "after"),
        // It may come from something in front of the server.
        ("http-status=503:9", "unknown", "never"),
    ] {
        check(&Case {
            fault,
            code: "throttled",
            class: "throttled",
            execution,
            retry,
            more: ("retry_after_ms", json!(2_000)),
            is_counted: true,
        });
    }
}

#[test]
fn a_status_in_place_of_an_answer_leaves_open_whether_the_call_ran() {
    for (fault, status, class, is_counted) in [
        ("http-status=500:9", 500, "connection_lost", true),
        ("http-status=502:9", 502, "connection_lost", true),
        ("http-status=400:9", 400, "protocol_error", false),
    ] {
        check(&Case {
            fault,
            code: "http_status",
            class,
            execution: "unknown",
            retry: "never",
            more: ("status", json!(status)),
            is_counted,
        });
    }
}

#[test]
fn a_page_in_place_of_an_answer_is_no_message() {
    check(&Case {
        fault: "wrong-type",
        code: "no_message",
        class: "protocol_error",
        execution: "unknown",
        retry: "never",
        more: ("origin", json!("upstream")),
        is_counted: false,
    });
}

#[test]
fn a_server_that_refused_a_call_serves_the_next_one() {
    let (_served, gateway, mut session) = behind("http-status=500:1");
    let echo = json!({"message": "hi"});
    assert_eq!(
        session.call("echo", &echo)["error"]["data"]["status"],
        500,
        "the first is refused"
    );
    assert_eq!(session.text("echo", &echo), "hi");
    assert_eq!(gateway.status("s")["circuit"], "closed");
}

#[test]
fn a_server_that_points_to_another_origin_is_not_followed() {
    let served = Served::start(&["--fault", "redirect=other"]);
    let gateway = Gateway::up(&format!("[servers.s]\nurl = {}\n", json!(served.url)));
    let status = gateway.wait_for("s", "backoff");
    let message = status["last_error"]["message"].as_str().unwrap();
    assert!(message.contains("redirects"), "{status}");
    assert_eq!(status["last_error"]["class"], "protocol_error", "{status}");
}

/// Requests that the fixture answers in one session.
const SESSION_REQUESTS: usize = 20;

#[test]
fn a_server_that_forgot_its_session_hears_again_what_is_wanted_of_it() {
    let (_served, gateway, mut session) = behind(&format!("session-expires={SESSION_REQUESTS}"));
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
    // More than one session of the server answers.
    for _ in 0..SESSION_REQUESTS {
        notified(&mut session);
    }
    eventually("the server is told of the subscription again", || {
        notified(&mut session)
    });
    eventually("the server is told of the level again", || {
        let call = json!({
            "jsonrpc": "2.0", "id": "l", "method": "tools/call",
            "params": {"name": "test_tool_with_logging", "arguments": {}},
        });
        // At the level `error` it says nothing before it answers.
        let said = session.post(&call).text();
        assert!(said.contains("result"), "{said}");
        !said.contains("notifications/message")
    });
    assert_eq!(gateway.status("s")["generation"], 1);
}

/// Calls a tool that takes its time, cuts all connections once it runs, and returns the answer.
fn cut_in_the_middle(tool: &'static str, arguments: Value) -> (Served, Value) {
    let served = Served::start(&[]);
    let network = Network::to(served.address());
    let config = format!("[servers.s]\nurl = \"http://{}/mcp\"\n", network.address);
    let gateway = Gateway::up(&config);
    gateway.wait_for("s", "ready");
    let mut session = gateway.session("/servers/s/mcp");
    let call = std::thread::spawn(move || session.call(tool, &arguments));
    eventually("it runs", || times_called(&served, tool) == 1);
    network.cut();
    (served, call.join().unwrap())
}

/// How often a tool was called, as the server itself says.
fn times_called(served: &Served, tool: &str) -> u64 {
    let mut direct = Session::open(served.address(), "/mcp", None);
    let counted = direct.text("counter", &json!({}));
    let counted: Value = serde_json::from_str(&counted).unwrap();
    counted["by_tool"][tool].as_u64().unwrap_or(0)
}

#[test]
fn a_read_whose_connection_is_cut_is_sent_again() {
    let (served, answer) = cut_in_the_middle("slow", json!({"ms": 1_000, "message": "seven"}));
    assert_eq!(answer["result"]["content"][0]["text"], "seven", "{answer}");
    assert_eq!(times_called(&served, "slow"), 2);
}

#[test]
fn a_write_whose_connection_is_cut_may_have_run_and_is_not_sent_again() {
    let (served, answer) = cut_in_the_middle("effect", json!({"ms": 1_000, "key": "seven"}));
    let data = &answer["error"]["data"];
    assert_eq!(data["execution"], "unknown", "{answer}");
    assert_eq!(times_called(&served, "effect"), 1);
}
