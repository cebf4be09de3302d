//! `trust`: permits `up` to read the config file of the current directory.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::failure::{CliExit, CliFailure};
use super::{CommandContext, TrustArgs, clean};
use bowline_config::secrets::SecretVault;
use bowline_config::state::{self, StateDir};
use bowline_config::trust::{self, TrustError, TrustStore};
use bowline_config::{CONFIG_FILE_NAME, Config};

pub(super) fn run(
    command: &TrustArgs,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let directory = state::locate_state_dir(context.global.state.as_deref(), &context.env)?;
    let state = StateDir::open(directory)?;
    let store = TrustStore::new(state.path());
    if command.ls {
        return list_directories(&store, context);
    }
    let directory = command
        .directory
        .as_deref()
        .unwrap_or_else(|| Path::new("."));
    if command.revoke {
        revoke_directory(&store, directory, context)
    } else {
        trust_directory(&store, directory, context)
    }
}

fn trust_directory(
    store: &TrustStore,
    directory: &Path,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let file = directory.join(CONFIG_FILE_NAME);
    let text = bowline_config::read_config_text(&file)?;
    // An invalid configuration must not be trusted.
    bowline_config::parse_config(&text, &file, &context.env)?;
    let added = store.trust_directory(directory, &text)?;
    let printable = printable_path(&added.directory);
    let result = json!({
        "v": 1,
        "trusted": added.directory,
        "sha256": added.sha256,
        "file": store.path(),
    });
    context.out.write_result(&result, |out| {
        out.write_line(&format!(
            "trusted {printable} with its {CONFIG_FILE_NAME} as it is now"
        ))
    })?;
    context.out.write_note(&format!(
        "changed {}; undo: bowline trust --revoke {printable}",
        store.path().display()
    ));
    Ok(CliExit::Ok)
}

fn revoke_directory(
    store: &TrustStore,
    directory: &Path,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let printable = printable_path(directory);
    if !store.revoke_trust(directory)? {
        let failure = CliFailure::usage(format!("`{printable}` is not trusted"));
        return Err(failure.with_hint("see: bowline trust --ls"));
    }
    let result = json!({"v": 1, "revoked": directory, "file": store.path()});
    context.out.write_result(&result, |out| {
        out.write_line(&format!("{printable} is no longer trusted"))
    })?;
    Ok(CliExit::Ok)
}

fn list_directories(
    store: &TrustStore,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let trusted = store.list_directories()?;
    let result = json!({"v": 1, "directories": trusted});
    context.out.write_result(&result, |out| {
        trusted.iter().try_for_each(|trusted| {
            let directory = printable_path(&trusted.directory);
            let short = trusted.sha256.get(..12).unwrap_or_default();
            out.write_line(&format!("{short}  {directory}"))
        })
    })?;
    Ok(CliExit::Ok)
}

fn printable_path(path: &Path) -> String {
    clean::escape_line(&path.display().to_string()).into_owned()
}

/// Loads the config file for an interactive command: an explicit path, the file of the current
/// directory if trusted, or the file of the user.
pub(super) fn load_config(
    context: &mut CommandContext,
    state_directory: &Path,
    vault: &std::sync::Arc<SecretVault>,
) -> Result<Config, CliFailure> {
    let is_explicit =
        context.config_path().is_some() || context.env.path("BOWLINE_CONFIG").is_some();
    if !is_explicit && let Some(config) = load_local_config(context, state_directory, vault)? {
        return Ok(config);
    }
    Ok(bowline_config::load_config_with(
        context.config_path(),
        &context.env,
        vault,
    )?)
}

/// Loads `./bowline.toml` if the directory is trusted, and warns otherwise.
fn load_local_config(
    context: &mut CommandContext,
    state_directory: &Path,
    vault: &std::sync::Arc<SecretVault>,
) -> Result<Option<Config>, CliFailure> {
    let file = PathBuf::from(".").join(CONFIG_FILE_NAME);
    if !file.exists() {
        return Ok(None);
    }
    let text = bowline_config::read_config_text(&file)?;
    let store = TrustStore::new(state_directory);
    let reason = match store.check_trust(Path::new("."), &text)? {
        trust::TrustStatus::Trusted => {
            let config = bowline_config::parse_config_with(&text, &file, &context.env, vault)?;
            return Ok(Some(Config {
                trust: Some(store),
                ..config
            }));
        }
        trust::TrustStatus::Changed => "it has changed since its directory was trusted",
        trust::TrustStatus::Unknown => "its directory is not trusted",
    };
    context.out.write_warning(&format!(
        "./{CONFIG_FILE_NAME} is not read: {reason}; look at it, then run `bowline trust .`, \
         or name it with --config"
    ));
    Ok(None)
}

impl From<TrustError> for CliFailure {
    fn from(error: TrustError) -> Self {
        match error {
            TrustError::State(error) => error.into(),
            TrustError::Directory { .. } | TrustError::Full => {
                Self::usage(bowline_core::error::display_chain(&error))
            }
        }
    }
}
