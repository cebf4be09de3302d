//! Allowed dependencies between crates: the table of docs/ARCHITECTURE.md against each Cargo.toml.

use toml::{Table, Value};

use super::{SourceTree, TidyFinding};

const RULE: &str = "crates";

/// Rule of one crate: allowed dependencies, and forbidden crates and paths.
struct CrateRule {
    name: &'static str,
    /// Workspace crates that are allowed as dependencies.
    own_crates: &'static [&'static str],
    /// External crates that are forbidden.
    forbidden_crates: &'static [&'static str],
    /// Paths that are forbidden in source code.
    forbidden_paths: &'static [&'static str],
}

/// Allowed as a dev-dependency everywhere, and never as a normal dependency.
const TESTKIT_CRATE: &str = "bowline-testkit";

const IO_CRATES: &[&str] = &["tokio", "hyper", "hyper-util", "axum", "rustix", "rusqlite"];
const IO_PATHS: &[&str] = &["tokio::", "std::fs", "std::net", "std::process", "std::env"];

const CRATE_RULES: &[CrateRule] = &[
    CrateRule {
        name: "bowline-api",
        own_crates: &[],
        forbidden_crates: IO_CRATES,
        forbidden_paths: IO_PATHS,
    },
    CrateRule {
        name: "bowline-core",
        own_crates: &[],
        forbidden_crates: IO_CRATES,
        forbidden_paths: IO_PATHS,
    },
    CrateRule {
        name: "bowline-wire",
        own_crates: &["bowline-core"],
        forbidden_crates: IO_CRATES,
        forbidden_paths: IO_PATHS,
    },
    CrateRule {
        name: "bowline-runtime",
        own_crates: &["bowline-core"],
        forbidden_crates: &["rmcp"],
        forbidden_paths: &["std::fs", "std::net", "std::process", "std::env"],
    },
    CrateRule {
        name: "bowline-journal",
        own_crates: &["bowline-core"],
        forbidden_crates: &["rmcp"],
        forbidden_paths: &[],
    },
    CrateRule {
        name: "bowline-link",
        own_crates: &["bowline-core", "bowline-wire", "bowline-runtime"],
        forbidden_crates: &[],
        forbidden_paths: &[],
    },
    CrateRule {
        name: "bowline-tools",
        own_crates: &["bowline-core", "bowline-wire"],
        forbidden_crates: IO_CRATES,
        forbidden_paths: IO_PATHS,
    },
    CrateRule {
        name: "bowline-catalog",
        own_crates: &[
            "bowline-core",
            "bowline-wire",
            "bowline-runtime",
            "bowline-link",
            "bowline-tools",
        ],
        forbidden_crates: &["axum", "clap", "toml"],
        forbidden_paths: &["std::net", "std::process"],
    },
    CrateRule {
        name: "bowline-broker",
        own_crates: &[
            "bowline-core",
            "bowline-wire",
            "bowline-runtime",
            "bowline-journal",
            "bowline-link",
            "bowline-tools",
        ],
        forbidden_crates: &["axum", "clap", "toml"],
        forbidden_paths: &[],
    },
    CrateRule {
        name: "bowline-executor",
        own_crates: &[
            "bowline-core",
            "bowline-wire",
            "bowline-runtime",
            "bowline-link",
        ],
        forbidden_crates: &["axum", "clap", "toml"],
        forbidden_paths: &[],
    },
    CrateRule {
        name: "bowline-host",
        own_crates: &[
            "bowline-api",
            "bowline-executor",
            "bowline-broker",
            "bowline-catalog",
            "bowline-core",
            "bowline-wire",
            "bowline-runtime",
            "bowline-journal",
            "bowline-link",
            "bowline-tools",
        ],
        forbidden_crates: &["axum", "clap", "toml"],
        forbidden_paths: &[],
    },
    CrateRule {
        name: "bowline-config",
        own_crates: &[
            "bowline-api",
            "bowline-core",
            "bowline-wire",
            "bowline-runtime",
            "bowline-link",
            "bowline-host",
        ],
        forbidden_crates: &["axum", "clap", "hyper"],
        forbidden_paths: &[],
    },
    CrateRule {
        name: "bowline-edge",
        own_crates: &[
            "bowline-api",
            "bowline-core",
            "bowline-wire",
            "bowline-runtime",
            "bowline-journal",
            "bowline-link",
            "bowline-host",
            "bowline-config",
        ],
        forbidden_crates: &["clap", "anstream", "owo-colors", "toml"],
        forbidden_paths: &[],
    },
    CrateRule {
        name: "bowline-fixture",
        own_crates: &["bowline-core", "bowline-wire"],
        forbidden_crates: &["axum"],
        forbidden_paths: &[],
    },
    CrateRule {
        name: "bowline",
        own_crates: &[
            "bowline-api",
            "bowline-core",
            "bowline-wire",
            "bowline-runtime",
            "bowline-journal",
            "bowline-link",
            "bowline-host",
            "bowline-config",
            "bowline-edge",
        ],
        forbidden_crates: &[],
        forbidden_paths: &[],
    },
    CrateRule {
        name: TESTKIT_CRATE,
        own_crates: &[
            "bowline-api",
            "bowline-tools",
            "bowline-executor",
            "bowline-broker",
            "bowline-core",
            "bowline-wire",
            "bowline-runtime",
            "bowline-journal",
            "bowline-link",
            "bowline-host",
        ],
        forbidden_crates: &[],
        forbidden_paths: &[],
    },
    CrateRule {
        name: "mcpbench",
        own_crates: &[],
        forbidden_crates: &[],
        forbidden_paths: &[],
    },
    CrateRule {
        name: "xtask",
        own_crates: &[],
        forbidden_crates: &["tokio"],
        forbidden_paths: &[],
    },
];

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut found = Vec::new();
    for file in &tree.files {
        let Some(folder) = member_folder(&file.path) else {
            continue;
        };
        let complain = |message: String| TidyFinding::error(RULE, &file.path, 0, message);
        match toml::from_str::<Table>(&file.text) {
            Ok(manifest) => match rule_for_manifest(&manifest) {
                Ok(room) => {
                    found.extend(manifest_errors(room, &manifest).into_iter().map(complain));
                    found.extend(source_findings(tree, folder, room));
                }
                Err(message) => found.push(complain(message)),
            },
            Err(error) => found.push(complain(error.message().to_owned())),
        }
    }
    found
}

/// Returns the folder of a workspace member, if `path` is its manifest. Deeper manifests belong to
/// programs that tests build outside the workspace.
pub(super) fn member_folder(path: &str) -> Option<&str> {
    let folder = path.strip_suffix("/Cargo.toml")?;
    let name = folder.strip_prefix("crates/");
    let is_member = folder == "xtask" || name.is_some_and(|name| !name.contains('/'));
    is_member.then_some(folder)
}

fn rule_for_manifest(manifest: &Table) -> Result<&'static CrateRule, String> {
    let name = manifest
        .get("package")
        .and_then(|package| package.get("name"));
    let name = name.and_then(Value::as_str).unwrap_or_default();
    CRATE_RULES
        .iter()
        .find(|room| room.name == name)
        .ok_or_else(|| format!("`{name}` stands in no row of the table of crates"))
}

fn manifest_errors(room: &CrateRule, manifest: &Table) -> Vec<String> {
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
        if ours && !room.own_crates.contains(&name) && !(is_test_only && name == TESTKIT_CRATE) {
            faults.push(format!(
                "`{}` must not know `{name}` ({section})",
                room.name
            ));
        }
        if !is_test_only && room.forbidden_crates.contains(&name) {
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

/// Returns every dependency with its section, including platform-specific sections.
pub(super) fn dependencies(manifest: &Table) -> Vec<(&'static str, &str, &Value)> {
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

/// Returns uses of forbidden paths in non-test code.
fn source_findings(tree: &SourceTree, folder: &str, room: &CrateRule) -> Vec<TidyFinding> {
    let mut found = Vec::new();
    let sources = format!("{folder}/src/");
    for source in tree
        .rust
        .iter()
        .filter(|source| source.path().starts_with(&sources))
    {
        for (at, line) in source.code.lines().enumerate() {
            let Some(path) = room
                .forbidden_paths
                .iter()
                .find(|path| line.contains(**path))
            else {
                continue;
            };
            if !source.is_test_line(at) {
                let message = format!("`{}` must not reach for `{path}`", room.name);
                found.push(TidyFinding::error(RULE, source.path(), at + 1, message));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_messages(name: &str, rest: &str) -> Vec<String> {
        let manifest =
            format!("[package]\nname = \"{name}\"\n[lints]\nworkspace = true\n[{rest}\n");
        let tree = SourceTree::from_pairs(&[("crates/x/Cargo.toml", &manifest)]);
        check_tree(&tree)
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn permitted_dependency_passes() {
        let rest = "dependencies]\nbowline-core.workspace = true\nbytes.workspace = true";
        assert_eq!(found_messages("bowline-wire", rest), Vec::<String>::new());
    }

    #[test]
    fn forbidden_own_crate_is_rejected() {
        let rest = "dependencies]\nbowline-wire.workspace = true";
        assert_eq!(found_messages("bowline-journal", rest).len(), 1);
        let renamed = "dependencies]\nw = { workspace = true, package = \"bowline-wire\" }";
        assert_eq!(found_messages("bowline-journal", renamed).len(), 1);
        let hidden = "target.'cfg(unix)'.dependencies]\nbowline-wire.workspace = true";
        assert_eq!(found_messages("bowline-journal", hidden).len(), 1);
    }

    #[test]
    fn testkit_is_dev_dependency_only() {
        let dev = "dev-dependencies]\nbowline-testkit.workspace = true";
        assert_eq!(found_messages("bowline-core", dev), Vec::<String>::new());
        let normal = "dependencies]\nbowline-testkit.workspace = true";
        assert_eq!(found_messages("bowline", normal).len(), 1);
    }

    #[test]
    fn pure_crates_reject_runtime() {
        let rest = "dependencies]\ntokio.workspace = true";
        assert_eq!(found_messages("bowline-core", rest).len(), 1);
        assert_eq!(found_messages("bowline-wire", rest).len(), 1);
        assert_eq!(found_messages("bowline-link", rest), Vec::<String>::new());
    }

    #[test]
    fn version_outside_workspace_is_rejected() {
        assert_eq!(
            found_messages("bowline-link", "dependencies]\nbytes = \"1\"").len(),
            1
        );
    }

    #[test]
    fn crate_without_rule_or_lints_is_rejected() {
        assert_eq!(found_messages("bowline-extra", "dependencies]").len(), 1);
        let bare = SourceTree::from_pairs(&[(
            "crates/x/Cargo.toml",
            "[package]\nname = \"bowline-core\"\n",
        )]);
        assert_eq!(check_tree(&bare).len(), 1);
    }

    #[test]
    fn pure_crate_may_use_io_in_tests() {
        let manifest = "[package]\nname = \"bowline-core\"\n[lints]\nworkspace = true\n";
        let source = "//! X.\nuse std::fs;\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        let files = [
            ("crates/core/Cargo.toml", manifest),
            ("crates/core/src/a.rs", source),
        ];
        let found = check_tree(&SourceTree::from_pairs(&files));
        assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [2]);
    }
}
