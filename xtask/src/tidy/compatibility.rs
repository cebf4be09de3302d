//! The compatibility page names every client and server of the matrix at its pinned version.

use super::{SourceTree, TidyFinding};
use crate::peers::matrix::{self, MATRIX_FILE, PAGE_FILE};

const RULE: &str = "compatibility";

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    let Some(described) = tree.file(MATRIX_FILE) else {
        return Vec::new();
    };
    let matrix = match matrix::parse_matrix(&described.text) {
        Ok(matrix) => matrix,
        Err(error) => {
            return vec![TidyFinding::error(
                RULE,
                MATRIX_FILE,
                0,
                format!("{error:#}"),
            )];
        }
    };
    let page = tree.file(PAGE_FILE).map_or("", |page| page.text.as_str());
    let parties = matrix.clients.iter().chain(&matrix.servers);
    parties
        .filter_map(|party| {
            let version = match party.pinned_version() {
                Ok(version) => version,
                Err(error) => {
                    return Some(TidyFinding::error(
                        RULE,
                        MATRIX_FILE,
                        0,
                        format!("{error:#}"),
                    ));
                }
            };
            let is_named = page
                .lines()
                .any(|line| line.contains(&party.title) && line.contains(&version));
            let message = format!(
                "does not name {} {version}; run `cargo xtask peers matrix`",
                party.title
            );
            (!is_named).then(|| TidyFinding::error(RULE, PAGE_FILE, 0, message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIBED: &str = r#"{"plans": {}, "servers": [], "clients": [
        {"name": "c", "title": "Python SDK 1.x", "peer": "py1", "package": "mcp"}]}"#;

    #[test]
    fn page_with_other_version_is_rejected() {
        let check = |page| {
            check_tree(&SourceTree::from_pairs(&[
                (MATRIX_FILE, DESCRIBED),
                (PAGE_FILE, page),
            ]))
        };
        assert_eq!(check("| Python SDK 1.x | `mcp` | 1.30.0 |"), Vec::new());
        assert_eq!(check("| Python SDK 1.x | `mcp` | 1.29.0 |").len(), 1);
        assert_eq!(check("").len(), 1);
    }

    #[test]
    fn party_without_pin_is_rejected() {
        let described = DESCRIBED.replace("\"mcp\"", "\"other\"");
        assert_eq!(
            check_tree(&SourceTree::from_pairs(&[(MATRIX_FILE, &described)])).len(),
            1
        );
    }
}
