//! What a token is bound to when it is made: its end, and a profile.

use serde_json::{Value, json};

use crate::harness::modern::Modern;
use crate::harness::{Gateway, fixture};

const ROLES: &str = "[roles.reader]\nallow = [\"*\"]\n";

/// Seconds from making to expiry of a new token; none where it has no end.
fn life_of(gateway: &Gateway, more: &Value) -> Option<u64> {
    let mut wanted = json!({"principal": "ann", "role": "reader"});
    let more = more.as_object().unwrap().clone();
    wanted.as_object_mut().unwrap().extend(more);
    let made = gateway.ask_api("POST", "/api/v1/tokens", &wanted);
    assert_eq!(made.status, 200, "{}", made.text());
    seconds(&made.json())
}

fn seconds(token: &Value) -> Option<u64> {
    let end = token["expires_at_ms"].as_u64()?;
    Some((end - token["created_at_ms"].as_u64().unwrap()) / 1_000)
}

#[test]
fn sec_104_tokens_expire_by_default() {
    const DAY: u64 = 24 * 3_600;
    let mut gateway = Gateway::up(ROLES);
    assert_eq!(life_of(&gateway, &json!({})), Some(90 * DAY));
    assert_eq!(life_of(&gateway, &json!({"expires_s": 60})), Some(60));
    assert_eq!(life_of(&gateway, &json!({"expires": "never"})), None);
    for wrong in [
        json!({"principal": "ann", "role": "reader", "expires": "never", "expires_s": 60}),
        json!({"principal": "ann", "role": "reader", "expires": "later"}),
    ] {
        let refused = gateway.ask_api("POST", "/api/v1/tokens", &wrong);
        assert!((400..500).contains(&refused.status), "{}", refused.text());
    }
    let create = ["token", "create", "--principal", "ann", "--role", "reader"];
    for (more, said) in [
        (&[][..], "expires    in 90 d"),
        (&["--expires", "2d"], "expires    in 2 d"),
        (&["--expires", "never"], "expires    never"),
    ] {
        let made = gateway.cli(&[&create[..], more].concat());
        let noted = String::from_utf8(made.stderr).unwrap();
        assert!(noted.contains(said), "{more:?}: {noted}");
    }
    // Another lifetime counts for tokens that are made later, also after a restart.
    gateway.reconfigure(&format!("{ROLES}[tokens]\nlifetime = \"30d\"\n"));
    assert_eq!(life_of(&gateway, &json!({})), Some(30 * DAY));
    gateway.restart_after_kill();
    assert_eq!(life_of(&gateway, &json!({})), Some(30 * DAY));
    let listed = gateway.api("/api/v1/tokens");
    assert_eq!(seconds(&listed["tokens"][0]), Some(90 * DAY), "{listed}");
    gateway.reconfigure(&format!("{ROLES}[tokens]\nlifetime = \"never\"\n"));
    assert_eq!(life_of(&gateway, &json!({})), None);
}

const PROFILES: &str = r#"
[profiles.small]
allow = ["one.echo"]
[profiles.wide]
allow = ["*"]
"#;

/// The tools that a token is listed at an endpoint, with a session and without; none where the
/// endpoint is refused. Whatever is listed has its server's name before it.
fn tools_at(gateway: &Gateway, token: &str, path: &str) -> Vec<String> {
    let client = Modern {
        token: token.to_owned(),
        ..gateway.modern(path)
    };
    let listed = client.ask("tools/list", &json!({}));
    if listed.status == 404 {
        return Vec::new();
    }
    let names = |listed: &Value| -> Vec<String> {
        let tools = listed["result"]["tools"].as_array().unwrap().iter();
        let server = path
            .strip_prefix("/servers/")
            .and_then(|rest| rest.split_once('/'));
        let name = |tool: &Value| match server {
            Some((server, _)) => format!("{server}__{}", tool["name"].as_str().unwrap()),
            None => tool["name"].as_str().unwrap().to_owned(),
        };
        tools.map(name).collect()
    };
    let without_session = names(&listed.json());
    let mut session = gateway.session_as(token, path);
    assert_eq!(
        names(&session.request("tools/list", &json!({}))),
        without_session
    );
    without_session
}

/// Whether a call runs at an endpoint, alike with a session and without.
fn runs_at(gateway: &Gateway, token: &str, path: &str, tool: &str) -> bool {
    let arguments = json!({"message": "hi", "a": 1, "b": 2});
    let client = Modern {
        token: token.to_owned(),
        ..gateway.modern(path)
    };
    let params = json!({"name": tool, "arguments": arguments});
    let ran = client.ask("tools/call", &params);
    let ran = ran.status == 200 && ran.json()["result"].is_object();
    let mut session = gateway.session_as(token, path);
    let same = session.call(tool, &arguments);
    assert_eq!(same["result"].is_object(), ran, "{path} {tool}: {same}");
    ran
}

/// Sees that a token bound to `small` has one tool of one server, whatever it asks.
fn check_bound(gateway: &Gateway, token: &str) {
    for path in ["/mcp", "/mcp/small", "/mcp/wide", "/servers/one/mcp"] {
        assert_eq!(tools_at(gateway, token, path), ["one__echo"], "{path}");
    }
    assert!(tools_at(gateway, token, "/servers/two/mcp").is_empty());
    for (path, tool, expected) in [
        ("/mcp", "one__echo", true),
        ("/mcp", "one__add", false),
        ("/mcp", "two__echo", false),
        ("/mcp/wide", "one__add", false),
        ("/servers/one/mcp", "echo", true),
        ("/servers/one/mcp", "add", false),
    ] {
        assert_eq!(
            runs_at(gateway, token, path, tool),
            expected,
            "{path} {tool}"
        );
    }
}

#[test]
fn sec_105_profile_of_a_token_holds_on_every_endpoint() {
    let servers = fixture("one", &[]) + &fixture("two", &[]);
    let mut gateway = Gateway::up(&format!("{servers}{ROLES}{PROFILES}"));
    gateway.wait_for("one", "ready");
    gateway.wait_for("two", "ready");
    let wanted = json!({"principal": "ann", "role": "reader", "profile": "small"});
    let (id, token) = gateway.token_of(&wanted);
    check_bound(&gateway, &token);
    let create = ["token", "create", "--principal", "ann", "--role", "reader"];
    let made = gateway.cli(&[&create[..], &["--profile", "small"]].concat());
    let by_command = String::from_utf8(made.stdout).unwrap();
    check_bound(&gateway, by_command.trim_end());
    let listed = String::from_utf8(gateway.cli(&["token", "ls"]).stdout).unwrap();
    assert!(listed.contains("profile:small"), "{listed}");
    let unknown = json!({"principal": "ann", "role": "reader", "profile": "smal"});
    let refused = gateway.ask_api("POST", "/api/v1/tokens", &unknown);
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert_eq!(refused.json()["error"]["suggestions"], json!(["small"]));

    // What is set and taken away later leaves the profile as it is.
    for contexts in [json!(["profile:wide"]), json!([])] {
        let path = format!("/api/v1/tokens/{id}/context");
        let done = gateway.ask_api("PUT", &path, &json!({"contexts": contexts}));
        assert_eq!(done.status, 200, "{}", done.text());
        check_bound(&gateway, &token);
    }
    gateway.restart_after_kill();
    gateway.wait_for("one", "ready");
    gateway.wait_for("two", "ready");
    check_bound(&gateway, &token);

    // Without the profile nothing is left of the token.
    gateway.reconfigure(&format!("{servers}{ROLES}"));
    for path in ["/mcp", "/mcp/small", "/servers/one/mcp"] {
        assert!(tools_at(&gateway, &token, path).is_empty(), "{path}");
    }
}
