//! `audit verify` on damaged files.

use std::path::PathBuf;

use bowline_testkit::report_omitted;

use super::*;

/// The single row file of a stopped gateway.
fn rows_file(gateway: &Gateway) -> PathBuf {
    gateway.state_dir().join("audit/audit-000000000001.db")
}

/// Stops a gateway after some calls.
fn stop_after_calls() -> Gateway {
    let mut gateway = start_audited("");
    let mut session = gateway.open_session("/mcp");
    for _ in 0..40 {
        call_tool(&mut session, "one__echo");
    }
    assert!(gateway.stop());
    gateway
}

/// Turns the row of a call into the row of a denial, as an attacker with an editor would.
fn change_kind(gateway: &Gateway, seq: u64) {
    let path = rows_file(gateway);
    let mut bytes = std::fs::read(&path).unwrap();
    // The start of a row: version, sequence number, kind.
    let start = [&[1], &seq.to_be_bytes()[..], &[0]].concat();
    let at = bytes
        .windows(start.len())
        .position(|part| part == start)
        .unwrap();
    bytes[at + start.len() - 1] = 1;
    std::fs::write(&path, bytes).unwrap();
}

#[test]
fn sec_50_edited_row_is_named_with_exit_1() {
    let mut gateway = stop_after_calls();
    let (whole, code) = verify_trail(&gateway);
    assert_eq!((&whole["ok"], code), (&json!(true), Some(0)), "{whole}");
    let row = export_rows(&gateway)[20].clone();
    let seq = row["seq"].as_u64().unwrap();
    change_kind(&gateway, seq);
    let (broken, code) = verify_trail(&gateway);
    assert_eq!(code, Some(1));
    let named = json!({"seq": seq, "reason": "changed", "file": "audit-000000000001.db"});
    assert_eq!(broken["broken"], named);
    let told = gateway.run_cli(&["audit", "verify"]);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains(&format!("row {seq}: changed")), "{told}");
    // A gateway appends behind the damage, and the damage stays visible.
    gateway.restart();
    gateway.wait_for_state("one", "ready");
    call_tool(&mut gateway.open_session("/mcp"), "one__echo");
    let seen = gateway.get_api("/api/v1/audit/verify");
    assert_eq!(seen["broken"], named, "{seen}");
}

#[test]
fn sec_50_truncation_is_found_with_noted_head() {
    let mut gateway = stop_after_calls();
    let (whole, _) = verify_trail(&gateway);
    let head = format!(
        "{}:{}",
        whole["head"]["seq"],
        whole["head"]["hash"].as_str().unwrap()
    );
    let expect = |gateway: &Gateway, head: &str| {
        gateway
            .run_cli(&["audit", "verify", "--expect", head])
            .status
            .code()
    };
    assert_eq!(expect(&gateway, &head), Some(0));
    assert_eq!(expect(&gateway, "nonsense"), Some(2));
    // Files of an earlier day, restored together with their head.
    let audit = gateway.state_dir().join("audit");
    let copy = gateway.dir.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(&audit).unwrap() {
        let entry = entry.unwrap();
        if entry.path().is_file() {
            std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
        }
    }
    gateway.restart();
    gateway.wait_for_state("one", "ready");
    call_tool(&mut gateway.open_session("/mcp"), "one__echo");
    assert!(gateway.stop());
    let (longer, _) = verify_trail(&gateway);
    let later = format!(
        "{}:{}",
        longer["head"]["seq"],
        longer["head"]["hash"].as_str().unwrap()
    );
    assert_eq!(expect(&gateway, &later), Some(0));
    std::fs::copy(copy.join("audit-000000000001.db"), rows_file(&gateway)).unwrap();
    let (cut, code) = verify_trail(&gateway);
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
        verify_trail(&gateway).1,
        Some(0),
        "whoever writes all files forges all"
    );
    assert_eq!(
        expect(&gateway, &later),
        Some(1),
        "but not what was noted elsewhere"
    );
}

/// A trail that cannot be written makes the gateway degraded and delays no call.
#[test]
fn unwritable_trail_degrades_gateway_without_blocking() {
    let gateway = start_audited("");
    let mut session = gateway.open_session("/mcp");
    call_tool(&mut session, "one__echo");
    let page = gateway.get_api("/api/v1/audit");
    assert!(page["rows"].as_array().unwrap().len() >= 3, "{page}");
    let other = std::process::Command::new("sqlite3")
        .arg(rows_file(&gateway))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn();
    let Ok(mut other) = other else {
        let test = "unwritable_trail_degrades_gateway_without_blocking";
        return report_omitted(test, "sqlite3 is not installed");
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
        HttpConnection::connect(gateway.address)
            .get("/readyz", &headers)
            .json()
    };
    wait_until("rows are lost", || {
        call_tool(&mut session, "one__echo");
        ready()["audit"] == "degraded"
    });
    assert_eq!(ready()["status"], "degraded");
    let status = gateway.get_api("/api/v1/status")["audit"].clone();
    assert_eq!(status["state"], "degraded", "{status}");
    drop(say);
    other.wait().unwrap();
    wait_until("rows are written again", || ready()["status"] == "ok");
    let (verdict, code) = verify_trail(&gateway);
    assert_eq!((&verdict["ok"], code), (&json!(true), Some(0)), "{verdict}");
    assert_eq!(verdict["gaps"], 1);
    assert!(verdict["lost"].as_u64() > Some(0));
}

#[test]
fn sec_50_verify_of_missing_trail_exits_1() {
    let gateway = stop_after_calls();
    let audit = gateway.state_dir().join("audit");
    // Each ring is removed and reported separately.
    std::fs::remove_dir_all(audit.join("denials")).unwrap();
    let (seen, code) = verify_trail(&gateway);
    assert_eq!((&seen["ok"], code), (&json!(false), Some(1)), "{seen}");
    assert_eq!(seen["broken"], Value::Null, "{seen}");
    let missing = json!({"seq": 1, "reason": "missing", "file": null});
    assert_eq!(seen["denials"]["broken"], missing, "{seen}");
    std::fs::remove_dir_all(&audit).unwrap();
    let (seen, code) = verify_trail(&gateway);
    assert_eq!((&seen["ok"], code), (&json!(false), Some(1)), "{seen}");
    assert_eq!(seen["broken"], missing, "{seen}");
    let told = gateway.run_cli(&["audit", "verify"]);
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(told.contains("missing trail: "), "{told}");
    assert!(!told.contains("ok 0 rows"), "{told}");
}
