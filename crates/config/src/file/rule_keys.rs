//! The policy keys: roles, principals, tokens, contexts and profiles.

mod allowance_keys;
mod rule_tables;

use std::ops::Range;
use std::sync::Arc;

use bowline_core::policy::{DefaultAction, ExposeMode, FeaturePattern};

pub(super) use self::allowance_keys::{BudgetKey, RateKey};
use self::allowance_keys::{parse_budget, parse_rate};
pub(super) use self::rule_tables::{
    ContextKey, PolicyKey, PrincipalKey, ProfileKey, RoleKey, TokensKey, WhenKey,
};
use super::broker_keys;
use super::config_table::TableKey;
use super::executor_keys;
use super::section_tables::TopKey;
use super::server_keys::{UnexpandedText, nested_table, parse_choice};
use super::tree_reader::TreeReader;
use crate::config_names;
use crate::config_problem::ConfigProblem;
use crate::policy_config::{PolicyConfig, ProfileConfig, RoleConfig, WhenConfig};
use crate::principal_name::is_principal_name;
use crate::token_config::TokenLifetime;
use crate::tree::{ConfigEntry, ConfigNode, ConfigValue};
use bowline_core::suggest::nearest_match;
use bowline_host::conditions::CelLanguage;

/// Maximum roles of a file.
const ROLES_MAX: usize = 4_096;

/// Maximum principals of a file.
const PRINCIPALS_MAX: usize = 16_384;

/// Maximum contexts of a file.
const CONTEXTS_MAX: usize = 4_096;

/// Maximum profiles of a file.
const PROFILES_MAX: usize = 1_024;

/// Maximum patterns of a list.
const PATTERNS_MAX: usize = 1_024;

/// Maximum conditions of a role.
const CONDITIONS_MAX: usize = 256;

/// Principal of the owner token. No rule can restrict the owner.
const OWNER_PRINCIPAL: &str = "owner";

/// Principal of callers while authentication is off.
const ANONYMOUS_PRINCIPAL: &str = "anonymous-local";

/// The policy sections, with spans.
#[derive(Debug, Default)]
pub(crate) struct RuleSections {
    pub(crate) policy: PolicyConfig,
    /// Every pattern with key and span.
    pub(crate) mentions: Vec<(Arc<str>, FeaturePattern, Range<usize>)>,
    /// Path of the allowlist document.
    pub(crate) allowlist: Option<UnexpandedText>,
    /// Roles assigned to principals, resolved once all roles are known.
    assigned_roles: Vec<(Arc<str>, UnexpandedText)>,
    /// Parser of conditions.
    language: CelLanguage,
}

impl RuleSections {
    /// Parses the value of a policy key; ignores any other key.
    pub(super) fn parse_policy_key(
        &mut self,
        reader: &mut TreeReader,
        key: TopKey,
        node: &ConfigNode,
        table_path: &str,
    ) {
        let name = key.name();
        match key {
            TopKey::Policy => self.parse_policy(reader, node, table_path),
            TopKey::Roles => {
                for named in reader.read_named_entries(node, name, ROLES_MAX) {
                    self.parse_role(reader, named, &nested_table(table_path, &named.key));
                }
            }
            TopKey::Principals => {
                for named in reader.read_named_entries(node, name, PRINCIPALS_MAX) {
                    self.parse_principal(reader, named, &nested_table(table_path, &named.key));
                }
            }
            TopKey::Tokens => self.parse_tokens(reader, node, table_path),
            TopKey::Context => {
                for named in reader.read_named_entries(node, name, CONTEXTS_MAX) {
                    self.parse_context(reader, named, &nested_table(table_path, &named.key));
                }
            }
            TopKey::Profiles => {
                for named in reader.read_named_entries(node, name, PROFILES_MAX) {
                    self.parse_profile(reader, named, &nested_table(table_path, &named.key));
                }
            }
            _ => {}
        }
    }

    /// Assigns roles to principals, once all roles are known.
    pub(super) fn assign_roles(&mut self, reader: &mut TreeReader) {
        for (principal, role) in std::mem::take(&mut self.assigned_roles) {
            let name = role.text.trim();
            if let Some((role_name, _)) = self.policy.roles.get_key_value(name) {
                let role_name = Arc::clone(role_name);
                self.policy.principals.insert(principal, role_name);
                continue;
            }
            let escaped = name.escape_debug();
            let message =
                format!("principal `{principal}` has role `{escaped}`, which is not defined");
            let label = match nearest_match(name, self.policy.roles.keys().map(AsRef::as_ref)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "no such role".to_owned(),
            };
            let problem = ConfigProblem::new(role.span, message, label);
            let table = if config_names::is_label(name) {
                name
            } else {
                "NAME"
            };
            reader
                .problems
                .push(problem.with_help(format!("define it: [roles.{table}] allow = [...]")));
        }
    }

    fn parse_policy(&mut self, reader: &mut TreeReader, node: &ConfigNode, table_path: &str) {
        for (key, entry) in reader.read_table::<PolicyKey>(node, "policy", table_path) {
            match key {
                PolicyKey::Default => {
                    let choices = [
                        ("deny", DefaultAction::Deny),
                        ("allow", DefaultAction::Allow),
                    ];
                    self.policy.default_action =
                        parse_choice(reader, entry, &choices).unwrap_or_default();
                }
                PolicyKey::Allowlist => self.allowlist = reader.read_text(entry),
            }
        }
    }

    fn parse_tokens(&mut self, reader: &mut TreeReader, node: &ConfigNode, table_path: &str) {
        for (TokensKey::Lifetime, entry) in
            reader.read_table::<TokensKey>(node, "tokens", table_path)
        {
            let expected = TokenLifetime::EXPECTED;
            let lifetime = reader.read_parsed(entry, expected, TokenLifetime::parse);
            self.policy.token_lifetime = lifetime.unwrap_or_default();
        }
    }

    /// Parses `gateway.favourites`.
    pub(super) fn parse_favourites(&mut self, reader: &mut TreeReader, entry: &ConfigEntry) {
        let rule = "gateway.favourites";
        self.policy.exposure.favourites = self.parse_patterns(reader, entry, rule);
    }

    /// Parses `gateway.expose`.
    pub(super) fn parse_exposure(&mut self, reader: &mut TreeReader, entry: &ConfigEntry) {
        let choices = ExposeMode::ALL.map(|expose| (expose.as_str(), expose));
        self.policy.exposure.expose = parse_choice(reader, entry, &choices).unwrap_or_default();
    }

    fn parse_role(&mut self, reader: &mut TreeReader, named: &ConfigEntry, table_path: &str) {
        if refuse_owner(reader, named) || !check_label(reader, named, "role") {
            return;
        }
        let mut role = RoleConfig::default();
        for (key, entry) in reader.read_table::<RoleKey>(&named.node, &named.key, table_path) {
            let rule = || format!("roles.{}.{}", named.key, entry.key);
            match key {
                RoleKey::Allow => role.allow = self.parse_patterns(reader, entry, &rule()),
                RoleKey::Deny => role.deny = self.parse_patterns(reader, entry, &rule()),
                RoleKey::When => {
                    role.when = self.parse_conditions(reader, entry, table_path, &rule())
                }
                RoleKey::Budget => parse_budget(reader, entry, table_path, &mut role.allowance),
                RoleKey::Rate => parse_rate(reader, entry, table_path, &mut role.allowance),
            }
        }
        self.policy.roles.insert(named.key.as_str().into(), role);
    }

    fn parse_conditions(
        &mut self,
        reader: &mut TreeReader,
        entry: &ConfigEntry,
        table_path: &str,
        rule: &str,
    ) -> Vec<WhenConfig> {
        let ConfigValue::List(items) = &entry.node.value else {
            reader.report_wrong_type(
                entry,
                "a list such as [{ on = \"server.tool\", if = \"...\" }]",
            );
            return Vec::new();
        };
        if let Some(excess) = items.get(CONDITIONS_MAX) {
            let message = "`when` has too many entries";
            let label = format!("more than {CONDITIONS_MAX}");
            let problem = ConfigProblem::new(excess.span.clone(), message, label);
            reader.problems.push(problem);
            return Vec::new();
        }
        let table_path = nested_table(table_path, "when");
        let each = items.iter();
        each.filter_map(|item| self.parse_condition(reader, entry, item, &table_path, rule))
            .collect()
    }

    fn parse_condition(
        &mut self,
        reader: &mut TreeReader,
        entry: &ConfigEntry,
        item: &ConfigNode,
        table_path: &str,
        rule: &str,
    ) -> Option<WhenConfig> {
        let (mut on, mut condition) = (None, None);
        let entries = reader.read_table(item, "when", table_path);
        for (key, inner) in &entries {
            let Some(text) = reader.read_text(inner) else {
                continue;
            };
            match key {
                WhenKey::On => {
                    on = parse_pattern(reader, &text).inspect(|pattern| {
                        self.mentions
                            .push((rule.into(), pattern.clone(), text.span.clone()));
                    });
                }
                WhenKey::If => match self.language.parse_condition(&text.text) {
                    Ok(read) => condition = Some(Arc::new(read)),
                    Err(fault) => {
                        let message = "`if` is no condition";
                        let problem = ConfigProblem::new(text.span, message, fault.to_string());
                        let help = "for instance if = \"args.path.startsWith('/srv/')\"";
                        reader.problems.push(problem.with_help(help));
                    }
                },
            }
        }
        let item_entry = ConfigEntry {
            span: item.span.clone(),
            ..entry.clone()
        };
        require_keys(reader, &item_entry, &entries, &[WhenKey::On, WhenKey::If]);
        Some(WhenConfig {
            on: on?,
            condition: condition?,
        })
    }

    fn parse_principal(&mut self, reader: &mut TreeReader, named: &ConfigEntry, table_path: &str) {
        if refuse_owner(reader, named) || !check_principal_name(reader, named) {
            return;
        }
        let (mut role, mut peer, mut joins, mut is_peer) = (None, None, None, None);
        for (key, entry) in reader.read_table::<PrincipalKey>(&named.node, &named.key, table_path) {
            match key {
                PrincipalKey::Role => role = Some(reader.read_text(entry)),
                PrincipalKey::Executors => {
                    joins = Some(executor_keys::parse_join_names(reader, entry))
                }
                PrincipalKey::Broker => is_peer = reader.read_boolean(entry),
                PrincipalKey::To | PrincipalKey::Kinds | PrincipalKey::Offers => {
                    let rights = peer.get_or_insert_default();
                    broker_keys::parse_peer_right(reader, key, entry, rights);
                }
            }
        }
        match is_peer {
            Some(true) => _ = peer.get_or_insert_default(),
            // An explicit `false` disables the configured peer rights.
            Some(false) => peer = None,
            None => {}
        }
        match role {
            Some(Some(role)) => self.assigned_roles.push((named.key.as_str().into(), role)),
            // Already reported.
            Some(None) => {}
            None if peer.is_some() || joins.is_some() || is_peer.is_some() => {}
            None => report_missing_key(reader, named, "role"),
        }
        if let Some(peer) = peer {
            self.policy.peers.insert(named.key.as_str().into(), peer);
        }
        if let Some(joins) = joins {
            self.policy
                .executors
                .insert(named.key.as_str().into(), joins);
        }
    }

    fn parse_context(&mut self, reader: &mut TreeReader, named: &ConfigEntry, table_path: &str) {
        if !check_label(reader, named, "context") {
            return;
        }
        let mut hide = None;
        for (ContextKey::Hide, entry) in
            reader.read_table::<ContextKey>(&named.node, &named.key, table_path)
        {
            let rule = format!("context.{}.hide", named.key);
            hide = Some(self.parse_patterns(reader, entry, &rule));
        }
        if hide.is_none() {
            report_missing_key(reader, named, "hide");
        }
        let name: Arc<str> = named.key.as_str().into();
        self.policy.contexts.insert(name, hide.unwrap_or_default());
    }

    fn parse_profile(&mut self, reader: &mut TreeReader, named: &ConfigEntry, table_path: &str) {
        // A profile name is part of a URL, like a server name.
        if !config_names::is_valid(&named.key) {
            let message = format!("profile name `{}` cannot be used", named.key.escape_debug());
            let label = "lower-case letters, digits and `-`, at most 32, not `-` first";
            let problem = ConfigProblem::new(named.span.clone(), message, label);
            reader.problems.push(problem);
            return;
        }
        let mut profile = ProfileConfig::default();
        for (key, entry) in reader.read_table::<ProfileKey>(&named.node, &named.key, table_path) {
            let rule = format!("profiles.{}.{}", named.key, entry.key);
            match key {
                ProfileKey::Allow => profile.allow = self.parse_patterns(reader, entry, &rule),
                ProfileKey::Deny => profile.deny = self.parse_patterns(reader, entry, &rule),
            }
        }
        let name: Arc<str> = named.key.as_str().into();
        self.policy.profiles.insert(name, profile);
    }

    /// Parses a list of patterns and records the span of each.
    fn parse_patterns(
        &mut self,
        reader: &mut TreeReader,
        entry: &ConfigEntry,
        rule: &str,
    ) -> Vec<FeaturePattern> {
        let texts = reader.read_texts(entry);
        if let Some(excess) = texts.get(PATTERNS_MAX) {
            let message = format!("`{}` has too many entries", entry.key);
            let label = format!("more than {PATTERNS_MAX}");
            reader
                .problems
                .push(ConfigProblem::new(excess.span.clone(), message, label));
            return Vec::new();
        }
        let rule: Arc<str> = rule.into();
        let mut patterns = Vec::with_capacity(texts.len());
        for text in texts {
            if let Some(pattern) = parse_pattern(reader, &text) {
                self.mentions
                    .push((Arc::clone(&rule), pattern.clone(), text.span));
                patterns.push(pattern);
            }
        }
        patterns
    }
}

fn parse_pattern(reader: &mut TreeReader, text: &UnexpandedText) -> Option<FeaturePattern> {
    match FeaturePattern::parse(&text.text) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            let message = format!("`{}` names nothing", text.text.escape_debug());
            let problem = ConfigProblem::new(text.span.clone(), message, error.to_string());
            reader.problems.push(
                problem.with_help("write \"server.tool\", \"server.get_*\" or \"prompt:server.*\""),
            );
            None
        }
    }
}

/// Parses tool names of a server as patterns for any server.
pub(super) fn parse_tool_patterns(
    reader: &mut TreeReader,
    entry: &ConfigEntry,
) -> Vec<FeaturePattern> {
    let mut globs = Vec::new();
    for text in reader.read_texts(entry).into_iter().take(PATTERNS_MAX) {
        match FeaturePattern::parse(&format!("*.{}", text.text.trim())) {
            Ok(glob) => globs.push(glob),
            Err(error) => {
                let message = format!("`{}` names no tool", text.text.escape_debug());
                let problem = ConfigProblem::new(text.span.clone(), message, error.to_string());
                reader.problems.push(
                    problem.with_help("write names of this server's tools such as \"get_*\""),
                );
            }
        }
    }
    globs
}

/// Reports the first of `keys` missing from a table.
fn require_keys<K: TableKey>(
    reader: &mut TreeReader,
    entry: &ConfigEntry,
    entries: &[(K, &ConfigEntry)],
    keys: &[K],
) {
    let lacks = |key: &&K| !entries.iter().any(|(present, _)| present == *key);
    if let Some(key) = keys.iter().find(lacks) {
        report_missing_key(reader, entry, key.name());
    }
}

fn report_missing_key(reader: &mut TreeReader, entry: &ConfigEntry, key: &str) {
    let message = format!("`{}` has no `{key}`", entry.key.escape_debug());
    let label = format!("`{key}` is missing");
    reader
        .problems
        .push(ConfigProblem::new(entry.span.clone(), message, label));
}

fn refuse_owner(reader: &mut TreeReader, named: &ConfigEntry) -> bool {
    if named.key != OWNER_PRINCIPAL {
        return false;
    }
    let message = "`owner` cannot be given rules";
    let problem = ConfigProblem::new(named.span.clone(), message, "whoever holds it may do all");
    reader
        .problems
        .push(problem.with_help("make a token for somebody else: bowline token create"));
    true
}

/// Checks a principal name: a valid token principal, or the anonymous principal.
fn check_principal_name(reader: &mut TreeReader, named: &ConfigEntry) -> bool {
    let is_valid = is_principal_name(&named.key) || named.key == ANONYMOUS_PRINCIPAL;
    if !is_valid {
        let name = named.key.escape_debug();
        let message = format!("principal name `{name}` cannot be used");
        let label = "lower-case letters, digits and `.`, `_`, `-`, at most 64";
        reader
            .problems
            .push(ConfigProblem::new(named.span.clone(), message, label));
    }
    is_valid
}

fn check_label(reader: &mut TreeReader, named: &ConfigEntry, kind: &str) -> bool {
    let is_valid = config_names::is_label(&named.key);
    if !is_valid {
        let message = format!("{kind} name `{}` cannot be used", named.key.escape_debug());
        let label = "1 to 128 letters, digits and `-`, `_`, `.`, `@`, `+`";
        reader
            .problems
            .push(ConfigProblem::new(named.span.clone(), message, label));
    }
    is_valid
}
