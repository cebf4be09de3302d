//! The caller's credential is not forwarded to servers.

use bowline_testkit::gateway::{Gateway, HttpConnection};
use serde_json::json;

use super::{GuardedServer, call_outcome, set_secret, wait_for_listed_server};

#[test]
fn sec_15_caller_token_never_reaches_server() {
    let server = GuardedServer::start(&[("server-key", &["look"])]);
    let bare = GuardedServer::start(&[]);
    let config = server.config_entry("web", "${secret:web}")
        + &format!(
            "[servers.bare]\nurl = {}\n",
            json!(format!("{}/mcp", bare.server.url))
        )
        + "[roles.all]\nallow = [\"*.*\"]\n";
    let gateway = Gateway::start(&config);
    set_secret(&gateway, "web", "server-key");
    wait_for_listed_server(&gateway, "web", "ready");
    let (_, token) = gateway.create_token(&json!({"principal": "ci", "role": "all"}));
    for caller in [&gateway.token, &token] {
        let mut session = gateway.open_session_as(caller, "/mcp");
        assert_eq!(session.list_tool_names(), ["web__look"]);
        assert_eq!(call_outcome(&session.call("web__look", &json!({}))), "done");
        // Other identity headers of a caller.
        let mut headers = session.request_headers();
        for name in ["Cookie", "X-Api-Key", "Proxy-Authorization", "Forwarded"] {
            headers.push((name.to_owned(), format!("k={caller}")));
        }
        let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        let call = json!({
            "jsonrpc": "2.0", "id": 9, "method": "tools/call",
            "params": {"name": "web__look", "arguments": {}},
        });
        let mut http = HttpConnection::connect(gateway.address);
        let answer = http.post("/mcp", &headers, call.to_string().as_bytes());
        assert_eq!(call_outcome(&answer.json()), "done");
    }
    gateway.control_server("bare", "restart");
    let what = "a request to the server without credentials";
    bare.server
        .wait_for_requests(what, |requests| !requests.is_empty());
    let asked = [server.server.requests(), bare.server.requests()].concat();
    assert!(asked.len() > 8);
    for one in asked {
        let head = format!("{} {} {:?}", one.method, one.path, one.headers);
        let body = String::from_utf8_lossy(&one.body);
        for caller in [&gateway.token, &token] {
            assert!(!head.contains(&**caller), "{head}");
            assert!(!body.contains(&**caller), "{body}");
        }
        let proof = one.header("authorization");
        assert!(matches!(proof, None | Some("Bearer server-key")), "{head}");
    }
    let unproved = bare.authorization_headers("initialize");
    assert!(
        unproved.iter().all(String::is_empty),
        "no credential, no header"
    );
}
