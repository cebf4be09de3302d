//! Who a caller is, is proved by its credential; what it says of itself counts for nothing.

use serde_json::json;

use crate::harness::{Http, Session};
use crate::tokens::up;

/// Every way to say that one is somebody else.
const CLAIMS: [(&str, &str); 8] = [
    ("X-Role", "writer"),
    ("Role", "writer"),
    ("Bowline-Role", "writer"),
    ("Bowline-Principal", "owner"),
    ("X-Forwarded-User", "owner"),
    ("X-Remote-User", "owner"),
    ("Bowline-Context", ""),
    ("From", "owner"),
];

#[test]
fn sec_46_a_role_that_a_caller_claims_changes_nothing() {
    let gateway = up();
    let (_, token) = gateway.token_of(&json!({"principal": "ann", "role": "reader"}));
    let mut session = gateway.session_as(&token, "/mcp");
    // In the handshake.
    session.id.clear();
    let hello = json!({
        "jsonrpc": "2.0", "id": 0, "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"role": "writer", "experimental": {"role": {"name": "writer"}}},
            "clientInfo": {"name": "owner", "version": "1", "role": "writer"},
            "role": "writer",
            "_meta": {"role": "writer", "dev.bowline/role": "writer", "principal": "owner"},
        },
    });
    let bearer = format!("Bearer {token}");
    let mut headers = vec![("Authorization", &bearer[..])];
    headers.extend_from_slice(&CLAIMS);
    let body = hello.to_string();
    let opened = session.http.post("/mcp", &headers, body.as_bytes());
    session.id = opened.header("mcp-session-id").unwrap().to_owned();
    assert_eq!(session.tools(), ["one__echo"]);
    // In the call itself, in what is said beside it, and in headers.
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {
            "name": "one__slow", "arguments": {"ms": 1, "message": "hi", "role": "writer"},
            "role": "writer",
            "_meta": {"role": "writer", "dev.bowline/role": "writer", "dev.bowline/contexts": []},
        },
    });
    let denied = |session: &mut Session, more: &[(&str, &str)]| {
        let headers = session.headers();
        let mut headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        headers.extend_from_slice(more);
        let body = call.to_string();
        let answer = session.http.post("/mcp", &headers, body.as_bytes()).json();
        assert!(answer["result"].is_null(), "{answer}");
        let code = &answer["error"]["data"]["code"];
        assert!(
            code == "policy_denied" || code == "tool_not_found",
            "{answer}"
        );
    };
    denied(&mut session, &[]);
    for claim in CLAIMS {
        denied(&mut session, &[claim]);
    }
    denied(&mut session, &CLAIMS);
    assert_eq!(
        gateway.status("one")["calls"],
        0,
        "the server saw none of it"
    );
    // A second credential beside the first is none at all.
    let (own, owner) = (
        format!("Bearer {token}"),
        format!("Bearer {}", gateway.token),
    );
    let both = [("Authorization", &own[..]), ("Authorization", &owner[..])];
    assert_eq!(
        Http::connect(gateway.address).get("/mcp", &both).status,
        401
    );
    let listed = gateway.api("/api/v1/sessions");
    for one in listed["sessions"].as_array().unwrap() {
        assert_eq!(
            (&one["principal"], &one["role"]),
            (&json!("ann"), &json!("reader"))
        );
    }
}

#[test]
fn sec_11_a_session_is_of_no_use_to_another_token() {
    let gateway = up();
    let writer = json!({"principal": "ann", "role": "writer"});
    let (_, first) = gateway.token_of(&writer);
    let (_, second) = gateway.token_of(&writer);
    let (_, reader) = gateway.token_of(&json!({"principal": "bob", "role": "reader"}));
    let session = gateway.session_as(&first, "/mcp");
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    for token in [&second, &reader, &gateway.token] {
        let mut stolen = gateway.session_as(token, "/mcp");
        stolen.id.clone_from(&session.id);
        let answer = stolen.post(&ping);
        assert_eq!(answer.status, 404, "{}", answer.text());
        let mut unknown = stolen.twin();
        unknown.id.replace_range(..1, "_");
        assert_eq!(
            unknown.post(&ping).text(),
            answer.text(),
            "like one that never was"
        );
    }
    assert_eq!(session.twin().post(&ping).status, 200);
}
