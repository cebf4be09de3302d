//! Rotation of the owner's token while the gateway runs.

use bowline_testkit::gateway::{Gateway, HttpConnection};
use serde_json::json;

use super::start_with_roles;

fn api_status(gateway: &Gateway, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", &bearer[..])];
    HttpConnection::connect(gateway.address)
        .get("/api/v1/status", &headers)
        .status
}

#[test]
fn sec_74_owner_token_rotates_and_old_ends() {
    let mut gateway = start_with_roles();
    let old = gateway.token.clone();
    let session = gateway.open_session("/mcp");
    let mut stream = session.open_stream();
    let (_, ann) = gateway.create_token(&json!({"principal": "ann", "role": "writer"}));
    let mut other = gateway.open_session_as(&ann, "/mcp");
    let rotated = gateway.run_cli(&["token", "rotate-owner", "--json"]);
    let said = String::from_utf8(rotated.stdout).unwrap();
    assert!(
        rotated.status.success() && said.contains("\"rotated\":true"),
        "{said}"
    );
    let file = gateway.state_dir().join("token");
    let new = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    assert_ne!(new, old);
    assert!(!said.contains(&new), "it is in its file only");
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    // At once, with all connections.
    assert_eq!(
        (api_status(&gateway, &old), api_status(&gateway, &new)),
        (401, 200)
    );
    while stream.read_chunk().is_some_and(|chunk| !chunk.is_empty()) {}
    let again = gateway.open_session_as(&new, "/mcp");
    assert_ne!(again.id, session.id);
    // Other tokens are unaffected, and the command line finds the new token at the same path.
    let tools = other.request("tools/list", &json!({}));
    assert!(tools["result"]["tools"].is_array(), "{tools}");
    assert!(gateway.run_cli(&["status"]).status.success());
    assert!(gateway.stop());
    gateway.restart();
    assert_eq!(
        (api_status(&gateway, &old), api_status(&gateway, &new)),
        (401, 200)
    );
    assert_eq!(gateway.token, new);
    let shown = gateway.run_cli(&["token", "ls"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("ann"), "{shown}");
}
