//! `${VAR}`, `${VAR:-default}`, `${file:path}` and `${secret:NAME}` in the text of a config.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::env::EnvVars;
use crate::secrets::{self, SecretSources};

/// Maximum size of a file read by `${file:path}`.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Sources of expanded values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpandSource<'a> {
    /// The environment of `${VAR}`.
    pub(crate) env: &'a EnvVars,
    /// Base directory for relative paths of `${file:path}`.
    pub(crate) directory: &'a Path,
    /// The secrets of `${secret:NAME}`; `None` where secrets are not permitted.
    pub(crate) secrets: Option<&'a SecretSources>,
}

/// Reason why a text could not be expanded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExpandError {
    /// The reference is malformed: the config file must be fixed.
    #[error("`${{` without a closing brace")]
    Unclosed,
    /// The config file must be fixed: invalid variable name.
    #[error("`${{{0}}}` names no variable")]
    Name(String),
    /// The config file must be fixed: invalid secret name.
    #[error("`${{secret:{0}}}` names no secret")]
    Secret(String),
    /// The config file must be fixed: secrets are not permitted here.
    #[error("a secret cannot be used here")]
    NoSecrets,
    /// The config file must be fixed: a secret of an executor.
    #[error("`${{executor:{0}}}` can only stand in a header of a server with `via`")]
    ExecutorOnly(String),
    /// The file is valid, but the secret is unavailable.
    #[error(transparent)]
    Missing(#[from] secrets::SecretLookupError),
    /// The file is valid, but the variable is not set.
    #[error("variable `{0}` is not set")]
    Unset(String),
    /// The file is valid, but a referenced file cannot be read.
    #[error("`{path}` cannot be read")]
    File {
        /// The referenced file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file is valid, but a referenced file is too long or no UTF-8.
    #[error("`{0}` is not a text of at most 64 KiB")]
    Content(PathBuf),
}

impl ExpandError {
    /// Returns whether the config file must be fixed, rather than the machine.
    pub(crate) fn is_config_fault(&self) -> bool {
        matches!(
            self,
            Self::Unclosed
                | Self::Name(_)
                | Self::Secret(_)
                | Self::NoSecrets
                | Self::ExecutorOnly(_)
        )
    }
}

impl ExpandError {
    /// Formats the error on one line, with its place and the command to fix it.
    pub(crate) fn format_line(&self, location: &str) -> String {
        let cause = std::error::Error::source(self).map(|cause| format!(": {cause}"));
        let fix = match self {
            Self::Missing(error) => error.suggest_fix().map(|fix| format!("; fix: {fix}")),
            _ => None,
        };
        let (cause, fix) = (cause.unwrap_or_default(), fix.unwrap_or_default());
        format!("{self}{location}{cause}{fix}")
    }
}

/// Expands every reference of a text; `$${` stands for a literal `${`.
pub(crate) fn expand_text(text: &str, source: ExpandSource<'_>) -> Result<String, ExpandError> {
    expand_with(text, source, |_, _| {})
}

/// Like [`expand_text`]; passes each reference and its value to `note`.
pub(super) fn expand_with(
    text: &str,
    source: ExpandSource<'_>,
    mut note: impl FnMut(&str, &str),
) -> Result<String, ExpandError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, reference) = rest.split_at(at);
        let inner = reference.strip_prefix("${").unwrap_or_default();
        if let Some(escaped) = before.strip_suffix('$') {
            out.push_str(escaped);
            out.push_str("${");
            rest = inner;
            continue;
        }
        out.push_str(before);
        let (reference_text, after) = inner.split_once('}').ok_or(ExpandError::Unclosed)?;
        let value = resolve_reference(reference_text, source)?;
        note(reference_text, &value);
        out.push_str(&value);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns the environment variables referenced by a text.
pub(crate) fn referenced_variables(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let (before, inner) = rest.split_once("${")?;
            if before.ends_with('$') {
                rest = inner;
                continue;
            }
            let (reference, after) = inner.split_once('}')?;
            rest = after;
            let name = reference.split(":-").next().unwrap_or_default();
            if is_variable_name(name) {
                return Some(name);
            }
        }
    })
}

fn resolve_reference(reference: &str, source: ExpandSource<'_>) -> Result<String, ExpandError> {
    if let Some(path) = reference.strip_prefix("file:") {
        return read_value_file(&source.directory.join(path));
    }
    if let Some(name) = reference.strip_prefix("secret:") {
        if !secrets::is_secret_name(name) {
            return Err(ExpandError::Secret(name.to_owned()));
        }
        let secrets = source.secrets.ok_or(ExpandError::NoSecrets)?;
        return Ok(String::clone(&*secrets.read_secret(name)?));
    }
    if let Some(name) = reference.strip_prefix("executor:") {
        return Err(ExpandError::ExecutorOnly(name.to_owned()));
    }
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    if !is_variable_name(name) {
        return Err(ExpandError::Name(reference.to_owned()));
    }
    // As in a shell, `:-` also replaces an empty variable.
    match (source.env.text(name), default) {
        (Some(""), Some(default)) => Ok(default.to_owned()),
        (Some(value), _) => Ok(value.to_owned()),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(ExpandError::Unset(name.to_owned())),
    }
}

fn is_variable_name(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name
            .bytes()
            .next()
            .is_some_and(|byte| !byte.is_ascii_digit())
}

/// Returns the names of the secrets referenced by a text.
pub(crate) fn referenced_secrets(text: &str) -> impl Iterator<Item = &str> {
    list_references(text).filter_map(|reference| reference.strip_prefix("secret:"))
}

/// Returns the inside of each `${...}` of a text.
pub(crate) fn list_references(text: &str) -> impl Iterator<Item = &str> {
    let mut parts = text.split("${");
    let mut before = parts.next().unwrap_or_default();
    parts.filter_map(move |part| {
        let is_escaped = before.ends_with('$');
        before = part;
        let (reference, _) = part.split_once('}')?;
        (!is_escaped).then_some(reference)
    })
}

/// Reads the file of a secret, or returns the reason of the failure.
pub(crate) fn read_secret_file(path: &Path) -> Result<secrets::SecretValue, String> {
    let read = read_value_file(path).map(secrets::SecretValue::new);
    read.map_err(|error| bowline_core::error::display_chain(&error))
}

fn read_value_file(path: &Path) -> Result<String, ExpandError> {
    let failed = |source| ExpandError::File {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ExpandError::Content(path.to_owned()));
    }
    let mut text =
        String::from_utf8(bytes).map_err(|_source| ExpandError::Content(path.to_owned()))?;
    // Editors and `echo` add a trailing newline that is no part of the secret.
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_expansion(text: &str, expected: Result<&str, &str>) {
        let env = EnvVars::from_pairs([("A", "one"), ("EMPTY", "")]);
        let source = ExpandSource {
            env: &env,
            directory: Path::new("/nowhere"),
            secrets: None,
        };
        let found = expand_text(text, source).map_err(|error| error.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
    }

    #[test]
    fn variables_defaults_and_escapes_expand() {
        assert_expansion("plain $A $", Ok("plain $A $"));
        assert_expansion("${A}/${A}", Ok("one/one"));
        assert_expansion("${B:-two}", Ok("two"));
        assert_expansion("${EMPTY:-two}", Ok("two"));
        assert_expansion("${EMPTY}", Ok(""));
        assert_expansion("${B:-}", Ok(""));
        assert_expansion("$${A}", Ok("${A}"));
        assert_expansion("a$${A}${A}", Ok("a${A}one"));
    }

    #[test]
    fn config_faults_differ_from_machine_faults() {
        assert_expansion("${B}", Err("variable `B` is not set"));
        assert_expansion("${A", Err("`${` without a closing brace"));
        assert_expansion("${}", Err("`${}` names no variable"));
        assert_expansion("${1A}", Err("`${1A}` names no variable"));
        assert_expansion("${secret:x}", Err("a secret cannot be used here"));
        assert_expansion("${secret:../x}", Err("`${secret:../x}` names no secret"));
        assert!(!ExpandError::Unset(String::new()).is_config_fault());
        assert!(ExpandError::Unclosed.is_config_fault());
    }

    #[test]
    fn escaped_references_are_not_listed() {
        let found: Vec<_> = list_references("a${B}$${C}${secret:d}${open").collect();
        assert_eq!(found, ["B", "secret:d"]);
        assert_eq!(
            referenced_secrets("${secret:d}${file:e}").collect::<Vec<_>>(),
            ["d"]
        );
    }

    #[test]
    fn expanded_value_is_not_expanded_again() {
        let env = EnvVars::from_pairs([("A", "${B}")]);
        let source = ExpandSource {
            env: &env,
            directory: Path::new("/"),
            secrets: None,
        };
        assert_eq!(expand_text("${A}", source).unwrap(), "${B}");
    }

    #[test]
    fn file_reference_strips_final_newline_only() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("key"), "a\nb\r\n").unwrap();
        let env = EnvVars::default();
        let source = ExpandSource {
            env: &env,
            directory: directory.path(),
            secrets: None,
        };
        assert_eq!(expand_text("<${file:key}>", source).unwrap(), "<a\nb>");
        assert!(matches!(
            expand_text("${file:none}", source),
            Err(ExpandError::File { .. })
        ));
    }

    #[test]
    fn oversized_value_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("key"), vec![b'a'; 64 * 1024 + 1]).unwrap();
        let env = EnvVars::default();
        let source = ExpandSource {
            env: &env,
            directory: directory.path(),
            secrets: None,
        };
        assert!(matches!(
            expand_text("${file:key}", source),
            Err(ExpandError::Content(_))
        ));
    }
}
