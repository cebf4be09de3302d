//! A journal that cannot be opened: what people are told, and what to do about it.

use std::process::{Command, Output, Stdio};

use crate::harness::{Gateway, bowline, fixture};

/// Tries to start a gateway on the state of another.
fn try_up(gateway: &Gateway) -> Output {
    Command::new(bowline())
        .args(["up", "--listen", "127.0.0.1:0"])
        .arg("--config")
        .arg(gateway.dir.path().join("bowline.toml"))
        .arg("--state")
        .arg(gateway.state())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn refused(gateway: &Gateway, words: &[&str]) {
    let output = try_up(gateway);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
}

#[test]
fn a_journal_that_cannot_be_trusted_keeps_the_gateway_from_starting_and_says_the_way_out() {
    let mut gateway = Gateway::up(&fixture("one", &[]));
    refused(&gateway, &["already running"]);
    assert!(gateway.stop());
    let file = gateway.state().join("state.db");
    let whole = std::fs::read(&file).unwrap();
    assert!(!whole.is_empty());
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    // The format stands in the head of the file: one that nobody knows yet.
    let mut newer = whole.clone();
    newer[60..64].copy_from_slice(&999_u32.to_be_bytes());
    std::fs::write(&file, &newer).unwrap();
    refused(
        &gateway,
        &["written by a newer version", "its own --state DIR"],
    );
    std::fs::write(
        &file,
        b"not a journal at all, though long enough to be looked at",
    )
    .unwrap();
    refused(
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
