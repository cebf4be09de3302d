//! Prompts, resources and completion: listing and routing over all servers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod feature_lists;

use std::sync::Arc;

use bowline_core::call::{BodyKind, CallSubject, EndpointScope, Principal, Role};
use bowline_core::error::CallError;
use bowline_host::catalog::ListKind;
use bowline_host::{Host, HostLimits};
use bowline_testkit::{
    GenerationScript, RecordingClient, ServerScript, SimWorld, ToolBehaviour, reply_body,
    server_spec, subject_call, tool_call, wait_for_state,
};

const CAPABILITIES: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"#,
    r#""resources":{"subscribe":true},"completions":{},"logging":{},"x":{"y":1}},"#,
    r#""serverInfo":{"name":"n","vendor":7},"instructions":"Mind the gap."}"#,
);

/// A server with a prompt, resources and templates that responds to each request with its own name.
fn full_server(server: &str, resources: &[&str], templates: &[&str]) -> GenerationScript {
    let list = |member: &str, key: &str, ids: &[&str]| {
        let items: Vec<_> = ids
            .iter()
            .map(|id| format!(r#"{{ "x":1e400,"{key}":"{id}" }}"#))
            .collect();
        format!(r#"{{"{member}":[{}]}}"#, items.join(","))
    };
    let result = format!(r#"{{"from":"{server}"}}"#);
    GenerationScript::with_tools([("t", ToolBehaviour::Respond)])
        .with_initialize_result(CAPABILITIES)
        .respond_with("prompts/list", "", &list("prompts", "name", &["p"]))
        .respond_with("resources/list", "", &list("resources", "uri", resources))
        .respond_with(
            "resources/templates/list",
            "",
            &list("resourceTemplates", "uriTemplate", templates),
        )
        .respond_with("prompts/get", "", &result)
        .respond_with("resources/read", "", &result)
        .respond_with("completion/complete", "", &result)
}

async fn ready_host(world: &SimWorld, names: &[&str]) -> Host {
    let specs = names.iter().map(|name| server_spec(name)).collect();
    let host = world.start_host(specs, HostLimits::default());
    for name in names {
        assert!(wait_for_state(&host, name, "ready").await);
    }
    host
}

async fn two_servers(a: GenerationScript, b: GenerationScript) -> (SimWorld, Host) {
    let world = SimWorld::new([
        ("a", ServerScript::always(a)),
        ("b", ServerScript::always(b)),
    ]);
    let host = ready_host(&world, &["a", "b"]).await;
    (world, host)
}

fn owner_principal() -> Principal {
    Principal::new("owner", Role::Owner)
}

fn list_text(host: &Host, kind: ListKind) -> String {
    let list = host.list_for(&owner_principal(), &EndpointScope::All, kind);
    String::from_utf8_lossy(&list.result).into_owned()
}

fn resource_subject(uri: &str) -> CallSubject {
    CallSubject::Resource(uri.into())
}

/// Returns the server that answered a read.
async fn reading_server(host: &Host, uri: &str) -> Result<String, CallError> {
    host.call(subject_call(resource_subject(uri), "uri"))
        .await
        .map(|reply| reply_body(&reply))
}

fn last_request(world: &SimWorld, server: &str) -> String {
    let record = world.record();
    record
        .server_requests(server)
        .last()
        .copied()
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test(start_paused = true)]
async fn prompts_are_prefixed_and_routed() {
    let (world, host) = two_servers(full_server("a", &[], &[]), full_server("b", &[], &[])).await;
    assert_eq!(
        list_text(&host, ListKind::Prompts),
        r#"{"prompts":[{ "x":1e400,"name":"a__p" },{ "x":1e400,"name":"b__p" }]}"#
    );
    let own = host.list_for(
        &owner_principal(),
        &EndpointScope::Server("b".into()),
        ListKind::Prompts,
    );
    assert_eq!(own.result, r#"{"prompts":[{ "x":1e400,"name":"p" }]}"#);

    let reply = host
        .call(subject_call(CallSubject::Prompt("b__p".into()), "name"))
        .await
        .unwrap();
    assert_eq!(reply_body(&reply), r#"{"from":"b"}"#);
    assert_eq!(last_request(&world, "b"), r#"prompts/get {"name":"p"}"#);
    let reply = host
        .call(subject_call(
            CallSubject::CompletePrompt("a__p".into()),
            "name",
        ))
        .await
        .unwrap();
    assert_eq!(reply_body(&reply), r#"{"from":"a"}"#);
    assert_eq!(
        last_request(&world, "a"),
        r#"completion/complete {"name":"p"}"#
    );
    let error = host
        .call(subject_call(CallSubject::Prompt("b__q".into()), "name"))
        .await
        .unwrap_err();
    assert_eq!(
        error,
        CallError::UnknownPrompt {
            prompt: "b__q".into()
        }
    );
}

#[tokio::test(start_paused = true)]
async fn shared_uri_is_qualified_by_server() {
    let (world, host) = two_servers(
        full_server("a", &["x:only", "x:both"], &[]),
        full_server("b", &["x:both", "bowline://a/x%3Aonly"], &[]),
    )
    .await;
    assert_eq!(
        list_text(&host, ListKind::Resources),
        concat!(
            r#"{"resources":[{ "x":1e400,"uri":"x:only" },"#,
            r#"{ "x":1e400,"uri":"bowline://a/x%3Aboth" },"#,
            r#"{ "x":1e400,"uri":"bowline://b/x%3Aboth" },"#,
            r#"{ "x":1e400,"uri":"bowline://b/bowline%3A%2F%2Fa%2Fx%253Aonly" }]}"#,
        )
    );
    assert_eq!(
        reading_server(&host, "x:only").await.unwrap(),
        r#"{"from":"a"}"#
    );
    assert_eq!(
        reading_server(&host, "bowline://b/x%3Aboth").await.unwrap(),
        r#"{"from":"b"}"#
    );
    assert_eq!(
        last_request(&world, "b"),
        r#"resources/read {"uri":"x:both"}"#
    );
    assert_eq!(
        reading_server(&host, "bowline://a/x%3Aany").await.unwrap(),
        r#"{"from":"a"}"#
    );
    assert_eq!(
        last_request(&world, "a"),
        r#"resources/read {"uri":"x:any"}"#
    );
    let twice = reading_server(&host, "x:both").await.unwrap_err();
    assert_eq!(
        twice,
        CallError::UnknownResource {
            uri: "x:both".into()
        },
        "none is guessed"
    );
    assert!(reading_server(&host, "bowline://none/x").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn uri_is_unqualified_after_other_server_goes() {
    let (_world, host) = two_servers(
        full_server("a", &["x:1"], &[]),
        full_server("b", &["x:1"], &[]),
    )
    .await;
    assert!(reading_server(&host, "x:1").await.is_err());
    let stopped = host.apply_action(
        "b",
        bowline_host::supervisor::ServerAction::Stop,
        std::time::Duration::ZERO,
    );
    stopped.await.unwrap();
    assert_eq!(
        reading_server(&host, "x:1").await.unwrap(),
        r#"{"from":"a"}"#
    );
}

#[tokio::test(start_paused = true)]
async fn unlisted_uri_is_routed_by_template() {
    let (world, host) = two_servers(
        full_server("a", &[], &["a:///{id}/data", "both:///{x}"]),
        full_server("b", &["a:///7/data"], &["b:///{+path}", "both:///{x}"]),
    )
    .await;
    assert_eq!(
        reading_server(&host, "a:///1/data").await.unwrap(),
        r#"{"from":"a"}"#
    );
    assert_eq!(
        reading_server(&host, "a:///7/data").await.unwrap(),
        r#"{"from":"b"}"#,
        "lists first"
    );
    assert_eq!(
        reading_server(&host, "b:///1/2/3").await.unwrap(),
        r#"{"from":"b"}"#
    );
    assert!(
        reading_server(&host, "both:///1").await.is_err(),
        "none is guessed"
    );
    assert!(reading_server(&host, "a:///1/2/data").await.is_err());

    let templates = list_text(&host, ListKind::Templates);
    assert!(
        templates.contains(r#""bowline://b/~both:///{x}""#),
        "{templates}"
    );
    assert_eq!(
        reading_server(&host, "bowline://b/~both:///a%2Fb")
            .await
            .unwrap(),
        r#"{"from":"b"}"#
    );
    assert_eq!(
        last_request(&world, "b"),
        r#"resources/read {"uri":"both:///a%2Fb"}"#
    );
    let complete = CallSubject::CompleteResource("bowline://a/~both:///{x}".into());
    let reply = host.call(subject_call(complete, "uri")).await.unwrap();
    assert_eq!(reply_body(&reply), r#"{"from":"a"}"#);
    assert_eq!(
        last_request(&world, "a"),
        r#"completion/complete {"uri":"both:///{x}"}"#
    );
}

#[tokio::test(start_paused = true)]
async fn shown_link_is_readable_by_session_only() {
    let result = concat!(
        r#"{"content":[{"type":"resource_link","uri":"z:\/1","name":"n"},"#,
        r#"{"type":"resource","resource":{"uri":"z:2","text":"t"}},{"type":"text","text":"z:3"}]}"#,
    );
    let shows = full_server("b", &[], &[])
        .with_behaviour("t", ToolBehaviour::RespondWith(result.to_owned()));
    let (world, host) = two_servers(full_server("a", &[], &[]), shows).await;
    let mut shown = tool_call("b__t", "{}");
    shown.message.client = Some(RecordingClient::new(1));
    host.call(shown).await.unwrap();

    for uri in ["z:/1", "z:2"] {
        for (session, knows) in [(1, true), (2, false)] {
            let mut read = subject_call(resource_subject(uri), "uri");
            read.message.client = Some(RecordingClient::new(session));
            assert_eq!(host.call(read).await.is_ok(), knows, "{uri} {session}");
        }
    }
    assert_eq!(last_request(&world, "b"), r#"resources/read {"uri":"z:2"}"#);
    let with = |uri: &str| {
        let mut read = subject_call(resource_subject(uri), "uri");
        read.message.client = Some(RecordingClient::new(1));
        read
    };
    assert!(host.call(with("z:3")).await.is_err(), "a text is no link");
    host.end_session(bowline_core::client_handle::SessionKey(1));
    assert!(host.call(with("z:2")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn server_endpoint_forwards_any_uri() {
    let error = r#"{"code":-32002,"message":"mine"}"#;
    let generation = GenerationScript::with_tools([("t", ToolBehaviour::Respond)])
        .with_initialize_result(CAPABILITIES)
        .respond_with_error("resources/read", "x:none", error)
        .respond_with("resources/read", "", "{}");
    let world = SimWorld::new([("a", ServerScript::always(generation))]);
    let host = ready_host(&world, &["a"]).await;
    let single = |subject, key| {
        let mut asked = subject_call(subject, key);
        asked.scope = EndpointScope::Server("a".into());
        asked
    };
    let reply = host
        .call(single(resource_subject("x:none"), "uri"))
        .await
        .unwrap();
    assert_eq!(
        (reply_body(&reply).as_str(), reply.response.body),
        (error, BodyKind::Error)
    );
    let addressed = host
        .call(single(resource_subject("bowline://a/x"), "uri"))
        .await
        .unwrap();
    assert_eq!(reply_body(&addressed), "{}");
    assert_eq!(
        last_request(&world, "a"),
        r#"resources/read {"uri":"bowline://a/x"}"#,
        "its own name"
    );
    let prompt = host
        .call(single(CallSubject::Prompt("none".into()), "name"))
        .await
        .unwrap();
    assert_eq!(prompt.response.body, BodyKind::Error);
}

#[tokio::test(start_paused = true)]
async fn hidden_items_cannot_be_used() {
    let (world, host) = two_servers(
        full_server("a", &["x:1"], &["t:{x}"]),
        full_server("b", &[], &[]),
    )
    .await;
    let nobody = Arc::new(Principal::new("nobody", Role::None));
    for kind in ListKind::ALL {
        let list = host.list_for(&nobody, &EndpointScope::All, kind);
        assert_eq!(list.result, format!(r#"{{"{}":[]}}"#, kind.member()));
    }
    let before = world.record().requests.len();
    for (subject, key) in [
        (resource_subject("x:1"), "uri"),
        (resource_subject("t:1"), "uri"),
        (resource_subject("bowline://a/x%3A1"), "uri"),
        (CallSubject::Prompt("a__p".into()), "name"),
        (CallSubject::CompletePrompt("a__p".into()), "name"),
        (CallSubject::CompleteResource("t:{x}".into()), "uri"),
    ] {
        for scope in [EndpointScope::All, EndpointScope::Server("a".into())] {
            let mut asked = subject_call(subject.clone(), key);
            asked.principal = Arc::clone(&nobody);
            let plain = scope == EndpointScope::All && !subject.name().contains("__");
            let plain = plain && !subject.name().starts_with("bowline:");
            asked.scope = scope;
            let error = host.call(asked).await.unwrap_err();
            match error {
                // Which server owns the URI must not be revealed.
                CallError::UnknownResource { .. } => assert!(plain, "{subject:?}"),
                error => assert!(
                    matches!(error, CallError::Denied { .. }) && !plain,
                    "{subject:?} {error}"
                ),
            }
        }
    }
    let caller: Arc<dyn bowline_core::client_handle::ClientHandle> = RecordingClient::new(1);
    let error = host
        .subscribe(&nobody, &EndpointScope::All, &caller, "x:1")
        .await
        .unwrap_err();
    assert!(
        matches!(error, CallError::UnknownResource { .. }),
        "{error}"
    );
    assert_eq!(world.record().requests.len(), before, "nothing was sent");
    let denied: u64 = host.denial_counts().iter().map(|(_, count)| count).sum();
    assert_eq!(denied, 13, "each was counted");
}

#[tokio::test(start_paused = true)]
async fn capabilities_are_merged_over_servers() {
    let plain = GenerationScript::with_tools([("t", ToolBehaviour::Respond)]);
    let (_world, host) = two_servers(full_server("a", &[], &[]), plain).await;
    let own = host.initialize_info(&owner_principal(), &EndpointScope::Server("a".into()));
    let capabilities = String::from_utf8_lossy(&own.capabilities).into_owned();
    assert_eq!(
        capabilities,
        concat!(
            r#"{"tools":{"listChanged":true},"prompts":{"listChanged":true},"#,
            r#""resources":{"listChanged":true,"subscribe":true},"completions":{},"#,
            r#""logging":{},"x":{"y":1}}"#,
        )
    );
    assert_eq!(own.server_info.unwrap(), r#"{"name":"n","vendor":7}"#);
    assert_eq!(own.instructions.unwrap(), r#""Mind the gap.""#);
    let all = host.initialize_info(&owner_principal(), &EndpointScope::All);
    let capabilities: serde_json::Value = serde_json::from_slice(&all.capabilities).unwrap();
    assert_eq!(capabilities["resources"]["subscribe"], true);
    assert!(capabilities.get("tasks").is_none() && capabilities.get("x").is_none());
    assert_eq!(all.instructions.unwrap(), r#""a: Mind the gap.""#);
    assert!(all.server_info.is_none());
    let plain = host.initialize_info(&owner_principal(), &EndpointScope::Server("b".into()));
    assert_eq!(plain.capabilities, r#"{"tools":{"listChanged":true}}"#);
    let later = host.initialize_info(&owner_principal(), &EndpointScope::Server("later".into()));
    let later: serde_json::Value = serde_json::from_slice(&later.capabilities).unwrap();
    for known in ["tools", "prompts", "resources", "logging", "completions"] {
        assert!(later.get(known).is_some(), "{known}");
    }
}

#[tokio::test(start_paused = true)]
async fn read_waits_for_starting_server() {
    let gate = bowline_testkit::ReleaseGate::new_closed();
    let world = SimWorld::new([(
        "a",
        ServerScript::always(full_server("a", &["x:1"], &[]).hang_start(&gate)),
    )]);
    let host = world.start_host(vec![server_spec("a")], HostLimits::default());
    let (read, ()) = tokio::join!(reading_server(&host, "x:1"), async { gate.release() });
    assert_eq!(read.unwrap(), r#"{"from":"a"}"#);
    let never = bowline_testkit::ReleaseGate::new_closed();
    let world = SimWorld::new([(
        "a",
        ServerScript::always(full_server("a", &["x:1"], &[]).hang_start(&never)),
    )]);
    let host = world.start_host(vec![server_spec("a")], HostLimits::default());
    assert!(
        reading_server(&host, "x:1").await.is_err(),
        "but not for ever"
    );
}
