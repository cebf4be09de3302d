//! Random rules, as written by an operator.

use bowline_core::call::{ContextSet, EndpointScope, FeatureKind, Principal, Role};
use bowline_core::policy::{
    DefaultAction, EnabledFeatures, FeaturePattern, Policy, ProfileRules, RoleRules,
};
use fastrand::Rng;

/// A set of rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleSet {
    pub(crate) default_allows: bool,
    /// Name, allow, deny.
    pub(crate) roles: Vec<(String, Vec<String>, Vec<String>)>,
    /// Principals with their roles.
    pub(crate) assigned: Vec<(String, String)>,
    /// Name, hide.
    pub(crate) contexts: Vec<(String, Vec<String>)>,
    /// Name, allow, deny.
    pub(crate) profiles: Vec<(String, Vec<String>, Vec<String>)>,
    /// Default and items of the allowlist document.
    pub(crate) switched: Option<(bool, Vec<AllowlistSwitch>)>,
}

/// An item of the allowlist document.
type AllowlistSwitch = (FeatureKind, &'static str, String, bool);

const SERVERS: [&str; 8] = ["a", "a", "b", "files", "down", "*", "f*", "nothere"];

const NAMES: [&str; 20] = [
    "*",
    "*",
    "read_*",
    "read_a",
    "read_*e",
    "write",
    "*_a",
    "job",
    "get",
    "p1",
    "p*",
    "x:1",
    "x:*",
    "file:///srv/*",
    "file:///secret/*",
    "t:*",
    "odd*",
    "*e*",
    "seen:*",
    "shows",
];

/// Items that the allowlist document may name.
const ITEMS: [(FeatureKind, &str, &str); 10] = [
    (FeatureKind::Tool, "a", "read_a"),
    (FeatureKind::Tool, "a", "job"),
    (FeatureKind::Tool, "b", "get"),
    (FeatureKind::Tool, "b", "read_a"),
    (FeatureKind::Tool, "files", "read_file"),
    (FeatureKind::Prompt, "a", "p1"),
    (FeatureKind::Prompt, "b", "p1"),
    (FeatureKind::Resource, "a", "x:1"),
    (FeatureKind::Resource, "files", "file:///secret/a"),
    (FeatureKind::Resource, "files", "file:///srv/a"),
];

fn random_pattern(rng: &mut Rng) -> String {
    let kind = ["", "", "", "tool:", "prompt:", "resource:", "resource:"];
    let kind = rng.choice(kind).unwrap();
    let server = rng.choice(SERVERS).unwrap();
    if rng.u8(..12) == 0 {
        return format!("{kind}{server}");
    }
    format!("{kind}{server}.{}", rng.choice(NAMES).unwrap())
}

fn random_patterns(rng: &mut Rng, least: usize, most: usize) -> Vec<String> {
    (0..rng.usize(least..=most))
        .map(|_| random_pattern(rng))
        .collect()
}

impl RuleSet {
    pub(crate) fn random_rules(rng: &mut Rng) -> Self {
        let mut rules = Self {
            default_allows: rng.bool(),
            ..Self::default()
        };
        for nth in 0..4 {
            let (allow, deny) = (random_patterns(rng, 0, 7), random_patterns(rng, 0, 2));
            rules.roles.push((format!("r{nth}"), allow, deny));
        }
        let role = *rng.choice(&["r0", "r1", "undefined"]).unwrap();
        rules.assigned.push(("bound".to_owned(), role.to_owned()));
        for nth in 0..2 {
            rules
                .contexts
                .push((format!("c{nth}"), random_patterns(rng, 0, 3)));
            let (mut allow, deny) = (random_patterns(rng, 1, 9), random_patterns(rng, 0, 2));
            if rng.u8(..3) == 0 {
                allow.extend(["*.*", "prompt:*.*", "resource:*.*"].map(str::to_owned));
            }
            rules.profiles.push((format!("p{nth}"), allow, deny));
        }
        if rng.u8(..4) == 0 {
            let items = (0..rng.usize(..6)).map(|_| {
                let (kind, server, name) = *rng.choice(&ITEMS).unwrap();
                (kind, server, name.to_owned(), rng.bool())
            });
            let items = items.collect();
            rules.switched = Some((rng.u8(..5) > 0, items));
        }
        rules
    }

    /// Converts the rules to a policy.
    pub(crate) fn to_policy(&self) -> Policy {
        let read = |texts: &[String]| -> Vec<FeaturePattern> {
            let parse = |text: &String| FeaturePattern::parse(text).unwrap();
            texts.iter().map(parse).collect()
        };
        let otherwise = match self.default_allows {
            true => DefaultAction::Allow,
            false => DefaultAction::Deny,
        };
        let mut policy = Policy::new(otherwise);
        for (name, allow, deny) in &self.roles {
            let rules = RoleRules {
                allow: read(allow),
                deny: read(deny),
                ..RoleRules::default()
            };
            policy = policy.with_role(name, rules);
        }
        for (who, role) in &self.assigned {
            policy = policy.with_principal(who, role);
        }
        for (name, hide) in &self.contexts {
            policy = policy.with_context(name, read(hide));
        }
        for (name, allow, deny) in &self.profiles {
            let rules = ProfileRules {
                allow: read(allow),
                deny: read(deny),
            };
            policy = policy.with_profile(name, rules);
        }
        if let Some((default, items)) = &self.switched {
            let enabled = items
                .iter()
                .fold(EnabledFeatures::new(*default), |all, item| {
                    all.with_feature(item.0, item.1, &item.2, item.3)
                });
            policy = policy.with_enabled(enabled);
        }
        policy
    }
}

/// A random principal, restricted by contexts of a token and of a session.
pub(crate) fn random_principal(rng: &mut Rng) -> Principal {
    let role = match rng.u8(..13) {
        0 => Role::Owner,
        12 => Role::OwnersAgent,
        1 => Role::AnonymousLocal,
        2 => Role::None,
        3 => Role::Named("undefined".into()),
        nth => Role::Named(format!("r{}", nth % 4).into()),
    };
    let name = if rng.u8(..6) == 0 { "bound" } else { "p" };
    let token = random_contexts(rng);
    let mut who = Principal::new(name, role);
    who.contexts = token;
    who.with_contexts(&random_contexts(rng))
}

/// Few contexts, rarely an undefined context: that hides everything.
pub(crate) fn random_contexts(rng: &mut Rng) -> ContextSet {
    let names = ["c0", "c1"].into_iter().filter(|_| rng.u8(..6) == 0);
    let mut names: Vec<&str> = names.collect();
    if rng.u8(..60) == 0 {
        names.push("gone");
    }
    ContextSet::new(names)
}

/// An endpoint that can reach an item of `server`.
pub(crate) fn random_endpoint(rng: &mut Rng, server: &str) -> EndpointScope {
    match rng.u8(..10) {
        0..4 => EndpointScope::All,
        4..7 => EndpointScope::Server(server.into()),
        nth => {
            let gone = rng.u8(..20) == 0;
            let name = if gone {
                "gone".to_owned()
            } else {
                format!("p{}", nth % 2)
            };
            EndpointScope::Profile(name.into())
        }
    }
}
