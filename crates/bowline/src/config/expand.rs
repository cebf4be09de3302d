//! `${VAR}`, `${VAR:-default}`, `${file:path}` and `${secret:NAME}` in the text of a config.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::config::env::Env;
use crate::secrets::{self, Sources};

/// Largest file that `${file:path}` takes in.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Where values come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    /// The environment of `${VAR}`.
    pub(crate) env: &'a Env,
    /// The directory that relative paths of `${file:path}` start from.
    pub(crate) directory: &'a Path,
    /// The secrets of `${secret:NAME}`; none where they cannot be used.
    pub(crate) secrets: Option<&'a Sources>,
}

/// Why a text could not be expanded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The reference itself is wrong: the file must be changed.
    #[error("`${{` without a closing brace")]
    Unclosed,
    /// As above.
    #[error("`${{{0}}}` names no variable")]
    Name(String),
    /// As above.
    #[error("`${{secret:{0}}}` names no secret")]
    Secret(String),
    /// As above.
    #[error("a secret cannot be used here")]
    NoSecrets,
    /// As above.
    #[error("`${{executor:{0}}}` can only stand in a header of a server with `via`")]
    Elsewhere(String),
    /// The file is right, but the secret cannot be had.
    #[error(transparent)]
    Missing(#[from] secrets::Error),
    /// The file is right, but this machine lacks the variable.
    #[error("variable `{0}` is not set")]
    Unset(String),
    /// As above, for a file.
    #[error("`{path}` cannot be read")]
    File {
        /// What was asked for.
        path: PathBuf,
        /// Why it cannot be had.
        source: std::io::Error,
    },
    /// As above, for a file that is too long or not text.
    #[error("`{0}` is not a text of at most 64 KiB")]
    Content(PathBuf),
}

impl Error {
    /// Whether the config file must be changed, rather than the machine it runs on.
    pub(crate) fn is_fault_of_the_file(&self) -> bool {
        matches!(
            self,
            Self::Unclosed | Self::Name(_) | Self::Secret(_) | Self::NoSecrets | Self::Elsewhere(_)
        )
    }
}

impl Error {
    /// Says it in one line, with where it happened and the command that mends it.
    pub(crate) fn told(&self, place: &str) -> String {
        let cause = std::error::Error::source(self).map(|cause| format!(": {cause}"));
        let fix = match self {
            Self::Missing(error) => error.fix().map(|fix| format!("; fix: {fix}")),
            _ => None,
        };
        let (cause, fix) = (cause.unwrap_or_default(), fix.unwrap_or_default());
        format!("{self}{place}{cause}{fix}")
    }
}

/// The text with every reference replaced; `$${` stands for a literal `${`.
pub(crate) fn expand(text: &str, source: Source<'_>) -> Result<String, Error> {
    expand_noting(text, source, |_, _| {})
}

/// The same; `note` is told what came out of each reference, and what stood inside it.
pub(crate) fn expand_noting(
    text: &str,
    source: Source<'_>,
    mut note: impl FnMut(&str, &str),
) -> Result<String, Error> {
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
        let (inside, after) = inner.split_once('}').ok_or(Error::Unclosed)?;
        let value = value(inside, source)?;
        note(inside, &value);
        out.push_str(&value);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Returns the variables that a text refers to.
pub(crate) fn variables(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            let (before, inner) = rest.split_once("${")?;
            if before.ends_with('$') {
                rest = inner;
                continue;
            }
            let (inside, after) = inner.split_once('}')?;
            rest = after;
            let name = inside.split(":-").next().unwrap_or_default();
            if is_variable(name) {
                return Some(name);
            }
        }
    })
}

fn value(inside: &str, source: Source<'_>) -> Result<String, Error> {
    if let Some(path) = inside.strip_prefix("file:") {
        return read(&source.directory.join(path));
    }
    if let Some(name) = inside.strip_prefix("secret:") {
        if !secrets::is_name(name) {
            return Err(Error::Secret(name.to_owned()));
        }
        let secrets = source.secrets.ok_or(Error::NoSecrets)?;
        return Ok(String::clone(&*secrets.value(name)?));
    }
    if let Some(name) = inside.strip_prefix("executor:") {
        return Err(Error::Elsewhere(name.to_owned()));
    }
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    if !is_variable(name) {
        return Err(Error::Name(inside.to_owned()));
    }
    // As in a shell, `:-` also stands in for a variable that is set but empty.
    match (source.env.text(name), default) {
        (Some(""), Some(default)) => Ok(default.to_owned()),
        (Some(value), _) => Ok(value.to_owned()),
        (None, Some(default)) => Ok(default.to_owned()),
        (None, None) => Err(Error::Unset(name.to_owned())),
    }
}

fn is_variable(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name
            .bytes()
            .next()
            .is_some_and(|byte| !byte.is_ascii_digit())
}

/// Returns the names of the secrets that a text refers to.
pub(crate) fn secrets_in(text: &str) -> impl Iterator<Item = &str> {
    references(text).filter_map(|inside| inside.strip_prefix("secret:"))
}

/// Returns what stands inside each `${...}` of a text.
pub(crate) fn references(text: &str) -> impl Iterator<Item = &str> {
    let mut parts = text.split("${");
    let mut before = parts.next().unwrap_or_default();
    parts.filter_map(move |part| {
        let is_escaped = before.ends_with('$');
        before = part;
        let (inside, _) = part.split_once('}')?;
        (!is_escaped).then_some(inside)
    })
}

/// Reads a secret that has a file of its own, or says why it cannot.
pub(crate) fn read_secret_file(path: &Path) -> Result<secrets::Value, String> {
    let read = read(path).map(secrets::Value::new);
    read.map_err(|error| bowline_core::error::whole(&error))
}

fn read(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::File {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Error::Content(path.to_owned()));
    }
    let mut text = String::from_utf8(bytes).map_err(|_source| Error::Content(path.to_owned()))?;
    // Editors and `echo` end a file with a newline that is no part of the secret.
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

    fn check(text: &str, expected: Result<&str, &str>) {
        let env = Env::of([("A", "one"), ("EMPTY", "")]);
        let source = Source {
            env: &env,
            directory: Path::new("/nowhere"),
            secrets: None,
        };
        let found = expand(text, source).map_err(|error| error.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{text}");
    }

    #[test]
    fn variables_defaults_and_escapes_expand() {
        check("plain $A $", Ok("plain $A $"));
        check("${A}/${A}", Ok("one/one"));
        check("${B:-two}", Ok("two"));
        check("${EMPTY:-two}", Ok("two"));
        check("${EMPTY}", Ok(""));
        check("${B:-}", Ok(""));
        check("$${A}", Ok("${A}"));
        check("a$${A}${A}", Ok("a${A}one"));
    }

    #[test]
    fn what_is_wrong_in_the_file_differs_from_what_the_machine_lacks() {
        check("${B}", Err("variable `B` is not set"));
        check("${A", Err("`${` without a closing brace"));
        check("${}", Err("`${}` names no variable"));
        check("${1A}", Err("`${1A}` names no variable"));
        check("${secret:x}", Err("a secret cannot be used here"));
        check("${secret:../x}", Err("`${secret:../x}` names no secret"));
        assert!(!Error::Unset(String::new()).is_fault_of_the_file());
        assert!(Error::Unclosed.is_fault_of_the_file());
    }

    #[test]
    fn references_are_found_but_not_those_that_are_escaped() {
        let found: Vec<_> = references("a${B}$${C}${secret:d}${open").collect();
        assert_eq!(found, ["B", "secret:d"]);
        assert_eq!(
            secrets_in("${secret:d}${file:e}").collect::<Vec<_>>(),
            ["d"]
        );
    }

    #[test]
    fn a_value_is_not_expanded_again() {
        let env = Env::of([("A", "${B}")]);
        let source = Source {
            env: &env,
            directory: Path::new("/"),
            secrets: None,
        };
        assert_eq!(expand("${A}", source).unwrap(), "${B}");
    }

    #[test]
    fn a_file_loses_its_last_line_end_only() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("key"), "a\nb\r\n").unwrap();
        let env = Env::default();
        let source = Source {
            env: &env,
            directory: directory.path(),
            secrets: None,
        };
        assert_eq!(expand("<${file:key}>", source).unwrap(), "<a\nb>");
        assert!(matches!(
            expand("${file:none}", source),
            Err(Error::File { .. })
        ));
    }

    #[test]
    fn a_file_that_is_too_long_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("key"), vec![b'a'; 64 * 1024 + 1]).unwrap();
        let env = Env::default();
        let source = Source {
            env: &env,
            directory: directory.path(),
            secrets: None,
        };
        assert!(matches!(
            expand("${file:key}", source),
            Err(Error::Content(_))
        ));
    }
}
