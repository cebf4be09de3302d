//! What a hostile server puts into its results and questions.

use serde_json::{Value, json};

use crate::harness::listener::{Answer, Asked, Listener};
use crate::harness::{Gateway, fixture};
use crate::streams::next_event;

/// More than any server may answer at once.
const TOO_LARGE: usize = 65 * 1024 * 1024;

/// More than passes whole, and less than that.
const LARGE: usize = 9 * 1024 * 1024;

fn answer(asked: &Asked, result: &Value) -> Answer {
    let id = &asked.json()["id"];
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
    (200, answer.to_string())
}

fn up(web: &Listener) -> Gateway {
    let one = fixture("one", &[]);
    let gateway = Gateway::up(&format!(
        "{one}\n[servers.web]\nurl = \"{}/mcp\"\n",
        web.url
    ));
    gateway.wait_for("web", "ready");
    gateway.wait_for("one", "ready");
    gateway
}

#[test]
fn sec_30_links_in_a_result_are_passed_on_and_never_followed() {
    let bait = Listener::collector();
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
    let web = Listener::mcp(move |asked| answer(asked, &result));
    let gateway = up(&web);
    let mut session = gateway.session("/mcp");
    let before = gateway.status("one")["calls"].clone();
    assert_eq!(session.call("web__look", &json!({}))["result"], said);
    assert!(bait.asked().is_empty(), "nobody went there");
    let read = |asked: &Asked| asked.json()["method"] == "resources/read";
    assert!(!web.asked().iter().any(read));
    assert_eq!(gateway.status("one")["calls"], before);
    // Read on request, a link leads to the server that showed it, and to no file of ours.
    let _answer = session.request("resources/read", &json!({"uri": "file:///etc/passwd"}));
    assert!(web.asked().iter().any(read));
    assert!(bait.asked().is_empty());
}

#[test]
fn sec_30_a_result_over_the_size_cap_is_an_error_and_the_gateway_goes_on() {
    let web = Listener::mcp(|asked| {
        let arguments = asked.json()["params"]["arguments"].clone();
        let bytes = arguments["bytes"].as_u64().unwrap();
        let text = "x".repeat(usize::try_from(bytes).unwrap());
        answer(asked, &json!({"content": [{"type": "text", "text": text}]}))
    });
    let gateway = up(&web);
    let mut session = gateway.session("/mcp");
    let large = session.call("web__look", &json!({"bytes": TOO_LARGE}));
    let code = &large["error"]["data"]["code"];
    assert_eq!(code, "answer_too_large", "{:.300}", large.to_string());
    let kept = session.call("web__look", &json!({"bytes": LARGE}));
    assert!(kept.to_string().len() < 256 * 1024, "its beginning alone");
    assert_eq!(kept["result"]["content"][2]["type"], "resource_link");
    assert_eq!(session.text("web__look", &json!({"bytes": 3})), "xxx");
    assert_eq!(session.text("one__echo", &json!({"message": "hi"})), "hi");
}

#[test]
fn sec_31_structured_content_that_breaks_its_schema_does_not_reach_the_caller() {
    let schema = json!({"type": "object", "properties": {"count": {"type": "integer"}}});
    let tool = json!({
        "name": "look", "inputSchema": {"type": "object"}, "outputSchema": schema,
    });
    let web = Listener::mcp_with(tool, |asked| {
        let said = asked.json()["params"]["arguments"].clone();
        answer(asked, &json!({"content": [], "structuredContent": said}))
    });
    let gateway = up(&web);
    let mut session = gateway.session("/mcp");
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
fn sec_33_a_question_names_its_server_and_a_form_for_secrets_reaches_nobody() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let session = gateway.able(&json!({"elicitation": {}}));
    let mut caller = session.twin();
    caller.send_call(7, "one__test_elicitation", &json!({"message": "who?"}));
    caller.http.read_head();
    next_event(&mut caller.http).unwrap();
    let question = next_event(&mut caller.http).unwrap().json();
    assert_eq!(
        question["params"]["_meta"]["dev.bowline/server"], "one",
        "{question}"
    );
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}});
    let mut answering = session.twin();
    assert_eq!(answering.post(&answer).status, 202);
    assert_eq!(next_event(&mut caller.http).unwrap().json()["id"], 7);

    let mut caller = session.twin();
    let asks = json!({"message": "sign in", "more": "apiToken"});
    let refused = caller.call("one__test_elicitation", &asks);
    let text = refused.to_string();
    assert!(text.contains("must not ask for secrets"), "{refused}");
    assert!(!text.contains("elicitation/create\",\"params"), "{refused}");
    let plain = session.twin().call("one__echo", &json!({"message": "hi"}));
    assert_eq!(plain["result"]["content"][0]["text"], "hi");
}
