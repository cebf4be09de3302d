//! The page of compatibility names every client and server of the matrix at its pinned version.

use super::{Finding, Tree};
use crate::peers::matrix::{self, MATRIX, PAGE};

const RULE: &str = "compatibility";

pub(super) fn rule(tree: &Tree) -> Vec<Finding> {
    let Some(described) = tree.file(MATRIX) else {
        return Vec::new();
    };
    let matrix = match matrix::read(&described.text) {
        Ok(matrix) => matrix,
        Err(error) => return vec![Finding::error(RULE, MATRIX, 0, format!("{error:#}"))],
    };
    let page = tree.file(PAGE).map_or("", |page| page.text.as_str());
    let parties = matrix.clients.iter().chain(&matrix.servers);
    parties
        .filter_map(|party| {
            let version = match party.version() {
                Ok(version) => version,
                Err(error) => return Some(Finding::error(RULE, MATRIX, 0, format!("{error:#}"))),
            };
            let is_named = page
                .lines()
                .any(|line| line.contains(&party.title) && line.contains(&version));
            let message = format!(
                "does not name {} {version}; run `cargo xtask peers matrix`",
                party.title
            );
            (!is_named).then(|| Finding::error(RULE, PAGE, 0, message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIBED: &str = r#"{"plans": {}, "servers": [], "clients": [
        {"name": "c", "title": "Python SDK 1.x", "peer": "py1", "package": "mcp"}]}"#;

    #[test]
    fn a_page_of_another_version_is_refused() {
        let check = |page| rule(&Tree::of(&[(MATRIX, DESCRIBED), (PAGE, page)]));
        assert_eq!(check("| Python SDK 1.x | `mcp` | 1.30.0 |"), Vec::new());
        assert_eq!(check("| Python SDK 1.x | `mcp` | 1.29.0 |").len(), 1);
        assert_eq!(check("").len(), 1);
    }

    #[test]
    fn a_party_without_a_pin_is_refused() {
        let described = DESCRIBED.replace("\"mcp\"", "\"other\"");
        assert_eq!(rule(&Tree::of(&[(MATRIX, &described)])).len(), 1);
    }
}
