//! What is written into parameters and out of them, and where names and tokens are afterwards.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;
use crate::link::Rename;

#[expect(clippy::disallowed_methods, reason = "nothing here waits")]
fn request(params: &'static str) -> Request {
    let find = |what: &str| params.find(what).map(|at| at..at + what.len());
    Request {
        rename: find("\"old\"").map(|at| Rename {
            at,
            to: "new".into(),
        }),
        progress_at: find("4711"),
        ..Request::own("m", Some(params.into()), Instant::now())
    }
}

fn client() -> ClientInfo {
    ClientInfo {
        name: "c".into(),
        version: "1".into(),
    }
}

fn check(request: &Request) -> Value {
    let params = request.params.as_deref().unwrap();
    let at = |range: &Range<usize>| &params[range.clone()];
    if let Some(rename) = &request.rename {
        assert_eq!(at(&rename.at), b"\"old\"");
    }
    if let Some(token) = &request.progress_at {
        assert_eq!(at(token), b"4711");
    }
    serde_json::from_slice(params).unwrap()
}

#[test]
fn names_and_tokens_are_found_again_after_a_translation_and_back() {
    for params in [
        r#"{"name":"old"}"#,
        r#"{ "_meta" : { "progressToken":4711 , "x":[1]}, "name" : "old","arguments":{"a":1}}"#,
        r#"{"name":"old","_meta":{"progressToken":4711}}"#,
        r#"{"name":"old","_meta":{}}"#,
    ] {
        let mut sent = request(params);
        let before = check(&sent);
        to_modern(&mut sent, &client(), Abilities::default());
        assert_eq!(sent.era, Era::Modern);
        let after = check(&sent);
        assert_eq!(
            after["_meta"]["io.modelcontextprotocol/protocolVersion"],
            "2026-07-28"
        );
        assert_eq!(after["name"], "old");
        to_legacy(&mut sent);
        let mut back = check(&sent);
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
fn a_caller_cannot_write_what_only_the_gateway_says() {
    let mut sent = request(concat!(
        r#"{"requestState":"forged","_meta":{"io.modelcontextprotocol/clientCapabilities":"#,
        r#"{"sampling":{}},"progressToken":4711,"io.modelcontextprotocol/logLevel":"debug"},"#,
        r#""name":"old","inputResponses":{"a":{}}}"#
    ));
    to_modern(&mut sent, &client(), Abilities::default());
    let said = check(&sent);
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
fn a_request_without_parameters_has_some_afterwards() {
    let mut sent = Request {
        params: None,
        ..request("{}")
    };
    to_modern(&mut sent, &client(), Abilities::default());
    assert!(check(&sent)["_meta"].is_object());
}

#[test]
fn a_member_is_taken_out_and_the_others_stay() {
    let text = br#"{"params":{"_meta":{"a":1,"k":2,"b":[3]},"uri":"x"}}"#;
    let at = Span { start: 19, end: 40 };
    assert_eq!(
        taken_out(text, at, "k"),
        r#"{"params":{"_meta":{"a":1,"b":[3]},"uri":"x"}}"#
    );
}
