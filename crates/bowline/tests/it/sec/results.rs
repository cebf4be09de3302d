//! Hostile content in results and server requests.

use bowline_testkit::gateway::{
    Gateway, ReceivedRequest, StubResponse, StubServer, fixture_config,
};
use serde_json::{Value, json};

use crate::streams::next_event;

/// Above the limit of a response.
const TOO_LARGE: usize = 65 * 1024 * 1024;

/// Above the limit of a whole result, below the limit of a response.
const LARGE: usize = 9 * 1024 * 1024;

fn respond(asked: &ReceivedRequest, result: &Value) -> StubResponse {
    let id = &asked.json()["id"];
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
    (200, answer.to_string())
}

fn start_for(web: &StubServer) -> Gateway {
    let one = fixture_config("one", &[]);
    let gateway = Gateway::start(&format!(
        "{one}\n[servers.web]\nurl = \"{}/mcp\"\n",
        web.url
    ));
    gateway.wait_for_state("web", "ready");
    gateway.wait_for_state("one", "ready");
    gateway
}

#[test]
fn sec_30_result_links_are_never_followed() {
    let bait = StubServer::start_collector();
    let mut links = Vec::new();
    for uri in [
        "file:///etc/passwd",
        &format!("{}/x", bait.url),
        "test://static-text",
    ] {
        links.push(json!({"type": "resource_link", "uri": uri, "name": "read me"}));
    }
    let said = json!({"content": links});
    let result = said.clone();
    let web = StubServer::start_mcp(move |asked| respond(asked, &result));
    let gateway = start_for(&web);
    let mut session = gateway.open_session("/mcp");
    let before = gateway.server_status("one")["calls"].clone();
    assert_eq!(session.call("web__look", &json!({}))["result"], said);
    assert!(bait.requests().is_empty(), "nobody went there");
    let read = |asked: &ReceivedRequest| asked.json()["method"] == "resources/read";
    assert!(!web.requests().iter().any(read));
    assert_eq!(gateway.server_status("one")["calls"], before);
    // Reading a link goes to the link's server, never to a local file.
    let _answer = session.request("resources/read", &json!({"uri": "file:///etc/passwd"}));
    assert!(web.requests().iter().any(read));
    assert!(bait.requests().is_empty());
}

#[test]
fn sec_30_oversized_result_is_error() {
    let web = StubServer::start_mcp(|asked| {
        let arguments = asked.json()["params"]["arguments"].clone();
        let bytes = arguments["bytes"].as_u64().unwrap();
        let text = "x".repeat(usize::try_from(bytes).unwrap());
        respond(asked, &json!({"content": [{"type": "text", "text": text}]}))
    });
    let gateway = start_for(&web);
    let mut session = gateway.open_session("/mcp");
    let large = session.call("web__look", &json!({"bytes": TOO_LARGE}));
    let code = &large["error"]["data"]["code"];
    assert_eq!(code, "answer_too_large", "{:.300}", large.to_string());
    let kept = session.call("web__look", &json!({"bytes": LARGE}));
    assert!(kept.to_string().len() < 256 * 1024, "its beginning alone");
    assert_eq!(kept["result"]["content"][2]["type"], "resource_link");
    assert_eq!(session.call_text("web__look", &json!({"bytes": 3})), "xxx");
    assert_eq!(
        session.call_text("one__echo", &json!({"message": "hi"})),
        "hi"
    );
}

#[test]
fn sec_31_invalid_structured_content_is_withheld() {
    let schema = json!({"type": "object", "properties": {"count": {"type": "integer"}}});
    let tool = json!({
        "name": "look", "inputSchema": {"type": "object"}, "outputSchema": schema,
    });
    let web = StubServer::start_mcp_with_tool(tool, |asked| {
        let said = asked.json()["params"]["arguments"].clone();
        respond(asked, &json!({"content": [], "structuredContent": said}))
    });
    let gateway = start_for(&web);
    let mut session = gateway.open_session("/mcp");
    let good = session.call("web__look", &json!({"count": 1}));
    assert_eq!(good["result"]["structuredContent"]["count"], 1, "{good}");
    let bad = session.call("web__look", &json!({"count": "all of it"}));
    assert_eq!(bad["error"]["data"]["code"], "bad_output", "{bad}");
    assert_eq!(bad["error"]["data"]["execution"], "completed", "{bad}");
    let text = bad.to_string();
    assert!(
        text.contains("/count") && !text.contains("all of it"),
        "{bad}"
    );
}

#[test]
fn sec_33_elicitation_names_server_and_hides_secrets() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let session = gateway.open_session_with_capabilities(&json!({"elicitation": {}}));
    let mut caller = session.clone_on_new_connection();
    caller.send_call(7, "one__test_elicitation", &json!({"message": "who?"}));
    caller.http.read_head();
    next_event(&mut caller.http).unwrap();
    let question = next_event(&mut caller.http).unwrap().data_json();
    assert_eq!(
        question["params"]["_meta"]["dev.bowline/server"], "one",
        "{question}"
    );
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}});
    let mut answering = session.clone_on_new_connection();
    assert_eq!(answering.post(&answer).status, 202);
    assert_eq!(next_event(&mut caller.http).unwrap().data_json()["id"], 7);

    let mut caller = session.clone_on_new_connection();
    let asks = json!({"message": "sign in", "more": "apiToken"});
    let refused = caller.call("one__test_elicitation", &asks);
    let text = refused.to_string();
    assert!(text.contains("must not ask for secrets"), "{refused}");
    assert!(!text.contains("elicitation/create\",\"params"), "{refused}");
    let plain = session
        .clone_on_new_connection()
        .call("one__echo", &json!({"message": "hi"}));
    assert_eq!(plain["result"]["content"][0]["text"], "hi");
}
