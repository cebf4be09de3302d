//! `secret`: puts secrets into the store, lists their names, takes them away. Values go in and
//! never come out.

mod prompt;

use serde_json::json;

use super::args::SecretCommand;
use super::failure::{Exit, Failure};
use super::table::table;
use super::{Context, clean};
use crate::config::{self, Error as ConfigError};
use crate::secrets::store::{self, Store};
use crate::secrets::{Origin, SecretsConfig, StoreKind, is_name, is_usable};
use crate::state::{self, State};

pub(super) fn run(command: &SecretCommand, context: &mut Context) -> Result<Exit, Failure> {
    let directory = state::locate(context.global.state.as_deref(), &context.env)?;
    let store = Store::of(&directory);
    let known = Known::read(context)?;
    match command {
        SecretCommand::Set { name } => set(name, &known, &store, context)?,
        SecretCommand::Ls => list(&known, &store, context)?,
        SecretCommand::Rm { name } => remove(name, &known, &store, context)?,
    }
    Ok(Exit::Ok)
}

/// What the config file says.
#[derive(Default)]
struct Known {
    config: SecretsConfig,
    /// Pairs of secret and server.
    uses: Vec<(String, String)>,
}

impl Known {
    fn read(context: &Context) -> Result<Self, Failure> {
        match config::secrets(context.config(), &context.env) {
            Ok((config, uses)) => Ok(Self { config, uses }),
            // Secrets can be there before the file is.
            Err(ConfigError::NotFound { .. }) if context.config().is_none() => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    fn users(&self, name: &str) -> Vec<&str> {
        let uses = self.uses.iter().filter(|(used, _)| used == name);
        uses.map(|(_, server)| server.as_str()).collect()
    }
}

fn set(name: &str, known: &Known, store: &Store, context: &mut Context) -> Result<(), Failure> {
    check(name, known)?;
    let value = prompt::value(name)?;
    if !is_usable(&value) {
        return Err(Failure::usage(
            "a secret is a text of 1 byte to 64 KiB without NUL; nothing was changed",
        ));
    }
    let (state, kind) = (State::open(directory_of(store))?, known.config.store);
    store.set(&state, (name, value), kind, &context.env)?;
    let shown = Origin::Store(kind).shown();
    let (path, users) = (store.path().display().to_string(), known.users(name));
    let told = json!({"v": 1, "name": name, "from": shown, "path": path, "used_by": users});
    context.out.result(&told, |out| {
        let place = match kind {
            StoreKind::File => path.clone(),
            StoreKind::Keychain => "the keychain".to_owned(),
        };
        out.line(&format!("set {name} in {place}"))
    })?;
    context.out.note(&match users.as_slice() {
        [] => format!("  use it: headers = {{ Authorization = \"Bearer ${{secret:{name}}}\" }}"),
        users => format!(
            "  used by {}; a running gateway takes it up by itself",
            users.join(", ")
        ),
    });
    context
        .out
        .note(&format!("  undo: bowline secret rm {name}"));
    Ok(())
}

fn remove(name: &str, known: &Known, store: &Store, context: &mut Context) -> Result<(), Failure> {
    check(name, known)?;
    let state = State::open(directory_of(store))?;
    if !store.remove(&state, name, &context.env)? {
        let failure = Failure::new(Exit::Usage, "not_set", format!("no secret named `{name}`"));
        return Err(failure.hint("bowline secret ls shows those that are set"));
    }
    let (path, users) = (store.path().display().to_string(), known.users(name));
    let told = json!({"v": 1, "name": name, "path": path, "used_by": users});
    context.out.result(&told, |out| {
        out.line(&format!("removed {name} from {path}"))
    })?;
    if !users.is_empty() {
        let users = users.join(", ");
        context
            .out
            .warning(&format!("{users} cannot run without it"));
    }
    context
        .out
        .note(&format!("  undo: bowline secret set {name}"));
    Ok(())
}

/// A name that can be set here: one with a table of its own comes from elsewhere.
fn check(name: &str, known: &Known) -> Result<(), Failure> {
    if !is_name(name) {
        let message = format!("`{}` is no name of a secret", clean::line(name));
        let hint = "letters, digits, `_`, `.` and `-`, at most 64, a letter or digit first";
        return Err(Failure::usage(message).hint(hint));
    }
    match known.config.named.get(name) {
        None => Ok(()),
        Some(origin) => {
            let message = format!(
                "`{name}` is not in the store: it comes from {}",
                origin.shown()
            );
            let hint = format!("change it there, or remove [secrets.{name}] from the config file");
            Err(Failure::usage(message).hint(hint))
        }
    }
}

fn list(known: &Known, store: &Store, context: &mut Context) -> Result<(), Failure> {
    let stored = store.names()?;
    let named = known.config.named.iter();
    let mut all: Vec<(&str, Origin, bool)> = named
        .map(|(name, origin)| (name.as_str(), origin.clone(), true))
        .collect();
    let kept = stored
        .iter()
        .filter(|(name, _)| !known.config.named.contains_key(name));
    all.extend(kept.map(|(name, kind)| (name.as_str(), Origin::Store(*kind), true)));
    for (name, _) in &known.uses {
        if !all.iter().any(|(there, _, _)| there == name) {
            all.push((name, Origin::Store(known.config.store), false));
        }
    }
    all.sort_by_key(|(name, _, _)| *name);
    let secrets: Vec<_> = all
        .iter()
        .map(|(name, origin, is_set)| {
            json!({
                "name": name,
                "from": origin.shown(),
                "set": is_set,
                "used_by": known.users(name),
            })
        })
        .collect();
    let told = json!({"v": 1, "path": store.path(), "secrets": secrets});
    context.out.result(&told, |out| {
        if all.is_empty() {
            out.note("no secrets; put one away: bowline secret set NAME");
            return Ok(());
        }
        let rows: Vec<_> = all
            .iter()
            .map(|(name, origin, is_set)| {
                let from = match is_set {
                    true => origin.shown(),
                    false => format!("not set: bowline secret set {name}"),
                };
                [(*name).to_owned(), from, known.users(name).join(", ")]
            })
            .collect();
        out.line(&table(["NAME", "FROM", "USED BY"], &rows))
    })
}

fn directory_of(store: &Store) -> std::path::PathBuf {
    let directory = store.path().parent();
    directory.map(std::path::Path::to_owned).unwrap_or_default()
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::State(error) => error.into(),
            store::Error::Keychain(ref cause) => {
                let cause = format!("cause: {}", clean::line(&cause.to_string()));
                Self::unexpected(error.to_string())
                    .hint(cause)
                    .hint("or keep secrets in a private file: [secret_store] kind = \"file\"")
            }
            store::Error::Full => Self::usage(error.to_string()),
        }
    }
}
