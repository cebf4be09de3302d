//! Who sees and hears what: views that are shared, introductions, news, tasks and denials.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Call, Contexts, Kind, Principal, Role, Scope, Subject, TaskVerb};
use bowline_core::caller::{CallerEnd, SessionKey};
use bowline_core::error::CallError;
use bowline_core::policy::{Enabled, Otherwise, Pattern, Policy, ProfileRules, RoleRules};
use bowline_host::allowlist::Allowlist;
use bowline_host::catalog::ListKind;
use bowline_host::events::What;
use bowline_host::guard::{Guard, Verdict};
use bowline_host::{Host, HostLimits};
use bowline_link::LinkEvent;
use bowline_sim::{Act, Ears, Generation, Hearer, Script, World, ask, call, reaches, spec};

const CAPABILITIES: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"#,
    r#""resources":{"subscribe":true},"logging":{},"tasks":{"list":{}}},"#,
    r#""serverInfo":{"name":"n"},"instructions":"Mind the gap."}"#,
);

const TASK: &str = r#"{"task":{"taskId":"t1","status":"working"}}"#;

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    let read = |text: &&str| Pattern::parse(text).unwrap();
    texts.iter().map(read).collect()
}

fn allowing(allow: &[&str]) -> RoleRules {
    RoleRules {
        allow: patterns(allow),
        ..RoleRules::default()
    }
}

fn named(name: &str, role: &str) -> Arc<Principal> {
    Arc::new(Principal::new(name, Role::Named(role.into())))
}

fn talker() -> Generation {
    Generation::tools([("t", Act::Answers), ("u", Act::Says(TASK.to_owned()))])
        .introduces(CAPABILITIES)
        .answers("resources/list", "", r#"{"resources":[{"uri":"x:1"}]}"#)
        .answers("resources/subscribe", "", "{}")
        .answers("tasks/list", "", r#"{"tasks":[{"taskId":"t1"}]}"#)
        .answers("tasks/get", "", r#"{"taskId":"t1"}"#)
}

async fn host_with(ears: &Arc<Ears>, servers: &[(&str, Generation)]) -> (World, Host) {
    let scripts = servers.iter().map(|(name, generation)| {
        let script = Script::always(generation.clone());
        (*name, script)
    });
    let world = World::new(scripts);
    let specs = servers.iter().map(|(name, _)| spec(name)).collect();
    let host = world.host_for(specs, HostLimits::default(), Arc::clone(ears) as Arc<_>);
    for (name, _) in servers {
        assert!(reaches(&host, name, "ready").await);
    }
    (world, host)
}

fn by(principal: &Arc<Principal>, call: Call) -> Call {
    Call {
        principal: Arc::clone(principal),
        ..call
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_sessions_of_three_roles_share_three_views() {
    let plain = Generation::tools([("a", Act::Answers), ("b", Act::Answers)]);
    let (_world, host) = host_with(&Arc::default(), &[("s", plain)]).await;
    let policy = |third: &str| {
        Policy::new(Otherwise::Deny)
            .with_role("one", allowing(&["s.a"]))
            .with_role("two", allowing(&["s.b"]))
            .with_role("three", allowing(&[third]))
    };
    host.set_policy(policy("s.*"));
    let tell = || {
        for session in 0..10_000 {
            let role = ["one", "two", "three"][session % 3];
            let who = named(&format!("p{}", session % 50), role);
            let _shared = host.view(&who, &Scope::All, ListKind::Tools);
        }
    };
    let before = host.views_built();
    tell();
    assert_eq!(host.views_built() - before, 3);
    host.set_policy(policy("s.a"));
    tell();
    assert_eq!(host.views_built() - before, 6, "a new policy, new views");
    let three = host.view(&named("p", "three"), &Scope::All, ListKind::Tools);
    assert!(!String::from_utf8_lossy(&three.result).contains("s__b"));
    let quiet = named("p", "three").narrowed(&Contexts::new(["never"]));
    let hidden = host.view(&quiet, &Scope::All, ListKind::Tools);
    assert_eq!(hidden.result, r#"{"tools":[]}"#, "contexts count");
}

#[derive(Debug)]
struct Fickle(Arc<std::sync::atomic::AtomicBool>);

impl Guard for Fickle {
    fn check(&self, server: &str, tool: Option<&str>) -> Verdict {
        let open = self.0.load(std::sync::atomic::Ordering::Relaxed);
        if open || tool.is_none() || server != "s" {
            return Verdict::Allow;
        }
        Verdict::Deny {
            reason: "not today".into(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_changes_its_mind_is_asked_each_time() {
    let plain = Generation::tools([("a", Act::Answers)]);
    let (_world, host) = host_with(&Arc::default(), &[("s", plain)]).await;
    let open = Arc::new(std::sync::atomic::AtomicBool::new(true));
    host.set_guard(Some(Box::new(Fickle(Arc::clone(&open)))));
    let owner = Principal::new("owner", Role::Owner);
    let seen = || {
        let list = host.view(&owner, &Scope::All, ListKind::Tools);
        String::from_utf8_lossy(&list.result).contains("s__a")
    };
    assert!(seen() && host.call(call("s__a", "{}")).await.is_ok());
    open.store(false, std::sync::atomic::Ordering::Relaxed);
    assert!(!seen());
    let error = host.call(call("s__a", "{}")).await.unwrap_err();
    assert!(matches!(&error, CallError::Denied { reason, .. } if &**reason == "not today"));
    host.set_guard(None);
    assert!(seen() && host.call(call("s__a", "{}")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_introduction_tells_nothing_of_servers_that_are_hidden() {
    let plain = Generation::tools([("t", Act::Answers)]);
    let (_world, host) = host_with(&Arc::default(), &[("a", talker()), ("b", plain)]).await;
    let small = ProfileRules {
        allow: patterns(&["b.*"]),
        deny: Vec::new(),
    };
    host.set_policy(
        Policy::new(Otherwise::Deny)
            .with_role("b-only", allowing(&["b.*"]))
            .with_role("both", allowing(&["*.t"]))
            .with_profile("small", small),
    );
    let a = Scope::Server("a".into());
    let owner = named("owner", "both");
    for scope in [&Scope::All, &a] {
        let all = host.introduction(&owner, scope);
        assert!(all.instructions.is_some() && all.capabilities.len() > 40);
        let hidden = host.introduction(&named("p", "b-only"), scope);
        assert_eq!((hidden.instructions, hidden.server_info), (None, None));
    }
    let hidden = host.introduction(&named("p", "b-only"), &Scope::All);
    assert_eq!(hidden.capabilities, r#"{"tools":{"listChanged":true}}"#);
    let owner = Principal::new("owner", Role::Owner);
    let profile = host.introduction(&owner, &Scope::Profile("small".into()));
    assert_eq!(profile.capabilities, r#"{"tools":{"listChanged":true}}"#);
}

#[tokio::test(start_paused = true)]
async fn discovery_names_no_server_of_which_nothing_is_for_the_principal() {
    let failing = Generation::fails("broken");
    let world = World::new([
        ("a", Script::always(talker())),
        ("b", Script::always(talker())),
        ("broken", Script::always(failing.clone())),
        ("secret", Script::always(failing)),
    ]);
    let names = ["a", "b", "broken", "secret"];
    let host = world.host(names.map(spec).into(), HostLimits::default());
    let rules = allowing(&["a.t", "b.nothing", "broken.*"]);
    host.set_policy(Policy::new(Otherwise::Deny).with_role("r", rules));
    let found = host
        .discover(&named("p", "r"), Duration::from_secs(1))
        .await;
    let found: Vec<_> = found
        .iter()
        .map(|one| (&*one.server, one.tools.as_ref().map(Vec::len).ok()))
        .collect();
    assert_eq!(found, [("a", Some(1)), ("broken", None)]);
}

#[tokio::test(start_paused = true)]
async fn a_lazy_server_is_not_started_for_those_who_see_nothing_of_it() {
    let world = World::new([("lazy", Script::always(talker()))]);
    let mut lazy = spec("lazy");
    lazy.lazy = true;
    let host = world.host(vec![lazy], HostLimits::default());
    host.set_policy(Policy::new(Otherwise::Deny).with_role("r", allowing(&["other.*"])));
    let stranger = named("p", "r");
    host.shown_to(&stranger, &Scope::All).await;
    for (tool, scope) in [("lazy__t", Scope::All), ("t", Scope::Server("lazy".into()))] {
        let mut asked = by(&stranger, call(tool, "{}"));
        asked.scope = scope;
        let error = host.call(asked).await.unwrap_err();
        assert!(matches!(error, CallError::Denied { .. }), "{error}");
    }
    assert_eq!(host.status_of("lazy").unwrap().generation, 0);
    assert!(host.call(call("lazy__t", "{}")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn news_of_a_resource_end_with_the_right_to_read_it() {
    let ears = Arc::new(Ears::default());
    let (world, host) = host_with(&ears, &[("s", talker())]).await;
    let policy = |allow: &[&str]| {
        Policy::new(Otherwise::Deny)
            .with_role("r", allowing(allow))
            .with_context("quiet", patterns(&["s.x:1"]))
    };
    host.set_policy(policy(&["resource:s.*"]));
    for session in [1, 2, 3] {
        let caller: Arc<dyn CallerEnd> = Hearer::of(session);
        let who = match session {
            3 => Arc::new(Principal::new("owner", Role::Owner)),
            _ => named("p", "r"),
        };
        host.subscribe(&who, &Scope::All, &caller, "x:1")
            .await
            .unwrap();
    }
    let said = |nth: u64| LinkEvent::ResourceUpdated {
        uri: "x:1".into(),
        notification: format!(r#"{{"nth":{nth},"params":{{"uri":"x:1"}}}}"#).into(),
    };
    let hearers = |told: &[(u64, String)], nth: u64| -> Vec<u64> {
        let nth = format!("\"nth\":{nth},");
        let told = told.iter().filter(|(_, text)| text.contains(&nth));
        told.map(|(session, _)| *session).collect()
    };
    assert!(world.say("s", said(1)));
    assert_eq!(hearers(&ears.heard(3).await, 1), [1, 2, 3]);
    let narrowed = Arc::new(named("p", "r").narrowed(&Contexts::new(["quiet"])));
    host.session_narrowed(SessionKey(2), &narrowed);
    assert!(world.say("s", said(2)));
    assert_eq!(
        hearers(&ears.heard(5).await, 2),
        [1, 3],
        "its context hides it"
    );
    host.set_policy(policy(&["s.*"]));
    assert!(world.say("s", said(3)));
    assert_eq!(hearers(&ears.heard(6).await, 3), [3], "tools only by now");
    host.set_policy(policy(&["resource:s.*"]));
    assert!(world.say("s", said(4)));
    assert_eq!(hearers(&ears.heard(8).await, 4), [1, 3]);
}

fn task(id: &str) -> Call {
    let subject = Subject::Task {
        id: id.into(),
        verb: TaskVerb::Get,
    };
    ask(subject, "taskId")
}

#[tokio::test(start_paused = true)]
async fn a_task_is_out_of_reach_when_the_tool_that_made_it_is() {
    let ears = Arc::new(Ears::default());
    let (world, host) = host_with(&ears, &[("s", talker())]).await;
    let policy = |allow: &[&str]| Policy::new(Otherwise::Deny).with_role("r", allowing(allow));
    host.set_policy(policy(&["s.*"]));
    let who = named("p", "r");
    let mut makes = by(&who, call("s__u", "{}"));
    makes.makes_task = true;
    makes.caller = Some(Hearer::of(1));
    host.call(makes).await.unwrap();
    assert!(host.call(by(&who, task("t1"))).await.is_ok());
    let listed = host.tasks_of(&who, &Scope::All).await.unwrap();
    assert_eq!(listed, r#"{"tasks":[{"taskId":"t1"}]}"#);
    let status = |nth: u64| LinkEvent::TaskStatus {
        task: "t1".into(),
        notification: nth.to_string().into(),
    };
    assert!(world.say("s", status(1)));
    assert_eq!(ears.heard(1).await.len(), 1);

    host.set_policy(policy(&["s.t"]));
    let before = world.record().requests.len();
    let error = host.call(by(&who, task("t1"))).await.unwrap_err();
    assert!(matches!(error, CallError::Denied { .. }), "{error}");
    let listed = host.tasks_of(&who, &Scope::All).await.unwrap();
    assert_eq!(listed, r#"{"tasks":[]}"#);
    assert_eq!(world.record().requests.len(), before, "nothing was asked");
    assert!(world.say("s", status(2)));
    host.set_policy(policy(&["s.*"]));
    assert!(host.call(by(&who, task("t1"))).await.is_ok());
    assert!(world.say("s", status(3)));
    let heard = ears.heard(2).await;
    assert_eq!(heard.last().unwrap().1, "3", "{heard:?}");
    let other = host.call(by(&named("other", "r"), task("t1"))).await;
    assert!(matches!(other, Err(CallError::UnknownTask { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_counted_and_told_and_a_flood_is_told_in_part() {
    let plain = Generation::tools([("a", Act::Answers)]);
    let (_world, host) = host_with(&Arc::default(), &[("s", plain)]).await;
    let enabled = Enabled::new(true).with(Kind::Tool, "s", "a", false);
    let mut events = host.events().watch();
    let none = Arc::new(Principal::new("p", Role::None));
    for _ in 0..1_000 {
        let denied = host.call(by(&none, call("s__a", "{}"))).await;
        assert!(denied.is_err());
    }
    host.set_policy(Policy::new(Otherwise::Allow).with_enabled(enabled));
    assert!(host.call(call("s__a", "{}")).await.is_err());
    let count = |rule| {
        let counts = host.denials();
        counts.iter().find(|(name, _)| *name == rule).unwrap().1
    };
    assert_eq!((count("default"), count("allowlist")), (1_000, 1));
    let mut told = 0;
    while let Ok(event) = events.try_recv() {
        if let What::Denied { rule, name, .. } = &event.what {
            assert_eq!((*rule, &**name), ("default", "a"));
            told += 1;
        }
    }
    assert!((1..=20).contains(&told), "{told}");
    let unknown = host.call(call("s__none", "{}")).await.unwrap_err();
    assert!(matches!(unknown, CallError::UnknownTool { .. }));
    assert_eq!(count("allowlist"), 1, "what is not there is not denied");
}

#[tokio::test(start_paused = true)]
async fn an_allowlist_document_switches_things_for_everybody_and_shows_what_holds() {
    let (_world, host) = host_with(&Arc::default(), &[("s", talker())]).await;
    let document = r#"{"schemaVersion":1,"items":[
        {"server":"s","kind":"tool","name":"t","enabled":false},
        {"server":"s","kind":"resource","name":"x:1","enabled":false},
        {"server":"gone","kind":"tool","name":"t","enabled":false}]}"#;
    let list = Allowlist::parse(document.as_bytes()).unwrap();
    let rows = list.project(&host.catalog());
    let rows: Vec<_> = rows
        .iter()
        .map(|row| (&*row.name, row.enabled, row.listed))
        .collect();
    let shown = [("t", false, true), ("u", true, false), ("x:1", false, true)];
    assert_eq!(rows, shown, "what is there, and nothing else");
    host.set_policy(Policy::new(Otherwise::Allow).with_enabled((&list).into()));
    let error = host.call(call("s__t", "{}")).await.unwrap_err();
    assert!(matches!(error, CallError::Denied { .. }), "{error}");
    assert!(host.call(call("s__u", "{}")).await.is_ok());
    let owner = Principal::new("owner", Role::Owner);
    for (kind, hidden) in [(ListKind::Tools, "s__t"), (ListKind::Resources, "x:1")] {
        let list = host.view(&owner, &Scope::All, kind);
        assert!(!String::from_utf8_lossy(&list.result).contains(hidden));
    }
}
