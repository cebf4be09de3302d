//! Tests of the decision.

use super::*;
use crate::call::Contexts;

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    let read = |text: &&str| Pattern::parse(text).unwrap();
    texts.iter().map(read).collect()
}

fn role(allow: &[&str], deny: &[&str]) -> RoleRules {
    RoleRules {
        allow: patterns(allow),
        deny: patterns(deny),
        ..RoleRules::default()
    }
}

fn named(role: &str) -> Principal {
    Principal::new("p", Role::Named(role.into()))
}

fn tool(name: &str) -> Thing<'_> {
    Thing {
        kind: Kind::Tool,
        server: "files",
        name,
        arguments: None,
    }
}

fn policy() -> Policy {
    Policy::new(Otherwise::Deny)
        .with_role("reader", role(&["files.read_*"], &["*.read_secret"]))
        .with_role("locked", role(&[], &[]))
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
fn a_principal_without_a_role_may_do_what_the_default_says() {
    for (otherwise, may) in [(Otherwise::Deny, false), (Otherwise::Allow, true)] {
        let policy = Policy::new(otherwise);
        let decide =
            |principal: &Principal| policy.decide(principal, &Scope::All, tool("t")).allows();
        assert!(decide(&Principal::new("p", Role::Owner)));
        assert!(decide(&Principal::new("p", Role::AnonymousLocal)));
        assert_eq!(decide(&Principal::new("p", Role::None)), may);
        assert_eq!(decide(&named("unlisted")), may);
    }
}

#[test]
fn deny_wins_and_what_is_not_listed_is_not_allowed() {
    let policy = policy();
    let rule = |who: &Principal, name| policy.decide(who, &Scope::All, tool(name)).rule();
    let who = named("reader");
    let allows = |name| policy.decide(&who, &Scope::All, tool(name)).allows();
    assert!(allows("read_a") && !allows("read_secret") && !allows("write"));
    assert_eq!(rule(&who, "read_secret"), "roles.reader.deny");
    assert_eq!(rule(&who, "write"), "roles.reader.allow");
    assert!(
        !policy
            .decide(&named("locked"), &Scope::All, tool("read_a"))
            .allows()
    );
}

#[test]
fn an_entry_without_a_kind_grants_tools_only_and_takes_away_everything() {
    let policy = Policy::new(Otherwise::Deny)
        .with_role("r", role(&["files.*", "prompt:files.*"], &["files.x"]));
    let allows = |kind, name| {
        let thing = Thing { kind, ..tool(name) };
        policy.decide(&named("r"), &Scope::All, thing).allows()
    };
    assert!(allows(Kind::Tool, "a") && allows(Kind::Prompt, "a"));
    assert!(!allows(Kind::Resource, "a"));
    assert!(!allows(Kind::Tool, "x") && !allows(Kind::Prompt, "x"));
}

#[test]
fn contexts_and_profiles_only_narrow() {
    let policy = policy();
    let scope = Scope::Profile("small".into());
    let owner = Principal::new("o", Role::Owner);
    let quiet = owner.narrowed(&Contexts::new(["quiet"]));
    let unknown = owner.narrowed(&Contexts::new(["never-defined"]));
    let allows =
        |who: &Principal, scope: &Scope, name| policy.decide(who, scope, tool(name)).allows();
    assert!(allows(&owner, &Scope::All, "read_loud"));
    assert!(!allows(&quiet, &Scope::All, "read_loud"));
    assert!(allows(&quiet, &Scope::All, "write"));
    assert!(!allows(&unknown, &Scope::All, "write"), "fails closed");
    assert!(allows(&owner, &scope, "read_a") && !allows(&owner, &scope, "read_b"));
    assert!(allows(&named("reader"), &scope, "read_a"));
    assert!(!allows(&named("locked"), &scope, "read_a"));
    let gone = Scope::Profile("gone".into());
    assert!(!allows(&owner, &gone, "read_a"), "fails closed");
    assert!(policy.sees_all(&owner, &Scope::All));
    assert!(!policy.sees_all(&owner, &scope) && !policy.sees_all(&quiet, &Scope::All));
}

#[test]
fn profile_of_credential_narrows_every_scope() {
    let policy = policy().with_profile("other", ProfileRules::default());
    let owner = Principal::new("o", Role::Owner);
    let bound = owner.narrowed(&Contexts::new([profile_context("small")]));
    let gone = owner.narrowed(&Contexts::new([profile_context("gone")]));
    for (scope, inside) in [
        (Scope::All, true),
        (Scope::Server("files".into()), true),
        (Scope::Profile("small".into()), true),
        (Scope::Profile("other".into()), false),
    ] {
        let allows = |who, name| policy.decide(who, &scope, tool(name)).allows();
        assert_eq!(allows(&bound, "read_a"), inside, "{scope:?}");
        assert!(!allows(&bound, "read_b"), "{scope:?}");
        assert!(!allows(&gone, "read_a"), "{scope:?}");
        assert!(!policy.sees_all(&bound, &scope), "{scope:?}");
        assert_eq!(policy.reaches(&bound, &scope, "files"), inside, "{scope:?}");
        assert!(!policy.reaches(&bound, &scope, "mail"), "{scope:?}");
        assert!(!policy.reaches(&gone, &scope, "files"), "{scope:?}");
    }
    assert!(policy.has_context("profile:small") && !policy.has_context("profile:gone"));
}

#[test]
fn a_role_of_the_policy_counts_instead_of_that_of_the_credential() {
    let policy = policy().with_principal("p", "locked");
    assert!(
        !policy
            .decide(&named("reader"), &Scope::All, tool("read_a"))
            .allows()
    );
    let anonymous = Principal::new("p", Role::AnonymousLocal);
    assert!(
        !policy
            .decide(&anonymous, &Scope::All, tool("read_a"))
            .allows()
    );
}

#[derive(Debug)]
struct Fixed(Result<bool, Undecided>);

impl Condition for Fixed {
    fn text(&self) -> &'static str {
        "fixed"
    }

    fn holds(&self, _: &Facts<'_>, _: Effort) -> Result<bool, Undecided> {
        self.0.clone()
    }
}

#[test]
fn a_condition_narrows_calls_and_one_that_cannot_be_decided_refuses_them() {
    let with = |said: Result<bool, Undecided>| {
        let when = When {
            pattern: Pattern::parse("files.read_*").unwrap(),
            condition: Arc::new(Fixed(said)),
        };
        let rules = RoleRules {
            when: vec![when],
            ..role(&["files.*"], &[])
        };
        Policy::new(Otherwise::Deny).with_role("r", rules)
    };
    let call = |policy: &Policy, name| {
        let thing = Thing {
            arguments: Some(b"{}"),
            ..tool(name)
        };
        policy.decide(&named("r"), &Scope::All, thing).allows()
    };
    assert!(call(&with(Ok(true)), "read_a"));
    assert!(!call(&with(Ok(false)), "read_a") && call(&with(Ok(false)), "write"));
    assert!(!call(
        &with(Err(Undecided::Because("no".to_owned()))),
        "read_a"
    ));
    let seen = with(Ok(false));
    assert!(
        seen.decide(&named("r"), &Scope::All, tool("read_a"))
            .allows()
    );
}

#[test]
fn an_allowlist_is_a_policy() {
    let list = RoleAllowlist::from_entries([("a", vec!["files.x", " "]), ("b", Vec::new())])
        .with_role("a", ["files.y"]);
    assert_eq!(list.warnings().len(), 1);
    let policy = Policy::from(&list);
    let allows = |who: &Principal, name| policy.decide(who, &Scope::All, tool(name)).allows();
    assert!(allows(&named("a"), "y") && !allows(&named("a"), "x"));
    assert!(
        !allows(&named("b"), "y"),
        "listed with nothing sees nothing"
    );
    assert!(allows(&named("c"), "x") && allows(&Principal::new("p", Role::None), "x"));
    let strict = Policy::from(&RoleAllowlist::unrestricted().deny_others());
    assert!(!strict.decide(&named("c"), &Scope::All, tool("x")).allows());
}

#[test]
fn a_resource_is_not_reached_by_writing_its_address_otherwise() {
    let policy = Policy::new(Otherwise::Deny)
        .with_role(
            "r",
            role(&["resource:files.*"], &["files.file:///secret/*"]),
        )
        .with_role("s", role(&["resource:files.file:///srv/*"], &[]));
    let allows = |who: &Principal, uri| {
        let thing = Thing {
            kind: Kind::Resource,
            ..tool(uri)
        };
        policy.decide(who, &Scope::All, thing).allows()
    };
    let (most, some) = (named("r"), named("s"));
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
    let policy = Policy::new(Otherwise::Deny)
        .with_role("wide", role(&["resource:files.*"], &deny))
        .with_role("exact", role(&["resource:files.*"], &exact))
        .with_role("list", role(&["resource:files.file:///srv/*"], &[]))
        .with_context("away", patterns(&deny));
    let allows = |who: &Principal, name| {
        let kind = Kind::Resource;
        let thing = Thing { kind, ..tool(name) };
        policy.decide(who, &Scope::All, thing).allows()
    };
    let away = Principal::new("o", Role::Owner).narrowed(&Contexts::new(["away"]));
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
        for who in [&named("wide"), &named("exact"), &named("list"), &away] {
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
        assert!(allows(&named("wide"), uri) && allows(&away, uri), "{uri}");
    }
    for uri in ["file:///srv/", "file:///srv/a;v=1", "file:///srv/a?x#y"] {
        assert!(allows(&named("list"), uri), "{uri}");
    }
}

#[test]
fn a_server_is_out_of_reach_when_no_rule_can_let_anything_of_it_through() {
    let policy = policy()
        .with_role("none", role(&["files.*"], &["files"]))
        .with_role("any", role(&["f*.x"], &[]))
        .with_context("away", patterns(&["files"]));
    let reaches = |who: &Principal, scope: &Scope, server| policy.reaches(who, scope, server);
    let all = Scope::All;
    assert!(reaches(&named("reader"), &all, "files") && !reaches(&named("reader"), &all, "x"));
    assert!(reaches(&named("any"), &all, "files") && !reaches(&named("any"), &all, "x"));
    assert!(!reaches(&named("none"), &all, "files") && !reaches(&named("locked"), &all, "files"));
    assert!(!reaches(&named("undefined"), &all, "files"));
    let owner = Principal::new("o", Role::Owner);
    let away = owner.narrowed(&Contexts::new(["away"]));
    assert!(reaches(&owner, &all, "files") && !reaches(&away, &all, "files"));
    assert!(reaches(&away, &all, "x"));
    assert!(!reaches(&owner.narrowed(&Contexts::new(["?"])), &all, "x"));
    let small = Scope::Profile("small".into());
    assert!(reaches(&owner, &small, "files") && !reaches(&owner, &small, "x"));
    assert!(!reaches(&owner, &Scope::Profile("?".into()), "files"));
}

#[test]
fn what_is_switched_off_is_off_for_everybody() {
    let policy =
        policy().with_enabled(Enabled::new(true).with(Kind::Tool, "files", "read_a", false));
    for who in [named("reader"), Principal::new("o", Role::Owner)] {
        let allows = |name| policy.decide(&who, &Scope::All, tool(name)).allows();
        assert!(!allows("read_a") && allows("read_b"));
        assert!(!policy.sees_all(&who, &Scope::All));
    }
    let rule = policy
        .decide(&named("reader"), &Scope::All, tool("read_a"))
        .rule();
    assert_eq!(rule, "policy.allowlist");
}

#[test]
fn arguments_are_looked_up_only_for_a_condition() {
    let when = When {
        pattern: Pattern::parse("files.read_b").unwrap(),
        condition: Arc::new(Fixed(Ok(true))),
    };
    let rules = RoleRules {
        when: vec![when],
        ..role(&["files.*"], &[])
    };
    let policy = Policy::new(Otherwise::Deny).with_role("r", rules);
    let looked = |name| {
        let looked = std::cell::Cell::new(false);
        let arguments = || {
            looked.set(true);
            Some(&b"{}"[..])
        };
        let who = named("r");
        let ruling = policy.decide_with(&who, &Scope::All, tool(name), Effort::Full, arguments);
        assert!(ruling.allows());
        looked.get()
    };
    assert!(!looked("read_a") && looked("read_b"));
}
