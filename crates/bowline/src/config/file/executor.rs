//! The keys that say which executors are dialled, and what this machine does where it is one.

use std::ops::Range;

use bowline_core::egress::{RULES_MAX, Rule};
use bowline_core::policy::Pattern;

use super::broker::{self, Said};
use super::keys;
use super::reader::Reader;
use super::server::{Text, choice, inside};
use crate::config::executor::{PROTOCOLS, Protocol};
use crate::config::frame::Problem;
use crate::config::name;
use crate::config::tree::{Entry, Node};
use crate::secrets;

/// Executors that one gateway dials.
const EXECUTORS_MAX: usize = 256;

/// Servers that are told apart by what they may reach.
const SERVERS_MAX: usize = 1_024;

/// Secrets that an executor has.
const SECRETS_MAX: usize = 1_024;

/// One executor that is dialled, as written.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) name: String,
    pub(crate) span: Range<usize>,
    pub(crate) url: Option<Text>,
    pub(crate) protocol: Protocol,
    pub(crate) token: Option<Text>,
}

/// What this machine does as an executor, as written.
#[derive(Debug, Default)]
pub(crate) struct Servant {
    /// What all servers may reach.
    pub(crate) allow: Vec<Rule>,
    /// What single servers may reach as well.
    pub(crate) servers: Vec<(String, Vec<Rule>)>,
    pub(crate) secrets: Vec<Held>,
}

/// A secret that it fills in, as written.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) name: String,
    pub(crate) value: Option<Text>,
    /// Where it may be sent, and nowhere else.
    pub(crate) to: Vec<Rule>,
}

/// Reads `executors`.
pub(super) fn all(reader: &mut Reader, node: &Node, place: &str) -> Vec<Executor> {
    let mut all = Vec::new();
    for named in reader.names(node, "executors", EXECUTORS_MAX) {
        if !is_name(reader, named, "executor") {
            continue;
        }
        let mut one = Executor {
            name: named.key.clone(),
            span: named.span.clone(),
            url: None,
            protocol: Protocol::default(),
            token: None,
        };
        let place = inside(place, &named.key);
        for entry in reader.table(&named.node, &named.key, &place, &keys::EXECUTORS) {
            match entry.key.as_str() {
                "url" => one.url = reader.text(entry),
                "protocol" => {
                    let choices = PROTOCOLS.map(|protocol| (protocol.as_str(), protocol));
                    one.protocol = choice(reader, entry, &choices).unwrap_or_default();
                }
                "token" => one.token = reader.text(entry),
                _ => {}
            }
        }
        all.push(one);
    }
    all
}

/// Reads `executor`.
pub(super) fn own(reader: &mut Reader, node: &Node, place: &str) -> Servant {
    let mut servant = Servant::default();
    for entry in reader.table(node, "executor", place, &keys::EXECUTOR) {
        let place = inside(place, &entry.key);
        match entry.key.as_str() {
            "allow" => servant.allow = places(reader, entry),
            "servers" => {
                for named in reader.names(&entry.node, "servers", SERVERS_MAX) {
                    servant.servers.extend(server(reader, named, &place));
                }
            }
            "secrets" => {
                for named in reader.names(&entry.node, "secrets", SECRETS_MAX) {
                    servant.secrets.extend(secret(reader, named, &place));
                }
            }
            _ => {}
        }
    }
    servant
}

fn server(reader: &mut Reader, named: &Entry, place: &str) -> Option<(String, Vec<Rule>)> {
    if !is_name(reader, named, "server") {
        return None;
    }
    let (mut allow, place) = (Vec::new(), inside(place, &named.key));
    for entry in reader.table(&named.node, &named.key, &place, &keys::EXECUTOR_SERVER) {
        if entry.key == "allow" {
            allow = places(reader, entry);
        }
    }
    Some((named.key.clone(), allow))
}

fn secret(reader: &mut Reader, named: &Entry, place: &str) -> Option<Held> {
    if !secrets::is_name(&named.key) {
        let message = format!("secret name `{}` cannot be used", named.key.escape_debug());
        let label = "letters, digits and `.`, `_`, `-`";
        let problem = Problem::new(named.span.clone(), message, label);
        reader.problems.push(problem);
        return None;
    }
    let mut held = Held {
        name: named.key.clone(),
        value: None,
        to: Vec::new(),
    };
    let place = inside(place, &named.key);
    let entries = reader.table(&named.node, &named.key, &place, &keys::EXECUTOR_SECRET);
    for entry in entries {
        match entry.key.as_str() {
            "value" => held.value = reader.text(entry),
            "to" => held.to = places(reader, entry),
            _ => {}
        }
    }
    for (key, help) in [
        ("value", "for instance value = \"${file:token}\""),
        (
            "to",
            "name where it may be sent, for instance to = [\"tracker.example:443\"]",
        ),
    ] {
        if !entries.iter().any(|entry| entry.key == key) {
            let message = format!("secret `{}` has no `{key}`", named.key);
            let problem = Problem::new(named.span.clone(), message, format!("`{key}` is missing"));
            reader.problems.push(problem.help(help));
        }
    }
    Some(held)
}

fn places(reader: &mut Reader, entry: &Entry) -> Vec<Rule> {
    let texts = reader.texts(entry);
    if let Some(over) = texts.get(RULES_MAX) {
        let message = format!("`{}` has too many entries", entry.key);
        let label = format!("more than {RULES_MAX}");
        let problem = Problem::new(over.span.clone(), message, label);
        reader.problems.push(problem);
        return Vec::new();
    }
    let mut rules = Vec::with_capacity(texts.len());
    for Text { text, span } in texts {
        match Rule::parse(&text) {
            Ok(rule) => rules.push(rule),
            Err(error) => {
                let message = format!("`{}` names no place", text.escape_debug());
                let problem = Problem::new(span, message, error.to_string());
                let help = "for instance \"tracker.example:443\" or \"10.1.0.0/16:*\"";
                reader.problems.push(problem.help(help));
            }
        }
    }
    rules
}

const JOINS: Said = Said {
    what: "names no executor",
    label: "the name of an executor, with `*` for any part of it",
    help: "write names of executors such as \"office\" or \"lab-*\"",
};

/// Reads under which names a principal may join.
pub(super) fn rights(reader: &mut Reader, entry: &Entry) -> Vec<Pattern> {
    broker::list(reader, entry, &JOINS, broker::servers)
}

fn is_name(reader: &mut Reader, named: &Entry, what: &str) -> bool {
    let good = name::is_valid(&named.key);
    if !good {
        let message = format!("{what} name `{}` cannot be used", named.key.escape_debug());
        let label = "lower-case letters, digits and `-`, at most 32, not `-` first";
        let problem = Problem::new(named.span.clone(), message, label);
        let slug = name::slug(&named.key);
        let help = format!("rename it to `{slug}`");
        reader.problems.push(problem.help(help));
    }
    good
}
