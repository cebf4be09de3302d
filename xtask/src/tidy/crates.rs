//! Which crate may know which: the table of docs/ARCHITECTURE.md held against each Cargo.toml.

use toml::{Table, Value};

use super::{Finding, Tree};

const RULE: &str = "crates";

/// One room: what of ours it may depend on, and what it must never contain.
struct Room {
    name: &'static str,
    /// Crates of ours it may depend on.
    ours: &'static [&'static str],
    /// Foreign crates that would break the room's sentence.
    never: &'static [&'static str],
    /// Paths of the standard library that would do the same.
    paths: &'static [&'static str],
}

/// Only tests may use it, anywhere.
const SIM: &str = "bowline-sim";

const NO_WORLD: &[&str] = &["tokio", "hyper", "hyper-util", "axum", "rustix", "rusqlite"];
const NO_WORLD_PATHS: &[&str] = &["tokio::", "std::fs", "std::net", "std::process", "std::env"];

const ROOMS: &[Room] = &[
    Room {
        name: "bowline-core",
        ours: &[],
        never: NO_WORLD,
        paths: NO_WORLD_PATHS,
    },
    Room {
        name: "bowline-wire",
        ours: &["bowline-core"],
        never: NO_WORLD,
        paths: NO_WORLD_PATHS,
    },
    Room {
        name: "bowline-journal",
        ours: &["bowline-core"],
        never: &["rmcp"],
        paths: &[],
    },
    Room {
        name: "bowline-link",
        ours: &["bowline-core", "bowline-wire"],
        never: &[],
        paths: &[],
    },
    Room {
        name: "bowline-host",
        ours: &[
            "bowline-core",
            "bowline-wire",
            "bowline-journal",
            "bowline-link",
        ],
        never: &["axum", "clap", "toml"],
        paths: &[],
    },
    Room {
        name: "bowline",
        ours: &[
            "bowline-core",
            "bowline-wire",
            "bowline-journal",
            "bowline-link",
            "bowline-host",
        ],
        never: &[],
        paths: &[],
    },
    Room {
        name: SIM,
        ours: &[
            "bowline-core",
            "bowline-journal",
            "bowline-link",
            "bowline-host",
        ],
        never: &[],
        paths: &[],
    },
    Room {
        name: "xtask",
        ours: &[],
        never: &["tokio"],
        paths: &[],
    },
];

pub(super) fn rule(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in &tree.files {
        let Some(folder) = file.path.strip_suffix("/Cargo.toml") else {
            continue;
        };
        // What stands deeper is a program of its own that tests build outside the workspace.
        let name = folder.strip_prefix("crates/");
        if folder != "xtask" && name.is_none_or(|name| name.contains('/')) {
            continue;
        }
        let complain = |message: String| Finding::error(RULE, &file.path, 0, message);
        match toml::from_str::<Table>(&file.text) {
            Ok(manifest) => match room(&manifest) {
                Ok(room) => {
                    found.extend(manifest_faults(room, &manifest).into_iter().map(complain));
                    found.extend(source_faults(tree, folder, room));
                }
                Err(message) => found.push(complain(message)),
            },
            Err(error) => found.push(complain(error.message().to_owned())),
        }
    }
    found
}

fn room(manifest: &Table) -> Result<&'static Room, String> {
    let name = manifest
        .get("package")
        .and_then(|package| package.get("name"));
    let name = name.and_then(Value::as_str).unwrap_or_default();
    ROOMS
        .iter()
        .find(|room| room.name == name)
        .ok_or_else(|| format!("`{name}` stands in no row of the table of crates"))
}

fn manifest_faults(room: &Room, manifest: &Table) -> Vec<String> {
    let mut faults = Vec::new();
    let inherits = |value: Option<&Value>| {
        value
            .and_then(|value| value.get("workspace"))
            .and_then(Value::as_bool)
            == Some(true)
    };
    if !inherits(manifest.get("lints")) {
        faults.push("does not take its lints from the workspace".to_owned());
    }
    for (section, dependency, spec) in dependencies(manifest) {
        let name = spec
            .get("package")
            .and_then(Value::as_str)
            .unwrap_or(dependency);
        let ours = name.starts_with("bowline");
        let is_test_only = section == "dev-dependencies";
        if ours && !room.ours.contains(&name) && !(is_test_only && name == SIM) {
            faults.push(format!(
                "`{}` must not know `{name}` ({section})",
                room.name
            ));
        }
        if !is_test_only && room.never.contains(&name) {
            faults.push(format!(
                "`{}` must not contain `{name}` ({section})",
                room.name
            ));
        }
        if !inherits(Some(spec)) {
            let home = "is not taken from [workspace.dependencies], where it says what it is for";
            faults.push(format!("`{dependency}` {home}"));
        }
    }
    faults
}

/// Every dependency with the section it stands in, those of single platforms included.
fn dependencies(manifest: &Table) -> Vec<(&'static str, &str, &Value)> {
    let platforms = manifest.get("target").and_then(Value::as_table);
    let platforms = platforms
        .into_iter()
        .flat_map(Table::values)
        .filter_map(Value::as_table);
    let mut all = Vec::new();
    for table in [manifest].into_iter().chain(platforms) {
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            let Some(entries) = table.get(section).and_then(Value::as_table) else {
                continue;
            };
            all.extend(
                entries
                    .iter()
                    .map(|(name, spec)| (section, name.as_str(), spec)),
            );
        }
    }
    all
}

/// The world, reached by path in a room that must not know it. Test code may.
fn source_faults(tree: &Tree, folder: &str, room: &Room) -> Vec<Finding> {
    let mut found = Vec::new();
    let sources = format!("{folder}/src/");
    for source in tree
        .rust
        .iter()
        .filter(|source| source.path().starts_with(&sources))
    {
        for (at, line) in source.code.lines().enumerate() {
            let Some(path) = room.paths.iter().find(|path| line.contains(**path)) else {
                continue;
            };
            if !source.is_test_line(at) {
                let message = format!("`{}` must not reach for `{path}`", room.name);
                found.push(Finding::error(RULE, source.path(), at + 1, message));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(name: &str, rest: &str) -> Vec<String> {
        let manifest =
            format!("[package]\nname = \"{name}\"\n[lints]\nworkspace = true\n[{rest}\n");
        let tree = Tree::of(&[("crates/x/Cargo.toml", &manifest)]);
        rule(&tree)
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn a_permitted_dependency_is_silent() {
        let rest = "dependencies]\nbowline-core.workspace = true\nbytes.workspace = true";
        assert_eq!(faults("bowline-wire", rest), Vec::<String>::new());
    }

    #[test]
    fn a_crate_that_knows_too_much_is_refused() {
        let rest = "dependencies]\nbowline-wire.workspace = true";
        assert_eq!(faults("bowline-journal", rest).len(), 1);
        let renamed = "dependencies]\nw = { workspace = true, package = \"bowline-wire\" }";
        assert_eq!(faults("bowline-journal", renamed).len(), 1);
        let hidden = "target.'cfg(unix)'.dependencies]\nbowline-wire.workspace = true";
        assert_eq!(faults("bowline-journal", hidden).len(), 1);
    }

    #[test]
    fn the_sim_is_for_tests_everywhere_and_for_nothing_else() {
        let dev = "dev-dependencies]\nbowline-sim.workspace = true";
        assert_eq!(faults("bowline-core", dev), Vec::<String>::new());
        let normal = "dependencies]\nbowline-sim.workspace = true";
        assert_eq!(faults("bowline", normal).len(), 1);
    }

    #[test]
    fn the_pure_rooms_have_no_runtime() {
        let rest = "dependencies]\ntokio.workspace = true";
        assert_eq!(faults("bowline-core", rest).len(), 1);
        assert_eq!(faults("bowline-wire", rest).len(), 1);
        assert_eq!(faults("bowline-link", rest), Vec::<String>::new());
    }

    #[test]
    fn a_version_outside_the_workspace_list_is_refused() {
        assert_eq!(
            faults("bowline-link", "dependencies]\nbytes = \"1\"").len(),
            1
        );
    }

    #[test]
    fn a_crate_without_a_row_or_without_the_lints_is_refused() {
        assert_eq!(faults("bowline-extra", "dependencies]").len(), 1);
        let bare = Tree::of(&[(
            "crates/x/Cargo.toml",
            "[package]\nname = \"bowline-core\"\n",
        )]);
        assert_eq!(rule(&bare).len(), 1);
    }

    #[test]
    fn a_pure_room_may_reach_for_the_world_in_tests_only() {
        let manifest = "[package]\nname = \"bowline-core\"\n[lints]\nworkspace = true\n";
        let source = "//! X.\nuse std::fs;\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        let files = [
            ("crates/core/Cargo.toml", manifest),
            ("crates/core/src/a.rs", source),
        ];
        let found = rule(&Tree::of(&files));
        assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [2]);
    }
}
