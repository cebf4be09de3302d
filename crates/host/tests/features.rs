//! Prompts, resources and completion: how they are listed for all servers and find their own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;

use bowline_core::call::{Body, Principal, Role, Scope, Subject};
use bowline_core::error::CallError;
use bowline_host::catalog::ListKind;
use bowline_host::{Host, HostLimits};
use bowline_link::LinkEvent;
use bowline_sim::{Act, Generation, Hearer, Script, World, ask, body, call, reaches, spec};

const CAPABILITIES: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"#,
    r#""resources":{"subscribe":true},"completions":{},"logging":{},"x":{"y":1}},"#,
    r#""serverInfo":{"name":"n","vendor":7},"instructions":"Mind the gap."}"#,
);

/// A server with one prompt, resources and templates that answers each of its requests with its
/// own name.
fn full(server: &str, resources: &[&str], templates: &[&str]) -> Generation {
    let list = |member: &str, key: &str, ids: &[&str]| {
        let items: Vec<_> = ids
            .iter()
            .map(|id| format!(r#"{{ "x":1e400,"{key}":"{id}" }}"#))
            .collect();
        format!(r#"{{"{member}":[{}]}}"#, items.join(","))
    };
    let result = format!(r#"{{"from":"{server}"}}"#);
    Generation::tools([("t", Act::Answers)])
        .introduces(CAPABILITIES)
        .answers("prompts/list", "", &list("prompts", "name", &["p"]))
        .answers("resources/list", "", &list("resources", "uri", resources))
        .answers(
            "resources/templates/list",
            "",
            &list("resourceTemplates", "uriTemplate", templates),
        )
        .answers("prompts/get", "", &result)
        .answers("resources/read", "", &result)
        .answers("completion/complete", "", &result)
}

async fn host(world: &World, names: &[&str]) -> Host {
    let specs = names.iter().map(|name| spec(name)).collect();
    let host = world.host(specs, HostLimits::default());
    for name in names {
        assert!(reaches(&host, name, "ready").await);
    }
    host
}

async fn two(a: Generation, b: Generation) -> (World, Host) {
    let world = World::new([("a", Script::always(a)), ("b", Script::always(b))]);
    let host = host(&world, &["a", "b"]).await;
    (world, host)
}

fn owner() -> Principal {
    Principal::new("owner", Role::Owner)
}

fn listed(host: &Host, kind: ListKind) -> String {
    let list = host.view(&owner(), &Scope::All, kind);
    String::from_utf8_lossy(&list.result).into_owned()
}

fn resource(uri: &str) -> Subject {
    Subject::Resource(uri.into())
}

/// Returns the server that answered a read.
async fn reads(host: &Host, uri: &str) -> Result<String, CallError> {
    host.call(ask(resource(uri), "uri"))
        .await
        .map(|reply| body(&reply))
}

fn last(world: &World, server: &str) -> String {
    let record = world.record();
    record
        .requests_of(server)
        .last()
        .copied()
        .unwrap_or_default()
        .to_owned()
}

#[tokio::test(start_paused = true)]
async fn prompts_are_listed_with_their_server_and_asked_for_by_their_own_name() {
    let (world, host) = two(full("a", &[], &[]), full("b", &[], &[])).await;
    assert_eq!(
        listed(&host, ListKind::Prompts),
        r#"{"prompts":[{ "x":1e400,"name":"a__p" },{ "x":1e400,"name":"b__p" }]}"#
    );
    let own = host.view(&owner(), &Scope::Server("b".into()), ListKind::Prompts);
    assert_eq!(own.result, r#"{"prompts":[{ "x":1e400,"name":"p" }]}"#);

    let reply = host
        .call(ask(Subject::Prompt("b__p".into()), "name"))
        .await
        .unwrap();
    assert_eq!(body(&reply), r#"{"from":"b"}"#);
    assert_eq!(last(&world, "b"), r#"prompts/get {"name":"p"}"#);
    let reply = host
        .call(ask(Subject::CompletePrompt("a__p".into()), "name"))
        .await
        .unwrap();
    assert_eq!(body(&reply), r#"{"from":"a"}"#);
    assert_eq!(last(&world, "a"), r#"completion/complete {"name":"p"}"#);
    let error = host
        .call(ask(Subject::Prompt("b__q".into()), "name"))
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
async fn a_uri_of_one_server_stays_and_one_of_two_names_its_server() {
    let (world, host) = two(
        full("a", &["x:only", "x:both"], &[]),
        full("b", &["x:both", "bowline://a/x%3Aonly"], &[]),
    )
    .await;
    assert_eq!(
        listed(&host, ListKind::Resources),
        concat!(
            r#"{"resources":[{ "x":1e400,"uri":"x:only" },"#,
            r#"{ "x":1e400,"uri":"bowline://a/x%3Aboth" },"#,
            r#"{ "x":1e400,"uri":"bowline://b/x%3Aboth" },"#,
            r#"{ "x":1e400,"uri":"bowline://b/bowline%3A%2F%2Fa%2Fx%253Aonly" }]}"#,
        )
    );
    assert_eq!(reads(&host, "x:only").await.unwrap(), r#"{"from":"a"}"#);
    assert_eq!(
        reads(&host, "bowline://b/x%3Aboth").await.unwrap(),
        r#"{"from":"b"}"#
    );
    assert_eq!(last(&world, "b"), r#"resources/read {"uri":"x:both"}"#);
    assert_eq!(
        reads(&host, "bowline://a/x%3Aany").await.unwrap(),
        r#"{"from":"a"}"#
    );
    assert_eq!(last(&world, "a"), r#"resources/read {"uri":"x:any"}"#);
    let twice = reads(&host, "x:both").await.unwrap_err();
    assert_eq!(
        twice,
        CallError::UnknownResource {
            uri: "x:both".into()
        },
        "none is guessed"
    );
    assert!(reads(&host, "bowline://none/x").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_uri_becomes_plain_again_when_the_other_server_goes() {
    let (_world, host) = two(full("a", &["x:1"], &[]), full("b", &["x:1"], &[])).await;
    assert!(reads(&host, "x:1").await.is_err());
    let stopped = host.order(
        "b",
        bowline_host::supervisor::Order::Stop,
        std::time::Duration::ZERO,
    );
    stopped.await.unwrap();
    assert_eq!(reads(&host, "x:1").await.unwrap(), r#"{"from":"a"}"#);
}

#[tokio::test(start_paused = true)]
async fn a_uri_in_no_list_goes_to_the_one_server_with_a_template_for_it() {
    let (world, host) = two(
        full("a", &[], &["a:///{id}/data", "both:///{x}"]),
        full("b", &["a:///7/data"], &["b:///{+path}", "both:///{x}"]),
    )
    .await;
    assert_eq!(
        reads(&host, "a:///1/data").await.unwrap(),
        r#"{"from":"a"}"#
    );
    assert_eq!(
        reads(&host, "a:///7/data").await.unwrap(),
        r#"{"from":"b"}"#,
        "lists first"
    );
    assert_eq!(reads(&host, "b:///1/2/3").await.unwrap(), r#"{"from":"b"}"#);
    assert!(reads(&host, "both:///1").await.is_err(), "none is guessed");
    assert!(reads(&host, "a:///1/2/data").await.is_err());

    let templates = listed(&host, ListKind::Templates);
    assert!(
        templates.contains(r#""bowline://b/~both:///{x}""#),
        "{templates}"
    );
    assert_eq!(
        reads(&host, "bowline://b/~both:///a%2Fb").await.unwrap(),
        r#"{"from":"b"}"#
    );
    assert_eq!(
        last(&world, "b"),
        r#"resources/read {"uri":"both:///a%2Fb"}"#
    );
    let complete = Subject::CompleteResource("bowline://a/~both:///{x}".into());
    let reply = host.call(ask(complete, "uri")).await.unwrap();
    assert_eq!(body(&reply), r#"{"from":"a"}"#);
    assert_eq!(
        last(&world, "a"),
        r#"completion/complete {"uri":"both:///{x}"}"#
    );
}

#[tokio::test(start_paused = true)]
async fn a_link_that_a_tool_showed_is_read_by_that_session_only() {
    let result = concat!(
        r#"{"content":[{"type":"resource_link","uri":"z:\/1","name":"n"},"#,
        r#"{"type":"resource","resource":{"uri":"z:2","text":"t"}},{"type":"text","text":"z:3"}]}"#,
    );
    let shows = full("b", &[], &[]).act("t", Act::Says(result.to_owned()));
    let (world, host) = two(full("a", &[], &[]), shows).await;
    let mut shown = call("b__t", "{}");
    shown.caller = Some(Hearer::of(1));
    host.call(shown).await.unwrap();

    for uri in ["z:/1", "z:2"] {
        for (session, knows) in [(1, true), (2, false)] {
            let mut read = ask(resource(uri), "uri");
            read.caller = Some(Hearer::of(session));
            assert_eq!(host.call(read).await.is_ok(), knows, "{uri} {session}");
        }
    }
    assert_eq!(last(&world, "b"), r#"resources/read {"uri":"z:2"}"#);
    let with = |uri: &str| {
        let mut read = ask(resource(uri), "uri");
        read.caller = Some(Hearer::of(1));
        read
    };
    assert!(host.call(with("z:3")).await.is_err(), "a text is no link");
    host.session_ended(bowline_core::caller::SessionKey(1));
    assert!(host.call(with("z:2")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_single_server_is_asked_for_any_uri_and_its_error_is_the_answer() {
    let error = r#"{"code":-32002,"message":"mine"}"#;
    let generation = Generation::tools([("t", Act::Answers)])
        .introduces(CAPABILITIES)
        .refuses("resources/read", "x:none", error)
        .answers("resources/read", "", "{}");
    let world = World::new([("a", Script::always(generation))]);
    let host = host(&world, &["a"]).await;
    let single = |subject, key| {
        let mut asked = ask(subject, key);
        asked.scope = Scope::Server("a".into());
        asked
    };
    let reply = host.call(single(resource("x:none"), "uri")).await.unwrap();
    assert_eq!((body(&reply).as_str(), reply.body), (error, Body::Error));
    let addressed = host
        .call(single(resource("bowline://a/x"), "uri"))
        .await
        .unwrap();
    assert_eq!(body(&addressed), "{}");
    assert_eq!(
        last(&world, "a"),
        r#"resources/read {"uri":"bowline://a/x"}"#,
        "its own name"
    );
    let prompt = host
        .call(single(Subject::Prompt("none".into()), "name"))
        .await
        .unwrap();
    assert_eq!(prompt.body, Body::Error);
}

#[tokio::test(start_paused = true)]
async fn what_a_view_hides_cannot_be_used_either() {
    let (world, host) = two(full("a", &["x:1"], &["t:{x}"]), full("b", &[], &[])).await;
    let nobody = Arc::new(Principal::new("nobody", Role::None));
    for kind in ListKind::ALL {
        let list = host.view(&nobody, &Scope::All, kind);
        assert_eq!(list.result, format!(r#"{{"{}":[]}}"#, kind.member()));
    }
    let before = world.record().requests.len();
    for (subject, key) in [
        (resource("x:1"), "uri"),
        (resource("t:1"), "uri"),
        (resource("bowline://a/x%3A1"), "uri"),
        (Subject::Prompt("a__p".into()), "name"),
        (Subject::CompletePrompt("a__p".into()), "name"),
        (Subject::CompleteResource("t:{x}".into()), "uri"),
    ] {
        for scope in [Scope::All, Scope::Server("a".into())] {
            let mut asked = ask(subject.clone(), key);
            asked.principal = Arc::clone(&nobody);
            let plain = scope == Scope::All && !subject.name().contains("__");
            let plain = plain && !subject.name().starts_with("bowline:");
            asked.scope = scope;
            let error = host.call(asked).await.unwrap_err();
            match error {
                // Whose a URI is, is not for it to know.
                CallError::UnknownResource { .. } => assert!(plain, "{subject:?}"),
                error => assert!(
                    matches!(error, CallError::Denied { .. }) && !plain,
                    "{subject:?} {error}"
                ),
            }
        }
    }
    let caller: Arc<dyn bowline_core::caller::CallerEnd> = Hearer::of(1);
    let error = host
        .subscribe(&nobody, &Scope::All, &caller, "x:1")
        .await
        .unwrap_err();
    assert!(
        matches!(error, CallError::UnknownResource { .. }),
        "{error}"
    );
    assert_eq!(world.record().requests.len(), before, "nothing was sent");
    let denied: u64 = host.denials().iter().map(|(_, count)| count).sum();
    assert_eq!(denied, 13, "each was counted");
}

#[tokio::test(start_paused = true)]
async fn a_server_is_not_asked_for_what_it_does_not_declare() {
    let world = World::new([(
        "a",
        Script::always(Generation::tools([("t", Act::Answers)])),
    )]);
    let host = host(&world, &["a"]).await;
    assert_eq!(world.record().requests_of("a"), [""; 0]);
    assert_eq!(
        listed(&host, ListKind::Templates),
        r#"{"resourceTemplates":[]}"#
    );
}

#[tokio::test(start_paused = true)]
async fn a_list_that_fails_leaves_the_tools_and_the_other_lists() {
    let tools = || Generation::tools([("t", Act::Answers)]).introduces(CAPABILITIES);
    let prompts = r#"{"prompts":[{"name":"p"}]}"#;
    let circle = r#"{"resources":[{"uri":"x:1"}],"nextCursor":"c"}"#;
    for (generation, reason) in [
        (
            tools()
                .answers("prompts/list", "", prompts)
                .answers("resources/list", "", circle),
            Some("resources/list repeats a cursor"),
        ),
        (
            tools()
                .answers("prompts/list", "", prompts)
                .ignores("resources/list"),
            Some("resources/list failed: no answer in time"),
        ),
        // A method that is not known is a list of nothing.
        (tools().answers("prompts/list", "", prompts), None),
    ] {
        let world = World::new([("a", Script::always(generation))]);
        let host = host(&world, &["a"]).await;
        assert_eq!(listed(&host, ListKind::Resources), r#"{"resources":[]}"#);
        assert!(listed(&host, ListKind::Prompts).contains("a__p"));
        assert!(host.call(call("a__t", "{}")).await.is_ok());
        let said = host.status_of("a").unwrap().last_error;
        assert_eq!(said.as_ref().map(|error| &*error.message), reason);
    }
}

#[tokio::test(start_paused = true)]
async fn changed_prompts_and_resources_are_listed_anew_and_by_themselves() {
    let world = World::new([("a", Script::always(full("a", &["x:1"], &[])))]);
    let host = host(&world, &["a"]).await;
    let mut changes = host.catalog_changes();
    changes.borrow_and_update();
    let tools = host
        .view(&owner(), &Scope::All, ListKind::Tools)
        .fingerprint;
    world
        .link("a")
        .unwrap()
        .follow(full("a", &["x:2"], &["t:{x}"]));
    assert!(world.say("a", LinkEvent::ResourcesChanged));
    changes.changed().await.unwrap();
    assert!(listed(&host, ListKind::Resources).contains("x:2"));
    assert!(listed(&host, ListKind::Templates).contains("t:{x}"));
    assert_eq!(
        host.view(&owner(), &Scope::All, ListKind::Tools)
            .fingerprint,
        tools
    );
    let asked = world
        .record()
        .requests_of("a")
        .iter()
        .filter(|r| r.starts_with("prompts"))
        .count();
    assert_eq!(asked, 1, "prompts were not asked for again");
    assert!(world.say("a", LinkEvent::PromptsChanged));
    let record = world.until(|record| record.requests_of("a").len() == 6);
    let record = record.await;
    assert_eq!(record.requests_of("a").last(), Some(&"prompts/list"));
}

#[tokio::test(start_paused = true)]
async fn one_server_introduces_itself_and_all_together_say_what_any_of_them_can() {
    let plain = Generation::tools([("t", Act::Answers)]);
    let (_world, host) = two(full("a", &[], &[]), plain).await;
    let own = host.introduction(&owner(), &Scope::Server("a".into()));
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
    let all = host.introduction(&owner(), &Scope::All);
    let capabilities: serde_json::Value = serde_json::from_slice(&all.capabilities).unwrap();
    assert_eq!(capabilities["resources"]["subscribe"], true);
    assert!(capabilities.get("tasks").is_none() && capabilities.get("x").is_none());
    assert_eq!(all.instructions.unwrap(), r#""a: Mind the gap.""#);
    assert!(all.server_info.is_none());
    let plain = host.introduction(&owner(), &Scope::Server("b".into()));
    assert_eq!(plain.capabilities, r#"{"tools":{"listChanged":true}}"#);
    let later = host.introduction(&owner(), &Scope::Server("later".into()));
    let later: serde_json::Value = serde_json::from_slice(&later.capabilities).unwrap();
    for known in ["tools", "prompts", "resources", "logging", "completions"] {
        assert!(later.get(known).is_some(), "{known}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_waits_for_a_server_that_is_still_starting() {
    let gate = bowline_sim::Gate::closed();
    let world = World::new([("a", Script::always(full("a", &["x:1"], &[]).hangs(&gate)))]);
    let host = world.host(vec![spec("a")], HostLimits::default());
    let (read, ()) = tokio::join!(reads(&host, "x:1"), async { gate.release() });
    assert_eq!(read.unwrap(), r#"{"from":"a"}"#);
    let never = bowline_sim::Gate::closed();
    let world = World::new([("a", Script::always(full("a", &["x:1"], &[]).hangs(&never)))]);
    let host = world.host(vec![spec("a")], HostLimits::default());
    assert!(reads(&host, "x:1").await.is_err(), "but not for ever");
}
