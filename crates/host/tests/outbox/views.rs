//! What clients are shown of a tool that is queued.

use bowline_core::error::CallError;
use bowline_link::Exit;
use bowline_sim::{Act, Generation, Script, reaches};
use serde_json::{Value, json};

use crate::rig::Rig;

const SCHEMA: &str = concat!(
    r##"{"type":"object","required":["made"],"properties":{"made":{"$ref":"#/$defs/n"}},"##,
    r##""$defs":{"n":{"type":"integer"}}}"##,
);

fn promising(says: &str) -> Generation {
    let tool = |name: &str| {
        format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"outputSchema":{SCHEMA}}}"#)
    };
    let said = format!(r#"{{"content":[],"structuredContent":{says}}}"#);
    Generation::definitions(&[tool("do"), tool("other")]).act("do", Act::Says(said))
}

#[tokio::test(start_paused = true)]
async fn a_client_that_checks_results_accepts_both_and_the_pin_stays_the_servers_own() {
    let good = promising(r#"{"made":7}"#);
    let script = Script::always(good.clone())
        .then(Generation::fails("down"))
        .then(good);
    let rig = Rig::new(script).await;
    let catalog = rig.host.catalog();
    let tools = &catalog.offer("s").unwrap().tools;
    let list: Value = serde_json::from_slice(&tools.listing.result).unwrap();
    let shown = &list["tools"][0]["outputSchema"];
    assert_eq!(
        list["tools"][1]["outputSchema"],
        serde_json::from_str::<Value>(SCHEMA).unwrap()
    );
    let check = jsonschema::validator_for(shown).unwrap();
    assert!(check.is_valid(&json!({"made": 7})) && !check.is_valid(&json!({"made": "x"})));
    let plain: Value = serde_json::from_slice(&tools.items[0].plain).unwrap();
    assert_eq!(plain["outputSchema"], list["tools"][1]["outputSchema"]);

    assert!(rig.world.kill("s", Exit::Signal(9)));
    assert!(reaches(&rig.host, "s", "backoff").await);
    let said = rig.queue(r#"{"n":1}"#).await;
    assert!(check.is_valid(&said), "{said}");
    rig.drained().await;
    assert_eq!(rig.done(), [1]);
}

#[tokio::test(start_paused = true)]
async fn what_the_tool_promises_is_checked_against_its_own_schema() {
    let queued_like =
        r#"{"queued":true,"tool":"do","idempotencyKey":"k","note":"","id":"1","position":1}"#;
    let rig = Rig::new(Script::always(promising(queued_like))).await;
    let error = rig.write_as("owner", "{}").await.unwrap_err();
    assert!(matches!(error, CallError::BadOutput { .. }), "{error:?}");
}
