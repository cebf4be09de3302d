//! Servers that misbehave: each fault costs what it must, is told as what it is, and harms nobody
//! else.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Gateway, eventually, fixture, memory};
use crate::props::{opening, script};

const MIB: usize = 1024 * 1024;

/// What one overlong answer may cost: a line at its limit, and what surrounds it.
const GROWTH_BYTES_MAX: usize = (8 + 16) * MIB;

/// What a gateway may grow by for one message of 64 MiB, which its buffer doubles up to.
const LARGE_GROWTH_BYTES_MAX: usize = 3 * 64 * MIB;

/// The calls of the good server are as many as fit into the time: rows of them that wait to be
/// written would be most of the memory that is measured.
const WITHOUT_ROWS: &str = "[audit]\ncalls = false\n";

/// A gateway with a server of this fault, called `odd`, and a good one, called `good`.
fn beside(faults: &[&str], more: &str) -> Gateway {
    let args: Vec<&str> = faults.iter().flat_map(|fault| ["--fault", fault]).collect();
    let gateway =
        Gateway::up(&(fixture("odd", &args) + more + &fixture("good", &[]) + WITHOUT_ROWS));
    gateway.wait_for("good", "ready");
    gateway
}

/// Calls `odd` from several sides at once; every caller gets its own answer.
fn exchanges_hold(gateway: &Gateway) {
    thread::scope(|scope| {
        for client in 0..8 {
            scope.spawn(move || {
                let mut session = gateway.session("/servers/odd/mcp");
                for call in 0..10 {
                    let said = format!("client {client} call {call}");
                    assert_eq!(session.text("echo", &json!({"message": said})), said);
                }
            });
        }
    });
    assert_eq!(gateway.status("odd")["generation"], 1);
    assert_eq!(gateway.status("odd")["errors"], 0);
}

/// Runs `work` and returns what it came to, the peak growth of the gateway's memory meanwhile,
/// and how many calls the good server answered meanwhile.
fn watched<T: Send>(gateway: &Gateway, work: impl FnOnce() -> T + Send) -> (T, usize, usize) {
    let before = memory(gateway.pid());
    let (stop, peak, served) = (
        AtomicBool::new(false),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let done = thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = gateway.session("/servers/good/mcp");
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(session.text("echo", &json!({"message": "hi"})), "hi");
                served.fetch_add(1, Ordering::Relaxed);
                peak.fetch_max(memory(gateway.pid()), Ordering::Relaxed);
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

fn data(answer: &Value) -> (&str, &str) {
    let data = &answer["error"]["data"];
    let word = |key: &str| data[key].as_str().unwrap_or_default();
    (word("code"), word("execution"))
}

#[test]
fn a_line_of_a_gibibyte_is_bounded_and_others_are_served() {
    let gateway = beside(&["long-line=1073741824"], "");
    let mut session = gateway.session("/servers/odd/mcp");
    session.text("echo", &json!({"message": "warm"}));
    let (answer, growth, served) = watched(&gateway, move || session.call("long_line", &json!({})));
    assert_eq!(data(&answer), ("connection_lost", "unknown"), "{answer}");
    assert!(growth < LARGE_GROWTH_BYTES_MAX, "{growth}");
    assert!(served > 0);
    let mut session = gateway.session("/servers/odd/mcp");
    assert_eq!(session.text("echo", &json!({"message": "back"})), "back");
    assert_eq!(gateway.status("odd")["generation"], 2);
}

#[test]
fn nine_mebibyte_result_is_read_in_parts() {
    let gateway = beside(&["long-line"], "");
    let mut session = gateway.session("/servers/odd/mcp");
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
    exchanges_after_a_fault(&gateway);
}

#[test]
fn line_beyond_ceiling_is_bounded_and_typed() {
    let gateway = beside(&["long-line=68157440"], "");
    let mut session = gateway.session("/servers/odd/mcp");
    session.text("echo", &json!({"message": "warm"}));
    let (answer, growth, _) = watched(&gateway, move || session.call("long_line", &json!({})));
    assert_eq!(data(&answer), ("answer_too_large", "completed"), "{answer}");
    assert!(growth < LARGE_GROWTH_BYTES_MAX, "{growth}");
    exchanges_after_a_fault(&gateway);
}

/// The same process of the odd server still serves.
fn exchanges_after_a_fault(gateway: &Gateway) {
    let mut session = gateway.session("/servers/odd/mcp");
    assert_eq!(session.text("echo", &json!({"message": "on"})), "on");
    assert_eq!(gateway.status("odd")["generation"], 1);
}

#[test]
fn json_too_deep_fails_only_its_own_call() {
    let gateway = beside(&["deep-json"], "");
    let answer = gateway.session("/servers/odd/mcp").call("deep", &json!({}));
    assert_eq!(data(&answer), ("bad_answer", "completed"), "{answer}");
    exchanges_after_a_fault(&gateway);
}

#[test]
fn noise_on_stdout_disturbs_no_call() {
    exchanges_hold(&beside(&["noise"], ""));
}

#[test]
fn answers_given_twice_are_taken_once() {
    exchanges_hold(&beside(&["duplicate-answers"], ""));
}

#[test]
fn answers_out_of_order_reach_their_own_callers() {
    exchanges_hold(&beside(&["out-of-order"], ""));
}

#[test]
fn numbers_answered_as_strings_are_understood() {
    exchanges_hold(&beside(&["string-ids"], ""));
}

#[test]
fn an_answer_after_the_deadline_reaches_nobody() {
    let gateway = beside(&["late-answers"], "timeout = \"300ms\"\n");
    gateway.wait_for("odd", "ready");
    let mut session = gateway.session("/servers/odd/mcp");
    let late = session.call("slow", &json!({"ms": 900, "message": "late"}));
    assert_eq!(data(&late), ("timeout", "unknown"), "{late}");
    // Meanwhile the late answer comes; what is asked then gets its own.
    let mut counted = Value::Null;
    eventually("the late answer was given", || {
        let answer = session.call("counter", &json!({}));
        counted = answer["result"]["structuredContent"].clone();
        counted["slow_finished"] == 1
    });
    for said in ["a", "b", "c"] {
        assert_eq!(session.text("echo", &json!({"message": said})), said);
    }
    assert_eq!(gateway.status("odd")["generation"], 1);
}

#[test]
fn a_request_of_the_server_is_answered_and_never_taken_for_the_answer() {
    let gateway = beside(&["colliding-requests"], "");
    exchanges_hold(&gateway);
    let answer = gateway
        .session("/servers/odd/mcp")
        .call("client_answers", &json!({}));
    let answers = answer["result"]["structuredContent"]["answers"].clone();
    let answers = answers.as_array().unwrap();
    assert!(answers.len() >= 80, "{answer}");
    // Pings and sampling: this client declared none, and before its call there was none.
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
fn sampling_that_was_never_offered_is_refused_as_unknown() {
    let ask = r#"{"jsonrpc":"2.0","id":3,"method":"sampling/createMessage","params":{}}"#;
    let tools = r#"{"tools":[{"name":"ask","inputSchema":{"type":"object"}}]}"#;
    let answer = r#"{"jsonrpc":"2.0","id":3,"result":{"content":[],"structuredContent":%s}}\n"#;
    let text = format!(
        "{}read -r l; echo '{ask}'; read -r heard; printf '{answer}' \"$heard\"; read -r l\n",
        opening(tools)
    );
    let gateway = Gateway::up(&script("odd", &text, &[]));
    let answer = gateway.session("/mcp").call("odd__ask", &json!({}));
    let heard = &answer["result"]["structuredContent"];
    assert_eq!(heard["error"]["code"], -32601, "{answer}");
    assert_eq!(heard["id"], 3, "{answer}");
}

#[test]
fn a_server_that_stops_reading_fails_its_own_calls_in_time() {
    let gateway = beside(&["stops-reading"], "timeout = \"700ms\"\n");
    gateway.wait_for("odd", "ready");
    let started = Instant::now();
    // More than a pipe holds, so that the second cannot even begin to leave.
    let large = "x".repeat(4 * MIB);
    let mut first = gateway.session("/servers/odd/mcp");
    first.send_call(1, "echo", &json!({"message": large}));
    eventually("the first is under way", || {
        gateway.status("odd")["in_flight"] == 1
    });
    let second = gateway
        .session("/servers/odd/mcp")
        .call("echo", &json!({"message": "small"}));
    assert_eq!(data(&second), ("send_failed", "not_started"), "{second}");
    let first = first.http.read().json();
    assert_eq!(data(&first), ("timeout", "unknown"), "{first}");
    assert!(started.elapsed() < Duration::from_secs(20));
    let mut good = gateway.session("/servers/good/mcp");
    assert_eq!(good.text("echo", &json!({"message": "hi"})), "hi");
    assert_eq!(gateway.status("good")["errors"], 0);
}

#[test]
fn a_server_that_closes_its_output_is_started_again() {
    let gateway = beside(&["closes-stdout=6"], "");
    let mut session = gateway.session("/servers/odd/mcp");
    assert_eq!(session.text("echo", &json!({"message": "one"})), "one");
    eventually("it is started again", || {
        gateway.status("odd")["generation"] == 2
    });
    assert_eq!(session.text("echo", &json!({"message": "two"})), "two");
    assert_eq!(gateway.status("good")["generation"], 1);
}

#[test]
fn a_hundred_megabytes_of_stderr_are_drained_in_bounded_memory() {
    let gateway = beside(&["stderr-flood=100"], "lazy = true\n");
    let mut session = gateway.session("/servers/odd/mcp");
    let (said, growth, served) = watched(&gateway, move || {
        session.text("echo", &json!({"message": "dry"}))
    });
    assert_eq!(said, "dry");
    let logs = gateway.api("/api/v1/logs?server=odd&after=100000&limit=1");
    assert_eq!(logs["lines"].as_array().map(Vec::len), Some(1), "{logs}");
    assert!(growth < GROWTH_BYTES_MAX, "{growth}");
    assert!(served > 0);
}

#[test]
fn a_server_that_hangs_at_its_start_keeps_nobody_else_waiting() {
    let gateway = beside(&["hang-at-start"], "start_timeout = \"500ms\"\n");
    let mut session = gateway.session("/mcp");
    assert_eq!(session.text("good__echo", &json!({"message": "hi"})), "hi");
    eventually("status says why", || {
        let status = gateway.status("odd");
        let message = status["last_error"]["message"].as_str().unwrap_or_default();
        message.contains("handshake in time")
    });
    let answer = session.call("odd__echo", &json!({"message": "hi"}));
    assert_eq!(data(&answer).1, "not_started", "{answer}");
}

#[test]
fn a_server_that_exits_at_its_start_is_shown_with_its_last_words() {
    let gateway = beside(&["exit-at-start=3"], "restart = { budget = 0 }\n");
    let status = gateway.wait_for("odd", "backoff");
    let message = status["last_error"]["message"].as_str().unwrap();
    for part in ["exit code 3", "fixture: told to exit at start"] {
        assert!(message.contains(part), "{message}");
    }
    let mut session = gateway.session("/mcp");
    assert_eq!(session.text("good__echo", &json!({"message": "hi"})), "hi");
    let answer = session.call("odd__echo", &json!({"message": "hi"}));
    assert_eq!(data(&answer), ("start_failed", "not_started"), "{answer}");
    let told = answer["error"]["message"].as_str().unwrap();
    assert!(told.contains("told to exit at start"), "{told}");
}

#[test]
fn a_crash_before_the_answer_is_unknown_and_one_after_it_is_an_answer() {
    let gateway = beside(&[], "");
    let mut session = gateway.session("/servers/odd/mcp");
    let answer = session.call("crash", &json!({"when": "before", "code": 9}));
    assert_eq!(data(&answer), ("connection_lost", "unknown"), "{answer}");
    let told = answer["error"]["message"].as_str().unwrap();
    assert!(told.contains("exit code 9"), "{told}");
    let answer = session.call("crash", &json!({"when": "after"}));
    let said = &answer["result"]["content"][0]["text"];
    assert_eq!(said, "goodbye", "{answer}");
    assert_eq!(session.text("echo", &json!({"message": "up"})), "up");
    assert_eq!(gateway.status("odd")["generation"], 3);
    assert_eq!(gateway.status("good")["generation"], 1);
}
