//! A journal that cannot be opened: the error and the remedy.

use std::process::{Command, Output, Stdio};

use bowline_testkit::gateway::{Gateway, bowline_binary, fixture_config};

/// Tries to start a gateway on the state of another.
fn try_start(gateway: &Gateway) -> Output {
    Command::new(bowline_binary())
        .args(["up", "--listen", "127.0.0.1:0"])
        .arg("--config")
        .arg(gateway.dir.path().join("bowline.toml"))
        .arg("--state")
        .arg(gateway.state_dir())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn assert_start_refused(gateway: &Gateway, words: &[&str]) {
    let output = try_start(gateway);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// A journal that cannot be trusted keeps the gateway from starting, and the error names the
/// remedy.
#[test]
fn untrusted_journal_blocks_start_with_remedy() {
    let mut gateway = Gateway::start(&fixture_config("one", &[]));
    assert_start_refused(&gateway, &["already running"]);
    assert!(gateway.stop());
    let file = gateway.state_dir().join("state.db");
    let whole = std::fs::read(&file).unwrap();
    assert!(!whole.is_empty());
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    // The format version in the file header: an unknown later one.
    let mut newer = whole.clone();
    newer[60..64].copy_from_slice(&999_u32.to_be_bytes());
    std::fs::write(&file, &newer).unwrap();
    assert_start_refused(
        &gateway,
        &["written by a newer version", "its own --state DIR"],
    );
    std::fs::write(
        &file,
        b"not a journal at all, though long enough to be looked at",
    )
    .unwrap();
    assert_start_refused(
        &gateway,
        &[
            "cannot be opened",
            "state.db.damaged starts with an empty outbox",
        ],
    );
    std::fs::write(&file, &whole).unwrap();
    gateway.restart();
    assert!(gateway.stop());
}
