//! Stdio servers: start, end, and calls.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, bowline_binary, fixture_config, server_config};
use bowline_testkit::{is_alive, send_signal, wait_process_exit, wait_until};
use serde_json::json;

use crate::test_servers::{
    error_field, fork_descendants, fresh_mark, mark_config_line, marked_processes, shell_handshake,
    shell_server,
};

#[test]
fn server_entry_sets_command_args_env_cwd() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let tools = r#"{"tools":[{"name":"who","inputSchema":{"type":"object"}}]}"#;
    let answer = r#"{"jsonrpc":"2.0","id":3,"result":{"content":[{"type":"text","text":"%s"}]}}\n"#;
    let text = format!(
        "{}read -r l; printf '{answer}' \"$(pwd -P)|$1|$2|$GIVEN\"; read -r l\n",
        shell_handshake(tools)
    );
    let more = format!(
        "cwd = {}\nenv = {{ GIVEN = \"in the entry\" }}\n",
        json!(dir)
    );
    let config = shell_server("who", &text, &["two words", "$HOME;*"]) + &more;
    let gateway = Gateway::start(&config);
    let said = gateway
        .open_session("/mcp")
        .call_text("who__who", &json!({}));
    let expect = format!("{}|two words|$HOME;*|in the entry", dir.display());
    assert_eq!(said, expect);
}

#[test]
fn failed_start_names_server() {
    let missing = server_config("absent", "/nonexistent/program".as_ref(), &[]);
    let gateway = Gateway::start(&(missing + "restart = { budget = 0 }\n"));
    let status = gateway.wait_for_state("absent", "backoff");
    assert_eq!(status["last_error"]["class"], "connect_failed");
    let message = status["last_error"]["message"].as_str().unwrap();
    assert!(message.contains("/nonexistent/program"), "{message}");
    let answer = gateway.open_session("/mcp").call("absent__x", &json!({}));
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("`absent`"), "{message}");
    assert_eq!(error_field(&answer, "execution"), "not_started");
}

#[test]
fn flooded_stderr_never_blocks_server() {
    let config = fixture_config("loud", &["--fault", "stderr-flood=4"]);
    let gateway = Gateway::start(&config);
    let mut session = gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("loud__echo", &json!({"message": "hi"})),
        "hi"
    );
    // Four mebibytes are slightly more than four thousand lines; the last lines were read too.
    let logs = gateway.get_api("/api/v1/logs?server=loud&after=4000&limit=5");
    let lines = logs["lines"].as_array().unwrap();
    assert!(!lines.is_empty(), "{logs}");
    for line in lines {
        let text = line["text"].as_str().unwrap();
        assert!(text.starts_with("fixture: flood line"), "{text}");
    }
}

#[test]
fn call_without_deadline_ends_at_backstop() {
    let gateway = Gateway::start(&(fixture_config("one", &[]) + "timeout = \"300ms\"\n"));
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session("/mcp");
    let started = Instant::now();
    let answer = session.call("one__slow", &json!({"ms": 600_000, "message": "never"}));
    assert_eq!(error_field(&answer, "code"), "timeout", "{answer}");
    assert_eq!(error_field(&answer, "execution"), "unknown");
    let took = started.elapsed();
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[test]
fn failed_write_fails_one_call_and_reconnects() {
    let dir = tempfile::tempdir().unwrap();
    let second = dir.path().join("second");
    let tools = r#"{"tools":[{"name":"do","inputSchema":{"type":"object"}}]}"#;
    let answer = r#"{"jsonrpc":"2.0","id":3,"result":{"content":[]}}"#;
    let text = format!(
        "{}if [ -e \"$1\" ]; then read -r l; echo '{answer}'; read -r l; \
         else : >\"$1\"; exec <&-; exec sleep 1000; fi\n",
        shell_handshake(tools)
    );
    let gateway = Gateway::start(&shell_server("deaf", &text, &[second.to_str().unwrap()]));
    gateway.wait_for_state("deaf", "ready");
    // The server closes its input only after the list; otherwise no write would fail.
    wait_until("the input is closed", || second.exists());
    let pid = gateway.server_status("deaf")["pid"].as_u64().unwrap();
    wait_until("it sleeps", || {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm == "sleep\n")
    });
    let mut session = gateway.open_session("/mcp");
    let failed = session.call("deaf__do", &json!({}));
    assert!(
        ["connection_lost", "send_failed"].contains(&error_field(&failed, "code")),
        "{failed}"
    );
    let next = session.call("deaf__do", &json!({}));
    assert!(next["result"].is_object(), "{next}");
    assert_eq!(gateway.server_status("deaf")["generation"], 2);
}

#[test]
fn stopped_server_leaves_no_process() {
    let mark = fresh_mark("one-stopped");
    let gateway =
        Gateway::start(&(fixture_config("one", &["--fault", "forks"]) + &mark_config_line(&mark)));
    let mut session = gateway.open_session("/mcp");
    let started = fork_descendants(&mut session, "one__descendants");
    let all = marked_processes(&mark);
    assert!(started.iter().all(|pid| all.contains(pid)));
    assert_eq!(
        gateway.control_server("one", "stop")["server"]["state"],
        "stopped"
    );
    assert_eq!(marked_processes(&mark), Vec::<u32>::new());
    let answer = session.call("one__echo", &json!({"message": "hi"}));
    assert_eq!(error_field(&answer, "code"), "server_stopped", "{answer}");
    gateway.control_server("one", "start");
    assert_eq!(
        session.call_text("one__echo", &json!({"message": "hi"})),
        "hi"
    );
}

#[test]
fn start_crash_loop_stays_within_budget() {
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
    let gateway = Gateway::start(&(server_config("loop", "/bin/sh".as_ref(), &args) + restart));
    wait_until("the budget is spent", || {
        let status = gateway.server_status("loop");
        status["retry_after_ms"].as_u64() > Some(60_000)
    });
    let took = begun.elapsed();
    let status = gateway.server_status("loop");
    // One start and three restarts, each delayed by at least three quarters of the backoff.
    assert_eq!(
        (&status["state"], &status["generation"]),
        (&json!("backoff"), &json!(4))
    );
    assert!(took >= Duration::from_millis(75 + 150 + 300), "{took:?}");
    for _ in 0..5 {
        let answer = gateway.open_session("/mcp").call("loop__x", &json!({}));
        assert_eq!(error_field(&answer, "code"), "start_failed", "{answer}");
    }
    // Each start makes one process, also if the era is unknown.
    assert_eq!(
        std::fs::read_to_string(&starts).unwrap(),
        "start\n".repeat(4)
    );
}

#[test]
fn grandchildren_die_with_server() {
    let gateway = Gateway::start(&fixture_config("one", &["--fault", "forks"]));
    let mut session = gateway.open_session("/mcp");
    let started = fork_descendants(&mut session, "one__descendants");
    assert!(started.len() == 3 && started.iter().all(|pid| is_alive(*pid)));
    let pid = gateway.server_status("one")["pid"].as_u64().unwrap();
    send_signal(u32::try_from(pid).unwrap(), "KILL");
    for pid in &started {
        wait_process_exit("the end of the grandchildren", *pid);
    }
    let next = fork_descendants(&mut session, "one__descendants");
    assert!(next.iter().all(|pid| !started.contains(pid)));
}

#[test]
fn child_sees_only_granted_environment() {
    let more =
        "inherit_env = [\"CARGO_MANIFEST_DIR\", \"BOWLINE_UNSET\"]\nenv = { GIVEN = \"1\" }\n";
    let gateway = Gateway::start(&(fixture_config("one", &[]) + more));
    let answer = gateway
        .open_session("/mcp")
        .call("one__environment", &json!({}));
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
    // The gateway had more variables to leak.
    assert!(std::env::vars().any(|(name, _)| !usual.contains(&name.as_str())));
}

#[test]
fn failure_says_if_call_may_have_run() {
    let config = fixture_config("one", &[]) + "timeout = \"2s\"\n";
    let gateway = Gateway::start(&config);
    let mut session = gateway.open_session("/mcp");
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
        let told = (
            error_field(&answer, "code"),
            error_field(&answer, "execution"),
        );
        assert_eq!(told, (code, execution), "{tool}: {answer}");
    }
    gateway.control_server("one", "stop");
    let answer = session.call("one__echo", &json!({"message": "hi"}));
    let told = (
        error_field(&answer, "code"),
        error_field(&answer, "execution"),
    );
    assert_eq!(told, ("server_stopped", "not_started"), "{answer}");
}

#[test]
fn second_server_of_same_name_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bowline.toml");
    std::fs::write(
        &path,
        [fixture_config("one", &[]), fixture_config("one", &[])].concat(),
    )
    .unwrap();
    let state = dir.path().join("state");
    for command in ["check", "up"] {
        let output = Command::new(bowline_binary())
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
fn cancelled_call_is_freed_and_notified() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session("/mcp");
    let slow = json!({"ms": 600_000, "message": "never"});
    let busy = |count: u64| gateway.server_status("one")["in_flight"] == count;
    let mut caller = session.clone_on_new_connection();
    caller.send_call(70, "one__slow", &slow);
    wait_until("the call is under way", || busy(1));
    let params = json!({"requestId": 70, "reason": "enough"});
    let cancel = json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params,
    });
    assert_eq!(session.post(&cancel).status, 202);
    wait_until("the waiter is free", || busy(0));
    let answer = caller.http.read_response().json();
    assert_eq!(error_field(&answer, "code"), "cancelled", "{answer}");
    let mut cancelled = |count: u64| {
        wait_until("the server was told", || {
            let answer = session.call("one__counter", &json!({}));
            answer["result"]["structuredContent"]["slow_cancelled"] == count
        });
    };
    cancelled(1);
    // A departed caller counts as a cancellation.
    let mut gone = caller.clone_on_new_connection();
    gone.send_call(71, "one__slow", &slow);
    wait_until("the call is under way", || busy(1));
    drop(gone);
    wait_until("the waiter is free", || busy(0));
    cancelled(2);
}

#[test]
fn slow_call_delays_no_other_call() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut slow = gateway.open_session("/mcp");
    slow.send_call(1, "one__slow", &json!({"ms": 600_000, "message": "never"}));
    wait_until("the slow call is under way", || {
        gateway.server_status("one")["in_flight"] == 1
    });
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut session = gateway.open_session("/mcp");
                for _ in 0..25 {
                    assert_eq!(
                        session.call_text("one__echo", &json!({"message": "hi"})),
                        "hi"
                    );
                }
            });
        }
    });
    assert_eq!(gateway.server_status("one")["in_flight"], 1);
}
