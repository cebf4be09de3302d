//! Every dependency of a crate is named in its code; one that only tests name is a dev-dependency.

use toml::Table;

use super::crate_rules::{dependencies, member_folder};
use super::{SourceFile, SourceTree, TidyFinding};

const RULE: &str = "dependencies";

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut found = Vec::new();
    for file in &tree.files {
        let Some(folder) = member_folder(&file.path) else {
            continue;
        };
        let folder = format!("{folder}/");
        let Ok(manifest) = toml::from_str::<Table>(&file.text) else {
            continue;
        };
        let sources = tree.rust.iter();
        let sources: Vec<&SourceFile> = sources
            .filter(|source| source.path().starts_with(&folder))
            .collect();
        let message_for = |(section, name, _): (&str, &str, _)| {
            let is_test_only = section == "dev-dependencies";
            let module = name.replace('-', "_");
            let mut uses = sources.iter().flat_map(|source| uses_of(source, &module));
            match is_test_only {
                true if uses.next().is_none() => Some(format!("`{name}` is not used ({section})")),
                false if uses.all(|is_test_use| is_test_use) => {
                    Some(format!("`{name}` is not used outside tests ({section})"))
                }
                _ => None,
            }
        };
        let messages = dependencies(&manifest).into_iter().filter_map(message_for);
        found.extend(messages.map(|message| TidyFinding::error(RULE, &file.path, 0, message)));
    }
    found
}

/// Returns for each line that names the module of a dependency, whether the line is test code, as
/// examples in comments are.
fn uses_of(source: &SourceFile, module: &str) -> impl Iterator<Item = bool> {
    let lines = source
        .code
        .lines()
        .zip(source.file.text.lines())
        .enumerate();
    let using = lines.filter(|(_, (code, text))| {
        let is_comment = text.trim_start().starts_with("//");
        names_module(if is_comment { text } else { code }, module)
    });
    using.map(|(at, (_, text))| {
        let is_comment = text.trim_start().starts_with("//");
        is_comment || source.is_test_line(at) || source.is_example()
    })
}

/// Returns whether a line has `module::…` or `use module`, and not `other::module`.
fn names_module(line: &str, module: &str) -> bool {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    line.match_indices(module).any(|(at, _)| {
        let (before, rest) = line.split_at(at);
        let after = rest.strip_prefix(module).unwrap_or_default();
        let starts_path = !before.ends_with(is_name) && !before.trim_end().ends_with("::");
        let is_imported = before.trim_end().ends_with("use") && !after.starts_with(is_name);
        starts_path && (after.starts_with("::") || is_imported)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_messages(dependencies: &str, files: &[(&str, &str)]) -> Vec<String> {
        let manifest = format!("[package]\nname = \"bowline-x\"\n{dependencies}");
        let mut tree = vec![("crates/x/Cargo.toml", manifest.as_str())];
        tree.extend(files);
        let found = check_tree(&SourceTree::from_pairs(&tree));
        found.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn named_dependency_passes() {
        let dependencies = "[dependencies]\na-b.workspace = true\nc.workspace = true\n\
                            [dev-dependencies]\nd.workspace = true\n";
        let files = [
            (
                "crates/x/src/lib.rs",
                "use a_b::Name;\nfn f() -> c::Name {}\n",
            ),
            ("crates/x/src/d.rs", "/// # use d as other;\n"),
        ];
        assert_eq!(found_messages(dependencies, &files), Vec::<String>::new());
    }

    #[test]
    fn unnamed_dependency_is_rejected() {
        let lines = "use crate::a::b;\nfn f(a: u8, ba: ba::A, s: &str) {}\n\
                     const S: &str = \"a::b\";\n";
        let files = [
            ("crates/x/src/lib.rs", lines),
            ("crates/y/src/lib.rs", "use a::b;\n"),
        ];
        for section in [
            "dependencies",
            "dev-dependencies",
            "target.'cfg(unix)'.dependencies",
        ] {
            let dependencies = format!("[{section}]\na.workspace = true\n");
            assert_eq!(found_messages(&dependencies, &files).len(), 1, "{section}");
        }
    }

    #[test]
    fn dependency_of_tests_is_dev_dependency() {
        let dependencies = "[dependencies]\na.workspace = true\n";
        let text = "#[cfg(test)]\nmod tests {\n    use a::b;\n}\n";
        let files = [
            ("crates/x/src/lib.rs", text),
            ("crates/x/src/c.rs", "/// # use a::b;\n"),
            ("crates/x/tests/t.rs", "use a::b;\n"),
            ("crates/x/examples/e.rs", "use a::b;\n"),
        ];
        assert_eq!(
            found_messages(dependencies, &files),
            ["`a` is not used outside tests (dependencies)"]
        );
    }
}
