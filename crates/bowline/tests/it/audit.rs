//! The audit trail of a real gateway: complete, and damage to it is named.

mod damage;
mod export;
mod wash;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Gateway, Http, Session, bowline, eventually, fixture};

fn config(more: &str) -> String {
    format!(
        "{more}\n[roles.r]\nallow = [\"one.echo\", \"one.slow\", \"prompt:one.*\"]\n\
         [roles.poor]\nallow = [\"one.*\"]\nbudget = {{ calls = 5, per = \"1h\" }}\n{}",
        fixture("one", &[])
    )
}

fn up(more: &str) -> Gateway {
    let gateway = Gateway::up(&config(more));
    gateway.wait_for("one", "ready");
    gateway
}

fn session_of(gateway: &Gateway, principal: &str, role: &str) -> (String, Session) {
    let wanted = json!({"principal": principal, "role": role});
    let (id, token) = gateway.token_of(&wanted);
    (id, gateway.session_as(&token, "/mcp"))
}

/// Sends one request and does not mind how it ends.
fn ask(session: &mut Session, method: &str, params: &Value) {
    session.post(&json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}));
}

fn call(session: &mut Session, tool: &str) {
    let arguments = json!({"message": "hi"});
    ask(
        session,
        "tools/call",
        &json!({"name": tool, "arguments": arguments}),
    );
}

/// Every row, as `audit export` writes it.
fn rows(gateway: &Gateway) -> Vec<Value> {
    let exported = gateway.cli(&["audit", "export"]);
    assert!(exported.status.success(), "{exported:?}");
    let text = String::from_utf8(exported.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// What `audit verify --json` says, and how it exits.
fn verdict(gateway: &Gateway) -> (Value, Option<i32>) {
    let verified = gateway.cli(&["audit", "verify", "--json"]);
    let verdict = serde_json::from_slice(&verified.stdout);
    let verdict = verdict.unwrap_or_else(|_| panic!("{verified:?}"));
    (verdict, verified.status.code())
}

fn of<'a>(rows: &'a [Value], principal: &str) -> Vec<&'a Value> {
    let rows = rows.iter().filter(|row| row["principal"] == principal);
    rows.filter(|row| row["kind"] != "admin").collect()
}

#[test]
fn sec_50_every_call_and_every_denial_of_a_thousand_has_a_row() {
    let gateway = up("");
    let ((ann_id, mut ann), (bob_id, mut bob)) = (
        session_of(&gateway, "ann", "r"),
        session_of(&gateway, "bob", "poor"),
    );
    for round in 0..100 {
        // Two that are allowed, one denied, one that does not exist, one prompt.
        call(&mut ann, "one__echo");
        call(&mut ann, "one__echo");
        call(&mut ann, "one__add");
        call(&mut ann, "one__nothing");
        ask(&mut ann, "prompts/get", &json!({"name": "one__greet"}));
        // Five within the budget; then each is refused.
        call(&mut bob, "one__echo");
        call(
            &mut bob,
            if round % 2 == 0 {
                "one__fail"
            } else {
                "one__echo"
            },
        );
        ask(
            &mut bob,
            "resources/read",
            &json!({"uri": "bowline://one/x%3Ay"}),
        );
        ask(
            &mut bob,
            "completion/complete",
            &json!({
                "ref": {"type": "ref/prompt", "name": "one__greet"},
                "argument": {"name": "name", "value": "a"},
            }),
        );
        call(&mut bob, "one__echo");
    }
    // Looking is no call.
    assert!(!ann.tools().is_empty());
    let rows = rows(&gateway);
    let (anns, bobs) = (of(&rows, "ann"), of(&rows, "bob"));
    // A call that ran has a row of its own; refusals that are alike are counted.
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
    let (verdict, code) = verdict(&gateway);
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
fn the_trail_is_whole_after_the_gateway_was_killed_in_the_middle() {
    let mut gateway = up("");
    for life in 1..=3 {
        let mut session = gateway.session("/mcp");
        let on_disk = || gateway.api("/api/v1/status")["audit"]["seq"].as_u64();
        let before = on_disk().unwrap();
        for _ in 0..200 {
            call(&mut session, "one__echo");
        }
        eventually("these rows are on disk", || on_disk() >= Some(before + 200));
        for _ in 0..50 {
            call(&mut session, "one__echo");
        }
        gateway.restart_after_kill();
        gateway.wait_for("one", "ready");
        let (verdict, code) = verdict(&gateway);
        assert_eq!((&verdict["ok"], code), (&json!(true), Some(0)), "{verdict}");
        let rows = rows(&gateway);
        let started = rows.iter().filter(|row| row["kind"] == "started").count();
        assert_eq!(started, life + 1);
        assert!(
            of(&rows, "owner").len() >= 200 * life,
            "what was on disk stays"
        );
    }
    assert!(gateway.stop());
    let (verdict, _) = verdict(&gateway);
    assert_eq!(verdict["ok"], true, "also without a gateway: {verdict}");
    assert_eq!(rows(&gateway).last().unwrap()["kind"], "stopped");
}

#[test]
fn a_stop_writes_down_every_call_that_was_answered_or_cut_off() {
    let mut gateway = up("");
    let mut session = gateway.session("/mcp");
    for _ in 0..100 {
        call(&mut session, "one__echo");
    }
    session.send_call(7, "one__slow", &json!({"ms": 60_000, "message": "late"}));
    eventually("the call is under way", || {
        gateway.status("one")["in_flight"] == 1
    });
    assert!(gateway.stop());
    let rows = rows(&gateway);
    assert_eq!(of(&rows, "owner").len(), 101, "{rows:#?}");
    assert_eq!(rows.last().unwrap()["kind"], "stopped");
}

#[test]
fn a_caller_that_goes_away_leaves_a_row() {
    let gateway = up("");
    let (_, mut ann) = session_of(&gateway, "ann", "r");
    ann.send_call(7, "one__slow", &json!({"ms": 60_000, "message": "late"}));
    eventually("the call is under way", || {
        gateway.status("one")["in_flight"] == 1
    });
    let id = ann.id.clone();
    let token = ann.headers()[0].1.clone();
    let mut other = Http::connect(gateway.address);
    let headers = [
        ("Authorization", token.as_str()),
        ("Mcp-Session-Id", id.as_str()),
    ];
    other.send("DELETE", "/mcp", &headers, b"");
    assert!(other.read().status < 300);
    eventually("it is noted", || of(&rows(&gateway), "ann").len() == 1);
    let rows = rows(&gateway);
    let row = of(&rows, "ann")[0];
    assert_eq!(
        (&row["outcome"], &row["name"]),
        (&json!("cancelled"), &json!("slow")),
        "{row}"
    );
}

#[test]
fn what_the_owner_changes_is_in_the_trail_and_a_token_is_not() {
    let gateway = up("");
    let (id, token) = gateway.token_of(&json!({"principal": "ann", "role": "r"}));
    gateway.ask_api("DELETE", &format!("/api/v1/tokens/{id}"), &json!({}));
    gateway.order("one", "stop");
    gateway.api("/api/v1/tokens");
    let rows = rows(&gateway);
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

#[test]
fn payloads_are_kept_only_if_asked_for_and_without_secrets() {
    let secret = "canary-41-audit";
    let said = json!({"name": "one__echo", "arguments": {"message": format!("<{secret}>")}});
    for (more, keeps) in [("", false), ("[audit]\npayload = true\n", true)] {
        let config = format!(
            "{}[servers.one.env]\nTOKEN = \"${{CANARY}}\"\n",
            config(more)
        );
        let gateway = Gateway::up_as(&config, |command| {
            command.env("CANARY", secret);
        });
        gateway.wait_for("one", "ready");
        let mut session = gateway.session("/mcp");
        ask(&mut session, "tools/call", &said);
        let rows = rows(&gateway);
        let row = of(&rows, "owner")[0];
        assert_eq!(row.get("payload").is_some(), keeps, "{row}");
        let text = row.to_string();
        assert!(!text.contains(secret), "{text}");
        assert_eq!(text.contains("‹env TOKEN›"), keeps, "{text}");
        for entry in std::fs::read_dir(gateway.state().join("audit")).unwrap() {
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
fn a_gateway_without_a_trail_writes_none_and_says_so() {
    let gateway = up("[audit]\ncalls = false\n");
    call(&mut gateway.session("/mcp"), "one__echo");
    assert!(!gateway.state().join("audit").exists());
    assert_eq!(
        gateway.api("/api/v1/status")["audit"],
        json!({"state": "off"})
    );
    assert_eq!(gateway.api("/api/v1/audit")["error"]["code"], "no_audit");
}

#[test]
fn rows_are_followed_as_they_come_and_filtered() {
    let gateway = up("");
    let (_, mut ann) = session_of(&gateway, "ann", "r");
    call(&mut ann, "one__echo");
    call(&mut ann, "one__add");
    let page = gateway.api("/api/v1/audit?principal=ann&kind=denied&server=one");
    assert_eq!(page["rows"].as_array().unwrap().len(), 1, "{page}");
    let next = page["next"].as_str().unwrap().to_owned();
    let empty = gateway.api(&format!("/api/v1/audit?after={next}&limit=5"));
    assert_eq!((&empty["rows"], &empty["next"]), (&json!([]), &json!(next)));
    let (address, token) = (gateway.address, gateway.token.clone());
    let waiting = std::thread::spawn(move || {
        let path = format!("/api/v1/audit?after={next}&principal=ann&wait_ms=25000");
        let bearer = format!("Bearer {token}");
        Http::connect(address)
            .get(&path, &[("Authorization", &bearer)])
            .json()
    });
    call(&mut ann, "one__echo");
    let page = waiting.join().unwrap();
    assert_eq!(page["rows"][0]["name"], "echo", "{page}");
    assert_eq!(
        gateway.api("/api/v1/audit?kind=x")["error"]["code"],
        "invalid"
    );
    let tail = gateway.cli(&[
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
fn an_export_is_private_and_overwrites_nothing() {
    let gateway = up("");
    call(&mut gateway.session("/mcp"), "one__echo");
    let export = |path: &Path| {
        let path = path.to_str().unwrap();
        gateway
            .cli(&["audit", "export", "--from", "1h", "--out", path])
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
    let late = gateway.cli(&["audit", "export", "--from", "2100-01-01"]);
    assert_eq!((late.stdout.len(), late.status.code()), (0, Some(0)));
    let wrong = gateway.cli(&["audit", "export", "--from", "later"]);
    assert_eq!(wrong.status.code(), Some(2));
    let elsewhere = std::process::Command::new(bowline())
        .args([
            "audit",
            "export",
            "--url",
            &format!("http://{}", gateway.address),
        ])
        .arg("--token-file")
        .arg(gateway.state().join("token"))
        .output()
        .unwrap();
    assert_eq!(elsewhere.stdout, gateway.cli(&["audit", "export"]).stdout);
}
