//! Queued answers at the clients of the official SDKs, which hold results against the schemas
//! that tools were listed with.

use serde_json::{Value, json};

use super::Peers;
use super::clients::{
    Client, over_http, over_stdio, python_1, python_2, typescript_1, typescript_2,
};
use crate::harness::Gateway;
use crate::harness::served::Served;

const CONFIG: &str = "breaker = { failures = 1000, rest = \"50ms\" }\n\
    [servers.web.tools.write_once]\nqueue = \"1h\"\nidempotency = \"meta\"\n";

#[test]
fn clients_that_validate_take_queued_answers_of_a_tool_with_an_output_schema() {
    let test = "clients_that_validate_take_queued_answers_of_a_tool_with_an_output_schema";
    let needed = ["/python1", "/python2", "/clients/sdk", "/clients/client"];
    let Some(peers) = Peers::of(test, &needed) else {
        return;
    };
    let mut web = Served::start(&["--toolset", "writes"]);
    let gateway = Gateway::up(&format!("[servers.web]\nurl = \"{}\"\n{CONFIG}", web.url));
    gateway.wait_for("web", "ready");
    let clients = [
        python_1(&peers),
        python_2(&peers, "auto"),
        typescript_1(&peers),
        typescript_2(&peers, "auto"),
    ];
    // The schema holds what the server says itself, and what we say in its place.
    for client in &clients {
        for walked in walk(client, &gateway) {
            let said = &walked["results"][0]["structuredContent"];
            assert_eq!(said["number"], 7, "{}: {walked}", client.name);
        }
    }
    web.kill();
    for client in &clients {
        for walked in walk(client, &gateway) {
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

fn walk(client: &Client, gateway: &Gateway) -> Vec<Value> {
    let calls = json!([["web__write_once", {"number": 7}]]);
    let targets = [over_http(gateway, "/mcp"), over_stdio(gateway, None)];
    client.walk(targets.into_iter().map(|target| (target, calls.clone())))
}
