//! Callers with requests beyond the role, on every path of the HTTP edge.

use bowline_testkit::gateway::{Gateway, Session, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

const WIDE: &str = r#"
[roles.reader]
allow = ["one.echo", "one.add", "prompt:one.*", "resource:one.*"]
"#;

const NARROW: &str = r#"
[roles.reader]
allow = ["one.echo"]
"#;

const REST: &str = r#"
[profiles.small]
allow = ["*.echo"]
[context.quiet]
hide = ["one.add", "two"]
"#;

fn rules_config(servers: &[&str], roles: &str) -> String {
    let servers: String = servers
        .iter()
        .map(|name| fixture_config(name, &[]))
        .collect();
    format!("{servers}{roles}{REST}")
}

fn start_with_rules(servers: &[&str], roles: &str) -> Gateway {
    let gateway = Gateway::start(&rules_config(servers, roles));
    for server in servers {
        gateway.wait_for_state(server, "ready");
    }
    gateway
}

/// Number of calls received by the servers.
fn count_calls(gateway: &Gateway) -> u64 {
    let servers = gateway.get_api("/api/v1/servers");
    let servers = servers["servers"].as_array().unwrap().iter();
    servers
        .map(|status| status["calls"].as_u64().unwrap())
        .sum()
}

fn is_denied(answer: &Value) -> bool {
    let code = &answer["error"]["data"]["code"];
    *code == "policy_denied" || *code == "resource_not_found"
}

/// A request for a feature of the server `one`.
#[derive(Clone, Copy, Debug)]
struct FeatureRequest {
    method: &'static str,
    /// Member of the params with the name.
    key: &'static str,
    /// Name on `/mcp`.
    shared_name: &'static str,
    /// Name on the endpoint of the server.
    own_name: &'static str,
}

const fn feature_request(
    method: &'static str,
    key: &'static str,
    shared_name: &'static str,
    own_name: &'static str,
) -> FeatureRequest {
    FeatureRequest {
        method,
        key,
        shared_name,
        own_name,
    }
}

/// All request types.
const REQUESTS: [FeatureRequest; 7] = [
    feature_request("tools/call", "name", "one__echo", "echo"),
    feature_request("tools/call", "name", "one__add", "add"),
    feature_request("tools/call", "name", "one__fail", "fail"),
    feature_request(
        "prompts/get",
        "name",
        "one__test_simple_prompt",
        "test_simple_prompt",
    ),
    feature_request(
        "resources/read",
        "uri",
        "test://static-text",
        "test://static-text",
    ),
    feature_request(
        "resources/subscribe",
        "uri",
        "test://static-text",
        "test://static-text",
    ),
    feature_request(
        "resources/read",
        "uri",
        "bowline://one/test%3A%2F%2Fstatic-text",
        "test://static-text",
    ),
];

fn send_request(session: &mut Session, request: FeatureRequest) -> Value {
    let name = if session.path().starts_with("/servers") {
        request.own_name
    } else {
        request.shared_name
    };
    let arguments = json!({"message": "hi", "a": 1, "b": 2});
    let params = json!({(request.key): name, "arguments": arguments});
    session.request(request.method, &params)
}

#[test]
fn sec_32_no_path_bypasses_role() {
    let gateway = start_with_rules(&["one", "two"], NARROW);
    let wanted = [
        json!({"principal": "ann", "role": "reader"}),
        json!({"principal": "bob", "role": "reader", "contexts": ["quiet"]}),
    ];
    for wanted in &wanted {
        let (_, token) = gateway.create_token(wanted);
        for path in ["/mcp", "/mcp/small", "/servers/one/mcp"] {
            let mut session = gateway.open_session_as(&token, path);
            let seen = session.list_tool_names();
            assert_eq!(seen.len(), 1, "{path} {seen:?}");
            assert!(seen[0].ends_with("echo"), "{path} {seen:?}");
            for list in ["prompts/list", "resources/list", "resources/templates/list"] {
                let answer = session.request(list, &json!({}));
                let lists = answer["result"].as_object().unwrap();
                assert!(
                    lists.values().all(|list| list == &json!([])),
                    "{path} {answer}"
                );
            }
            for asked in REQUESTS {
                let before = count_calls(&gateway);
                let answer = send_request(&mut session, asked);
                let allowed = asked.own_name == "echo";
                assert_eq!(!is_denied(&answer), allowed, "{path} {asked:?} {answer}");
                assert_eq!(
                    count_calls(&gateway) - before,
                    u64::from(allowed),
                    "{path} {asked:?}"
                );
            }
            for tool in ["two__echo", "two__add"] {
                let before = count_calls(&gateway);
                let answer = session.call(tool, &json!({"message": "hi"}));
                assert!(answer["error"].is_object(), "{path} {tool} {answer}");
                assert_eq!(count_calls(&gateway), before, "{path} {tool}");
            }
        }
    }
    let metrics = crate::metrics::scrape_metrics(&gateway);
    assert!(
        metrics.contains("bowline_denied_total{rule=\"role\"}"),
        "{metrics}"
    );
}

#[test]
fn sec_46_outdated_list_grants_nothing() {
    let gateway = start_with_rules(&["one"], WIDE);
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "reader"}));
    let paths = ["/mcp", "/servers/one/mcp"];
    let mut sessions = paths.map(|path| gateway.open_session_as(&token, path));
    for session in &mut sessions {
        assert_eq!(session.list_tool_names().len(), 2);
        for asked in REQUESTS
            .into_iter()
            .filter(|asked| asked.own_name != "fail")
        {
            let answer = send_request(session, asked);
            assert!(answer["result"].is_object(), "{asked:?} {answer}");
        }
    }
    let mut witness = gateway.open_session_as(&token, "/mcp");
    std::fs::write(
        gateway.dir.path().join("bowline.toml"),
        rules_config(&["one"], NARROW),
    )
    .unwrap();
    wait_until("the role is narrower", || {
        witness.list_tool_names().len() == 1
    });
    // The two sessions still hold the earlier lists, and call by name.
    for session in &mut sessions {
        for asked in REQUESTS
            .into_iter()
            .filter(|asked| asked.own_name != "echo")
        {
            let before = count_calls(&gateway);
            let answer = send_request(session, asked);
            assert!(is_denied(&answer), "{asked:?} {answer}");
            assert_eq!(count_calls(&gateway), before, "{asked:?}");
        }
        assert!(send_request(session, REQUESTS[0])["result"].is_object());
    }
}
