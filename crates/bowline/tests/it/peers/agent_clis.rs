//! The real command lines of Claude Code and Codex, offline: they accept the configuration of
//! `run`, and Claude connects.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use bowline_testkit::gateway::{Gateway, bowline_binary, fixture_config};
use bowline_testkit::wait_until;
use serde_json::Value;
use tempfile::TempDir;

use super::PeerManifest;

/// A home directory for a client, and a PATH directory with the client.
struct ClientHome {
    gateway: Gateway,
    home: TempDir,
    path: String,
}

impl ClientHome {
    fn new(peers: &PeerManifest) -> Self {
        let gateway = Gateway::start(&fixture_config("fix", &[]));
        gateway.wait_for_state("fix", "ready");
        let home = TempDir::new().unwrap();
        let bin = home.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for name in ["claude", "codex"] {
            symlink(peers.peer_path(&format!("/agents/{name}")), bin.join(name)).unwrap();
        }
        let node = peers.peer_path("/node").parent().unwrap();
        let path = format!("{}:{}:/usr/bin:/bin", bin.display(), node.display());
        Self {
            gateway,
            home,
            path,
        }
    }

    /// Runs a client, and returns the exit code and output.
    fn run_client(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(bowline_binary())
            .arg("--state")
            .arg(self.gateway.state_dir())
            .arg("run")
            .args(args)
            .current_dir(self.home.path())
            .env_clear()
            .env("PATH", &self.path)
            .env("HOME", self.home.path())
            .env("DISABLE_AUTOUPDATER", "1")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = format!("{}{}", text(&output.stdout), text(&output.stderr));
        (output.status.code(), said)
    }

    fn mcp_url(&self) -> String {
        format!("http://{}/mcp", self.gateway.address)
    }

    /// Number of sessions of this principal's clients.
    fn count_sessions(&self, principal: &str) -> usize {
        let all = self.gateway.get_api("/api/v1/sessions");
        let all = all["sessions"].as_array().unwrap().iter();
        all.filter(|one| one["principal"] == principal).count()
    }

    /// Whether the client's log reports a connection to the gateway.
    fn has_connected(&self, home: &Path) -> bool {
        let log = std::fs::read_to_string(home.join("debug.log")).unwrap_or_default();
        log.contains("MCP server \"bowline\": Successfully connected")
    }
}

#[test]
fn codex_cli_accepts_run_configuration() {
    let test = "codex_cli_accepts_run_configuration";
    let Some(peers) = PeerManifest::load(test, &["/agents/codex", "/agents/claude"]) else {
        return;
    };
    let desk = ClientHome::new(&peers);
    let (code, said) = desk.run_client(&["codex", "--", "mcp", "list", "--json"]);
    assert_eq!(code, Some(0), "{said}");
    let at = said.find("[\n").unwrap_or_else(|| panic!("{said}"));
    let list = said[at..].rsplit_once(']').unwrap().0;
    let list: Value = serde_json::from_str(&format!("{list}]")).unwrap();
    assert_eq!(list[0]["name"], "bowline");
    assert_eq!(list[0]["enabled"], true);
    let transport = &list[0]["transport"];
    assert_eq!(transport["type"], "streamable_http");
    assert_eq!(transport["url"], desk.mcp_url());
    assert_eq!(transport["bearer_token_env_var"], "BOWLINE_SESSION_TOKEN");
    // Codex reads this variable.
    assert_eq!(list[0]["auth_status"], "bearer_token");

    let (code, said) = desk.run_client(&["codex", "--name", "knot", "--", "mcp", "get", "knot"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(&desk.mcp_url()) && said.contains("BOWLINE_SESSION_TOKEN"),
        "{said}"
    );
    let (code, _) = desk.run_client(&["codex", "--", "mcp", "get", "nothere"]);
    assert_eq!(code, Some(1), "the exit code is its own");
}

#[test]
fn claude_cli_accepts_run_configuration_and_connects() {
    let test = "claude_cli_accepts_run_configuration_and_connects";
    let Some(peers) = PeerManifest::load(test, &["/agents/codex", "/agents/claude"]) else {
        return;
    };
    let desk = ClientHome::new(&peers);
    // The client reports the missing login after starting the servers.
    let log = desk.home.path().join("debug.log");
    let args = [
        "claude",
        "--",
        "--debug-file",
        log.to_str().unwrap(),
        "-p",
        "hello",
    ];
    let (code, said) = desk.run_client(&args);
    assert_eq!(code, Some(1), "{said}");
    assert!(desk.has_connected(desk.home.path()), "{said}");
    wait_until("its session ended with its token", || {
        desk.count_sessions("owner:claude") == 0
    });

    // `claude mcp` reads files only; this file has the content that `run` passes.
    let (code, said) = desk.run_client(&["claude", "--", "mcp", "list"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("No MCP servers configured"), "{said}");
    let args = ["connect", "claude", "--print-args"];
    let printed = desk.gateway.run_cli(&args).stdout;
    let printed = String::from_utf8(printed).unwrap();
    let config = printed.lines().nth(1).unwrap();
    std::fs::write(desk.home.path().join(".claude.json"), config).unwrap();
    let (code, said) = desk.run_client(&["claude", "--", "mcp", "list"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(&format!("bowline: {} (HTTP)", desk.mcp_url())),
        "{said}"
    );
    assert!(said.contains("Connected"), "{said}");
    let (code, said) = desk.run_client(&["claude", "--", "mcp", "get", "bowline"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("Bearer ${BOWLINE_SESSION_TOKEN}"), "{said}");
    assert!(
        said.contains("Connected") && !said.contains("bwl_"),
        "{said}"
    );
}
