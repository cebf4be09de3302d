//! The HTTP edge: paths, methods, bodies, streams, and the effect of a stop.

use std::io::BufRead as _;
use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, HttpConnection, Session, fixture_config, server_config};
use bowline_testkit::{is_alive, wait_until};
use serde_json::json;

use crate::sec::{self, bearer_header, initialize_message, post_message};

#[test]
fn edge_checks_path_then_credential_then_method() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let bearer = bearer_header(&gateway);
    let right = ("Authorization", bearer.as_str());
    let ask = |method: &str, path: &str, headers: &[(&str, &str)]| {
        sec::request_head(gateway.address, method, path, headers)
    };
    for method in ["GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"] {
        assert_eq!(ask(method, "/nothing", &[]).status, 404, "{method}");
        assert_eq!(ask(method, "/nothing", &[right]).status, 404, "{method}");
        for path in ["/mcp", "/servers/one/mcp", "/servers/unknown/mcp"] {
            let refused = ask(method, path, &[]);
            assert_eq!(refused.status, 401, "{method} {path}");
            assert_eq!(refused.json()["error"]["code"], -32_001);
            assert!(refused.json()["id"].is_null());
        }
        assert_eq!(ask(method, "/servers/unknown/mcp", &[right]).status, 404);
    }
    for method in ["PUT", "PATCH", "OPTIONS"] {
        let refused = ask(method, "/mcp", &[right]);
        assert_eq!(refused.status, 405, "{method}");
        assert_eq!(refused.header("allow"), Some("GET, POST, DELETE"));
    }
    assert_eq!(
        post_message(&gateway, "/mcp", &[], &initialize_message()).status,
        200
    );
    let session = gateway.open_session("/mcp");
    let with = [right, ("Mcp-Session-Id", session.id.as_str())];
    let accept = ("Accept", "application/json");
    assert_eq!(ask("GET", "/mcp", &[with[0], with[1], accept]).status, 406);
    assert_eq!(ask("GET", "/mcp", &[right]).status, 400);
    assert_eq!(ask("DELETE", "/mcp", &[right]).status, 400);
    assert_eq!(ask("DELETE", "/mcp", &with).status, 204);
    for path in ["/livez", "/readyz"] {
        assert_eq!(ask("GET", path, &[]).status, 200, "{path}");
    }
}

#[test]
fn body_that_is_no_json_object_is_refused() {
    let gateway = Gateway::start("");
    let mut session = gateway.open_session("/mcp");
    for (body, code) in [
        ("", -32_700),
        (" ", -32_700),
        ("{", -32_700),
        ("ping", -32_700),
        ("{}{}", -32_700),
        ("{\"jsonrpc\":\"2.0\",}", -32_700),
        ("[]", -32_600),
        (
            "[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]",
            -32_600,
        ),
        ("1", -32_600),
        ("null", -32_600),
        ("\"ping\"", -32_600),
        ("{}", -32_600),
        ("{\"id\":1,\"method\":\"ping\"}", -32_600),
        (
            "{\"jsonrpc\":\"1.0\",\"id\":1,\"method\":\"ping\"}",
            -32_600,
        ),
        ("{\"jsonrpc\":\"2.0\",\"id\":1}", -32_600),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":1}", -32_600),
    ] {
        let answer = session.post_raw(body.as_bytes());
        assert_eq!(answer.status, 200, "{body}");
        let answer = answer.json();
        assert_eq!(answer["error"]["code"], code, "{body}: {answer}");
        if code == -32_700 || body.starts_with('[') {
            assert!(answer["id"].is_null(), "{body}: {answer}");
        }
    }
}

#[test]
fn stop_closes_every_stream_at_once() {
    let mut gateway = Gateway::start(&fixture_config("one", &[]));
    let sessions: Vec<_> = (0..8).map(|_| gateway.open_session("/mcp")).collect();
    let mut streams: Vec<_> = sessions.iter().map(Session::open_stream).collect();
    for stream in &mut streams {
        stream.read_chunk().unwrap();
    }
    let mut progress = gateway.open_session("/mcp");
    let waiting = std::thread::spawn(move || {
        progress.post(&json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "one__slow", "arguments": {"ms": 600_000, "message": ""},
                "_meta": {"progressToken": 1}},
        }))
    });
    wait_until("the call runs", || {
        gateway.wait_for_state("one", "ready")["in_flight"] == 1
    });
    let child = gateway.wait_for_state("one", "ready")["pid"]
        .as_u64()
        .unwrap();
    let started = Instant::now();
    let reading = std::thread::spawn(move || {
        for stream in &mut streams {
            let mut last = String::new();
            stream.stream.read_line(&mut last).unwrap();
            assert_eq!(last, "0\r\n", "ended in order");
            assert!(stream.is_closed());
        }
        started.elapsed()
    });
    assert!(gateway.stop());
    let took = reading.join().unwrap();
    assert!(took < Duration::from_secs(10), "{took:?}");
    let answer = waiting.join().unwrap();
    assert!(answer.text().contains("\"error\""), "{}", answer.text());
    let refused = std::net::TcpStream::connect(gateway.address);
    assert!(refused.is_err());
    assert!(!gateway.state_dir().join("run.json").exists());
    assert!(!is_alive(u32::try_from(child).unwrap()));
}

/// A stream counts until the caller leaves; a newer stream of the session replaces an older.
#[test]
fn newer_session_stream_replaces_older() {
    let gateway = Gateway::start("");
    let session = gateway.open_session("/mcp");
    let streams = || gateway.get_api("/api/v1/status")["streams"].clone();
    let mut older = session.open_stream();
    let opening = String::from_utf8(older.read_chunk().unwrap()).unwrap();
    assert!(opening.starts_with(": "), "{opening:?}");
    assert_eq!(streams(), 1);
    let mut newer = session.open_stream();
    newer.read_chunk().unwrap();
    assert_eq!(older.read_chunk(), None, "the older ends");
    assert_eq!(streams(), 1);
    drop(newer);
    wait_until("the stream is gone", || streams() == 0);
}

/// A server with invalid responses to a call, followed by a valid response.
const INVALID_RESPONSE_SERVER: &str = r#"
while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  case "$line" in
    *'"initialize"'*)
      printf '{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}\n' "$id" ;;
    *'"tools/list"'*)
      printf '{"jsonrpc":"2.0","id":%s,"result":{"tools":[{"name":"babble","inputSchema":{"type":"object"}},{"name":"both","inputSchema":{"type":"object"}},{"name":"empty","inputSchema":{"type":"object"}}]}}\n' "$id" ;;
    *'"babble"'*)
      printf '502 Bad Gateway\n'
      printf '{"status":502,"message":"upstream down"}\n'
      printf '{"id":%s,"status":502}\n' "$id"
      printf '"%s"\n' "$id"
      printf '{"jsonrpc":"2.0","id":null,"result":{"wrong":2}}\n'
      printf '{"jsonrpc":"2.0","id":%s%s,"result":{"wrong":3}}\n' "$id" 999
      printf '{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"right"}]}}\n' "$id" ;;
  esac
done
"#;

#[test]
fn invalid_json_rpc_is_no_response() {
    let shell = std::path::Path::new("/bin/sh");
    let config = [
        fixture_config("noisy", &["--fault", "noise"]),
        fixture_config("one", &[]),
        server_config("babbler", shell, &["-c", INVALID_RESPONSE_SERVER]),
    ]
    .concat();
    let gateway = Gateway::start(&config);
    for name in ["noisy", "one", "babbler"] {
        gateway.wait_for_state(name, "ready");
    }
    let mut session = gateway.open_session("/mcp");
    let said = session.call_text("noisy__echo", &json!({"message": "through"}));
    assert_eq!(said, "through");
    // The caller gets the right response or a descriptive error, never the invalid bytes.
    let answer = session.call("babbler__babble", &json!({}));
    assert!(!answer.to_string().contains("wrong"), "{answer}");
    let right = answer["result"]["content"][0]["text"] == "right";
    let failed = answer["error"]["data"]["code"] == "bad_answer";
    assert!(right || failed, "{answer}");
    // The server's own error is passed on.
    let rpc = json!({"code": -32_050, "message": "no"});
    let answer = session.call("one__rpc_error", &rpc);
    assert_eq!(answer["error"]["code"], -32_050, "{answer}");
}

#[test]
fn refused_notification_is_not_202() {
    let gateway = Gateway::start("");
    let mut session = gateway.open_session("/mcp");
    let note = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(session.post(&note).status, 202);
    assert_eq!(session.post(&note).body, b"");
    let id = session.id.clone();
    let own = ("Mcp-Session-Id", id.as_str());
    for (headers, status) in [
        (&[][..], 400),
        (&[("Mcp-Session-Id", "unknown")], 404),
        (&[own, ("Authorization", "Bearer x")], 401),
        (&[own, ("Origin", "null")], 403),
        (&[own, ("MCP-Protocol-Version", "1999-01-01")], 400),
        (&[own, ("Mcp-Method", "tools/call")], 400),
        (&[own, ("Content-Type", "text/plain")], 415),
        (&[own, ("Accept", "text/html")], 406),
    ] {
        let answer = post_message(&gateway, "/mcp", headers, &note);
        assert_eq!(answer.status, status, "{headers:?}");
    }
    // A request method without an id is a notification and gets no response.
    let discover = json!({"jsonrpc": "2.0", "method": "server/discover"});
    assert_eq!(post_message(&gateway, "/mcp", &[], &discover).status, 400);
    assert_eq!(session.post(&discover).status, 202);
}

#[test]
fn event_reaches_only_its_session() {
    let config = [fixture_config("one", &[]), fixture_config("two", &[])].concat();
    let gateway = Gateway::start(&config);
    gateway.wait_for_state("one", "ready");
    gateway.wait_for_state("two", "ready");
    let mut one = gateway.open_session("/servers/one/mcp");
    let mut two = gateway.open_session("/servers/two/mcp");
    let mut twin = gateway.open_session("/servers/two/mcp");
    for session in [&mut one, &mut two, &mut twin] {
        session.request("tools/list", &json!({}));
    }
    let (mut of_one, mut of_two, mut of_twin) =
        (one.open_stream(), two.open_stream(), twin.open_stream());
    for stream in [&mut of_one, &mut of_two, &mut of_twin] {
        stream.read_chunk().unwrap();
    }
    one.call("test_trigger_tool_change", &json!({}));
    let event = of_one.read_chunk().unwrap();
    assert!(String::from_utf8(event).unwrap().contains("list_changed"));
    // The ending stream received no event.
    let headers = twin.request_headers();
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    let ended = sec::request_head(gateway.address, "DELETE", "/servers/two/mcp", &headers);
    assert_eq!(ended.status, 204);
    while let Some(chunk) = of_twin.read_chunk() {
        assert!(!String::from_utf8(chunk).unwrap().contains("data: "));
    }
    // Progress goes into the response of its call, not to a session stream.
    let progress = one.post(&json!({
        "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": {"name": "test_tool_with_progress", "arguments": {},
            "_meta": {"progressToken": "t"}},
    }));
    assert_eq!(progress.events().len(), 4);
    // The next message on the second stream is its own.
    two.call("test_trigger_tool_change", &json!({}));
    let event = String::from_utf8(of_two.read_chunk().unwrap()).unwrap();
    assert_eq!(event.matches("data: ").count(), 1, "{event}");
    assert!(event.contains("list_changed"), "{event}");
}

#[test]
fn changed_definition_is_announced() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut session = gateway.open_session("/mcp");
    let before = session.request("tools/list", &json!({}));
    let mut stream = session.open_stream();
    stream.read_chunk().unwrap();
    session.call("one__test_trigger_description_change", &json!({}));
    let event = String::from_utf8(stream.read_chunk().unwrap()).unwrap();
    assert!(
        event.contains("notifications/tools/list_changed"),
        "{event}"
    );
    let after = session.request("tools/list", &json!({}));
    assert_ne!(before["result"], after["result"]);
    let names = |list: &serde_json::Value| -> Vec<String> {
        let tools = list["result"]["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["name"].to_string()).collect()
    };
    assert_eq!(names(&before), names(&after));
}

#[test]
fn session_outlives_its_gateway() {
    let mut gateway = Gateway::start(&fixture_config("one", &[]));
    let mut session = gateway.open_session("/servers/one/mcp");
    assert_eq!(
        session.call_text("echo", &json!({"message": "before"})),
        "before"
    );
    gateway.restart_after_kill();
    session.http = HttpConnection::connect(gateway.address);
    let listed = session.request("tools/list", &json!({}));
    assert!(listed.to_string().contains("test_simple_text"), "{listed}");
    assert_eq!(
        session.call_text("echo", &json!({"message": "after"})),
        "after"
    );
    let mut stream = session.open_stream();
    stream.read_chunk().unwrap();
    session.call("test_trigger_tool_change", &json!({}));
    let event = String::from_utf8(stream.read_chunk().unwrap()).unwrap();
    assert!(event.contains("list_changed"), "{event}");
    // The session is still bound to endpoint and owner.
    let elsewhere = [("Mcp-Session-Id", session.id.as_str())];
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(
        post_message(&gateway, "/mcp", &elsewhere, &ping).status,
        404
    );
}
