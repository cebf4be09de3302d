//! A server that stands still: its calls end at their deadline, and nobody else notices.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use crate::harness::{Gateway, eventually, fixture, signal};
use crate::storm::Over;

/// How the server that stands still is treated: its breaker would spare it the calls.
const TREATMENT: &str = "timeout = \"1s\"\nping = \"off\"\n\
                         breaker = { failures = 100000, rest = \"1s\" }\n";

/// How many calls in turn find it frozen; each takes its whole second.
fn frozen_seconds() -> u64 {
    let told = std::env::var("BOWLINE_FREEZE_SECONDS").ok();
    told.map_or(1, |told| told.parse().unwrap())
}

#[test]
fn calls_of_a_frozen_server_end_at_their_deadline() {
    let config = fixture("still", &[]) + TREATMENT + &fixture("well", &[]);
    let gateway = Gateway::up(&config);
    let pid = gateway.wait_for("still", "ready")["pid"].as_u64().unwrap();
    let pid = u32::try_from(pid).unwrap();
    gateway.wait_for("well", "ready");
    let mut calm = gateway.session("/mcp");
    let mut stuck = gateway.session("/mcp");
    assert_eq!(stuck.text("still__echo", &json!({"message": "a"})), "a");

    signal(pid, "STOP");
    let over = AtomicBool::new(false);
    let answered = thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut answered = 0;
            while !over.load(Ordering::Relaxed) {
                assert_eq!(calm.text("well__echo", &json!({"message": "b"})), "b");
                answered += 1;
            }
            answered
        });
        let over = Over(&over);
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
    let still = gateway.status("still");
    assert_eq!(still["generation"], 1, "{still}");

    signal(pid, "CONT");
    let answer = || {
        let answer = gateway
            .session("/mcp")
            .call("still__echo", &json!({"message": "d"}));
        answer["result"]["content"][0]["text"] == "d"
    };
    eventually("the server goes on", answer);
    let still = gateway.status("still");
    assert_eq!(still["pid"], pid, "it was not started anew: {still}");
}
