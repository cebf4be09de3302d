//! The binary itself: exit codes, and the content of stdout and stderr.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::path::Path;
use std::process::Command;

/// Runs the binary in `directory` without the caller's environment.
fn run_bowline(directory: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_bowline"))
        .args(words)
        .current_dir(directory)
        .env_clear()
        .env("HOME", directory)
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Without a running gateway, commands exit 4 and name the command that starts one.
#[test]
fn commands_without_gateway_exit_4_with_hint() {
    let directory = tempfile::tempdir().unwrap();
    for words in [
        &["ls"][..],
        &["status"],
        &["call", "a.b"],
        &["logs"],
        &["stop", "a"],
    ] {
        let (code, stdout, stderr) = run_bowline(directory.path(), words);
        assert_eq!((code, stdout.as_str()), (Some(4), ""), "{words:?}");
        assert_eq!(
            stderr,
            "error[not_running]: no gateway is running\n  start one: bowline up\n"
        );
    }
    // Failed commands leave no file behind.
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// An argument error exits 2, in the text form and in the JSON form.
#[test]
fn argument_error_exits_2_as_text_and_json() {
    let directory = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = run_bowline(directory.path(), &["statsu"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("'status'"), "{stderr}");
    let (code, stdout, stderr) = run_bowline(directory.path(), &["--json", "statsu"]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert_eq!(stderr.lines().count(), 1);
    assert!(
        stderr.starts_with("{\"error\":{\"code\":\"usage\""),
        "{stderr}"
    );
}

/// The test server is a program beside the binary; where it is missing, the command names it.
#[test]
fn fixture_command_runs_program_beside_binary() {
    let directory = tempfile::tempdir().unwrap();
    let own = Path::new(env!("CARGO_BIN_EXE_bowline"));
    let copy = directory.path().join("bowline");
    std::fs::copy(own, &copy).unwrap();
    let run = || {
        let output = Command::new(&copy)
            .args(["fixture", "--toolset", "demo", "--help"])
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code(),
            text(output.stdout),
            text(output.stderr),
        )
    };
    let (code, stdout, stderr) = run();
    assert_eq!((code, stdout.as_str()), (Some(1), ""));
    let missing = directory.path().join("bowline-fixture");
    assert!(stderr.contains(missing.to_str().unwrap()), "{stderr}");
    assert!(
        stderr.contains("cargo build --release --package bowline-fixture"),
        "{stderr}"
    );
    std::os::unix::fs::symlink("/bin/echo", &missing).unwrap();
    let expected = "--toolset demo --help\n".to_owned();
    assert_eq!(run(), (Some(0), expected, String::new()));
}

#[test]
fn check_prints_frame_of_named_file() {
    let directory = tempfile::tempdir().unwrap();
    let (code, _, stderr) = run_bowline(directory.path(), &["check"]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.starts_with("error[config]: no config file was found\n"),
        "{stderr}"
    );
    std::fs::write(directory.path().join("bowline.toml"), "[gatewya]\n").unwrap();
    let named = ["check", "--config", "bowline.toml"];
    let (code, stdout, stderr) = run_bowline(directory.path(), &named);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert_eq!(
        stderr,
        "\
error[config]: unknown key `gatewya` in the file
 --> bowline.toml:1:2
  |
1 | [gatewya]
  |  ^^^^^^^ did you mean `gateway`?
  |
  = help: keys here: gateway, limits, telemetry, cache, journal, broker, secrets, secret_store, audit, \
         policy, roles, principals, tokens, context, profiles, clients, executors, executor, servers
"
    );
}

#[test]
fn help_and_version_exit_0() {
    let directory = tempfile::tempdir().unwrap();
    let (code, stdout, stderr) = run_bowline(directory.path(), &["--help"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    assert!(stdout.contains("\nStart\n  up "), "{stdout}");
    let (code, stdout, _) = run_bowline(directory.path(), &["version", "--json"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        stdout,
        format!(
            "{{\"v\":1,\"version\":\"{}\"}}\n",
            env!("CARGO_PKG_VERSION")
        )
    );
}
