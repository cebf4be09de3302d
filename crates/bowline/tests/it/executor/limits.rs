//! What an executor may reach, and what it keeps to itself.

use serde_json::{Value, json};

use super::ROLE;
use crate::credentials::{Guarded, outcome};
use crate::harness::Gateway;
use crate::harness::executor::{Executor, through};
use crate::harness::served::Served;

/// A gateway with these servers, and its executor `office` with a config and arguments.
fn joined(servers: &str, config: &str, args: &[&str]) -> (Gateway, Executor) {
    let gateway = Gateway::up(&format!("{servers}{ROLE}"));
    let token = gateway.executor_token("office");
    let executor = Executor::join(&gateway, ("office", &token), config, args);
    (gateway, executor)
}

fn call(gateway: &Gateway, server: &str) -> Value {
    let mut session = gateway.session(&format!("/servers/{server}/mcp"));
    session.call("echo", &json!({"message": "hi"}))
}

/// What is said of a server that cannot be started.
fn trouble(gateway: &Gateway, server: &str) -> String {
    call(gateway, server);
    gateway.status(server)["last_error"].to_string()
}

#[test]
fn nothing_is_reached_that_the_executor_does_not_allow_and_the_answer_tells_nothing_of_it() {
    let served = Served::start(&[]);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = closed.local_addr().unwrap();
    drop(closed);
    let gone =
        format!("[servers.gone]\nurl = \"http://{nobody}/mcp\"\nvia = \"executor:office\"\n");
    let (gateway, _executor) = joined(&(through("far", &served, "office") + &gone), "", &[]);
    let said = |server: &str, port: u16| {
        let said = trouble(&gateway, server);
        assert!(said.contains("not allowed"), "{said}");
        assert!(!said.contains(&port.to_string()), "{said}");
        said.replace(server, "x")
    };
    let open = said("far", served.address().port());
    let shut = said("gone", nobody.port());
    let message = |said: &str| {
        let said: Value = serde_json::from_str(said).unwrap();
        said["message"].clone()
    };
    assert_eq!(message(&open), message(&shut));
}

#[test]
fn what_is_allowed_for_one_server_is_not_allowed_for_another() {
    let served = Served::start(&[]);
    let servers = through("far", &served, "office") + &through("near", &served, "office");
    let place = served.address();
    let config = format!("[executor.servers.far]\nallow = [\"{place}\"]\n");
    let (gateway, _executor) = joined(&servers, &config, &[]);
    gateway.wait_for("far", "ready");
    assert_eq!(call(&gateway, "far")["result"]["content"][0]["text"], "hi");
    assert!(trouble(&gateway, "near").contains("not allowed"));
}

#[test]
fn what_its_config_allows_is_reached_without_any_argument() {
    let served = Served::start(&[]);
    let port = served.address().port();
    let config = format!("[executor]\nallow = [\"127.0.0.0/8:{port}\"]\n");
    let (gateway, _executor) = joined(&through("far", &served, "office"), &config, &[]);
    gateway.wait_for("far", "ready");
    assert_eq!(call(&gateway, "far")["result"]["content"][0]["text"], "hi");
}

#[test]
fn a_secret_by_reference_is_filled_in_by_the_executor_and_read_when_it_is_sent() {
    let server = Guarded::start(&[("first-key", &["look"]), ("second-key", &["look"])]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    std::fs::write(&file, "first-key\n").unwrap();
    let address = server.listener.url.strip_prefix("http://").unwrap();
    let entry = server.entry("web", "${executor:web}") + "via = \"executor:office\"\n";
    let config = format!(
        "[executor]\nallow = [\"{address}\"]\n[executor.secrets.web]\nvalue = {}\nto = [\"{address}\"]\n",
        json!(format!("${{file:{}}}", file.display())),
    );
    let (gateway, _executor) = joined(&entry, &config, &[]);
    gateway.wait_for("web", "ready");
    assert_eq!(gateway.executor("office")["secrets"], json!(["web"]));
    let mut session = gateway.session("/mcp");
    assert_eq!(outcome(&session.call("web__look", &json!({}))), "done");
    std::fs::write(&file, "second-key\n").unwrap();
    assert_eq!(outcome(&session.call("web__look", &json!({}))), "done");
    let proofs = ["Bearer first-key", "Bearer second-key"];
    assert_eq!(server.proofs("tools/call"), proofs);
}

#[test]
fn a_secret_that_the_executor_lacks_or_has_for_elsewhere_is_refused_and_never_sent() {
    let server = Guarded::start(&[("key", &["look"])]);
    let address = server.listener.url.strip_prefix("http://").unwrap();
    let entry = |name: &str| {
        let bearer = format!("${{executor:{name}}}");
        server.entry(name, &bearer) + "via = \"executor:office\"\n"
    };
    let config = format!(
        "[executor]\nallow = [\"{address}\"]\n\
         [executor.secrets.elsewhere]\nvalue = \"key\"\nto = [\"other.example:443\"]\n"
    );
    let (gateway, _executor) = joined(&(entry("none") + &entry("elsewhere")), &config, &[]);
    for name in ["none", "elsewhere"] {
        let said = trouble(&gateway, name);
        assert!(said.contains("secret"), "{said}");
        assert!(!said.contains("key\""), "{said}");
    }
    assert!(server.listener.asked().is_empty());
}
