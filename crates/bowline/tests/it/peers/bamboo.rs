//! The published `bamboo-broker` crate as a peer of the hub, in both roles.

use std::process::{Child, Command, Stdio};

use bowline_host::tools::{ExecuteContext, ToolExecutor as _};
use bowline_testkit::gateway::{Gateway, fixture_config};
use bowline_testkit::{block_on, wait_until};
use serde_json::{Value, json};

use super::PeerManifest;
use crate::broker::create_token;
use crate::broker::library_tools::{output_text, remote_tools};

/// A server, two calling peers, and a serving peer.
fn bamboo_config() -> String {
    let peers = r#"
[roles.writer]
allow = ["one.*"]
[principals.ann]
to = ["tools"]
[principals.tools]
to = ["ann"]
"#;
    fixture_config("one", &[]) + peers
}

fn start_gateway() -> Gateway {
    let gateway = Gateway::start(&bamboo_config());
    gateway.wait_for_state("one", "ready");
    gateway
}

fn broker_url(gateway: &Gateway) -> String {
    format!("ws://{}/broker", gateway.address)
}

/// The test program around the crate.
fn bamboo_command(peers: &PeerManifest, token: &str, args: &[&str]) -> Command {
    let mut program = Command::new(peers.peer_path("/clients/bamboo"));
    program.args(args).env("BAMBOO_TOKEN", token);
    program
}

/// Runs the program to the end, and returns the output.
fn run_bamboo(peers: &PeerManifest, token: &str, args: &[&str]) -> Value {
    let output = bamboo_command(peers, token, args).output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// A serving program; ends when dropped.
struct BambooServer(Child);

impl Drop for BambooServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Serves tools as `tools` through the crate, and waits until the peer is connected.
fn serve_bamboo(peers: &PeerManifest, gateway: &Gateway) -> BambooServer {
    let secret = create_token(gateway, "tools", "writer");
    let ledger = gateway.dir.path().join("ran");
    let ledger = ledger.to_str().unwrap();
    let endpoint = broker_url(gateway);
    let mut program = bamboo_command(peers, &secret, &["serve", &endpoint, "tools", ledger]);
    let serving = BambooServer(program.stdout(Stdio::null()).spawn().unwrap());
    wait_until("the crate serves", || {
        let broker = gateway.get_api("/api/v1/broker");
        let here = broker["peers"].as_array().unwrap();
        here.iter()
            .any(|peer| peer["mailbox"] == "tools" && peer["subscribed"] == true)
    });
    serving
}

fn tool_names(said: &Value) -> Vec<&str> {
    let tools = said["tools"].as_array();
    let tools = tools.unwrap_or_else(|| panic!("{said}"));
    tools.iter().map(tool_name).collect()
}

fn tool_name(tool: &Value) -> &str {
    assert_eq!(tool["type"], "function", "{tool}");
    tool["function"]["name"].as_str().unwrap()
}

#[test]
fn bamboo_client_lists_and_calls_hub_tools() {
    let needed = ["/clients/bamboo"];
    let Some(peers) =
        PeerManifest::load_without_servers("bamboo_client_lists_and_calls_hub_tools", &needed)
    else {
        return;
    };
    let gateway = start_gateway();
    let ann = create_token(&gateway, "ann", "writer");
    let endpoint = broker_url(&gateway);
    let call = |tool: &str, arguments: &Value, more: &[&str]| {
        let arguments = arguments.to_string();
        let args = ["call", &endpoint, "ann#mcp", tool, &arguments];
        run_bamboo(&peers, &ann, &[&args[..], more].concat())
    };
    // Under the crate's name for the hub, and under ours.
    let message = "näh \"quoted\" 9007199254740993";
    for to in [&[][..], &["hub"]] {
        let said = call("one__echo", &json!({"message": message}), to);
        assert!(tool_names(&said).contains(&"one__echo"), "{said}");
        assert_eq!(said["result"], json!({"success": true, "text": message}));
    }
    // A failed tool differs from a refused call.
    let said = call("one__fail", &json!({"message": "no"}), &[]);
    assert_eq!(said["result"]["success"], false, "{said}");
    let said = call("one__nothing", &json!({}), &[]);
    assert!(said["result"]["error"].is_string(), "{said}");
}

#[test]
fn bamboo_host_observation_is_refused_at_once() {
    let needed = ["/clients/bamboo"];
    let Some(peers) =
        PeerManifest::load_without_servers("bamboo_host_observation_is_refused_at_once", &needed)
    else {
        return;
    };
    let gateway = start_gateway();
    let ann = create_token(&gateway, "ann", "writer");
    let said = run_bamboo(
        &peers,
        &ann,
        &["observe", &broker_url(&gateway), "ann", "tools"],
    );
    let error = said["error"].as_str().unwrap_or_else(|| panic!("{said}"));
    assert!(error.contains("connection closed"), "{said}");
    // The crate's own timeout is 30 s.
    assert!(said["took_ms"].as_u64().unwrap() < 20_000, "{said}");
}

#[test]
fn bamboo_server_answers_bamboo_client_over_hub() {
    let needed = ["/clients/bamboo"];
    let Some(peers) =
        PeerManifest::load_without_servers("bamboo_server_answers_bamboo_client_over_hub", &needed)
    else {
        return;
    };
    let gateway = start_gateway();
    let _serving = serve_bamboo(&peers, &gateway);
    let ann = create_token(&gateway, "ann", "writer");
    let arguments = json!({"text": "hi"}).to_string();
    let args = [
        "call",
        &broker_url(&gateway),
        "ann#mcp",
        "shout",
        &arguments,
        "tools",
    ];
    let said = run_bamboo(&peers, &ann, &args);
    assert_eq!(tool_names(&said), ["shout", "fail"]);
    assert_eq!(said["result"], json!({"success": true, "text": "HI"}));
}

#[test]
fn remote_tools_call_bamboo_server_by_name() {
    let needed = ["/clients/bamboo"];
    let Some(peers) =
        PeerManifest::load_without_servers("remote_tools_call_bamboo_server_by_name", &needed)
    else {
        return;
    };
    let gateway = start_gateway();
    let _serving = serve_bamboo(&peers, &gateway);
    let ann = create_token(&gateway, "ann", "writer");
    block_on(async {
        let hub = remote_tools(&gateway, &ann).await;
        let tools = hub.for_peer("tools").await.unwrap();
        let names: Vec<_> = tools
            .list_tools()
            .iter()
            .map(|tool| tool.name().to_string())
            .collect();
        assert_eq!(names, ["shout", "fail"]);
        assert!(
            hub.has_tool("one__echo") && !hub.has_tool("shout"),
            "the hub's own are apart"
        );
        let context = ExecuteContext::default();
        let arguments = json!({"text": "näh \"q\""});
        let output = tools.execute("shout", arguments.into(), &context).await;
        assert_eq!(output_text(output), "NÄH \"Q\"");
        let output = tools
            .execute("fail", json!({"text": "x"}).into(), &context)
            .await;
        let output = output.unwrap();
        assert!(output.is_error(), "it ran and failed");
        assert_eq!(output.text(), "no x");
    });
    let ran = std::fs::read_to_string(gateway.dir.path().join("ran")).unwrap();
    assert_eq!(ran, "shout\nfail\n");
}
