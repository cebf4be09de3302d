//! A principal above its share is told to wait; no other principal waits.

use bowline_testkit::gateway::{Gateway, fixture_config};
use serde_json::json;

/// Calls of the flood.
const FLOOD: u64 = 2_000;

/// Calls within its rate: no more are granted during the test.
const SHARE: u64 = 7;

#[test]
fn sec_14_flood_of_one_principal_is_429() {
    let roles = r#"
[roles.flooder]
allow = ["one.*"]
rate = { calls = 1, per = "12h", burst = 7 }
[roles.quiet]
allow = ["one.*"]
"#;
    let gateway = Gateway::start(&format!("{}{roles}", fixture_config("one", &[])));
    gateway.wait_for_state("one", "ready");
    let flooder = json!({"principal": "flooder", "role": "flooder"});
    // A principal with two tokens and several sessions has a single share.
    let (_, first) = gateway.create_token(&flooder);
    let (_, second) = gateway.create_token(&flooder);
    let (_, other) = gateway.create_token(&json!({"principal": "quiet", "role": "quiet"}));
    let mut floods = [&first, &second, &first].map(|token| gateway.open_session_as(token, "/mcp"));
    let mut quiet = gateway.open_session_as(&other, "/mcp");
    let (mut served, mut refused, mut others) = (0, 0, 0);
    for round in 0..FLOOD {
        let id = round + 1;
        let at = usize::try_from(round).unwrap() % floods.len();
        let answer = floods[at].post(&json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": "one__echo", "arguments": {"message": "more"}},
        }));
        match answer.status {
            200 => {
                assert_eq!(answer.json()["result"]["content"][0]["text"], "more");
                served += 1;
            }
            429 => {
                let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
                assert!((1..=12 * 3_600).contains(&wait), "{wait}");
                let body = answer.json();
                assert_eq!(body["id"], id);
                assert_eq!(body["error"]["data"]["code"], "rate_exceeded", "{body}");
                assert_eq!(body["error"]["data"]["execution"], "not_started");
                refused += 1;
            }
            status => panic!("{status}: {}", answer.text()),
        }
        if round % 20 == 0 {
            assert_eq!(
                quiet.call_text("one__echo", &json!({"message": "hi"})),
                "hi"
            );
            others += 1;
        }
    }
    assert_eq!(
        (served, refused, others),
        (SHARE, FLOOD - SHARE, FLOOD / 20)
    );
    // Refused calls did not reach the server.
    assert_eq!(gateway.server_status("one")["calls"], SHARE + FLOOD / 20);
    // Only calls count: the flooding principal can still list.
    assert!(!floods[0].list_tool_names().is_empty());
}
