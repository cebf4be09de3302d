//! The test peers and their pinned versions.

/// One peer, installed as a whole into a separate folder.
#[derive(Debug)]
pub(super) struct PinnedPeer {
    /// Name in messages, and of the folder.
    pub(super) name: &'static str,
    pub(super) source: PeerSource,
    /// Entries of `peers.json`.
    pub(super) paths: &'static [PeerPath],
}

#[derive(Debug)]
pub(super) enum PeerSource {
    /// The node program, from the npm package for this platform.
    Node { version: &'static str },
    /// One npm package with additional packages.
    Npm {
        package: &'static str,
        version: &'static str,
        /// Further pins in the same folder, such as `zod@4.6.7`.
        with: &'static [&'static str],
    },
    /// A separate Python environment.
    Python { pins: &'static [&'static str] },
    /// A native program with an npm package per platform.
    Native {
        /// Package name without the platform.
        package: &'static str,
        version: &'static str,
    },
    /// A Rust program of this repository with crates of the registry, outside the workspace.
    Cargo {
        /// Program name.
        program: &'static str,
        /// Text of `Cargo.toml`.
        manifest: &'static str,
        /// Text of `Cargo.lock`.
        lock: &'static str,
        /// Text of `src/main.rs`.
        source: &'static str,
    },
    /// A Go program of this repository with the standard library only. The compiler is the
    /// system's, from the package `golang-go` if installable.
    Go {
        /// Text of the single source file.
        source: &'static str,
    },
}

/// One path of a peer that tests use.
#[derive(Debug)]
pub(super) struct PeerPath {
    /// Key in `peers.json`: a member, or a member of a group.
    pub(super) key: &'static [&'static str],
    pub(super) kind: PathKind,
}

#[derive(Debug)]
pub(super) enum PathKind {
    /// The program in the package's `bin`.
    Bin,
    /// The folder of the package, for imports.
    Folder,
    /// A path inside the peer's folder.
    Path(&'static str),
    /// A path inside the package for this platform.
    Native(&'static str),
}

const fn npm_peer(
    name: &'static str,
    package: &'static str,
    version: &'static str,
    places: &'static [PeerPath],
) -> PinnedPeer {
    PinnedPeer {
        name,
        source: PeerSource::Npm {
            package,
            version,
            with: &[],
        },
        paths: places,
    }
}

const fn peer_path(key: &'static [&'static str], what: PathKind) -> PeerPath {
    PeerPath { key, kind: what }
}

/// Slowest first, so that the last installations are short.
pub(super) const PEERS: &[PinnedPeer] = &[
    PinnedPeer {
        name: "bamboo",
        source: PeerSource::Cargo {
            program: "bamboo-peer",
            manifest: include_str!("../../../crates/bowline/tests/peers/bamboo/Cargo.toml"),
            lock: include_str!("../../../crates/bowline/tests/peers/bamboo/Cargo.lock"),
            source: include_str!("../../../crates/bowline/tests/peers/bamboo/src/main.rs"),
        },
        paths: &[peer_path(
            &["clients", "bamboo"],
            PathKind::Path("bamboo-peer"),
        )],
    },
    npm_peer(
        "inspector",
        "@modelcontextprotocol/inspector",
        "2.12.0",
        &[peer_path(&["inspector"], PathKind::Bin)],
    ),
    PinnedPeer {
        name: "claude",
        source: PeerSource::Native {
            package: "@anthropic-ai/claude-code",
            version: "2.1.325",
        },
        paths: &[peer_path(&["agents", "claude"], PathKind::Native("claude"))],
    },
    npm_peer(
        "codex",
        "@openai/codex",
        "0.166.0",
        &[peer_path(&["agents", "codex"], PathKind::Bin)],
    ),
    PinnedPeer {
        name: "py1",
        source: PeerSource::Python {
            pins: &[
                "mcp==1.30.0",
                "mcp-server-time==2026.10.10",
                "mcp-server-git==2026.10.10",
            ],
        },
        paths: &[
            peer_path(&["python1"], PathKind::Path("bin/python")),
            peer_path(&["servers", "time"], PathKind::Path("bin/mcp-server-time")),
            peer_path(&["servers", "git"], PathKind::Path("bin/mcp-server-git")),
        ],
    },
    PinnedPeer {
        name: "fastmcp",
        source: PeerSource::Python {
            pins: &["fastmcp==4.1.2"],
        },
        paths: &[peer_path(&["fastmcp"], PathKind::Path("bin/python"))],
    },
    PinnedPeer {
        name: "py2",
        source: PeerSource::Python {
            pins: &["mcp==2.3.0"],
        },
        paths: &[peer_path(&["python2"], PathKind::Path("bin/python"))],
    },
    PinnedPeer {
        name: "node",
        source: PeerSource::Node { version: "22.23.3" },
        paths: &[peer_path(&["node"], PathKind::Bin)],
    },
    npm_peer(
        "conformance",
        "@modelcontextprotocol/conformance",
        "0.2.0-alpha.12",
        &[peer_path(&["conformance"], PathKind::Bin)],
    ),
    npm_peer(
        "server-everything",
        "@modelcontextprotocol/server-everything",
        "2026.8.31",
        &[peer_path(&["servers", "everything"], PathKind::Bin)],
    ),
    npm_peer(
        "server-filesystem",
        "@modelcontextprotocol/server-filesystem",
        "2026.8.31",
        &[peer_path(&["servers", "filesystem"], PathKind::Bin)],
    ),
    npm_peer(
        "server-memory",
        "@modelcontextprotocol/server-memory",
        "2026.8.31",
        &[peer_path(&["servers", "memory"], PathKind::Bin)],
    ),
    npm_peer(
        "server-sequential-thinking",
        "@modelcontextprotocol/server-sequential-thinking",
        "2026.8.31",
        &[peer_path(
            &["servers", "sequential-thinking"],
            PathKind::Bin,
        )],
    ),
    PinnedPeer {
        name: "server",
        source: PeerSource::Npm {
            package: "@modelcontextprotocol/server",
            version: "2.4.0",
            with: &["@modelcontextprotocol/node@2.1.2", "zod@4.6.7"],
        },
        paths: &[peer_path(
            &["servers", "typescript-2"],
            PathKind::Path("node_modules"),
        )],
    },
    npm_peer(
        "mcporter",
        "mcporter",
        "0.9.0",
        &[peer_path(&["clients", "mcporter"], PathKind::Bin)],
    ),
    npm_peer(
        "sdk",
        "@modelcontextprotocol/sdk",
        "1.32.2",
        &[peer_path(&["clients", "sdk"], PathKind::Folder)],
    ),
    PinnedPeer {
        name: "go",
        source: PeerSource::Go {
            source: include_str!("../../../crates/bowline/tests/peers/go/main.go"),
        },
        paths: &[peer_path(&["servers", "go"], PathKind::Path("server"))],
    },
    npm_peer(
        "client",
        "@modelcontextprotocol/client",
        "2.4.0",
        &[peer_path(&["clients", "client"], PathKind::Folder)],
    ),
];

impl PinnedPeer {
    /// Returns the content of the stamp file: any change causes a new installation.
    pub(super) fn stamp(&self) -> String {
        match &self.source {
            PeerSource::Node { version } => format!("{}@{version}\n", node_package()),
            PeerSource::Npm {
                package,
                version,
                with,
            } => {
                let with: String = with.iter().map(|pin| format!("{pin}\n")).collect();
                format!("{package}@{version}\n{with}")
            }
            PeerSource::Python { pins } => format!("{}\n", pins.join("\n")),
            PeerSource::Native { package, version } => {
                format!("{package}-{}@{version}\n", npm_platform())
            }
            PeerSource::Cargo {
                manifest,
                lock,
                source,
                ..
            } => [*manifest, *lock, *source].concat(),
            PeerSource::Go { source } => (*source).to_owned(),
        }
    }

    /// Returns the version, or the pins of an environment, for display.
    pub(super) fn version_text(&self) -> String {
        match &self.source {
            PeerSource::Node { version }
            | PeerSource::Npm { version, .. }
            | PeerSource::Native { version, .. } => (*version).to_owned(),
            PeerSource::Python { pins } => pins.join(" "),
            PeerSource::Cargo { manifest, .. } => {
                let pin = manifest.lines().find_map(|line| line.split_once("= \"="));
                pin.map_or_else(String::new, |(_, version)| {
                    version.trim_end_matches('"').to_owned()
                })
            }
            PeerSource::Go { .. } => "of the system's compiler".to_owned(),
        }
    }

    /// Returns whether tests may be skipped without this peer, even in CI.
    pub(super) const fn is_optional(&self) -> bool {
        matches!(self.source, PeerSource::Go { .. })
    }
}

/// Returns the npm package with node for this platform.
pub(super) fn node_package() -> String {
    format!("node-{}", npm_platform())
}

/// Returns npm's name of this platform.
pub(super) fn npm_platform() -> String {
    let system = match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    };
    let machine = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("{system}-{machine}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn peer_names_and_path_keys_are_unique() {
        let names: BTreeSet<_> = PEERS.iter().map(|peer| peer.name).collect();
        assert_eq!(names.len(), PEERS.len());
        let keys: Vec<_> = PEERS
            .iter()
            .flat_map(|peer| peer.paths)
            .map(|p| p.key)
            .collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
    }

    #[test]
    fn every_peer_is_pinned() {
        for pin in PEERS
            .iter()
            .filter(|peer| {
                !matches!(
                    peer.source,
                    PeerSource::Go { .. } | PeerSource::Cargo { .. }
                )
            })
            .flat_map(|peer| peer.stamp().lines().map(str::to_owned).collect::<Vec<_>>())
        {
            let (_, version) = pin.rsplit_once(['@', '=']).unwrap();
            assert!(version.split('.').count() >= 3, "{pin}");
        }
    }
}
