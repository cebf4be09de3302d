//! The environment, read once and passed on as a value.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Environment variables, of the process or of a test.
#[derive(Clone, Default)]
pub struct Env {
    variables: BTreeMap<OsString, OsString>,
}

impl Env {
    /// The variables of this process. The one place where they are read.
    #[must_use]
    pub fn process() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
        }
    }

    /// The variables given, and no others.
    #[must_use]
    pub fn of<const N: usize>(pairs: [(&str, &str); N]) -> Self {
        Self {
            variables: pairs
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        }
    }

    /// A variable that is set and is text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.variables
            .get(OsStr::new(name))
            .and_then(|value| value.to_str())
    }

    /// A variable that is set, as it is; for the environment of a child.
    #[must_use]
    pub fn raw(&self, name: &str) -> Option<&OsStr> {
        self.variables
            .get(OsStr::new(name))
            .map(OsString::as_os_str)
    }

    /// Every variable, as it is.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        let variables = self.variables.iter();
        variables.map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// A variable that names a path: set, and not empty.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        let value = self.raw(name)?;
        (!value.is_empty()).then(|| PathBuf::from(value))
    }

    /// A directory of the XDG kind: `$NAME/bowline`, or `~/FALLBACK/bowline`.
    pub(crate) fn directory(&self, name: &str, fallback: &str) -> Option<PathBuf> {
        // The specification says that a relative path there is to be ignored.
        self.path(name)
            .filter(|path| path.is_absolute())
            .or_else(|| Some(self.path("HOME")?.join(fallback)))
            .map(|path| path.join("bowline"))
    }
}

// Values may be secrets; only the names are for eyes.
impl std::fmt::Debug for Env {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_set().entries(self.variables.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_is_text_but_no_path() {
        let env = Env::of([("A", "")]);
        assert_eq!(env.text("A"), Some(""));
        assert_eq!(env.path("A"), None);
        assert_eq!(env.text("B"), None);
    }

    #[test]
    fn debug_output_never_shows_values() {
        let shown = format!("{:?}", Env::of([("TOKEN", "hunter2")]));
        assert!(shown.contains("TOKEN") && !shown.contains("hunter2"));
    }

    #[test]
    fn a_relative_xdg_directory_is_ignored() {
        let env = Env::of([("XDG_STATE_HOME", "rel"), ("HOME", "/home/a")]);
        assert_eq!(
            env.directory("XDG_STATE_HOME", ".local/state"),
            Some(PathBuf::from("/home/a/.local/state/bowline"))
        );
    }
}
