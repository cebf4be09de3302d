//! Random policies and the peers under test.

use std::sync::Arc;

use bowline_core::call::{ContextSet, EndpointScope, FeatureKind, Principal, Role};
use bowline_core::policy::{DefaultAction, FeaturePattern, Policy, PolicyTarget, RoleRules};
use bowline_host::broker::mailbox::MailboxName;
use bowline_host::broker::{AdmittedPeer, PeerRights};
use fastrand::Rng;

/// The servers, and the tools of each server; the second kind is repeatable.
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

fn patterns(rng: &mut Rng, most: usize) -> Vec<FeaturePattern> {
    let count = rng.usize(..=most);
    let texts = (0..count).map(|_| *rng.choice(&PATTERNS).unwrap());
    texts
        .map(|text| FeaturePattern::parse(text).unwrap())
        .collect()
}

/// A policy with four roles; `bound` gets a role by policy, regardless of the credential.
pub(super) fn policy(rng: &mut Rng) -> Policy {
    let otherwise = match rng.u8(..4) {
        0 => DefaultAction::Allow,
        _ => DefaultAction::Deny,
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

/// A peer as defined by the credential.
pub(super) fn admitted(rng: &mut Rng, name: &str) -> AdmittedPeer {
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
        principal.contexts = ContextSet::new(["c"]);
    }
    let others = PEERS.iter().filter(|_| rng.u8(..3) == 0);
    let rights = PeerRights {
        to: others.map(|other| Arc::from(*other)).collect(),
        ..PeerRights::default()
    };
    AdmittedPeer {
        principal: Arc::new(principal),
        mailbox: MailboxName::parse(name).unwrap(),
        role: stamped,
        rights,
    }
}

/// Whether the policy lets a principal see and use a tool.
pub(super) fn allows(policy: &Policy, who: &Principal, server: &str, tool: &str) -> bool {
    let thing = PolicyTarget {
        kind: FeatureKind::Tool,
        server,
        name: tool,
        arguments: None,
    };
    policy.decide(who, &EndpointScope::All, thing).is_allowed()
}

/// Whether a peer may send to another peer.
pub(super) fn reaches(from: &AdmittedPeer, to: &str) -> bool {
    from.principal.role == Role::Owner || from.rights.to.iter().any(|name| **name == *to)
}
