//! Session and event ids: useless to others, and indistinguishable from unknown ids.

use bowline_testkit::gateway::{
    Gateway, HttpConnection, Response, Session, fixture_config, server_config,
};
use serde_json::json;

use crate::sec::{bearer_header, request_head};

const PING: &[u8] = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// Uses a session id in every way; the responses must equal those of an unknown id.
fn assert_session_unknown(gateway: &Gateway, path: &str, token: Option<&str>, id: &str) {
    let never = "A".repeat(120);
    for method in ["POST", "GET", "DELETE", "LISTEN"] {
        let ask = |id: &str| -> Response {
            let mut headers = vec![("Mcp-Session-Id", id), ("Accept", "*/*")];
            headers.extend(token.map(|token| ("Authorization", token)));
            let mut http = HttpConnection::connect(gateway.address);
            match method {
                "POST" => http.post(path, &headers, PING),
                "LISTEN" => {
                    let call = br#"{"jsonrpc":"2.0","method":"notifications/cancelled"}"#;
                    http.post(path, &headers, call)
                }
                _ => request_head(gateway.address, method, path, &headers),
            }
        };
        let (forged, unknown) = (ask(id), ask(&never));
        assert_eq!(unknown.status, 404, "{method}");
        assert_eq!(forged.status, unknown.status, "{method} {id}");
        assert_eq!(forged.body, unknown.body, "{method} {id}");
        let names = |answer: &Response| -> Vec<String> {
            answer
                .headers
                .iter()
                .map(|(name, _)| name.clone())
                .collect()
        };
        assert_eq!(names(&forged), names(&unknown), "{method} {id}");
    }
}

#[test]
fn sec_11_session_of_other_principal_is_404() {
    let gateway = Gateway::start_with_args(&fixture_config("one", &[]), &["--insecure-no-auth"]);
    let owner = bearer_header(&gateway);
    let owner = Some(owner.as_str());
    let mut mine = gateway.open_session("/mcp");
    let mut other = Session::open(gateway.address, "/mcp", None);
    let mut single = gateway.open_session("/servers/one/mcp");
    assert_ne!(mine.id, other.id);
    assert!(mine.id.len() >= 32, "at least 128 bits: {}", mine.id);
    // Crossed both ways, and at another endpoint.
    assert_session_unknown(&gateway, "/mcp", None, &mine.id);
    assert_session_unknown(&gateway, "/mcp", owner, &other.id);
    assert_session_unknown(&gateway, "/mcp", owner, &single.id);
    assert_session_unknown(&gateway, "/servers/one/mcp", owner, &mine.id);
    // Forged and truncated.
    for at in [0, 1, mine.id.len() / 2, mine.id.len() - 1] {
        let mut forged = mine.id.clone().into_bytes();
        forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
        let forged = String::from_utf8(forged).unwrap();
        assert_session_unknown(&gateway, "/mcp", owner, &forged);
        assert_session_unknown(&gateway, "/mcp", owner, &mine.id[..at.max(1)]);
    }
    assert_session_unknown(&gateway, "/mcp", owner, &format!("{}A", mine.id));
    assert_session_unknown(&gateway, "/mcp", owner, &"A".repeat(10_000));
    assert_session_unknown(&gateway, "/mcp", owner, "owner");
    // No session was harmed.
    for session in [&mut mine, &mut other, &mut single] {
        session.request("ping", &json!({}));
    }
    // An ended id is dead, for the owner too.
    let headers = mine.request_headers();
    let headers: Vec<_> = headers
        .iter()
        .map(|(key, value)| (&key[..], &value[..]))
        .collect();
    let mut stream = mine.open_stream();
    let ended = request_head(gateway.address, "DELETE", "/mcp", &headers);
    assert_eq!(ended.status, 204);
    while stream.read_chunk().is_some() {}
    assert_session_unknown(&gateway, "/mcp", owner, &mine.id);
    assert_session_unknown(&gateway, "/mcp", None, &mine.id);
    other.request("ping", &json!({}));
}

/// A server with line breaks at all places allowed by JSON, and in every text.
const LINE_BREAK_SERVER: &str = r#"
while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*)
      printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s\\r\\nX-Evil: 1","version":"1"}}}\n' "$id" ;;
    *'"tools/list"'*)
      printf '{"jsonrpc":"2.0","id":%s,\r"result":{"tools":[{"name":"t","description":"d\\r\\n\\r\\ndata: evil",\r"inputSchema":{"type":"object"}}]}}\n' "$id" ;;
    *'"tools/call"'*)
      token=$(printf '%s' "$line" | sed -n 's/.*"progressToken":\([^,}]*\).*/\1/p')
      printf '{"jsonrpc":"2.0","method":"notifications/progress",\r"params":{"progressToken":%s,\r\r"progress":1,"message":"m\\n\\ndata: evil\\r\\n"}}\n' "$token"
      printf '{"jsonrpc":"2.0","id":%s,\r"result":\r\r{"content":[{"type":"text","text":"a\\n\\nevent: evil\\ndata: evil"}]}}\n' "$id" ;;
  esac
done
"#;

#[test]
fn sec_13_foreign_event_ids_and_newlines_leak_nothing() {
    let shell = std::path::Path::new("/bin/sh");
    let config = [
        fixture_config("one", &[]),
        server_config("breaks", shell, &["-c", LINE_BREAK_SERVER]),
    ]
    .concat();
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("breaks", "ready");
    let mut mine = gateway.open_session("/mcp");
    let mut other = gateway.open_session("/mcp");
    let mut stream = mine.open_stream();
    stream.read_chunk().unwrap();
    mine.call("one__test_trigger_tool_change", &json!({}));
    let event = String::from_utf8(stream.read_chunk().unwrap()).unwrap();
    assert!(event.contains("list_changed"), "{event}");
    let given = event.lines().find_map(|line| line.strip_prefix("id: "));
    let given = given.unwrap_or_else(|| panic!("{event}"));
    // Every id is foreign or invented.
    let headers = other.request_headers();
    for id in [
        given,
        "0",
        "1",
        "-1",
        "1-1",
        "",
        mine.id.as_str(),
        "1\t2",
        "é",
    ] {
        let mut all: Vec<_> = headers
            .iter()
            .map(|(key, value)| (&key[..], &value[..]))
            .collect();
        all.push(("Accept", "text/event-stream"));
        all.push(("Last-Event-ID", id));
        let answer = request_head(gateway.address, "GET", "/mcp", &all);
        assert_eq!(answer.status, 404, "{id:?}");
        assert!(!answer.text().contains("list_changed"));
    }
    other.request("ping", &json!({}));
    assert_line_breaks_contained(&gateway);
}

fn assert_line_breaks_contained(gateway: &Gateway) {
    let mut session = gateway.open_session("/servers/breaks/mcp");
    let response = session.post(&json!({
        "jsonrpc": "2.0", "id": "x\r\n\r\ndata: evil", "method": "tools/call",
        "params": {"name": "t", "arguments": {}, "_meta": {"progressToken": "p\n\ndata: evil"}},
    }));
    assert_eq!(response.header("content-type"), Some("text/event-stream"));
    assert_eq!(response.header("x-evil"), None);
    let text = response.text();
    // Events consist of known line kinds only; each event holds a JSON text.
    let mut messages = Vec::new();
    for event in text.split("\n\n").filter(|event| !event.is_empty()) {
        assert!(!event.contains('\r'), "{event:?}");
        let mut data = Vec::new();
        for line in event.split('\n') {
            match line.split_once(": ") {
                Some(("event", kind)) => assert_eq!(kind, "message"),
                Some(("data", part)) => data.push(part),
                Some(("", _) | ("id" | "retry", _)) => {}
                _ => panic!("{line:?} in {event:?}"),
            }
        }
        // The priming event carries only an event id.
        if !data.is_empty() && data != [""] {
            messages.push(data.join("\n"));
        }
    }
    let messages: Vec<serde_json::Value> = messages
        .iter()
        .map(|text| serde_json::from_str(text).unwrap_or_else(|_| panic!("{text:?}")))
        .collect();
    assert_eq!(messages.len(), 2, "{text:?}");
    assert_eq!(messages[0]["params"]["progressToken"], "p\n\ndata: evil");
    assert_eq!(messages[0]["params"]["message"], "m\n\ndata: evil\r\n");
    assert_eq!(messages[1]["id"], "x\r\n\r\ndata: evil");
    assert_eq!(
        messages[1]["result"]["content"][0]["text"],
        "a\n\nevent: evil\ndata: evil"
    );
}
