//! Roles over real sockets: visible and callable tools, and policy changes during open sessions.

use bowline_testkit::gateway::{Gateway, HttpConnection, Session, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use crate::streams::next_event;

/// A gateway for every local client, in the role assigned by the file.
fn start_open_gateway(policy: &str) -> Gateway {
    let config = format!("{policy}\n{}", fixture_config("one", &[]));
    Gateway::start_with_args(&config, &["--insecure-no-auth"])
}

fn write_policy(gateway: &Gateway, policy: &str) {
    let config = format!("{policy}\n{}", fixture_config("one", &[]));
    std::fs::write(gateway.dir.path().join("bowline.toml"), config).unwrap();
}

fn open_anonymous_session(gateway: &Gateway) -> Session {
    gateway.wait_for_state("one", "ready");
    Session::open(gateway.address, "/mcp", None)
}

/// The names listed for a session.
fn listed_names(session: &mut Session) -> Vec<String> {
    let answer = session.request("tools/list", &json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap();
    let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

fn call_echo(session: &mut Session) -> Value {
    session.call("one__echo", &json!({"message": "hi"}))
}

const ECHO_ONLY: &str = "[roles.r]\nallow = [\"one.echo\"]\n\
    [principals.anonymous-local]\nrole = \"r\"";

const NOTHING: &str = "[roles.r]\nallow = []\n[principals.anonymous-local]\nrole = \"r\"";

/// Waits for a tools-changed notification.
fn wait_for_list_change(stream: &mut HttpConnection) {
    loop {
        let event = next_event(stream).unwrap();
        let told = event.data.as_deref().unwrap_or_default();
        if told.contains("notifications/tools/list_changed") {
            return;
        }
    }
}

#[test]
fn policy_change_applies_to_open_sessions() {
    let gateway = start_open_gateway(ECHO_ONLY);
    let mut session = open_anonymous_session(&gateway);
    assert_eq!(listed_names(&mut session), ["one__echo"]);
    assert_eq!(
        call_echo(&mut session)["result"]["content"][0]["text"],
        "hi"
    );

    let mut stream = session.open_stream();
    write_policy(&gateway, NOTHING);
    wait_for_list_change(&mut stream);
    wait_until("the session sees nothing", || {
        listed_names(&mut session).is_empty()
    });
    let refused = call_echo(&mut session);
    assert_eq!(
        refused["error"]["data"]["code"], "policy_denied",
        "{refused}"
    );

    write_policy(&gateway, ECHO_ONLY);
    wait_until("the session sees again", || {
        listed_names(&mut session) == ["one__echo"]
    });
    assert_eq!(
        call_echo(&mut session)["result"]["content"][0]["text"],
        "hi"
    );
}

#[test]
fn reload_reports_policy_change_and_unmatched_names() {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("stderr");
    let stderr = std::fs::File::create(&path).unwrap();
    let gateway = Gateway::start_with_command(&fixture_config("one", &[]), |command| {
        command.stderr(stderr);
    });
    gateway.wait_for_state("one", "ready");
    // Rules for unknown names stay in force: a later server may have them.
    write_policy(&gateway, "[roles.r]\nallow = [\"one.ehco\", \"two.x\"]");
    let told = || std::fs::read_to_string(&path).unwrap();
    wait_until("the change is told", || told().contains("  ~ policy\n"));
    let report = gateway.run_cli(&["reload", "--json"]);
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["policy_changed"], false, "{report}");
    let warnings = [
        "`two.x` in `roles.r.allow` names server `two`, which is not configured",
        "`one.ehco` in `roles.r.allow` names what `one` does not have; did you mean `echo`?",
    ];
    assert_eq!(report["warnings"], json!(warnings));
    for warning in warnings {
        assert!(told().contains(warning), "{}", told());
    }
}

/// A gateway with two roles under this default, and sessions of: a listed role, a role with an
/// empty list, an undefined role, and no role.
fn start_with_roles(default: &str) -> (Gateway, [Session; 4]) {
    let roles = |more: &str| {
        format!(
            "[policy]\ndefault = \"{default}\"\n[roles.reader]\nallow = [\"one.echo\"]\n\
             [roles.locked]\nallow = []\n{more}{}",
            fixture_config("one", &[])
        )
    };
    let gateway = Gateway::start(&roles("[roles.gone]\nallow = [\"one.echo\"]\n"));
    gateway.wait_for_state("one", "ready");
    let session = |principal: &str, role: &str| {
        let (_, token) = gateway.create_token(&json!({"principal": principal, "role": role}));
        gateway.open_session_as(&token, "/mcp")
    };
    let reader = session("ann", "reader");
    let locked = session("bob", "locked");
    let mut gone = session("cid", "gone");
    let owner = gateway.open_session("/mcp");
    // A role that tokens still name and the file no longer defines.
    std::fs::write(gateway.dir.path().join("bowline.toml"), roles("")).unwrap();
    let expected = if default == "allow" {
        owner.clone_on_new_connection().list_tool_names()
    } else {
        Vec::new()
    };
    wait_until("the role is gone", || gone.list_tool_names() == expected);
    (gateway, [reader, locked, gone, owner])
}

fn assert_denied(answer: &Value, tool: &str) {
    let error = &answer["error"];
    assert_eq!(error["data"]["code"], "policy_denied", "{answer}");
    assert_eq!(answer["result"], Value::Null);
    assert!(
        error["message"].as_str().unwrap().contains(tool),
        "{answer}"
    );
}

#[test]
fn default_allow_restricts_only_listed_roles() {
    let (_gateway, [mut reader, mut locked, mut gone, mut owner]) = start_with_roles("allow");
    let all = owner.list_tool_names();
    assert!(all.len() > 2);
    assert_eq!(reader.list_tool_names(), ["one__echo"]);
    assert_eq!(
        gone.list_tool_names(),
        all,
        "a role that is not listed sees all"
    );
    assert_eq!(
        locked.list_tool_names(),
        [""; 0],
        "an empty list is a lock-out"
    );
    let sum = json!({"a": 1, "b": 2});
    assert_denied(&reader.call("one__add", &sum), "add");
    assert_eq!(call_echo(&mut reader)["result"]["content"][0]["text"], "hi");
    assert_eq!(gone.call_text("one__add", &sum), "3");
    assert_denied(&call_echo(&mut locked), "echo");
}

#[test]
fn default_deny_shows_tools_to_listed_roles() {
    let (_gateway, [mut reader, mut locked, mut gone, mut owner]) = start_with_roles("deny");
    assert!(owner.list_tool_names().len() > 2, "the owner may do all");
    assert_eq!(reader.list_tool_names(), ["one__echo"]);
    assert_eq!(gone.list_tool_names(), [""; 0]);
    assert_eq!(locked.list_tool_names(), [""; 0]);
    assert_eq!(call_echo(&mut reader)["result"]["content"][0]["text"], "hi");
    assert_denied(&call_echo(&mut gone), "echo");
    assert_denied(&call_echo(&mut locked), "echo");
    let sum = json!({"a": 1, "b": 2});
    assert_denied(&reader.call("one__add", &sum), "add");
    assert_eq!(owner.call_text("one__add", &sum), "3");
}

const RULES: &str = r#"
[roles.reviewer]
allow = ["one.*", "prompt:one.*"]
deny = ["one.add"]
when = [{ on = "one.echo", if = "args.message.startsWith('ok')" }]
budget = { calls = 500, per = "1h" }
[principals.ci]
role = "reviewer"
[context.quiet]
hide = ["one.slow"]
[profiles.small]
allow = ["one.echo"]
"#;

#[test]
fn role_test_names_deciding_rule_and_line() {
    let gateway = Gateway::start(&format!("{}{RULES}", fixture_config("one", &[])));
    let file = gateway.dir.path().join("bowline.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let line = |start: &str| {
        1 + text
            .lines()
            .position(|line| line.starts_with(start))
            .unwrap()
    };
    let (allow, deny, when) = (line("allow = "), line("deny"), line("when"));
    let hide = line("hide");
    for (words, code, rule, at) in [
        ("reviewer one.slow", 0, "roles.reviewer.allow", Some(allow)),
        (
            "reviewer prompt:one.any",
            0,
            "roles.reviewer.allow",
            Some(allow),
        ),
        ("reviewer resource:one.a:b", 6, "roles.reviewer.allow", None),
        ("reviewer one.add", 6, "roles.reviewer.deny", Some(deny)),
        (
            "reviewer one.echo --args {\"message\":\"ok!\"}",
            0,
            "roles.reviewer.allow",
            Some(allow),
        ),
        (
            "reviewer one.echo --args {\"message\":\"no\"}",
            6,
            "roles.reviewer.when",
            Some(when),
        ),
        (
            "reviewer one.echo --args {}",
            6,
            "roles.reviewer.when",
            Some(when),
        ),
        (
            "reviewer one.slow --context quiet",
            6,
            "context.quiet",
            Some(hide),
        ),
        ("reviewer one.slow --context loud", 6, "context.loud", None),
        ("owner one.slow --profile small", 6, "profiles.small", None),
        ("owner one.add", 0, "owner", None),
        ("reviewr one.add", 6, "policy.default", None),
    ] {
        let words: Vec<_> = words.split(' ').collect();
        let file = file.to_str().unwrap();
        // The running gateway and the file alone give the same output.
        for more in [&["--json"][..], &["--json", "--config", file]] {
            let output = gateway.run_cli(&[&["role", "test"], &words[..], more].concat());
            let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(output.status.code(), Some(code), "{words:?} {shown}");
            assert_eq!(shown["allowed"], code == 0);
            assert_eq!(
                (&shown["rule"], &shown["line"]),
                (&json!(rule), &json!(at)),
                "{shown}"
            );
        }
    }
}

/// `role test` prints text for people, and roles are listed as JSON for programs.
#[test]
fn role_test_prints_text_and_json() {
    let gateway = Gateway::start(&format!("{}{RULES}", fixture_config("one", &[])));
    let text = std::fs::read_to_string(gateway.dir.path().join("bowline.toml")).unwrap();
    let deny = 1 + text
        .lines()
        .position(|line| line.starts_with("deny"))
        .unwrap();
    let output = gateway.run_cli(&["role", "test", "reviewer", "one.add"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    let expected = format!(
        "denied  one.add  reviewer: role `reviewer` denies `one.add`\n\
         rule     roles.reviewer.deny, line {deny}\n"
    );
    assert_eq!(shown, expected);
    let output = gateway.run_cli(&["role", "test", "reviewr", "one.echo"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("did you mean role `reviewer`?"), "{told}");
    for words in [["reviewer", "one"], ["reviewer", ".x"]] {
        let output = gateway.run_cli(&[&["role", "test"], &words[..]].concat());
        assert_eq!(output.status.code(), Some(2));
    }
    let roles = gateway.get_api("/api/v1/roles");
    assert_eq!(roles["default"], "deny");
    let reviewer = json!({
        "name": "reviewer", "allow": ["one.*", "prompt:one.*"], "deny": ["one.add"],
        "when": [{"on": "one.echo", "if": "args.message.startsWith('ok')"}],
        "budget": {"calls": 500, "per_ms": 3_600_000}, "rate": null, "principals": ["ci"],
    });
    assert_eq!(roles["roles"], json!([reviewer]));
    assert_eq!(
        roles["contexts"],
        json!([{"name": "quiet", "hide": ["one.slow"]}])
    );
}
