//! One principal that asks for more than its share is told to wait; nobody else waits.

use serde_json::json;

use crate::harness::{Gateway, fixture};

/// Calls that the flood makes.
const FLOOD: u64 = 2_000;

/// Calls that its rate lets through: no more become free while the test runs.
const SHARE: u64 = 7;

#[test]
fn sec_14_a_flood_of_one_principal_is_429_and_others_are_served() {
    let roles = r#"
[roles.flooder]
allow = ["one.*"]
rate = { calls = 1, per = "12h", burst = 7 }
[roles.quiet]
allow = ["one.*"]
"#;
    let gateway = Gateway::up(&format!("{}{roles}", fixture("one", &[])));
    gateway.wait_for("one", "ready");
    let flooder = json!({"principal": "flooder", "role": "flooder"});
    // The same principal on two tokens and several sessions: one share all the same.
    let (_, first) = gateway.token_of(&flooder);
    let (_, second) = gateway.token_of(&flooder);
    let (_, other) = gateway.token_of(&json!({"principal": "quiet", "role": "quiet"}));
    let mut floods = [&first, &second, &first].map(|token| gateway.session_as(token, "/mcp"));
    let mut quiet = gateway.session_as(&other, "/mcp");
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
            assert_eq!(quiet.text("one__echo", &json!({"message": "hi"})), "hi");
            others += 1;
        }
    }
    assert_eq!(
        (served, refused, others),
        (SHARE, FLOOD - SHARE, FLOOD / 20)
    );
    // What was refused did not reach the server.
    assert_eq!(gateway.status("one")["calls"], SHARE + FLOOD / 20);
    // Only calls are counted: the flooder still sees what there is.
    assert!(!floods[0].tools().is_empty());
}
