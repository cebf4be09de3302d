//! Reads a config file: finds it, checks who may write it, parses and resolves its text.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use super::{Config, Env, Error, Problem, expand, file, find, resolve, sources, tree};
use crate::reload::digest;
use crate::secrets::{SecretsConfig, Vault};

/// Largest config file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Finds the file (`explicit`, or the usual places) and reads it.
pub fn load(explicit: Option<&Path>, env: &Env) -> Result<Config, Error> {
    load_with(explicit, env, &Vault::empty(env))
}

/// The same with secrets of a store.
pub fn load_with(explicit: Option<&Path>, env: &Env, vault: &Arc<Vault>) -> Result<Config, Error> {
    let path = find(explicit, env)?;
    let text = read(&path)?;
    parse_with(&text, &path, env, vault)
}

/// Turns the text of a file into a config; `path` says how it is written and where it stands.
pub fn parse(text: &str, path: &Path, env: &Env) -> Result<Config, Error> {
    parse_with(text, path, env, &Vault::empty(env))
}

/// What a file says of secrets, and which servers use them, by pairs of secret and server. No
/// program is run, and no secret is read.
pub(crate) fn secrets(
    explicit: Option<&Path>,
    env: &Env,
) -> Result<(SecretsConfig, Vec<(String, String)>), Error> {
    let path = find(explicit, env)?;
    let text = read(&path)?;
    let (file, mut problems) = outline(&text, &path)?;
    let absolute = std::path::absolute(&path).unwrap_or_else(|_error| path.clone());
    let directory = absolute.parent().unwrap_or_else(|| Path::new("/"));
    let source = expand::Source {
        env,
        directory,
        secrets: None,
    };
    let found = sources::sources(&file, source, &Vault::empty(env), &mut problems);
    if problems.is_empty() {
        Ok((found.config().clone(), sources::uses(&file)))
    } else {
        Err(Error::Invalid {
            path,
            text,
            problems,
        })
    }
}

fn outline(text: &str, path: &Path) -> Result<(file::File, Vec<Problem>), Error> {
    let syntax = tree::Syntax::of(path, text);
    let root = tree::parse(text, syntax).map_err(|problems| Error::Invalid {
        path: path.to_owned(),
        text: text.to_owned(),
        problems,
    })?;
    Ok(file::read(&root, syntax))
}

/// The same as [`parse`], with secrets of a store.
pub fn parse_with(text: &str, path: &Path, env: &Env, vault: &Arc<Vault>) -> Result<Config, Error> {
    let invalid = |mut problems: Vec<Problem>| {
        problems.sort_by_key(|problem| problem.span.start);
        Error::Invalid {
            path: path.to_owned(),
            text: text.to_owned(),
            problems,
        }
    };
    let syntax = tree::Syntax::of(path, text);
    let (file, mut problems) = outline(text, path)?;
    let absolute = std::path::absolute(path).unwrap_or_else(|_error| path.to_owned());
    let directory = absolute.parent().unwrap_or_else(|| Path::new("/"));
    let source = expand::Source {
        env,
        directory,
        secrets: None,
    };
    let origin = resolve::Origin {
        text,
        syntax,
        source,
    };
    match resolve::resolve(file, origin, vault) {
        Ok(config) if problems.is_empty() => Ok(Config {
            path: Some(absolute),
            digest: digest(text),
            ..config
        }),
        Ok(_) => Err(invalid(problems)),
        Err(more) => {
            problems.extend(more);
            Err(invalid(problems))
        }
    }
}

/// Reads the text of a config file.
pub(crate) fn read(path: &Path) -> Result<String, Error> {
    read_up_to(path, FILE_BYTES_MAX)
}

/// Reads the text of a file that only its owner may write.
pub(super) fn read_up_to(path: &Path, bytes_max: u64) -> Result<String, Error> {
    let failed = |source| Error::Read {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
    // The file says which programs are started, so whoever may write it may run them.
    if metadata.is_file() && mode & 0o002 != 0 {
        return Err(Error::Exposed {
            path: path.to_owned(),
        });
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::NotText {
            path: path.to_owned(),
        });
    }
    String::from_utf8(bytes).map_err(|_source| Error::NotText {
        path: path.to_owned(),
    })
}
