//! `subscriptions/listen`: sessionless clients receive exactly the requested change notifications.

use bowline_testkit::gateway::{Gateway, HttpConnection, ModernClient, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use crate::streams::next_event;

const TOOLS: &str = "notifications/tools/list_changed";
const PROMPTS: &str = "notifications/prompts/list_changed";
const RESOURCES: &str = "notifications/resources/list_changed";
const UPDATED: &str = "notifications/resources/updated";
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
const WATCHED: &str = "test://watched-resource";
const ID: &str = "io.modelcontextprotocol/subscriptionId";

/// An open stream, and the id of the opening request.
struct ListenStream {
    http: HttpConnection,
    id: Value,
}

impl ListenStream {
    /// Opens a stream with this filter; returns the acknowledged filter too.
    fn open(client: &ModernClient<'_>, id: Value, filter: &Value) -> (Self, Value) {
        let http = send_listen(client, &id, filter);
        let mut stream = Self { http, id };
        let head = stream.http.read_head();
        assert_eq!(head.status, 200, "{head:?}");
        assert_eq!(head.header("content-type"), Some("text/event-stream"));
        assert_eq!(head.header("x-accel-buffering"), Some("no"));
        let first = stream.next();
        assert_eq!(first["method"], ACKNOWLEDGED, "{first}");
        (stream, first["params"]["notifications"].clone())
    }

    /// Returns the next message, which carries the id of this stream.
    fn next(&mut self) -> Value {
        let event = next_event(&mut self.http).expect("the stream goes on");
        assert_eq!(event.id, None, "nobody can come back to it");
        let told = event.data_json();
        if told["method"].is_string() {
            assert_eq!(told["params"]["_meta"][ID], self.id, "{told}");
        }
        told
    }

    fn expect_notification(&mut self, method: &str) -> Value {
        let told = self.next();
        assert_eq!(told["method"], method, "{told}");
        told
    }

    /// The stream ends in order: its request gets a response, and nothing follows.
    fn assert_ended(&mut self) {
        let last = self.next();
        assert_eq!(last["id"], self.id, "{last}");
        assert_eq!(last["result"]["resultType"], "complete", "{last}");
        assert_eq!(last["result"]["_meta"][ID], self.id, "{last}");
        assert_eq!(next_event(&mut self.http), None);
    }
}

/// Sends a listen request and reads nothing.
fn send_listen(client: &ModernClient<'_>, id: &Value, filter: &Value) -> HttpConnection {
    let params = json!({"notifications": filter});
    let message = client.build_request(id, "subscriptions/listen", &params);
    let mut headers = client.request_headers(&message);
    let own = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    headers.push(own("Content-Type", "application/json"));
    headers.push(own("Accept", "application/json, text/event-stream"));
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    let mut http = HttpConnection::connect(client.gateway.address);
    let text = message.to_string();
    http.send_request("POST", client.path, &headers, text.as_bytes());
    http
}

fn full_filter(uris: &Value) -> Value {
    json!({
        "toolsListChanged": true, "promptsListChanged": true, "resourcesListChanged": true,
        "resourceSubscriptions": uris,
    })
}

fn start_listen_gateway() -> Gateway {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    gateway
}

/// Returns the URI of a server's resource at the endpoint of all servers.
fn shared_uri(client: &ModernClient<'_>, own: &str) -> String {
    let list = client.request_result("resources/list", &json!({}));
    let mut uris = list["resources"].as_array().unwrap().iter();
    let found = uris.find_map(|one| one["uri"].as_str().filter(|uri| uri.ends_with(own)));
    found.unwrap_or_else(|| panic!("{list}")).to_owned()
}

#[test]
fn listen_stream_delivers_only_its_filter() {
    let gateway = start_listen_gateway();
    for (path, prefix) in [("/mcp", "one__"), ("/servers/one/mcp", "")] {
        let client = gateway.modern_client(path);
        let uri = shared_uri(&client, WATCHED);
        // A single-server endpoint passes URIs on; the endpoint of all servers knows each owner.
        let mut wanted = vec![uri.clone()];
        if path == "/mcp" {
            wanted.push("test://nobody-has-it".to_owned());
        }
        let filter = full_filter(&json!(wanted));
        let (mut stream, told) = ListenStream::open(&client, json!("a\u{e4}"), &filter);
        assert_eq!(told, full_filter(&json!([uri])), "{path}");
        let (mut tools, told) =
            ListenStream::open(&client, json!(7), &json!({"toolsListChanged": true}));
        assert_eq!(told, json!({"toolsListChanged": true}));
        let call = |tool: &str| client.call_tool(&format!("{prefix}{tool}"), &json!({}));
        call("test_trigger_prompt_change");
        stream.expect_notification(PROMPTS);
        call("touch");
        assert_eq!(stream.expect_notification(UPDATED)["params"]["uri"], uri);
        call("test_trigger_tool_change");
        stream.expect_notification(TOOLS);
        // No notification came earlier.
        tools.expect_notification(TOOLS);
        gateway.control_server("one", "stop");
        let mut gone = [(); 3].map(|()| stream.next()["method"].clone());
        gone.sort_by_key(Value::to_string);
        assert_eq!(gone, [PROMPTS, RESOURCES, TOOLS], "{path}");
        gateway.control_server("one", "start");
        gateway.wait_for_state("one", "ready");
    }
}

#[test]
fn closed_listen_stream_leaves_nothing() {
    let gateway = start_listen_gateway();
    let client = gateway.modern_client("/servers/one/mcp");
    let streams = || gateway.get_api("/api/v1/status")["streams"].clone();
    let notified = || {
        let touched = client.call_tool("touch", &json!({}));
        touched["structuredContent"]["notified"] == true
    };
    let filter = json!({"resourceSubscriptions": [WATCHED]});
    let (first, _) = ListenStream::open(&client, json!(1), &filter);
    let (second, _) = ListenStream::open(&client, json!(1), &filter);
    assert_eq!(streams(), 2);
    assert!(notified());
    drop(first);
    wait_until("one is left", || streams() == 1);
    assert!(notified(), "another still wants to know");
    drop(second);
    wait_until("none is left", || streams() == 0);
    wait_until("the server is told", || !notified());
    // A stream abandoned before its start leaves nothing either.
    drop(send_listen(&client, &json!(2), &filter));
    wait_until("none is left", || streams() == 0 && !notified());
}

#[test]
fn listen_stream_ends_with_gateway_or_credential() {
    let roles = "[roles.reader]\nallow = [\"one.*\"]\n";
    let mut gateway = Gateway::start(&format!("{}{roles}", fixture_config("one", &[])));
    gateway.wait_for_state("one", "ready");
    let wanted = json!({"principal": "ann", "role": "reader"});
    let (id, token) = gateway.create_token(&wanted);
    let owner = gateway.modern_client("/mcp");
    let ann = ModernClient {
        token,
        ..owner.clone()
    };
    let filter = json!({"toolsListChanged": true});
    let (mut anns, _) = ListenStream::open(&ann, json!("x"), &filter);
    let (mut owners, _) = ListenStream::open(&owner, json!(1), &filter);
    let revoked = gateway.send_api("DELETE", &format!("/api/v1/tokens/{id}"), &json!({}));
    assert_eq!(revoked.status, 200);
    anns.assert_ended();
    owner.call_tool("one__test_trigger_tool_change", &json!({}));
    owners.expect_notification(TOOLS);
    assert!(gateway.stop());
    owners.assert_ended();
}

#[test]
fn notifications_are_authorized_at_delivery() {
    const ALL: &str = r#"allow = ["one.*", "prompt:one.*", "resource:one.*"]"#;
    let server = fixture_config("one", &[]);
    let rules = |role: &str| format!("{server}[roles.reader]\n{role}\n");
    let gateway = Gateway::start(&rules(ALL));
    gateway.wait_for_state("one", "ready");
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "reader"}));
    let owner = gateway.modern_client("/servers/one/mcp");
    let ann = ModernClient {
        token,
        ..owner.clone()
    };
    let filter = full_filter(&json!([WATCHED]));
    let (mut stream, told) = ListenStream::open(&ann, json!(1), &filter);
    assert_eq!(told, filter);
    owner.call_tool("touch", &json!({}));
    stream.expect_notification(UPDATED);
    let config = gateway.dir.path().join("bowline.toml");
    std::fs::write(config, rules("allow = [\"one.echo\"]")).unwrap();
    assert!(gateway.run_cli(&["reload"]).status.success());
    let mut gone = [(); 3].map(|()| stream.next()["method"].clone());
    gone.sort_by_key(Value::to_string);
    assert_eq!(gone, [PROMPTS, RESOURCES, TOOLS]);
    // The client sees neither the resource nor the changed tools any more, so their changes are not
    // delivered.
    owner.call_tool("touch", &json!({}));
    owner.call_tool("test_trigger_tool_change", &json!({}));
    let again = json!({"resourceSubscriptions": [WATCHED]});
    let (_, told) = ListenStream::open(&ann, json!(2), &again);
    assert_eq!(told, json!({}), "nothing is promised");
    std::fs::write(gateway.dir.path().join("bowline.toml"), rules(ALL)).unwrap();
    assert!(gateway.run_cli(&["reload"]).status.success());
    let mut back = [(); 3].map(|()| stream.next()["method"].clone());
    back.sort_by_key(Value::to_string);
    assert_eq!(back, [PROMPTS, RESOURCES, TOOLS]);
    owner.call_tool("touch", &json!({}));
    stream.expect_notification(UPDATED);
}

#[test]
fn invalid_listen_filter_is_refused() {
    let gateway = start_listen_gateway();
    let client = gateway.modern_client("/mcp");
    let many: Vec<_> = (0..1_025).map(|one| format!("test://{one}")).collect();
    for filter in [
        json!(null),
        json!([]),
        json!({"toolsListChanged": "yes"}),
        json!({"resourceSubscriptions": [1]}),
        json!({"resourceSubscriptions": many}),
    ] {
        let answer = client.send_request("subscriptions/listen", &json!({"notifications": filter}));
        assert_eq!(answer.status, 400, "{filter}");
        assert_eq!(answer.json()["error"]["code"], -32602, "{filter}");
    }
    let message = client.build_request(
        &json!(1),
        "subscriptions/listen",
        &json!({"notifications": {}}),
    );
    let mut headers = client.request_headers(&message);
    headers.push(("Accept".to_owned(), "application/json".to_owned()));
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    assert_eq!(client.send_with_headers(&message, &headers).status, 406);
    let (_, told) = ListenStream::open(&client, json!(1), &json!({}));
    assert_eq!(told, json!({}));
}
