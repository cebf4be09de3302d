//! Runaway servers are ended with a reason, and healthy servers are unaffected.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use bowline_testkit::gateway::{Gateway, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use crate::test_servers::{
    error_field, fresh_mark, mark_config_line, marked_processes, shell_handshake, shell_server,
};

/// A server with a valid handshake and a single tool that runs `deed`.
fn runaway_server(mark: &str, deed: &str, limits: &str) -> String {
    let tools = r#"{"tools":[{"name":"go","inputSchema":{"type":"object"}}]}"#;
    let text = format!("{}read -r l; {deed}; read -r l\n", shell_handshake(tools));
    let more = format!("limits = {{ {limits} }}\nrestart = {{ budget = 0 }}\n");
    shell_server("wild", &text, &[]) + &mark_config_line(mark) + &more
}

/// Runs the runaway server beside a server in use, and returns the final status.
fn run_to_end(mark: &str, config: &str, reason: &str) -> Value {
    let gateway = Gateway::start(&(config.to_owned() + &fixture_config("steady", &[])));
    gateway.wait_for_state("wild", "ready");
    let before = gateway.wait_for_state("steady", "ready");
    let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let answer = thread::scope(|scope| {
        let mut steady = gateway.open_session("/mcp");
        let (stop, calls) = (&stop, &calls);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                let said = steady.call_text("steady__echo", &json!({"message": "still here"}));
                assert_eq!(said, "still here");
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
        wait_until("the other server is being used", || {
            calls.load(Ordering::Relaxed) > 10
        });
        let answer = gateway.open_session("/mcp").call("wild__go", &json!({}));
        let then = calls.load(Ordering::Relaxed);
        wait_until("the other server is used on", || {
            calls.load(Ordering::Relaxed) > then + 10
        });
        stop.store(true, Ordering::Relaxed);
        answer
    });
    assert_eq!(error_field(&answer, "code"), "connection_lost", "{answer}");
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains(reason), "{message}");

    let wild = gateway.wait_for_state("wild", "ejected");
    assert_eq!(wild["last_error"]["class"], "connection_lost", "{wild}");
    let message = wild["last_error"]["message"].as_str().unwrap();
    assert!(message.contains(reason), "{message}");
    let shown = String::from_utf8(gateway.run_cli(&["status"]).stdout).unwrap();
    assert!(shown.contains(reason), "{shown}");
    wait_until("nothing is left behind", || {
        marked_processes(mark).is_empty()
    });
    let steady = gateway.server_status("steady");
    assert_eq!(
        (&steady["pid"], &steady["errors"]),
        (&before["pid"], &json!(0))
    );
    wild
}

#[test]
fn sec_45_memory_hog_is_ended_alone() {
    let mark = fresh_mark("hog");
    // Output without a line end is buffered whole.
    let deed = "head -c 300000000 /dev/zero | tail";
    let config = runaway_server(&mark, deed, "memory = \"100MiB\"");
    let wild = run_to_end(&mark, &config, "it used more than 100 MiB of memory");
    assert_eq!(wild["limits"]["memory_bytes_max"], 100 << 20);
}

#[test]
fn sec_45_fork_bomb_is_ended_alone() {
    let mark = fresh_mark("forks");
    let deed = "i=0; while [ $i -lt 300 ]; do setsid sleep 1000 & i=$((i+1)); done";
    let config = runaway_server(&mark, deed, "processes = 50");
    let wild = run_to_end(&mark, &config, "it had more than 50 processes");
    assert_eq!(wild["limits"]["processes_max"], 50);
}

#[test]
fn sec_45_disk_filler_is_ended_alone() {
    let mark = fresh_mark("filler");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("full");
    let of = file.display();
    let deed = format!("exec dd if=/dev/zero of={of} bs=1000000 count=40 2>/dev/null");
    let config = runaway_server(&mark, &deed, "file = \"10MiB\"");
    let wild = run_to_end(&mark, &config, "it wrote a larger file than it may");
    assert_eq!(wild["limits"]["file_bytes_max"], 10 << 20);
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 10 << 20);
}
