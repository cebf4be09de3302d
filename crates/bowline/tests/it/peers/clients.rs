//! Clients of the official SDKs see the same through the gateway as directly.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use bowline_testkit::gateway::{Gateway, HttpConnection, bowline_binary, fixture_config};
use bowline_testkit::send_signal;
use serde_json::{Value, json};

use super::PeerManifest;
use super::official_servers::{CAPABILITY_TOOLS, NAMES, OfficialServers, remove_asking_tools};

/// Upper bound of a client run; only a hang exceeds it.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(180);

/// A client program and a negotiation mode.
pub(super) struct SdkClient {
    /// The name in messages, and the key in the memory server.
    pub(super) name: &'static str,
    program: PathBuf,
    args: Vec<PathBuf>,
    mode: &'static str,
}

/// The Python SDK 2 client works in the auto and the legacy mode, over HTTP and stdio.
#[test]
fn python_2_clients_work_in_both_modes() {
    let test = "python_2_clients_work_in_both_modes";
    if let Some(peers) = PeerManifest::load(test, &["/python2"]) {
        let clients = [python_2(&peers, "auto"), python_2(&peers, "legacy")];
        assert_same_views(peers, &clients);
    }
}

#[test]
fn python_1_client_works_over_http_and_stdio() {
    let test = "python_1_client_works_over_http_and_stdio";
    if let Some(peers) = PeerManifest::load(test, &["/python1"]) {
        let client = python_1(&peers);
        assert_same_views(peers, &[client]);
    }
}

#[test]
fn typescript_clients_work_over_http_and_stdio() {
    let test = "typescript_clients_work_over_http_and_stdio";
    if let Some(peers) = PeerManifest::load(test, &["/clients/sdk", "/clients/client"]) {
        let first = typescript_1(&peers);
        let legacy = typescript_2(&peers, "legacy");
        let auto = typescript_2(&peers, "auto");
        assert_same_views(peers, &[first, legacy, auto]);
    }
}

#[test]
fn auto_client_finds_and_keeps_modern_era() {
    let test = "auto_client_finds_and_keeps_modern_era";
    let Some(peers) = PeerManifest::load(test, &["/python2", "/clients/client"]) else {
        return;
    };
    let gateway = Gateway::start(&fixture_config("one", &[]));
    assert_discover_response(&gateway);
    let calls = json!([["one__echo", {"message": "hi"}]]);
    for client in [python_2(&peers, "auto"), typescript_2(&peers, "auto")] {
        let targets = [http_target(&gateway, "/mcp"), stdio_target(&gateway, None)];
        let walked = client.run_targets(targets.into_iter().map(|target| (target, calls.clone())));
        for (walked, way) in walked.iter().zip(["HTTP", "stdio"]) {
            let name = client.name;
            assert_eq!(walked["probes"][0], "result", "{name} over {way}");
            assert_eq!(walked["revision"], "2026-07-28", "{name} over {way}");
            assert_eq!(walked["results"][0]["content"][0]["text"], "hi");
        }
    }
}

#[test]
fn wrong_token_ends_client_with_reason() {
    let test = "wrong_token_ends_client_with_reason";
    let needed = ["/python1", "/python2", "/clients/sdk", "/clients/client"];
    let Some(peers) = PeerManifest::load(test, &needed) else {
        return;
    };
    let gateway = Gateway::start(&fixture_config("one", &[]));
    let clients = [
        python_1(&peers),
        python_2(&peers, "auto"),
        typescript_1(&peers),
        typescript_2(&peers, "auto"),
    ];
    for client in clients {
        let mut target = http_target(&gateway, "/mcp");
        target["token"] = json!("wrong");
        let output = wait_for_exit(client.name, client.start_on_targets(&[(target, json!([]))]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{}: {said}", client.name);
        // Some SDKs show the status, some our message.
        let why = said.contains("401") || said.contains("bearer token is required");
        assert!(why, "{}: {said}", client.name);
    }
}

/// The raw discover response: both eras are offered and no session is opened.
fn assert_discover_response(gateway: &Gateway) {
    let probe = json!({
        "jsonrpc": "2.0", "id": "probe", "method": "server/discover",
        "params": {"_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }},
    });
    let headers = [
        ("Authorization", &*format!("Bearer {}", gateway.token)),
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "server/discover"),
    ];
    let mut http = HttpConnection::connect(gateway.address);
    let answer = http.post("/mcp", &headers, probe.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("mcp-session-id"), None);
    assert_eq!(answer.json()["id"], "probe");
    let supported = &answer.json()["result"]["supportedVersions"];
    assert_eq!(supported[0], "2026-07-28", "{}", answer.text());
}

fn script_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/peers")
        .join(name)
}

pub(super) fn python_1(peers: &PeerManifest) -> SdkClient {
    SdkClient {
        name: "python-1",
        program: peers.peer_path("/python1").to_owned(),
        args: vec![script_path("client_v1.py")],
        mode: "legacy",
    }
}

pub(super) fn python_2(peers: &PeerManifest, mode: &'static str) -> SdkClient {
    SdkClient {
        name: match mode {
            "auto" => "python-2-auto",
            "legacy" => "python-2-legacy",
            _ => "python-2-modern",
        },
        program: peers.peer_path("/python2").to_owned(),
        args: vec![script_path("client.py")],
        mode,
    }
}

pub(super) fn typescript_1(peers: &PeerManifest) -> SdkClient {
    SdkClient {
        name: "typescript-1",
        program: peers.peer_path("/node").to_owned(),
        args: vec![
            script_path("client_sdk.mjs"),
            peers.peer_path("/clients/sdk").to_owned(),
        ],
        mode: "legacy",
    }
}

pub(super) fn typescript_2(peers: &PeerManifest, mode: &'static str) -> SdkClient {
    SdkClient {
        name: if mode == "auto" {
            "typescript-2-auto"
        } else {
            "typescript-2-legacy"
        },
        program: peers.peer_path("/node").to_owned(),
        args: vec![
            script_path("client_v2.mjs"),
            peers.peer_path("/clients/client").to_owned(),
        ],
        mode,
    }
}

pub(super) fn http_target(gateway: &Gateway, path: &str) -> Value {
    let url = format!("http://{}{path}", gateway.address);
    json!({"url": url, "token": gateway.token})
}

pub(super) fn stdio_target(gateway: &Gateway, server: Option<&str>) -> Value {
    let state = gateway.state_dir();
    let mut args = vec!["--state", state.to_str().unwrap(), "stdio"];
    args.extend(server.into_iter().flat_map(|name| ["--server", name]));
    json!({"command": bowline_binary(), "args": args, "env": {}})
}

/// Lets each client list and call all servers directly and through one gateway, over each
/// transport.
fn assert_same_views(peers: PeerManifest, clients: &[SdkClient]) {
    let world = OfficialServers::new(peers);
    let gateway = world.start_gateway();
    for client in clients {
        let calls = |name: &str| json!(world.stable_calls(name, client.name));
        let direct = NAMES.map(|name| {
            let program = world.server_program(name, client.name);
            let (command, args, env) = (&program.command, &program.args, program.env_json());
            let target = json!({"command": command, "args": args, "env": env});
            (target, calls(name))
        });
        let http = NAMES.map(|name| {
            let path = format!("/servers/{name}/mcp");
            (http_target(&gateway, &path), calls(name))
        });
        let stdio = NAMES.map(|name| (stdio_target(&gateway, Some(name)), calls(name)));
        let all: Vec<_> = NAMES
            .iter()
            .flat_map(|name| {
                let calls = world.stable_calls(name, client.name).into_iter();
                calls.map(move |(tool, arguments)| json!([format!("{name}__{tool}"), arguments]))
            })
            .collect();
        let everyone = [
            (http_target(&gateway, "/mcp"), json!(all)),
            (stdio_target(&gateway, None), json!(all)),
        ];
        let targets = direct.into_iter().chain(http).chain(stdio).chain(everyone);
        let mut walked = client.run_targets(targets);
        let everyone = walked.split_off(15);
        let (direct, through) = walked.split_at(5);
        for (way, through) in ["HTTP", "stdio"].iter().zip(through.chunks(5)) {
            for (name, (direct, through)) in NAMES.iter().zip(direct.iter().zip(through)) {
                let what = format!("{} to {name} over {way}", client.name);
                assert_same(client, name, direct, through, &what);
            }
        }
        for (way, through) in ["HTTP", "stdio"].iter().zip(&everyone) {
            let what = format!("{} to /mcp over {way}", client.name);
            assert_same_together(client, direct, through, &what);
        }
    }
}

/// An auto client stays in the modern era, with every server. Removes the fields that only this era
/// has.
fn assert_modern_fields(client: &SdkClient, through: &mut Value, what: &str) {
    let want = match client.mode {
        "auto" => "2026-07-28",
        _ => "2025-11-25",
    };
    assert_eq!(through["revision"], want, "{what}");
    if client.mode != "auto" {
        return;
    }
    let results = through["results"].as_array_mut().unwrap().iter_mut();
    for result in results {
        remove_modern_fields(result, what);
    }
    let tools = through["tools"].as_object_mut().unwrap();
    for hint in ["ttlMs", "cacheScope"] {
        assert!(tools.remove(hint).is_some(), "{hint} of {what}");
    }
    remove_modern_fields(&mut through["tools"], what);
}

fn remove_modern_fields(result: &mut Value, what: &str) {
    const SERVER_INFO_KEY: &str = "io.modelcontextprotocol/serverInfo";
    let result = result.as_object_mut().unwrap();
    assert_eq!(
        result.remove("resultType"),
        Some(json!("complete")),
        "{what}"
    );
    let meta = result["_meta"].as_object_mut().unwrap();
    assert!(meta.remove(SERVER_INFO_KEY).is_some(), "{what}");
    if meta.is_empty() {
        result.remove("_meta");
    }
}

fn assert_same(client: &SdkClient, name: &str, direct: &Value, through: &Value, what: &str) {
    let (mut direct, mut through) = (direct.clone(), through.clone());
    assert_modern_fields(client, &mut through, what);
    through["revision"] = direct["revision"].clone();
    remove_asking_tools(&mut direct["tools"]["tools"]);
    let asking = remove_asking_tools(&mut through["tools"]["tools"]);
    assert_eq!(asking, count_asking_tools(name), "{what}");
    for part in ["revision", "serverInfo", "tools", "results", "progress"] {
        assert_eq!(through[part], direct[part], "{part} of {what}");
    }
}

/// Number of tools that a server offers only to clients with capabilities.
fn count_asking_tools(name: &str) -> usize {
    if name == "everything" {
        CAPABILITY_TOOLS.len()
    } else {
        0
    }
}

/// All servers at a shared endpoint: definitions equal except for the prefix, results equal.
fn assert_same_together(client: &SdkClient, direct: &[Value], through: &Value, what: &str) {
    let mut through = through.clone();
    assert_modern_fields(client, &mut through, what);
    let mut tools = through["tools"]["tools"].as_array().unwrap().clone();
    let mut results = through["results"].as_array().unwrap().clone();
    for (name, direct) in NAMES.iter().zip(direct) {
        let prefix = format!("{name}__");
        let own = |tool: &Value| tool["name"].as_str().unwrap().starts_with(&prefix);
        let mut of_this: Vec<_> = tools.iter().filter(|tool| own(tool)).cloned().collect();
        tools.retain(|tool| !own(tool));
        for tool in &mut of_this {
            let name = tool["name"].as_str().unwrap().strip_prefix(&prefix);
            tool["name"] = json!(name.unwrap());
        }
        let (mut of_this, mut own) = (json!(of_this), direct["tools"]["tools"].clone());
        assert_eq!(
            remove_asking_tools(&mut of_this),
            count_asking_tools(name),
            "{what}"
        );
        remove_asking_tools(&mut own);
        assert_eq!(of_this, own, "{name} among {what}");
        let rest = results.split_off(direct["results"].as_array().unwrap().len());
        assert_eq!(json!(results), direct["results"], "{name} among {what}");
        results = rest;
    }
    assert_eq!(tools, Vec::<Value>::new(), "{what}");
    assert_eq!(results, Vec::<Value>::new(), "{what}");
    // Only a single server sends progress.
    assert_eq!(through["progress"], direct[0]["progress"], "{what}");
}

impl SdkClient {
    /// Lists and calls at each target in sequence, and returns the results.
    pub(super) fn run_targets(
        &self,
        targets: impl IntoIterator<Item = (Value, Value)>,
    ) -> Vec<Value> {
        let targets: Vec<_> = targets.into_iter().collect();
        let (stdout, stderr) = wait_for_success(self.name, self.start_on_targets(&targets));
        let walked: Value = serde_json::from_str(&stdout)
            .unwrap_or_else(|_| panic!("{}: {stdout}\n{stderr}", self.name));
        let walked = walked["targets"].as_array().unwrap().clone();
        assert_eq!(walked.len(), targets.len());
        walked
    }

    /// Starts on targets with calls.
    pub(super) fn start_on_targets(&self, targets: &[(Value, Value)]) -> Child {
        let targets: Vec<_> = targets
            .iter()
            .cloned()
            .map(|(mut target, calls)| {
                target["mode"] = json!(self.mode);
                target["calls"] = calls;
                target
            })
            .collect();
        let mut child = Command::new(&self.program)
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let plan = json!({ "targets": targets }).to_string();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(plan.as_bytes()).unwrap();
        child
    }
}

/// Waits for a successful exit, and returns the output.
pub(super) fn wait_for_success(name: &str, child: Child) -> (String, String) {
    let output = wait_for_exit(name, child);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success(),
        "{name}: {}\n{stdout}\n{stderr}",
        output.status
    );
    (stdout, stderr)
}

/// Waits for a program that must end.
fn wait_for_exit(name: &str, child: Child) -> Output {
    let pid = child.id();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(child.wait_with_output());
    });
    let Ok(output) = receiver.recv_timeout(CLIENT_TIME_MAX) else {
        send_signal(pid, "KILL");
        panic!("{name} does not end");
    };
    output.unwrap()
}
