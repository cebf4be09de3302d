//! The tables that say where secrets come from.

use std::ops::Range;
use std::time::Duration;

use super::keys;
use super::reader::Reader;
use super::server::{Text, choice, inside};
use crate::config::frame::Problem;
use crate::config::tree::{Entry, Node};
use crate::secrets::{StoreKind, is_name};

/// Most tables of secrets in one file.
const SECRETS_MAX: usize = 1024;

/// The shortest time between two runs of a program.
const EVERY_MIN: Duration = Duration::from_secs(1);

/// `[secrets.NAME]` as written.
#[derive(Debug)]
pub(crate) struct Secret {
    pub(crate) name: String,
    pub(crate) span: Range<usize>,
    pub(crate) env: Option<Text>,
    pub(crate) file: Option<Text>,
    pub(crate) command: Option<Vec<Text>>,
    pub(crate) every: Option<Duration>,
}

pub(super) fn fill(reader: &mut Reader, node: &Node, place: &str) -> Vec<Secret> {
    let named = reader.names(node, "secrets", SECRETS_MAX);
    named
        .iter()
        .filter_map(|named| one(reader, named, &inside(place, &named.key)))
        .collect()
}

fn one(reader: &mut Reader, named: &Entry, place: &str) -> Option<Secret> {
    if !is_name(&named.key) {
        let message = format!("secret name `{}` cannot be used", named.key.escape_debug());
        let label = "letters, digits, `_`, `.` and `-`, at most 64, a letter or digit first";
        let problem = Problem::new(named.span.clone(), message, label);
        reader.problems.push(problem);
        return None;
    }
    let mut secret = Secret {
        name: named.key.clone(),
        span: named.span.clone(),
        env: None,
        file: None,
        command: None,
        every: None,
    };
    for entry in reader.table(&named.node, &named.key, place, &keys::SECRET) {
        match entry.key.as_str() {
            "env" => secret.env = reader.names_of_variables(&alone(entry)).pop(),
            "file" => secret.file = reader.text(entry),
            "command" => secret.command = Some(reader.texts(entry)),
            "every" => {
                let expected = "a duration of at least a second, such as \"15m\"";
                secret.every = reader.parsed(entry, expected, |text| {
                    let every = crate::config::duration::parse(text)?;
                    (every >= EVERY_MIN).then_some(every)
                });
            }
            _ => {}
        }
    }
    Some(secret)
}

/// The same entry with its text in a list.
fn alone(entry: &Entry) -> Entry {
    let mut list = entry.clone();
    list.node.value = crate::config::tree::Value::List(vec![entry.node.clone()]);
    list
}

pub(super) fn store(reader: &mut Reader, node: &Node, place: &str) -> StoreKind {
    let mut kind = StoreKind::default();
    for entry in reader.table(node, "secret_store", place, &keys::SECRET_STORE) {
        if entry.key == "kind" {
            let choices = [("file", StoreKind::File), ("keychain", StoreKind::Keychain)];
            kind = choice(reader, entry, &choices).unwrap_or_default();
        }
    }
    kind
}
