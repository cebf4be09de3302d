//! Credentials of servers: read at each send, got anew when they are refused, and taken up by
//! lists and children when they change.

mod agents;
mod keychain;
mod rotated;
mod stored;

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::harness::listener::{Asked, Listener};
use crate::harness::{Gateway, Http, Session, bowline, eventually};

/// An MCP server over HTTP that knows who asks by the `Authorization` header: each good one is
/// shown tools of its own, and others are refused.
pub(crate) struct Guarded {
    pub(crate) listener: Listener,
    good: Arc<Mutex<HashMap<String, Vec<&'static str>>>>,
}

impl Guarded {
    pub(crate) fn start(good: &[(&str, &[&'static str])]) -> Self {
        let known = Arc::<Mutex<HashMap<_, _>>>::default();
        let looked = Arc::clone(&known);
        let listener = Listener::start(move |asked| answer(asked, &looked));
        let this = Self {
            listener,
            good: known,
        };
        this.only(good);
        this
    }

    /// From now on these are good, and no others.
    pub(crate) fn only(&self, good: &[(&str, &[&'static str])]) {
        let good = good.iter().map(|(who, tools)| {
            let who = format!("Bearer {who}");
            (who, tools.to_vec())
        });
        *self.good.lock().unwrap() = good.collect();
    }

    /// The entry of this server in a config file.
    pub(crate) fn entry(&self, name: &str, bearer: &str) -> String {
        let url = format!("{}/mcp", self.listener.url);
        format!(
            "[servers.{name}]\nurl = {}\nheaders = {{ Authorization = \"Bearer {bearer}\" }}\n",
            json!(url)
        )
    }

    /// What proved who we are in each request of this method, in order.
    pub(crate) fn proofs(&self, method: &str) -> Vec<String> {
        let asked = self.listener.asked();
        let of_method = asked.iter().filter(|one| one.json()["method"] == method);
        let proofs = of_method.map(|one| one.header("authorization").unwrap_or_default());
        proofs.map(str::to_owned).collect()
    }
}

fn answer(asked: &Asked, good: &Mutex<HashMap<String, Vec<&'static str>>>) -> (u16, String) {
    let who = asked.header("authorization").unwrap_or_default();
    let Some(tools) = good.lock().unwrap().get(who).cloned() else {
        // Some say back what they would not take.
        return (401, json!(format!("you are not {who}")).to_string());
    };
    let message = asked.json();
    let id = &message["id"];
    let tools = || {
        let tools = tools.iter();
        let tools = tools.map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
        tools.collect::<Vec<_>>()
    };
    let result = match message["method"].as_str() {
        Some("initialize") => json!({
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "guarded", "version": "1"},
        }),
        Some("tools/list") => json!({"tools": tools()}),
        Some("tools/call") => json!({"content": [{"type": "text", "text": "done"}]}),
        Some(_) if id.is_null() => return (202, String::new()),
        Some(_) => json!({}),
        None => return (405, String::new()),
    };
    let answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
    (200, answer.to_string())
}

/// Runs a command of the command line with this on its stdin.
pub(crate) fn say(gateway: &Gateway, args: &[&str], input: &str) -> Output {
    let config = gateway.dir.path().join("bowline.toml");
    let mut child = Command::new(bowline())
        .arg("--state")
        .arg(gateway.state())
        .arg("--config")
        .arg(config)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// Puts a secret away.
pub(crate) fn set(gateway: &Gateway, name: &str, value: &str) {
    let out = say(gateway, &["secret", "set", name], value);
    assert!(out.status.success(), "{out:?}");
    let told = [out.stdout, out.stderr].concat();
    let told = String::from_utf8(told).unwrap();
    assert!(!told.contains(value.trim()), "{told}");
}

/// Waits until a server that was left out is there and in this state.
pub(crate) fn comes(gateway: &Gateway, server: &str, state: &str) {
    eventually(&format!("{server} is {state}"), || {
        let servers = gateway.api("/api/v1/servers");
        let servers = servers["servers"].as_array().unwrap();
        let is_it = |one: &Value| one["name"] == server && one["state"] == state;
        servers.iter().any(is_it)
    });
}

/// Opens the stream on which a session is told of changes.
pub(crate) fn listening(gateway: &Gateway, session: &Session) -> Http {
    let mut stream = Http::connect(gateway.address);
    let mut headers = session.headers();
    headers.push(("Accept".to_owned(), "text/event-stream".to_owned()));
    let headers: Vec<_> = headers.iter().map(|(k, v)| (&k[..], &v[..])).collect();
    stream.send("GET", session.path(), &headers, b"");
    assert_eq!(stream.read_head().status, 200);
    stream
}

/// The text of a call's result, or its error.
pub(crate) fn outcome(answer: &Value) -> String {
    match answer["result"]["content"][0]["text"].as_str() {
        Some(text) => text.to_owned(),
        None => answer["error"]["data"]["code"].to_string(),
    }
}
