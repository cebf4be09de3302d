//! Which tokens may join as an executor or as a peer.

use bowline_testkit::gateway::{Executor, Gateway, HttpConnection, run_failing_executor};
use bowline_testkit::wait_until;
use serde_json::json;

use crate::broker::plain_peer::PlainPeer;
use crate::sec::request_head;

const ROLES: &str = "[roles.reader]\nallow = [\"*\"]\n";

/// Names the executor `office`.
const OFFICE: &str = "[principals.office]\nexecutors = [\"office\"]\n";

/// Names `office` through a server entry.
const SERVER: &str = "[servers.far]\nvia = \"executor:office\"\n";

#[test]
fn sec_103_executor_must_be_in_config() {
    let gateway = Gateway::start(ROLES);
    let (owner, token) = (gateway.token.clone(), gateway.executor_token("office"));
    let url = format!("http://{}", gateway.address);
    let (exit, error) = run_failing_executor(Some(&token), &["join", &url, "--name", "office"]);
    assert_eq!((exit, &error["code"]), (Some(3), &json!("auth")), "{error}");
    let said = error["message"].as_str().unwrap();
    for line in [
        "via = \"executor:office\"",
        "[principals.office] executors = [\"office\"]",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert!(gateway.executor_status("office").is_null());
    wait_until("the refusal is in the trail", || {
        let rows = gateway.get_api("/api/v1/audit?kind=denied&limit=100");
        rows.to_string().contains("executor.hello")
    });
    // The owner needs no entry.
    let any = Executor::join(&gateway, "any", &owner, "", &[]);
    assert_eq!(any.ready["connected"], true);
    for named in [SERVER, OFFICE] {
        gateway.reconfigure(&format!("{ROLES}{named}"));
        let office = Executor::join(&gateway, "office", &token, "", &[]);
        assert_eq!(office.ready["connected"], true, "{named}");
        gateway.reconfigure(ROLES);
        gateway.wait_for_executor("office", false);
        drop(office);
    }
}

#[test]
fn sec_85_agent_token_cannot_join_as_executor() {
    let gateway = Gateway::start(&format!("{ROLES}{OFFICE}"));
    let (real, agent) = (
        gateway.executor_token("office"),
        gateway.create_role_token("office", "reader"),
    );
    let office = Executor::join(&gateway, "office", &real, "", &[]);
    assert_eq!(office.ready["connected"], true);
    let url = format!("http://{}", gateway.address);
    let (exit, error) = run_failing_executor(Some(&agent), &["join", &url, "--name", "office"]);
    assert_eq!((exit, &error["code"]), (Some(3), &json!("auth")), "{error}");
    let said = error["message"].as_str().unwrap();
    assert!(
        said.contains("bowline token create --kind executor --principal office"),
        "{said}"
    );
    // The real executor stays connected, and the attempt left a row.
    assert_eq!(gateway.executor_status("office")["connected"], true);
    wait_until("the refusal is in the trail", || {
        let rows = gateway.get_api("/api/v1/audit?kind=denied&limit=100");
        rows.to_string().contains("executor.hello")
    });
}

#[test]
fn sec_85_executor_token_opens_nothing_else() {
    let gateway = Gateway::start(&format!("[policy]\ndefault = \"allow\"\n{ROLES}"));
    let token = gateway.executor_token("office");
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", bearer.as_str())];
    for path in ["/mcp", "/sse", "/api/v1/servers", "/metrics"] {
        let refused = request_head(gateway.address, "GET", path, &headers);
        assert_eq!(refused.status, 403, "{path}: {}", refused.text());
        assert!(refused.text().contains("executor's token"), "{path}");
    }
    let list = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let refused = HttpConnection::connect(gateway.address).post("/mcp", &headers, list);
    assert_eq!(refused.status, 403, "{}", refused.text());
    let mut peer = PlainPeer::connect(gateway.address);
    peer.send_frame(&json!({"kind": "hello", "agent": {"session_id": "office"}, "token": token}));
    let refused = peer.wait_for_frame("error");
    assert_eq!(refused["code"], "not_allowed", "{refused}");
    // The token has no role that a policy could widen.
    let role = json!({"principal": "office", "kind": "executor", "role": "reader"});
    let refused = gateway.send_api("POST", "/api/v1/tokens", &role);
    assert_eq!(refused.status, 422, "{}", refused.text());
    let listed = gateway.get_api("/api/v1/tokens");
    assert_eq!(listed["tokens"][0]["kind"], "executor", "{listed}");
}
