//! Random rules, and peers that they are about.

use std::sync::Arc;

use bowline_core::call::{Contexts, Kind, Principal, Role, Scope};
use bowline_core::mailbox::Mailbox;
use bowline_core::policy::{Otherwise, Pattern, Policy, RoleRules, Thing};
use bowline_host::broker::{Admitted, Rights};
use fastrand::Rng;

/// The servers, and the tools that each of them has; the second kind can be repeated.
pub(super) const SERVERS: [&str; 3] = ["a", "b", "files"];
pub(super) const TOOLS: [(&str, bool); 4] = [
    ("write", false),
    ("write_all", false),
    ("read", true),
    ("get", true),
];

/// The peers of one world.
pub(super) const PEERS: [&str; 6] = ["ann", "bob", "cat", "dan", "eve", "bound"];

const PATTERNS: [&str; 14] = [
    "*",
    "*.*",
    "a",
    "a.*",
    "b.read",
    "b.w*",
    "*.read",
    "*.write",
    "*.write*",
    "files.*",
    "files.get",
    "f*.g*",
    "prompt:*.*",
    "nothere.*",
];

fn patterns(rng: &mut Rng, most: usize) -> Vec<Pattern> {
    let count = rng.usize(..=most);
    let texts = (0..count).map(|_| *rng.choice(&PATTERNS).unwrap());
    texts.map(|text| Pattern::parse(text).unwrap()).collect()
}

/// Rules for four roles, one of which is given to `bound` whatever its credential says.
pub(super) fn policy(rng: &mut Rng) -> Policy {
    let otherwise = match rng.u8(..4) {
        0 => Otherwise::Allow,
        _ => Otherwise::Deny,
    };
    let mut policy = Policy::new(otherwise);
    for nth in 0..4 {
        let rules = RoleRules {
            allow: patterns(rng, 4),
            deny: patterns(rng, 1),
            ..RoleRules::default()
        };
        policy = policy.with_role(&format!("r{nth}"), rules);
    }
    let role = *rng.choice(&["r0", "r1", "undefined"]).unwrap();
    policy
        .with_principal("bound", role)
        .with_context("c", patterns(rng, 2))
}

/// A peer as its credential has it.
pub(super) fn admitted(rng: &mut Rng, name: &str) -> Admitted {
    let role = match rng.u8(..10) {
        0 => Role::Owner,
        1 => Role::None,
        2 => Role::Named("undefined".into()),
        nth => Role::Named(format!("r{}", nth % 4).into()),
    };
    let stamped = match &role {
        Role::Named(role) => Some(Arc::clone(role)),
        Role::Owner => Some("owner".into()),
        _ => None,
    };
    let mut principal = Principal::new(name, role);
    if rng.u8(..5) == 0 {
        principal.contexts = Contexts::new(["c"]);
    }
    let others = PEERS.iter().filter(|_| rng.u8(..3) == 0);
    let rights = Rights {
        to: others.map(|other| Arc::from(*other)).collect(),
        ..Rights::default()
    };
    Admitted {
        principal: Arc::new(principal),
        mailbox: Mailbox::parse(name).unwrap(),
        role: stamped,
        rights,
    }
}

/// Whether the rules let somebody see and use a tool.
pub(super) fn allows(policy: &Policy, who: &Principal, (server, tool): (&str, &str)) -> bool {
    let thing = Thing {
        kind: Kind::Tool,
        server,
        name: tool,
        arguments: None,
    };
    policy.decide(who, &Scope::All, thing).allows()
}

/// Whether a peer may send to another one.
pub(super) fn reaches(from: &Admitted, to: &str) -> bool {
    from.principal.role == Role::Owner || from.rights.to.iter().any(|name| **name == *to)
}
