//! The owner's token is replaced while the gateway runs.

use serde_json::json;

use super::up;
use crate::harness::{Gateway, Http};

fn status(gateway: &Gateway, token: &str) -> u16 {
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", &bearer[..])];
    Http::connect(gateway.address)
        .get("/api/v1/status", &headers)
        .status
}

#[test]
fn sec_74_owner_token_rotates_and_the_old_one_ends() {
    let mut gateway = up();
    let old = gateway.token.clone();
    let session = gateway.session("/mcp");
    let mut stream = session.listen();
    let (_, ann) = gateway.token_of(&json!({"principal": "ann", "role": "writer"}));
    let mut other = gateway.session_as(&ann, "/mcp");
    let rotated = gateway.cli(&["token", "rotate-owner", "--json"]);
    let said = String::from_utf8(rotated.stdout).unwrap();
    assert!(
        rotated.status.success() && said.contains("\"rotated\":true"),
        "{said}"
    );
    let file = gateway.state().join("token");
    let new = std::fs::read_to_string(&file).unwrap().trim().to_owned();
    assert_ne!(new, old);
    assert!(!said.contains(&new), "it is in its file only");
    let mode = std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    // At once, and with all that it opened.
    assert_eq!((status(&gateway, &old), status(&gateway, &new)), (401, 200));
    while stream.read_chunk().is_some_and(|chunk| !chunk.is_empty()) {}
    let again = gateway.session_as(&new, "/mcp");
    assert_ne!(again.id, session.id);
    // Nobody else notices, and the command line finds the new one where it found the old.
    let tools = other.request("tools/list", &json!({}));
    assert!(tools["result"]["tools"].is_array(), "{tools}");
    assert!(gateway.cli(&["status"]).status.success());
    assert!(gateway.stop());
    gateway.restart();
    assert_eq!((status(&gateway, &old), status(&gateway, &new)), (401, 200));
    assert_eq!(gateway.token, new);
    let shown = gateway.cli(&["token", "ls"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("ann"), "{shown}");
}
