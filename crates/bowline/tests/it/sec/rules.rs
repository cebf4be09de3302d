//! Callers that ask for more than their role allows, on every path that a socket offers.

use serde_json::{Value, json};

use crate::harness::{Gateway, Session, eventually, fixture};

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

fn config(servers: &[&str], roles: &str) -> String {
    let servers: String = servers.iter().map(|name| fixture(name, &[])).collect();
    format!("{servers}{roles}{REST}")
}

fn up(servers: &[&str], roles: &str) -> Gateway {
    let gateway = Gateway::up(&config(servers, roles));
    for server in servers {
        gateway.wait_for(server, "ready");
    }
    gateway
}

/// How many calls reached any server.
fn ran(gateway: &Gateway) -> u64 {
    let servers = gateway.api("/api/v1/servers");
    let servers = servers["servers"].as_array().unwrap().iter();
    servers
        .map(|status| status["calls"].as_u64().unwrap())
        .sum()
}

fn denied(answer: &Value) -> bool {
    let code = &answer["error"]["data"]["code"];
    *code == "policy_denied" || *code == "resource_not_found"
}

/// Everything that can be asked for, by the names of `/mcp` and of the server itself.
const ASKED: [(&str, &str, &str, &str); 7] = [
    ("tools/call", "name", "one__echo", "echo"),
    ("tools/call", "name", "one__add", "add"),
    ("tools/call", "name", "one__fail", "fail"),
    (
        "prompts/get",
        "name",
        "one__test_simple_prompt",
        "test_simple_prompt",
    ),
    (
        "resources/read",
        "uri",
        "test://static-text",
        "test://static-text",
    ),
    (
        "resources/subscribe",
        "uri",
        "test://static-text",
        "test://static-text",
    ),
    (
        "resources/read",
        "uri",
        "bowline://one/test%3A%2F%2Fstatic-text",
        "test://static-text",
    ),
];

fn ask(session: &mut Session, (method, key, shared, own): (&str, &str, &str, &str)) -> Value {
    let name = if session.path().starts_with("/servers") {
        own
    } else {
        shared
    };
    let arguments = json!({"message": "hi", "a": 1, "b": 2});
    session.request(method, &json!({key: name, "arguments": arguments}))
}

#[test]
fn sec_32_no_path_lets_a_caller_use_what_its_role_does_not_allow() {
    let gateway = up(&["one", "two"], NARROW);
    let wanted = [
        json!({"principal": "ann", "role": "reader"}),
        json!({"principal": "bob", "role": "reader", "contexts": ["quiet"]}),
    ];
    for wanted in &wanted {
        let (_, token) = gateway.token_of(wanted);
        for path in ["/mcp", "/mcp/small", "/servers/one/mcp"] {
            let mut session = gateway.session_as(&token, path);
            let seen = session.tools();
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
            for asked in ASKED {
                let before = ran(&gateway);
                let answer = ask(&mut session, asked);
                let allowed = asked.3 == "echo";
                assert_eq!(!denied(&answer), allowed, "{path} {asked:?} {answer}");
                assert_eq!(
                    ran(&gateway) - before,
                    u64::from(allowed),
                    "{path} {asked:?}"
                );
            }
            for tool in ["two__echo", "two__add"] {
                let before = ran(&gateway);
                let answer = session.call(tool, &json!({"message": "hi"}));
                assert!(answer["error"].is_object(), "{path} {tool} {answer}");
                assert_eq!(ran(&gateway), before, "{path} {tool}");
            }
        }
    }
    let metrics = crate::metrics::scrape(&gateway);
    assert!(
        metrics.contains("bowline_denied_total{rule=\"role\"}"),
        "{metrics}"
    );
}

#[test]
fn sec_46_a_list_that_a_role_no_longer_covers_opens_nothing() {
    let gateway = up(&["one"], WIDE);
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "reader"}));
    let paths = ["/mcp", "/servers/one/mcp"];
    let mut sessions = paths.map(|path| gateway.session_as(&token, path));
    for session in &mut sessions {
        assert_eq!(session.tools().len(), 2);
        for asked in ASKED.into_iter().filter(|asked| asked.3 != "fail") {
            let answer = ask(session, asked);
            assert!(answer["result"].is_object(), "{asked:?} {answer}");
        }
    }
    let mut witness = gateway.session_as(&token, "/mcp");
    std::fs::write(
        gateway.dir.path().join("bowline.toml"),
        config(&["one"], NARROW),
    )
    .unwrap();
    eventually("the role is narrower", || witness.tools().len() == 1);
    // These two still hold the lists of before, and ask by them.
    for session in &mut sessions {
        for asked in ASKED.into_iter().filter(|asked| asked.3 != "echo") {
            let before = ran(&gateway);
            let answer = ask(session, asked);
            assert!(denied(&answer), "{asked:?} {answer}");
            assert_eq!(ran(&gateway), before, "{asked:?}");
        }
        assert!(ask(session, ASKED[0])["result"].is_object());
    }
}
