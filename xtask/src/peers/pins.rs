//! The peers we test with, and exactly which versions of them.

/// One peer: installed whole into a folder of its own, or not at all.
#[derive(Debug)]
pub(super) struct Peer {
    /// Its name in messages and the name of its folder.
    pub(super) name: &'static str,
    pub(super) source: Source,
    /// What `peers.json` says of it.
    pub(super) places: &'static [Place],
}

#[derive(Debug)]
pub(super) enum Source {
    /// The node program itself, from the package for this machine.
    Node { version: &'static str },
    /// One npm package, and what it needs beside it.
    Npm {
        package: &'static str,
        version: &'static str,
        /// More pins in the same folder, such as `zod@4.6.7`.
        with: &'static [&'static str],
    },
    /// A Python environment of its own.
    Python { pins: &'static [&'static str] },
    /// A program that is in a package of its own for each kind of machine.
    Native {
        /// The package without the kind of machine.
        package: &'static str,
        version: &'static str,
    },
    /// A program of our own in Rust around crates of the registry, outside the workspace.
    Cargo {
        /// Its name.
        program: &'static str,
        /// Its `Cargo.toml`.
        manifest: &'static str,
        /// Its `Cargo.lock`.
        lock: &'static str,
        /// Its `src/main.rs`.
        source: &'static str,
    },
    /// A program of our own in Go, of the standard library alone. The compiler is the system's,
    /// from the package `golang-go` where it can be installed.
    Go {
        /// The source, one file.
        source: &'static str,
    },
}

/// One thing of a peer that tests look for.
#[derive(Debug)]
pub(super) struct Place {
    /// Where it stands in `peers.json`: a member, or a member of a group.
    pub(super) key: &'static [&'static str],
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// The program that the package's `bin` names.
    Bin,
    /// The folder of the package, to import from.
    Folder,
    /// A path inside the peer's folder.
    Path(&'static str),
    /// A path inside the package for this machine.
    Native(&'static str),
}

const fn npm(
    name: &'static str,
    package: &'static str,
    version: &'static str,
    places: &'static [Place],
) -> Peer {
    Peer {
        name,
        source: Source::Npm {
            package,
            version,
            with: &[],
        },
        places,
    }
}

const fn place(key: &'static [&'static str], what: What) -> Place {
    Place { key, what }
}

/// The slowest to fetch stand first, so that nothing waits for them at the end.
pub(super) const PEERS: &[Peer] = &[
    Peer {
        name: "bamboo",
        source: Source::Cargo {
            program: "bamboo-peer",
            manifest: include_str!("../../../crates/bowline/tests/peers/bamboo/Cargo.toml"),
            lock: include_str!("../../../crates/bowline/tests/peers/bamboo/Cargo.lock"),
            source: include_str!("../../../crates/bowline/tests/peers/bamboo/src/main.rs"),
        },
        places: &[place(&["clients", "bamboo"], What::Path("bamboo-peer"))],
    },
    npm(
        "inspector",
        "@modelcontextprotocol/inspector",
        "2.12.0",
        &[place(&["inspector"], What::Bin)],
    ),
    Peer {
        name: "claude",
        source: Source::Native {
            package: "@anthropic-ai/claude-code",
            version: "2.1.325",
        },
        places: &[place(&["agents", "claude"], What::Native("claude"))],
    },
    npm(
        "codex",
        "@openai/codex",
        "0.166.0",
        &[place(&["agents", "codex"], What::Bin)],
    ),
    Peer {
        name: "py1",
        source: Source::Python {
            pins: &[
                "mcp==1.30.0",
                "mcp-server-time==2026.10.10",
                "mcp-server-git==2026.10.10",
            ],
        },
        places: &[
            place(&["python1"], What::Path("bin/python")),
            place(&["servers", "time"], What::Path("bin/mcp-server-time")),
            place(&["servers", "git"], What::Path("bin/mcp-server-git")),
        ],
    },
    Peer {
        name: "fastmcp",
        source: Source::Python {
            pins: &["fastmcp==4.1.2"],
        },
        places: &[place(&["fastmcp"], What::Path("bin/python"))],
    },
    Peer {
        name: "py2",
        source: Source::Python {
            pins: &["mcp==2.3.0"],
        },
        places: &[place(&["python2"], What::Path("bin/python"))],
    },
    Peer {
        name: "node",
        source: Source::Node { version: "22.23.3" },
        places: &[place(&["node"], What::Bin)],
    },
    npm(
        "conformance",
        "@modelcontextprotocol/conformance",
        "0.2.0-alpha.12",
        &[place(&["conformance"], What::Bin)],
    ),
    npm(
        "server-everything",
        "@modelcontextprotocol/server-everything",
        "2026.8.31",
        &[place(&["servers", "everything"], What::Bin)],
    ),
    npm(
        "server-filesystem",
        "@modelcontextprotocol/server-filesystem",
        "2026.8.31",
        &[place(&["servers", "filesystem"], What::Bin)],
    ),
    npm(
        "server-memory",
        "@modelcontextprotocol/server-memory",
        "2026.8.31",
        &[place(&["servers", "memory"], What::Bin)],
    ),
    npm(
        "server-sequential-thinking",
        "@modelcontextprotocol/server-sequential-thinking",
        "2026.8.31",
        &[place(&["servers", "sequential-thinking"], What::Bin)],
    ),
    Peer {
        name: "server",
        source: Source::Npm {
            package: "@modelcontextprotocol/server",
            version: "2.4.0",
            with: &["@modelcontextprotocol/node@2.1.2", "zod@4.6.7"],
        },
        places: &[place(
            &["servers", "typescript-2"],
            What::Path("node_modules"),
        )],
    },
    npm(
        "mcporter",
        "mcporter",
        "0.9.0",
        &[place(&["clients", "mcporter"], What::Bin)],
    ),
    npm(
        "sdk",
        "@modelcontextprotocol/sdk",
        "1.32.2",
        &[place(&["clients", "sdk"], What::Folder)],
    ),
    Peer {
        name: "go",
        source: Source::Go {
            source: include_str!("../../../crates/bowline/tests/peers/go/main.go"),
        },
        places: &[place(&["servers", "go"], What::Path("server"))],
    },
    npm(
        "client",
        "@modelcontextprotocol/client",
        "2.4.0",
        &[place(&["clients", "client"], What::Folder)],
    ),
];

impl Peer {
    /// What the stamp of an installed peer says: any change of it means another installation.
    pub(super) fn stamp(&self) -> String {
        match &self.source {
            Source::Node { version } => format!("{}@{version}\n", node_package()),
            Source::Npm {
                package,
                version,
                with,
            } => {
                let with: String = with.iter().map(|pin| format!("{pin}\n")).collect();
                format!("{package}@{version}\n{with}")
            }
            Source::Python { pins } => format!("{}\n", pins.join("\n")),
            Source::Native { package, version } => {
                format!("{package}-{}@{version}\n", machine())
            }
            Source::Cargo {
                manifest,
                lock,
                source,
                ..
            } => [*manifest, *lock, *source].concat(),
            Source::Go { source } => (*source).to_owned(),
        }
    }

    /// For people: the version, or the pins of an environment.
    pub(super) fn version(&self) -> String {
        match &self.source {
            Source::Node { version }
            | Source::Npm { version, .. }
            | Source::Native { version, .. } => (*version).to_owned(),
            Source::Python { pins } => pins.join(" "),
            Source::Cargo { manifest, .. } => {
                let pin = manifest.lines().find_map(|line| line.split_once("= \"="));
                pin.map_or_else(String::new, |(_, version)| {
                    version.trim_end_matches('"').to_owned()
                })
            }
            Source::Go { .. } => "of the system's compiler".to_owned(),
        }
    }

    /// Whether tests may be left out for want of it everywhere, by its name.
    pub(super) const fn is_optional(&self) -> bool {
        matches!(self.source, Source::Go { .. })
    }
}

/// The npm package that holds node for this machine.
pub(super) fn node_package() -> String {
    format!("node-{}", machine())
}

/// What npm packages call this kind of machine.
pub(super) fn machine() -> String {
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
    fn every_peer_has_its_own_name_and_every_place_its_own_key() {
        let names: BTreeSet<_> = PEERS.iter().map(|peer| peer.name).collect();
        assert_eq!(names.len(), PEERS.len());
        let keys: Vec<_> = PEERS
            .iter()
            .flat_map(|peer| peer.places)
            .map(|p| p.key)
            .collect();
        assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
    }

    #[test]
    fn every_peer_is_pinned_to_one_version() {
        for pin in PEERS
            .iter()
            .filter(|peer| !matches!(peer.source, Source::Go { .. } | Source::Cargo { .. }))
            .flat_map(|peer| peer.stamp().lines().map(str::to_owned).collect::<Vec<_>>())
        {
            let (_, version) = pin.rsplit_once(['@', '=']).unwrap();
            assert!(version.split('.').count() >= 3, "{pin}");
        }
    }
}
