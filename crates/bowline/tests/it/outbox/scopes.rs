//! A queued call is decided as its tool: contexts, profiles and endpoints hide it with the tool.

use serde_json::{Value, json};

use super::world::{World, queued};
use crate::harness::{Http, Session};

const RULES: &str = r#"
[context.no-web]
hide = ["web.*"]
[profiles.small]
allow = ["other.*"]
"#;

fn reads(session: &mut Session, uri: &str) -> bool {
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

/// Returns the next notification of the outbox; a changed resource must not be told before it.
fn next_outbox_notice(stream: &mut Http) -> Value {
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
fn sec_54_outbox_entry_is_decided_as_its_tool() {
    let mut world = World::with("meta", "1h", RULES);
    let (id, token) = world
        .gateway
        .token_of(&json!({"principal": "ann", "role": "agent"}));
    let narrow = json!({"principal": "ann", "role": "agent", "contexts": ["no-web"]});
    let (_, narrow) = world.gateway.token_of(&narrow);
    let bound = json!({"principal": "ann", "role": "agent", "profile": "small"});
    let (_, bound) = world.gateway.token_of(&bound);
    let mut session = world.gateway.session_as(&token, "/mcp");
    let mut stream = session.listen();
    world.web.kill();
    let said = queued(&session.call("web__write_once", &json!({"number": 1})));
    let uri = format!("bowline://outbox/{}", said["id"].as_str().unwrap());
    let read = |token: &str, path: &str| {
        let mut session = world.gateway.session_as(token, path);
        reads(&mut session, &uri)
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
    let modern = crate::harness::modern::Modern {
        token,
        ..world.gateway.modern("/mcp/small")
    };
    let answer = modern.ask("resources/read", &json!({"uri": uri})).json();
    assert!(answer["error"].is_object(), "{answer}");
    assert!(reads(&mut session, &uri));

    // The credential is narrowed while the call waits: it is not sent, and nobody is told.
    let path = format!("/api/v1/tokens/{id}/context");
    let done = world
        .gateway
        .ask_api("PUT", &path, &json!({"contexts": ["no-web"]}));
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(!reads(&mut session, &uri));
    world.web.restart();
    let state = || {
        world
            .gateway
            .api(&format!("/api/v1/outbox/{}", said["id"].as_str().unwrap()))
    };
    crate::harness::eventually("it is refused", || state()["entry"]["state"] == "dead");
    // The row is written when all were told who may hear of it.
    crate::harness::eventually("it is noted", || {
        let noted = world.gateway.api("/api/v1/audit?kind=dead");
        noted["rows"]
            .as_array()
            .is_some_and(|rows| !rows.is_empty())
    });
    assert_eq!(world.ledger(), [] as [(u64, String); 0]);
    let done = world
        .gateway
        .ask_api("PUT", &path, &json!({"contexts": []}));
    assert_eq!(done.status, 200, "{}", done.text());
    assert!(reads(&mut session, &uri), "as wide as before");
    // Of the next one it is told, and of the first nothing was said before.
    world.web.kill();
    let next = queued(&session.call("web__write_once", &json!({"number": 2})));
    world.web.restart();
    let told = next_outbox_notice(&mut stream);
    assert_eq!(told["params"]["data"]["id"], next["id"], "{told}");
}
