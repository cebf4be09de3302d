//! Queued replies at clients of the official SDKs, which validate results against the listed
//! schemas.

use bowline_testkit::gateway::{FixtureServer, Gateway};
use serde_json::{Value, json};

use super::PeerManifest;
use super::clients::{
    SdkClient, http_target, python_1, python_2, stdio_target, typescript_1, typescript_2,
};

const CONFIG: &str = "breaker = { failures = 1000, rest = \"50ms\" }\n\
    [servers.web.tools.write_once]\nqueue = \"1h\"\nidempotency = \"meta\"\n";

#[test]
fn validating_clients_accept_queued_results() {
    let test = "validating_clients_accept_queued_results";
    let needed = ["/python1", "/python2", "/clients/sdk", "/clients/client"];
    let Some(peers) = PeerManifest::load(test, &needed) else {
        return;
    };
    let mut web = FixtureServer::start(&["--toolset", "writes"]);
    let gateway = Gateway::start(&format!("[servers.web]\nurl = \"{}\"\n{CONFIG}", web.url));
    gateway.wait_for_state("web", "ready");
    let clients = [
        python_1(&peers),
        python_2(&peers, "auto"),
        typescript_1(&peers),
        typescript_2(&peers, "auto"),
    ];
    // The schema allows the server's own result and the gateway's queued reply.
    for client in &clients {
        for walked in run_client(client, &gateway) {
            let said = &walked["results"][0]["structuredContent"];
            assert_eq!(said["number"], 7, "{}: {walked}", client.name);
        }
    }
    web.kill();
    for client in &clients {
        for walked in run_client(client, &gateway) {
            let result = &walked["results"][0];
            let said = &result["structuredContent"];
            assert_eq!(said["queued"], true, "{}: {walked}", client.name);
            let text = result["content"][0]["text"].as_str().unwrap();
            assert_eq!(serde_json::from_str::<Value>(text).unwrap(), *said);
            let tools = walked["tools"]["tools"].as_array().unwrap();
            let tool = tools.iter().find(|tool| tool["name"] == "web__write_once");
            let any = tool.unwrap()["outputSchema"]["anyOf"].as_array();
            assert_eq!(any.map(Vec::len), Some(2), "{walked}");
        }
    }
}

fn run_client(client: &SdkClient, gateway: &Gateway) -> Vec<Value> {
    let calls = json!([["web__write_once", {"number": 7}]]);
    let targets = [http_target(gateway, "/mcp"), stdio_target(gateway, None)];
    client.run_targets(targets.into_iter().map(|target| (target, calls.clone())))
}
