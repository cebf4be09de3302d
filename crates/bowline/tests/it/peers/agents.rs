//! The real command lines of Claude Code and Codex, offline: they take what `run` gives them, and
//! the one that connects does connect.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::Peers;
use crate::harness::{Gateway, bowline, eventually, fixture};

/// A home of its own for a client, and a directory for PATH that has it.
struct Desk {
    gateway: Gateway,
    home: TempDir,
    path: String,
}

impl Desk {
    fn new(peers: &Peers) -> Self {
        let gateway = Gateway::up(&fixture("fix", &[]));
        gateway.wait_for("fix", "ready");
        let home = TempDir::new().unwrap();
        let bin = home.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        for name in ["claude", "codex"] {
            symlink(peers.path(&format!("/agents/{name}")), bin.join(name)).unwrap();
        }
        let node = peers.path("/node").parent().unwrap();
        let path = format!("{}:{}:/usr/bin:/bin", bin.display(), node.display());
        Self {
            gateway,
            home,
            path,
        }
    }

    /// Runs a client, and returns its exit code and all that it said.
    fn run(&self, args: &[&str]) -> (Option<i32>, String) {
        let output = Command::new(bowline())
            .arg("--state")
            .arg(self.gateway.state())
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

    fn mcp(&self) -> String {
        format!("http://{}/mcp", self.gateway.address)
    }

    /// The sessions that clients of this principal opened.
    fn sessions(&self, principal: &str) -> usize {
        let all = self.gateway.api("/api/v1/sessions");
        let all = all["sessions"].as_array().unwrap().iter();
        all.filter(|one| one["principal"] == principal).count()
    }

    /// How often the gateway was told by this principal's client what it is.
    fn opened(&self, home: &Path) -> bool {
        let log = std::fs::read_to_string(home.join("debug.log")).unwrap_or_default();
        log.contains("MCP server \"bowline\": Successfully connected")
    }
}

#[test]
fn the_real_codex_takes_what_run_gives_it() {
    let test = "the_real_codex_takes_what_run_gives_it";
    let Some(peers) = Peers::of(test, &["/agents/codex", "/agents/claude"]) else {
        return;
    };
    let desk = Desk::new(&peers);
    let (code, said) = desk.run(&["codex", "--", "mcp", "list", "--json"]);
    assert_eq!(code, Some(0), "{said}");
    let at = said.find("[\n").unwrap_or_else(|| panic!("{said}"));
    let list = said[at..].rsplit_once(']').unwrap().0;
    let list: Value = serde_json::from_str(&format!("{list}]")).unwrap();
    assert_eq!(list[0]["name"], "bowline");
    assert_eq!(list[0]["enabled"], true);
    let transport = &list[0]["transport"];
    assert_eq!(transport["type"], "streamable_http");
    assert_eq!(transport["url"], desk.mcp());
    assert_eq!(transport["bearer_token_env_var"], "BOWLINE_SESSION_TOKEN");
    // It looks into its environment for this.
    assert_eq!(list[0]["auth_status"], "bearer_token");

    let (code, said) = desk.run(&["codex", "--name", "knot", "--", "mcp", "get", "knot"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(&desk.mcp()) && said.contains("BOWLINE_SESSION_TOKEN"),
        "{said}"
    );
    let (code, _) = desk.run(&["codex", "--", "mcp", "get", "nothere"]);
    assert_eq!(code, Some(1), "the exit code is its own");
}

#[test]
fn the_real_claude_takes_what_run_gives_it_and_connects() {
    let test = "the_real_claude_takes_what_run_gives_it_and_connects";
    let Some(peers) = Peers::of(test, &["/agents/codex", "/agents/claude"]) else {
        return;
    };
    let desk = Desk::new(&peers);
    // Nobody is logged in, which it says after it has started its servers.
    let log = desk.home.path().join("debug.log");
    let args = [
        "claude",
        "--",
        "--debug-file",
        log.to_str().unwrap(),
        "-p",
        "hello",
    ];
    let (code, said) = desk.run(&args);
    assert_eq!(code, Some(1), "{said}");
    assert!(desk.opened(desk.home.path()), "{said}");
    eventually("its session ended with its token", || {
        desk.sessions("owner:claude") == 0
    });

    // Its `mcp` looks at files alone; what stands in one is what `run` passes.
    let (code, said) = desk.run(&["claude", "--", "mcp", "list"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("No MCP servers configured"), "{said}");
    let args = ["connect", "claude", "--print-args"];
    let printed = desk.gateway.cli(&args).stdout;
    let printed = String::from_utf8(printed).unwrap();
    let config = printed.lines().nth(1).unwrap();
    std::fs::write(desk.home.path().join(".claude.json"), config).unwrap();
    let (code, said) = desk.run(&["claude", "--", "mcp", "list"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains(&format!("bowline: {} (HTTP)", desk.mcp())),
        "{said}"
    );
    assert!(said.contains("Connected"), "{said}");
    let (code, said) = desk.run(&["claude", "--", "mcp", "get", "bowline"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("Bearer ${BOWLINE_SESSION_TOKEN}"), "{said}");
    assert!(
        said.contains("Connected") && !said.contains("bwl_"),
        "{said}"
    );
}
