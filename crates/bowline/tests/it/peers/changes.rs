//! Clients hear when the tools change, whenever they begin to listen.

use serde_json::json;

use crate::harness::{Gateway, fixture};

#[test]
fn a_stream_opened_after_a_change_tells_of_it() {
    let gateway = Gateway::up(&fixture("one", &[]));
    let mut session = gateway.session("/mcp");
    session.request("tools/list", &json!({}));
    let mut other = gateway.session("/mcp");
    other.request("tools/list", &json!({}));
    let mut early = other.listen();
    early.read_chunk().unwrap();
    other.call("one__test_trigger_tool_change", &json!({}));
    // All who listen have been told when one has.
    early.read_chunk().unwrap();
    other.request("tools/list", &json!({}));
    let mut late = session.listen();
    let mut heard = String::new();
    while !heard.contains("\n\n") {
        heard += &String::from_utf8(late.read_chunk().unwrap()).unwrap();
        heard = heard.trim_start_matches(": bowline\n\n").to_owned();
    }
    assert!(
        heard.contains("notifications/tools/list_changed"),
        "{heard:?}"
    );
    // Whoever knows already is told nothing: the next that is heard is the next change.
    let mut known = other.listen();
    known.read_chunk().unwrap();
    session.call("one__test_trigger_tool_change", &json!({}));
    let event = String::from_utf8(known.read_chunk().unwrap()).unwrap();
    assert_eq!(event.matches("list_changed").count(), 1, "{event:?}");
    let listed = other.request("tools/list", &json!({}));
    assert!(
        !listed.to_string().contains("test_dynamic_tool"),
        "{listed}"
    );
}
