//! The credential proves the identity of a caller; claims count for nothing.

use bowline_testkit::gateway::{HttpConnection, Session};
use serde_json::json;

use crate::tokens::start_with_roles;

/// Ways to claim another identity.
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
fn sec_46_claimed_role_changes_nothing() {
    let gateway = start_with_roles();
    let (_, token) = gateway.create_token(&json!({"principal": "ann", "role": "reader"}));
    let mut session = gateway.open_session_as(&token, "/mcp");
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
    assert_eq!(session.list_tool_names(), ["one__echo"]);
    // In the call, in `_meta`, and in headers.
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {
            "name": "one__slow", "arguments": {"ms": 1, "message": "hi", "role": "writer"},
            "role": "writer",
            "_meta": {"role": "writer", "dev.bowline/role": "writer", "dev.bowline/contexts": []},
        },
    });
    let denied = |session: &mut Session, more: &[(&str, &str)]| {
        let headers = session.request_headers();
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
        gateway.server_status("one")["calls"],
        0,
        "the server saw none of it"
    );
    // A second credential beside the first invalidates both.
    let (own, owner) = (
        format!("Bearer {token}"),
        format!("Bearer {}", gateway.token),
    );
    let both = [("Authorization", &own[..]), ("Authorization", &owner[..])];
    assert_eq!(
        HttpConnection::connect(gateway.address)
            .get("/mcp", &both)
            .status,
        401
    );
    let listed = gateway.get_api("/api/v1/sessions");
    for one in listed["sessions"].as_array().unwrap() {
        assert_eq!(
            (&one["principal"], &one["role"]),
            (&json!("ann"), &json!("reader"))
        );
    }
}

#[test]
fn sec_11_session_is_useless_to_other_token() {
    let gateway = start_with_roles();
    let writer = json!({"principal": "ann", "role": "writer"});
    let (_, first) = gateway.create_token(&writer);
    let (_, second) = gateway.create_token(&writer);
    let (_, reader) = gateway.create_token(&json!({"principal": "bob", "role": "reader"}));
    let session = gateway.open_session_as(&first, "/mcp");
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    for token in [&second, &reader, &gateway.token] {
        let mut stolen = gateway.open_session_as(token, "/mcp");
        stolen.id.clone_from(&session.id);
        let answer = stolen.post(&ping);
        assert_eq!(answer.status, 404, "{}", answer.text());
        let mut unknown = stolen.clone_on_new_connection();
        unknown.id.replace_range(..1, "_");
        assert_eq!(
            unknown.post(&ping).text(),
            answer.text(),
            "like one that never was"
        );
    }
    assert_eq!(session.clone_on_new_connection().post(&ping).status, 200);
}
