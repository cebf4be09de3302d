//! Tools of a host for peers: same view and same decisions as over MCP.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::client_handle::{
    ClientCapabilities, ClientHandle, NullClient, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::era::Era;
use bowline_core::error::{ExecutionStatus, FailureClass};
use bowline_core::policy::RoleAllowlist;
use bowline_host::broker::frames::{
    BrokerArguments, BrokerRequest, BrokerResponse, CallerContext, ManifestItem, MessageSender,
};
use bowline_host::broker::{
    CallerMapping, CredentialRevocations, HostBackend, RemoteSessions, RequestLedger, ServeEngine,
    ServeLimits, ServeRequest,
};
use bowline_host::catalog::{HeaderParamPolicy, ListKind, ListPages, ServerCatalog};
use bowline_host::tools::{ExecuteError, Toolbox};
use bowline_host::{
    Host, HostLimits, Principal, Role, Server, SpawnOptions, ToolOutput, ToolSchema,
};
use bowline_testkit::serve_rig::{RecordingReplySink, failure, output, request_message};
use bowline_testkit::{GenerationScript, ServerScript, SimWorld, server_spec, wait_for_state};
use bytes::Bytes;
use serde_json::{Value, json};

fn toolbox() -> Toolbox {
    let any = json!({"type": "object"});
    let reads = json!({"name": "read", "annotations": {"readOnlyHint": true}});
    Toolbox::default()
        .with("echo", "Says it.", &any, |arguments, context| async move {
            if let Some(caller) = &context.caller {
                caller.notify(Bytes::from_static(
                    b"{\"method\":\"notifications/progress\"}",
                ));
            }
            Ok(ToolOutput::from_text(&String::from_utf8_lossy(
                arguments.raw(),
            )))
        })
        .with_schema(ToolSchema::from_definition(&reads).unwrap(), |_, _| async {
            let image = json!({"content": [{"type": "image", "data": "aGk=", "mimeType": "i/x"}],
                               "structuredContent": {"n": 1}, "isError": false});
            Ok(ToolOutput::from_result(image.to_string()))
        })
        .with("refuse", "", &any, |_, _| async {
            Err(ExecuteError::unknown_tool("refuse"))
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

fn serving(host: &Host, backend: HostBackend) -> ServeEngine {
    let ledger = RequestLedger::in_memory("hub").unwrap();
    let limits = ServeLimits::default();
    ServeEngine::new(Arc::new(backend), ledger, limits, Arc::clone(host.clock()))
}

fn request(host: &Host, role: &str, ask: &BrokerRequest) -> ServeRequest {
    ServeRequest {
        sender: MessageSender {
            session_id: "ann".into(),
            role: Some(role.into()),
            principal: None,
        },
        principal: Some(Arc::new(Principal::new("ann", Role::Named(role.into())))),
        message: request_message("1", &ask.to_bytes()),
        deadline: host.clock().now().plus(Duration::from_secs(60)),
        client: None,
    }
}

fn call_request(server: Option<&str>, tool: &str, arguments: BrokerArguments) -> BrokerRequest {
    BrokerRequest::Call {
        tool: tool.into(),
        server: server.map(Into::into),
        arguments,
    }
}

fn items(answer: BrokerResponse) -> Vec<ManifestItem> {
    match answer {
        BrokerResponse::Manifest { items, .. } => items,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn peer_manifest_matches_the_mcp_view() {
    let host = host().await;
    let serving = serving(&host, HostBackend::new(host.clone()));
    let listed = items(
        serving
            .handle_live(request(&host, "all", &BrokerRequest::Manifest))
            .await,
    );
    let names: Vec<_> = listed
        .iter()
        .map(|item| {
            (
                &*item.name,
                item.server.as_deref(),
                item.tool.as_deref(),
                item.is_repeatable,
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
    let few = items(
        serving
            .handle_live(request(&host, "reader", &BrokerRequest::Manifest))
            .await,
    );
    assert_eq!(
        few.iter().map(|item| &*item.name).collect::<Vec<_>>(),
        ["own__read"]
    );
    let none = items(
        serving
            .handle_live(request(&host, "nobody", &BrokerRequest::Manifest))
            .await,
    );
    assert!(none.is_empty());
    let mut unknown = request(&host, "all", &BrokerRequest::Manifest);
    unknown.principal = None;
    let told = failure(serving.handle_live(unknown).await);
    assert_eq!(
        (&*told.code, told.class),
        ("policy_denied", FailureClass::Denied)
    );
}

#[tokio::test(start_paused = true)]
async fn revision_changes_only_with_the_manifest() {
    let host = host().await;
    let serving = serving(&host, HostBackend::new(host.clone()));
    let revision = async |role: &str| match serving
        .handle_live(request(&host, role, &BrokerRequest::Manifest))
        .await
    {
        BrokerResponse::Manifest { revision, .. } => revision,
        other => panic!("{other:?}"),
    };
    let first = revision("all").await;
    assert_eq!(revision("all").await, first);
    assert_ne!(revision("reader").await, first);
    let before = revision("reader").await;
    host.remove_server("other").await.unwrap();
    assert_ne!(revision("all").await, first);
    assert_eq!(revision("reader").await, before, "it never saw that server");
}

#[tokio::test(start_paused = true)]
async fn calls_accept_visible_and_own_names() {
    let host = host().await;
    let serving = serving(&host, HostBackend::new(host.clone()));
    let object = Bytes::from_static(br#"{"n":1.50,"s":"\u00e9"}"#);
    let whole = Bytes::from_static(br#"{"_meta":{"a":1},"arguments":{"n":1.50},"name":"echo"}"#);
    for (call, text) in [
        (
            call_request(None, "own__echo", BrokerArguments::Object(object.clone())),
            r#"{"n":1.50,"s":"\u00e9"}"#,
        ),
        (
            call_request(Some("own"), "echo", BrokerArguments::Object(object)),
            r#"{"n":1.50,"s":"\u00e9"}"#,
        ),
        (
            call_request(Some("own"), "echo", BrokerArguments::Params(whole)),
            r#"{"n":1.50}"#,
        ),
        (
            call_request(Some("other"), "echo", BrokerArguments::None),
            "{}",
        ),
    ] {
        let answer = serving.handle_live(request(&host, "all", &call)).await;
        assert_eq!(
            output(&answer).0["content"][0]["text"],
            text,
            "byte for byte"
        );
    }
    let read = call_request(None, "own__read", BrokerArguments::None);
    let (result, _) = output(&serving.handle_live(request(&host, "reader", &read)).await);
    assert_eq!(result["content"][0]["data"], "aGk=");
    assert_eq!(
        (&result["structuredContent"], &result["isError"]),
        (&json!({"n": 1}), &json!(false))
    );
}

#[tokio::test(start_paused = true)]
async fn refusals_match_the_mcp_wording() {
    let host = host().await;
    let serving = serving(&host, HostBackend::new(host.clone()));
    for (server, tool, code, class) in [
        (None, "own__echo", "policy_denied", FailureClass::Denied),
        (Some("own"), "echo", "policy_denied", FailureClass::Denied),
        (Some("other"), "read", "policy_denied", FailureClass::Denied),
        (None, "own__nope", "tool_not_found", FailureClass::NotFound),
        (
            Some("nope"),
            "read",
            "server_not_found",
            FailureClass::NotFound,
        ),
    ] {
        let call = call_request(server, tool, BrokerArguments::None);
        let told = failure(serving.handle_live(request(&host, "reader", &call)).await);
        assert_eq!(
            (&*told.code, told.class),
            (code, class),
            "{server:?} {tool}"
        );
        assert_eq!(told.execution, ExecutionStatus::NotStarted);
    }
    // The params must name the tool that the policy decided about.
    let other = Bytes::from_static(br#"{"name":"own__echo","arguments":{}}"#);
    let call = call_request(None, "own__read", BrokerArguments::Params(other));
    let told = failure(serving.handle_live(request(&host, "reader", &call)).await);
    assert_eq!(&*told.code, "bad_request");
    // A server's own error passes unchanged.
    let call = call_request(Some("own"), "refuse", BrokerArguments::None);
    let BrokerResponse::RpcError { error, .. } =
        serving.handle_live(request(&host, "all", &call)).await
    else {
        panic!("no error of the server")
    };
    let error: Value = serde_json::from_slice(&error).unwrap();
    assert_eq!(error["code"], -32602);
}

/// Records notifications.
#[derive(Debug, Default)]
struct EventRecorder(Mutex<Vec<Bytes>>);

impl ClientHandle for EventRecorder {
    fn session(&self) -> SessionKey {
        SessionKey(0)
    }

    fn capabilities(&self) -> ClientCapabilities {
        ClientCapabilities::default()
    }

    fn notify(&self, notification: Bytes) {
        self.0.lock().unwrap().push(notification);
    }

    fn request(&self, _: ServerRequest) -> Option<ServerRequestId> {
        None
    }

    fn cancel_request(&self, _: ServerRequestId) {}

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        Arc::new(NullClient::new(SessionKey(0)))
    }
}

#[tokio::test(start_paused = true)]
async fn tool_notifications_reach_the_client() {
    let host = host().await;
    let serving = serving(&host, HostBackend::new(host.clone()));
    let ear = Arc::new(EventRecorder::default());
    let call = call_request(None, "own__echo", BrokerArguments::None);
    let mut stored = request(&host, "all", &call);
    stored.client = Some(Arc::clone(&ear) as _);
    let post = RecordingReplySink::default();
    serving.handle_stored(stored, &post).await;
    output(&post.single_reply());
    assert_eq!(ear.0.lock().unwrap().len(), 1);
}

/// A worker's rules: one offered server, and senders mapped by role.
#[derive(Debug)]
struct OneServer;

impl CallerMapping for OneServer {
    fn map_sender(&self, from: &MessageSender) -> Option<Arc<Principal>> {
        let role = Role::Named(from.role.clone()?);
        Some(Arc::new(Principal::new("hub:h", role)))
    }

    fn is_server_offered(&self, server: &str) -> bool {
        server == "own"
    }
}

#[tokio::test(start_paused = true)]
async fn worker_checks_role_and_offered_servers() {
    let host = host().await;
    let backend = HostBackend::with_caller_mapping(host.clone(), Arc::new(OneServer));
    let serving = serving(&host, backend);
    let listed = items(
        serving
            .handle_live(request(&host, "all", &BrokerRequest::Manifest))
            .await,
    );
    let names: Vec<_> = listed.iter().map(|item| &*item.name).collect();
    assert_eq!(names, ["own__echo", "own__read", "own__refuse"]);
    let told = async |role: &str, server: Option<&str>, tool: &str| {
        let call = call_request(server, tool, BrokerArguments::None);
        failure(serving.handle_live(request(&host, role, &call)).await)
    };
    // The worker decides again, by role and not by the hub's principal.
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
    let call = call_request(Some("own"), "read", BrokerArguments::None);
    let mut nobody = request(&host, "all", &call);
    nobody.sender.role = None;
    assert_eq!(
        &*failure(serving.handle_live(nobody).await).code,
        "policy_denied"
    );
    output(&serving.handle_live(request(&host, "reader", &call)).await);
}

/// Marks one credential as revoked.
#[derive(Debug)]
struct RevokedCredential(&'static str);

impl CredentialRevocations for RevokedCredential {
    fn is_revoked(&self, credential: &str) -> bool {
        credential == self.0
    }
}

#[tokio::test]
async fn revoked_credential_prevents_the_run() {
    let host = host().await;
    let backend =
        HostBackend::new(host.clone()).with_revocations(Arc::new(RevokedCredential("t1")));
    let serving = serving(&host, backend);
    let echo = call_request(None, "own__echo", BrokerArguments::None);
    let under = |credential: &str, id: &str| {
        let ann = Principal {
            credential: credential.into(),
            ..Principal::new("ann", Role::Named("all".into()))
        };
        ServeRequest {
            principal: Some(Arc::new(ann)),
            message: request_message(id, &echo.to_bytes()),
            ..request(&host, "all", &echo)
        }
    };
    let refused = failure(serving.handle_live(under("t1", "1")).await);
    assert_eq!(
        (refused.class, refused.execution),
        (FailureClass::Denied, ExecutionStatus::NotStarted)
    );
    output(&serving.handle_live(under("t2", "2")).await);
}

/// Lists the tools of a server, as the hub does.
async fn listed_for_the_hub(generation: GenerationScript) -> (String, Era) {
    let world = SimWorld::new([("own", ServerScript::always(generation))]);
    let host = world.start_host(vec![server_spec("own")], HostLimits::default());
    assert!(wait_for_state(&host, "own", "ready").await);
    let backend = HostBackend::with_caller_mapping(host.clone(), Arc::new(OneServer));
    let serving = serving(
        &host,
        backend.with_remote_sessions(&RemoteSessions::register_with(&host)),
    );
    let ask = BrokerRequest::Mcp {
        server: "own".into(),
        method: "tools/list".into(),
        params: None,
        context: CallerContext::default(),
    };
    let from = MessageSender {
        session_id: "hub".into(),
        role: None,
        principal: None,
    };
    let asked = ServeRequest {
        sender: from,
        principal: None,
        ..request(&host, "all", &ask)
    };
    match serving.handle_live(asked).await {
        BrokerResponse::Output { result, era, .. } => {
            (String::from_utf8_lossy(&result).into(), era)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn list_response_carries_the_era() {
    let odd = r#"{"name":"a","inputSchema":{"type":"object"},"outputSchema":{"type":"array"}}"#;
    let keep = r#""ttlMs":60000,"cacheScope":"public""#;
    let modern = format!(r#"{{"tools":[{odd}],"resultType":"complete",{keep}}}"#);
    let generation = GenerationScript::with_definitions(&[]).with_raw_page("", &modern);
    let (page, era) = listed_for_the_hub(generation).await;
    assert_eq!((page.as_str(), era), (modern.as_str(), Era::Modern));
    // The hub rewrites the definitions for legacy clients.
    let pages = ListPages::from_fn(|kind| match kind {
        ListKind::Tools => Some(vec![Bytes::from(page.clone())]),
        _ => None,
    });
    let offer = ServerCatalog::new(
        &"s".into(),
        &Bytes::from_static(b"{}"),
        &pages,
        &BTreeMap::new(),
        HeaderParamPolicy::Ignore,
        None,
        None,
    );
    let told = offer.tools.rendered.for_legacy();
    let even = r#"{"tools":[{"name":"a","inputSchema":{"type":"object"}}]}"#;
    assert_eq!(told.result, even);
    // Definitions of a legacy server stay unchanged.
    let plain = format!(r#"{{"tools":[{odd}]}}"#);
    let generation = GenerationScript::with_definitions(&[]).with_raw_page("", &plain);
    assert_eq!(listed_for_the_hub(generation).await, (plain, Era::Legacy));
}
