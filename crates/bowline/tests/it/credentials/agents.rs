//! What a caller proves itself with stays here.

use serde_json::json;

use super::{Guarded, comes, outcome, set};
use crate::harness::{Gateway, Http, eventually};

#[test]
fn sec_15_the_token_of_a_caller_never_reaches_a_server() {
    let server = Guarded::start(&[("server-key", &["look"])]);
    let bare = Guarded::start(&[]);
    let config = server.entry("web", "${secret:web}")
        + &format!(
            "[servers.bare]\nurl = {}\n",
            json!(format!("{}/mcp", bare.listener.url))
        )
        + "[roles.all]\nallow = [\"*.*\"]\n";
    let gateway = Gateway::up(&config);
    set(&gateway, "web", "server-key");
    comes(&gateway, "web", "ready");
    let (_, token) = gateway.token_of(&json!({"principal": "ci", "role": "all"}));
    for caller in [&gateway.token, &token] {
        let mut session = gateway.session_as(caller, "/mcp");
        assert_eq!(session.tools(), ["web__look"]);
        assert_eq!(outcome(&session.call("web__look", &json!({}))), "done");
        // Whatever else a caller may say of itself.
        let mut headers = session.headers();
        for name in ["Cookie", "X-Api-Key", "Proxy-Authorization", "Forwarded"] {
            headers.push((name.to_owned(), format!("k={caller}")));
        }
        let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
        let call = json!({
            "jsonrpc": "2.0", "id": 9, "method": "tools/call",
            "params": {"name": "web__look", "arguments": {}},
        });
        let mut http = Http::connect(gateway.address);
        let answer = http.post("/mcp", &headers, call.to_string().as_bytes());
        assert_eq!(outcome(&answer.json()), "done");
    }
    gateway.order("bare", "restart");
    eventually("the server without credentials was asked", || {
        !bare.listener.asked().is_empty()
    });
    let asked = [server.listener.asked(), bare.listener.asked()].concat();
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
    let unproved = bare.proofs("initialize");
    assert!(
        unproved.iter().all(String::is_empty),
        "no credential, no header"
    );
}
