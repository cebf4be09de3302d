//! Options of the ordeal: `--name value` or `--name` alone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Args {
    named: BTreeMap<String, String>,
    panics: Arc<AtomicU64>,
}

impl Args {
    /// Reads the options.
    pub(crate) fn read(
        words: impl Iterator<Item = String>,
        panics: Arc<AtomicU64>,
    ) -> Result<Self> {
        let named = BTreeMap::new();
        let mut args = Self { named, panics };
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--") else {
                bail!("unexpected `{word}`");
            };
            let value = words.next_if(|next| !next.starts_with("--"));
            args.named
                .insert(name.to_owned(), value.unwrap_or_default());
        }
        Ok(args)
    }

    /// How often this process panicked so far.
    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Whether an option was given.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// The value of an option, or another.
    pub(crate) fn number<T: FromStr>(&self, name: &str, otherwise: T) -> Result<T> {
        match self.named.get(name) {
            None => Ok(otherwise),
            Some(value) => {
                let number = value.parse().ok();
                number.with_context(|| format!("`--{name}` needs a number"))
            }
        }
    }

    /// A directory that must be given.
    pub(crate) fn dir(&self) -> Result<PathBuf> {
        let dir = self.named.get("dir").filter(|dir| !dir.is_empty());
        dir.map(PathBuf::from).context("`--dir` is missing")
    }
}
