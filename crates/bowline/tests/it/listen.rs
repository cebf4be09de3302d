//! `subscriptions/listen`: who has no session is told of changes as well, and of no others.

use serde_json::{Value, json};

use crate::harness::modern::Modern;
use crate::harness::{Gateway, Http, eventually, fixture};
use crate::streams::next_event;

const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";
const UPDATED: &str = "notifications/resources/updated";
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
const WATCHED: &str = "test://watched-resource";
const ID: &str = "io.modelcontextprotocol/subscriptionId";

/// An open stream, and the id of the request that opened it.
struct Stream {
    http: Http,
    id: Value,
}

impl Stream {
    /// Opens a stream with this filter; what it honours comes with it.
    fn open(client: &Modern<'_>, id: Value, filter: &Value) -> (Self, Value) {
        let http = send(client, &id, filter);
        let mut stream = Self { http, id };
        let head = stream.http.read_head();
        assert_eq!(head.status, 200, "{head:?}");
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        assert_eq!(head.header("x-accel-buffering"), Some("no"));
        let first = stream.next();
        assert_eq!(first["method"], ACKNOWLEDGED, "{first}");
        (stream, first["params"]["notifications"].clone())
    }

    /// Returns the next message, which is marked as one of this stream.
    fn next(&mut self) -> Value {
        let event = next_event(&mut self.http).expect("the stream goes on");
        assert_eq!(event.id, None, "nobody can come back to it");
        let told = event.json();
        if told["method"].is_string() {
            assert_eq!(told["params"]["_meta"][ID], self.id, "{told}");
        }
        told
    }

    fn hears(&mut self, method: &str) -> Value {
        let told = self.next();
        assert_eq!(told["method"], method, "{told}");
        told
    }

    /// The stream ends in order: its request is answered, and nothing follows.
    fn ends(&mut self) {
        let last = self.next();
        assert_eq!(last["id"], self.id, "{last}");
        assert_eq!(last["result"]["resultType"], "complete", "{last}");
        assert_eq!(last["result"]["_meta"][ID], self.id, "{last}");
        assert_eq!(next_event(&mut self.http), None);
    }
}

/// Asks for a stream, and reads nothing of what comes.
fn send(client: &Modern<'_>, id: &Value, filter: &Value) -> Http {
    let params = json!({"notifications": filter});
    let message = client.message(id, "subscriptions/listen", &params);
    let mut headers = client.headers(&message);
    let own = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    headers.push(own("Content-Type", "application/json"));
    headers.push(own("Accept", "application/json, text/event-stream"));
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    let mut http = Http::connect(client.gateway.address);
    let text = message.to_string();
    http.send("POST", client.path, &headers, text.as_bytes());
    http
}

fn all(uris: &Value) -> Value {
    json!({
        "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true,
        "resourceSubscriptions": uris,
    })
}

fn up() -> Gateway {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    gateway
}

/// Returns the address by which the endpoint of all servers knows a resource of one.
fn shared(client: &Modern<'_>, own: &str) -> String {
    let list = client.result("resources/list", &json!({}));
    let mut uris = list["resources"].as_array().unwrap().iter();
    let found = uris.find_map(|one| one["uri"].as_str().filter(|uri| uri.ends_with(own)));
    found.unwrap_or_else(|| panic!("{list}")).to_owned()
}

#[test]
fn a_caller_without_a_session_hears_what_it_asked_for_and_nothing_else() {
    let gateway = up();
    for (path, prefix) in [("/mcp", "one__"), ("/servers/one/mcp", "")] {
        let client = gateway.modern(path);
        let uri = shared(&client, WATCHED);
        // A server alone decides for itself; all together know who has what.
        let mut wanted = vec![uri.clone()];
        if path == "/mcp" {
            wanted.push("test://nobody-has-it".to_owned());
        }
        let filter = all(&json!(wanted));
        let (mut stream, told) = Stream::open(&client, json!("a\u{e4}"), &filter);
        assert_eq!(told, all(&json!([uri])), "{path}");
        let (mut tools, told) = Stream::open(&client, json!(7), &json!({"toolsListChanged": true}));
        assert_eq!(told, json!({"toolsListChanged": true}));
        let call = |tool: &str| client.call(&format!("{prefix}{tool}"), &json!({}));
        call("test_trigger_prompt_change");
        stream.hears(PROMPTS);
        call("touch");
        assert_eq!(stream.hears(UPDATED)["params"]["uri"], uri);
        call("test_trigger_tool_change");
        stream.hears(TOOLS);
        // Nothing of the rest came before it.
        tools.hears(TOOLS);
        gateway.order("one", "stop");
        let mut gone = [(); 3].map(|()| stream.next()["method"].clone());
        gone.sort_by_key(Value::to_string);
        assert_eq!(gone, [PROMPTS, RESOURCES, TOOLS], "{path}");
        gateway.order("one", "start");
        gateway.wait_for("one", "ready");
    }
}

#[test]
fn a_stream_that_is_closed_leaves_nothing_behind() {
    let gateway = up();
    let client = gateway.modern("/servers/one/mcp");
    let streams = || gateway.api("/api/v1/status")["streams"].clone();
    let notified = || {
        let touched = client.call("touch", &json!({}));
        touched["structuredContent"]["notified"] == true
    };
    let filter = json!({"resourceSubscriptions": [WATCHED]});
    let (first, _) = Stream::open(&client, json!(1), &filter);
    let (second, _) = Stream::open(&client, json!(1), &filter);
    assert_eq!(streams(), 2);
    assert!(notified());
    drop(first);
    eventually("one is left", || streams() == 1);
    assert!(notified(), "another still wants to know");
    drop(second);
    eventually("none is left", || streams() == 0);
    eventually("the server is told", || !notified());
    // One that is given up before it began is no different.
    drop(send(&client, &json!(2), &filter));
    eventually("none is left", || streams() == 0 && !notified());
}

#[test]
fn streams_end_with_an_answer_when_the_gateway_or_the_credential_goes() {
    let roles = "[roles.reader]\nallow = [\"one.*\"]\n";
    let mut gateway = Gateway::up(&format!("{}{roles}", fixture("one", &[])));
    gateway.wait_for("one", "ready");
    let wanted = json!({"principal": "ann", "role": "reader"});
    let (id, token) = gateway.token_of(&wanted);
    let owner = gateway.modern("/mcp");
    let ann = Modern {
        token,
        ..owner.clone()
    };
    let filter = json!({"toolsListChanged": true});
    let (mut anns, _) = Stream::open(&ann, json!("x"), &filter);
    let (mut owners, _) = Stream::open(&owner, json!(1), &filter);
    let revoked = gateway.ask_api("DELETE", &format!("/api/v1/tokens/{id}"), &json!({}));
    assert_eq!(revoked.status, 200);
    anns.ends();
    owner.call("one__test_trigger_tool_change", &json!({}));
    owners.hears(TOOLS);
    assert!(gateway.stop());
    owners.ends();
}

#[test]
fn every_piece_of_news_is_decided_when_it_is_told() {
    const ALL: &str = r#"allow = ["one.*", "prompt:one.*", "resource:one.*"]"#;
    let server = fixture("one", &[]);
    let rules = |role: &str| format!("{server}[roles.reader]\n{role}\n");
    let gateway = Gateway::up(&rules(ALL));
    gateway.wait_for("one", "ready");
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "reader"}));
    let owner = gateway.modern("/servers/one/mcp");
    let ann = Modern {
        token,
        ..owner.clone()
    };
    let filter = all(&json!([WATCHED]));
    let (mut stream, told) = Stream::open(&ann, json!(1), &filter);
    assert_eq!(told, filter);
    owner.call("touch", &json!({}));
    stream.hears(UPDATED);
    let config = gateway.dir.path().join("bowline.toml");
    std::fs::write(config, rules("allow = [\"one.echo\"]")).unwrap();
    assert!(gateway.cli(&["reload"]).status.success());
    let mut gone = [(); 3].map(|()| stream.next()["method"].clone());
    gone.sort_by_key(Value::to_string);
    assert_eq!(gone, [PROMPTS, RESOURCES, TOOLS]);
    // It sees neither any more: what changes of them is no news to it.
    owner.call("touch", &json!({}));
    owner.call("test_trigger_tool_change", &json!({}));
    let again = json!({"resourceSubscriptions": [WATCHED]});
    let (_, told) = Stream::open(&ann, json!(2), &again);
    assert_eq!(told, json!({}), "nothing is promised");
    std::fs::write(gateway.dir.path().join("bowline.toml"), rules(ALL)).unwrap();
    assert!(gateway.cli(&["reload"]).status.success());
    let mut back = [(); 3].map(|()| stream.next()["method"].clone());
    back.sort_by_key(Value::to_string);
    assert_eq!(back, [PROMPTS, RESOURCES, TOOLS]);
    owner.call("touch", &json!({}));
    stream.hears(UPDATED);
}

#[test]
fn a_filter_that_says_nothing_sensible_opens_no_stream() {
    let gateway = up();
    let client = gateway.modern("/mcp");
    let many: Vec<_> = (0..1_025).map(|one| format!("test://{one}")).collect();
    for filter in [
        json!(null),
        json!([]),
        json!({"toolsListChanged": "yes"}),
        json!({"resourceSubscriptions": [1]}),
        json!({"resourceSubscriptions": many}),
    ] {
        let answer = client.ask("subscriptions/listen", &json!({"notifications": filter}));
        assert_eq!(answer.status, 400, "{filter}");
        assert_eq!(answer.json()["error"]["code"], -32602, "{filter}");
    }
    let message = client.message(
        &json!(1),
        "subscriptions/listen",
        &json!({"notifications": {}}),
    );
    let mut headers = client.headers(&message);
    headers.push(("Accept".to_owned(), "application/json".to_owned()));
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    assert_eq!(client.send(&message, &headers).status, 406);
    let (_, told) = Stream::open(&client, json!(1), &json!({}));
    assert_eq!(told, json!({}));
}
