//! The tools of a host, for peers: the same view and the same decisions as over MCP.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::caller::{Abilities, CallerEnd, Deaf, Question, QuestionId, SessionKey};
use bowline_core::era::Era;
use bowline_core::error::{Class, Execution};
use bowline_core::policy::RoleAllowlist;
use bowline_host::broker::{
    Credentials, Guests, HostBackend, Incoming, Ledger, ServeLimits, Serving, Visitors,
};
use bowline_host::catalog::{ListKind, Mirroring, Offer, Pages};
use bowline_host::tools::{ExecuteError, Toolbox};
use bowline_host::{
    Host, HostLimits, Principal, Role, Server, SpawnOptions, ToolOutput, ToolSchema,
};
use bowline_sim::{Generation, Script, World, reaches, spec};
use bowline_wire::broker::{Answer, Arguments, Ask, Context, From, Item};
use bytes::Bytes;
use serde_json::{Value, json};

use super::post::{Post, failure, output};

fn toolbox() -> Toolbox {
    let any = json!({"type": "object"});
    let reads = json!({"name": "read", "annotations": {"readOnlyHint": true}});
    Toolbox::default()
        .with(
            ("echo", "Says it."),
            &any,
            |arguments, context| async move {
                if let Some(caller) = &context.caller {
                    caller.push(Bytes::from_static(
                        b"{\"method\":\"notifications/progress\"}",
                    ));
                }
                Ok(ToolOutput::of_text(&String::from_utf8_lossy(
                    arguments.raw(),
                )))
            },
        )
        .with_schema(ToolSchema::from_definition(&reads).unwrap(), |_, _| async {
            let image = json!({"content": [{"type": "image", "data": "aGk=", "mimeType": "i/x"}],
                               "structuredContent": {"n": 1}, "isError": false});
            Ok(ToolOutput::from_result(image.to_string()))
        })
        .with(("refuse", ""), &any, |_, _| async {
            Err(ExecuteError::unknown("refuse"))
        })
}

async fn host() -> Host {
    let list = RoleAllowlist::unrestricted()
        .deny_others()
        .with_role("reader", ["own.read"])
        .with_role("all", ["own.*", "other.*"]);
    let host = Host::builder().policy(&list).build().unwrap();
    for name in ["own", "other"] {
        let server = Server::in_process(name, toolbox());
        host.spawn(server, SpawnOptions::default()).await.unwrap();
    }
    host
}

fn serving(host: &Host, backend: HostBackend) -> Serving {
    let ledger = Ledger::in_memory("hub").unwrap();
    let limits = ServeLimits::default();
    Serving::new(Arc::new(backend), ledger, limits, Arc::clone(host.clock()))
}

fn request(host: &Host, role: &str, ask: &Ask) -> Incoming {
    Incoming {
        from: From {
            session_id: "ann".into(),
            role: Some(role.into()),
            principal: None,
        },
        principal: Some(Arc::new(Principal::new("ann", Role::Named(role.into())))),
        id: "1".into(),
        body: ask.to_bytes(),
        deadline: host.clock().now().plus(Duration::from_secs(60)),
        sink: None,
    }
}

fn ask(server: Option<&str>, tool: &str, arguments: Arguments) -> Ask {
    Ask::Call {
        tool: tool.into(),
        server: server.map(Into::into),
        arguments,
    }
}

fn items(answer: Answer) -> Vec<Item> {
    match answer {
        Answer::Manifest { items, .. } => items,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_is_shown_what_its_principal_sees_over_mcp_with_what_may_be_repeated() {
    let host = host().await;
    let serving = serving(&host, HostBackend::new(host.clone()));
    let listed = items(serving.live(request(&host, "all", &Ask::Manifest)).await);
    let names: Vec<_> = listed
        .iter()
        .map(|item| {
            (
                &*item.name,
                item.server.as_deref(),
                item.tool.as_deref(),
                item.repeatable,
            )
        })
        .collect();
    assert_eq!(
        names[..2],
        [
            ("other__echo", Some("other"), Some("echo"), false),
            ("other__read", Some("other"), Some("read"), true),
        ]
    );
    assert_eq!(names.len(), 6);
    let definition: Value = serde_json::from_slice(&listed[0].definition).unwrap();
    assert_eq!(definition["name"], "other__echo");
    assert_eq!(definition["description"], "Says it.");
    let few = items(serving.live(request(&host, "reader", &Ask::Manifest)).await);
    assert_eq!(
        few.iter().map(|item| &*item.name).collect::<Vec<_>>(),
        ["own__read"]
    );
    let none = items(serving.live(request(&host, "nobody", &Ask::Manifest)).await);
    assert!(none.is_empty());
    let mut unknown = request(&host, "all", &Ask::Manifest);
    unknown.principal = None;
    let told = failure(serving.live(unknown).await);
    assert_eq!((&*told.code, told.class), ("policy_denied", Class::Denied));
}

#[tokio::test(start_paused = true)]
async fn the_revision_is_another_when_the_manifest_is_and_the_same_when_not() {
    let host = host().await;
    let serving = serving(&host, HostBackend::new(host.clone()));
    let revision = async |role: &str| match serving.live(request(&host, role, &Ask::Manifest)).await
    {
        Answer::Manifest { revision, .. } => revision,
        other => panic!("{other:?}"),
    };
    let first = revision("all").await;
    assert_eq!(revision("all").await, first);
    assert_ne!(revision("reader").await, first);
    let before = revision("reader").await;
    host.remove("other").await.unwrap();
    assert_ne!(revision("all").await, first);
    assert_eq!(revision("reader").await, before, "it never saw that server");
}

#[tokio::test(start_paused = true)]
async fn calls_go_by_visible_names_or_by_a_server_s_own_and_whole_results_come_back() {
    let host = host().await;
    let serving = serving(&host, HostBackend::new(host.clone()));
    let object = Bytes::from_static(br#"{"n":1.50,"s":"\u00e9"}"#);
    let whole = Bytes::from_static(br#"{"_meta":{"a":1},"arguments":{"n":1.50},"name":"echo"}"#);
    for (call, text) in [
        (
            ask(None, "own__echo", Arguments::Object(object.clone())),
            r#"{"n":1.50,"s":"\u00e9"}"#,
        ),
        (
            ask(Some("own"), "echo", Arguments::Object(object)),
            r#"{"n":1.50,"s":"\u00e9"}"#,
        ),
        (
            ask(Some("own"), "echo", Arguments::Params(whole)),
            r#"{"n":1.50}"#,
        ),
        (ask(Some("other"), "echo", Arguments::None), "{}"),
    ] {
        let answer = serving.live(request(&host, "all", &call)).await;
        assert_eq!(
            output(&answer).0["content"][0]["text"],
            text,
            "byte for byte"
        );
    }
    let read = ask(None, "own__read", Arguments::None);
    let (result, _) = output(&serving.live(request(&host, "reader", &read)).await);
    assert_eq!(result["content"][0]["data"], "aGk=");
    assert_eq!(
        (&result["structuredContent"], &result["isError"]),
        (&json!({"n": 1}), &json!(false))
    );
}

#[tokio::test(start_paused = true)]
async fn what_the_policy_or_the_catalog_refuses_is_told_in_the_same_words_as_over_mcp() {
    let host = host().await;
    let serving = serving(&host, HostBackend::new(host.clone()));
    for (server, tool, code, class) in [
        (None, "own__echo", "policy_denied", Class::Denied),
        (Some("own"), "echo", "policy_denied", Class::Denied),
        (Some("other"), "read", "policy_denied", Class::Denied),
        (None, "own__nope", "tool_not_found", Class::NotFound),
        (Some("nope"), "read", "server_not_found", Class::NotFound),
    ] {
        let call = ask(server, tool, Arguments::None);
        let told = failure(serving.live(request(&host, "reader", &call)).await);
        assert_eq!(
            (&*told.code, told.class),
            (code, class),
            "{server:?} {tool}"
        );
        assert_eq!(told.execution, Execution::NotStarted);
    }
    // The parameters of a call cannot name another tool than the one that is decided about.
    let other = Bytes::from_static(br#"{"name":"own__echo","arguments":{}}"#);
    let call = ask(None, "own__read", Arguments::Params(other));
    let told = failure(serving.live(request(&host, "reader", &call)).await);
    assert_eq!(&*told.code, "bad_request");
    // An error of the server itself is its own, whole.
    let call = ask(Some("own"), "refuse", Arguments::None);
    let Answer::Rpc { error, .. } = serving.live(request(&host, "all", &call)).await else {
        panic!("no error of the server")
    };
    let error: Value = serde_json::from_slice(&error).unwrap();
    assert_eq!(error["code"], -32602);
}

/// Hears what a tool says.
#[derive(Debug, Default)]
struct Ear(Mutex<Vec<Bytes>>);

impl CallerEnd for Ear {
    fn session(&self) -> SessionKey {
        SessionKey(0)
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn push(&self, notification: Bytes) {
        self.0.lock().unwrap().push(notification);
    }

    fn ask(&self, _: Question) -> Option<QuestionId> {
        None
    }

    fn withdraw(&self, _: QuestionId) {}

    fn home(&self) -> Arc<dyn CallerEnd> {
        Arc::new(Deaf::new(SessionKey(0)))
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_tool_says_before_it_answers_reaches_the_sink_of_its_request() {
    let host = host().await;
    let serving = serving(&host, HostBackend::new(host.clone()));
    let ear = Arc::new(Ear::default());
    let call = ask(None, "own__echo", Arguments::None);
    let mut stored = request(&host, "all", &call);
    stored.sink = Some(Arc::clone(&ear) as _);
    let post = Post::default();
    serving.stored(stored, &post).await;
    output(&post.answer());
    assert_eq!(ear.0.lock().unwrap().len(), 1);
}

/// A worker's rules: one server is for others, and who asks is known by its role.
#[derive(Debug)]
struct OneServer;

impl Guests for OneServer {
    fn principal(&self, from: &From) -> Option<Arc<Principal>> {
        let role = Role::Named(from.role.clone()?);
        Some(Arc::new(Principal::new("hub:h", role)))
    }

    fn serves(&self, server: &str) -> bool {
        server == "own"
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_checks_the_stamped_role_itself_and_has_only_what_it_offers() {
    let host = host().await;
    let backend = HostBackend::with_guests(host.clone(), Arc::new(OneServer));
    let serving = serving(&host, backend);
    let listed = items(serving.live(request(&host, "all", &Ask::Manifest)).await);
    let names: Vec<_> = listed.iter().map(|item| &*item.name).collect();
    assert_eq!(names, ["own__echo", "own__read", "own__refuse"]);
    let told = async |role: &str, server: Option<&str>, tool: &str| {
        let call = ask(server, tool, Arguments::None);
        failure(serving.live(request(&host, role, &call)).await)
    };
    // What the hub let through is decided again, by the role and not by the hub's principal.
    assert_eq!(
        &*told("reader", Some("own"), "echo").await.code,
        "policy_denied"
    );
    assert_eq!(
        &*told("undefined", Some("own"), "read").await.code,
        "policy_denied"
    );
    for (server, tool) in [(Some("other"), "read"), (None, "other__read")] {
        let told = told("all", server, tool).await;
        assert_eq!(&*told.code, "tool_not_found", "as if it were not there");
    }
    let call = ask(Some("own"), "read", Arguments::None);
    let mut nobody = request(&host, "all", &call);
    nobody.from.role = None;
    assert_eq!(&*failure(serving.live(nobody).await).code, "policy_denied");
    output(&serving.live(request(&host, "reader", &call)).await);
}

/// Says that one credential was taken back.
#[derive(Debug)]
struct Lost(&'static str);

impl Credentials for Lost {
    fn is_revoked(&self, credential: &str) -> bool {
        credential == self.0
    }
}

#[tokio::test]
async fn a_request_under_a_credential_that_was_revoked_since_is_not_carried_out() {
    let host = host().await;
    let backend = HostBackend::new(host.clone()).heeding(Arc::new(Lost("t1")));
    let serving = serving(&host, backend);
    let echo = ask(None, "own__echo", Arguments::None);
    let under = |credential: &str, id: &str| {
        let ann = Principal {
            credential: credential.into(),
            ..Principal::new("ann", Role::Named("all".into()))
        };
        Incoming {
            principal: Some(Arc::new(ann)),
            id: id.into(),
            ..request(&host, "all", &echo)
        }
    };
    let refused = failure(serving.live(under("t1", "1")).await);
    assert_eq!(
        (refused.class, refused.execution),
        (Class::Denied, Execution::NotStarted)
    );
    output(&serving.live(under("t2", "2")).await);
}

/// Asks for the tools of a server as the hub does.
async fn listed_for_the_hub(generation: Generation) -> (String, Era) {
    let world = World::new([("own", Script::always(generation))]);
    let host = world.host(vec![spec("own")], HostLimits::default());
    assert!(reaches(&host, "own", "ready").await);
    let backend = HostBackend::with_guests(host.clone(), Arc::new(OneServer));
    let serving = serving(&host, backend.for_visitors(&Visitors::of(&host)));
    let ask = Ask::Mcp {
        server: "own".into(),
        method: "tools/list".into(),
        params: None,
        context: Context::default(),
    };
    let from = From {
        session_id: "hub".into(),
        role: None,
        principal: None,
    };
    let asked = Incoming {
        from,
        principal: None,
        ..request(&host, "all", &ask)
    };
    match serving.live(asked).await {
        Answer::Output { result, era, .. } => (String::from_utf8_lossy(&result).into(), era),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_hub_learns_in_which_era_the_definitions_of_a_list_are_written() {
    let odd = r#"{"name":"a","inputSchema":{"type":"object"},"outputSchema":{"type":"array"}}"#;
    let keep = r#""ttlMs":60000,"cacheScope":"public""#;
    let modern = format!(r#"{{"tools":[{odd}],"resultType":"complete",{keep}}}"#);
    let generation = Generation::definitions(&[]).raw_page("", &modern);
    let (page, era) = listed_for_the_hub(generation).await;
    assert_eq!((page.as_str(), era), (modern.as_str(), Era::Modern));
    // The hub writes them anew for clients that would refuse them.
    let pages = Pages::from(|kind| match kind {
        ListKind::Tools => Some(vec![Bytes::from(page.clone())]),
        _ => None,
    });
    let rules = (&BTreeMap::new(), Mirroring::Idle);
    let offer = Offer::new(
        &"s".into(),
        &Bytes::from_static(b"{}"),
        &pages,
        rules,
        None,
        None,
    );
    let told = offer.tools.listing.for_legacy();
    let even = r#"{"tools":[{"name":"a","inputSchema":{"type":"object"}}]}"#;
    assert_eq!(told.result, even);
    // What a server of the older era writes is its own.
    let plain = format!(r#"{{"tools":[{odd}]}}"#);
    let generation = Generation::definitions(&[]).raw_page("", &plain);
    assert_eq!(listed_for_the_hub(generation).await, (plain, Era::Legacy));
}
