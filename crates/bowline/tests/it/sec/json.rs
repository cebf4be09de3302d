//! Hostile JSON: each text has a defined response, soon, and no side effect.

use std::time::{Duration, Instant};

use bowline_testkit::gateway::{Gateway, Response, Session, fixture_config};
use bowline_testkit::resident_bytes;
use serde_json::json;

use crate::sec::{assert_unharmed, initialize_message, post_message, request_head};

/// Far more than a refusal takes on a busy machine, far less than a quadratic algorithm needs.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(15);

const MIB: usize = 1024 * 1024;

fn post_timed(session: &mut Session, body: &[u8]) -> Response {
    let started = Instant::now();
    let answer = session.post_raw(body);
    let took = started.elapsed();
    assert!(took < REFUSAL_TIME_MAX, "{took:?} for {} bytes", body.len());
    answer
}

fn assert_refused(session: &mut Session, body: &[u8], code: i64) {
    let answer = post_timed(session, body);
    let shown = String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned();
    assert_eq!(answer.status, 200, "{shown}: {}", answer.text());
    assert_eq!(
        answer.json()["error"]["code"],
        code,
        "{shown}: {}",
        answer.text()
    );
}

fn call_bytes(id: &str, arguments: &str) -> Vec<u8> {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"one__received","arguments":{arguments}}}}}"#
    )
    .into_bytes()
}

#[test]
fn sec_08_hostile_json_gets_defined_response() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let mut session = gateway.open_session("/mcp");
    let before = resident_bytes(gateway.pid());
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let (open, close) = (open.repeat(100_000), close.repeat(100_000));
        assert_refused(&mut session, open.as_bytes(), -32_700);
        assert_refused(&mut session, format!("{open}1{close}").as_bytes(), -32_700);
        assert_refused(
            &mut session,
            &call_bytes("1", &format!("{{\"a\":{open}1{close}}}")),
            -32_700,
        );
    }
    for arguments in [
        r#"{"a":1,"a":2}"#,
        r#"{"a":1,"\u0061":2}"#,
        r#"{"a":{"b":[{"c":1,"c":1}]}}"#,
        r#"{"\ud800":1,"\uD800":1}"#,
        r#"{"a":NaN}"#,
        r#"{"a":Infinity}"#,
        r#"{"a":-}"#,
        r#"{"a":01}"#,
        r#"{"a":1.}"#,
        r#"{"a":.5}"#,
        r#"{"a":+1}"#,
        r#"{"a":0x1}"#,
        r#"{"a":'b'}"#,
        r#"{"a":1,}"#,
        r#"{"a":1/*c*/}"#,
        "{\"a\":\"\u{0}\"}",
        "{\"a\":\"\n\"}",
        r#"{"a":"\x00"}"#,
        r#"{"a":"\u12"}"#,
        r#"{"a""#,
    ] {
        assert_refused(&mut session, &call_bytes("1", arguments), -32_700);
    }
    for body in [
        &b"\xff"[..],
        b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\xff\"}",
        b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}",
        br#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}"#,
        br#"{"jsonrpc":"2.0","id":1,"method":"ping","\u006dethod":"tools/list"}"#,
        br#"{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}"#,
        br#"{"jsonrpc":"2.0","id":NaN,"method":"ping"}"#,
    ] {
        assert_refused(&mut session, body, -32_700);
    }
    assert_ids_handled(&mut session);
    assert_key_limit(&mut session);
    let grown = resident_bytes(gateway.pid()).saturating_sub(before);
    assert!(grown < 256 * MIB, "grew by {grown}");
    assert_odd_json_unchanged(&mut session);
    assert_unharmed(&gateway);
}

fn assert_ids_handled(session: &mut Session) {
    for id in [
        "1.0", "1e3", "-0.5", "null", "{}", "[]", "[1]", "true", "1e400",
    ] {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#);
        assert_refused(session, body.as_bytes(), -32_600);
    }
    for id in [
        "0",
        "-1",
        "9007199254740993",
        "9223372036854775809",
        "18446744073709551617",
        "123456789012345678901234567890",
        "\"\"",
        "\"9223372036854775809\"",
        r#""\u0000\ud800 \/""#,
    ] {
        for body in [
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#).into_bytes(),
            call_bytes(id, "{}"),
        ] {
            let answer = session.post_raw(&body);
            assert_eq!(answer.status, 200, "{id}");
            let kept = answer.text().contains(&format!("\"id\":{id}"));
            assert!(kept, "{id}: {}", answer.text());
            assert!(answer.text().contains("\"result\""), "{}", answer.text());
        }
    }
}

/// The maximum number of keys, all distinct except the last; and a million, above the limit.
fn assert_key_limit(session: &mut Session) {
    let many = different_keys(99_000);
    let unique = [&many[..many.len() - 1], b"}"].concat();
    let unique = String::from_utf8(unique).unwrap();
    // `counter` ignores arguments, so the response is short.
    let body = String::from_utf8(call_bytes("77", &unique)).unwrap();
    let body = body.replace("one__received", "one__counter");
    let answer = post_timed(session, body.as_bytes());
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["id"], 77);
    let twice = [&many[..], br#""A":0}"#].concat();
    let twice = String::from_utf8(twice).unwrap();
    assert_refused(session, &call_bytes("1", &twice), -32_700);
    let too_many = different_keys(1_000_000);
    let too_many = [&too_many[..too_many.len() - 1], b"}"].concat();
    let body = call_bytes("1", &String::from_utf8(too_many).unwrap());
    assert!(body.len() <= 8 * MIB, "{}", body.len());
    assert_refused(session, &body, -32_700);
}

/// The beginning of an object with `count` keys and a trailing comma.
fn different_keys(count: usize) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789\
        !#$%&'()*+,-./:;<=>?@[]^_`{|}~";
    let mut arguments = Vec::from(&b"{"[..]);
    for number in 0..count {
        arguments.push(b'"');
        let mut rest = number;
        loop {
            arguments.push(LETTERS[rest % LETTERS.len()]);
            rest /= LETTERS.len();
            if rest == 0 {
                break;
            }
            rest -= 1;
        }
        arguments.extend_from_slice(b"\":0,");
    }
    arguments
}

fn assert_odd_json_unchanged(session: &mut Session) {
    for arguments in [
        r#"{"n":1e400,"m":-1E+400,"tiny":1.50e-400}"#,
        r#"{"n":9007199254740993,"m":18446744073709551617,"one":1.0}"#,
        r#"{"s":"\u0000","t":"\ud800","u":"\/\u00e9é"}"#,
        r#"{ "z" : 1 ,	"a" : [ ] }"#,
        r#"{"__proto__":{"constructor":1},"":{"":null}}"#,
    ] {
        let answer = session.post_raw(&call_bytes("5", arguments));
        assert_eq!(answer.status, 200);
        let text = answer.text();
        assert!(
            text.contains(&format!(r#""arguments":{arguments}"#)),
            "{arguments} became {text}"
        );
        assert!(
            !text.contains("one__received"),
            "the server's own name: {text}"
        );
    }
}

#[test]
fn sec_09_batches_revisions_and_mismatched_headers_are_refused() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let mut session = gateway.open_session("/mcp");
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    for batch in [
        json!([]),
        json!([ping]),
        json!([ping, {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
            "params": {"name": "one__effect", "arguments": {"key": "batch"}}}]),
    ] {
        assert_refused(&mut session, batch.to_string().as_bytes(), -32_600);
    }
    let id = session.id.clone();
    let own = ("Mcp-Session-Id", id.as_str());
    for revision in [
        "1999-01-01",
        "2026-07-28",
        "",
        "2025-11-25 ",
        "2025-11-25, 2024-11-05",
        "é",
    ] {
        let headers = [own, ("MCP-Protocol-Version", revision)];
        // White space around a header value is not part of the value.
        if revision.trim() == "2025-11-25" {
            assert_eq!(post_message(&gateway, "/mcp", &headers, &ping).status, 200);
            continue;
        }
        let answer = post_message(&gateway, "/mcp", &headers, &ping);
        assert_eq!(answer.status, 400, "{revision}: {}", answer.text());
        let bearer = crate::sec::bearer_header(&gateway);
        let headers = [own, headers[1], ("Authorization", &bearer)];
        // The sessionless revision has neither GET nor DELETE, for every caller.
        let status = if revision == "2026-07-28" { 405 } else { 400 };
        for method in ["GET", "DELETE"] {
            let answer = request_head(gateway.address, method, "/mcp", &headers);
            assert_eq!(answer.status, status, "{method} {revision}");
        }
    }
    let twice = [
        own,
        ("MCP-Protocol-Version", "2025-11-25"),
        ("MCP-Protocol-Version", "x"),
    ];
    assert_eq!(post_message(&gateway, "/mcp", &twice, &ping).status, 400);
    assert_mismatched_headers_refused(&gateway, &id);
    // The revision of a handshake is in the body; an unknown one gets our latest.
    let mut unknown = initialize_message();
    unknown["params"]["protocolVersion"] = json!("1999-01-01");
    let answer = post_message(&gateway, "/mcp", &[], &unknown);
    assert_eq!(answer.json()["result"]["protocolVersion"], "2025-11-25");
    // A modern request without headers is invalid.
    let discover = json!({"jsonrpc": "2.0", "id": "d", "method": "server/discover", "params": {}});
    for headers in [&[][..], &[("MCP-Protocol-Version", "2026-07-28")]] {
        let answer = post_message(&gateway, "/mcp", headers, &discover);
        assert_eq!(answer.status, 400);
        assert_eq!(answer.json()["error"]["code"], -32_020);
        assert_eq!(answer.json()["id"], "d");
    }
    let ran = session.call("one__executions", &json!({"key": "batch"}));
    assert_eq!(ran["result"]["structuredContent"]["count"], 0, "{ran}");
    let ran = session.call("one__executions", &json!({"key": "lie"}));
    assert_eq!(ran["result"]["structuredContent"]["count"], 0, "{ran}");
}

/// Headers for a call that differs from the executed call.
fn assert_mismatched_headers_refused(gateway: &Gateway, session_id: &str) {
    let own = ("Mcp-Session-Id", session_id);
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "one__effect", "arguments": {"key": "lie"}}});
    for lie in [
        ("Mcp-Method", "tools/list"),
        ("Mcp-Method", "TOOLS/CALL"),
        ("Mcp-Method", ""),
        ("Mcp-Name", "one__echo"),
        ("Mcp-Name", "one__effect, one__echo"),
        ("Mcp-Name", "=?base64?b25lX19lY2hv?="),
    ] {
        let answer = post_message(gateway, "/mcp", &[own, lie], &call);
        assert_eq!(answer.status, 400, "{lie:?}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], -32_600);
        assert_eq!(answer.json()["id"], 1);
    }
    let twice = [
        own,
        ("Mcp-Method", "tools/call"),
        ("Mcp-Method", "tools/list"),
    ];
    assert_eq!(post_message(gateway, "/mcp", &twice, &call).status, 400);
    let echo = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "one__echo", "arguments": {"message": "true"}}});
    let truth = [own, ("Mcp-Method", "tools/call"), ("Mcp-Name", "one__echo")];
    assert_eq!(post_message(gateway, "/mcp", &truth, &echo).status, 200);
}
