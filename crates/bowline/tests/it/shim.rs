//! `bowline stdio`: a client that starts programs gets the whole protocol, across gateway deaths
//! and broken connections.

mod modern;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use bowline_testkit::gateway::{FixtureServer, Gateway, bowline_binary, fixture_config};
use bowline_testkit::{WAIT_MAX, is_alive, send_signal, wait_process_exit, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The client side of `bowline stdio`.
#[derive(Debug)]
struct ShimClient {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
    /// Messages received while waiting for another.
    pending_messages: VecDeque<Value>,
}

impl ShimClient {
    fn start(state: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(bowline_binary())
            .arg("stdio")
            .arg("--state")
            .arg(state)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (told, lines) = channel();
        // A reader thread, so a silent shim fails the test in time.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).unwrap();
                if told.send(message).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            input,
            lines,
            pending_messages: VecDeque::new(),
        }
    }

    /// Initializes a client with the given capabilities.
    fn initialize(&mut self, capabilities: &Value) {
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": {"name": "it", "version": "1"},
        });
        let answer = self.send_request(0, "initialize", &hello);
        assert!(answer["result"]["serverInfo"].is_object(), "{answer}");
        self.send_message(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    fn send_message(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn send_call(&mut self, id: u64, tool: &str, arguments: &Value) {
        let params = json!({"name": tool, "arguments": arguments});
        self.send_message(
            &json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}),
        );
    }

    /// Waits for a matching message; the rest is kept.
    fn wait_for_message(&mut self, like: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.pending_messages.iter().position(&like) {
            return self.pending_messages.remove(at).unwrap();
        }
        loop {
            let message = self.lines.recv_timeout(WAIT_MAX).unwrap();
            if like(&message) {
                return message;
            }
            self.pending_messages.push_back(message);
        }
    }

    fn wait_for_method(&mut self, method: &str) -> Value {
        self.wait_for_message(|message| message["method"] == method)
    }

    fn wait_for_response(&mut self, id: u64) -> Value {
        self.wait_for_message(|message| message["id"] == id && message["method"].is_null())
    }

    fn send_request(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.send_message(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        self.wait_for_response(id)
    }
}

impl Drop for ShimClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory with a configuration, for a gateway started by a shim.
#[derive(Debug)]
struct StandaloneDir(TempDir);

impl StandaloneDir {
    fn new() -> Self {
        Self::with_servers(&fixture_config("one", &[]))
    }

    fn with_servers(servers: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let config = "[gateway]\nlisten = \"127.0.0.1:0\"\n".to_owned() + servers;
        std::fs::write(dir.path().join("bowline.toml"), config).unwrap();
        Self(dir)
    }

    fn state_dir(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn start_shim(&self) -> ShimClient {
        let config = self.0.path().join("bowline.toml");
        ShimClient::start(&self.state_dir(), &["--config", config.to_str().unwrap()])
    }

    /// The pid of the running gateway.
    fn gateway_pid(&self) -> Option<u32> {
        let run = std::fs::read(self.state_dir().join("run.json")).ok()?;
        let run: Value = serde_json::from_slice(&run).ok()?;
        u32::try_from(run["pid"].as_u64()?).ok()
    }
}

impl Drop for StandaloneDir {
    fn drop(&mut self) {
        // The gateway is detached, so the test reads the pid from `run.json`.
        if let Some(pid) = self.gateway_pid().filter(|pid| is_alive(*pid)) {
            send_signal(pid, "TERM");
            wait_process_exit("the end of the gateway", pid);
        }
    }
}

/// A proxy between shim and gateway that can cut connections.
#[derive(Debug)]
struct CuttableProxy {
    address: SocketAddr,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl CuttableProxy {
    fn start(gateway: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&connections);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(gateway).unwrap();
                let ends = [client, server].map(|end| [0; 3].map(|_| end.try_clone().unwrap()));
                let [[mut from, mut back, client], [mut to, mut answers, server]] = ends;
                kept.lock().unwrap().extend([client, server]);
                std::thread::spawn(move || {
                    forward_requests(&mut from, &mut to, [address, gateway])
                });
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut answers, &mut back);
                    let _ = back.shutdown(Shutdown::Both);
                });
            }
        });
        Self {
            address,
            connections,
        }
    }

    /// Cuts every connection; new connections are accepted.
    fn cut_connections(&self) {
        for stream in self.connections.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Forwards requests; the gateway accepts only its own address as the host.
fn forward_requests(from: &mut TcpStream, to: &mut TcpStream, names: [SocketAddr; 2]) {
    let [here, there] = names.map(|name| name.to_string());
    let mut chunk = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut chunk) {
        let text = std::str::from_utf8(&chunk[..length]).unwrap();
        if to
            .write_all(text.replace(&here, &there).as_bytes())
            .is_err()
        {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn shim_starts_gateway_and_survives_its_death() {
    let alone = StandaloneDir::new();
    let mut shim = alone.start_shim();
    shim.initialize(&json!({}));
    let echo = json!({"name": "one__echo", "arguments": {"message": "hi"}});
    let answer = shim.send_request(2, "tools/call", &echo);
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");

    let first = alone.gateway_pid().unwrap();
    send_signal(first, "KILL");
    wait_process_exit("the death of the gateway", first);
    let answer = shim.send_request(3, "tools/call", &echo);
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    let second = alone.gateway_pid().unwrap();
    assert!(second != first && is_alive(second));

    // The client leaves; the gateway stays for the next client.
    drop(shim.input.take());
    assert!(shim.child.wait().unwrap().success());
    assert!(is_alive(second));
}

#[test]
fn server_requests_reach_client_behind_shim() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut shim = ShimClient::start(&gateway.state_dir(), &[]);
    shim.initialize(&json!({"elicitation": {}, "sampling": {}, "roots": {"listChanged": true}}));
    let said = json!({"role": "assistant", "model": "m",
        "content": {"type": "text", "text": "by the model"}});
    let given = json!({"action": "accept", "content": {"username": "ann", "email": "e"}});
    let roots = json!({"roots": [{"uri": "file:///home/ann"}]});
    for (id, tool, arguments, asked, result, want) in [
        (
            4,
            "test_elicitation",
            json!({"message": "who?"}),
            "elicitation/create",
            given,
            "ann",
        ),
        (
            5,
            "test_sampling",
            json!({"prompt": "say"}),
            "sampling/createMessage",
            said,
            "by the model",
        ),
        (
            6,
            "test_roots",
            json!({}),
            "roots/list",
            roots,
            "file:///home/ann",
        ),
    ] {
        shim.send_call(id, &format!("one__{tool}"), &arguments);
        let question = shim.wait_for_method(asked);
        shim.send_message(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result}));
        let answer = shim.wait_for_response(id);
        assert!(answer["result"]["isError"].is_null(), "{answer}");
        assert!(answer["result"].to_string().contains(want), "{answer}");
    }
}

#[test]
fn notifications_reach_client_behind_shim() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let mut shim = ShimClient::start(&gateway.state_dir(), &[]);
    shim.initialize(&json!({}));
    let uri = "test://watched-resource";
    let answer = shim.send_request(1, "resources/subscribe", &json!({"uri": uri}));
    assert_eq!(answer["result"], json!({}));
    // Notifications before the shim listens are not delivered.
    wait_until("it listens", || {
        gateway.get_api("/api/v1/status")["streams"] == 1
    });
    for (id, tool, told) in [
        (
            2,
            "test_trigger_tool_change",
            "notifications/tools/list_changed",
        ),
        (
            3,
            "test_trigger_prompt_change",
            "notifications/prompts/list_changed",
        ),
        (4, "touch", "notifications/resources/updated"),
    ] {
        shim.send_call(id, &format!("one__{tool}"), &json!({}));
        shim.wait_for_response(id);
        shim.wait_for_method(told);
    }
    // Stopping a server removes the server's resources.
    gateway.control_server("one", "stop");
    shim.wait_for_method("notifications/resources/list_changed");
}

#[test]
fn call_behind_shim_outlives_connection() {
    let gateway = Gateway::start(&fixture_config("one", &[]));
    gateway.wait_for_state("one", "ready");
    let wire = CuttableProxy::start(gateway.address);
    let record = gateway.state_dir().join("run.json");
    let run = std::fs::read_to_string(&record).unwrap();
    let through = run.replace(&gateway.address.to_string(), &wire.address.to_string());
    assert_ne!(run, through);
    std::fs::write(&record, through).unwrap();
    let mut shim = ShimClient::start(&gateway.state_dir(), &[]);
    shim.initialize(&json!({"elicitation": {}}));
    shim.send_call(4, "one__test_elicitation", &json!({"message": "who?"}));
    let question = shim.wait_for_method("elicitation/create");
    wire.cut_connections();
    let given = json!({"action": "accept", "content": {"username": "ann", "email": "e"}});
    shim.send_message(&json!({"jsonrpc": "2.0", "id": question["id"], "result": given}));
    let answer = shim.wait_for_response(4);
    assert!(answer["result"].to_string().contains("ann"), "{answer}");
    assert_eq!(gateway.server_status("one")["calls"], 1);
}

/// A call whose gateway died may have run; the next call finds another gateway.
#[test]
fn shim_call_is_unknown_after_gateway_death() {
    let alone = StandaloneDir::new();
    let mut shim = alone.start_shim();
    shim.initialize(&json!({"elicitation": {}}));
    shim.send_call(5, "one__test_elicitation", &json!({"message": "who?"}));
    shim.wait_for_method("elicitation/create");
    send_signal(alone.gateway_pid().unwrap(), "KILL");
    let answer = shim.wait_for_response(5);
    assert_eq!(answer["error"]["data"]["execution"], "unknown", "{answer}");
    shim.send_call(6, "one__test_elicitation", &json!({"message": "again?"}));
    let question = shim.wait_for_method("elicitation/create");
    assert_eq!(question["params"]["message"], "again?");
}

#[test]
fn write_queued_behind_shim_survives_gateway_death() {
    let mut web = FixtureServer::start(&["--toolset", "writes"]);
    let queue = "[servers.web.tools.write_once]\nqueue = \"1h\"\nidempotency = \"meta\"\n";
    let alone =
        StandaloneDir::with_servers(&format!("[servers.web]\nurl = \"{}\"\n{queue}", web.url));
    let mut shim = alone.start_shim();
    shim.initialize(&json!({}));
    let call = |number: u64| json!({"name": "web__write_once", "arguments": {"number": number}});
    let live = shim.send_request(1, "tools/call", &call(1));
    assert_eq!(live["result"]["structuredContent"]["order"], 1, "{live}");
    web.kill();
    let answer = shim.send_request(2, "tools/call", &call(2));
    let said = answer["result"]["structuredContent"].clone();
    assert_eq!(said["queued"], true, "{answer}");
    let first = alone.gateway_pid().unwrap();
    send_signal(first, "KILL");
    wait_process_exit("the death of the gateway", first);
    // The next gateway knows the session and its queued write.
    let uri = format!("bowline://outbox/{}", said["id"].as_str().unwrap());
    let state = |read: &Value| -> Value {
        let text = read["result"]["contents"][0]["text"].as_str();
        serde_json::from_str(text.unwrap_or_else(|| panic!("{read}"))).unwrap()
    };
    let read = shim.send_request(3, "resources/read", &json!({"uri": uri}));
    let waits = state(&read);
    assert!(
        ["queued", "sending"].contains(&waits["state"].as_str().unwrap()),
        "{read}"
    );
    let subscribed = shim.send_request(4, "resources/subscribe", &json!({"uri": uri}));
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    web.restart();
    assert_eq!(
        shim.wait_for_method("notifications/resources/updated")["params"]["uri"],
        uri
    );
    let read = shim.send_request(5, "resources/read", &json!({"uri": uri}));
    assert_eq!(state(&read)["state"], "delivered", "{read}");
}
