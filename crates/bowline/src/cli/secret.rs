//! `secret`: stores, lists and removes secrets. Values are never printed.

mod prompt;

use serde_json::json;

use super::args::SecretCommand;
use super::failure::{CliExit, CliFailure};
use super::table::format_table;
use super::{CommandContext, clean};
use bowline_config::ConfigError;
use bowline_config::secrets::secret_store::{self, SecretStore};
use bowline_config::secrets::{
    SecretOrigin, SecretStoreKind, SecretsConfig, is_secret_name, is_valid_value,
};
use bowline_config::state::{self, StateDir};

pub(super) fn run(
    command: &SecretCommand,
    context: &mut CommandContext,
) -> Result<CliExit, CliFailure> {
    let directory = state::locate_state_dir(context.global.state.as_deref(), &context.env)?;
    let store = SecretStore::in_directory(&directory);
    let usage = SecretUsage::load(context)?;
    match command {
        SecretCommand::Set { name } => set_secret(name, &usage, &store, context)?,
        SecretCommand::Ls => list_secrets(&usage, &store, context)?,
        SecretCommand::Rm { name } => remove_secret(name, &usage, &store, context)?,
    }
    Ok(CliExit::Ok)
}

/// The secrets section of the config file.
#[derive(Default)]
struct SecretUsage {
    config: SecretsConfig,
    /// Pairs of secret and server.
    uses: Vec<(String, String)>,
}

impl SecretUsage {
    fn load(context: &CommandContext) -> Result<Self, CliFailure> {
        match bowline_config::load_secrets_config(context.config_path(), &context.env) {
            Ok((config, uses)) => Ok(Self { config, uses }),
            // Secrets may exist before the file.
            Err(ConfigError::NotFound { .. }) if context.config_path().is_none() => {
                Ok(Self::default())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn users_of(&self, name: &str) -> Vec<&str> {
        let uses = self.uses.iter().filter(|(used, _)| used == name);
        uses.map(|(_, server)| server.as_str()).collect()
    }
}

fn set_secret(
    name: &str,
    usage: &SecretUsage,
    store: &SecretStore,
    context: &mut CommandContext,
) -> Result<(), CliFailure> {
    check_storable(name, usage)?;
    let value = prompt::read_secret_value(name)?;
    if !is_valid_value(&value) {
        return Err(CliFailure::usage(
            "a secret is a text of 1 byte to 64 KiB without NUL; nothing was changed",
        ));
    }
    let (state, kind) = (StateDir::open(store_directory(store))?, usage.config.store);
    store.set_secret(&state, name, value, kind, &context.env)?;
    let origin = SecretOrigin::Store(kind).describe();
    let (path, users) = (store.path().display().to_string(), usage.users_of(name));
    let result = json!({"v": 1, "name": name, "from": origin, "path": path, "used_by": users});
    context.out.write_result(&result, |out| {
        let location = match kind {
            SecretStoreKind::File => path.clone(),
            SecretStoreKind::Keychain => "the keychain".to_owned(),
        };
        out.write_line(&format!("set {name} in {location}"))
    })?;
    context.out.write_note(&match users.as_slice() {
        [] => format!("  use it: headers = {{ Authorization = \"Bearer ${{secret:{name}}}\" }}"),
        users => format!(
            "  used by {}; a running gateway takes it up by itself",
            users.join(", ")
        ),
    });
    context
        .out
        .write_note(&format!("  undo: bowline secret rm {name}"));
    Ok(())
}

fn remove_secret(
    name: &str,
    usage: &SecretUsage,
    store: &SecretStore,
    context: &mut CommandContext,
) -> Result<(), CliFailure> {
    check_storable(name, usage)?;
    let state = StateDir::open(store_directory(store))?;
    if !store.remove_secret(&state, name, &context.env)? {
        let failure = CliFailure::new(
            CliExit::Usage,
            "not_set",
            format!("no secret named `{name}`"),
        );
        return Err(failure.with_hint("bowline secret ls shows those that are set"));
    }
    let (path, users) = (store.path().display().to_string(), usage.users_of(name));
    let result = json!({"v": 1, "name": name, "path": path, "used_by": users});
    context.out.write_result(&result, |out| {
        out.write_line(&format!("removed {name} from {path}"))
    })?;
    if !users.is_empty() {
        let users = users.join(", ");
        context
            .out
            .write_warning(&format!("{users} cannot run without it"));
    }
    context
        .out
        .write_note(&format!("  undo: bowline secret set {name}"));
    Ok(())
}

/// Checks a name for the store: a secret with a table of its own has another origin.
fn check_storable(name: &str, usage: &SecretUsage) -> Result<(), CliFailure> {
    if !is_secret_name(name) {
        let message = format!("`{}` is no name of a secret", clean::escape_line(name));
        let hint = "letters, digits, `_`, `.` and `-`, at most 64, a letter or digit first";
        return Err(CliFailure::usage(message).with_hint(hint));
    }
    match usage.config.named.get(name) {
        None => Ok(()),
        Some(origin) => {
            let message = format!(
                "`{name}` is not in the store: it comes from {}",
                origin.describe()
            );
            let hint = format!("change it there, or remove [secrets.{name}] from the config file");
            Err(CliFailure::usage(message).with_hint(hint))
        }
    }
}

fn list_secrets(
    usage: &SecretUsage,
    store: &SecretStore,
    context: &mut CommandContext,
) -> Result<(), CliFailure> {
    let stored = store.list_names()?;
    let named = usage.config.named.iter();
    let mut all: Vec<(&str, SecretOrigin, bool)> = named
        .map(|(name, origin)| (name.as_str(), origin.clone(), true))
        .collect();
    let unnamed = stored
        .iter()
        .filter(|(name, _)| !usage.config.named.contains_key(name));
    all.extend(unnamed.map(|(name, kind)| (name.as_str(), SecretOrigin::Store(*kind), true)));
    for (name, _) in &usage.uses {
        if !all.iter().any(|(listed, _, _)| listed == name) {
            all.push((name, SecretOrigin::Store(usage.config.store), false));
        }
    }
    all.sort_by_key(|(name, _, _)| *name);
    let secrets: Vec<_> = all
        .iter()
        .map(|(name, origin, is_set)| {
            json!({
                "name": name,
                "from": origin.describe(),
                "set": is_set,
                "used_by": usage.users_of(name),
            })
        })
        .collect();
    let result = json!({"v": 1, "path": store.path(), "secrets": secrets});
    context.out.write_result(&result, |out| {
        if all.is_empty() {
            out.write_note("no secrets; put one away: bowline secret set NAME");
            return Ok(());
        }
        let rows: Vec<_> = all
            .iter()
            .map(|(name, origin, is_set)| {
                let from = match is_set {
                    true => origin.describe(),
                    false => format!("not set: bowline secret set {name}"),
                };
                [(*name).to_owned(), from, usage.users_of(name).join(", ")]
            })
            .collect();
        out.write_line(&format_table(["NAME", "FROM", "USED BY"], &rows))
    })
}

fn store_directory(store: &SecretStore) -> std::path::PathBuf {
    let directory = store.path().parent();
    directory.map(std::path::Path::to_owned).unwrap_or_default()
}

impl From<secret_store::SecretStoreError> for CliFailure {
    fn from(error: secret_store::SecretStoreError) -> Self {
        match error {
            secret_store::SecretStoreError::State(error) => error.into(),
            secret_store::SecretStoreError::Keychain(ref cause) => {
                let cause = format!("cause: {}", clean::escape_line(&cause.to_string()));
                Self::unexpected(error.to_string())
                    .with_hint(cause)
                    .with_hint("or keep secrets in a private file: [secret_store] kind = \"file\"")
            }
            secret_store::SecretStoreError::Full => Self::usage(error.to_string()),
        }
    }
}
