//! The keys that say who may do what.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use bowline_core::budget::{Allowance, BudgetRule, RateRule};
use bowline_core::policy::{Expose, Otherwise, Pattern};

use super::broker;
use super::executor;
use super::keys;
use super::reader::Reader;
use super::server::{Text, choice, inside};
use crate::conditions::Language;
use crate::config::frame::Problem;
use crate::config::name;
use crate::config::policy::{PolicyConfig, ProfileConfig, RoleConfig, WhenConfig};
use crate::config::suggest::nearest;
use crate::config::tokens::TokenLifetime;
use crate::config::tree::{Entry, Node, Value};
use crate::tokens;

/// Most roles in one file.
const ROLES_MAX: usize = 4_096;

/// Most principals in one file.
const PRINCIPALS_MAX: usize = 16_384;

/// Most contexts in one file.
const CONTEXTS_MAX: usize = 4_096;

/// Most profiles in one file.
const PROFILES_MAX: usize = 1_024;

/// Most patterns in one list.
const PATTERNS_MAX: usize = 1_024;

/// Most conditions of one role.
const CONDITIONS_MAX: usize = 256;

/// Calls in one period.
const BUDGET_CALLS: RangeInclusive<u32> = 1..=1_000_000_000;

/// Calls of a rate, and those that may be saved up.
const RATE_CALLS: RangeInclusive<u32> = 1..=1_000_000;

/// Who holds the owner token may do all, which no rule takes away.
const OWNER: &str = "owner";

/// Who calls while authentication is switched off.
const ANONYMOUS: &str = "anonymous-local";

/// What the file says of who may do what, and where.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) policy: PolicyConfig,
    /// Every pattern, the key it stands under, and where.
    pub(crate) mentions: Vec<(Arc<str>, Pattern, Range<usize>)>,
    /// The file of the allowlist document.
    pub(crate) allowlist: Option<Text>,
    /// The roles that principals are given, looked up when all roles are known.
    given: Vec<(Arc<str>, Text)>,
    /// Reads conditions.
    language: Language,
}

impl Rules {
    /// Takes the value of `key`, if it is one of these.
    pub(super) fn fill(&mut self, reader: &mut Reader, key: &str, node: &Node, place: &str) {
        match key {
            "policy" => self.standing(reader, node, place),
            "roles" => {
                for named in reader.names(node, key, ROLES_MAX) {
                    self.role(reader, named, &inside(place, &named.key));
                }
            }
            "principals" => {
                for named in reader.names(node, key, PRINCIPALS_MAX) {
                    self.principal(reader, named, &inside(place, &named.key));
                }
            }
            "tokens" => self.tokens(reader, node, place),
            "context" => {
                for named in reader.names(node, key, CONTEXTS_MAX) {
                    self.context(reader, named, &inside(place, &named.key));
                }
            }
            "profiles" => {
                for named in reader.names(node, key, PROFILES_MAX) {
                    self.profile(reader, named, &inside(place, &named.key));
                }
            }
            _ => {}
        }
    }

    /// Gives principals their roles, once all roles are known.
    pub(super) fn finish(&mut self, reader: &mut Reader) {
        for (principal, role) in std::mem::take(&mut self.given) {
            let name = role.text.trim();
            if let Some((known, _)) = self.policy.roles.get_key_value(name) {
                let known = Arc::clone(known);
                self.policy.principals.insert(principal, known);
                continue;
            }
            let shown = name.escape_debug();
            let message =
                format!("principal `{principal}` has role `{shown}`, which is not defined");
            let label = match nearest(name, self.policy.roles.keys().map(AsRef::as_ref)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "no such role".to_owned(),
            };
            let problem = Problem::new(role.span, message, label);
            let table = if name::is_label(name) { name } else { "NAME" };
            reader
                .problems
                .push(problem.help(format!("define it: [roles.{table}] allow = [...]")));
        }
    }

    fn standing(&mut self, reader: &mut Reader, node: &Node, place: &str) {
        for entry in reader.table(node, "policy", place, &keys::POLICY) {
            match entry.key.as_str() {
                "default" => {
                    let choices = [("deny", Otherwise::Deny), ("allow", Otherwise::Allow)];
                    self.policy.otherwise = choice(reader, entry, &choices).unwrap_or_default();
                }
                "allowlist" => self.allowlist = reader.text(entry),
                _ => {}
            }
        }
    }

    fn tokens(&mut self, reader: &mut Reader, node: &Node, place: &str) {
        for entry in reader.table(node, "tokens", place, &keys::TOKENS) {
            if entry.key == "lifetime" {
                let expected = TokenLifetime::EXPECTED;
                let lifetime = reader.parsed(entry, expected, TokenLifetime::parse);
                self.policy.token_lifetime = lifetime.unwrap_or_default();
            }
        }
    }

    /// Reads how much of what may be used is listed.
    pub(super) fn exposure(&mut self, reader: &mut Reader, entry: &Entry) {
        if entry.key == "favourites" {
            let rule = "gateway.favourites";
            self.policy.exposure.favourites = self.patterns(reader, entry, rule);
            return;
        }
        let choices = Expose::ALL.map(|expose| (expose.as_str(), expose));
        self.policy.exposure.expose = choice(reader, entry, &choices).unwrap_or_default();
    }

    fn role(&mut self, reader: &mut Reader, named: &Entry, place: &str) {
        if refuses_owner(reader, named) || !is_label(reader, named, "role") {
            return;
        }
        let mut role = RoleConfig::default();
        for entry in reader.table(&named.node, &named.key, place, &keys::ROLE) {
            let rule = || format!("roles.{}.{}", named.key, entry.key);
            match entry.key.as_str() {
                "allow" => role.allow = self.patterns(reader, entry, &rule()),
                "deny" => role.deny = self.patterns(reader, entry, &rule()),
                "when" => role.when = self.conditions(reader, entry, place, &rule()),
                "budget" => budget(reader, entry, place, &mut role.allowance),
                "rate" => rate(reader, entry, place, &mut role.allowance),
                _ => {}
            }
        }
        self.policy.roles.insert(named.key.as_str().into(), role);
    }

    fn conditions(
        &mut self,
        reader: &mut Reader,
        entry: &Entry,
        place: &str,
        rule: &str,
    ) -> Vec<WhenConfig> {
        let Value::List(items) = &entry.node.value else {
            reader.wrong_kind(
                entry,
                "a list such as [{ on = \"server.tool\", if = \"...\" }]",
            );
            return Vec::new();
        };
        if let Some(over) = items.get(CONDITIONS_MAX) {
            let message = "`when` has too many entries";
            let label = format!("more than {CONDITIONS_MAX}");
            let problem = Problem::new(over.span.clone(), message, label);
            reader.problems.push(problem);
            return Vec::new();
        }
        let place = inside(place, "when");
        let each = items.iter();
        each.filter_map(|item| self.condition(reader, entry, item, (&place, rule)))
            .collect()
    }

    fn condition(
        &mut self,
        reader: &mut Reader,
        entry: &Entry,
        item: &Node,
        (place, rule): (&str, &str),
    ) -> Option<WhenConfig> {
        let (mut on, mut condition) = (None, None);
        let entries = reader.table(item, "when", place, &keys::WHEN);
        for inner in entries {
            let text = reader.text(inner);
            match (inner.key.as_str(), text) {
                ("on", Some(text)) => {
                    on = pattern(reader, &text).inspect(|pattern| {
                        self.mentions
                            .push((rule.into(), pattern.clone(), text.span.clone()));
                    });
                }
                ("if", Some(text)) => match self.language.read(&text.text) {
                    Ok(read) => condition = Some(Arc::new(read)),
                    Err(fault) => {
                        let message = "`if` is no condition";
                        let problem = Problem::new(text.span, message, fault.to_string());
                        let help = "for instance if = \"args.path.startsWith('/srv/')\"";
                        reader.problems.push(problem.help(help));
                    }
                },
                _ => {}
            }
        }
        let within = Entry {
            span: item.span.clone(),
            ..entry.clone()
        };
        needs(reader, &within, entries, &["on", "if"]);
        Some(WhenConfig {
            on: on?,
            condition: condition?,
        })
    }

    fn principal(&mut self, reader: &mut Reader, named: &Entry, place: &str) {
        if refuses_owner(reader, named) || !is_principal(reader, named) {
            return;
        }
        let (mut role, mut peer, mut joins, mut is_peer) = (None, None, None, None);
        for entry in reader.table(&named.node, &named.key, place, &keys::PRINCIPAL) {
            match entry.key.as_str() {
                "role" => role = Some(reader.text(entry)),
                "executors" => joins = Some(executor::rights(reader, entry)),
                "broker" => is_peer = reader.boolean(entry),
                _ => {
                    let rights = peer.get_or_insert_default();
                    broker::right(reader, entry, rights);
                }
            }
        }
        match is_peer {
            Some(true) => _ = peer.get_or_insert_default(),
            // What it may do as a peer is kept for when it is one.
            Some(false) => peer = None,
            None => {}
        }
        match role {
            Some(Some(role)) => self.given.push((named.key.as_str().into(), role)),
            // Told already, or it is about a peer.
            Some(None) => {}
            None if peer.is_some() || joins.is_some() || is_peer.is_some() => {}
            None => missing(reader, named, "role"),
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

    fn context(&mut self, reader: &mut Reader, named: &Entry, place: &str) {
        if !is_label(reader, named, "context") {
            return;
        }
        let mut hide = None;
        for entry in reader.table(&named.node, &named.key, place, &keys::CONTEXT) {
            if entry.key == "hide" {
                let rule = format!("context.{}.hide", named.key);
                hide = Some(self.patterns(reader, entry, &rule));
            }
        }
        if hide.is_none() {
            missing(reader, named, "hide");
        }
        let name: Arc<str> = named.key.as_str().into();
        self.policy.contexts.insert(name, hide.unwrap_or_default());
    }

    fn profile(&mut self, reader: &mut Reader, named: &Entry, place: &str) {
        // It is a part of an address, like a server's name.
        if !name::is_valid(&named.key) {
            let message = format!("profile name `{}` cannot be used", named.key.escape_debug());
            let label = "lower-case letters, digits and `-`, at most 32, not `-` first";
            let problem = Problem::new(named.span.clone(), message, label);
            reader.problems.push(problem);
            return;
        }
        let mut profile = ProfileConfig::default();
        for entry in reader.table(&named.node, &named.key, place, &keys::PROFILE) {
            let rule = format!("profiles.{}.{}", named.key, entry.key);
            match entry.key.as_str() {
                "allow" => profile.allow = self.patterns(reader, entry, &rule),
                "deny" => profile.deny = self.patterns(reader, entry, &rule),
                _ => {}
            }
        }
        let name: Arc<str> = named.key.as_str().into();
        self.policy.profiles.insert(name, profile);
    }

    /// Reads a list of patterns and writes down what each names, and where.
    fn patterns(&mut self, reader: &mut Reader, entry: &Entry, rule: &str) -> Vec<Pattern> {
        let texts = reader.texts(entry);
        if let Some(over) = texts.get(PATTERNS_MAX) {
            let message = format!("`{}` has too many entries", entry.key);
            let label = format!("more than {PATTERNS_MAX}");
            reader
                .problems
                .push(Problem::new(over.span.clone(), message, label));
            return Vec::new();
        }
        let rule: Arc<str> = rule.into();
        let mut patterns = Vec::with_capacity(texts.len());
        for text in texts {
            if let Some(pattern) = pattern(reader, &text) {
                self.mentions
                    .push((Arc::clone(&rule), pattern.clone(), text.span));
                patterns.push(pattern);
            }
        }
        patterns
    }
}

fn pattern(reader: &mut Reader, text: &Text) -> Option<Pattern> {
    match Pattern::parse(&text.text) {
        Ok(pattern) => Some(pattern),
        Err(why) => {
            let message = format!("`{}` names nothing", text.text.escape_debug());
            let problem = Problem::new(text.span.clone(), message, why.to_string());
            reader.problems.push(
                problem.help("write \"server.tool\", \"server.get_*\" or \"prompt:server.*\""),
            );
            None
        }
    }
}

/// The names of tools of one server; a pattern in which the server is any.
pub(super) fn tool_globs(reader: &mut Reader, entry: &Entry) -> Vec<Pattern> {
    let mut globs = Vec::new();
    for text in reader.texts(entry).into_iter().take(PATTERNS_MAX) {
        match Pattern::parse(&format!("*.{}", text.text.trim())) {
            Ok(glob) => globs.push(glob),
            Err(why) => {
                let message = format!("`{}` names no tool", text.text.escape_debug());
                let problem = Problem::new(text.span.clone(), message, why.to_string());
                reader
                    .problems
                    .push(problem.help("write names of this server's tools such as \"get_*\""));
            }
        }
    }
    globs
}

fn budget(reader: &mut Reader, entry: &Entry, place: &str, allowance: &mut Allowance) {
    let place = inside(place, "budget");
    let (mut calls, mut per) = (None, None);
    let entries = reader.table(&entry.node, "budget", &place, &keys::BUDGET);
    for inner in entries {
        match inner.key.as_str() {
            "calls" => calls = reader.count_within(inner, &BUDGET_CALLS).map(u64::from),
            "per" => per = reader.duration(inner),
            _ => {}
        }
    }
    needs(reader, entry, entries, &["calls", "per"]);
    if let (Some(calls), Some(per)) = (calls, per) {
        allowance.budget = Some(BudgetRule { calls, per });
    }
}

fn rate(reader: &mut Reader, entry: &Entry, place: &str, allowance: &mut Allowance) {
    let place = inside(place, "rate");
    let (mut calls, mut per, mut burst) = (None, None, None);
    let entries = reader.table(&entry.node, "rate", &place, &keys::RATE);
    for inner in entries {
        match inner.key.as_str() {
            "calls" => calls = reader.count_within(inner, &RATE_CALLS),
            "per" => per = reader.duration(inner),
            "burst" => burst = reader.count_within(inner, &RATE_CALLS),
            _ => {}
        }
    }
    needs(reader, entry, entries, &["calls", "per"]);
    if let (Some(calls), Some(per)) = (calls, per) {
        let burst = burst.unwrap_or(calls);
        allowance.rate = Some(RateRule { calls, per, burst });
    }
}

/// Writes down which of `keys` a table lacks.
fn needs(reader: &mut Reader, entry: &Entry, entries: &[Entry], keys: &[&str]) {
    let lacks = |key: &&&str| !entries.iter().any(|inner| inner.key == **key);
    if let Some(key) = keys.iter().find(lacks) {
        missing(reader, entry, key);
    }
}

fn missing(reader: &mut Reader, entry: &Entry, key: &str) {
    let message = format!("`{}` has no `{key}`", entry.key.escape_debug());
    let label = format!("`{key}` is missing");
    reader
        .problems
        .push(Problem::new(entry.span.clone(), message, label));
}

fn refuses_owner(reader: &mut Reader, named: &Entry) -> bool {
    if named.key != OWNER {
        return false;
    }
    let message = "`owner` cannot be given rules";
    let problem = Problem::new(named.span.clone(), message, "whoever holds it may do all");
    reader
        .problems
        .push(problem.help("make a token for somebody else: bowline token create"));
    true
}

/// Whether a token can prove it, or it is who needs none.
fn is_principal(reader: &mut Reader, named: &Entry) -> bool {
    let good = tokens::is_principal(&named.key) || named.key == ANONYMOUS;
    if !good {
        let name = named.key.escape_debug();
        let message = format!("principal name `{name}` cannot be used");
        let label = "lower-case letters, digits and `.`, `_`, `-`, at most 64";
        reader
            .problems
            .push(Problem::new(named.span.clone(), message, label));
    }
    good
}

fn is_label(reader: &mut Reader, named: &Entry, what: &str) -> bool {
    let good = name::is_label(&named.key);
    if !good {
        let message = format!("{what} name `{}` cannot be used", named.key.escape_debug());
        let label = "1 to 128 letters, digits and `-`, `_`, `.`, `@`, `+`";
        reader
            .problems
            .push(Problem::new(named.span.clone(), message, label));
    }
    good
}
