//! Clients of the official SDKs, which see through the gateway what they see without it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use super::Peers;
use super::world::{ASKING, NAMES, World, take_asking};
use crate::harness::{Gateway, Http, bowline, signal};

/// No client takes longer unless something hangs.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(180);

/// A client program and how it negotiates.
pub(super) struct Client {
    /// Its name in messages, and of what it stores in the memory server.
    pub(super) name: &'static str,
    program: PathBuf,
    args: Vec<PathBuf>,
    mode: &'static str,
}

#[test]
fn python_2_auto_and_legacy_clients_work_over_http_and_stdio() {
    let test = "python_2_auto_and_legacy_clients_work_over_http_and_stdio";
    if let Some(peers) = Peers::of(test, &["/python2"]) {
        let clients = [python_2(&peers, "auto"), python_2(&peers, "legacy")];
        see_the_same(peers, &clients);
    }
}

#[test]
fn python_1_client_works_over_http_and_stdio() {
    let test = "python_1_client_works_over_http_and_stdio";
    if let Some(peers) = Peers::of(test, &["/python1"]) {
        let client = python_1(&peers);
        see_the_same(peers, &[client]);
    }
}

#[test]
fn typescript_clients_work_over_http_and_stdio() {
    let test = "typescript_clients_work_over_http_and_stdio";
    if let Some(peers) = Peers::of(test, &["/clients/sdk", "/clients/client"]) {
        let first = typescript_1(&peers);
        let legacy = typescript_2(&peers, "legacy");
        let auto = typescript_2(&peers, "auto");
        see_the_same(peers, &[first, legacy, auto]);
    }
}

#[test]
fn an_auto_client_finds_the_modern_era_and_stays_in_it() {
    let test = "an_auto_client_finds_the_modern_era_and_stays_in_it";
    let Some(peers) = Peers::of(test, &["/python2", "/clients/client"]) else {
        return;
    };
    let gateway = Gateway::up(&crate::harness::fixture("one", &[]));
    answers_discover(&gateway);
    let calls = json!([["one__echo", {"message": "hi"}]]);
    for client in [python_2(&peers, "auto"), typescript_2(&peers, "auto")] {
        let targets = [over_http(&gateway, "/mcp"), over_stdio(&gateway, None)];
        let walked = client.walk(targets.into_iter().map(|target| (target, calls.clone())));
        for (walked, way) in walked.iter().zip(["HTTP", "stdio"]) {
            let name = client.name;
            assert_eq!(walked["probes"][0], "result", "{name} over {way}");
            assert_eq!(walked["revision"], "2026-07-28", "{name} over {way}");
            assert_eq!(walked["results"][0]["content"][0]["text"], "hi");
        }
    }
}

#[test]
fn a_client_with_a_wrong_token_ends_at_once_and_says_why() {
    let test = "a_client_with_a_wrong_token_ends_at_once_and_says_why";
    let needed = ["/python1", "/python2", "/clients/sdk", "/clients/client"];
    let Some(peers) = Peers::of(test, &needed) else {
        return;
    };
    let gateway = Gateway::up(&crate::harness::fixture("one", &[]));
    let clients = [
        python_1(&peers),
        python_2(&peers, "auto"),
        typescript_1(&peers),
        typescript_2(&peers, "auto"),
    ];
    for client in clients {
        let mut target = over_http(&gateway, "/mcp");
        target["token"] = json!("wrong");
        let output = end(client.name, client.start(&[(target, json!([]))]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{}: {said}", client.name);
        // Some SDKs show the status, some our words.
        let why = said.contains("401") || said.contains("bearer token is required");
        assert!(why, "{}: {said}", client.name);
    }
}

/// The answer to a probe as it stands on the wire: both eras are offered and no session opened.
fn answers_discover(gateway: &Gateway) {
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
    let mut http = Http::connect(gateway.address);
    let answer = http.post("/mcp", &headers, probe.to_string().as_bytes());
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("mcp-session-id"), None);
    assert_eq!(answer.json()["id"], "probe");
    let supported = &answer.json()["result"]["supportedVersions"];
    assert_eq!(supported[0], "2026-07-28", "{}", answer.text());
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/peers")
        .join(name)
}

pub(super) fn python_1(peers: &Peers) -> Client {
    Client {
        name: "python-1",
        program: peers.path("/python1").to_owned(),
        args: vec![script("client_v1.py")],
        mode: "legacy",
    }
}

pub(super) fn python_2(peers: &Peers, mode: &'static str) -> Client {
    Client {
        name: match mode {
            "auto" => "python-2-auto",
            "legacy" => "python-2-legacy",
            _ => "python-2-modern",
        },
        program: peers.path("/python2").to_owned(),
        args: vec![script("client.py")],
        mode,
    }
}

pub(super) fn typescript_1(peers: &Peers) -> Client {
    Client {
        name: "typescript-1",
        program: peers.path("/node").to_owned(),
        args: vec![
            script("client_sdk.mjs"),
            peers.path("/clients/sdk").to_owned(),
        ],
        mode: "legacy",
    }
}

pub(super) fn typescript_2(peers: &Peers, mode: &'static str) -> Client {
    Client {
        name: if mode == "auto" {
            "typescript-2-auto"
        } else {
            "typescript-2-legacy"
        },
        program: peers.path("/node").to_owned(),
        args: vec![
            script("client_v2.mjs"),
            peers.path("/clients/client").to_owned(),
        ],
        mode,
    }
}

pub(super) fn over_http(gateway: &Gateway, path: &str) -> Value {
    let url = format!("http://{}{path}", gateway.address);
    json!({"url": url, "token": gateway.token})
}

pub(super) fn over_stdio(gateway: &Gateway, server: Option<&str>) -> Value {
    let state = gateway.state();
    let mut args = vec!["--state", state.to_str().unwrap(), "stdio"];
    args.extend(server.into_iter().flat_map(|name| ["--server", name]));
    json!({"command": bowline(), "args": args, "env": {}})
}

/// Lets each client see all servers directly and through one gateway, in each way there is.
fn see_the_same(peers: Peers, clients: &[Client]) {
    let world = World::new(peers);
    let gateway = world.gateway();
    for client in clients {
        let calls = |name: &str| json!(world.calls(name, client.name));
        let direct = NAMES.map(|name| {
            let program = world.program(name, client.name);
            let (command, args, env) = (&program.command, &program.args, program.env());
            let target = json!({"command": command, "args": args, "env": env});
            (target, calls(name))
        });
        let http = NAMES.map(|name| {
            let path = format!("/servers/{name}/mcp");
            (over_http(&gateway, &path), calls(name))
        });
        let stdio = NAMES.map(|name| (over_stdio(&gateway, Some(name)), calls(name)));
        let all: Vec<_> = NAMES
            .iter()
            .flat_map(|name| {
                let calls = world.calls(name, client.name).into_iter();
                calls.map(move |(tool, arguments)| json!([format!("{name}__{tool}"), arguments]))
            })
            .collect();
        let everyone = [
            (over_http(&gateway, "/mcp"), json!(all)),
            (over_stdio(&gateway, None), json!(all)),
        ];
        let targets = direct.into_iter().chain(http).chain(stdio).chain(everyone);
        let mut walked = client.walk(targets);
        let everyone = walked.split_off(15);
        let (direct, through) = walked.split_at(5);
        for (way, through) in ["HTTP", "stdio"].iter().zip(through.chunks(5)) {
            for (name, (direct, through)) in NAMES.iter().zip(direct.iter().zip(through)) {
                let what = format!("{} to {name} over {way}", client.name);
                assert_same(client, name, (direct, through), &what);
            }
        }
        for (way, through) in ["HTTP", "stdio"].iter().zip(&everyone) {
            let what = format!("{} to /mcp over {way}", client.name);
            assert_same_together(client, direct, through, &what);
        }
    }
}

/// A client that asks first stays in the modern era, whatever the server speaks. Takes out what
/// only that era says.
fn assert_spoken(client: &Client, through: &mut Value, what: &str) {
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
        bare(result, what);
    }
    let tools = through["tools"].as_object_mut().unwrap();
    for hint in ["ttlMs", "cacheScope"] {
        assert!(tools.remove(hint).is_some(), "{hint} of {what}");
    }
    bare(&mut through["tools"], what);
}

fn bare(result: &mut Value, what: &str) {
    const INFO: &str = "io.modelcontextprotocol/serverInfo";
    let result = result.as_object_mut().unwrap();
    assert_eq!(
        result.remove("resultType"),
        Some(json!("complete")),
        "{what}"
    );
    let meta = result["_meta"].as_object_mut().unwrap();
    assert!(meta.remove(INFO).is_some(), "{what}");
    if meta.is_empty() {
        result.remove("_meta");
    }
}

fn assert_same(client: &Client, name: &str, (direct, through): (&Value, &Value), what: &str) {
    let (mut direct, mut through) = (direct.clone(), through.clone());
    assert_spoken(client, &mut through, what);
    through["revision"] = direct["revision"].clone();
    take_asking(&mut direct["tools"]["tools"]);
    let asking = take_asking(&mut through["tools"]["tools"]);
    assert_eq!(asking, asking_of(name), "{what}");
    for part in ["revision", "serverInfo", "tools", "results", "progress"] {
        assert_eq!(through[part], direct[part], "{part} of {what}");
    }
}

/// How many tools a server offers only to who can be asked.
fn asking_of(name: &str) -> usize {
    if name == "everything" {
        ASKING.len()
    } else {
        0
    }
}

/// All servers at one address: each definition but for its prefix, each result as it is.
fn assert_same_together(client: &Client, direct: &[Value], through: &Value, what: &str) {
    let mut through = through.clone();
    assert_spoken(client, &mut through, what);
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
        assert_eq!(take_asking(&mut of_this), asking_of(name), "{what}");
        take_asking(&mut own);
        assert_eq!(of_this, own, "{name} among {what}");
        let rest = results.split_off(direct["results"].as_array().unwrap().len());
        assert_eq!(json!(results), direct["results"], "{name} among {what}");
        results = rest;
    }
    assert_eq!(tools, Vec::<Value>::new(), "{what}");
    assert_eq!(results, Vec::<Value>::new(), "{what}");
    // Only one server tells progress.
    assert_eq!(through["progress"], direct[0]["progress"], "{what}");
}

impl Client {
    /// Lists and calls at each target, one after the other, and returns what was seen there.
    pub(super) fn walk(&self, targets: impl IntoIterator<Item = (Value, Value)>) -> Vec<Value> {
        let targets: Vec<_> = targets.into_iter().collect();
        let (stdout, stderr) = finish(self.name, self.start(&targets));
        let walked: Value = serde_json::from_str(&stdout)
            .unwrap_or_else(|_| panic!("{}: {stdout}\n{stderr}", self.name));
        let walked = walked["targets"].as_array().unwrap().clone();
        assert_eq!(walked.len(), targets.len());
        walked
    }

    /// Starts on targets with their calls.
    pub(super) fn start(&self, targets: &[(Value, Value)]) -> Child {
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

/// Waits for a program that must end well, and returns what it wrote.
pub(super) fn finish(name: &str, child: Child) -> (String, String) {
    let output = end(name, child);
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
fn end(name: &str, child: Child) -> Output {
    let pid = child.id();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(child.wait_with_output());
    });
    let Ok(output) = receiver.recv_timeout(CLIENT_TIME_MAX) else {
        signal(pid, "KILL");
        panic!("{name} does not end");
    };
    output.unwrap()
}
