//! The keys of dialled executors, and of this machine as an executor.

use std::ops::Range;

use bowline_core::egress::{EgressRule, RULES_MAX};
use bowline_core::policy::FeaturePattern;

use super::broker_keys::{self, ListWording};
use super::config_table::{TableKey, config_table};
use super::server_keys::{UnexpandedText, nested_table, parse_choice};
use super::tree_reader::TreeReader;
use crate::config_names;
use crate::config_problem::ConfigProblem;
use crate::executor_config::{ExecutorProtocol, PROTOCOLS};
use crate::secrets;
use crate::tree::{ConfigEntry, ConfigNode};

/// Maximum executors dialled by a gateway.
const EXECUTORS_MAX: usize = 256;

/// Maximum servers with separate destinations.
const SERVERS_MAX: usize = 1_024;

/// Maximum secrets of an executor.
const SECRETS_MAX: usize = 1_024;

/// The section of a dialled executor.
#[derive(Debug)]
pub(crate) struct ExecutorSection {
    pub(crate) name: String,
    pub(crate) span: Range<usize>,
    pub(crate) url: Option<UnexpandedText>,
    pub(crate) protocol: ExecutorProtocol,
    pub(crate) token: Option<UnexpandedText>,
}

/// The section of this machine as an executor.
#[derive(Debug, Default)]
pub(crate) struct ExecutorOfferSection {
    /// Destinations of all servers.
    pub(crate) allow: Vec<EgressRule>,
    /// Additional destinations of single servers.
    pub(crate) servers: Vec<(String, Vec<EgressRule>)>,
    pub(crate) secrets: Vec<OfferedSecretSection>,
}

/// The section of an offered secret.
#[derive(Debug)]
pub(crate) struct OfferedSecretSection {
    pub(crate) name: String,
    pub(crate) value: Option<UnexpandedText>,
    /// The only permitted destinations.
    pub(crate) to: Vec<EgressRule>,
}

config_table! {
    /// `[executors.NAME]`: an executor that the gateway dials.
    pub(super) enum ExecutorsKey {
        /// Address of the executor.
        Url = "url" takes "an address",
        /// Protocol of the executor.
        Protocol = "protocol" takes "a choice",
        /// Credential for the executor.
        Token = "token" takes "a text",
    }
}

config_table! {
    /// `[executor]`: this machine as an executor.
    pub(super) enum ExecutorKey {
        /// Destinations of all servers.
        Allow = "allow" takes "a list of destinations",
        /// Destinations of single servers.
        Servers = "servers" takes "tables by name",
        /// Secrets that requests may name.
        Secrets = "secrets" takes "tables by name",
    }
}

config_table! {
    /// `[executor.servers.NAME]`: a server of this executor.
    pub(super) enum ExecutorServerKey {
        /// Further destinations of the server.
        Allow = "allow" takes "a list of destinations",
    }
}

config_table! {
    /// `[executor.secrets.NAME]`: a secret of this executor.
    pub(super) enum ExecutorSecretKey {
        /// The secret.
        Value = "value" takes "a text",
        /// Where the secret may be sent.
        To = "to" takes "a list of destinations",
    }
}

/// Parses `executors`.
pub(super) fn parse_executors(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
) -> Vec<ExecutorSection> {
    let mut sections = Vec::new();
    for named in reader.read_named_entries(node, "executors", EXECUTORS_MAX) {
        if !check_name(reader, named, "executor") {
            continue;
        }
        let mut section = ExecutorSection {
            name: named.key.clone(),
            span: named.span.clone(),
            url: None,
            protocol: ExecutorProtocol::default(),
            token: None,
        };
        let table_path = nested_table(table_path, &named.key);
        for (key, entry) in reader.read_table::<ExecutorsKey>(&named.node, &named.key, &table_path)
        {
            match key {
                ExecutorsKey::Url => section.url = reader.read_text(entry),
                ExecutorsKey::Protocol => {
                    let choices = PROTOCOLS.map(|protocol| (protocol.as_str(), protocol));
                    section.protocol = parse_choice(reader, entry, &choices).unwrap_or_default();
                }
                ExecutorsKey::Token => section.token = reader.read_text(entry),
            }
        }
        sections.push(section);
    }
    sections
}

/// Parses `executor`.
pub(super) fn parse_executor_offer(
    reader: &mut TreeReader,
    node: &ConfigNode,
    table_path: &str,
) -> ExecutorOfferSection {
    let mut offer = ExecutorOfferSection::default();
    for (key, entry) in reader.read_table::<ExecutorKey>(node, "executor", table_path) {
        let table_path = nested_table(table_path, &entry.key);
        match key {
            ExecutorKey::Allow => offer.allow = parse_destinations(reader, entry),
            ExecutorKey::Servers => {
                for named in reader.read_named_entries(&entry.node, "servers", SERVERS_MAX) {
                    offer
                        .servers
                        .extend(parse_server_egress(reader, named, &table_path));
                }
            }
            ExecutorKey::Secrets => {
                for named in reader.read_named_entries(&entry.node, "secrets", SECRETS_MAX) {
                    offer
                        .secrets
                        .extend(parse_offered_secret(reader, named, &table_path));
                }
            }
        }
    }
    offer
}

fn parse_server_egress(
    reader: &mut TreeReader,
    named: &ConfigEntry,
    table_path: &str,
) -> Option<(String, Vec<EgressRule>)> {
    if !check_name(reader, named, "server") {
        return None;
    }
    let (mut allow, table_path) = (Vec::new(), nested_table(table_path, &named.key));
    for (ExecutorServerKey::Allow, entry) in
        reader.read_table::<ExecutorServerKey>(&named.node, &named.key, &table_path)
    {
        allow = parse_destinations(reader, entry);
    }
    Some((named.key.clone(), allow))
}

fn parse_offered_secret(
    reader: &mut TreeReader,
    named: &ConfigEntry,
    table_path: &str,
) -> Option<OfferedSecretSection> {
    if !secrets::is_secret_name(&named.key) {
        let message = format!("secret name `{}` cannot be used", named.key.escape_debug());
        let label = "letters, digits and `.`, `_`, `-`";
        let problem = ConfigProblem::new(named.span.clone(), message, label);
        reader.problems.push(problem);
        return None;
    }
    let mut section = OfferedSecretSection {
        name: named.key.clone(),
        value: None,
        to: Vec::new(),
    };
    let table_path = nested_table(table_path, &named.key);
    let entries = reader.read_table(&named.node, &named.key, &table_path);
    for (key, entry) in &entries {
        match key {
            ExecutorSecretKey::Value => section.value = reader.read_text(entry),
            ExecutorSecretKey::To => section.to = parse_destinations(reader, entry),
        }
    }
    for (key, help) in [
        (
            ExecutorSecretKey::Value,
            "for instance value = \"${file:token}\"",
        ),
        (
            ExecutorSecretKey::To,
            "name where it may be sent, for instance to = [\"tracker.example:443\"]",
        ),
    ] {
        if !entries.iter().any(|(present, _)| *present == key) {
            let key = key.name();
            let message = format!("secret `{}` has no `{key}`", named.key);
            let problem =
                ConfigProblem::new(named.span.clone(), message, format!("`{key}` is missing"));
            reader.problems.push(problem.with_help(help));
        }
    }
    Some(section)
}

fn parse_destinations(reader: &mut TreeReader, entry: &ConfigEntry) -> Vec<EgressRule> {
    let texts = reader.read_texts(entry);
    if let Some(excess) = texts.get(RULES_MAX) {
        let message = format!("`{}` has too many entries", entry.key);
        let label = format!("more than {RULES_MAX}");
        let problem = ConfigProblem::new(excess.span.clone(), message, label);
        reader.problems.push(problem);
        return Vec::new();
    }
    let mut rules = Vec::with_capacity(texts.len());
    for UnexpandedText { text, span } in texts {
        match EgressRule::parse(&text) {
            Ok(rule) => rules.push(rule),
            Err(error) => {
                let message = format!("`{}` names no place", text.escape_debug());
                let problem = ConfigProblem::new(span, message, error.to_string());
                let help = "for instance \"tracker.example:443\" or \"10.1.0.0/16:*\"";
                reader.problems.push(problem.with_help(help));
            }
        }
    }
    rules
}

const JOINS_WORDING: ListWording = ListWording {
    problem: "names no executor",
    label: "the name of an executor, with `*` for any part of it",
    help: "write names of executors such as \"office\" or \"lab-*\"",
};

/// Parses the executor names permitted for a principal.
pub(super) fn parse_join_names(
    reader: &mut TreeReader,
    entry: &ConfigEntry,
) -> Vec<FeaturePattern> {
    broker_keys::parse_list(
        reader,
        entry,
        &JOINS_WORDING,
        broker_keys::parse_server_pattern,
    )
}

fn check_name(reader: &mut TreeReader, named: &ConfigEntry, kind: &str) -> bool {
    let is_valid = config_names::is_valid(&named.key);
    if !is_valid {
        let message = format!("{kind} name `{}` cannot be used", named.key.escape_debug());
        let label = "lower-case letters, digits and `-`, at most 32, not `-` first";
        let problem = ConfigProblem::new(named.span.clone(), message, label);
        let slug = config_names::to_slug(&named.key);
        let help = format!("rename it to `{slug}`");
        reader.problems.push(problem.with_help(help));
    }
    is_valid
}
