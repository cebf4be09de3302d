//! Forbidden text in tracked files: machine-specific paths, hosts of registries.

use super::{SourceTree, TidyFinding};

/// Machine-specific folders, split so that this file does not contain them.
const MACHINE_FOLDERS: &[[&str; 2]] = &[["/ro", "ot/"], ["/wo", "rk/"]];

/// The registry is a choice of the build environment.
const REGISTRY_HOSTS: &[[&str; 2]] = &[
    ["registry.", "npmjs.org"],
    ["registry.", "yarnpkg.com"],
    ["pypi", ".org"],
    ["python", "hosted.org"],
    ["index.", "crates.io"],
    ["static.", "crates.io"],
    ["jfrog", ".io"],
    ["artifact", "ory/"],
];

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let mut found = Vec::new();
    for file in &tree.files {
        for (at, line) in file.text.lines().enumerate() {
            for word in MACHINE_FOLDERS.iter().map(|halves| halves.concat()) {
                if names_folder(line, &word) {
                    let message = format!("names a path of one machine, `{word}`");
                    found.push(TidyFinding::error("word", &file.path, at + 1, message));
                }
            }
            for word in REGISTRY_HOSTS.iter().map(|halves| halves.concat()) {
                if line.contains(&word) {
                    let message = format!("names the host of a registry, `{word}`");
                    found.push(TidyFinding::error("word", &file.path, at + 1, message));
                }
            }
        }
    }
    found
}

/// Matches absolute paths only: `a/work/b` may be part of a URL.
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.~}$*".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_findings(text: &str) -> usize {
        check_tree(&SourceTree::from_pairs(&[("docs/a.md", text)])).len()
    }

    #[test]
    fn machine_path_is_rejected() {
        let [root, work] = [["/ro", "ot/"], ["/wo", "rk/"]].map(|halves| halves.concat());
        assert_eq!(count_findings(&format!("see {root}x")), 1);
        assert_eq!(count_findings(&format!("`{work}main`")), 1);
        assert_eq!(count_findings(&format!("file://{work}main")), 1);
        assert_eq!(
            count_findings(&format!("example.com{work}main and ${{X}}{root}y")),
            0
        );
    }

    #[test]
    fn registry_host_is_rejected() {
        assert_eq!(
            count_findings(&["https://registry.", "npmjs.org/x"].concat()),
            1
        );
        assert_eq!(count_findings("`npm install` and `pip install`"), 0);
    }
}
