//! Misbehaving servers: each fault has a bounded cost, a typed error, and no effect on others.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, fixture_config};
use bowline_testkit::{resident_bytes, wait_until};
use serde_json::{Value, json};

use crate::test_servers::{shell_handshake, shell_server};

const MIB: usize = 1024 * 1024;

/// Memory for an overlong response: a line at the limit, plus overhead.
const GROWTH_BYTES_MAX: usize = (8 + 16) * MIB;

/// Growth of a gateway for a message of 64 MiB; the buffer doubles up to this size.
const LARGE_GROWTH_BYTES_MAX: usize = 3 * 64 * MIB;

/// The good server is called as often as time permits: unwritten audit rows would dominate the
/// measured memory.
const WITHOUT_ROWS: &str = "[audit]\ncalls = false\n";

/// A gateway with a faulty server `odd` and a good server `good`.
fn start_beside_good(faults: &[&str], more: &str) -> Gateway {
    let args: Vec<&str> = faults.iter().flat_map(|fault| ["--fault", fault]).collect();
    let gateway = Gateway::start(
        &(fixture_config("odd", &args) + more + &fixture_config("good", &[]) + WITHOUT_ROWS),
    );
    gateway.wait_for_state("good", "ready");
    gateway
}

/// Calls `odd` concurrently; responses are not mixed up.
fn assert_exchanges(gateway: &Gateway) {
    thread::scope(|scope| {
        for client in 0..8 {
            scope.spawn(move || {
                let mut session = gateway.open_session("/servers/odd/mcp");
                for call in 0..10 {
                    let said = format!("client {client} call {call}");
                    assert_eq!(session.call_text("echo", &json!({"message": said})), said);
                }
            });
        }
    });
    assert_eq!(gateway.server_status("odd")["generation"], 1);
    assert_eq!(gateway.server_status("odd")["errors"], 0);
}

/// Runs `work` and returns the result, the gateway's peak memory growth meanwhile, and the number
/// of successful calls of the good server meanwhile.
fn measure_while<T: Send>(gateway: &Gateway, work: impl FnOnce() -> T + Send) -> (T, usize, usize) {
    let before = resident_bytes(gateway.pid());
    let (stop, peak, served) = (
        AtomicBool::new(false),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let done = thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = gateway.open_session("/servers/good/mcp");
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(session.call_text("echo", &json!({"message": "hi"})), "hi");
                served.fetch_add(1, Ordering::Relaxed);
                peak.fetch_max(resident_bytes(gateway.pid()), Ordering::Relaxed);
            }
        });
        let done = thread::scope(|inner| inner.spawn(work).join());
        stop.store(true, Ordering::Relaxed);
        done.unwrap()
    });
    let growth = peak.into_inner().saturating_sub(before);
    let served = served.into_inner();
    eprintln!("memory grew by {growth} bytes; {served} calls of the other server meanwhile");
    (done, growth, served)
}

fn error_code_and_execution(answer: &Value) -> (&str, &str) {
    let data = &answer["error"]["data"];
    let word = |key: &str| data[key].as_str().unwrap_or_default();
    (word("code"), word("execution"))
}

#[test]
fn gibibyte_line_is_bounded() {
    let gateway = start_beside_good(&["long-line=1073741824"], "");
    let mut session = gateway.open_session("/servers/odd/mcp");
    session.call_text("echo", &json!({"message": "warm"}));
    let (answer, growth, served) =
        measure_while(&gateway, move || session.call("long_line", &json!({})));
    assert_eq!(
        error_code_and_execution(&answer),
        ("connection_lost", "unknown"),
        "{answer}"
    );
    assert!(growth < LARGE_GROWTH_BYTES_MAX, "{growth}");
    assert!(served > 0);
    let mut session = gateway.open_session("/servers/odd/mcp");
    assert_eq!(
        session.call_text("echo", &json!({"message": "back"})),
        "back"
    );
    assert_eq!(gateway.server_status("odd")["generation"], 2);
}

#[test]
fn nine_mebibyte_result_is_read_in_parts() {
    let gateway = start_beside_good(&["long-line"], "");
    let mut session = gateway.open_session("/servers/odd/mcp");
    let answer = session.call("long_line", &json!({}));
    let result = &answer["result"];
    assert_eq!(result["isError"], false, "{}", answer.to_string().len());
    let meta = &result["_meta"]["dev.bowline/result"];
    assert_eq!(meta["execution"], "completed");
    let mut bytes = result["content"][0]["text"].as_str().unwrap().len();
    let mut next = result["content"][2]["uri"].as_str().map(str::to_owned);
    while let Some(uri) = next {
        let part = session.request("resources/read", &json!({"uri": uri}));
        let part = &part["result"]["contents"][0];
        bytes += part["text"].as_str().unwrap().len();
        next = part["_meta"]["dev.bowline/next"]
            .as_str()
            .map(str::to_owned);
    }
    assert_eq!(bytes, 9 * MIB);
    assert_eq!(meta["bytes"], bytes);
    assert_same_process_serves(&gateway);
}

#[test]
fn line_beyond_ceiling_is_bounded_and_typed() {
    let gateway = start_beside_good(&["long-line=68157440"], "");
    let mut session = gateway.open_session("/servers/odd/mcp");
    session.call_text("echo", &json!({"message": "warm"}));
    let (answer, growth, _) =
        measure_while(&gateway, move || session.call("long_line", &json!({})));
    assert_eq!(
        error_code_and_execution(&answer),
        ("answer_too_large", "completed"),
        "{answer}"
    );
    assert!(growth < LARGE_GROWTH_BYTES_MAX, "{growth}");
    assert_same_process_serves(&gateway);
}

/// The same process of the odd server still serves.
fn assert_same_process_serves(gateway: &Gateway) {
    let mut session = gateway.open_session("/servers/odd/mcp");
    assert_eq!(session.call_text("echo", &json!({"message": "on"})), "on");
    assert_eq!(gateway.server_status("odd")["generation"], 1);
}

#[test]
fn json_too_deep_fails_only_its_own_call() {
    let gateway = start_beside_good(&["deep-json"], "");
    let answer = gateway
        .open_session("/servers/odd/mcp")
        .call("deep", &json!({}));
    assert_eq!(
        error_code_and_execution(&answer),
        ("bad_answer", "completed"),
        "{answer}"
    );
    assert_same_process_serves(&gateway);
}

#[test]
fn noise_on_stdout_disturbs_no_call() {
    assert_exchanges(&start_beside_good(&["noise"], ""));
}

#[test]
fn duplicate_responses_are_used_once() {
    assert_exchanges(&start_beside_good(&["duplicate-answers"], ""));
}

#[test]
fn out_of_order_responses_reach_their_callers() {
    assert_exchanges(&start_beside_good(&["out-of-order"], ""));
}

#[test]
fn string_form_of_numeric_id_is_understood() {
    assert_exchanges(&start_beside_good(&["string-ids"], ""));
}

#[test]
fn late_response_is_dropped() {
    let gateway = start_beside_good(&["late-answers"], "timeout = \"300ms\"\n");
    gateway.wait_for_state("odd", "ready");
    let mut session = gateway.open_session("/servers/odd/mcp");
    let late = session.call("slow", &json!({"ms": 900, "message": "late"}));
    assert_eq!(
        error_code_and_execution(&late),
        ("timeout", "unknown"),
        "{late}"
    );
    // The late response arrives meanwhile; new requests get their own responses.
    let mut counted = Value::Null;
    wait_until("the late answer was given", || {
        let answer = session.call("counter", &json!({}));
        counted = answer["result"]["structuredContent"].clone();
        counted["slow_finished"] == 1
    });
    for said in ["a", "b", "c"] {
        assert_eq!(session.call_text("echo", &json!({"message": said})), said);
    }
    assert_eq!(gateway.server_status("odd")["generation"], 1);
}

#[test]
fn server_request_is_never_taken_for_response() {
    let gateway = start_beside_good(&["colliding-requests"], "");
    assert_exchanges(&gateway);
    let answer = gateway
        .open_session("/servers/odd/mcp")
        .call("client_answers", &json!({}));
    let answers = answer["result"]["structuredContent"]["answers"].clone();
    let answers = answers.as_array().unwrap();
    assert!(answers.len() >= 80, "{answer}");
    // Pings and sampling: this client declared no sampling, and no sampling precedes its call.
    let pongs = answers.iter().filter(|one| one["result"] == json!({}));
    let refused = answers.iter().filter(|one| {
        let code = &one["error"]["code"];
        *code == -32601 || *code == -32603
    });
    let (pongs, refused) = (pongs.count(), refused.count());
    assert_eq!(pongs + refused, answers.len(), "{answer}");
    assert!(pongs > 0 && refused > 0, "{pongs} and {refused}");
}

#[test]
fn undeclared_sampling_is_method_not_found() {
    let ask = r#"{"jsonrpc":"2.0","id":3,"method":"sampling/createMessage","params":{}}"#;
    let tools = r#"{"tools":[{"name":"ask","inputSchema":{"type":"object"}}]}"#;
    let answer = r#"{"jsonrpc":"2.0","id":3,"result":{"content":[],"structuredContent":%s}}\n"#;
    let text = format!(
        "{}read -r l; echo '{ask}'; read -r heard; printf '{answer}' \"$heard\"; read -r l\n",
        shell_handshake(tools)
    );
    let gateway = Gateway::start(&shell_server("odd", &text, &[]));
    let answer = gateway.open_session("/mcp").call("odd__ask", &json!({}));
    let heard = &answer["result"]["structuredContent"];
    assert_eq!(heard["error"]["code"], -32601, "{answer}");
    assert_eq!(heard["id"], 3, "{answer}");
}

#[test]
fn server_that_stops_reading_fails_own_calls() {
    let gateway = start_beside_good(&["stops-reading"], "timeout = \"700ms\"\n");
    gateway.wait_for_state("odd", "ready");
    let started = Instant::now();
    // More than a pipe holds, so the second request cannot even start to be written.
    let large = "x".repeat(4 * MIB);
    let mut first = gateway.open_session("/servers/odd/mcp");
    first.send_call(1, "echo", &json!({"message": large}));
    wait_until("the first is under way", || {
        gateway.server_status("odd")["in_flight"] == 1
    });
    let second = gateway
        .open_session("/servers/odd/mcp")
        .call("echo", &json!({"message": "small"}));
    assert_eq!(
        error_code_and_execution(&second),
        ("send_failed", "not_started"),
        "{second}"
    );
    let first = first.http.read_response().json();
    assert_eq!(
        error_code_and_execution(&first),
        ("timeout", "unknown"),
        "{first}"
    );
    assert!(started.elapsed() < Duration::from_secs(20));
    let mut good = gateway.open_session("/servers/good/mcp");
    assert_eq!(good.call_text("echo", &json!({"message": "hi"})), "hi");
    assert_eq!(gateway.server_status("good")["errors"], 0);
}

#[test]
fn server_that_closes_stdout_is_restarted() {
    let gateway = start_beside_good(&["closes-stdout=6"], "");
    let mut session = gateway.open_session("/servers/odd/mcp");
    assert_eq!(session.call_text("echo", &json!({"message": "one"})), "one");
    wait_until("it is started again", || {
        gateway.server_status("odd")["generation"] == 2
    });
    assert_eq!(session.call_text("echo", &json!({"message": "two"})), "two");
    assert_eq!(gateway.server_status("good")["generation"], 1);
}

#[test]
fn stderr_flood_takes_bounded_memory() {
    let gateway = start_beside_good(&["stderr-flood=100"], "lazy = true\n");
    let mut session = gateway.open_session("/servers/odd/mcp");
    let (said, growth, served) = measure_while(&gateway, move || {
        session.call_text("echo", &json!({"message": "dry"}))
    });
    assert_eq!(said, "dry");
    let logs = gateway.get_api("/api/v1/logs?server=odd&after=100000&limit=1");
    assert_eq!(logs["lines"].as_array().map(Vec::len), Some(1), "{logs}");
    assert!(growth < GROWTH_BYTES_MAX, "{growth}");
    assert!(served > 0);
}

#[test]
fn hanging_start_delays_no_other_server() {
    let gateway = start_beside_good(&["hang-at-start"], "start_timeout = \"500ms\"\n");
    let mut session = gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("good__echo", &json!({"message": "hi"})),
        "hi"
    );
    wait_until("status says why", || {
        let status = gateway.server_status("odd");
        let message = status["last_error"]["message"].as_str().unwrap_or_default();
        message.contains("handshake in time")
    });
    let answer = session.call("odd__echo", &json!({"message": "hi"}));
    assert_eq!(
        error_code_and_execution(&answer).1,
        "not_started",
        "{answer}"
    );
}

#[test]
fn exit_at_start_shows_last_stderr() {
    let gateway = start_beside_good(&["exit-at-start=3"], "restart = { budget = 0 }\n");
    let status = gateway.wait_for_state("odd", "backoff");
    let message = status["last_error"]["message"].as_str().unwrap();
    for part in ["exit code 3", "fixture: told to exit at start"] {
        assert!(message.contains(part), "{message}");
    }
    let mut session = gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("good__echo", &json!({"message": "hi"})),
        "hi"
    );
    let answer = session.call("odd__echo", &json!({"message": "hi"}));
    assert_eq!(
        error_code_and_execution(&answer),
        ("start_failed", "not_started"),
        "{answer}"
    );
    let told = answer["error"]["message"].as_str().unwrap();
    assert!(told.contains("told to exit at start"), "{told}");
}

/// A crash before the response leaves the outcome unknown; a crash after the response does not
/// change it.
#[test]
fn crash_before_response_is_unknown() {
    let gateway = start_beside_good(&[], "");
    let mut session = gateway.open_session("/servers/odd/mcp");
    let answer = session.call("crash", &json!({"when": "before", "code": 9}));
    assert_eq!(
        error_code_and_execution(&answer),
        ("connection_lost", "unknown"),
        "{answer}"
    );
    let told = answer["error"]["message"].as_str().unwrap();
    assert!(told.contains("exit code 9"), "{told}");
    let answer = session.call("crash", &json!({"when": "after"}));
    let said = &answer["result"]["content"][0]["text"];
    assert_eq!(said, "goodbye", "{answer}");
    assert_eq!(session.call_text("echo", &json!({"message": "up"})), "up");
    assert_eq!(gateway.server_status("odd")["generation"], 3);
    assert_eq!(gateway.server_status("good")["generation"], 1);
}
