//! Loads a config file: locates the file, checks permissions, parses and resolves the text.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use super::{
    Config, ConfigError, ConfigProblem, EnvVars, expand, file, find_file, resolve, secret_origins,
    tree,
};
use crate::reload::text_digest;
use crate::secrets::{SecretVault, SecretsConfig};

/// Maximum size of a config file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Locates and loads the file (`explicit`, or the usual locations).
pub fn load_config(explicit: Option<&Path>, env: &EnvVars) -> Result<Config, ConfigError> {
    load_config_with(explicit, env, &SecretVault::empty(env))
}

/// Like [`load_config`], with the secrets of a store.
pub fn load_config_with(
    explicit: Option<&Path>,
    env: &EnvVars,
    vault: &Arc<SecretVault>,
) -> Result<Config, ConfigError> {
    let path = find_file::find_config(explicit, env)?;
    let text = read_config_text(&path)?;
    parse_config_with(&text, &path, env, vault)
}

/// Parses the text of a config file; `path` determines the syntax and the base directory.
pub fn parse_config(text: &str, path: &Path, env: &EnvVars) -> Result<Config, ConfigError> {
    parse_config_with(text, path, env, &SecretVault::empty(env))
}

/// Returns the secrets section of a file, and pairs of secret and using server. Runs no program and
/// reads no secret.
pub fn load_secrets_config(
    explicit: Option<&Path>,
    env: &EnvVars,
) -> Result<(SecretsConfig, Vec<(String, String)>), ConfigError> {
    let path = find_file::find_config(explicit, env)?;
    let text = read_config_text(&path)?;
    let (file, mut problems) = parse_sections(&text, &path)?;
    let absolute = std::path::absolute(&path).unwrap_or_else(|_error| path.clone());
    let directory = absolute.parent().unwrap_or_else(|| Path::new("/"));
    let source = expand::ExpandSource {
        env,
        directory,
        secrets: None,
    };
    let resolved =
        secret_origins::resolve_secrets(&file, source, &SecretVault::empty(env), &mut problems);
    if problems.is_empty() {
        Ok((
            resolved.config().clone(),
            secret_origins::secret_uses(&file),
        ))
    } else {
        Err(ConfigError::Invalid {
            path,
            text,
            problems,
        })
    }
}

fn parse_sections(
    text: &str,
    path: &Path,
) -> Result<(file::ConfigFile, Vec<ConfigProblem>), ConfigError> {
    let syntax = tree::ConfigSyntax::detect(path, text);
    let root = tree::parse_tree(text, syntax).map_err(|problems| ConfigError::Invalid {
        path: path.to_owned(),
        text: text.to_owned(),
        problems,
    })?;
    Ok(file::parse_file(&root, syntax))
}

/// Like [`parse_config`], with the secrets of a store.
pub fn parse_config_with(
    text: &str,
    path: &Path,
    env: &EnvVars,
    vault: &Arc<SecretVault>,
) -> Result<Config, ConfigError> {
    let invalid = |mut problems: Vec<ConfigProblem>| {
        problems.sort_by_key(|problem| problem.span.start);
        ConfigError::Invalid {
            path: path.to_owned(),
            text: text.to_owned(),
            problems,
        }
    };
    let syntax = tree::ConfigSyntax::detect(path, text);
    let (file, mut problems) = parse_sections(text, path)?;
    let absolute = std::path::absolute(path).unwrap_or_else(|_error| path.to_owned());
    let directory = absolute.parent().unwrap_or_else(|| Path::new("/"));
    let source = expand::ExpandSource {
        env,
        directory,
        secrets: None,
    };
    let origin = resolve::ResolveInput {
        text,
        syntax,
        source,
    };
    match resolve::resolve_config(file, origin, vault) {
        Ok(config) if problems.is_empty() => Ok(Config {
            path: Some(absolute),
            digest: text_digest(text),
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
pub fn read_config_text(path: &Path) -> Result<String, ConfigError> {
    read_bounded_text(path, FILE_BYTES_MAX)
}

/// Reads the text of a file; refuses a world-writable file.
pub(super) fn read_bounded_text(path: &Path, bytes_max: u64) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
    // The file names programs to start, so write access means running programs.
    if metadata.is_file() && mode & 0o002 != 0 {
        return Err(ConfigError::Exposed {
            path: path.to_owned(),
        });
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(ConfigError::NotText {
            path: path.to_owned(),
        });
    }
    String::from_utf8(bytes).map_err(|_source| ConfigError::NotText {
        path: path.to_owned(),
    })
}
