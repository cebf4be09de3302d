//! The keys of secrets and of the secret store.

use std::ops::Range;
use std::time::Duration;

use super::config_table::config_table;
use super::server_keys::{UnexpandedText, nested_table, parse_choice};
use super::tree_reader::TreeReader;
use crate::config_problem::ConfigProblem;
use crate::secrets::{SecretStoreKind, is_secret_name};
use crate::tree::{ConfigEntry, ConfigNode};

/// Maximum secret tables of one file.
const SECRETS_MAX: usize = 1024;

/// Minimum interval between runs of a program.
const MAX_AGE_MIN: Duration = Duration::from_secs(1);

/// The `[secrets.NAME]` section.
#[derive(Debug)]
pub(crate) struct SecretSection {
    pub(crate) name: String,
    pub(crate) span: Range<usize>,
    pub(crate) env: Option<UnexpandedText>,
    pub(crate) file: Option<UnexpandedText>,
    pub(crate) command: Option<Vec<UnexpandedText>>,
    pub(crate) every: Option<Duration>,
}

config_table! {
    /// `[secrets.NAME]`: where a secret comes from.
    pub(super) enum SecretKey {
        /// Variable with the secret.
        Env = "env" takes "the name of a variable",
        /// File with the secret.
        File = "file" takes "a path",
        /// Program that prints the secret.
        Command = "command" takes "a list of texts",
        /// Interval between runs of the program.
        Every = "every" takes "a duration",
    }
}

config_table! {
    /// `[secret_store]`: where `bowline secret` keeps secrets.
    pub(super) enum SecretStoreKey {
        /// A sealed file, or the keychain of the system.
        Kind = "kind" takes "a choice",
    }
}

pub(super) fn parse_secrets(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
) -> Vec<SecretSection> {
    let named = reader.read_named_entries(node, "secrets", SECRETS_MAX);
    named
        .iter()
        .filter_map(|named| parse_secret(reader, named, &nested_table(table_path, &named.key)))
        .collect()
}

fn parse_secret(
    reader: &mut TreeReader,
    named: &ConfigEntry,
    table_path: &str,
) -> Option<SecretSection> {
    if !is_secret_name(&named.key) {
        let message = format!("secret name `{}` cannot be used", named.key.escape_debug());
        let label = "letters, digits, `_`, `.` and `-`, at most 64, a letter or digit first";
        let problem = ConfigProblem::new(named.span.clone(), message, label);
        reader.problems.push(problem);
        return None;
    }
    let mut secret = SecretSection {
        name: named.key.clone(),
        span: named.span.clone(),
        env: None,
        file: None,
        command: None,
        every: None,
    };
    for (key, entry) in reader.read_table::<SecretKey>(&named.node, &named.key, table_path) {
        match key {
            SecretKey::Env => secret.env = reader.read_variable_names(&wrap_in_list(entry)).pop(),
            SecretKey::File => secret.file = reader.read_text(entry),
            SecretKey::Command => secret.command = Some(reader.read_texts(entry)),
            SecretKey::Every => {
                let expected = "a duration of at least a second, such as \"15m\"";
                secret.every = reader.read_parsed(entry, expected, |text| {
                    let every = crate::duration::parse_duration(text)?;
                    (every >= MAX_AGE_MIN).then_some(every)
                });
            }
        }
    }
    Some(secret)
}

/// Wraps the value of an entry in a list.
fn wrap_in_list(entry: &ConfigEntry) -> ConfigEntry {
    let mut list = entry.clone();
    list.node.value = crate::tree::ConfigValue::List(vec![entry.node.clone()]);
    list
}

pub(super) fn parse_secret_store(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
) -> SecretStoreKind {
    let mut kind = SecretStoreKind::default();
    for (SecretStoreKey::Kind, entry) in
        reader.read_table::<SecretStoreKey>(node, "secret_store", table_path)
    {
        let choices = [
            ("file", SecretStoreKind::File),
            ("keychain", SecretStoreKind::Keychain),
        ];
        kind = parse_choice(reader, entry, &choices).unwrap_or_default();
    }
    kind
}
