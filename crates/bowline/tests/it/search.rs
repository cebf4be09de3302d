//! Large tool sets over real sockets: searched, described and called instead of listed, under the
//! usual rules.

use bowline_testkit::gateway::{Gateway, Session, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

/// A gateway with two servers, open to every local client.
fn start_open_gateway(gateway: &str) -> Gateway {
    let config = search_config(gateway);
    let gateway = Gateway::start_with_args(&config, &["--insecure-no-auth"]);
    gateway.wait_for_state("one", "ready");
    gateway.wait_for_state("two", "ready");
    gateway
}

fn search_config(gateway: &str) -> String {
    format!(
        "{gateway}\n{}{}",
        fixture_config("one", &[]),
        fixture_config("two", &[])
    )
}

fn open_anonymous_session(gateway: &Gateway) -> Session {
    Session::open(gateway.address, "/mcp", None)
}

const META: [&str; 3] = ["find_tools", "describe_tool", "call_tool"];

const SEARCH: &str = "[policy]\ndefault = \"allow\"\n[gateway]\nexpose = \"search\"\n";

/// The names returned by a search.
fn search_tools(session: &mut Session, query: &str) -> Vec<String> {
    let answer = session.call("find_tools", &json!({"query": query, "limit": 5}));
    let said = &answer["result"]["structuredContent"];
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert_eq!(&serde_json::from_str::<Value>(text).unwrap(), said);
    let tools = said["tools"].as_array().unwrap().iter();
    let names = tools.map(|tool| tool["name"].as_str().unwrap().to_owned());
    names.collect()
}

#[test]
fn unlisted_tool_is_found_described_and_called() {
    let gateway = start_open_gateway(SEARCH);
    let mut session = open_anonymous_session(&gateway);
    assert_eq!(session.list_tool_names(), META);

    let names = search_tools(&mut session, "echo a message");
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
    // An unlisted tool can still be called by its own name.
    let called = session.call("two__echo", &json!({"message": "ho"}));
    assert_eq!(called["result"]["content"][0]["text"], "ho", "{called}");
    // The endpoint of a single server is unchanged.
    let mut own = Session::open(gateway.address, "/servers/one/mcp", None);
    assert!(own.list_tool_names().contains(&"echo".to_owned()));
    let unknown = own.call("find_tools", &json!({"query": "echo"}));
    assert_eq!(unknown["error"]["data"]["code"], "tool_not_found");
}

#[test]
fn search_hides_tools_outside_role() {
    let rules = "[gateway]\nexpose = \"search\"\nfavourites = [\"*.add\", \"one.echo\"]\n\
        [roles.r]\nallow = [\"one.*\"]\ndeny = [\"one.echo\"]\n\
        [principals.anonymous-local]\nrole = \"r\"";
    let gateway = start_open_gateway(rules);
    let mut session = open_anonymous_session(&gateway);
    // Favourites are listed if visible to the role.
    let listed = session.list_tool_names();
    assert_eq!(listed.get(..3), Some(&META.map(str::to_owned)[..]));
    assert_eq!(listed.get(3..), Some(&["one__add".to_owned()][..]));

    let names = search_tools(&mut session, "echo message add numbers");
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
fn auto_lists_few_tools_and_follows_setting() {
    let all = "[policy]\ndefault = \"allow\"\n";
    let gateway = start_open_gateway(all);
    let mut session = open_anonymous_session(&gateway);
    let whole = session.list_tool_names();
    assert!(whole.len() > 40, "the fixtures have {} tools", whole.len());
    let unknown = session.call("find_tools", &json!({"query": "echo"}));
    assert_eq!(unknown["error"]["data"]["code"], "tool_not_found");

    let path = gateway.dir.path().join("bowline.toml");
    let auto = format!("{all}[gateway]\nexpose = \"auto\"\n");
    std::fs::write(&path, search_config(&auto)).unwrap();
    wait_until("many are found", || session.list_tool_names() == META);
    // A role with few tools gets a plain list.
    let few = "[gateway]\nexpose = \"auto\"\n[roles.r]\nallow = [\"one.echo\", \"two.add\"]\n\
        [principals.anonymous-local]\nrole = \"r\"";
    std::fs::write(&path, search_config(few)).unwrap();
    wait_until("few are listed", || {
        session.list_tool_names() == ["one__echo", "two__add"]
    });
}

#[test]
fn call_tool_reports_wrong_arguments_as_tool_error() {
    let gateway = start_open_gateway(SEARCH);
    let mut session = open_anonymous_session(&gateway);
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
fn progress_passes_through_call_tool() {
    let gateway = start_open_gateway(SEARCH);
    let mut session = open_anonymous_session(&gateway);
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
fn search_command_finds_tools_and_token_cost() {
    let gateway = start_open_gateway(SEARCH);
    let shown = |args: &[&str]| {
        let output = gateway.run_cli(args);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = shown(&["search", "echo", "message"]);
    assert!(text.starts_with("one.echo"), "{text}");
    let json: Value = serde_json::from_str(&shown(&["search", "echo", "--json"])).unwrap();
    assert_eq!(json["tools"][0]["tool"], "echo", "{json}");
    let nothing = gateway.run_cli(&["search", "xyzzy"]);
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
