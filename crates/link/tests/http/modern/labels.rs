//! What leaves in headers: arguments that are repeated there, and what must never get out.

use bowline_core::era::{Mirror, Mirrors};
use bowline_link::Rename;

use super::*;

/// Names that servers and callers can choose freely, and what a header says of them.
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

fn mirrors(list: &[(&str, &[&str])]) -> Mirrors {
    let mirror = |(name, path): &(&str, &[&str])| Mirror {
        name: (*name).into(),
        path: path.iter().map(|key| Box::from(*key)).collect(),
    };
    Some(list.iter().map(mirror).collect())
}

/// Returns a string literal, every character of it escaped as a caller may write it.
fn literal(text: &str) -> String {
    let units = text.encode_utf16();
    let escaped: String = units.map(|unit| format!("\\u{unit:04x}")).collect();
    format!("\"{escaped}\"")
}

/// Returns the names of all headers, sorted.
fn names(seen: &Seen) -> Vec<String> {
    let mut names = seen.header_names();
    names.sort();
    names
}

#[tokio::test]
async fn a_name_gets_into_a_header_whole_or_encoded_and_never_as_another_header() {
    let mut scene = scene().await;
    let mut usual = None;
    for (name, want) in NAMES {
        for renamed in [false, true] {
            let mut call = match renamed {
                false => modern("tools/call", &format!(r#""name":{}"#, literal(name))),
                true => modern("tools/call", r#""name":"x""#),
            };
            if renamed {
                let at = r#"{"name":"#.len();
                call.rename = Some(Rename {
                    at: at..at + 3,
                    to: name.into(),
                });
            }
            let call = scene.begin(call);
            let seen = scene.server.post().await;
            assert_eq!(seen.header("mcp-name"), Some(want), "{name:?}");
            let usual = usual.get_or_insert_with(|| names(&seen));
            assert_eq!(*usual, names(&seen), "{name:?}");
            seen.result("{}").await;
            call.await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn arguments_that_a_tool_mirrors_are_repeated_in_headers() {
    let mut scene = scene().await;
    let all: &[(&str, &[&str])] = &[
        ("Region", &["region"]),
        ("Deep", &["a", "b"]),
        ("Count", &["n"]),
        ("Flag", &["f"]),
        ("None", &["nothing"]),
        ("Null", &["null"]),
    ];
    let arguments = r#"{"region":"us-west1","a":{"b":"Hello, 世界"},"n":-7,"f":true,"null":null,"nothing_else":1}"#;
    let mut call = modern(
        "tools/call",
        &format!(r#""name":"x","arguments":{arguments}"#),
    );
    call.mirrors = mirrors(all);
    let call = scene.begin(call);
    let seen = scene.server.post().await;
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
    seen.result("{}").await;
    call.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_argument_gets_into_its_header_whole_or_encoded_and_never_as_another_header() {
    let mut scene = scene().await;
    for (value, want) in NAMES {
        let literal = literal(value);
        let params = format!(r#""name":"x","arguments":{{"v":{literal}}}"#);
        let mut call = modern("tools/call", &params);
        call.mirrors = mirrors(&[("V", &["v"])]);
        let call = scene.begin(call);
        let seen = scene.server.post().await;
        assert_eq!(seen.header("mcp-param-v"), Some(want), "{value:?}");
        assert_eq!(seen.header("evil"), None);
        seen.result("{}").await;
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_mirror_that_names_no_header_adds_none() {
    let mut scene = scene().await;
    for name in ["", "a b", "a:b", "a\r\nEvil: 1", "ü"] {
        let mut call = modern("tools/call", r#""name":"x","arguments":{"v":"1"}"#);
        // Catalogs leave such tools out; this is what is behind them.
        call.mirrors = mirrors(&[(name, &["v"])]);
        let call = scene.begin(call);
        let seen = scene.server.post().await;
        let stray = |name: &String| name.contains("param") || name.contains("evil");
        let strays: Vec<_> = names(&seen).into_iter().filter(stray).collect();
        assert!(strays.is_empty(), "{name:?} {strays:?}");
        seen.result("{}").await;
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn headers_that_would_be_too_long_are_not_sent() {
    let mut scene = scene().await;
    let long = "x".repeat(40 * 1024);
    let mut mirrored = modern(
        "tools/call",
        &format!(r#""name":"x","arguments":{{"v":"{long}"}}"#),
    );
    mirrored.mirrors = mirrors(&[("V", &["v"])]);
    let named = modern("tools/call", &format!(r#""name":"{long}""#));
    for call in [mirrored, named] {
        let error = scene.begin(call).await.unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                LinkError::NotSent(bowline_link::NotSent::TooLarge { .. })
            ),
            "{error:?}"
        );
    }
    assert!(scene.server.is_quiet());
    assert_eq!(scene.link.in_flight(), 0);
}

/// Headers of a configuration that say what is not theirs to say.
struct Lies;

impl Credentials for Lies {
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
async fn what_a_request_is_cannot_be_configured() {
    let mut scene = scene_with("{}", |spec| spec.credentials = Arc::new(Lies)).await;
    let call = scene.begin(modern("tools/call", r#""name":"x","arguments":{"v":"1"}"#));
    let seen = scene.server.post().await;
    for (name, want) in [
        ("mcp-method", Some("tools/call")),
        ("mcp-name", Some("x")),
        ("mcp-param-v", None),
        ("mcp-protocol-version", Some("2026-07-28")),
        ("authorization", Some("lie")),
    ] {
        assert_eq!(seen.header(name), want, "{name}");
    }
    let mut all = names(&seen);
    let count = all.len();
    all.dedup();
    assert_eq!(all.len(), count, "each once");
    seen.result("{}").await;
    call.await.unwrap().unwrap();
}

/// A tool as a list has it.
fn tool(header: &str) -> String {
    format!(
        r#"{{"name":"x","inputSchema":{{"type":"object","properties":{{"v":{{"type":"string"{header}}}}}}}}}"#
    )
}

#[tokio::test]
async fn a_tool_whose_headers_changed_is_looked_up_and_called_once_more() {
    let mut scene = scene().await;
    let call = scene.begin(modern("tools/call", r#""name":"x","arguments":{"v":"1"}"#));
    let seen = scene.server.post().await;
    assert_eq!(seen.header("mcp-param-v"), None);
    let (first, id) = (seen.id(), seen.id());
    seen.answer(400, JSON, &error(&id, -32020)).await;
    assert_eq!(
        soon(scene.events.recv()).await,
        Some(LinkEvent::ToolsChanged)
    );
    let list = scene.server.post().await;
    assert_eq!(list.header("mcp-method"), Some("tools/list"));
    let other = tool("").replace("\"x\"", "\"y\"");
    list.result(&format!(r#"{{"tools":[{other}],"nextCursor":"c"}}"#))
        .await;
    let list = scene.server.post().await;
    assert!(list.body.contains(r#""cursor":"c""#), "{}", list.body);
    let changed = tool(r#","x-mcp-header":"V""#);
    list.result(&format!(r#"{{"tools":[{changed}]}}"#)).await;
    let seen = scene.server.post().await;
    assert_eq!(seen.header("mcp-param-v"), Some("1"));
    assert_ne!(seen.id(), first);
    // One that changes with every look is not chased.
    let id = seen.id();
    seen.answer(400, JSON, &error(&id, -32020)).await;
    assert_eq!(text(call.await.unwrap()), error("\"a\"", -32020));
    assert!(scene.server.is_quiet());
}

#[tokio::test]
async fn a_tool_whose_headers_are_the_same_is_not_called_again() {
    let mut scene = scene().await;
    for list in [
        format!(r#"{{"tools":[{}]}}"#, tool("")),
        // It is not there any more, or would be left out.
        r#"{"tools":[]}"#.into(),
        format!(r#"{{"tools":[{}]}}"#, tool(r#","x-mcp-header":"a b""#)),
        "{}".into(),
    ] {
        let call = scene.begin(modern("tools/call", r#""name":"x","arguments":{"v":"1"}"#));
        let seen = scene.server.post().await;
        let id = seen.id();
        seen.answer(400, JSON, &error(&id, -32020)).await;
        scene.server.post().await.result(&list).await;
        assert_eq!(text(call.await.unwrap()), error("\"a\"", -32020));
    }
    assert!(scene.server.is_quiet());
}
