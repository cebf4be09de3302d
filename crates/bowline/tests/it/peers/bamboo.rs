//! The published `bamboo-broker` crate as a peer of the hub, in both of its roles.

use std::process::{Child, Command, Stdio};

use bowline_host::tools::{ExecuteContext, ToolExecutor as _};
use serde_json::{Value, json};

use super::Peers;
use crate::broker::served::{block_on, remote_tools, text_of};
use crate::broker::token;
use crate::harness::{Gateway, eventually, fixture};

/// A server, two peers that ask, and one that serves.
fn config() -> String {
    let peers = r#"
[roles.writer]
allow = ["one.*"]
[principals.ann]
to = ["tools"]
[principals.tools]
to = ["ann"]
"#;
    fixture("one", &[]) + peers
}

fn up() -> Gateway {
    let gateway = Gateway::up(&config());
    gateway.wait_for("one", "ready");
    gateway
}

fn endpoint(gateway: &Gateway) -> String {
    format!("ws://{}/broker", gateway.address)
}

/// The program around the crate.
fn bamboo(peers: &Peers, token: &str, args: &[&str]) -> Command {
    let mut program = Command::new(peers.path("/clients/bamboo"));
    program.args(args).env("BAMBOO_TOKEN", token);
    program
}

/// Runs it to its end, and returns what it says.
fn run(peers: &Peers, token: &str, args: &[&str]) -> Value {
    let output = bamboo(peers, token, args).output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

/// A program that serves until this is dropped.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Has the crate serve tools as `tools`, and waits until it is there.
fn serve(peers: &Peers, gateway: &Gateway) -> Serving {
    let secret = token(gateway, "tools", "writer");
    let ledger = gateway.dir.path().join("ran");
    let ledger = ledger.to_str().unwrap();
    let endpoint = endpoint(gateway);
    let mut program = bamboo(peers, &secret, &["serve", &endpoint, "tools", ledger]);
    let serving = Serving(program.stdout(Stdio::null()).spawn().unwrap());
    eventually("the crate serves", || {
        let broker = gateway.api("/api/v1/broker");
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
    let Some(peers) = Peers::only("bamboo_client_lists_and_calls_hub_tools", &needed) else {
        return;
    };
    let gateway = up();
    let ann = token(&gateway, "ann", "writer");
    let endpoint = endpoint(&gateway);
    let call = |tool: &str, arguments: &Value, more: &[&str]| {
        let arguments = arguments.to_string();
        let args = ["call", &endpoint, "ann#mcp", tool, &arguments];
        run(&peers, &ann, &[&args[..], more].concat())
    };
    // Under the name that the crate looks for, and under ours.
    let message = "näh \"quoted\" 9007199254740993";
    for to in [&[][..], &["hub"]] {
        let said = call("one__echo", &json!({"message": message}), to);
        assert!(tool_names(&said).contains(&"one__echo"), "{said}");
        assert_eq!(said["result"], json!({"success": true, "text": message}));
    }
    // What runs and fails is told apart from what is refused.
    let said = call("one__fail", &json!({"message": "no"}), &[]);
    assert_eq!(said["result"]["success"], false, "{said}");
    let said = call("one__nothing", &json!({}), &[]);
    assert!(said["result"]["error"].is_string(), "{said}");
}

#[test]
fn bamboo_host_observation_is_refused_at_once() {
    let needed = ["/clients/bamboo"];
    let Some(peers) = Peers::only("bamboo_host_observation_is_refused_at_once", &needed) else {
        return;
    };
    let gateway = up();
    let ann = token(&gateway, "ann", "writer");
    let said = run(
        &peers,
        &ann,
        &["observe", &endpoint(&gateway), "ann", "tools"],
    );
    let error = said["error"].as_str().unwrap_or_else(|| panic!("{said}"));
    assert!(error.contains("connection closed"), "{said}");
    // The crate itself waits for 30 s.
    assert!(said["took_ms"].as_u64().unwrap() < 20_000, "{said}");
}

#[test]
fn bamboo_server_answers_bamboo_client_over_hub() {
    let needed = ["/clients/bamboo"];
    let Some(peers) = Peers::only("bamboo_server_answers_bamboo_client_over_hub", &needed) else {
        return;
    };
    let gateway = up();
    let _serving = serve(&peers, &gateway);
    let ann = token(&gateway, "ann", "writer");
    let arguments = json!({"text": "hi"}).to_string();
    let args = [
        "call",
        &endpoint(&gateway),
        "ann#mcp",
        "shout",
        &arguments,
        "tools",
    ];
    let said = run(&peers, &ann, &args);
    assert_eq!(tool_names(&said), ["shout", "fail"]);
    assert_eq!(said["result"], json!({"success": true, "text": "HI"}));
}

#[test]
fn remote_tools_call_bamboo_server_by_name() {
    let needed = ["/clients/bamboo"];
    let Some(peers) = Peers::only("remote_tools_call_bamboo_server_by_name", &needed) else {
        return;
    };
    let gateway = up();
    let _serving = serve(&peers, &gateway);
    let ann = token(&gateway, "ann", "writer");
    block_on(async {
        let hub = remote_tools(&gateway, &ann).await;
        let tools = hub.for_peer("tools").await.unwrap();
        let names: Vec<_> = tools
            .tools()
            .iter()
            .map(|tool| tool.name().to_string())
            .collect();
        assert_eq!(names, ["shout", "fail"]);
        assert!(
            hub.has("one__echo") && !hub.has("shout"),
            "the hub's own are apart"
        );
        let context = ExecuteContext::default();
        let arguments = json!({"text": "näh \"q\""});
        let output = tools.execute("shout", arguments.into(), &context).await;
        assert_eq!(text_of(output), "NÄH \"Q\"");
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
