//! What `audit verify` says of files that somebody changed.

use crate::peers::left_out;
use std::path::PathBuf;

use super::*;

/// The one file of rows of a gateway that is down.
fn file_of(gateway: &Gateway) -> PathBuf {
    gateway.state().join("audit/audit-000000000001.db")
}

/// Stops a gateway that made some calls.
fn stopped() -> Gateway {
    let mut gateway = up("");
    let mut session = gateway.session("/mcp");
    for _ in 0..40 {
        call(&mut session, "one__echo");
    }
    assert!(gateway.stop());
    gateway
}

/// Replaces bytes in the file of rows, as somebody with an editor would.
fn replace(gateway: &Gateway, old: &str, new: &str) {
    assert_eq!(old.len(), new.len());
    let path = file_of(gateway);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes
        .windows(old.len())
        .position(|part| part == old.as_bytes())
        .unwrap();
    bytes[at..at + old.len()].copy_from_slice(new.as_bytes());
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn sec_50_a_row_that_was_edited_is_named_and_the_exit_code_is_1() {
    let mut gateway = stopped();
    let (whole, code) = verdict(&gateway);
    assert_eq!((&whole["ok"], code), (&json!(true), Some(0)), "{whole}");
    let row = rows(&gateway)[20].clone();
    let seq = row["seq"].as_u64().unwrap();
    replace(
        &gateway,
        &format!("{{\"seq\":{seq},\"at_ms\":1"),
        &format!("{{\"seq\":{seq},\"at_ms\":2"),
    );
    let (broken, code) = verdict(&gateway);
    assert_eq!(code, Some(1));
    let named = json!({"seq": seq, "reason": "changed", "file": "audit-000000000001.db"});
    assert_eq!(broken["broken"], named);
    let told = gateway.cli(&["audit", "verify"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains(&format!("row {seq}: changed")), "{told}");
    // A gateway goes on behind it, and the damage stays visible.
    gateway.restart();
    gateway.wait_for("one", "ready");
    call(&mut gateway.session("/mcp"), "one__echo");
    let seen = gateway.api("/api/v1/audit/verify");
    assert_eq!(seen["broken"], named, "{seen}");
}

#[test]
fn sec_50_rows_that_were_cut_off_are_named_and_a_noted_head_proves_more() {
    let mut gateway = stopped();
    let (whole, _) = verdict(&gateway);
    let head = format!(
        "{}:{}",
        whole["head"]["seq"],
        whole["head"]["hash"].as_str().unwrap()
    );
    let expect = |gateway: &Gateway, head: &str| {
        gateway
            .cli(&["audit", "verify", "--expect", head])
            .status
            .code()
    };
    assert_eq!(expect(&gateway, &head), Some(0));
    assert_eq!(expect(&gateway, "nonsense"), Some(2));
    // The files of an earlier day, put back together with their head.
    let audit = gateway.state().join("audit");
    let copy = gateway.dir.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&audit).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_file() {
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
    }
    gateway.restart();
    gateway.wait_for("one", "ready");
    call(&mut gateway.session("/mcp"), "one__echo");
    assert!(gateway.stop());
    let (longer, _) = verdict(&gateway);
    let later = format!(
        "{}:{}",
        longer["head"]["seq"],
        longer["head"]["hash"].as_str().unwrap()
    );
    assert_eq!(expect(&gateway, &later), Some(0));
    std::fs::copy(copy.join("audit-000000000001.db"), file_of(&gateway)).unwrap();
    let (cut, code) = verdict(&gateway);
    assert_eq!(
        (&cut["broken"]["reason"], code),
        (&json!("truncated"), Some(1)),
        "{cut}"
    );
    assert_eq!(
        cut["broken"]["seq"],
        whole["head"]["seq"].as_u64().unwrap() + 1
    );
    std::fs::copy(copy.join("head"), audit.join("head")).unwrap();
    assert_eq!(
        verdict(&gateway).1,
        Some(0),
        "whoever writes all files forges all"
    );
    assert_eq!(
        expect(&gateway, &later),
        Some(1),
        "but not what was noted elsewhere"
    );
}

#[test]
fn a_trail_that_cannot_be_written_degrades_the_gateway_and_holds_up_nobody() {
    let gateway = up("");
    let mut session = gateway.session("/mcp");
    call(&mut session, "one__echo");
    let page = gateway.api("/api/v1/audit");
    assert!(page["rows"].as_array().unwrap().len() >= 3, "{page}");
    let other = std::process::Command::new("sqlite3")
        .arg(file_of(&gateway))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut other) = other else {
        return left_out("another reader of the trail", "sqlite3 is not here");
    };
    let mut say = other.stdin.take().unwrap();
    let mut hear = std::io::BufReader::new(other.stdout.take().unwrap());
    std::io::Write::write_all(&mut say, b"BEGIN IMMEDIATE; SELECT 'held';\n").unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut hear, &mut line).unwrap();
    assert_eq!(line, "held\n");
    let token = format!("Bearer {}", gateway.token);
    let headers = [("Authorization", &token[..])];
    let ready = || {
        Http::connect(gateway.address)
            .get("/readyz", &headers)
            .json()
    };
    eventually("rows are lost", || {
        call(&mut session, "one__echo");
        ready()["audit"] == "degraded"
    });
    assert_eq!(ready()["status"], "degraded");
    let status = gateway.api("/api/v1/status")["audit"].clone();
    assert_eq!(status["state"], "degraded", "{status}");
    drop(say);
    other.wait().unwrap();
    eventually("rows are written again", || ready()["status"] == "ok");
    let (verdict, code) = verdict(&gateway);
    assert_eq!((&verdict["ok"], code), (&json!(true), Some(0)), "{verdict}");
    assert_eq!(verdict["gaps"], 1);
    assert!(verdict["lost"].as_u64() > Some(0));
}

#[test]
fn sec_50_verify_of_missing_trail_exits_1() {
    let gateway = stopped();
    let audit = gateway.state().join("audit");
    // One ring at a time: each is missed by itself.
    std::fs::remove_dir_all(audit.join("denials")).unwrap();
    let (seen, code) = verdict(&gateway);
    assert_eq!((&seen["ok"], code), (&json!(false), Some(1)), "{seen}");
    assert_eq!(seen["broken"], Value::Null, "{seen}");
    let missing = json!({"seq": 1, "reason": "missing", "file": null});
    assert_eq!(seen["denials"]["broken"], missing, "{seen}");
    std::fs::remove_dir_all(&audit).unwrap();
    let (seen, code) = verdict(&gateway);
    assert_eq!((&seen["ok"], code), (&json!(false), Some(1)), "{seen}");
    assert_eq!(seen["broken"], missing, "{seen}");
    let told = gateway.cli(&["audit", "verify"]);
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("missing trail: "), "{told}");
    assert!(!told.contains("ok 0 rows"), "{told}");
}
