//! A frozen server: calls end at the deadline, and healthy servers are unaffected.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use bowline_testkit::gateway::{Gateway, fixture_config};
use bowline_testkit::{send_signal, wait_until};
use serde_json::json;

use crate::storm::StopOnDrop;

/// Settings of the frozen server: an open breaker would spare it the calls.
const FROZEN_SETTINGS: &str = "timeout = \"1s\"\nping = \"off\"\n\
                         breaker = { failures = 100000, rest = \"1s\" }\n";

/// Number of consecutive calls to the frozen server; each takes its full second.
fn frozen_seconds() -> u64 {
    let told = std::env::var("BOWLINE_FREEZE_SECONDS").ok();
    told.map_or(1, |told| told.parse().unwrap())
}

#[test]
fn frozen_server_calls_end_at_deadline() {
    let config = fixture_config("still", &[]) + FROZEN_SETTINGS + &fixture_config("well", &[]);
    let gateway = Gateway::start(&config);
    let pid = gateway.wait_for_state("still", "ready")["pid"]
        .as_u64()
        .unwrap();
    let pid = u32::try_from(pid).unwrap();
    gateway.wait_for_state("well", "ready");
    let mut calm = gateway.open_session("/mcp");
    let mut stuck = gateway.open_session("/mcp");
    assert_eq!(
        stuck.call_text("still__echo", &json!({"message": "a"})),
        "a"
    );

    send_signal(pid, "STOP");
    let over = AtomicBool::new(false);
    let answered = thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut answered = 0;
            while !over.load(Ordering::Relaxed) {
                assert_eq!(calm.call_text("well__echo", &json!({"message": "b"})), "b");
                answered += 1;
            }
            answered
        });
        let over = StopOnDrop(&over);
        for _ in 0..frozen_seconds() {
            let answer = stuck.call("still__echo", &json!({"message": "c"}));
            let data = &answer["error"]["data"];
            assert_eq!(data["class"], "timeout", "{answer}");
            assert_eq!(data["execution"], "unknown", "{answer}");
        }
        drop(over);
        others.join().unwrap()
    });
    assert!(
        answered > 10,
        "only {answered} calls of the other server while one stood still"
    );
    let still = gateway.server_status("still");
    assert_eq!(still["generation"], 1, "{still}");

    send_signal(pid, "CONT");
    let answer = || {
        let answer = gateway
            .open_session("/mcp")
            .call("still__echo", &json!({"message": "d"}));
        answer["result"]["content"][0]["text"] == "d"
    };
    wait_until("the server goes on", answer);
    let still = gateway.server_status("still");
    assert_eq!(still["pid"], pid, "it was not started anew: {still}");
}
