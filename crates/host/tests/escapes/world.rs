//! The servers of this test, with confusable tool, prompt and resource names.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::call::{CallRequest, FeatureKind, Principal, Role};
use bowline_core::restart_budget::RestartPolicy;
use bowline_host::catalog::Staleness;
use bowline_host::{Host, HostLimits};
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, RecordingClient, ServerScript, SimWorld, ToolBehaviour, server_spec,
    tool_call, wait_for_state,
};

/// The session that was shown a link.
pub(crate) const SESSION: u64 = 5;

/// The shown link.
pub(crate) const SHOWN_LINK: &str = "seen:1";

/// The task id created by `job`.
pub(crate) const TASK: &str = "t-1";

const CAPABILITIES: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"#,
    r#""resources":{"subscribe":true},"completions":{},"tasks":{"list":{}}},"#,
    r#""serverInfo":{"name":"n"},"instructions":"Mind the gap."}"#,
);

/// An item to access: kind, server and own name, and a name valid among all servers if different
/// from the visible name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EscapeTarget {
    pub(crate) kind: FeatureKind,
    pub(crate) server: &'static str,
    pub(crate) name: &'static str,
    /// The name at an endpoint of all servers.
    pub(crate) shared: Option<&'static str>,
}

const fn escape_target(
    kind: FeatureKind,
    server: &'static str,
    name: &'static str,
    shared: Option<&'static str>,
) -> EscapeTarget {
    EscapeTarget {
        kind,
        server,
        name,
        shared,
    }
}

use FeatureKind::{Prompt, Resource, Tool};

pub(crate) const TARGETS: [EscapeTarget; 34] = [
    escape_target(Tool, "a", "read_a", None),
    escape_target(Tool, "a", "read_b", None),
    escape_target(Tool, "a", "write", None),
    escape_target(Tool, "a", "job", None),
    escape_target(Tool, "a", "shows", None),
    escape_target(Tool, "a", "odd name.with*", None),
    escape_target(Tool, "b", "read_a", None),
    escape_target(Tool, "b", "write", None),
    escape_target(Tool, "b", "get", None),
    escape_target(Tool, "b", "get", None),
    escape_target(Tool, "files", "read_file", None),
    escape_target(Tool, "files", "write", None),
    escape_target(Tool, "down", "read_a", None),
    escape_target(Tool, "down", "write", None),
    escape_target(Prompt, "a", "p1", None),
    escape_target(Prompt, "a", "p2", None),
    escape_target(Prompt, "b", "p1", None),
    escape_target(Prompt, "down", "p1", None),
    escape_target(Resource, "a", "x:1", Some("bowline://a/x%3A1")),
    escape_target(Resource, "b", "x:1", Some("bowline://b/x%3A1")),
    escape_target(Resource, "a", "x:2", Some("x:2")),
    escape_target(Resource, "a", "x:2", Some("bowline://a/x%3A2")),
    escape_target(Resource, "a", "x:7", Some("bowline://a/~x:7")),
    escape_target(Resource, "a", "t:9", Some("t:9")),
    escape_target(Resource, "a", SHOWN_LINK, Some(SHOWN_LINK)),
    escape_target(Resource, "files", "file:///srv/a", Some("file:///srv/a")),
    escape_target(Resource, "files", "file:///srv/z", Some("file:///srv/z")),
    escape_target(
        Resource,
        "files",
        "file:///secret/a",
        Some("file:///secret/a"),
    ),
    escape_target(
        Resource,
        "files",
        "file:///%73ecret/a",
        Some("file:///%73ecret/a"),
    ),
    escape_target(
        Resource,
        "files",
        "FILE:///secret/a",
        Some("bowline://files/~FILE:///secret/a"),
    ),
    escape_target(
        Resource,
        "files",
        "file:////secret/a",
        Some("file:////secret/a"),
    ),
    escape_target(
        Resource,
        "files",
        "file:///srv/../secret/a",
        Some("file:///srv/../secret/a"),
    ),
    escape_target(
        Resource,
        "files",
        "file:///{+path}",
        Some("bowline://files/~file:///{+path}"),
    ),
    escape_target(Resource, "down", "d:1", Some("d:1")),
];

fn named_server(
    tools: &[&str],
    prompts: &[&str],
    resources: &[&str],
    templates: &[&str],
) -> GenerationScript {
    let list = |member: &str, key: &str, ids: &[&str]| {
        let items: Vec<_> = ids
            .iter()
            .map(|id| format!(r#"{{"{key}":"{id}"}}"#))
            .collect();
        format!(r#"{{"{member}":[{}]}}"#, items.join(","))
    };
    let define = |name: &&str| {
        let reads = name.starts_with("get");
        let hints = format!(r#""annotations":{{"readOnlyHint":{reads}}}"#);
        format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}},{hints}}}"#)
    };
    let tools: Vec<_> = tools.iter().map(define).collect();
    let mut generation = GenerationScript::with_definitions(&tools)
        .with_initialize_result(CAPABILITIES)
        .respond_with("prompts/list", "", &list("prompts", "name", prompts))
        .respond_with("resources/list", "", &list("resources", "uri", resources))
        .respond_with(
            "resources/templates/list",
            "",
            &list("resourceTemplates", "uriTemplate", templates),
        )
        .respond_with(
            "tasks/list",
            "",
            &format!(r#"{{"tasks":[{{"taskId":"{TASK}"}}]}}"#),
        );
    for method in [
        "prompts/get",
        "resources/read",
        "resources/subscribe",
        "resources/unsubscribe",
        "completion/complete",
        "tasks/get",
        "tasks/result",
        "tasks/cancel",
    ] {
        generation = generation.respond_with(method, "", "{}");
    }
    generation
}

/// Starts the servers: `down` dies for good, and a session is shown a link.
pub(crate) async fn start_world() -> (SimWorld, Host) {
    let shows =
        format!(r#"{{"content":[{{"type":"resource_link","uri":"{SHOWN_LINK}","name":"n"}}]}}"#);
    let job = format!(r#"{{"task":{{"taskId":"{TASK}","status":"working"}}}}"#);
    let kept = r#"{"content":[],"ttlMs":3600000,"cacheScope":"public"}"#.to_owned();
    let tools = [
        "read_a",
        "read_b",
        "write",
        "job",
        "shows",
        "odd name.with*",
    ];
    let a = named_server(&tools, &["p1", "p2"], &["x:1", "x:2"], &["t:{id}"])
        .with_behaviour("shows", ToolBehaviour::RespondWith(shows))
        .with_behaviour("job", ToolBehaviour::RespondWith(job));
    let b = named_server(&["read_a", "write", "get"], &["p1"], &["x:1"], &[])
        .with_behaviour("get", ToolBehaviour::RespondWith(kept));
    let files = ["file:///srv/a", "file:///secret/a"];
    let files = named_server(&["read_file", "write"], &[], &files, &["file:///{+path}"]);
    let down = named_server(&["read_a", "write"], &["p1"], &["d:1"], &[]);
    let world = SimWorld::new([
        ("a", ServerScript::always(a)),
        ("b", ServerScript::always(b)),
        ("files", ServerScript::always(files)),
        (
            "down",
            ServerScript::always(down).then(GenerationScript::failing_start("down")),
        ),
    ]);
    let mut specs: Vec<_> = ["a", "b", "files", "down"].map(server_spec).into();
    for spec in &mut specs {
        spec.restart = RestartPolicy {
            restarts_max: u32::MAX,
            ..RestartPolicy::default()
        };
        spec.backoff = Backoff {
            base: Duration::from_secs(3_600),
            cap: Duration::from_secs(3_600),
        };
    }
    let host = world.start_host(specs, HostLimits::default());
    for name in ["a", "b", "files", "down"] {
        assert!(wait_for_state(&host, name, "ready").await);
    }
    assert!(world.kill("down", LinkExit::Signal(9)));
    assert!(wait_for_state(&host, "down", "backoff").await);
    let down = host.catalog().server("down").map(|offer| offer.staleness);
    assert_eq!(down, Some(Staleness::LastKnown), "still listed, and marked");
    let mut shown = as_owner("o", tool_call("a__shows", "{}"));
    shown.message.client = Some(RecordingClient::new(SESSION));
    host.call(shown).await.unwrap();
    (world, host)
}

pub(crate) fn as_owner(name: &str, call: CallRequest) -> CallRequest {
    CallRequest {
        principal: Arc::new(Principal::new(name, Role::Owner)),
        ..call
    }
}
