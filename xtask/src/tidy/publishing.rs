//! Library crates can be published: metadata in their manifests, versions beside their paths. No
//! other crate can.

use toml::{Table, Value};

use super::crate_rules::member_folder;
use super::{SourceTree, TidyFinding};

const RULE: &str = "publishing";

/// Crates that programs embed, and crates that those use.
const LIBRARY_CRATES: [&str; 11] = [
    "bowline-api",
    "bowline-broker",
    "bowline-catalog",
    "bowline-core",
    "bowline-executor",
    "bowline-host",
    "bowline-journal",
    "bowline-link",
    "bowline-runtime",
    "bowline-tools",
    "bowline-wire",
];

/// Metadata that a library crate takes from the workspace.
const INHERITED_KEYS: [&str; 7] = [
    "version",
    "edition",
    "rust-version",
    "license",
    "readme",
    "keywords",
    "categories",
];

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut found = Vec::new();
    for file in &tree.files {
        let Ok(manifest) = toml::from_str::<Table>(&file.text) else {
            continue;
        };
        let messages = if file.path == "Cargo.toml" {
            unversioned_crates(&manifest)
        } else if member_folder(&file.path).is_some() {
            package_errors(&manifest)
        } else {
            continue;
        };
        let findings = messages.into_iter();
        found.extend(findings.map(|message| TidyFinding::error(RULE, &file.path, 0, message)));
    }
    found
}

/// Returns the library crates whose workspace dependency has a path and no version.
fn unversioned_crates(workspace: &Table) -> Vec<String> {
    let dependencies = workspace
        .get("workspace")
        .and_then(|workspace| workspace.get("dependencies"));
    let without_version = LIBRARY_CRATES.iter().filter(|name| {
        let dependency = dependencies.and_then(|all| all.get(name));
        dependency.is_some_and(|spec| spec.get("version").is_none())
    });
    without_version
        .map(|name| format!("`{name}` has no version beside its path"))
        .collect()
}

fn package_errors(manifest: &Table) -> Vec<String> {
    let Some(package) = manifest.get("package") else {
        return Vec::new();
    };
    let inherits = |key: &str| {
        let value = package.get(key).and_then(|value| value.get("workspace"));
        value.and_then(Value::as_bool) == Some(true)
    };
    let name = package.get("name").and_then(Value::as_str);
    let name = name.unwrap_or_default();
    if !LIBRARY_CRATES.contains(&name) {
        // The workspace says `publish = false`.
        let is_private = inherits("publish");
        return match is_private {
            true => Vec::new(),
            false => vec![format!(
                "`{name}` is no library: `publish.workspace = true`"
            )],
        };
    }
    let mut errors = Vec::new();
    if package.get("publish").and_then(Value::as_bool) != Some(true) {
        errors.push(format!("`{name}` is a library: `publish = true`"));
    }
    if package.get("description").and_then(Value::as_str).is_none() {
        errors.push(format!("`{name}` has no description"));
    }
    let missing = INHERITED_KEYS.iter().filter(|key| !inherits(key));
    errors.extend(missing.map(|key| format!("`{name}` does not take `{key}` from the workspace")));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_messages(path: &str, manifest: &str) -> Vec<String> {
        let tree = SourceTree::from_pairs(&[(path, manifest)]);
        let found = check_tree(&tree).into_iter();
        found.map(|finding| finding.message).collect()
    }

    const LIBRARY: &str = "[package]\nname = \"bowline-core\"\ndescription = \"x\"\n\
        version.workspace = true\nedition.workspace = true\nrust-version.workspace = true\n\
        license.workspace = true\nreadme.workspace = true\nkeywords.workspace = true\n\
        categories.workspace = true\n";

    #[test]
    fn library_crate_needs_publish_and_metadata() {
        let path = "crates/core/Cargo.toml";
        let published = format!("{LIBRARY}publish = true\n");
        assert_eq!(found_messages(path, &published), Vec::<String>::new());
        assert_eq!(found_messages(path, LIBRARY).len(), 1);
        let bare = "[package]\nname = \"bowline-core\"\npublish = true\n";
        assert_eq!(found_messages(path, bare).len(), 8);
    }

    #[test]
    fn other_crates_stay_private() {
        let path = "crates/edge/Cargo.toml";
        let private = "[package]\nname = \"bowline-edge\"\npublish.workspace = true\n";
        assert_eq!(found_messages(path, private), Vec::<String>::new());
        let published = "[package]\nname = \"bowline-edge\"\npublish = true\n";
        assert_eq!(found_messages(path, published).len(), 1);
    }

    #[test]
    fn library_path_needs_version() {
        let manifest = "[workspace.dependencies]\nbowline-core = { path = \"crates/core\" }\n\
            bowline-wire = { version = \"0.1.0\", path = \"crates/wire\" }\n\
            bowline-edge = { path = \"crates/edge\" }\n";
        let expected = ["`bowline-core` has no version beside its path"];
        assert_eq!(found_messages("Cargo.toml", manifest), expected);
    }
}
