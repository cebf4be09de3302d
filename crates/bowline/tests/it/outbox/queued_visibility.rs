//! A queued call is authorized as its tool: contexts, profiles and endpoints hide both.

use bowline_testkit::gateway::{HttpConnection, ModernClient, Session};
use bowline_testkit::wait_until;
use serde_json::{Value, json};

use super::outbox_setup::{OutboxSetup, expect_queued};

const RULES: &str = r#"
[context.no-web]
hide = ["web.*"]
[profiles.small]
allow = ["other.*"]
"#;

fn can_read(session: &mut Session, uri: &str) -> bool {
    let answer = session.request("resources/read", &json!({"uri": uri}));
    let listens = session.request("resources/subscribe", &json!({"uri": uri}));
    let is_read = answer["result"]["contents"].is_array();
    assert_eq!(listens["result"].is_object(), is_read, "{listens}");
    if !is_read {
        assert_eq!(
            answer["error"]["data"]["code"], "resource_not_found",
            "{answer}"
        );
    }
    is_read
}

/// Returns the next outbox notification; a resource update must not precede it.
fn next_outbox_notice(stream: &mut HttpConnection) -> Value {
    loop {
        let event = crate::streams::next_event(stream).unwrap();
        let data = event.data.unwrap_or_default();
        let data: Value = serde_json::from_str(&data).unwrap_or_default();
        assert_ne!(data["method"], "notifications/resources/updated", "{data}");
        if data["params"]["logger"] == "bowline.outbox" {
            return data;
        }
    }
}

#[test]
fn sec_54_outbox_entry_is_authorized_as_its_tool() {
    let mut world = OutboxSetup::with_config("meta", "1h", RULES);
    let (id, token) = world
        .gateway
        .create_token(&json!({"principal": "ann", "role": "agent"}));
    let narrow = json!({"principal": "ann", "role": "agent", "contexts": ["no-web"]});
    let (_, narrow) = world.gateway.create_token(&narrow);
    let bound = json!({"principal": "ann", "role": "agent", "profile": "small"});
    let (_, bound) = world.gateway.create_token(&bound);
    let mut session = world.gateway.open_session_as(&token, "/mcp");
    let mut stream = session.open_stream();
    world.http_server.kill();
    let said = expect_queued(&session.call("web__write_once", &json!({"number": 1})));
    let uri = format!("bowline://outbox/{}", said["id"].as_str().unwrap());
    let read = |token: &str, path: &str| {
        let mut session = world.gateway.open_session_as(token, path);
        can_read(&mut session, &uri)
    };
    assert!(read(&token, "/mcp"));
    assert!(read(&token, "/servers/web/mcp"));
    assert!(!read(&narrow, "/mcp"), "a context hides the tool");
    assert!(
        !read(&bound, "/mcp"),
        "the profile of a token is without the tool"
    );
    assert!(!read(&token, "/mcp/small"), "a profile is without the tool");
    let owner = world.gateway.token.clone();
    assert!(read(&owner, "/mcp"));
    assert!(!read(&owner, "/mcp/small"));
    let modern = ModernClient {
        token,
        ..world.gateway.modern_client("/mcp/small")
    };
    let answer = modern
        .send_request("resources/read", &json!({"uri": uri}))
        .json();
    assert!(answer["error"].is_object(), "{answer}");
    assert!(can_read(&mut session, &uri));

    // The token is narrowed while the call waits: the call is not sent, and no notification
    // follows.
    let path = format!("/api/v1/tokens/{id}/context");
    let done = world
        .gateway
        .send_api("PUT", &path, &json!({"contexts": ["no-web"]}));
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(!can_read(&mut session, &uri));
    world.http_server.restart();
    let state = || {
        world
            .gateway
            .get_api(&format!("/api/v1/outbox/{}", said["id"].as_str().unwrap()))
    };
    wait_until("it is refused", || state()["entry"]["state"] == "dead");
    // The row is written after all notifications were sent.
    wait_until("it is noted", || {
        let noted = world.gateway.get_api("/api/v1/audit?kind=dead");
        noted["rows"]
            .as_array()
            .is_some_and(|rows| !rows.is_empty())
    });
    assert_eq!(world.http_ledger(), [] as [(u64, String); 0]);
    let done = world
        .gateway
        .send_api("PUT", &path, &json!({"contexts": []}));
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(can_read(&mut session, &uri), "as wide as before");
    // The next call is announced, and the first was not.
    world.http_server.kill();
    let next = expect_queued(&session.call("web__write_once", &json!({"number": 2})));
    world.http_server.restart();
    let told = next_outbox_notice(&mut stream);
    assert_eq!(told["params"]["data"]["id"], next["id"], "{told}");
}
