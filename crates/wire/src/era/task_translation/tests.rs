//! Tasks in the words of both eras.

use bowline_testkit::McpSchema;
use serde_json::{Value, json};

use super::*;

const MODERN_TASK: &str = r#"{"resultType":"task","taskId":"t","status":"working","createdAt":"c","lastUpdatedAt":"l","ttlMs":null,"pollIntervalMs":5,"_meta":{"k":1},"vendor":1}"#;

fn value(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap()
}

#[test]
fn created_task_translates_between_eras() {
    let legacy = created_to_legacy(MODERN_TASK.as_bytes());
    let want = json!({
        "task": {"taskId": "t", "status": "working", "createdAt": "c", "lastUpdatedAt": "l",
            "ttl": null, "pollInterval": 5, "vendor": 1},
        "_meta": {"k": 1},
    });
    assert_eq!(value(&legacy), want);
    if let Some(schema) = McpSchema::load("2025-11-25", "created_task_translates_between_eras") {
        schema.assert_valid_text("CreateTaskResult", &legacy);
    }
    let back = created_to_modern(&legacy).unwrap();
    assert_eq!(value(&back), value(MODERN_TASK.as_bytes()));
    assert_eq!(created_to_modern(b"{}"), None);
    assert_eq!(created_to_modern(br#"{"task":1}"#), None);
}

#[test]
fn task_outcome_appears_in_modern_only() {
    let task = br#"{"taskId":"t","status":"completed","createdAt":"c","lastUpdatedAt":"l","ttl":60,"pollInterval":5,"statusMessage":"m"}"#;
    let result = br#"{"content":[],"resultType":"complete"}"#;
    let modern = to_modern(task, TaskOutcome::Result(result));
    let want = json!({
        "resultType": "complete", "taskId": "t", "status": "completed", "createdAt": "c",
        "lastUpdatedAt": "l", "ttlMs": 60, "pollIntervalMs": 5, "statusMessage": "m",
        "result": {"content": [], "resultType": "complete"},
    });
    assert_eq!(value(&modern), want);
    let read = ParsedTask::parse(&modern).unwrap();
    assert_eq!((&*read.id, read.status), ("t", TaskStatus::Completed));
    assert_eq!((read.poll_ms, read.ttl_ms), (Some(5), Some(60)));
    assert_eq!(read.result.unwrap().slice(&modern), result);
    let legacy = to_legacy(&modern);
    assert_eq!(value(&legacy), value(task));
    let test = "task_outcome_appears_in_modern_only";
    if let Some(schema) = McpSchema::load("2025-11-25", test) {
        schema.assert_valid_text("GetTaskResult", &legacy);
    }
    let failed = to_modern(task, TaskOutcome::Error(b"{\"code\":1}"));
    assert_eq!(value(&failed)["error"], json!({"code": 1}));
    let asks = to_modern(task, TaskOutcome::InputRequests(b"{}"));
    assert_eq!(value(&asks)["inputRequests"], json!({}));
    assert_eq!(
        value(&to_modern(task, TaskOutcome::Pending))["result"],
        Value::Null
    );
}

#[test]
fn legacy_result_names_its_task() {
    let want = json!({"content": [], "_meta": {RELATED_TASK_KEY: {"taskId": "t\""}}});
    for result in [
        r#"{"content":[]}"#,
        r#"{"content":[],"_meta":null}"#,
        r#"{"content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"other"}}}"#,
    ] {
        assert_eq!(
            value(&with_related_task(result.as_bytes(), "t\"")),
            want,
            "{result}"
        );
    }
}

#[test]
fn invalid_tasks_are_not_parsed() {
    for status in [
        "working",
        "input_required",
        "completed",
        "failed",
        "cancelled",
    ] {
        let text = format!(r#"{{"taskId":"t","status":"{status}"}}"#);
        let task = ParsedTask::parse(text.as_bytes()).unwrap();
        assert_eq!(task.status.as_str(), status);
        assert_eq!(task.id_at.slice(text.as_bytes()), b"\"t\"");
        assert_eq!(
            task.status.is_terminal(),
            ["completed", "failed", "cancelled"].contains(&status)
        );
        let created = format!(r#"{{"task":{text}}}"#);
        let created = ParsedTask::parse_created(created.as_bytes()).unwrap();
        assert_eq!((created.id, created.status), (task.id, task.status));
    }
    for none in [
        "{}",
        "null",
        r#"{"taskId":"t"}"#,
        r#"{"taskId":1,"status":"working"}"#,
        r#"{"taskId":"t","status":"done"}"#,
    ] {
        assert_eq!(ParsedTask::parse(none.as_bytes()), None, "{none}");
    }
    assert!(wants_task(br#"{"name":"x","task":{}}"#));
    assert!(!wants_task(br#"{"name":"x","arguments":{"task":{}}}"#));
    assert!(!wants_task(br#"{"task":null}"#));
}
