//! Words that must not stand in a tracked text file: paths of one machine, hosts of registries.

use super::{Finding, Tree};

/// Folders of one machine, written so that this file does not hold them itself.
const FOLDERS: &[[&str; 2]] = &[["/ro", "ot/"], ["/wo", "rk/"]];

/// Where packages come from is the business of whoever builds.
const HOSTS: &[[&str; 2]] = &[
    ["registry.", "npmjs.org"],
    ["registry.", "yarnpkg.com"],
    ["pypi", ".org"],
    ["python", "hosted.org"],
    ["index.", "crates.io"],
    ["static.", "crates.io"],
    ["jfrog", ".io"],
    ["artifact", "ory/"],
];

pub(super) fn rule(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in &tree.files {
        for (at, line) in file.text.lines().enumerate() {
            for word in FOLDERS.iter().map(|halves| halves.concat()) {
                if holds_folder(line, &word) {
                    let message = format!("names a path of one machine, `{word}`");
                    found.push(Finding::error("word", &file.path, at + 1, message));
                }
            }
            for word in HOSTS.iter().map(|halves| halves.concat()) {
                if line.contains(&word) {
                    let message = format!("names the host of a registry, `{word}`");
                    found.push(Finding::error("word", &file.path, at + 1, message));
                }
            }
        }
    }
    found
}

/// Only as an absolute path: `a/work/b` may stand in any address.
fn holds_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.~}$*".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        rule(&Tree::of(&[("docs/a.md", text)])).len()
    }

    #[test]
    fn a_path_of_one_machine_is_refused() {
        let [root, work] = [["/ro", "ot/"], ["/wo", "rk/"]].map(|halves| halves.concat());
        assert_eq!(count(&format!("see {root}x")), 1);
        assert_eq!(count(&format!("`{work}main`")), 1);
        assert_eq!(count(&format!("file://{work}main")), 1);
        assert_eq!(
            count(&format!("example.com{work}main and ${{X}}{root}y")),
            0
        );
    }

    #[test]
    fn the_host_of_a_registry_is_refused() {
        assert_eq!(count(&["https://registry.", "npmjs.org/x"].concat()), 1);
        assert_eq!(count("`npm install` and `pip install`"), 0);
    }
}
