//! Roles over real sockets: what is seen and what may be called, and a policy that changes while
//! sessions are open.

use serde_json::{Value, json};

use crate::harness::{Gateway, Http, Session, eventually, fixture};
use crate::streams::next_event;

/// A gateway that anybody on this machine may use, as the role that the file gives them.
fn open(policy: &str) -> Gateway {
    let config = format!("{policy}\n{}", fixture("one", &[]));
    Gateway::up_with(&config, &["--insecure-no-auth"])
}

fn write(gateway: &Gateway, policy: &str) {
    let config = format!("{policy}\n{}", fixture("one", &[]));
    std::fs::write(gateway.dir.path().join("bowline.toml"), config).unwrap();
}

fn anybody(gateway: &Gateway) -> Session {
    gateway.wait_for("one", "ready");
    Session::open(gateway.address, "/mcp", None)
}

/// The names of what a session sees.
fn seen(session: &mut Session) -> Vec<String> {
    let answer = session.request("tools/list", &json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap();
    let names = tools.iter().map(|tool| tool["name"].as_str().unwrap());
    names.map(str::to_owned).collect()
}

fn echo(session: &mut Session) -> Value {
    session.call("one__echo", &json!({"message": "hi"}))
}

const ECHO_ONLY: &str = "[roles.r]\nallow = [\"one.echo\"]\n\
    [principals.anonymous-local]\nrole = \"r\"";

const NOTHING: &str = "[roles.r]\nallow = []\n[principals.anonymous-local]\nrole = \"r\"";

/// Waits until a session is told that it sees other tools now.
fn hears_of_another_list(stream: &mut Http) {
    loop {
        let event = next_event(stream).unwrap();
        let told = event.data.as_deref().unwrap_or_default();
        if told.contains("notifications/tools/list_changed") {
            return;
        }
    }
}

#[test]
fn a_changed_policy_counts_for_sessions_that_are_open() {
    let gateway = open(ECHO_ONLY);
    let mut session = anybody(&gateway);
    assert_eq!(seen(&mut session), ["one__echo"]);
    assert_eq!(echo(&mut session)["result"]["content"][0]["text"], "hi");

    let mut stream = session.listen();
    write(&gateway, NOTHING);
    hears_of_another_list(&mut stream);
    eventually("the session sees nothing", || seen(&mut session).is_empty());
    let refused = echo(&mut session);
    assert_eq!(
        refused["error"]["data"]["code"], "policy_denied",
        "{refused}"
    );

    write(&gateway, ECHO_ONLY);
    eventually("the session sees again", || {
        seen(&mut session) == ["one__echo"]
    });
    assert_eq!(echo(&mut session)["result"]["content"][0]["text"], "hi");
}

#[test]
fn a_reload_says_that_the_policy_changed_and_which_names_are_strange() {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("stderr");
    let stderr = std::fs::File::create(&path).unwrap();
    let gateway = Gateway::up_as(&fixture("one", &[]), |command| {
        command.stderr(stderr);
    });
    gateway.wait_for("one", "ready");
    // Names that no server has stay in force: what they name may come later.
    write(&gateway, "[roles.r]\nallow = [\"one.ehco\", \"two.x\"]");
    let told = || std::fs::read_to_string(&path).unwrap();
    eventually("the change is told", || told().contains("  ~ policy\n"));
    let report = gateway.cli(&["reload", "--json"]);
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

/// A gateway with two roles under this default, and sessions of: a listed role, one whose list is
/// empty, one that is not defined (by now), and nobody's role.
fn listed(default: &str) -> (Gateway, [Session; 4]) {
    let roles = |more: &str| {
        format!(
            "[policy]\ndefault = \"{default}\"\n[roles.reader]\nallow = [\"one.echo\"]\n\
             [roles.locked]\nallow = []\n{more}{}",
            fixture("one", &[])
        )
    };
    let gateway = Gateway::up(&roles("[roles.gone]\nallow = [\"one.echo\"]\n"));
    gateway.wait_for("one", "ready");
    let session = |principal: &str, role: &str| {
        let (_, token) = gateway.token_of(&json!({"principal": principal, "role": role}));
        gateway.session_as(&token, "/mcp")
    };
    let reader = session("ann", "reader");
    let locked = session("bob", "locked");
    let mut gone = session("cid", "gone");
    let owner = gateway.session("/mcp");
    // A role that credentials still name and the file does not.
    std::fs::write(gateway.dir.path().join("bowline.toml"), roles("")).unwrap();
    let expected = if default == "allow" {
        owner.twin().tools()
    } else {
        Vec::new()
    };
    eventually("the role is gone", || gone.tools() == expected);
    (gateway, [reader, locked, gone, owner])
}

fn is_denied(answer: &Value, tool: &str) {
    let error = &answer["error"];
    assert_eq!(error["data"]["code"], "policy_denied", "{answer}");
    assert_eq!(answer["result"], Value::Null);
    assert!(
        error["message"].as_str().unwrap().contains(tool),
        "{answer}"
    );
}

#[test]
fn by_default_allow_only_listed_roles_are_restricted() {
    let (_gateway, [mut reader, mut locked, mut gone, mut owner]) = listed("allow");
    let all = owner.tools();
    assert!(all.len() > 2);
    assert_eq!(reader.tools(), ["one__echo"]);
    assert_eq!(gone.tools(), all, "a role that is not listed sees all");
    assert_eq!(locked.tools(), [""; 0], "an empty list is a lock-out");
    let sum = json!({"a": 1, "b": 2});
    is_denied(&reader.call("one__add", &sum), "add");
    assert_eq!(echo(&mut reader)["result"]["content"][0]["text"], "hi");
    assert_eq!(gone.text("one__add", &sum), "3");
    is_denied(&echo(&mut locked), "echo");
}

#[test]
fn by_default_deny_only_listed_roles_see_anything() {
    let (_gateway, [mut reader, mut locked, mut gone, mut owner]) = listed("deny");
    assert!(owner.tools().len() > 2, "the owner may do all");
    assert_eq!(reader.tools(), ["one__echo"]);
    assert_eq!(gone.tools(), [""; 0]);
    assert_eq!(locked.tools(), [""; 0]);
    assert_eq!(echo(&mut reader)["result"]["content"][0]["text"], "hi");
    is_denied(&echo(&mut gone), "echo");
    is_denied(&echo(&mut locked), "echo");
    let sum = json!({"a": 1, "b": 2});
    is_denied(&reader.call("one__add", &sum), "add");
    assert_eq!(owner.text("one__add", &sum), "3");
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
fn role_test_says_what_decides_and_where_it_stands() {
    let gateway = Gateway::up(&format!("{}{RULES}", fixture("one", &[])));
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
        // The gateway by what is in force, and the file by itself, say the same.
        for more in [&["--json"][..], &["--json", "--config", file]] {
            let output = gateway.cli(&[&["role", "test"], &words[..], more].concat());
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

#[test]
fn role_test_is_read_by_people_and_roles_are_listed_for_programs() {
    let gateway = Gateway::up(&format!("{}{RULES}", fixture("one", &[])));
    let text = std::fs::read_to_string(gateway.dir.path().join("bowline.toml")).unwrap();
    let deny = 1 + text
        .lines()
        .position(|line| line.starts_with("deny"))
        .unwrap();
    let output = gateway.cli(&["role", "test", "reviewer", "one.add"]);
    let shown = String::from_utf8(output.stdout).unwrap();
    let expected = format!(
        "denied  one.add  reviewer: role `reviewer` denies `one.add`\n\
         rule     roles.reviewer.deny, line {deny}\n"
    );
    assert_eq!(shown, expected);
    let output = gateway.cli(&["role", "test", "reviewr", "one.echo"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("did you mean role `reviewer`?"), "{told}");
    for words in [["reviewer", "one"], ["reviewer", ".x"]] {
        let output = gateway.cli(&[&["role", "test"], &words[..]].concat());
        assert_eq!(output.status.code(), Some(2));
    }
    let roles = gateway.api("/api/v1/roles");
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
