//! What a server on stdio is owed and what it owes: its start, its end, and its calls.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Gateway, bowline, eventually, fixture, lives, server, signal};
use crate::props::{descendants, fresh_mark, mark_line, marked, opening, script, word};

#[test]
fn a_server_takes_command_args_env_and_cwd_from_its_entry() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let tools = r#"{"tools":[{"name":"who","inputSchema":{"type":"object"}}]}"#;
    let answer = r#"{"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"text","text":"%s"}]}}\n"#;
    let text = format!(
        "{}read -r l; printf '{answer}' \"$(pwd -P)|$1|$2|$GIVEN\"; read -r l\n",
        opening(tools)
    );
    let more = format!(
        "cwd = {}\nenv = {{ GIVEN = \"in the entry\" }}\n",
        json!(dir)
    );
    let config = script("who", &text, &["two words", "$HOME;*"]) + &more;
    let gateway = Gateway::up(&config);
    let said = gateway.session("/mcp").text("who__who", &json!({}));
    let expect = format!("{}|two words|$HOME;*|in the entry", dir.display());
    assert_eq!(said, expect);
}

#[test]
fn a_failed_start_names_the_server() {
    let missing = server("absent", "/nonexistent/program".as_ref(), &[]);
    let gateway = Gateway::up(&(missing + "restart = { budget = 0 }\n"));
    let status = gateway.wait_for("absent", "backoff");
    assert_eq!(status["last_error"]["class"], "connect_failed");
    let message = status["last_error"]["message"].as_str().unwrap();
    assert!(message.contains("/nonexistent/program"), "{message}");
    let answer = gateway.session("/mcp").call("absent__x", &json!({}));
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("`absent`"), "{message}");
    assert_eq!(word(&answer, "execution"), "not_started");
}

#[test]
fn a_flooded_stderr_never_blocks_the_server() {
    let config = fixture("loud", &["--fault", "stderr-flood=4"]);
    let gateway = Gateway::up(&config);
    let mut session = gateway.session("/mcp");
    assert_eq!(session.text("loud__echo", &json!({"message": "hi"})), "hi");
    // Four mebibytes are a little more than four thousand lines; the last ones were read too.
    let logs = gateway.api("/api/v1/logs?server=loud&after=4000&limit=5");
    let lines = logs["lines"].as_array().unwrap();
    assert!(!lines.is_empty(), "{logs}");
    for line in lines {
        let text = line["text"].as_str().unwrap();
        assert!(text.starts_with("fixture: flood line"), "{text}");
    }
}

#[test]
fn a_call_without_a_deadline_ends_at_the_backstop() {
    let gateway = Gateway::up(&(fixture("one", &[]) + "timeout = \"300ms\"\n"));
    gateway.wait_for("one", "ready");
    let mut session = gateway.session("/mcp");
    let started = Instant::now();
    let answer = session.call("one__slow", &json!({"ms": 600_000, "message": "never"}));
    assert_eq!(word(&answer, "code"), "timeout", "{answer}");
    assert_eq!(word(&answer, "execution"), "unknown");
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[test]
fn a_failed_write_fails_that_call_and_the_next_one_reconnects() {
    let dir = tempfile::tempdir().unwrap();
    let second = dir.path().join("second");
    let tools = r#"{"tools":[{"name":"do","inputSchema":{"type":"object"}}]}"#;
    let answer = r#"{"jsonrpc":"2.0","id":3,"result":{"content":[]}}"#;
    let text = format!(
        "{}if [ -e \"$1\" ]; then read -r l; echo '{answer}'; read -r l; \
         else : >\"$1\"; exec <&-; exec sleep 1000; fi\n",
        opening(tools)
    );
    let gateway = Gateway::up(&script("deaf", &text, &[second.to_str().unwrap()]));
    gateway.wait_for("deaf", "ready");
    // The server closes its input only after the list; without that there is no failed write.
    eventually("the input is closed", || second.exists());
    let pid = gateway.status("deaf")["pid"].as_u64().unwrap();
    eventually("it sleeps", || {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "sleep\n")
    });
    let mut session = gateway.session("/mcp");
    let failed = session.call("deaf__do", &json!({}));
    assert!(
        ["connection_lost", "send_failed"].contains(&word(&failed, "code")),
        "{failed}"
    );
    let next = session.call("deaf__do", &json!({}));
    assert!(next["result"].is_object(), "{next}");
    assert_eq!(gateway.status("deaf")["generation"], 2);
}

#[test]
fn a_stopped_server_leaves_no_process_behind() {
    let mark = fresh_mark("one-stopped");
    let gateway = Gateway::up(&(fixture("one", &["--fault", "forks"]) + &mark_line(&mark)));
    let mut session = gateway.session("/mcp");
    let started = descendants(&mut session, "one__descendants");
    let all = marked(&mark);
    assert!(started.iter().all(|pid| all.contains(pid)));
    assert_eq!(gateway.order("one", "stop")["server"]["state"], "stopped");
    assert_eq!(marked(&mark), Vec::<u32>::new());
    let answer = session.call("one__echo", &json!({"message": "hi"}));
    assert_eq!(word(&answer, "code"), "server_stopped", "{answer}");
    gateway.order("one", "start");
    assert_eq!(session.text("one__echo", &json!({"message": "hi"})), "hi");
}

#[test]
fn a_crash_loop_at_the_start_is_slowed_and_stays_within_its_budget() {
    let dir = tempfile::tempdir().unwrap();
    let starts = dir.path().join("starts");
    let args = [
        "-c",
        "echo start >>\"$1\"",
        "loop",
        starts.to_str().unwrap(),
    ];
    let restart = "restart = { budget = 3, window = \"5m\", backoff = \"100ms..400ms\" }\n";
    let begun = Instant::now();
    let gateway = Gateway::up(&(server("loop", "/bin/sh".as_ref(), &args) + restart));
    eventually("the budget is spent", || {
        let status = gateway.status("loop");
        status["retry_after_ms"].as_u64() > Some(60_000)
    });
    let took = begun.elapsed();
    let status = gateway.status("loop");
    // One start and three restarts, each later by at least three quarters of its backoff.
    assert_eq!(
        (&status["state"], &status["generation"]),
        (&json!("backoff"), &json!(4))
    );
    assert!(took >= Duration::from_millis(75 + 150 + 300), "{took:?}");
    for _ in 0..5 {
        let answer = gateway.session("/mcp").call("loop__x", &json!({}));
        assert_eq!(word(&answer, "code"), "start_failed", "{answer}");
    }
    // Each start makes one process, also where it is not known how the server speaks.
    assert_eq!(
        std::fs::read_to_string(&starts).unwrap(),
        "start\n".repeat(4)
    );
}

#[test]
fn grandchildren_die_with_the_server() {
    let gateway = Gateway::up(&fixture("one", &["--fault", "forks"]));
    let mut session = gateway.session("/mcp");
    let started = descendants(&mut session, "one__descendants");
    assert!(started.len() == 3 && started.iter().all(|pid| lives(*pid)));
    let pid = gateway.status("one")["pid"].as_u64().unwrap();
    signal(u32::try_from(pid).unwrap(), "KILL");
    eventually("all are gone", || !started.iter().any(|pid| lives(*pid)));
    let next = descendants(&mut session, "one__descendants");
    assert!(next.iter().all(|pid| !started.contains(pid)));
}

#[test]
fn a_child_sees_only_the_environment_it_was_granted() {
    let more =
        "inherit_env = [\"CARGO_MANIFEST_DIR\", \"BOWLINE_UNSET\"]\nenv = { GIVEN = \"1\" }\n";
    let gateway = Gateway::up(&(fixture("one", &[]) + more));
    let answer = gateway.session("/mcp").call("one__environment", &json!({}));
    let names = &answer["result"]["structuredContent"]["names"];
    let names: BTreeSet<&str> = names
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap())
        .collect();
    assert!(names.contains("GIVEN") && names.contains("CARGO_MANIFEST_DIR"));
    let usual = [
        "GIVEN",
        "CARGO_MANIFEST_DIR",
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TERM",
        "TZ",
        "TMPDIR",
        "XDG_RUNTIME_DIR",
        bowline_link::MARK_VARIABLE,
    ];
    let leaked: Vec<_> = names.iter().filter(|name| !usual.contains(name)).collect();
    assert!(leaked.is_empty(), "{leaked:?}");
    // The gateway itself had more to give away.
    assert!(std::env::vars().any(|(name, _)| !usual.contains(&name.as_str())));
}

#[test]
fn a_failure_says_whether_the_call_may_have_run() {
    let config = fixture("one", &[]) + "timeout = \"2s\"\n";
    let gateway = Gateway::up(&config);
    let mut session = gateway.session("/mcp");
    let slow = json!({"ms": 600_000, "message": "never"});
    for (tool, arguments, code, execution) in [
        ("one__none", json!({}), "tool_not_found", "not_started"),
        ("one__slow", slow, "timeout", "unknown"),
        (
            "one__crash",
            json!({"when": "before"}),
            "connection_lost",
            "unknown",
        ),
    ] {
        let answer = session.call(tool, &arguments);
        let told = (word(&answer, "code"), word(&answer, "execution"));
        assert_eq!(told, (code, execution), "{tool}: {answer}");
    }
    gateway.order("one", "stop");
    let answer = session.call("one__echo", &json!({"message": "hi"}));
    let told = (word(&answer, "code"), word(&answer, "execution"));
    assert_eq!(told, ("server_stopped", "not_started"), "{answer}");
}

#[test]
fn a_second_server_of_the_same_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bowline.toml");
    std::fs::write(&path, [fixture("one", &[]), fixture("one", &[])].concat()).unwrap();
    let state = dir.path().join("state");
    for command in ["check", "up"] {
        let output = Command::new(bowline())
            .arg(command)
            .arg("--config")
            .arg(&path)
            .arg("--state")
            .arg(&state)
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{command}: {told}");
        assert!(told.contains("bowline.toml:4:"), "{command}: {told}");
        assert!(told.contains("duplicate"), "{command}: {told}");
    }
    assert!(!state.join("run.json").exists());
}

#[test]
fn a_cancelled_call_frees_its_waiter_and_tells_the_server() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut session = gateway.session("/mcp");
    let slow = json!({"ms": 600_000, "message": "never"});
    let busy = |count: u64| gateway.status("one")["in_flight"] == count;
    let mut caller = session.twin();
    caller.send_call(70, "one__slow", &slow);
    eventually("the call is under way", || busy(1));
    let params = json!({"requestId": 70, "reason": "enough"});
    let cancel = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params,
    });
    assert_eq!(session.post(&cancel).status, 202);
    eventually("the waiter is free", || busy(0));
    let answer = caller.http.read().json();
    assert_eq!(word(&answer, "code"), "cancelled", "{answer}");
    let mut cancelled = |count: u64| {
        eventually("the server was told", || {
            let answer = session.call("one__counter", &json!({}));
            answer["result"]["structuredContent"]["slow_cancelled"] == count
        });
    };
    cancelled(1);
    // A caller that goes away has cancelled as well.
    let mut gone = caller.twin();
    gone.send_call(71, "one__slow", &slow);
    eventually("the call is under way", || busy(1));
    drop(gone);
    eventually("the waiter is free", || busy(0));
    cancelled(2);
}

#[test]
fn a_slow_call_delays_no_other_call_on_the_same_server() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut slow = gateway.session("/mcp");
    slow.send_call(1, "one__slow", &json!({"ms": 600_000, "message": "never"}));
    eventually("the slow call is under way", || {
        gateway.status("one")["in_flight"] == 1
    });
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut session = gateway.session("/mcp");
                for _ in 0..25 {
                    assert_eq!(session.text("one__echo", &json!({"message": "hi"})), "hi");
                }
            });
        }
    });
    assert_eq!(gateway.status("one")["in_flight"], 1);
}
