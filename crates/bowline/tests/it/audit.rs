//! The audit trail of a real gateway is complete, and damage is named.

mod damage;
mod denial_flood;
mod export;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use bowline_testkit::gateway::{Gateway, HttpConnection, Session, bowline_binary, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

fn audit_config(more: &str) -> String {
    format!(
        "{more}\n[roles.r]\nallow = [\"one.echo\", \"one.slow\", \"prompt:one.*\"]\n\
         [roles.poor]\nallow = [\"one.*\"]\nbudget = {{ calls = 5, per = \"1h\" }}\n{}",
        fixture_config("one", &[])
    )
}

fn start_audited(more: &str) -> Gateway {
    let gateway = Gateway::start(&audit_config(more));
    gateway.wait_for_state("one", "ready");
    gateway
}

fn open_session_as(gateway: &Gateway, principal: &str, role: &str) -> (String, Session) {
    let wanted = json!({"principal": principal, "role": role});
    let (id, token) = gateway.create_token(&wanted);
    (id, gateway.open_session_as(&token, "/mcp"))
}

/// Sends a request and ignores the outcome.
fn send_request(session: &mut Session, method: &str, params: &Value) {
    session.post(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}));
}

fn call_tool(session: &mut Session, tool: &str) {
    let arguments = json!({"message": "hi"});
    send_request(
        session,
        "tools/call",
        &json!({"name": tool, "arguments": arguments}),
    );
}

/// All rows of `audit export`.
fn export_rows(gateway: &Gateway) -> Vec<Value> {
    let exported = gateway.run_cli(&["audit", "export"]);
    assert!(exported.status.success(), "{exported:?}");
    let text = String::from_utf8(exported.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Output and exit code of `audit verify --json`.
fn verify_trail(gateway: &Gateway) -> (Value, Option<i32>) {
    let verified = gateway.run_cli(&["audit", "verify", "--json"]);
    let verdict = serde_json::from_slice(&verified.stdout);
    let verdict = verdict.unwrap_or_else(|_| panic!("{verified:?}"));
    (verdict, verified.status.code())
}

fn rows_of_principal<'a>(rows: &'a [Value], principal: &str) -> Vec<&'a Value> {
    let rows = rows.iter().filter(|row| row["principal"] == principal);
    rows.filter(|row| row["kind"] != "admin").collect()
}

#[test]
fn sec_50_thousand_calls_and_denials_have_rows() {
    let gateway = start_audited("");
    let ((ann_id, mut ann), (bob_id, mut bob)) = (
        open_session_as(&gateway, "ann", "r"),
        open_session_as(&gateway, "bob", "poor"),
    );
    for round in 0..100 {
        // Two allowed calls, a denied call, an unknown tool, a prompt.
        call_tool(&mut ann, "one__echo");
        call_tool(&mut ann, "one__echo");
        call_tool(&mut ann, "one__add");
        call_tool(&mut ann, "one__nothing");
        send_request(&mut ann, "prompts/get", &json!({"name": "one__greet"}));
        // Five calls fit into the budget; later calls are refused.
        call_tool(&mut bob, "one__echo");
        call_tool(
            &mut bob,
            if round % 2 == 0 {
                "one__fail"
            } else {
                "one__echo"
            },
        );
        send_request(
            &mut bob,
            "resources/read",
            &json!({"uri": "bowline://one/x%3Ay"}),
        );
        send_request(
            &mut bob,
            "completion/complete",
            &json!({
                "ref": {"type": "ref/prompt", "name": "one__greet"},
                "argument": {"name": "name", "value": "a"},
            }),
        );
        call_tool(&mut bob, "one__echo");
    }
    // Listing is no call and leaves no row.
    assert!(!ann.list_tool_names().is_empty());
    let rows = export_rows(&gateway);
    let (anns, bobs) = (
        rows_of_principal(&rows, "ann"),
        rows_of_principal(&rows, "bob"),
    );
    // An executed call has its own row; equal refusals are coalesced into a count.
    let told = |rows: &[&Value]| -> u64 {
        let counts = rows.iter().map(|row| row["count"].as_u64().unwrap_or(1));
        counts.sum()
    };
    assert_eq!((told(&anns), told(&bobs)), (500, 500));
    let ran = |rows: &[&Value]| rows.iter().filter(|row| row["ring"].is_null()).count();
    assert_eq!(ran(&anns), 200);
    assert!(ran(&bobs) <= 110, "{}", ran(&bobs));
    assert!(anns.iter().all(|row| row["credential"] == ann_id.as_str()));
    assert!(bobs.iter().all(|row| row["credential"] == bob_id.as_str()));
    let (verdict, code) = verify_trail(&gateway);
    assert_eq!((&verdict["ok"], code), (&json!(true), Some(0)), "{verdict}");
    let kept = verdict["rows"]
        .as_u64()
        .zip(verdict["denials"]["rows"].as_u64());
    assert_eq!(
        kept.map(|(calls, denials)| calls + denials),
        Some(rows.len() as u64)
    );
}

#[test]
fn trail_is_intact_after_gateway_kill() {
    let mut gateway = start_audited("");
    for life in 1..=3 {
        let mut session = gateway.open_session("/mcp");
        let on_disk = || gateway.get_api("/api/v1/status")["audit"]["seq"].as_u64();
        let before = on_disk().unwrap();
        for _ in 0..200 {
            call_tool(&mut session, "one__echo");
        }
        wait_until("these rows are on disk", || on_disk() >= Some(before + 200));
        for _ in 0..50 {
            call_tool(&mut session, "one__echo");
        }
        gateway.restart_after_kill();
        gateway.wait_for_state("one", "ready");
        let (verdict, code) = verify_trail(&gateway);
        assert_eq!((&verdict["ok"], code), (&json!(true), Some(0)), "{verdict}");
        let rows = export_rows(&gateway);
        let started = rows.iter().filter(|row| row["kind"] == "started").count();
        assert_eq!(started, life + 1);
        assert!(
            rows_of_principal(&rows, "owner").len() >= 200 * life,
            "what was on disk stays"
        );
    }
    assert!(gateway.stop());
    let (verdict, _) = verify_trail(&gateway);
    assert_eq!(verdict["ok"], true, "also without a gateway: {verdict}");
    assert_eq!(export_rows(&gateway).last().unwrap()["kind"], "stopped");
}

/// A stop writes an audit row for each call that was answered or cut off.
#[test]
fn stop_records_completed_and_interrupted_calls() {
    let mut gateway = start_audited("");
    let mut session = gateway.open_session("/mcp");
    for _ in 0..100 {
        call_tool(&mut session, "one__echo");
    }
    session.send_call(7, "one__slow", &json!({"ms": 60_000, "message": "late"}));
    wait_until("the call is under way", || {
        gateway.server_status("one")["in_flight"] == 1
    });
    assert!(gateway.stop());
    let rows = export_rows(&gateway);
    assert_eq!(rows_of_principal(&rows, "owner").len(), 101, "{rows:#?}");
    assert_eq!(rows.last().unwrap()["kind"], "stopped");
}

#[test]
fn departed_caller_leaves_audit_row() {
    let gateway = start_audited("");
    let (_, mut ann) = open_session_as(&gateway, "ann", "r");
    ann.send_call(7, "one__slow", &json!({"ms": 60_000, "message": "late"}));
    wait_until("the call is under way", || {
        gateway.server_status("one")["in_flight"] == 1
    });
    let id = ann.id.clone();
    let token = ann.request_headers()[0].1.clone();
    let mut other = HttpConnection::connect(gateway.address);
    let headers = [
        ("Authorization", token.as_str()),
        ("Mcp-Session-Id", id.as_str()),
    ];
    other.send_request("DELETE", "/mcp", &headers, b"");
    assert!(other.read_response().status < 300);
    wait_until("it is noted", || {
        rows_of_principal(&export_rows(&gateway), "ann").len() == 1
    });
    let rows = export_rows(&gateway);
    let row = rows_of_principal(&rows, "ann")[0];
    assert_eq!(
        (&row["outcome"], &row["name"]),
        (&json!("cancelled"), &json!("slow")),
        "{row}"
    );
}

/// Changes that the owner makes have audit rows; no row contains a token.
#[test]
fn owner_changes_are_audited_without_tokens() {
    let gateway = start_audited("");
    let (id, token) = gateway.create_token(&json!({"principal": "ann", "role": "r"}));
    gateway.send_api("DELETE", &format!("/api/v1/tokens/{id}"), &json!({}));
    gateway.control_server("one", "stop");
    gateway.get_api("/api/v1/tokens");
    let rows = export_rows(&gateway);
    let admin: Vec<_> = rows.iter().filter(|row| row["kind"] == "admin").collect();
    let names: Vec<_> = admin
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    let revoke = format!("DELETE /api/v1/tokens/{id}");
    assert_eq!(
        names,
        [
            "POST /api/v1/tokens",
            &revoke,
            "POST /api/v1/servers/one/stop"
        ]
    );
    assert_eq!(admin[0]["reason"], format!("token {id} of ann"));
    let all = serde_json::to_string(&rows).unwrap();
    let secret = token.rsplit(['_', '.']).next().unwrap();
    assert!(!all.contains(secret) && !all.contains(&gateway.token));
}

/// Payloads are stored only if configured, and without secrets.
#[test]
fn payloads_are_opt_in_and_redacted() {
    let secret = "canary-41-audit";
    let said = json!({"name": "one__echo", "arguments": {"message": format!("<{secret}>")}});
    for (more, keeps) in [("", false), ("[audit]\npayload = true\n", true)] {
        let config = format!(
            "{}[servers.one.env]\nTOKEN = \"${{CANARY}}\"\n",
            audit_config(more)
        );
        let gateway = Gateway::start_with_command(&config, |command| {
            command.env("CANARY", secret);
        });
        gateway.wait_for_state("one", "ready");
        let mut session = gateway.open_session("/mcp");
        send_request(&mut session, "tools/call", &said);
        let rows = export_rows(&gateway);
        let row = rows_of_principal(&rows, "owner")[0];
        assert_eq!(row.get("payload").is_some(), keeps, "{row}");
        let text = row.to_string();
        assert!(!text.contains(secret), "{text}");
        assert_eq!(text.contains("‹env TOKEN›"), keeps, "{text}");
        for entry in std::fs::read_dir(gateway.state_dir().join("audit")).unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(path).unwrap_or_default();
            assert!(
                !bytes
                    .windows(secret.len())
                    .any(|part| part == secret.as_bytes())
            );
        }
    }
}

#[test]
fn disabled_trail_writes_nothing_and_says_so() {
    let gateway = start_audited("[audit]\ncalls = false\n");
    call_tool(&mut gateway.open_session("/mcp"), "one__echo");
    assert!(!gateway.state_dir().join("audit").exists());
    assert_eq!(
        gateway.get_api("/api/v1/status")["audit"],
        json!({"state": "off"})
    );
    assert_eq!(
        gateway.get_api("/api/v1/audit")["error"]["code"],
        "no_audit"
    );
}

#[test]
fn follow_streams_and_filters_rows() {
    let gateway = start_audited("");
    let (_, mut ann) = open_session_as(&gateway, "ann", "r");
    call_tool(&mut ann, "one__echo");
    call_tool(&mut ann, "one__add");
    let page = gateway.get_api("/api/v1/audit?principal=ann&kind=denied&server=one");
    assert_eq!(page["rows"].as_array().unwrap().len(), 1, "{page}");
    let next = page["next"].as_str().unwrap().to_owned();
    let empty = gateway.get_api(&format!("/api/v1/audit?after={next}&limit=5"));
    assert_eq!((&empty["rows"], &empty["next"]), (&json!([]), &json!(next)));
    let (address, token) = (gateway.address, gateway.token.clone());
    let waiting = std::thread::spawn(move || {
        let path = format!("/api/v1/audit?after={next}&principal=ann&wait_ms=25000");
        let bearer = format!("Bearer {token}");
        HttpConnection::connect(address)
            .get(&path, &[("Authorization", &bearer)])
            .json()
    });
    call_tool(&mut ann, "one__echo");
    let page = waiting.join().unwrap();
    assert_eq!(page["rows"][0]["name"], "echo", "{page}");
    assert_eq!(
        gateway.get_api("/api/v1/audit?kind=x")["error"]["code"],
        "invalid"
    );
    let tail = gateway.run_cli(&[
        "audit",
        "tail",
        "-n",
        "1",
        "--kind",
        "denied",
        "--principal",
        "ann",
    ]);
    let tail = String::from_utf8(tail.stdout).unwrap();
    assert!(
        tail.contains("one.add") && tail.lines().count() == 1,
        "{tail}"
    );
}

#[test]
fn export_is_private_and_never_overwrites() {
    let gateway = start_audited("");
    call_tool(&mut gateway.open_session("/mcp"), "one__echo");
    let export = |path: &Path| {
        let path = path.to_str().unwrap();
        gateway
            .run_cli(&["audit", "export", "--from", "1h", "--out", path])
            .status
            .code()
    };
    let to = gateway.dir.path().join("rows.jsonl");
    assert_eq!(export(&to), Some(0));
    let mode = std::fs::metadata(&to).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    let before = std::fs::read(&to).unwrap();
    assert!(before.ends_with(b"\"}\n"));
    assert_eq!(export(&to), Some(2), "it exists");
    let link = gateway.dir.path().join("link.jsonl");
    std::os::unix::fs::symlink(gateway.dir.path().join("elsewhere"), &link).unwrap();
    assert_eq!(export(&link), Some(2), "it is a link");
    assert!(!gateway.dir.path().join("elsewhere").exists());
    assert_eq!(std::fs::read(&to).unwrap(), before);
    let late = gateway.run_cli(&["audit", "export", "--from", "2100-01-01"]);
    assert_eq!((late.stdout.len(), late.status.code()), (0, Some(0)));
    let wrong = gateway.run_cli(&["audit", "export", "--from", "later"]);
    assert_eq!(wrong.status.code(), Some(2));
    let elsewhere = std::process::Command::new(bowline_binary())
        .args([
            "audit",
            "export",
            "--url",
            &format!("http://{}", gateway.address),
        ])
        .arg("--token-file")
        .arg(gateway.state_dir().join("token"))
        .output()
        .unwrap();
    assert_eq!(
        elsewhere.stdout,
        gateway.run_cli(&["audit", "export"]).stdout
    );
}
