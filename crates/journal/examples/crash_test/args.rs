//! Options of the crash test: `--name value` or `--name` alone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail};

/// Parsed options.
#[derive(Debug)]
pub(crate) struct Args {
    named: BTreeMap<String, String>,
    panics: Arc<AtomicU64>,
}

impl Args {
    /// Parses the options.
    pub(crate) fn parse(
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

    /// Returns the number of panics of this process.
    pub(crate) fn panic_count(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Returns whether an option was given.
    pub(crate) fn has_option(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// Returns the value of an option, or a default.
    pub(crate) fn number_option<T: FromStr>(&self, name: &str, otherwise: T) -> Result<T> {
        match self.named.get(name) {
            None => Ok(otherwise),
            Some(value) => {
                let number = value.parse().ok();
                number.with_context(|| format!("`--{name}` needs a number"))
            }
        }
    }

    /// Returns the required `--dir`.
    pub(crate) fn required_dir(&self) -> Result<PathBuf> {
        let dir = self.named.get("dir").filter(|dir| !dir.is_empty());
        dir.map(PathBuf::from).context("`--dir` is missing")
    }
}
