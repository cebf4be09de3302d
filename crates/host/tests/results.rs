//! Results that are too long to be passed on whole: what is passed on, and who reads the rest.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Call, Principal, Role, Scope, Subject};
use bowline_core::error::Execution;
use bowline_host::{Host, HostLimits, Otherwise, Policy};
use bowline_sim::{Act, Generation, Script, World, ask, body, call, reaches, spec};
use serde_json::{Value, json};

const RESULT_MAX: usize = 100_000;

async fn world(definitions: &[String], result: &Value) -> (World, Host) {
    let mut generation = Generation::definitions(definitions);
    for definition in definitions {
        let definition: Value = serde_json::from_str(definition).unwrap();
        let says = Act::Says(result.to_string());
        generation = generation.act(definition["name"].as_str().unwrap(), says);
    }
    let world = World::new([("s", Script::always(generation))]);
    let mut server = spec("s");
    server.result_max = RESULT_MAX;
    let host = world.host(vec![server], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    (world, host)
}

fn plain() -> Vec<String> {
    vec![bowline_sim::definition("t")]
}

fn texts(texts: &[&str]) -> Value {
    let content = texts
        .iter()
        .map(|text| json!({"type": "text", "text": text}));
    json!({"content": content.collect::<Vec<_>>()})
}

async fn result(host: &Host, call: Call) -> Value {
    let reply = host.call(call).await.unwrap();
    serde_json::from_str(&body(&reply)).unwrap()
}

fn read(uri: &str) -> Call {
    let mut call = ask(Subject::Resource(uri.into()), "uri");
    call.scope = Scope::All;
    call
}

fn by(name: &str, mut call: Call) -> Call {
    call.principal = Arc::new(Principal::new(name, Role::Named("r".into())));
    call
}

#[tokio::test(start_paused = true)]
async fn long_result_is_kept_and_read_in_parts() {
    let text = "zeile ü\n".repeat(400_000);
    let (world, host) = world(&plain(), &texts(&[&text])).await;
    let short = result(&host, call("s__t", "{}")).await;
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
        let part = result(&host, read(&uri)).await;
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
    // After ten minutes nothing is kept.
    let uri = meta["uri"].as_str().unwrap();
    assert!(host.call(read(uri)).await.is_ok());
    tokio::time::advance(Duration::from_secs(600)).await;
    let gone = host.call(read(uri)).await.unwrap_err();
    assert_eq!(gone.code(), "resource_not_found");
}

#[tokio::test(start_paused = true)]
async fn kept_result_is_read_by_its_principal_only() {
    let (_world, host) = world(&plain(), &texts(&["x".repeat(200_000).as_str()])).await;
    host.set_policy(Policy::new(Otherwise::Allow));
    let short = result(&host, by("ann", call("s__t", "{}"))).await;
    let uri = short["_meta"]["dev.bowline/result"]["uri"]
        .as_str()
        .unwrap();
    assert!(host.call(by("ann", read(uri))).await.is_ok());
    let code = async |call| host.call(call).await.unwrap_err().code();
    assert_eq!(code(by("bob", read(uri))).await, "resource_not_found");
    assert_eq!(
        code(read(uri)).await,
        "resource_not_found",
        "not the owner either"
    );
    let mut elsewhere = by("ann", read(uri));
    elsewhere.scope = Scope::Server("other".into());
    assert_eq!(code(elsewhere).await, "resource_not_found");
    let beyond = format!("{uri}?offset=200000");
    assert_eq!(code(by("ann", read(&beyond))).await, "resource_not_found");
    // Whoever may not call the tool any more reads nothing of its results.
    host.set_policy(Policy::new(Otherwise::Deny));
    assert_eq!(code(by("ann", read(uri))).await, "resource_not_found");
}

#[tokio::test(start_paused = true)]
async fn shortened_result_of_schema_tool_is_error_result() {
    let schema = r#"{"name":"t","inputSchema":{"type":"object"},"outputSchema":{"type":"object"}}"#;
    let mut long = texts(&["short"]);
    long["structuredContent"] = json!({"text": "y".repeat(200_000)});
    let (_world, host) = world(&[schema.to_owned()], &long).await;
    let short = result(&host, call("s__t", "{}")).await;
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
    let whole = result(&host, read(uri)).await;
    let whole = whole["contents"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(whole).unwrap(), long);
}

#[tokio::test(start_paused = true)]
async fn result_within_limit_passes_whole() {
    let long = texts(&["x".repeat(RESULT_MAX - 1_000).as_str()]);
    let (_world, host) = world(&plain(), &long).await;
    assert_eq!(result(&host, call("s__t", "{}")).await, long);
}

#[tokio::test(start_paused = true)]
async fn response_that_cannot_be_kept_is_refused_as_completed() {
    let long = json!({"messages": [], "description": "x".repeat(200_000)}).to_string();
    let generation = Generation::definitions(&plain()).answers("prompts/get", "", &long);
    let world = World::new([("s", Script::always(generation))]);
    let mut server = spec("s");
    server.result_max = RESULT_MAX;
    let host = world.host(vec![server], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    let mut get = ask(Subject::Prompt("p".into()), "name");
    get.scope = Scope::Server("s".into());
    let refused = host.call(get).await.unwrap_err();
    assert_eq!(refused.code(), "answer_too_large");
    assert_eq!(refused.execution(), Execution::Completed);
}
