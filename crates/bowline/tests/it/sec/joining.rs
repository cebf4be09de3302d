//! Who may join as an executor or as a peer, and who may not.

use serde_json::json;

use crate::broker::plain::Plain;
use crate::harness::executor::{Executor, fails};
use crate::harness::{Gateway, Http, eventually};
use crate::sec::ask;

const ROLES: &str = "[roles.reader]\nallow = [\"*\"]\n";

/// Names the executor `office`.
const OFFICE: &str = "[principals.office]\nexecutors = [\"office\"]\n";

/// The same by a server that is reached through it.
const SERVER: &str = "[servers.far]\nvia = \"executor:office\"\n";

#[test]
fn sec_103_executor_must_be_named_in_the_configuration() {
    let gateway = Gateway::up(ROLES);
    let (owner, token) = (gateway.token.clone(), gateway.executor_token("office"));
    let url = format!("http://{}", gateway.address);
    let (exit, error) = fails(Some(&token), &["join", &url, "--name", "office"]);
    assert_eq!((exit, &error["code"]), (Some(3), &json!("auth")), "{error}");
    let said = error["message"].as_str().unwrap();
    for line in [
        "via = \"executor:office\"",
        "[principals.office] executors = [\"office\"]",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert!(gateway.executor("office").is_null());
    eventually("the refusal is in the trail", || {
        let rows = gateway.api("/api/v1/audit?kind=denied&limit=100");
        rows.to_string().contains("executor.hello")
    });
    // The owner needs no entry.
    let any = Executor::join(&gateway, ("any", &owner), "", &[]);
    assert_eq!(any.ready["connected"], true);
    for named in [SERVER, OFFICE] {
        gateway.reconfigure(&format!("{ROLES}{named}"));
        let office = Executor::join(&gateway, ("office", &token), "", &[]);
        assert_eq!(office.ready["connected"], true, "{named}");
        gateway.reconfigure(ROLES);
        gateway.until_executor("office", false);
        drop(office);
    }
}

#[test]
fn sec_85_agent_token_cannot_join_as_executor() {
    let gateway = Gateway::up(&format!("{ROLES}{OFFICE}"));
    let (real, agent) = (
        gateway.executor_token("office"),
        gateway.token_for("office", "reader"),
    );
    let office = Executor::join(&gateway, ("office", &real), "", &[]);
    assert_eq!(office.ready["connected"], true);
    let url = format!("http://{}", gateway.address);
    let (exit, error) = fails(Some(&agent), &["join", &url, "--name", "office"]);
    assert_eq!((exit, &error["code"]), (Some(3), &json!("auth")), "{error}");
    let said = error["message"].as_str().unwrap();
    assert!(
        said.contains("bowline token create --kind executor --principal office"),
        "{said}"
    );
    // The real one has its place still, and the attempt left a row.
    assert_eq!(gateway.executor("office")["connected"], true);
    eventually("the refusal is in the trail", || {
        let rows = gateway.api("/api/v1/audit?kind=denied&limit=100");
        rows.to_string().contains("executor.hello")
    });
}

#[test]
fn sec_85_executor_token_opens_nothing_else() {
    let gateway = Gateway::up(&format!("[policy]\ndefault = \"allow\"\n{ROLES}"));
    let token = gateway.executor_token("office");
    let bearer = format!("Bearer {token}");
    let headers = [("Authorization", bearer.as_str())];
    for path in ["/mcp", "/sse", "/api/v1/servers", "/metrics"] {
        let refused = ask(gateway.address, "GET", path, &headers);
        assert_eq!(refused.status, 403, "{path}: {}", refused.text());
        assert!(refused.text().contains("executor's token"), "{path}");
    }
    let list = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let refused = Http::connect(gateway.address).post("/mcp", &headers, list);
    assert_eq!(refused.status, 403, "{}", refused.text());
    let mut peer = Plain::connect(gateway.address);
    peer.say(&json!({"kind": "hello", "agent": {"session_id": "office"}, "token": token}));
    let refused = peer.wait_for("error");
    assert_eq!(refused["code"], "not_allowed", "{refused}");
    // It has no role that a policy could widen.
    let role = json!({"principal": "office", "kind": "executor", "role": "reader"});
    let refused = gateway.ask_api("POST", "/api/v1/tokens", &role);
    assert_eq!(refused.status, 422, "{}", refused.text());
    let listed = gateway.api("/api/v1/tokens");
    assert_eq!(listed["tokens"][0]["kind"], "executor", "{listed}");
}
