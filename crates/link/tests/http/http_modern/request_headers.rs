//! Routing and parameter headers, and protection against header injection.

use bowline_core::era::{HeaderParam, HeaderParams};
use bowline_link::ParamRename;
use bowline_testkit::wait_bounded;

use super::*;

/// Names chosen by servers and callers, and their header encoding.
const NAMES: [(&str, &str); 12] = [
    ("plain", "plain"),
    ("a b", "a b"),
    ("", ""),
    (" padded", "=?base64?IHBhZGRlZA==?="),
    ("padded\t", "=?base64?cGFkZGVkCQ==?="),
    ("zwölf", "=?base64?enfDtmxm?="),
    ("x\r\nEvil: 1", "=?base64?eA0KRXZpbDogMQ==?="),
    ("x\nEvil: 1", "=?base64?eApFdmlsOiAx?="),
    ("x\u{0}y", "=?base64?eAB5?="),
    ("x\u{7f}y", "=?base64?eH95?="),
    (
        "=?base64?cGxhaW4=?=",
        "=?base64?PT9iYXNlNjQ/Y0d4aGFXND0/PQ==?=",
    ),
    ("=?base64?=", "=?base64?PT9iYXNlNjQ/PQ==?="),
];

fn header_params(list: &[(&str, &[&str])]) -> HeaderParams {
    let mirror = |(name, path): &(&str, &[&str])| HeaderParam {
        name: (*name).into(),
        path: path.iter().map(|key| Box::from(*key)).collect(),
    };
    Some(list.iter().map(mirror).collect())
}

/// Returns a string literal with every character escaped.
fn escaped_literal(text: &str) -> String {
    let units = text.encode_utf16();
    let escaped: String = units.map(|unit| format!("\\u{unit:04x}")).collect();
    format!("\"{escaped}\"")
}

/// Returns the sorted names of all headers.
fn header_names(seen: &SeenRequest) -> Vec<String> {
    let mut names = seen.header_names();
    names.sort();
    names
}

#[tokio::test]
async fn name_header_is_encoded_safely() {
    let mut scene = modern_scene().await;
    let mut usual = None;
    for (name, want) in NAMES {
        for renamed in [false, true] {
            let mut call = match renamed {
                false => modern_request(
                    "tools/call",
                    &format!(r#""name":{}"#, escaped_literal(name)),
                ),
                true => modern_request("tools/call", r#""name":"x""#),
            };
            if renamed {
                let at = r#"{"name":"#.len();
                call.rename = Some(ParamRename {
                    at: at..at + 3,
                    to: name.into(),
                });
            }
            let call = scene.start_request(call);
            let seen = scene.server.next_post().await;
            assert_eq!(seen.header("mcp-name"), Some(want), "{name:?}");
            let usual = usual.get_or_insert_with(|| header_names(&seen));
            assert_eq!(*usual, header_names(&seen), "{name:?}");
            seen.respond_result("{}").await;
            call.await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn header_params_are_repeated_in_headers() {
    let mut scene = modern_scene().await;
    let all: &[(&str, &[&str])] = &[
        ("Region", &["region"]),
        ("Deep", &["a", "b"]),
        ("Count", &["n"]),
        ("Flag", &["f"]),
        ("None", &["nothing"]),
        ("Null", &["null"]),
    ];
    let arguments = r#"{"region":"us-west1","a":{"b":"Hello, 世界"},"n":-7,"f":true,"null":null,"nothing_else":1}"#;
    let mut call = modern_request(
        "tools/call",
        &format!(r#""name":"x","arguments":{arguments}"#),
    );
    call.header_params = header_params(all);
    let call = scene.start_request(call);
    let seen = scene.server.next_post().await;
    for (name, want) in [
        ("mcp-param-region", Some("us-west1")),
        ("mcp-param-deep", Some("=?base64?SGVsbG8sIOS4lueVjA==?=")),
        ("mcp-param-count", Some("-7")),
        ("mcp-param-flag", Some("true")),
        ("mcp-param-none", None),
        ("mcp-param-null", None),
    ] {
        assert_eq!(seen.header(name), want, "{name}");
    }
    seen.respond_result("{}").await;
    call.await.unwrap().unwrap();
}

#[tokio::test]
async fn argument_header_is_encoded_safely() {
    let mut scene = modern_scene().await;
    for (value, want) in NAMES {
        let literal = escaped_literal(value);
        let params = format!(r#""name":"x","arguments":{{"v":{literal}}}"#);
        let mut call = modern_request("tools/call", &params);
        call.header_params = header_params(&[("V", &["v"])]);
        let call = scene.start_request(call);
        let seen = scene.server.next_post().await;
        assert_eq!(seen.header("mcp-param-v"), Some(want), "{value:?}");
        assert_eq!(seen.header("evil"), None);
        seen.respond_result("{}").await;
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn invalid_header_param_adds_no_header() {
    let mut scene = modern_scene().await;
    for name in ["", "a b", "a:b", "a\r\nEvil: 1", "ü"] {
        let mut call = modern_request("tools/call", r#""name":"x","arguments":{"v":"1"}"#);
        // Catalogs omit such tools; this is the second defence.
        call.header_params = header_params(&[(name, &["v"])]);
        let call = scene.start_request(call);
        let seen = scene.server.next_post().await;
        let stray = |name: &String| name.contains("param") || name.contains("evil");
        let strays: Vec<_> = header_names(&seen).into_iter().filter(stray).collect();
        assert!(strays.is_empty(), "{name:?} {strays:?}");
        seen.respond_result("{}").await;
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn overlong_headers_are_not_sent() {
    let mut scene = modern_scene().await;
    let long = "x".repeat(40 * 1024);
    let mut mirrored = modern_request(
        "tools/call",
        &format!(r#""name":"x","arguments":{{"v":"{long}"}}"#),
    );
    mirrored.header_params = header_params(&[("V", &["v"])]);
    let named = modern_request("tools/call", &format!(r#""name":"{long}""#));
    for call in [mirrored, named] {
        let error = scene.start_request(call).await.unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                LinkError::NotSent(bowline_link::NotSentReason::TooLarge { .. })
            ),
            "{error:?}"
        );
    }
    assert!(scene.server.has_no_post());
    assert_eq!(scene.link.in_flight(), 0);
}

/// Configured headers that collide with reserved headers.
struct ForgedHeaders;

impl UpstreamCredentials for ForgedHeaders {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        let names = [
            "mcp-method",
            "mcp-name",
            "mcp-param-v",
            "mcp-protocol-version",
            "authorization",
        ];
        let value = HeaderValue::from_static("lie");
        let name = |name| (HeaderName::from_static(name), value.clone());
        Ok(names.into_iter().map(name).collect())
    }
}

#[tokio::test]
async fn configuration_cannot_override_routing_headers() {
    let mut scene =
        modern_scene_with("{}", |spec| spec.credentials = Arc::new(ForgedHeaders)).await;
    let call = scene.start_request(modern_request(
        "tools/call",
        r#""name":"x","arguments":{"v":"1"}"#,
    ));
    let seen = scene.server.next_post().await;
    for (name, want) in [
        ("mcp-method", Some("tools/call")),
        ("mcp-name", Some("x")),
        ("mcp-param-v", None),
        ("mcp-protocol-version", Some("2026-07-28")),
        ("authorization", Some("lie")),
    ] {
        assert_eq!(seen.header(name), want, "{name}");
    }
    let mut all = header_names(&seen);
    let count = all.len();
    all.dedup();
    assert_eq!(all.len(), count, "each once");
    seen.respond_result("{}").await;
    call.await.unwrap().unwrap();
}

/// Returns a tool definition.
fn tool_definition(header: &str) -> String {
    format!(
        r#"{{"name":"x","inputSchema":{{"type":"object","properties":{{"v":{{"type":"string"{header}}}}}}}}}"#
    )
}

#[tokio::test]
async fn header_mismatch_refetches_tool_and_retries() {
    let mut scene = modern_scene().await;
    let call = scene.start_request(modern_request(
        "tools/call",
        r#""name":"x","arguments":{"v":"1"}"#,
    ));
    let seen = scene.server.next_post().await;
    assert_eq!(seen.header("mcp-param-v"), None);
    let (first, id) = (seen.id(), seen.id());
    seen.respond(400, JSON, &error_body(&id, -32020)).await;
    assert_eq!(
        wait_bounded(scene.events.recv()).await,
        Some(LinkEvent::ToolsChanged)
    );
    let list = scene.server.next_post().await;
    assert_eq!(list.header("mcp-method"), Some("tools/list"));
    let other = tool_definition("").replace("\"x\"", "\"y\"");
    list.respond_result(&format!(r#"{{"tools":[{other}],"nextCursor":"c"}}"#))
        .await;
    let list = scene.server.next_post().await;
    assert!(list.body.contains(r#""cursor":"c""#), "{}", list.body);
    let changed = tool_definition(r#","x-mcp-header":"V""#);
    list.respond_result(&format!(r#"{{"tools":[{changed}]}}"#))
        .await;
    let seen = scene.server.next_post().await;
    assert_eq!(seen.header("mcp-param-v"), Some("1"));
    assert_ne!(seen.id(), first);
    // A tool that changes with every fetch is not retried again.
    let id = seen.id();
    seen.respond(400, JSON, &error_body(&id, -32020)).await;
    assert_eq!(
        response_text(call.await.unwrap()),
        error_body("\"a\"", -32020)
    );
    assert!(scene.server.has_no_post());
}

#[tokio::test]
async fn unchanged_headers_are_not_retried() {
    let mut scene = modern_scene().await;
    for list in [
        format!(r#"{{"tools":[{}]}}"#, tool_definition("")),
        // The tool is missing, or would be omitted.
        r#"{"tools":[]}"#.into(),
        format!(
            r#"{{"tools":[{}]}}"#,
            tool_definition(r#","x-mcp-header":"a b""#)
        ),
        "{}".into(),
    ] {
        let call = scene.start_request(modern_request(
            "tools/call",
            r#""name":"x","arguments":{"v":"1"}"#,
        ));
        let seen = scene.server.next_post().await;
        let id = seen.id();
        seen.respond(400, JSON, &error_body(&id, -32020)).await;
        scene.server.next_post().await.respond_result(&list).await;
        assert_eq!(
            response_text(call.await.unwrap()),
            error_body("\"a\"", -32020)
        );
    }
    assert!(scene.server.has_no_post());
}
