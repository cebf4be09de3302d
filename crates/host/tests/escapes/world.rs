//! The servers of this test: tools, prompts and resources with names that are easy to confuse.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::call::{Call, Kind, Principal, Role};
use bowline_core::supervision::RestartPolicy;
use bowline_host::catalog::Age;
use bowline_host::{Host, HostLimits};
use bowline_link::Exit;
use bowline_sim::{Act, Generation, Hearer, Script, World, call, reaches, spec};

/// The session to which a tool has shown a link.
pub(crate) const SESSION: u64 = 5;

/// The link that it showed.
pub(crate) const SEEN: &str = "seen:1";

/// The id of the task that `job` makes.
pub(crate) const TASK: &str = "t-1";

const CAPABILITIES: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{},"#,
    r#""resources":{"subscribe":true},"completions":{},"tasks":{"list":{}}},"#,
    r#""serverInfo":{"name":"n"},"instructions":"Mind the gap."}"#,
);

/// Something to ask for: its kind, server and own name, and a name that leads there among those
/// of all servers, where it is not the visible one of the catalog.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) kind: Kind,
    pub(crate) server: &'static str,
    pub(crate) name: &'static str,
    /// How it is asked for on an endpoint of all servers.
    pub(crate) shared: Option<&'static str>,
}

const fn target(
    kind: Kind,
    server: &'static str,
    name: &'static str,
    shared: Option<&'static str>,
) -> Target {
    Target {
        kind,
        server,
        name,
        shared,
    }
}

use Kind::{Prompt, Resource, Tool};

pub(crate) const TARGETS: [Target; 34] = [
    target(Tool, "a", "read_a", None),
    target(Tool, "a", "read_b", None),
    target(Tool, "a", "write", None),
    target(Tool, "a", "job", None),
    target(Tool, "a", "shows", None),
    target(Tool, "a", "odd name.with*", None),
    target(Tool, "b", "read_a", None),
    target(Tool, "b", "write", None),
    target(Tool, "b", "get", None),
    target(Tool, "b", "get", None),
    target(Tool, "files", "read_file", None),
    target(Tool, "files", "write", None),
    target(Tool, "down", "read_a", None),
    target(Tool, "down", "write", None),
    target(Prompt, "a", "p1", None),
    target(Prompt, "a", "p2", None),
    target(Prompt, "b", "p1", None),
    target(Prompt, "down", "p1", None),
    target(Resource, "a", "x:1", Some("bowline://a/x%3A1")),
    target(Resource, "b", "x:1", Some("bowline://b/x%3A1")),
    target(Resource, "a", "x:2", Some("x:2")),
    target(Resource, "a", "x:2", Some("bowline://a/x%3A2")),
    target(Resource, "a", "x:7", Some("bowline://a/~x:7")),
    target(Resource, "a", "t:9", Some("t:9")),
    target(Resource, "a", SEEN, Some(SEEN)),
    target(Resource, "files", "file:///srv/a", Some("file:///srv/a")),
    target(Resource, "files", "file:///srv/z", Some("file:///srv/z")),
    target(
        Resource,
        "files",
        "file:///secret/a",
        Some("file:///secret/a"),
    ),
    target(
        Resource,
        "files",
        "file:///%73ecret/a",
        Some("file:///%73ecret/a"),
    ),
    target(
        Resource,
        "files",
        "FILE:///secret/a",
        Some("bowline://files/~FILE:///secret/a"),
    ),
    target(
        Resource,
        "files",
        "file:////secret/a",
        Some("file:////secret/a"),
    ),
    target(
        Resource,
        "files",
        "file:///srv/../secret/a",
        Some("file:///srv/../secret/a"),
    ),
    target(
        Resource,
        "files",
        "file:///{+path}",
        Some("bowline://files/~file:///{+path}"),
    ),
    target(Resource, "down", "d:1", Some("d:1")),
];

fn server(tools: &[&str], prompts: &[&str], resources: &[&str], templates: &[&str]) -> Generation {
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
    let mut generation = Generation::definitions(&tools)
        .introduces(CAPABILITIES)
        .answers("prompts/list", "", &list("prompts", "name", prompts))
        .answers("resources/list", "", &list("resources", "uri", resources))
        .answers(
            "resources/templates/list",
            "",
            &list("resourceTemplates", "uriTemplate", templates),
        )
        .answers(
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
        generation = generation.answers(method, "", "{}");
    }
    generation
}

/// Starts them: `down` goes and does not come back, and one session has been shown a link.
pub(crate) async fn start() -> (World, Host) {
    let shows = format!(r#"{{"content":[{{"type":"resource_link","uri":"{SEEN}","name":"n"}}]}}"#);
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
    let a = server(&tools, &["p1", "p2"], &["x:1", "x:2"], &["t:{id}"])
        .act("shows", Act::Says(shows))
        .act("job", Act::Says(job));
    let b = server(&["read_a", "write", "get"], &["p1"], &["x:1"], &[]).act("get", Act::Says(kept));
    let files = ["file:///srv/a", "file:///secret/a"];
    let files = server(&["read_file", "write"], &[], &files, &["file:///{+path}"]);
    let down = server(&["read_a", "write"], &["p1"], &["d:1"], &[]);
    let world = World::new([
        ("a", Script::always(a)),
        ("b", Script::always(b)),
        ("files", Script::always(files)),
        ("down", Script::always(down).then(Generation::fails("down"))),
    ]);
    let mut specs: Vec<_> = ["a", "b", "files", "down"].map(spec).into();
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
    let host = world.host(specs, HostLimits::default());
    for name in ["a", "b", "files", "down"] {
        assert!(reaches(&host, name, "ready").await);
    }
    assert!(world.kill("down", Exit::Signal(9)));
    assert!(reaches(&host, "down", "backoff").await);
    let down = host.catalog().offer("down").map(|offer| offer.age);
    assert_eq!(down, Some(Age::LastKnown), "still listed, and marked");
    let mut shown = as_owner("o", call("a__shows", "{}"));
    shown.caller = Some(Hearer::of(SESSION));
    host.call(shown).await.unwrap();
    (world, host)
}

pub(crate) fn as_owner(name: &str, call: Call) -> Call {
    Call {
        principal: Arc::new(Principal::new(name, Role::Owner)),
        ..call
    }
}
