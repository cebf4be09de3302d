//! The process environment, read once and passed as a value.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Environment variables of the process or of a test.
#[derive(Clone, Default)]
pub struct EnvVars {
    variables: BTreeMap<OsString, OsString>,
}

impl EnvVars {
    /// Reads the variables of this process. No other code reads them.
    #[must_use]
    pub fn from_process() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
        }
    }

    /// Creates an environment with exactly these variables.
    #[must_use]
    pub fn from_pairs<const N: usize>(pairs: [(&str, &str); N]) -> Self {
        Self {
            variables: pairs
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        }
    }

    /// Returns a variable set to valid UTF-8.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.variables
            .get(OsStr::new(name))
            .and_then(|value| value.to_str())
    }

    /// Returns a variable as raw bytes, for the environment of a child.
    #[must_use]
    pub fn raw(&self, name: &str) -> Option<&OsStr> {
        self.variables
            .get(OsStr::new(name))
            .map(OsString::as_os_str)
    }

    /// Iterates over all variables as raw bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        let variables = self.variables.iter();
        variables.map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// Returns a nonempty variable as a path.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        let value = self.raw(name)?;
        (!value.is_empty()).then(|| PathBuf::from(value))
    }

    /// Returns an XDG directory: `$NAME/bowline`, or `~/FALLBACK/bowline`.
    pub fn xdg_directory(&self, name: &str, fallback: &str) -> Option<PathBuf> {
        // The XDG specification says to ignore a relative path.
        self.path(name)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(self.path("HOME")?.join(fallback)))
            .map(|path| path.join("bowline"))
    }
}

// Values may be secrets, so Debug shows names only.
impl std::fmt::Debug for EnvVars {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_set().entries(self.variables.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_variable_is_text_but_no_path() {
        let env = EnvVars::from_pairs([("A", "")]);
        assert_eq!(env.text("A"), Some(""));
        assert_eq!(env.path("A"), None);
        assert_eq!(env.text("B"), None);
    }

    #[test]
    fn debug_output_never_shows_values() {
        let shown = format!("{:?}", EnvVars::from_pairs([("TOKEN", "hunter2")]));
        assert!(shown.contains("TOKEN") && !shown.contains("hunter2"));
    }

    #[test]
    fn relative_xdg_directory_is_ignored() {
        let env = EnvVars::from_pairs([("XDG_STATE_HOME", "rel"), ("HOME", "/home/a")]);
        assert_eq!(
            env.xdg_directory("XDG_STATE_HOME", ".local/state"),
            Some(PathBuf::from("/home/a/.local/state/bowline"))
        );
    }
}
