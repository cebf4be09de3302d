//! Egress rules and secrets of an executor.

use bowline_testkit::gateway::{Executor, FixtureServer, Gateway, executor_server_config};
use serde_json::{Value, json};

use super::ROLE;
use crate::credentials::{GuardedServer, call_outcome};

/// A gateway with the given servers, and the executor `office` with a config and arguments.
fn start_joined(servers: &str, config: &str, args: &[&str]) -> (Gateway, Executor) {
    let gateway = Gateway::start(&format!("{servers}{ROLE}"));
    let token = gateway.executor_token("office");
    let executor = Executor::join(&gateway, "office", &token, config, args);
    (gateway, executor)
}

fn call_echo(gateway: &Gateway, server: &str) -> Value {
    let mut session = gateway.open_session(&format!("/servers/{server}/mcp"));
    session.call("echo", &json!({"message": "hi"}))
}

/// The start error of a server.
fn start_error(gateway: &Gateway, server: &str) -> String {
    call_echo(gateway, server);
    gateway.server_status(server)["last_error"].to_string()
}

/// An executor reaches only allowed targets, and a refusal reveals nothing about the target.
#[test]
fn executor_denial_reveals_nothing() {
    let served = FixtureServer::start(&[]);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = closed.local_addr().unwrap();
    drop(closed);
    let gone =
        format!("[servers.gone]\nurl = \"http://{nobody}/mcp\"\nvia = \"executor:office\"\n");
    let (gateway, _executor) = start_joined(
        &(executor_server_config("far", &served, "office") + &gone),
        "",
        &[],
    );
    let said = |server: &str, port: u16| {
        let said = start_error(&gateway, server);
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
fn executor_rules_apply_per_server() {
    let served = FixtureServer::start(&[]);
    let servers = executor_server_config("far", &served, "office")
        + &executor_server_config("near", &served, "office");
    let place = served.address();
    let config = format!("[executor.servers.far]\nallow = [\"{place}\"]\n");
    let (gateway, _executor) = start_joined(&servers, &config, &[]);
    gateway.wait_for_state("far", "ready");
    assert_eq!(
        call_echo(&gateway, "far")["result"]["content"][0]["text"],
        "hi"
    );
    assert!(start_error(&gateway, "near").contains("not allowed"));
}

#[test]
fn executor_config_allows_without_arguments() {
    let served = FixtureServer::start(&[]);
    let port = served.address().port();
    let config = format!("[executor]\nallow = [\"127.0.0.0/8:{port}\"]\n");
    let (gateway, _executor) = start_joined(
        &executor_server_config("far", &served, "office"),
        &config,
        &[],
    );
    gateway.wait_for_state("far", "ready");
    assert_eq!(
        call_echo(&gateway, "far")["result"]["content"][0]["text"],
        "hi"
    );
}

/// The executor fills in a secret given by reference, with a fresh read at each send.
#[test]
fn executor_fills_secret_reference_at_send() {
    let server = GuardedServer::start(&[("first-key", &["look"]), ("second-key", &["look"])]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("key");
    std::fs::write(&file, "first-key\n").unwrap();
    let address = server.server.url.strip_prefix("http://").unwrap();
    let entry = server.config_entry("web", "${executor:web}") + "via = \"executor:office\"\n";
    let config = format!(
        "[executor]\nallow = [\"{address}\"]\n[executor.secrets.web]\nvalue = {}\nto = [\"{address}\"]\n",
        json!(format!("${{file:{}}}", file.display())),
    );
    let (gateway, _executor) = start_joined(&entry, &config, &[]);
    gateway.wait_for_state("web", "ready");
    assert_eq!(gateway.executor_status("office")["secrets"], json!(["web"]));
    let mut session = gateway.open_session("/mcp");
    assert_eq!(call_outcome(&session.call("web__look", &json!({}))), "done");
    std::fs::write(&file, "second-key\n").unwrap();
    assert_eq!(call_outcome(&session.call("web__look", &json!({}))), "done");
    let proofs = ["Bearer first-key", "Bearer second-key"];
    assert_eq!(server.authorization_headers("tools/call"), proofs);
}

/// A secret that the executor lacks, or has for another destination, is refused and never sent.
#[test]
fn executor_refuses_missing_or_foreign_secret() {
    let server = GuardedServer::start(&[("key", &["look"])]);
    let address = server.server.url.strip_prefix("http://").unwrap();
    let entry = |name: &str| {
        let bearer = format!("${{executor:{name}}}");
        server.config_entry(name, &bearer) + "via = \"executor:office\"\n"
    };
    let config = format!(
        "[executor]\nallow = [\"{address}\"]\n\
         [executor.secrets.elsewhere]\nvalue = \"key\"\nto = [\"other.example:443\"]\n"
    );
    let (gateway, _executor) = start_joined(&(entry("none") + &entry("elsewhere")), &config, &[]);
    for name in ["none", "elsewhere"] {
        let said = start_error(&gateway, name);
        assert!(said.contains("secret"), "{said}");
        assert!(!said.contains("key\""), "{said}");
    }
    assert!(server.server.requests().is_empty());
}
