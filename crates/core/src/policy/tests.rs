//! Tests of the decision.

use super::*;
use crate::call::ContextSet;

fn patterns(texts: &[&str]) -> Vec<FeaturePattern> {
    let read = |text: &&str| FeaturePattern::parse(text).unwrap();
    texts.iter().map(read).collect()
}

fn role_rules(allow: &[&str], deny: &[&str]) -> RoleRules {
    RoleRules {
        allow: patterns(allow),
        deny: patterns(deny),
        ..RoleRules::default()
    }
}

fn principal_with_role(role: &str) -> Principal {
    Principal::new("p", Role::Named(role.into()))
}

fn tool_target(name: &str) -> PolicyTarget<'_> {
    PolicyTarget {
        kind: FeatureKind::Tool,
        server: "files",
        name,
        arguments: None,
    }
}

fn sample_policy() -> Policy {
    Policy::new(DefaultAction::Deny)
        .with_role("reader", role_rules(&["files.read_*"], &["*.read_secret"]))
        .with_role("locked", role_rules(&[], &[]))
        .with_context("quiet", patterns(&["files.read_loud"]))
        .with_profile(
            "small",
            ProfileRules {
                allow: patterns(&["files.read_a"]),
                deny: Vec::new(),
            },
        )
}

#[test]
fn principal_without_role_gets_default_action() {
    for (otherwise, may) in [(DefaultAction::Deny, false), (DefaultAction::Allow, true)] {
        let policy = Policy::new(otherwise);
        let decide = |principal: &Principal| {
            policy
                .decide(principal, &EndpointScope::All, tool_target("t"))
                .is_allowed()
        };
        assert!(decide(&Principal::new("p", Role::Owner)));
        assert!(decide(&Principal::new("p", Role::AnonymousLocal)));
        assert_eq!(decide(&Principal::new("p", Role::None)), may);
        assert_eq!(decide(&principal_with_role("unlisted")), may);
    }
}

#[test]
fn deny_wins_and_unlisted_is_denied() {
    let policy = sample_policy();
    let rule = |who: &Principal, name| {
        policy
            .decide(who, &EndpointScope::All, tool_target(name))
            .rule_path()
    };
    let who = principal_with_role("reader");
    let allows = |name| {
        policy
            .decide(&who, &EndpointScope::All, tool_target(name))
            .is_allowed()
    };
    assert!(allows("read_a") && !allows("read_secret") && !allows("write"));
    assert_eq!(rule(&who, "read_secret"), "roles.reader.deny");
    assert_eq!(rule(&who, "write"), "roles.reader.allow");
    assert!(
        !policy
            .decide(
                &principal_with_role("locked"),
                &EndpointScope::All,
                tool_target("read_a")
            )
            .is_allowed()
    );
}

#[test]
fn pattern_without_kind_grants_tools_denies_all() {
    let policy = Policy::new(DefaultAction::Deny).with_role(
        "r",
        role_rules(&["files.*", "prompt:files.*"], &["files.x"]),
    );
    let allows = |kind, name| {
        let thing = PolicyTarget {
            kind,
            ..tool_target(name)
        };
        policy
            .decide(&principal_with_role("r"), &EndpointScope::All, thing)
            .is_allowed()
    };
    assert!(allows(FeatureKind::Tool, "a") && allows(FeatureKind::Prompt, "a"));
    assert!(!allows(FeatureKind::Resource, "a"));
    assert!(!allows(FeatureKind::Tool, "x") && !allows(FeatureKind::Prompt, "x"));
}

#[test]
fn contexts_and_profiles_only_narrow() {
    let policy = sample_policy();
    let scope = EndpointScope::Profile("small".into());
    let owner = Principal::new("o", Role::Owner);
    let quiet = owner.with_contexts(&ContextSet::new(["quiet"]));
    let unknown = owner.with_contexts(&ContextSet::new(["never-defined"]));
    let allows = |who: &Principal, scope: &EndpointScope, name| {
        policy.decide(who, scope, tool_target(name)).is_allowed()
    };
    assert!(allows(&owner, &EndpointScope::All, "read_loud"));
    assert!(!allows(&quiet, &EndpointScope::All, "read_loud"));
    assert!(allows(&quiet, &EndpointScope::All, "write"));
    assert!(
        !allows(&unknown, &EndpointScope::All, "write"),
        "fails closed"
    );
    assert!(allows(&owner, &scope, "read_a") && !allows(&owner, &scope, "read_b"));
    assert!(allows(&principal_with_role("reader"), &scope, "read_a"));
    assert!(!allows(&principal_with_role("locked"), &scope, "read_a"));
    let gone = EndpointScope::Profile("gone".into());
    assert!(!allows(&owner, &gone, "read_a"), "fails closed");
    assert!(policy.can_see_all(&owner, &EndpointScope::All));
    assert!(
        !policy.can_see_all(&owner, &scope) && !policy.can_see_all(&quiet, &EndpointScope::All)
    );
}

#[test]
fn profile_of_credential_narrows_every_scope() {
    let policy = sample_policy().with_profile("other", ProfileRules::default());
    let owner = Principal::new("o", Role::Owner);
    let bound = owner.with_contexts(&ContextSet::new([profile_context("small")]));
    let gone = owner.with_contexts(&ContextSet::new([profile_context("gone")]));
    for (scope, inside) in [
        (EndpointScope::All, true),
        (EndpointScope::Server("files".into()), true),
        (EndpointScope::Profile("small".into()), true),
        (EndpointScope::Profile("other".into()), false),
    ] {
        let allows = |who, name| policy.decide(who, &scope, tool_target(name)).is_allowed();
        assert_eq!(allows(&bound, "read_a"), inside, "{scope:?}");
        assert!(!allows(&bound, "read_b"), "{scope:?}");
        assert!(!allows(&gone, "read_a"), "{scope:?}");
        assert!(!policy.can_see_all(&bound, &scope), "{scope:?}");
        assert_eq!(
            policy.may_reach_server(&bound, &scope, "files"),
            inside,
            "{scope:?}"
        );
        assert!(
            !policy.may_reach_server(&bound, &scope, "mail"),
            "{scope:?}"
        );
        assert!(
            !policy.may_reach_server(&gone, &scope, "files"),
            "{scope:?}"
        );
    }
    assert!(policy.has_context("profile:small") && !policy.has_context("profile:gone"));
}

#[test]
fn assigned_role_overrides_credential_role() {
    let policy = sample_policy().with_principal("p", "locked");
    assert!(
        !policy
            .decide(
                &principal_with_role("reader"),
                &EndpointScope::All,
                tool_target("read_a")
            )
            .is_allowed()
    );
    let anonymous = Principal::new("p", Role::AnonymousLocal);
    assert!(
        !policy
            .decide(&anonymous, &EndpointScope::All, tool_target("read_a"))
            .is_allowed()
    );
}

#[derive(Debug)]
struct FixedCondition(Result<bool, ConditionError>);

impl Condition for FixedCondition {
    fn source_text(&self) -> &'static str {
        "fixed"
    }

    fn evaluate(
        &self,
        _: &ConditionInput<'_>,
        _: EvaluationEffort,
    ) -> Result<bool, ConditionError> {
        self.0.clone()
    }
}

#[test]
fn failed_or_undecided_condition_denies_call() {
    let with = |said: Result<bool, ConditionError>| {
        let when = ConditionRule {
            pattern: FeaturePattern::parse("files.read_*").unwrap(),
            condition: Arc::new(FixedCondition(said)),
        };
        let rules = RoleRules {
            conditions: vec![when],
            ..role_rules(&["files.*"], &[])
        };
        Policy::new(DefaultAction::Deny).with_role("r", rules)
    };
    let call = |policy: &Policy, name| {
        let thing = PolicyTarget {
            arguments: Some(b"{}"),
            ..tool_target(name)
        };
        policy
            .decide(&principal_with_role("r"), &EndpointScope::All, thing)
            .is_allowed()
    };
    assert!(call(&with(Ok(true)), "read_a"));
    assert!(!call(&with(Ok(false)), "read_a") && call(&with(Ok(false)), "write"));
    assert!(!call(
        &with(Err(ConditionError::Failed("no".to_owned()))),
        "read_a"
    ));
    let seen = with(Ok(false));
    assert!(
        seen.decide(
            &principal_with_role("r"),
            &EndpointScope::All,
            tool_target("read_a")
        )
        .is_allowed()
    );
}

#[test]
fn allowlist_converts_to_policy() {
    let list = RoleAllowlist::from_entries([("a", vec!["files.x", " "]), ("b", Vec::new())])
        .with_role("a", ["files.y"]);
    assert_eq!(list.warnings().len(), 1);
    let policy = Policy::from(&list);
    let allows = |who: &Principal, name| {
        policy
            .decide(who, &EndpointScope::All, tool_target(name))
            .is_allowed()
    };
    assert!(allows(&principal_with_role("a"), "y") && !allows(&principal_with_role("a"), "x"));
    assert!(
        !allows(&principal_with_role("b"), "y"),
        "listed with nothing sees nothing"
    );
    assert!(
        allows(&principal_with_role("c"), "x") && allows(&Principal::new("p", Role::None), "x")
    );
    let strict = Policy::from(&RoleAllowlist::unrestricted().deny_others());
    assert!(
        !strict
            .decide(
                &principal_with_role("c"),
                &EndpointScope::All,
                tool_target("x")
            )
            .is_allowed()
    );
}

#[test]
fn denied_resource_uri_has_no_alias() {
    let policy = Policy::new(DefaultAction::Deny)
        .with_role(
            "r",
            role_rules(&["resource:files.*"], &["files.file:///secret/*"]),
        )
        .with_role("s", role_rules(&["resource:files.file:///srv/*"], &[]));
    let allows = |who: &Principal, uri| {
        let thing = PolicyTarget {
            kind: FeatureKind::Resource,
            ..tool_target(uri)
        };
        policy.decide(who, &EndpointScope::All, thing).is_allowed()
    };
    let (most, some) = (principal_with_role("r"), principal_with_role("s"));
    assert!(allows(&most, "file:///a%20b") && allows(&some, "file:///srv/a%20b"));
    for uri in [
        "file:///secret/a",
        "file:///%73ecret/a",
        "FILE:///secret/a",
        "file:////secret/a",
        "file:///x/../secret/a",
    ] {
        assert!(!allows(&most, uri) && !allows(&some, uri), "{uri}");
        assert!(allows(&Principal::new("o", Role::Owner), uri), "{uri}");
    }
    assert!(!allows(&some, "file:///srv/../etc") && !allows(&some, "file:///srv/%2e%2e/etc"));
}

#[test]
fn sec_63_denied_uri_has_no_other_spelling() {
    let deny = ["files.file:///secret/*", "files.https://h.example/k"];
    let exact = ["files.file:///secret/key.txt", "files.https://h.example/k"];
    let policy = Policy::new(DefaultAction::Deny)
        .with_role("wide", role_rules(&["resource:files.*"], &deny))
        .with_role("exact", role_rules(&["resource:files.*"], &exact))
        .with_role("list", role_rules(&["resource:files.file:///srv/*"], &[]))
        .with_context("away", patterns(&deny));
    let allows = |who: &Principal, name| {
        let kind = FeatureKind::Resource;
        let thing = PolicyTarget {
            kind,
            ..tool_target(name)
        };
        policy.decide(who, &EndpointScope::All, thing).is_allowed()
    };
    let away = Principal::new("o", Role::Owner).with_contexts(&ContextSet::new(["away"]));
    for uri in [
        "file:///secret/key.txt",
        "file://localhost/secret/key.txt",
        "file://LOCALHOST/secret/key.txt",
        "file://127.0.0.1/secret/key.txt",
        "file://[::1]/secret/key.txt",
        "file://x@/secret/key.txt",
        "file://x@localhost:1/secret/key.txt",
        "file://secret/key.txt",
        "file:/secret/key.txt",
        "file:secret/key.txt",
        "FILE:/secret/key.txt",
        "file:\\\\\\secret\\key.txt",
        "file:///secret/key.txt?",
        "file:///secret/key.txt?x=1",
        "file:///secret/key.txt#",
        "file:///secret/key.txt#x",
        "file:///secret/key.txt;v=1",
        "file:///secret;a/key.txt",
        "file:///secret/key.txt/",
        "file://localhost/%73ecret/key.txt;v?x#y",
        "https://H.Example/k",
        "https://h.example:443/k",
        "https://h.example:/k",
        "https://u:p@h.example./k/",
        "https://h.example/k?x=1",
    ] {
        for who in [
            &principal_with_role("wide"),
            &principal_with_role("exact"),
            &principal_with_role("list"),
            &away,
        ] {
            assert!(!allows(who, uri), "{uri} {}", who.name);
        }
        assert!(allows(&Principal::new("o", Role::Owner), uri), "{uri}");
    }
    for uri in [
        "file:///open/key.txt?x=1#y",
        "file://nas/open",
        "file:/open",
        "https://h.example:8443/k",
        "https://h.example/key",
        "note:a;b",
        "t:///{id}",
    ] {
        assert!(
            allows(&principal_with_role("wide"), uri) && allows(&away, uri),
            "{uri}"
        );
    }
    for uri in ["file:///srv/", "file:///srv/a;v=1", "file:///srv/a?x#y"] {
        assert!(allows(&principal_with_role("list"), uri), "{uri}");
    }
}

#[test]
fn unreachable_server_matches_no_rule() {
    let policy = sample_policy()
        .with_role("none", role_rules(&["files.*"], &["files"]))
        .with_role("any", role_rules(&["f*.x"], &[]))
        .with_context("away", patterns(&["files"]));
    let reaches = |who: &Principal, scope: &EndpointScope, server| {
        policy.may_reach_server(who, scope, server)
    };
    let all = EndpointScope::All;
    assert!(
        reaches(&principal_with_role("reader"), &all, "files")
            && !reaches(&principal_with_role("reader"), &all, "x")
    );
    assert!(
        reaches(&principal_with_role("any"), &all, "files")
            && !reaches(&principal_with_role("any"), &all, "x")
    );
    assert!(
        !reaches(&principal_with_role("none"), &all, "files")
            && !reaches(&principal_with_role("locked"), &all, "files")
    );
    assert!(!reaches(&principal_with_role("undefined"), &all, "files"));
    let owner = Principal::new("o", Role::Owner);
    let away = owner.with_contexts(&ContextSet::new(["away"]));
    assert!(reaches(&owner, &all, "files") && !reaches(&away, &all, "files"));
    assert!(reaches(&away, &all, "x"));
    assert!(!reaches(
        &owner.with_contexts(&ContextSet::new(["?"])),
        &all,
        "x"
    ));
    let small = EndpointScope::Profile("small".into());
    assert!(reaches(&owner, &small, "files") && !reaches(&owner, &small, "x"));
    assert!(!reaches(
        &owner,
        &EndpointScope::Profile("?".into()),
        "files"
    ));
}

#[test]
fn disabled_feature_is_denied_to_everyone() {
    let policy = sample_policy().with_enabled(EnabledFeatures::new(true).with_feature(
        FeatureKind::Tool,
        "files",
        "read_a",
        false,
    ));
    for who in [
        principal_with_role("reader"),
        Principal::new("o", Role::Owner),
    ] {
        let allows = |name| {
            policy
                .decide(&who, &EndpointScope::All, tool_target(name))
                .is_allowed()
        };
        assert!(!allows("read_a") && allows("read_b"));
        assert!(!policy.can_see_all(&who, &EndpointScope::All));
    }
    let rule = policy
        .decide(
            &principal_with_role("reader"),
            &EndpointScope::All,
            tool_target("read_a"),
        )
        .rule_path();
    assert_eq!(rule, "policy.allowlist");
}

#[test]
fn arguments_are_read_only_for_conditions() {
    let when = ConditionRule {
        pattern: FeaturePattern::parse("files.read_b").unwrap(),
        condition: Arc::new(FixedCondition(Ok(true))),
    };
    let rules = RoleRules {
        conditions: vec![when],
        ..role_rules(&["files.*"], &[])
    };
    let policy = Policy::new(DefaultAction::Deny).with_role("r", rules);
    let looked = |name| {
        let looked = std::cell::Cell::new(false);
        let arguments = || {
            looked.set(true);
            Some(&b"{}"[..])
        };
        let who = principal_with_role("r");
        let ruling = policy.decide_lazily(
            &who,
            &EndpointScope::All,
            tool_target(name),
            EvaluationEffort::Full,
            arguments,
        );
        assert!(ruling.is_allowed());
        looked.get()
    };
    assert!(!looked("read_a") && looked("read_b"));
}
