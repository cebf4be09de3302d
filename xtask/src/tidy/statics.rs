//! No `static` that can change: two gateways in one process must work.

use super::{Finding, Source, Tree};

const MUTABLE: &[&str] = &[
    "Mutex", "RwLock", "Atomic", "OnceLock", "OnceCell", "LazyLock", "LazyCell", "RefCell",
    "Cell<", "ArcSwap", "Condvar",
];

pub(super) fn rule(tree: &Tree) -> Vec<Finding> {
    tree.rust.iter().flat_map(faults).collect()
}

fn faults(source: &Source) -> Vec<Finding> {
    let message = "a `static` that can change: pass the value instead";
    let lines = source.code.lines().enumerate();
    lines
        .filter(|(_, line)| line.contains("thread_local!") || is_mutable_static(line))
        .map(|(at, _)| Finding::error("static", source.path(), at + 1, message))
        .collect()
}

/// The type stands on the line of the name: rustfmt breaks after the `=` only.
fn is_mutable_static(line: &str) -> bool {
    let mut words = line.trim_start();
    for prefix in ["pub(crate) ", "pub(super) ", "pub "] {
        words = words.strip_prefix(prefix).unwrap_or(words);
    }
    let Some(rest) = words.strip_prefix("static ") else {
        return false;
    };
    let declared = rest.split('=').next().unwrap_or_default();
    rest.starts_with("mut ") || MUTABLE.iter().any(|word| declared.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        rule(&Tree::of(&[("crates/x/src/a.rs", text)])).len()
    }

    #[test]
    fn state_in_a_static_is_refused() {
        assert_eq!(
            count("static HOST: Mutex<Option<Host>> = Mutex::new(None);"),
            1
        );
        assert_eq!(
            count("    pub(crate) static N: AtomicU64 = AtomicU64::new(0);"),
            1
        );
        assert_eq!(
            count("pub static R: LazyLock<Regex> =\n    LazyLock::new(make);"),
            1
        );
        assert_eq!(count("static mut N: u64 = 0;"), 1);
        assert_eq!(count("thread_local! {\n}\n"), 1);
    }

    #[test]
    fn constants_and_lifetimes_are_no_state() {
        assert_eq!(
            count("static NAMES: &[&str] = &[];\nfn a(b: &'static Mutex<u8>) {}\n"),
            0
        );
    }
}
