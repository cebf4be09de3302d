//! Visibility by policy: shared views, server info, notifications, tasks and denials.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{
    CallRequest, CallSubject, ContextSet, EndpointScope, FeatureKind, Principal, Role,
    TaskOperation,
};
use bowline_core::client_handle::{ClientHandle, SessionKey};
use bowline_core::error::CallError;
use bowline_core::policy::{
    DefaultAction, EnabledFeatures, FeaturePattern, Policy, ProfileRules, RoleRules,
};
use bowline_host::access_guard::{AccessGuard, GuardDecision};
use bowline_host::allowlist::Allowlist;
use bowline_host::catalog::ListKind;
use bowline_host::events::EventKind;
use bowline_host::{Host, HostLimits};
use bowline_link::LinkEvent;
use bowline_testkit::{
    GenerationScript, RecordingClient, RecordingSink, ServerScript, SimWorld, ToolBehaviour,
    server_spec, subject_call, tool_call, wait_for_state,
};

const CAPABILITIES: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"#,
    r#""resources":{"subscribe":true},"logging":{},"tasks":{"list":{}}},"#,
    r#""serverInfo":{"name":"n"},"instructions":"Mind the gap."}"#,
);

const TASK: &str = r#"{"task":{"taskId":"t1","status":"working"}}"#;

fn to_patterns(texts: &[&str]) -> Vec<FeaturePattern> {
    let read = |text: &&str| FeaturePattern::parse(text).unwrap();
    texts.iter().map(read).collect()
}

fn role_allowing(allow: &[&str]) -> RoleRules {
    RoleRules {
        allow: to_patterns(allow),
        ..RoleRules::default()
    }
}

fn named_principal(name: &str, role: &str) -> Arc<Principal> {
    Arc::new(Principal::new(name, Role::Named(role.into())))
}

fn talking_server() -> GenerationScript {
    GenerationScript::with_tools([
        ("t", ToolBehaviour::Respond),
        ("u", ToolBehaviour::RespondWith(TASK.to_owned())),
    ])
    .with_initialize_result(CAPABILITIES)
    .respond_with("resources/list", "", r#"{"resources":[{"uri":"x:1"}]}"#)
    .respond_with("resources/subscribe", "", "{}")
    .respond_with("tasks/list", "", r#"{"tasks":[{"taskId":"t1"}]}"#)
    .respond_with("tasks/get", "", r#"{"taskId":"t1"}"#)
}

async fn host_with(
    ears: &Arc<RecordingSink>,
    servers: &[(&str, GenerationScript)],
) -> (SimWorld, Host) {
    let scripts = servers.iter().map(|(name, generation)| {
        let script = ServerScript::always(generation.clone());
        (*name, script)
    });
    let world = SimWorld::new(scripts);
    let specs = servers.iter().map(|(name, _)| server_spec(name)).collect();
    let host = world.start_host_with_sink(specs, HostLimits::default(), Arc::clone(ears) as Arc<_>);
    for (name, _) in servers {
        assert!(wait_for_state(&host, name, "ready").await);
    }
    (world, host)
}

fn as_principal(principal: &Arc<Principal>, call: CallRequest) -> CallRequest {
    CallRequest {
        principal: Arc::clone(principal),
        ..call
    }
}

#[tokio::test(start_paused = true)]
async fn sessions_of_three_roles_share_three_views() {
    let plain = GenerationScript::with_tools([
        ("a", ToolBehaviour::Respond),
        ("b", ToolBehaviour::Respond),
    ]);
    let (_world, host) = host_with(&Arc::default(), &[("s", plain)]).await;
    let policy = |third: &str| {
        Policy::new(DefaultAction::Deny)
            .with_role("one", role_allowing(&["s.a"]))
            .with_role("two", role_allowing(&["s.b"]))
            .with_role("three", role_allowing(&[third]))
    };
    host.set_policy(policy("s.*"));
    let tell = || {
        for session in 0..10_000 {
            let role = ["one", "two", "three"][session % 3];
            let who = named_principal(&format!("p{}", session % 50), role);
            let _shared = host.list_for(&who, &EndpointScope::All, ListKind::Tools);
        }
    };
    let before = host.views_built();
    tell();
    assert_eq!(host.views_built() - before, 3);
    host.set_policy(policy("s.a"));
    tell();
    assert_eq!(host.views_built() - before, 6, "a new policy, new views");
    let three = host.list_for(
        &named_principal("p", "three"),
        &EndpointScope::All,
        ListKind::Tools,
    );
    assert!(!String::from_utf8_lossy(&three.result).contains("s__b"));
    let quiet = named_principal("p", "three").with_contexts(&ContextSet::new(["never"]));
    let hidden = host.list_for(&quiet, &EndpointScope::All, ListKind::Tools);
    assert_eq!(hidden.result, r#"{"tools":[]}"#, "contexts count");
}

#[derive(Debug)]
struct ToggleGuard(Arc<std::sync::atomic::AtomicBool>);

impl AccessGuard for ToggleGuard {
    fn check_access(&self, server: &str, tool: Option<&str>) -> GuardDecision {
        let open = self.0.load(std::sync::atomic::Ordering::Relaxed);
        if open || tool.is_none() || server != "s" {
            return GuardDecision::Allow;
        }
        GuardDecision::Deny {
            reason: "not today".into(),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn changing_guard_is_asked_each_time() {
    let plain = GenerationScript::with_tools([("a", ToolBehaviour::Respond)]);
    let (_world, host) = host_with(&Arc::default(), &[("s", plain)]).await;
    let open = Arc::new(std::sync::atomic::AtomicBool::new(true));
    host.set_guard(Some(Box::new(ToggleGuard(Arc::clone(&open)))));
    let owner = Principal::new("owner", Role::Owner);
    let seen = || {
        let list = host.list_for(&owner, &EndpointScope::All, ListKind::Tools);
        String::from_utf8_lossy(&list.result).contains("s__a")
    };
    assert!(seen() && host.call(tool_call("s__a", "{}")).await.is_ok());
    open.store(false, std::sync::atomic::Ordering::Relaxed);
    assert!(!seen());
    let error = host.call(tool_call("s__a", "{}")).await.unwrap_err();
    assert!(matches!(&error, CallError::Denied { reason, .. } if &**reason == "not today"));
    host.set_guard(None);
    assert!(seen() && host.call(tool_call("s__a", "{}")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn server_info_omits_hidden_servers() {
    let plain = GenerationScript::with_tools([("t", ToolBehaviour::Respond)]);
    let (_world, host) = host_with(&Arc::default(), &[("a", talking_server()), ("b", plain)]).await;
    let small = ProfileRules {
        allow: to_patterns(&["b.*"]),
        deny: Vec::new(),
    };
    host.set_policy(
        Policy::new(DefaultAction::Deny)
            .with_role("b-only", role_allowing(&["b.*"]))
            .with_role("both", role_allowing(&["*.t"]))
            .with_profile("small", small),
    );
    let a = EndpointScope::Server("a".into());
    let owner = named_principal("owner", "both");
    for scope in [&EndpointScope::All, &a] {
        let all = host.initialize_info(&owner, scope);
        assert!(all.instructions.is_some() && all.capabilities.len() > 40);
        let hidden = host.initialize_info(&named_principal("p", "b-only"), scope);
        assert_eq!((hidden.instructions, hidden.server_info), (None, None));
    }
    let hidden = host.initialize_info(&named_principal("p", "b-only"), &EndpointScope::All);
    assert_eq!(hidden.capabilities, r#"{"tools":{"listChanged":true}}"#);
    let owner = Principal::new("owner", Role::Owner);
    let profile = host.initialize_info(&owner, &EndpointScope::Profile("small".into()));
    assert_eq!(profile.capabilities, r#"{"tools":{"listChanged":true}}"#);
}

#[tokio::test(start_paused = true)]
async fn discovery_omits_inaccessible_servers() {
    let failing = GenerationScript::failing_start("broken");
    let world = SimWorld::new([
        ("a", ServerScript::always(talking_server())),
        ("b", ServerScript::always(talking_server())),
        ("broken", ServerScript::always(failing.clone())),
        ("secret", ServerScript::always(failing)),
    ]);
    let names = ["a", "b", "broken", "secret"];
    let host = world.start_host(names.map(server_spec).into(), HostLimits::default());
    let rules = role_allowing(&["a.t", "b.nothing", "broken.*"]);
    host.set_policy(Policy::new(DefaultAction::Deny).with_role("r", rules));
    let found = host
        .discover_tools(&named_principal("p", "r"), Duration::from_secs(1))
        .await;
    let found: Vec<_> = found
        .iter()
        .map(|one| (&*one.server, one.tools.as_ref().map(Vec::len).ok()))
        .collect();
    assert_eq!(found, [("a", Some(1)), ("broken", None)]);
}

#[tokio::test(start_paused = true)]
async fn lazy_server_is_not_started_without_access() {
    let world = SimWorld::new([("lazy", ServerScript::always(talking_server()))]);
    let mut lazy = server_spec("lazy");
    lazy.lazy = true;
    let host = world.start_host(vec![lazy], HostLimits::default());
    host.set_policy(Policy::new(DefaultAction::Deny).with_role("r", role_allowing(&["other.*"])));
    let stranger = named_principal("p", "r");
    host.start_unlisted_for(&stranger, &EndpointScope::All)
        .await;
    for (tool, scope) in [
        ("lazy__t", EndpointScope::All),
        ("t", EndpointScope::Server("lazy".into())),
    ] {
        let mut asked = as_principal(&stranger, tool_call(tool, "{}"));
        asked.scope = scope;
        let error = host.call(asked).await.unwrap_err();
        assert!(matches!(error, CallError::Denied { .. }), "{error}");
    }
    assert_eq!(host.server_status("lazy").unwrap().generation, 0);
    assert!(host.call(tool_call("lazy__t", "{}")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn resource_notifications_end_with_read_access() {
    let ears = Arc::new(RecordingSink::default());
    let (world, host) = host_with(&ears, &[("s", talking_server())]).await;
    let policy = |allow: &[&str]| {
        Policy::new(DefaultAction::Deny)
            .with_role("r", role_allowing(allow))
            .with_context("quiet", to_patterns(&["s.x:1"]))
    };
    host.set_policy(policy(&["resource:s.*"]));
    for session in [1, 2, 3] {
        let caller: Arc<dyn ClientHandle> = RecordingClient::new(session);
        let who = match session {
            3 => Arc::new(Principal::new("owner", Role::Owner)),
            _ => named_principal("p", "r"),
        };
        host.subscribe(&who, &EndpointScope::All, &caller, "x:1")
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
    assert!(world.emit("s", said(1)));
    assert_eq!(hearers(&ears.wait_for_notifications(3).await, 1), [1, 2, 3]);
    let narrowed = Arc::new(named_principal("p", "r").with_contexts(&ContextSet::new(["quiet"])));
    host.update_session_principal(SessionKey(2), &narrowed);
    assert!(world.emit("s", said(2)));
    assert_eq!(
        hearers(&ears.wait_for_notifications(5).await, 2),
        [1, 3],
        "its context hides it"
    );
    host.set_policy(policy(&["s.*"]));
    assert!(world.emit("s", said(3)));
    assert_eq!(
        hearers(&ears.wait_for_notifications(6).await, 3),
        [3],
        "tools only by now"
    );
    host.set_policy(policy(&["resource:s.*"]));
    assert!(world.emit("s", said(4)));
    assert_eq!(hearers(&ears.wait_for_notifications(8).await, 4), [1, 3]);
}

fn task_call(id: &str) -> CallRequest {
    let subject = CallSubject::Task {
        id: id.into(),
        operation: TaskOperation::Get,
    };
    subject_call(subject, "taskId")
}

#[tokio::test(start_paused = true)]
async fn task_requires_access_to_its_tool() {
    let ears = Arc::new(RecordingSink::default());
    let (world, host) = host_with(&ears, &[("s", talking_server())]).await;
    let policy =
        |allow: &[&str]| Policy::new(DefaultAction::Deny).with_role("r", role_allowing(allow));
    host.set_policy(policy(&["s.*"]));
    let who = named_principal("p", "r");
    let mut makes = as_principal(&who, tool_call("s__u", "{}"));
    makes.wants_task = true;
    makes.message.client = Some(RecordingClient::new(1));
    host.call(makes).await.unwrap();
    assert!(host.call(as_principal(&who, task_call("t1"))).await.is_ok());
    let listed = host.list_tasks(&who, &EndpointScope::All).await.unwrap();
    assert_eq!(listed, r#"{"tasks":[{"taskId":"t1"}]}"#);
    let status = |nth: u64| LinkEvent::TaskStatus {
        task: "t1".into(),
        notification: nth.to_string().into(),
    };
    assert!(world.emit("s", status(1)));
    assert_eq!(ears.wait_for_notifications(1).await.len(), 1);

    host.set_policy(policy(&["s.t"]));
    let before = world.record().requests.len();
    let error = host
        .call(as_principal(&who, task_call("t1")))
        .await
        .unwrap_err();
    assert!(matches!(error, CallError::Denied { .. }), "{error}");
    let listed = host.list_tasks(&who, &EndpointScope::All).await.unwrap();
    assert_eq!(listed, r#"{"tasks":[]}"#);
    assert_eq!(world.record().requests.len(), before, "nothing was asked");
    assert!(world.emit("s", status(2)));
    host.set_policy(policy(&["s.*"]));
    assert!(host.call(as_principal(&who, task_call("t1"))).await.is_ok());
    assert!(world.emit("s", status(3)));
    let heard = ears.wait_for_notifications(2).await;
    assert_eq!(heard.last().unwrap().1, "3", "{heard:?}");
    let other = host
        .call(as_principal(
            &named_principal("other", "r"),
            task_call("t1"),
        ))
        .await;
    assert!(matches!(other, Err(CallError::UnknownTask { .. })));
}

#[tokio::test(start_paused = true)]
async fn denials_are_counted_and_floods_limited() {
    let plain = GenerationScript::with_tools([("a", ToolBehaviour::Respond)]);
    let (_world, host) = host_with(&Arc::default(), &[("s", plain)]).await;
    let enabled = EnabledFeatures::new(true).with_feature(FeatureKind::Tool, "s", "a", false);
    let mut events = host.events().subscribe();
    let none = Arc::new(Principal::new("p", Role::None));
    for _ in 0..1_000 {
        let denied = host
            .call(as_principal(&none, tool_call("s__a", "{}")))
            .await;
        assert!(denied.is_err());
    }
    host.set_policy(Policy::new(DefaultAction::Allow).with_enabled(enabled));
    assert!(host.call(tool_call("s__a", "{}")).await.is_err());
    let count = |rule| {
        let counts = host.denial_counts();
        counts.iter().find(|(name, _)| *name == rule).unwrap().1
    };
    assert_eq!((count("default"), count("allowlist")), (1_000, 1));
    let mut told = 0;
    while let Ok(event) = events.try_recv() {
        if let EventKind::Denied { rule, name, .. } = &event.kind {
            assert_eq!((&**rule, &**name), ("default", "a"));
            told += 1;
        }
    }
    assert!((1..=20).contains(&told), "{told}");
    let unknown = host.call(tool_call("s__none", "{}")).await.unwrap_err();
    assert!(matches!(unknown, CallError::UnknownTool { .. }));
    assert_eq!(count("allowlist"), 1, "what is not there is not denied");
}

#[tokio::test(start_paused = true)]
async fn allowlist_applies_to_all_principals() {
    let (_world, host) = host_with(&Arc::default(), &[("s", talking_server())]).await;
    let document = r#"{"schemaVersion":1,"items":[
        {"server":"s","kind":"tool","name":"t","enabled":false},
        {"server":"s","kind":"resource","name":"x:1","enabled":false},
        {"server":"gone","kind":"tool","name":"t","enabled":false}]}"#;
    let list = Allowlist::parse(document.as_bytes()).unwrap();
    let rows = list.effective_items(&host.catalog());
    let rows: Vec<_> = rows
        .iter()
        .map(|row| (&*row.name, row.enabled, row.listed))
        .collect();
    let shown = [("t", false, true), ("u", true, false), ("x:1", false, true)];
    assert_eq!(rows, shown, "what is there, and nothing else");
    host.set_policy(Policy::new(DefaultAction::Allow).with_enabled((&list).into()));
    let error = host.call(tool_call("s__t", "{}")).await.unwrap_err();
    assert!(matches!(error, CallError::Denied { .. }), "{error}");
    assert!(host.call(tool_call("s__u", "{}")).await.is_ok());
    let owner = Principal::new("owner", Role::Owner);
    for (kind, hidden) in [(ListKind::Tools, "s__t"), (ListKind::Resources, "x:1")] {
        let list = host.list_for(&owner, &EndpointScope::All, kind);
        assert!(!String::from_utf8_lossy(&list.result).contains(hidden));
    }
}
