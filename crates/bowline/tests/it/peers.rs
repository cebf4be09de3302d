//! Real MCP servers behind the gateway and real clients in front of it, at pinned versions.

mod agent_clis;
mod bamboo;
mod clients;
mod conformance;
mod conformance_client;
mod conformance_gateway;
mod conformance_legs;
mod inspector;
mod live_changes;
mod matrix;
mod official_servers;
mod parallel_servers;
mod passthrough;
mod queued_results;
mod raw_client;
mod remote_network;
mod schema;

use std::path::{Path, PathBuf};

use bowline_testkit::{report_omitted, workspace_root};
use serde_json::Value;

/// The manifest of `cargo xtask peers`.
#[derive(Debug, Clone)]
pub(crate) struct PeerManifest {
    manifest: Value,
}

impl PeerManifest {
    /// Loads the peers, or reports that `test` is skipped because a needed peer is missing. If
    /// every test must run, a missing peer fails the test.
    pub(crate) fn load(test: &str, needed: &[&str]) -> Option<Self> {
        let servers = official_servers::NAMES.map(|name| format!("/servers/{name}"));
        let needed = needed.iter().copied().chain(["/node"]);
        let needed: Vec<_> = needed.chain(servers.iter().map(String::as_str)).collect();
        Self::load_without_servers(test, &needed)
    }

    /// Like `load`, for a test that needs none of the usual servers.
    pub(crate) fn load_without_servers(test: &str, needed: &[&str]) -> Option<Self> {
        let file = std::env::var_os("BOWLINE_PEERS").map_or_else(
            || workspace_root().join("target/peers/peers.json"),
            PathBuf::from,
        );
        let all = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).unwrap(),
            Err(_) => Value::Null,
        };
        let peers = Self { manifest: all };
        let needed = needed.iter().copied();
        let missing: Vec<_> = needed
            .filter(|key| peers.find_peer(key).is_none())
            .collect();
        if missing.is_empty() {
            return Some(peers);
        }
        report_omitted(test, &format!("no {}", missing.join(", ")));
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(
            !must,
            "{test} must not be left out; run `cargo xtask peers`"
        );
        None
    }

    fn find_peer(&self, key: &str) -> Option<&str> {
        self.manifest.pointer(key)?.as_str()
    }

    /// Returns the path of a peer, such as `/servers/time`.
    pub(crate) fn peer_path(&self, key: &str) -> &Path {
        Path::new(
            self.find_peer(key)
                .unwrap_or_else(|| panic!("no peer {key}")),
        )
    }
}
