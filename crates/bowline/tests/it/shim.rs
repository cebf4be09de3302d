//! `bowline stdio`: a client that starts programs has the whole protocol, and keeps it when the
//! gateway dies or a connection breaks.

mod modern;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::served::Served;
use crate::harness::{Gateway, PATIENCE, bowline, eventually, fixture, lives, signal};

/// A client's end of `bowline stdio`.
#[derive(Debug)]
struct Shim {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<Value>,
    /// What came while something else was waited for.
    unread: VecDeque<Value>,
}

impl Shim {
    fn start(state: &Path, args: &[&str]) -> Self {
        let mut child = Command::new(bowline())
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
        // On a thread of its own, so that a shim that says nothing fails a test in time.
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
            unread: VecDeque::new(),
        }
    }

    /// Introduces a client with these capabilities.
    fn greet(&mut self, capabilities: &Value) {
        let hello = json!({
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": {"name": "it", "version": "1"},
        });
        let answer = self.request(0, "initialize", &hello);
        assert!(answer["result"]["serverInfo"].is_object(), "{answer}");
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn send_call(&mut self, id: u64, tool: &str, arguments: &Value) {
        let params = json!({"name": tool, "arguments": arguments});
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}));
    }

    /// Waits for a message that is like this; what else comes is kept.
    fn wait(&mut self, like: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.unread.iter().position(&like) {
            return self.unread.remove(at).unwrap();
        }
        loop {
            let message = self.lines.recv_timeout(PATIENCE).unwrap();
            if like(&message) {
                return message;
            }
            self.unread.push_back(message);
        }
    }

    fn hear(&mut self, method: &str) -> Value {
        self.wait(|message| message["method"] == method)
    }

    fn answer(&mut self, id: u64) -> Value {
        self.wait(|message| message["id"] == id && message["method"].is_null())
    }

    fn request(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        self.answer(id)
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory of its own with a configuration, in which a shim starts its gateway.
#[derive(Debug)]
struct Alone(TempDir);

impl Alone {
    fn new() -> Self {
        Self::with(&fixture("one", &[]))
    }

    fn with(servers: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let config = "[gateway]\nlisten = \"127.0.0.1:0\"\n".to_owned() + servers;
        std::fs::write(dir.path().join("bowline.toml"), config).unwrap();
        Self(dir)
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    fn shim(&self) -> Shim {
        let config = self.0.path().join("bowline.toml");
        Shim::start(&self.state(), &["--config", config.to_str().unwrap()])
    }

    /// The gateway that serves here.
    fn gateway(&self) -> Option<u32> {
        let run = std::fs::read(self.state().join("run.json")).ok()?;
        let run: Value = serde_json::from_slice(&run).ok()?;
        u32::try_from(run["pid"].as_u64()?).ok()
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // The gateway is detached on purpose, so it is ended by its record.
        if let Some(pid) = self.gateway().filter(|pid| lives(*pid)) {
            signal(pid, "TERM");
            eventually("the gateway is gone", || !lives(pid));
        }
    }
}

/// Stands between a shim and its gateway, and can cut what goes through it.
#[derive(Debug)]
struct Wire {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    fn to(gateway: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let open = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&open);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(gateway).unwrap();
                let ends = [client, server].map(|end| [0; 3].map(|_| end.try_clone().unwrap()));
                let [[mut from, mut back, client], [mut to, mut answers, server]] = ends;
                kept.lock().unwrap().extend([client, server]);
                std::thread::spawn(move || asked(&mut from, &mut to, [address, gateway]));
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut answers, &mut back);
                    let _ = back.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, open }
    }

    /// Cuts every connection; new ones are taken.
    fn cut(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Carries requests; the gateway takes those that name its own address only.
fn asked(from: &mut TcpStream, to: &mut TcpStream, names: [SocketAddr; 2]) {
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
fn the_shim_starts_a_gateway_and_survives_its_death() {
    let alone = Alone::new();
    let mut shim = alone.shim();
    shim.greet(&json!({}));
    let echo = json!({"name": "one__echo", "arguments": {"message": "hi"}});
    let answer = shim.request(2, "tools/call", &echo);
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");

    let first = alone.gateway().unwrap();
    signal(first, "KILL");
    eventually("the gateway is dead", || !lives(first));
    let answer = shim.request(3, "tools/call", &echo);
    assert_eq!(answer["result"]["content"][0]["text"], "hi", "{answer}");
    let second = alone.gateway().unwrap();
    assert!(second != first && lives(second));

    // The client leaves; the gateway stays for the next one.
    drop(shim.input.take());
    assert!(shim.child.wait().unwrap().success());
    assert!(lives(second));
}

#[test]
fn a_client_behind_the_shim_is_asked_and_its_answers_come_back() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut shim = Shim::start(&gateway.state(), &[]);
    shim.greet(&json!({"elicitation": {}, "sampling": {}, "roots": {"listChanged": true}}));
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
        let question = shim.hear(asked);
        shim.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": result}));
        let answer = shim.answer(id);
        assert!(answer["result"]["isError"].is_null(), "{answer}");
        assert!(answer["result"].to_string().contains(want), "{answer}");
    }
}

#[test]
fn news_outside_calls_reach_a_client_behind_the_shim() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let mut shim = Shim::start(&gateway.state(), &[]);
    shim.greet(&json!({}));
    let uri = "test://watched-resource";
    let answer = shim.request(1, "resources/subscribe", &json!({"uri": uri}));
    assert_eq!(answer["result"], json!({}));
    // What is said before the shim listens is said to nobody.
    eventually("it listens", || {
        gateway.api("/api/v1/status")["streams"] == 1
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
        shim.answer(id);
        shim.hear(told);
    }
    // A server that goes takes its resources along.
    gateway.order("one", "stop");
    shim.hear("notifications/resources/list_changed");
}

#[test]
fn a_call_behind_the_shim_outlives_its_connection() {
    let gateway = Gateway::up(&fixture("one", &[]));
    gateway.wait_for("one", "ready");
    let wire = Wire::to(gateway.address);
    let record = gateway.state().join("run.json");
    let run = std::fs::read_to_string(&record).unwrap();
    let through = run.replace(&gateway.address.to_string(), &wire.address.to_string());
    assert_ne!(run, through);
    std::fs::write(&record, through).unwrap();
    let mut shim = Shim::start(&gateway.state(), &[]);
    shim.greet(&json!({"elicitation": {}}));
    shim.send_call(4, "one__test_elicitation", &json!({"message": "who?"}));
    let question = shim.hear("elicitation/create");
    wire.cut();
    let given = json!({"action": "accept", "content": {"username": "ann", "email": "e"}});
    shim.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": given}));
    let answer = shim.answer(4);
    assert!(answer["result"].to_string().contains("ann"), "{answer}");
    assert_eq!(gateway.status("one")["calls"], 1);
}

#[test]
fn a_call_whose_gateway_died_may_have_run_and_the_next_one_finds_another() {
    let alone = Alone::new();
    let mut shim = alone.shim();
    shim.greet(&json!({"elicitation": {}}));
    shim.send_call(5, "one__test_elicitation", &json!({"message": "who?"}));
    shim.hear("elicitation/create");
    signal(alone.gateway().unwrap(), "KILL");
    let answer = shim.answer(5);
    assert_eq!(answer["error"]["data"]["execution"], "unknown", "{answer}");
    shim.send_call(6, "one__test_elicitation", &json!({"message": "again?"}));
    let question = shim.hear("elicitation/create");
    assert_eq!(question["params"]["message"], "again?");
}

#[test]
fn a_write_queued_behind_the_shim_is_delivered_by_the_next_gateway_and_told_to_its_client() {
    let mut web = Served::start(&["--toolset", "writes"]);
    let queue = "[servers.web.tools.write_once]\nqueue = \"1h\"\nidempotency = \"meta\"\n";
    let alone = Alone::with(&format!("[servers.web]\nurl = \"{}\"\n{queue}", web.url));
    let mut shim = alone.shim();
    shim.greet(&json!({}));
    let call = |number: u64| json!({"name": "web__write_once", "arguments": {"number": number}});
    let live = shim.request(1, "tools/call", &call(1));
    assert_eq!(live["result"]["structuredContent"]["order"], 1, "{live}");
    web.kill();
    let answer = shim.request(2, "tools/call", &call(2));
    let said = answer["result"]["structuredContent"].clone();
    assert_eq!(said["queued"], true, "{answer}");
    let first = alone.gateway().unwrap();
    signal(first, "KILL");
    eventually("the gateway is dead", || !lives(first));
    // The next gateway knows the session, and what it was promised.
    let uri = format!("bowline://outbox/{}", said["id"].as_str().unwrap());
    let state = |read: &Value| -> Value {
        let text = read["result"]["contents"][0]["text"].as_str();
        serde_json::from_str(text.unwrap_or_else(|| panic!("{read}"))).unwrap()
    };
    let read = shim.request(3, "resources/read", &json!({"uri": uri}));
    let waits = state(&read);
    assert!(
        ["queued", "sending"].contains(&waits["state"].as_str().unwrap()),
        "{read}"
    );
    let subscribed = shim.request(4, "resources/subscribe", &json!({"uri": uri}));
    assert_eq!(subscribed["result"], json!({}), "{subscribed}");
    web.restart();
    assert_eq!(
        shim.hear("notifications/resources/updated")["params"]["uri"],
        uri
    );
    let read = shim.request(5, "resources/read", &json!({"uri": uri}));
    assert_eq!(state(&read)["state"], "delivered", "{read}");
}
