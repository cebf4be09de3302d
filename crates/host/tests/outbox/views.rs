//! Definitions of queued tools as shown to clients.

use bowline_core::error::CallError;
use bowline_link::LinkExit;
use bowline_testkit::{GenerationScript, ServerScript, ToolBehaviour, wait_for_state};
use serde_json::{Value, json};

use crate::rig::OutboxRig;

const SCHEMA: &str = concat!(
    r##"{"type":"object","required":["made"],"properties":{"made":{"$ref":"#/$defs/n"}},"##,
    r##""$defs":{"n":{"type":"integer"}}}"##,
);

fn server_with_schema(says: &str) -> GenerationScript {
    let tool = |name: &str| {
        format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"outputSchema":{SCHEMA}}}"#)
    };
    let said = format!(r#"{{"content":[],"structuredContent":{says}}}"#);
    GenerationScript::with_definitions(&[tool("do"), tool("other")])
        .with_behaviour("do", ToolBehaviour::RespondWith(said))
}

#[tokio::test(start_paused = true)]
async fn combined_schema_accepts_both_and_keeps_pin() {
    let good = server_with_schema(r#"{"made":7}"#);
    let script = ServerScript::always(good.clone())
        .then(GenerationScript::failing_start("down"))
        .then(good);
    let rig = OutboxRig::new(script).await;
    let catalog = rig.host.catalog();
    let tools = &catalog.server("s").unwrap().tools;
    let list: Value = serde_json::from_slice(&tools.rendered.result).unwrap();
    let shown = &list["tools"][0]["outputSchema"];
    assert_eq!(
        list["tools"][1]["outputSchema"],
        serde_json::from_str::<Value>(SCHEMA).unwrap()
    );
    let check = jsonschema::validator_for(shown).unwrap();
    assert!(check.is_valid(&json!({"made": 7})) && !check.is_valid(&json!({"made": "x"})));
    let plain: Value = serde_json::from_slice(&tools.items[0].unqueued_definition).unwrap();
    assert_eq!(plain["outputSchema"], list["tools"][1]["outputSchema"]);

    assert!(rig.world.kill("s", LinkExit::Signal(9)));
    assert!(wait_for_state(&rig.host, "s", "backoff").await);
    let said = rig.queue_write(r#"{"n":1}"#).await;
    assert!(check.is_valid(&said), "{said}");
    rig.wait_drained().await;
    assert_eq!(rig.deduplicated_numbers(), [1]);
}

#[tokio::test(start_paused = true)]
async fn output_is_validated_against_own_schema() {
    let queued_like =
        r#"{"queued":true,"tool":"do","idempotencyKey":"k","note":"","id":"1","position":1}"#;
    let rig = OutboxRig::new(ServerScript::always(server_with_schema(queued_like))).await;
    let error = rig.write_as("owner", "{}").await.unwrap_err();
    assert!(matches!(error, CallError::BadOutput { .. }), "{error:?}");
}
