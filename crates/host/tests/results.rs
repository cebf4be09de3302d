//! Long results: the shortened response, and reading the rest.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{CallRequest, CallSubject, EndpointScope, Principal, Role};
use bowline_core::error::ExecutionStatus;
use bowline_host::{DefaultAction, Host, HostLimits, Policy};
use bowline_testkit::{
    GenerationScript, ServerScript, SimWorld, ToolBehaviour, reply_body, server_spec, subject_call,
    tool_call, wait_for_state,
};
use serde_json::{Value, json};

const RESULT_MAX: usize = 100_000;

async fn world_with_result(definitions: &[String], result: &Value) -> (SimWorld, Host) {
    let mut generation = GenerationScript::with_definitions(definitions);
    for definition in definitions {
        let definition: Value = serde_json::from_str(definition).unwrap();
        let says = ToolBehaviour::RespondWith(result.to_string());
        generation = generation.with_behaviour(definition["name"].as_str().unwrap(), says);
    }
    let world = SimWorld::new([("s", ServerScript::always(generation))]);
    let mut server = server_spec("s");
    server.result_max = RESULT_MAX;
    let host = world.start_host(vec![server], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    (world, host)
}

fn plain_definitions() -> Vec<String> {
    vec![bowline_testkit::tool_definition("t")]
}

fn text_result(texts: &[&str]) -> Value {
    let content = texts
        .iter()
        .map(|text| json!({"type": "text", "text": text}));
    json!({"content": content.collect::<Vec<_>>()})
}

async fn call_result(host: &Host, call: CallRequest) -> Value {
    let reply = host.call(call).await.unwrap();
    serde_json::from_str(&reply_body(&reply)).unwrap()
}

fn read_call(uri: &str) -> CallRequest {
    let mut call = subject_call(CallSubject::Resource(uri.into()), "uri");
    call.scope = EndpointScope::All;
    call
}

fn as_principal(name: &str, mut call: CallRequest) -> CallRequest {
    call.principal = Arc::new(Principal::new(name, Role::Named("r".into())));
    call
}

#[tokio::test(start_paused = true)]
async fn long_result_is_stored_and_read_in_parts() {
    let text = "zeile ü\n".repeat(400_000);
    let (world, host) = world_with_result(&plain_definitions(), &text_result(&[&text])).await;
    let short = call_result(&host, tool_call("s__t", "{}")).await;
    assert_eq!(short["isError"], false);
    let meta = &short["_meta"]["dev.bowline/result"];
    assert_eq!(
        (&meta["execution"], &meta["bytes"]),
        (&json!("completed"), &json!(text.len()))
    );
    let mut all = short["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(all.len() <= 64 * 1024 && text.starts_with(&all));
    let link = &short["content"][2];
    assert_eq!(link["type"], "resource_link");
    assert_eq!(link["size"], text.len() - all.len());
    let mut next = link["uri"].as_str().map(str::to_owned);
    while let Some(uri) = next {
        let part = call_result(&host, read_call(&uri)).await;
        let part = &part["contents"][0];
        assert_eq!(
            (&part["uri"], &part["mimeType"]),
            (&json!(uri), &json!("text/plain"))
        );
        let said = part["text"].as_str().unwrap();
        assert!(said.len() <= 1024 * 1024);
        all.push_str(said);
        next = part["_meta"]["dev.bowline/next"]
            .as_str()
            .map(str::to_owned);
    }
    assert_eq!(all.len(), text.len());
    assert!(all == text, "the parts are the whole");
    assert_eq!(world.record().executions.len(), 1);
    // After ten minutes the result is gone.
    let uri = meta["uri"].as_str().unwrap();
    assert!(host.call(read_call(uri)).await.is_ok());
    tokio::time::advance(Duration::from_secs(600)).await;
    let gone = host.call(read_call(uri)).await.unwrap_err();
    assert_eq!(gone.code(), "resource_not_found");
}

#[tokio::test(start_paused = true)]
async fn stored_result_is_read_by_principal_only() {
    let (_world, host) = world_with_result(
        &plain_definitions(),
        &text_result(&["x".repeat(200_000).as_str()]),
    )
    .await;
    host.set_policy(Policy::new(DefaultAction::Allow));
    let short = call_result(&host, as_principal("ann", tool_call("s__t", "{}"))).await;
    let uri = short["_meta"]["dev.bowline/result"]["uri"]
        .as_str()
        .unwrap();
    assert!(host.call(as_principal("ann", read_call(uri))).await.is_ok());
    let code = async |call| host.call(call).await.unwrap_err().code();
    assert_eq!(
        code(as_principal("bob", read_call(uri))).await,
        "resource_not_found"
    );
    assert_eq!(
        code(read_call(uri)).await,
        "resource_not_found",
        "not the owner either"
    );
    let mut elsewhere = as_principal("ann", read_call(uri));
    elsewhere.scope = EndpointScope::Server("other".into());
    assert_eq!(code(elsewhere).await, "resource_not_found");
    let beyond = format!("{uri}?offset=200000");
    assert_eq!(
        code(as_principal("ann", read_call(&beyond))).await,
        "resource_not_found"
    );
    // A principal that lost the tool reads nothing of its results.
    host.set_policy(Policy::new(DefaultAction::Deny));
    assert_eq!(
        code(as_principal("ann", read_call(uri))).await,
        "resource_not_found"
    );
}

#[tokio::test(start_paused = true)]
async fn shortened_result_of_schema_tool_is_error_result() {
    let schema = r#"{"name":"t","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}}"#;
    let mut long = text_result(&["short"]);
    long["structuredContent"] = json!({"text": "y".repeat(200_000)});
    let (_world, host) = world_with_result(&[schema.to_owned()], &long).await;
    let short = call_result(&host, tool_call("s__t", "{}")).await;
    assert_eq!(
        short["isError"], true,
        "no client looks for structured content"
    );
    assert_eq!(short["content"][2]["mimeType"], "application/json");
    let note = short["content"][1]["text"].as_str().unwrap();
    assert!(
        note.starts_with("The call completed; do not repeat it."),
        "{note}"
    );
    let uri = short["_meta"]["dev.bowline/result"]["uri"]
        .as_str()
        .unwrap();
    let whole = call_result(&host, read_call(uri)).await;
    let whole = whole["contents"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(whole).unwrap(), long);
}

#[tokio::test(start_paused = true)]
async fn result_within_limit_passes_whole() {
    let long = text_result(&["x".repeat(RESULT_MAX - 1_000).as_str()]);
    let (_world, host) = world_with_result(&plain_definitions(), &long).await;
    assert_eq!(call_result(&host, tool_call("s__t", "{}")).await, long);
}

#[tokio::test(start_paused = true)]
async fn unstorable_response_fails_as_completed() {
    let long = json!({"messages": [], "description": "x".repeat(200_000)}).to_string();
    let generation = GenerationScript::with_definitions(&plain_definitions()).respond_with(
        "prompts/get",
        "",
        &long,
    );
    let world = SimWorld::new([("s", ServerScript::always(generation))]);
    let mut server = server_spec("s");
    server.result_max = RESULT_MAX;
    let host = world.start_host(vec![server], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    let mut get = subject_call(CallSubject::Prompt("p".into()), "name");
    get.scope = EndpointScope::Server("s".into());
    let refused = host.call(get).await.unwrap_err();
    assert_eq!(refused.code(), "answer_too_large");
    assert_eq!(refused.execution_status(), ExecutionStatus::Completed);
}
