//! An HTTP server behind a breakable network, a stdio server, and a gateway.

use std::path::PathBuf;

use bowline_testkit::gateway::{FaultyNetwork, FixtureServer, Gateway, Session, fixture_config};
use bowline_testkit::wait_until;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Both servers write to separate ledgers.
#[derive(Debug)]
pub(super) struct OutboxSetup {
    pub(super) gateway: Gateway,
    pub(super) http_server: FixtureServer,
    pub(super) network: FaultyNetwork,
    dir: TempDir,
}

/// A failed server is retried at once; calls are short.
const FAST_RETRY: &str = "restart = { budget = 1000, window = \"1m\", backoff = \"10ms..50ms\" }\n\
     breaker = { failures = 1000, rest = \"50ms\" }\ntimeout = \"1s\"\n";

impl OutboxSetup {
    /// `channel` is the way in which a key travels to the HTTP server.
    pub(super) fn new(channel: &str) -> Self {
        Self::with_config(channel, "1h", "")
    }

    pub(super) fn with_config(channel: &str, keep: &str, more: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (ledger, status) = (path("web"), format!("status-file={}", path("status")));
        let http_server = FixtureServer::start(&[
            "--toolset",
            "writes",
            "--ledger",
            &ledger,
            "--fault",
            &status,
        ]);
        let network = FaultyNetwork::start(http_server.address());
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
                "[servers.web]\nurl = \"http://{}/mcp\"\n{FAST_RETRY}",
                network.address
            ),
            tool("web", channel),
            fixture_config("pipe", &["--toolset", "writes", "--ledger", &path("pipe")])
                + FAST_RETRY,
            tool("pipe", "meta"),
        ];
        let gateway = Gateway::start(&config.concat());
        for server in ["web", "pipe"] {
            gateway.wait_for_state(server, "ready");
        }
        Self {
            gateway,
            http_server,
            network,
            dir,
        }
    }

    /// Makes the server refuse calls with this status; an empty status serves calls.
    pub(super) fn set_status(&self, status: &str) {
        std::fs::write(self.dir.path().join("status"), status).unwrap();
    }

    /// A session of a new principal.
    pub(super) fn open_agent_session(&self, name: &str) -> Session {
        let wanted = json!({"principal": name, "role": "agent"});
        let (_, token) = self.gateway.create_token(&wanted);
        self.gateway.open_session_as(&token, "/mcp")
    }

    /// Writes of the HTTP server, in order: numbers and keys.
    pub(super) fn http_ledger(&self) -> Vec<(u64, String)> {
        self.ledger_of("web")
    }

    pub(super) fn ledger_of(&self, server: &str) -> Vec<(u64, String)> {
        let text = std::fs::read_to_string(self.file_path(server)).unwrap_or_default();
        let lines = text.lines().map(|line| {
            let mut parts = line.split('\t').skip(1);
            let number = parts.next().unwrap().parse().unwrap();
            (number, parts.next().unwrap().to_owned())
        });
        lines.collect()
    }

    fn file_path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The resource of a queued call.
    pub(super) fn queued_call_state(&self, session: &mut Session, uri: &str) -> Value {
        let read = session.request("resources/read", &json!({"uri": uri}));
        let contents = &read["result"]["contents"][0];
        assert_eq!(contents["uri"], uri, "{read}");
        assert_eq!(contents["mimeType"], "application/json");
        serde_json::from_str(contents["text"].as_str().unwrap()).unwrap()
    }

    pub(super) fn queued_reply_state(&self, session: &mut Session, said: &Value) -> Value {
        self.queued_call_state(session, &queued_call_uri(said))
    }

    /// Waits until a queued call was delivered.
    pub(super) fn wait_until_delivered(&self, session: &mut Session, said: &Value) {
        self.wait_for_call_state(session, said, "delivered");
    }

    /// Waits until a queued call is in this state, and returns the resource.
    pub(super) fn wait_for_call_state(
        &self,
        session: &mut Session,
        said: &Value,
        state: &str,
    ) -> Value {
        let mut last = Value::Null;
        wait_until(&format!("{said} is {state}"), || {
            last = self.queued_reply_state(session, said);
            last["state"] == state
        });
        last
    }
}

/// The URI of a queued call.
pub(super) fn queued_call_uri(said: &Value) -> String {
    format!("bowline://outbox/{}", said["id"].as_str().unwrap())
}

/// The queued reply in a response.
pub(super) fn expect_queued(answer: &Value) -> Value {
    let said = &answer["result"]["structuredContent"];
    assert_eq!(said["queued"], true, "{answer}");
    said.clone()
}
