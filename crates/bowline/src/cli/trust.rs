//! `trust`: lets `up` read the config file of a directory when it is started there.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::failure::{Exit, Failure};
use super::{Context, Trust, clean};
use crate::config::{self, Config, FILE_NAME};
use crate::secrets::Vault;
use crate::state::{self, State};
use crate::trust::{self, TrustError, TrustStore};

pub(super) fn run(command: &Trust, context: &mut Context) -> Result<Exit, Failure> {
    let directory = state::locate(context.global.state.as_deref(), &context.env)?;
    let state = State::open(directory)?;
    let store = TrustStore::new(state.path());
    if command.ls {
        return list(&store, context);
    }
    let directory = command
        .directory
        .as_deref()
        .unwrap_or_else(|| Path::new("."));
    if command.revoke {
        revoke(&store, directory, context)
    } else {
        add(&store, directory, context)
    }
}

fn add(store: &TrustStore, directory: &Path, context: &mut Context) -> Result<Exit, Failure> {
    let file = directory.join(FILE_NAME);
    let text = config::read(&file)?;
    // Nobody should trust what cannot be read as a configuration.
    config::parse(&text, &file, &context.env)?;
    let added = store.add(directory, &text)?;
    let shown = printable(&added.directory);
    let result = json!({
        "v": 1,
        "trusted": added.directory,
        "sha256": added.sha256,
        "file": store.path(),
    });
    context.out.result(&result, |out| {
        out.line(&format!(
            "trusted {shown} with its {FILE_NAME} as it is now"
        ))
    })?;
    context.out.note(&format!(
        "changed {}; undo: bowline trust --revoke {shown}",
        store.path().display()
    ));
    Ok(Exit::Ok)
}

fn revoke(store: &TrustStore, directory: &Path, context: &mut Context) -> Result<Exit, Failure> {
    let shown = printable(directory);
    if !store.revoke(directory)? {
        let failure = Failure::usage(format!("`{shown}` is not trusted"));
        return Err(failure.hint("see: bowline trust --ls"));
    }
    let result = json!({"v": 1, "revoked": directory, "file": store.path()});
    context.out.result(&result, |out| {
        out.line(&format!("{shown} is no longer trusted"))
    })?;
    Ok(Exit::Ok)
}

fn list(store: &TrustStore, context: &mut Context) -> Result<Exit, Failure> {
    let known = store.list()?;
    let result = json!({"v": 1, "directories": known});
    context.out.result(&result, |out| {
        known.iter().try_for_each(|known| {
            let directory = printable(&known.directory);
            let short = known.sha256.get(..12).unwrap_or_default();
            out.line(&format!("{short}  {directory}"))
        })
    })?;
    Ok(Exit::Ok)
}

fn printable(path: &Path) -> String {
    clean::line(&path.display().to_string()).into_owned()
}

/// Reads the config file for a command that a person types where the file is: the one that is
/// named, the one of the current directory where that is trusted, or the one of the user.
pub(super) fn load(
    context: &mut Context,
    state_directory: &Path,
    vault: &std::sync::Arc<Vault>,
) -> Result<Config, Failure> {
    let named = context.config().is_some() || context.env.path("BOWLINE_CONFIG").is_some();
    if !named && let Some(config) = load_local(context, state_directory, vault)? {
        return Ok(config);
    }
    Ok(config::load_with(context.config(), &context.env, vault)?)
}

/// Reads `./bowline.toml` where its directory is trusted, and says so where it is not.
fn load_local(
    context: &mut Context,
    state_directory: &Path,
    vault: &std::sync::Arc<Vault>,
) -> Result<Option<Config>, Failure> {
    let file = PathBuf::from(".").join(FILE_NAME);
    if !file.exists() {
        return Ok(None);
    }
    let text = config::read(&file)?;
    let store = TrustStore::new(state_directory);
    let why = match store.check(Path::new("."), &text)? {
        trust::Trust::Trusted => {
            let config = config::parse_with(&text, &file, &context.env, vault)?;
            return Ok(Some(Config {
                trust: Some(store),
                ..config
            }));
        }
        trust::Trust::Changed => "it has changed since its directory was trusted",
        trust::Trust::Unknown => "its directory is not trusted",
    };
    context.out.warning(&format!(
        "./{FILE_NAME} is not read: {why}; look at it, then run `bowline trust .`, \
         or name it with --config"
    ));
    Ok(None)
}

impl From<TrustError> for Failure {
    fn from(error: TrustError) -> Self {
        match error {
            TrustError::State(error) => error.into(),
            TrustError::Directory { .. } | TrustError::Full => {
                Self::usage(bowline_core::error::whole(&error))
            }
        }
    }
}
