//! Servers that would take the whole machine: they are ended, nobody else notices, and people are
//! told why.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::harness::{Gateway, eventually, fixture};
use crate::props::{fresh_mark, mark_line, marked, opening, script, word};

/// Shakes hands, lists one tool, and does its worst when that is called.
fn runaway(mark: &str, deed: &str, limits: &str) -> String {
    let tools = r#"{"tools":[{"name":"go","inputSchema":{"type":"object"}}]}"#;
    let text = format!("{}read -r l; {deed}; read -r l\n", opening(tools));
    let more = format!("limits = {{ {limits} }}\nrestart = {{ budget = 0 }}\n");
    script("wild", &text, &[]) + &mark_line(mark) + &more
}

/// Lets the server do its worst beside another one that is being used, and returns its status
/// when it is over.
fn let_run(mark: &str, config: &str, reason: &str) -> Value {
    let gateway = Gateway::up(&(config.to_owned() + &fixture("steady", &[])));
    gateway.wait_for("wild", "ready");
    let before = gateway.wait_for("steady", "ready");
    let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let answer = thread::scope(|scope| {
        let mut steady = gateway.session("/mcp");
        let (stop, calls) = (&stop, &calls);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let said = steady.text("steady__echo", &json!({"message": "still here"}));
                assert_eq!(said, "still here");
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
        eventually("the other server is being used", || {
            calls.load(Ordering::Relaxed) > 10
        });
        let answer = gateway.session("/mcp").call("wild__go", &json!({}));
        let then = calls.load(Ordering::Relaxed);
        eventually("the other server is used on", || {
            calls.load(Ordering::Relaxed) > then + 10
        });
        stop.store(true, Ordering::Relaxed);
        answer
    });
    assert_eq!(word(&answer, "code"), "connection_lost", "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains(reason), "{message}");

    let wild = gateway.wait_for("wild", "ejected");
    assert_eq!(wild["last_error"]["class"], "connection_lost", "{wild}");
    let message = wild["last_error"]["message"].as_str().unwrap();
    assert!(message.contains(reason), "{message}");
    let shown = String::from_utf8(gateway.cli(&["status"]).stdout).unwrap();
    assert!(shown.contains(reason), "{shown}");
    eventually("nothing is left behind", || marked(mark).is_empty());
    let steady = gateway.status("steady");
    assert_eq!(
        (&steady["pid"], &steady["errors"]),
        (&before["pid"], &json!(0))
    );
    wild
}

#[test]
fn sec_45_a_server_that_takes_too_much_memory_is_ended_alone() {
    let mark = fresh_mark("hog");
    // What has no line end is held whole.
    let deed = "head -c 300000000 /dev/zero | tail";
    let config = runaway(&mark, deed, "memory = \"100MiB\"");
    let wild = let_run(&mark, &config, "it used more than 100 MiB of memory");
    assert_eq!(wild["limits"]["memory_bytes_max"], 100 << 20);
}

#[test]
fn sec_45_a_server_that_forks_without_end_is_ended_alone() {
    let mark = fresh_mark("forks");
    let deed = "i=0; while [ $i -lt 300 ]; do setsid sleep 1000 & i=$((i+1)); done";
    let config = runaway(&mark, deed, "processes = 50");
    let wild = let_run(&mark, &config, "it had more than 50 processes");
    assert_eq!(wild["limits"]["processes_max"], 50);
}

#[test]
fn sec_45_a_server_that_fills_the_disk_is_ended_alone() {
    let mark = fresh_mark("filler");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("full");
    let of = file.display();
    let deed = format!("exec dd if=/dev/zero of={of} bs=1000000 count=40 2>/dev/null");
    let config = runaway(&mark, &deed, "file = \"10MiB\"");
    let wild = let_run(&mark, &config, "it wrote a larger file than it may");
    assert_eq!(wild["limits"]["file_bytes_max"], 10 << 20);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 10 << 20);
}
