//! The command line as people and programs meet it: words and exit codes.

use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Gateway, bowline, fixture};

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The error of a command that was asked for JSON.
fn json_error(output: &Output) -> Value {
    let text = if output.stdout.is_empty() {
        err(output)
    } else {
        out(output)
    };
    let line = text.lines().last().unwrap_or_default();
    let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {text}"));
    value["error"].clone()
}

#[test]
fn a_call_exits_as_it_ended() {
    let gateway = Gateway::up(&fixture("files", &[]));
    gateway.wait_for("files", "ready");
    let output = gateway.cli(&["call", "files.add", "a=2", "b=3"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert_eq!(out(&output).trim(), "5");

    let output = gateway.cli(&["call", "files.fail", "message=on purpose"]);
    assert_eq!(output.status.code(), Some(5), "{}", err(&output));
    assert!(out(&output).contains("on purpose"));

    let output = gateway.cli(&["call", "fiels.add", "a=2", "b=3"]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    let told = err(&output);
    assert!(told.contains("did you mean files?"), "{told}");
    assert!(told.contains("bowline call files.add a=2 b=3"), "{told}");

    let output = gateway.cli(&["call", "files.ad", "a=2", "b=3"]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(
        err(&output).contains("did you mean add?"),
        "{}",
        err(&output)
    );

    let output = gateway.cli(&["stop", "files"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let output = gateway.cli(&["call", "files.add", "--args", r#"{"a":2,"b":3}"#]);
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(
        err(&output).contains("bowline start files"),
        "{}",
        err(&output)
    );
}

#[test]
fn json_forms_are_one_object_on_stdout() {
    let gateway = Gateway::up(&fixture("files", &[]));
    gateway.wait_for("files", "ready");
    for (args, member) in [
        (&["status"][..], "servers"),
        (&["ls"], "servers"),
        (&["ls", "files"], "tools"),
        (&["call", "files.add", "a=2", "b=3"], "result"),
        (&["call", "files.fail", "message=no"], "result"),
        (&["logs", "files"], "lines"),
        (&["restart", "files"], "server"),
    ] {
        let output = gateway.cli(&[args, &["--json"]].concat());
        let text = out(&output);
        for line in text.lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["v"], 1, "{args:?}: {line}");
            assert!(!value[member].is_null(), "{args:?}: {line}");
        }
        let tool_error = args.contains(&"files.fail");
        let code = if tool_error { 5 } else { 0 };
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
    }
    let output = gateway.cli(&["call", "fiels.add", "a=2", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let error = json_error(&output);
    assert_eq!(error["code"], "server_not_found", "{error}");
    assert_eq!(error["suggestions"][0], "files", "{error}");
}

#[test]
fn without_a_gateway_the_command_that_starts_one_is_told() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("state");
    let run = |args: &[&str]| {
        Command::new(bowline())
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
        assert!(err(&output).contains(&up), "{args:?}: {}", err(&output));
    }
    let error = json_error(&run(&["call", "a.b", "k=v", "--json"]));
    assert_eq!(error["code"], "not_running", "{error}");
}

#[test]
fn a_typo_in_the_config_is_shown_with_its_line_and_a_caret() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("bowline.toml");
    std::fs::write(&path, fixture("a", &[]) + "timout = \"5s\"\n").unwrap();
    let run = |args: &[&str]| {
        Command::new(bowline())
            .args(args)
            .arg("--config")
            .arg(&path)
            .output()
            .unwrap()
    };
    let output = run(&["check"]);
    let told = err(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    for part in ["bowline.toml:4:1", "timout = \"5s\"", "^^^^^^", "`timeout`"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let error = json_error(&run(&["check", "--json"]));
    assert_eq!(error["problems"][0]["line"], 4, "{error}");
    std::fs::write(&path, fixture("a", &[])).unwrap();
    assert_eq!(run(&["check"]).status.code(), Some(0));
}

#[test]
fn a_second_gateway_on_one_state_names_the_running_one() {
    let gateway = Gateway::up(&fixture("one", &[]));
    let output = gateway.cli(&[
        "up",
        "--listen",
        "127.0.0.1:0",
        "--config",
        gateway.dir.path().join("bowline.toml").to_str().unwrap(),
    ]);
    let told = err(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains(&gateway.pid().to_string()), "{told}");
    let mut session = gateway.session("/mcp");
    assert_eq!(session.text("one__echo", &json!({"message": "on"})), "on");
}
