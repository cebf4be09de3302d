//! Large tool sets over real sockets: found, described and called instead of listed, by the same
//! rules as everything else.

use serde_json::{Value, json};

use crate::harness::{Gateway, Session, eventually, fixture};

/// A gateway with two servers that everybody on this machine may use.
fn open(gateway: &str) -> Gateway {
    let config = written(gateway);
    let gateway = Gateway::up_with(&config, &["--insecure-no-auth"]);
    gateway.wait_for("one", "ready");
    gateway.wait_for("two", "ready");
    gateway
}

fn written(gateway: &str) -> String {
    format!("{gateway}\n{}{}", fixture("one", &[]), fixture("two", &[]))
}

fn anybody(gateway: &Gateway) -> Session {
    Session::open(gateway.address, "/mcp", None)
}

const META: [&str; 3] = ["find_tools", "describe_tool", "call_tool"];

const SEARCH: &str = "[policy]\ndefault = \"allow\"\n[gateway]\nexpose = \"search\"\n";

/// The names that a search returns.
fn found(session: &mut Session, query: &str) -> Vec<String> {
    let answer = session.call("find_tools", &json!({"query": query, "limit": 5}));
    let said = &answer["result"]["structuredContent"];
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert_eq!(&serde_json::from_str::<Value>(text).unwrap(), said);
    let tools = said["tools"].as_array().unwrap().iter();
    let names = tools.map(|tool| tool["name"].as_str().unwrap().to_owned());
    names.collect()
}

#[test]
fn a_tool_that_is_not_listed_is_found_described_and_called() {
    let gateway = open(SEARCH);
    let mut session = anybody(&gateway);
    assert_eq!(session.tools(), META);

    let names = found(&mut session, "echo a message");
    assert!(
        names.starts_with(&["one__echo".to_owned(), "two__echo".to_owned()]),
        "{names:?}"
    );
    let described = session.call("describe_tool", &json!({"name": "one__echo"}));
    let tool = &described["result"]["structuredContent"]["tool"];
    assert_eq!(tool["name"], "one__echo");
    assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");

    let inside = json!({"name": "two__echo", "arguments": {"message": "hi"}});
    let called = session.call("call_tool", &inside);
    assert_eq!(called["result"]["content"][0]["text"], "hi", "{called}");
    // By its own name it is called as ever: what is not listed is not hidden.
    let called = session.call("two__echo", &json!({"message": "ho"}));
    assert_eq!(called["result"]["content"][0]["text"], "ho", "{called}");
    // The endpoint of one server is as it was.
    let mut own = Session::open(gateway.address, "/servers/one/mcp", None);
    assert!(own.tools().contains(&"echo".to_owned()));
    let unknown = own.call("find_tools", &json!({"query": "echo"}));
    assert_eq!(unknown["error"]["data"]["code"], "tool_not_found");
}

#[test]
fn what_a_role_may_not_use_is_not_found_not_described_and_not_called() {
    let rules = "[gateway]\nexpose = \"search\"\nfavourites = [\"*.add\", \"one.echo\"]\n\
        [roles.r]\nallow = [\"one.*\"]\ndeny = [\"one.echo\"]\n\
        [principals.anonymous-local]\nrole = \"r\"";
    let gateway = open(rules);
    let mut session = anybody(&gateway);
    // Favourites are listed as far as they may be seen.
    let listed = session.tools();
    assert_eq!(listed.get(..3), Some(&META.map(str::to_owned)[..]));
    assert_eq!(listed.get(3..), Some(&["one__add".to_owned()][..]));

    let names = found(&mut session, "echo message add numbers");
    assert!(names.contains(&"one__add".to_owned()), "{names:?}");
    for hidden in ["one__echo", "two__add", "two__echo"] {
        assert!(!names.contains(&hidden.to_owned()), "{names:?}");
        let described = session.call("describe_tool", &json!({"name": hidden}));
        assert_eq!(described["result"]["isError"], true, "{described}");
        let inside = json!({"name": hidden, "arguments": {"message": "x"}});
        let called = session.call("call_tool", &inside);
        assert_eq!(called["error"]["data"]["code"], "policy_denied", "{called}");
    }
}

#[test]
fn few_tools_are_listed_in_auto_and_another_setting_counts_at_once() {
    let all = "[policy]\ndefault = \"allow\"\n";
    let gateway = open(all);
    let mut session = anybody(&gateway);
    let whole = session.tools();
    assert!(whole.len() > 40, "the fixtures have {} tools", whole.len());
    let unknown = session.call("find_tools", &json!({"query": "echo"}));
    assert_eq!(unknown["error"]["data"]["code"], "tool_not_found");

    let path = gateway.dir.path().join("bowline.toml");
    let auto = format!("{all}[gateway]\nexpose = \"auto\"\n");
    std::fs::write(&path, written(&auto)).unwrap();
    eventually("many are found", || session.tools() == META);
    // Whoever may use few of them sees those.
    let few = "[gateway]\nexpose = \"auto\"\n[roles.r]\nallow = [\"one.echo\", \"two.add\"]\n\
        [principals.anonymous-local]\nrole = \"r\"";
    std::fs::write(&path, written(few)).unwrap();
    eventually("few are listed", || {
        session.tools() == ["one__echo", "two__add"]
    });
}

#[test]
fn wrong_arguments_are_told_as_the_tools_error() {
    let gateway = open(SEARCH);
    let mut session = anybody(&gateway);
    for (tool, arguments) in [
        ("find_tools", json!({})),
        ("find_tools", json!({"query": " "})),
        ("describe_tool", json!({})),
        ("describe_tool", json!({"name": "no__such"})),
        ("call_tool", json!({"arguments": {}})),
        ("call_tool", json!({"name": "one__echo", "arguments": "{}"})),
    ] {
        let answer = session.call(tool, &arguments);
        assert_eq!(answer["result"]["isError"], true, "{tool} {arguments}");
    }
    let unknown = session.call("call_tool", &json!({"name": "one__nothing"}));
    assert_eq!(unknown["error"]["data"]["code"], "tool_not_found");
}

#[test]
fn progress_reaches_the_caller_through_call_tool() {
    let gateway = open(SEARCH);
    let mut session = anybody(&gateway);
    let params = json!({
        "name": "call_tool",
        "arguments": {"name": "one__test_tool_with_progress", "arguments": {}},
        "_meta": {"progressToken": "T"},
    });
    let message = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": params});
    let events = session.post(&message).events();
    let told = events
        .iter()
        .filter(|event| event["method"] == "notifications/progress");
    let tokens: Vec<_> = told
        .map(|event| &event["params"]["progressToken"])
        .collect();
    assert!(
        !tokens.is_empty() && tokens.iter().all(|token| **token == "T"),
        "{events:?}"
    );
    let answer = events.last().unwrap();
    assert_eq!(answer["id"], 9);
    assert!(answer["result"]["content"].is_array(), "{answer}");
}

#[test]
fn the_command_line_finds_tools_and_says_what_definitions_cost() {
    let gateway = open(SEARCH);
    let shown = |args: &[&str]| {
        let output = gateway.cli(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = shown(&["search", "echo", "message"]);
    assert!(text.starts_with("one.echo"), "{text}");
    let json: Value = serde_json::from_str(&shown(&["search", "echo", "--json"])).unwrap();
    assert_eq!(json["tools"][0]["tool"], "echo", "{json}");
    let nothing = gateway.cli(&["search", "xyzzy"]);
    assert!(nothing.status.success() && nothing.stdout.is_empty());

    let text = shown(&["ls", "--tokens"]);
    assert!(text.contains("expose = \"search\""), "{text}");
    let json: Value = serde_json::from_str(&shown(&["ls", "--tokens", "--json"])).unwrap();
    assert_eq!(json["listed"], 3);
    let (all, listed) = (json["tokens"].as_u64(), json["listed_tokens"].as_u64());
    assert!(all > listed && listed > Some(0), "{json}");
    let json: Value = serde_json::from_str(&shown(&["ls", "one", "--tokens", "--json"])).unwrap();
    assert!(json["tools"].as_array().unwrap().len() > 20, "{json}");
}
