//! Real MCP servers behind the gateway and real clients in front of it, at pinned versions.

mod afar;
mod agents;
mod bamboo;
mod changes;
mod clients;
mod conformance;
mod conformance_client;
mod conformance_gateway;
mod conformance_legs;
mod equal;
mod inspector;
mod matrix;
mod queued;
mod raw;
mod schema;
mod side_by_side;
mod world;

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The file that `cargo xtask peers` wrote.
#[derive(Debug, Clone)]
pub(crate) struct Peers {
    all: Value,
}

impl Peers {
    /// Returns the peers, or says that `test` is left out because some of what it needs is not
    /// there. Where everything must be tested, that fails.
    pub(crate) fn of(test: &str, needed: &[&str]) -> Option<Self> {
        let servers = world::NAMES.map(|name| format!("/servers/{name}"));
        let needed = needed.iter().copied().chain(["/node"]);
        let needed: Vec<_> = needed.chain(servers.iter().map(String::as_str)).collect();
        Self::only(test, &needed)
    }

    /// The same for a test that needs none of the usual servers.
    pub(crate) fn only(test: &str, needed: &[&str]) -> Option<Self> {
        let file = std::env::var_os("BOWLINE_PEERS")
            .map_or_else(|| root().join("target/peers/peers.json"), PathBuf::from);
        let all = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).unwrap(),
            Err(_) => Value::Null,
        };
        let peers = Self { all };
        let needed = needed.iter().copied();
        let missing: Vec<_> = needed.filter(|key| peers.find(key).is_none()).collect();
        if missing.is_empty() {
            return Some(peers);
        }
        left_out(test, &format!("no {}", missing.join(", ")));
        let must = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(
            !must,
            "{test} must not be left out; run `cargo xtask peers`"
        );
        None
    }

    fn find(&self, key: &str) -> Option<&str> {
        self.all.pointer(key)?.as_str()
    }

    /// Returns the place of a peer, such as `/servers/time`.
    pub(crate) fn path(&self, key: &str) -> &Path {
        Path::new(self.find(key).unwrap_or_else(|| panic!("no peer {key}")))
    }
}

/// Says that a test is left out.
pub(crate) fn left_out(test: &str, why: &str) {
    eprintln!("left out: {test} ({why})");
}

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
}
