//! No mutable `static`: two gateways in one process must work.

use super::{SourceFile, SourceTree, TidyFinding};

const MUTABLE_TYPES: &[&str] = &[
    "Mutex", "RwLock", "Atomic", "OnceLock", "OnceCell", "LazyLock", "LazyCell", "RefCell",
    "Cell<", "ArcSwap", "Condvar",
];

pub(super) fn check_tree(tree: &SourceTree) -> Vec<TidyFinding> {
    tree.rust.iter().flat_map(check_file).collect()
}

fn check_file(source: &SourceFile) -> Vec<TidyFinding> {
    let message = "a `static` that can change: pass the value instead";
    let lines = source.code.lines().enumerate();
    lines
        .filter(|(_, line)| line.contains("thread_local!") || is_mutable_static(line))
        .map(|(at, _)| TidyFinding::error("static", source.path(), at + 1, message))
        .collect()
}

/// Returns whether a line declares a mutable static; rustfmt keeps name and type on one line.
fn is_mutable_static(line: &str) -> bool {
    let mut words = line.trim_start();
    for prefix in ["pub(crate) ", "pub(super) ", "pub "] {
        words = words.strip_prefix(prefix).unwrap_or(words);
    }
    let Some(rest) = words.strip_prefix("static ") else {
        return false;
    };
    let declared = rest.split('=').next().unwrap_or_default();
    rest.starts_with("mut ") || MUTABLE_TYPES.iter().any(|word| declared.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_findings(text: &str) -> usize {
        check_tree(&SourceTree::from_pairs(&[("crates/x/src/a.rs", text)])).len()
    }

    #[test]
    fn mutable_static_is_rejected() {
        assert_eq!(
            count_findings("static HOST: Mutex<Option<Host>> = Mutex::new(None);"),
            1
        );
        assert_eq!(
            count_findings("    pub(crate) static N: AtomicU64 = AtomicU64::new(0);"),
            1
        );
        assert_eq!(
            count_findings("pub static R: LazyLock<Regex> =\n    LazyLock::new(make);"),
            1
        );
        assert_eq!(count_findings("static mut N: u64 = 0;"), 1);
        assert_eq!(count_findings("thread_local! {\n}\n"), 1);
    }

    #[test]
    fn constants_and_lifetimes_pass() {
        assert_eq!(
            count_findings("static NAMES: &[&str] = &[];\nfn a(b: &'static Mutex<u8>) {}\n"),
            0
        );
    }
}
