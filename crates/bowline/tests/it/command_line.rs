//! The command line for people and programs: messages and exit codes.

use std::process::{Command, Output, Stdio};

use bowline_testkit::gateway::{Gateway, bowline_binary, fixture_config};
use serde_json::{Value, json};
use tempfile::TempDir;

fn stdout_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Parses the JSON error of a command.
fn stderr_json(output: &Output) -> Value {
    let text = if output.stdout.is_empty() {
        stderr_text(output)
    } else {
        stdout_text(output)
    };
    let line = text.lines().last().unwrap_or_default();
    let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {text}"));
    value["error"].clone()
}

#[test]
fn call_exit_code_matches_outcome() {
    let gateway = Gateway::start(&fixture_config("files", &[]));
    gateway.wait_for_state("files", "ready");
    let output = gateway.run_cli(&["call", "files.add", "a=2", "b=3"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr_text(&output));
    assert_eq!(stdout_text(&output).trim(), "5");

    let output = gateway.run_cli(&["call", "files.fail", "message=on purpose"]);
    assert_eq!(output.status.code(), Some(5), "{}", stderr_text(&output));
    assert!(stdout_text(&output).contains("on purpose"));

    let output = gateway.run_cli(&["call", "fiels.add", "a=2", "b=3"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr_text(&output));
    let told = stderr_text(&output);
    assert!(told.contains("did you mean files?"), "{told}");
    assert!(told.contains("bowline call files.add a=2 b=3"), "{told}");

    let output = gateway.run_cli(&["call", "files.ad", "a=2", "b=3"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr_text(&output));
    assert!(
        stderr_text(&output).contains("did you mean add?"),
        "{}",
        stderr_text(&output)
    );

    let output = gateway.run_cli(&["stop", "files"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr_text(&output));
    let output = gateway.run_cli(&["call", "files.add", "--args", r#"{"a":2,"b":3}"#]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr_text(&output));
    assert!(
        stderr_text(&output).contains("bowline start files"),
        "{}",
        stderr_text(&output)
    );
}

#[test]
fn json_output_is_one_object() {
    let gateway = Gateway::start(&fixture_config("files", &[]));
    gateway.wait_for_state("files", "ready");
    for (args, member) in [
        (&["status"][..], "servers"),
        (&["ls"], "servers"),
        (&["ls", "files"], "tools"),
        (&["call", "files.add", "a=2", "b=3"], "result"),
        (&["call", "files.fail", "message=no"], "result"),
        (&["logs", "files"], "lines"),
        (&["restart", "files"], "server"),
    ] {
        let output = gateway.run_cli(&[args, &["--json"]].concat());
        let text = stdout_text(&output);
        for line in text.lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["v"], 1, "{args:?}: {line}");
            assert!(!value[member].is_null(), "{args:?}: {line}");
        }
        let tool_error = args.contains(&"files.fail");
        let code = if tool_error { 5 } else { 0 };
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    }
    let output = gateway.run_cli(&["call", "fiels.add", "a=2", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let error = stderr_json(&output);
    assert_eq!(error["code"], "server_not_found", "{error}");
    assert_eq!(error["suggestions"][0], "files", "{error}");
}

#[test]
fn commands_without_gateway_name_start_command() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("state");
    let run = |args: &[&str]| {
        Command::new(bowline_binary())
            .arg("--state")
            .arg(&state)
            .args(args)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let up = format!("bowline up --state {}", state.display());
    for args in [
        &["status"][..],
        &["ls"],
        &["call", "a.b", "k=v"],
        &["stop", "a"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(4), "{args:?}");
        assert!(
            stderr_text(&output).contains(&up),
            "{args:?}: {}",
            stderr_text(&output)
        );
    }
    let error = stderr_json(&run(&["call", "a.b", "k=v", "--json"]));
    assert_eq!(error["code"], "not_running", "{error}");
}

#[test]
fn config_typo_is_shown_with_line_and_caret() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("bowline.toml");
    std::fs::write(&path, fixture_config("a", &[]) + "timout = \"5s\"\n").unwrap();
    let run = |args: &[&str]| {
        Command::new(bowline_binary())
            .args(args)
            .arg("--config")
            .arg(&path)
            .output()
            .unwrap()
    };
    let output = run(&["check"]);
    let told = stderr_text(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    for part in ["bowline.toml:4:1", "timout = \"5s\"", "^^^^^^", "`timeout`"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let error = stderr_json(&run(&["check", "--json"]));
    assert_eq!(error["problems"][0]["line"], 4, "{error}");
    std::fs::write(&path, fixture_config("a", &[])).unwrap();
    assert_eq!(run(&["check"]).status.code(), Some(0));
}

#[test]
fn second_gateway_names_running_one() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let output = gateway.run_cli(&[
        "up",
        "--listen",
        "127.0.0.1:0",
        "--config",
        gateway.dir.path().join("bowline.toml").to_str().unwrap(),
    ]);
    let told = stderr_text(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains(&gateway.pid().to_string()), "{told}");
    let mut session = gateway.open_session("/mcp");
    assert_eq!(
        session.call_text("one__echo", &json!({"message": "on"})),
        "on"
    );
}

#[test]
fn demo_gateway_answers_printed_call() {
    let gateway = Gateway::start_with_args("", &["--demo"]);
    let added = gateway.run_cli(&["call", "demo.add", "a=2", "b=3"]);
    assert_eq!(String::from_utf8(added.stdout).unwrap(), "5\n");
    for note in ["one", "two"] {
        let noted = gateway.run_cli(&["call", "demo.note_add", &format!("text={note}")]);
        assert_eq!(noted.status.code(), Some(0), "{noted:?}");
    }
    let listed = gateway.run_cli(&["call", "demo.note_list"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("one") && listed.contains("two"), "{listed}");
    let refused = gateway.run_cli(&["call", "demo.dice", "sides=1"]);
    assert_eq!(refused.status.code(), Some(5), "{refused:?}");
}
