//! Translation of parameters, and shifted positions of names and tokens.

use std::ops::Range;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::link::ParamRename;

#[expect(clippy::disallowed_methods, reason = "nothing here waits")]
fn test_request(params: &'static str) -> LinkRequest {
    let find = |what: &str| params.find(what).map(|at| at..at + what.len());
    let mut request = LinkRequest::new_internal("m", params.into(), Instant::now());
    request.rename = find("\"old\"").map(|at| ParamRename {
        at,
        to: "new".into(),
    });
    request.message.progress_at = find("4711");
    request
}

fn test_client_info() -> ClientInfo {
    ClientInfo {
        name: "c".into(),
        version: "1".into(),
    }
}

fn assert_positions_and_parse(request: &LinkRequest) -> Value {
    let params = &request.message.params[..];
    let at = |range: &Range<usize>| &params[range.clone()];
    if let Some(rename) = &request.rename {
        assert_eq!(at(&rename.at), b"\"old\"");
    }
    if let Some(token) = &request.message.progress_at {
        assert_eq!(at(token), b"4711");
    }
    serde_json::from_slice(params).unwrap()
}

#[test]
fn positions_survive_translation_and_back() {
    for params in [
        r#"{"name":"old"}"#,
        r#"{ "_meta" : { "progressToken":4711 , "x":[1]}, "name" : "old","arguments":{"a":1}}"#,
        r#"{"name":"old","_meta":{"progressToken":4711}}"#,
        r#"{"name":"old","_meta":{}}"#,
    ] {
        let mut sent = test_request(params);
        let before = assert_positions_and_parse(&sent);
        to_modern(
            &mut sent,
            &test_client_info(),
            ClientCapabilities::default(),
        );
        assert_eq!(sent.message.era, Era::Modern);
        let after = assert_positions_and_parse(&sent);
        assert_eq!(
            after["_meta"]["io.modelcontextprotocol/protocolVersion"],
            "2026-07-28"
        );
        assert_eq!(after["name"], "old");
        to_legacy(&mut sent);
        let mut back = assert_positions_and_parse(&sent);
        if before.get("_meta").is_none() {
            assert_eq!(
                back.as_object_mut().unwrap().remove("_meta"),
                Some(json!({}))
            );
        }
        assert_eq!(back, before);
    }
}

#[test]
fn caller_cannot_forge_gateway_meta() {
    let mut sent = test_request(concat!(
        r#"{"requestState":"forged","_meta":{"io.modelcontextprotocol/clientCapabilities":"#,
        r#"{"sampling":{}},"progressToken":4711,"io.modelcontextprotocol/logLevel":"debug"},"#,
        r#""name":"old","inputResponses":{"a":{}}}"#
    ));
    to_modern(
        &mut sent,
        &test_client_info(),
        ClientCapabilities::default(),
    );
    let said = assert_positions_and_parse(&sent);
    assert_eq!(
        said["_meta"]["io.modelcontextprotocol/clientCapabilities"],
        json!({})
    );
    assert_eq!(said["_meta"].get("io.modelcontextprotocol/logLevel"), None);
    assert_eq!(
        (said.get("requestState"), said.get("inputResponses")),
        (None, None)
    );
}

#[test]
fn translation_adds_missing_params() {
    let mut sent = test_request("{}");
    sent.message.params = Bytes::new();

    to_modern(
        &mut sent,
        &test_client_info(),
        ClientCapabilities::default(),
    );
    assert!(assert_positions_and_parse(&sent)["_meta"].is_object());
}
