//! Bounds of a token at its creation: expiry and profile.

use bowline_testkit::gateway::{Gateway, ModernClient, fixture_config};
use serde_json::{Value, json};

const ROLES: &str = "[roles.reader]\nallow = [\"*\"]\n";

/// Lifetime of a new token in seconds; `None` without expiry.
fn token_lifetime(gateway: &Gateway, more: &Value) -> Option<u64> {
    let mut wanted = json!({"principal": "ann", "role": "reader"});
    let more = more.as_object().unwrap().clone();
    wanted.as_object_mut().unwrap().extend(more);
    let made = gateway.send_api("POST", "/api/v1/tokens", &wanted);
    assert_eq!(made.status, 200, "{}", made.text());
    lifetime_seconds(&made.json())
}

fn lifetime_seconds(token: &Value) -> Option<u64> {
    let end = token["expires_at_ms"].as_u64()?;
    Some((end - token["created_at_ms"].as_u64().unwrap()) / 1_000)
}

#[test]
fn sec_104_tokens_expire_by_default() {
    const DAY: u64 = 24 * 3_600;
    let mut gateway = Gateway::start(ROLES);
    assert_eq!(token_lifetime(&gateway, &json!({})), Some(90 * DAY));
    assert_eq!(
        token_lifetime(&gateway, &json!({"expires_s": 60})),
        Some(60)
    );
    assert_eq!(token_lifetime(&gateway, &json!({"expires": "never"})), None);
    for wrong in [
        json!({"principal": "ann", "role": "reader", "expires": "never", "expires_s": 60}),
        json!({"principal": "ann", "role": "reader", "expires": "later"}),
    ] {
        let refused = gateway.send_api("POST", "/api/v1/tokens", &wrong);
        assert!((400..500).contains(&refused.status), "{}", refused.text());
    }
    let create = ["token", "create", "--principal", "ann", "--role", "reader"];
    for (more, said) in [
        (&[][..], "expires    in 90 d"),
        (&["--expires", "2d"], "expires    in 2 d"),
        (&["--expires", "never"], "expires    never"),
    ] {
        let made = gateway.run_cli(&[&create[..], more].concat());
        let noted = String::from_utf8(made.stderr).unwrap();
        assert!(noted.contains(said), "{more:?}: {noted}");
    }
    // A changed lifetime applies to later tokens, also after a restart.
    gateway.reconfigure(&format!("{ROLES}[tokens]\nlifetime = \"30d\"\n"));
    assert_eq!(token_lifetime(&gateway, &json!({})), Some(30 * DAY));
    gateway.restart_after_kill();
    assert_eq!(token_lifetime(&gateway, &json!({})), Some(30 * DAY));
    let listed = gateway.get_api("/api/v1/tokens");
    assert_eq!(
        lifetime_seconds(&listed["tokens"][0]),
        Some(90 * DAY),
        "{listed}"
    );
    gateway.reconfigure(&format!("{ROLES}[tokens]\nlifetime = \"never\"\n"));
    assert_eq!(token_lifetime(&gateway, &json!({})), None);
}

const PROFILES: &str = r#"
[profiles.small]
allow = ["one.echo"]
[profiles.wide]
allow = ["*"]
"#;

/// The tools listed for a token at an endpoint, with and without a session; empty if the endpoint
/// is refused. Each name has its server's prefix.
fn listed_tools_at(gateway: &Gateway, token: &str, path: &str) -> Vec<String> {
    let client = ModernClient {
        token: token.to_owned(),
        ..gateway.modern_client(path)
    };
    let listed = client.send_request("tools/list", &json!({}));
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
    let mut session = gateway.open_session_as(token, path);
    assert_eq!(
        names(&session.request("tools/list", &json!({}))),
        without_session
    );
    without_session
}

/// Whether a call runs at an endpoint, equally with and without a session.
fn call_runs_at(gateway: &Gateway, token: &str, path: &str, tool: &str) -> bool {
    let arguments = json!({"message": "hi", "a": 1, "b": 2});
    let client = ModernClient {
        token: token.to_owned(),
        ..gateway.modern_client(path)
    };
    let params = json!({"name": tool, "arguments": arguments});
    let ran = client.send_request("tools/call", &params);
    let ran = ran.status == 200 && ran.json()["result"].is_object();
    let mut session = gateway.open_session_as(token, path);
    let same = session.call(tool, &arguments);
    assert_eq!(same["result"].is_object(), ran, "{path} {tool}: {same}");
    ran
}

/// Checks that a token bound to `small` has a single tool, on every path.
fn assert_bound_to_small(gateway: &Gateway, token: &str) {
    for path in ["/mcp", "/mcp/small", "/mcp/wide", "/servers/one/mcp"] {
        assert_eq!(
            listed_tools_at(gateway, token, path),
            ["one__echo"],
            "{path}"
        );
    }
    assert!(listed_tools_at(gateway, token, "/servers/two/mcp").is_empty());
    for (path, tool, expected) in [
        ("/mcp", "one__echo", true),
        ("/mcp", "one__add", false),
        ("/mcp", "two__echo", false),
        ("/mcp/wide", "one__add", false),
        ("/servers/one/mcp", "echo", true),
        ("/servers/one/mcp", "add", false),
    ] {
        assert_eq!(
            call_runs_at(gateway, token, path, tool),
            expected,
            "{path} {tool}"
        );
    }
}

#[test]
fn sec_105_token_profile_holds_on_every_endpoint() {
    let servers = fixture_config("one", &[]) + &fixture_config("two", &[]);
    let mut gateway = Gateway::start(&format!("{servers}{ROLES}{PROFILES}"));
    gateway.wait_for_state("one", "ready");
    gateway.wait_for_state("two", "ready");
    let wanted = json!({"principal": "ann", "role": "reader", "profile": "small"});
    let (id, token) = gateway.create_token(&wanted);
    assert_bound_to_small(&gateway, &token);
    let create = ["token", "create", "--principal", "ann", "--role", "reader"];
    let made = gateway.run_cli(&[&create[..], &["--profile", "small"]].concat());
    let by_command = String::from_utf8(made.stdout).unwrap();
    assert_bound_to_small(&gateway, by_command.trim_end());
    let listed = String::from_utf8(gateway.run_cli(&["token", "ls"]).stdout).unwrap();
    assert!(listed.contains("profile:small"), "{listed}");
    let unknown = json!({"principal": "ann", "role": "reader", "profile": "smal"});
    let refused = gateway.send_api("POST", "/api/v1/tokens", &unknown);
    assert_eq!(refused.status, 422, "{}", refused.text());
    assert_eq!(refused.json()["error"]["suggestions"], json!(["small"]));

    // Later changes of contexts leave the profile in place.
    for contexts in [json!(["profile:wide"]), json!([])] {
        let path = format!("/api/v1/tokens/{id}/context");
        let done = gateway.send_api("PUT", &path, &json!({"contexts": contexts}));
        assert_eq!(done.status, 200, "{}", done.text());
        assert_bound_to_small(&gateway, &token);
    }
    gateway.restart_after_kill();
    gateway.wait_for_state("one", "ready");
    gateway.wait_for_state("two", "ready");
    assert_bound_to_small(&gateway, &token);

    // Without the profile the token sees nothing.
    gateway.reconfigure(&format!("{servers}{ROLES}"));
    for path in ["/mcp", "/mcp/small", "/servers/one/mcp"] {
        assert!(listed_tools_at(&gateway, &token, path).is_empty(), "{path}");
    }
}
