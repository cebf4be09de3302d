//! A server over HTTP behind a network that can break, one over pipes, and a gateway.

use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::network::Network;
use crate::harness::served::Served;
use crate::harness::{Gateway, Session, eventually, fixture};

/// Both servers write to ledgers of their own.
#[derive(Debug)]
pub(super) struct World {
    pub(super) gateway: Gateway,
    pub(super) web: Served,
    pub(super) network: Network,
    dir: TempDir,
}

/// A server that failed is tried again at once; calls do not take long.
const PATIENT: &str = "restart = { budget = 1000, window = \"1m\", backoff = \"10ms..50ms\" }\n\
     breaker = { failures = 1000, rest = \"50ms\" }\ntimeout = \"1s\"\n";

impl World {
    /// `channel` is how a key travels to the server over HTTP.
    pub(super) fn new(channel: &str) -> Self {
        Self::with(channel, "1h", "")
    }

    pub(super) fn with(channel: &str, keep: &str, more: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (ledger, status) = (path("web"), format!("status-file={}", path("status")));
        let web = Served::start(&[
            "--toolset",
            "writes",
            "--ledger",
            &ledger,
            "--fault",
            &status,
        ]);
        let network = Network::to(web.address());
        let tool = |server: &str, channel: &str| {
            format!(
                "[servers.{server}.tools.write_once]\nqueue = \"{keep}\"\n\
                 idempotency = \"{channel}\"\n"
            )
        };
        let config = [
            "[roles.agent]\nallow = [\"*\"]\n".to_owned(),
            more.to_owned(),
            format!(
                "[servers.web]\nurl = \"http://{}/mcp\"\n{PATIENT}",
                network.address
            ),
            tool("web", channel),
            fixture("pipe", &["--toolset", "writes", "--ledger", &path("pipe")]) + PATIENT,
            tool("pipe", "meta"),
        ];
        let gateway = Gateway::up(&config.concat());
        for server in ["web", "pipe"] {
            gateway.wait_for(server, "ready");
        }
        Self {
            gateway,
            web,
            network,
            dir,
        }
    }

    /// Has the server refuse calls with this status, or serve them where it is empty.
    pub(super) fn status(&self, status: &str) {
        std::fs::write(self.dir.path().join("status"), status).unwrap();
    }

    /// A session of a principal of its own.
    pub(super) fn agent(&self, name: &str) -> Session {
        let wanted = json!({"principal": name, "role": "agent"});
        let (_, token) = self.gateway.token_of(&wanted);
        self.gateway.session_as(&token, "/mcp")
    }

    /// What the server over HTTP wrote, in order: numbers and keys.
    pub(super) fn ledger(&self) -> Vec<(u64, String)> {
        self.ledger_of("web")
    }

    pub(super) fn ledger_of(&self, server: &str) -> Vec<(u64, String)> {
        let text = std::fs::read_to_string(self.path(server)).unwrap_or_default();
        let lines = text.lines().map(|line| {
            let mut parts = line.split('\t').skip(1);
            let number = parts.next().unwrap().parse().unwrap();
            (number, parts.next().unwrap().to_owned())
        });
        lines.collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What the resource of a queued call says.
    pub(super) fn state_of(&self, session: &mut Session, uri: &str) -> Value {
        let read = session.request("resources/read", &json!({"uri": uri}));
        let contents = &read["result"]["contents"][0];
        assert_eq!(contents["uri"], uri, "{read}");
        assert_eq!(contents["mimeType"], "application/json");
        serde_json::from_str(contents["text"].as_str().unwrap()).unwrap()
    }

    pub(super) fn state_of_said(&self, session: &mut Session, said: &Value) -> Value {
        self.state_of(session, &uri(said))
    }

    /// Waits until a queued call was delivered.
    pub(super) fn delivered(&self, session: &mut Session, said: &Value) {
        self.becomes(session, said, "delivered");
    }

    /// Waits until a queued call is in this state, and returns what is known of it.
    pub(super) fn becomes(&self, session: &mut Session, said: &Value, state: &str) -> Value {
        let mut last = Value::Null;
        eventually(&format!("{said} is {state}"), || {
            last = self.state_of_said(session, said);
            last["state"] == state
        });
        last
    }
}

/// The address of a queued call.
pub(super) fn uri(said: &Value) -> String {
    format!("bowline://outbox/{}", said["id"].as_str().unwrap())
}

/// What a queued call was answered with.
pub(super) fn queued(answer: &Value) -> Value {
    let said = &answer["result"]["structuredContent"];
    assert_eq!(said["queued"], true, "{answer}");
    said.clone()
}
