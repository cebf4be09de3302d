//! One row for each call and each denial, however it ends.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::budget::{Allowance, BudgetRule, RateRule};
use bowline_core::call::{Call, Principal, Role, Scope, Subject};
use bowline_core::caller::CallerEnd;
use bowline_core::policy::{Otherwise, Pattern, Policy, RoleRules};
use bowline_core::redact::Redactor;
use bowline_host::audit::{self, Audit, MemoryTrail, Note, Shows, render};
use bowline_host::manifest::Forgetful;
use bowline_host::pins::Unkept;
use bowline_host::ports::{Silent, SystemClock};
use bowline_host::tasks::Tasks;
use bowline_host::{Host, HostLimits, Ports};
use bowline_journal::BoxFuture;
use bowline_journal::audit::{Kind, Limits, Row, verify};
use bowline_sim::{Act, Gate, Generation, Hearer, Script, ScriptedDial, World, ask, call};
use bowline_sim::{reaches, spec};

fn host_of(world: &World, audit: Arc<dyn Audit>) -> Host {
    let ports = Ports {
        dial: Arc::new(ScriptedDial::new(world.clone())),
        clock: Arc::new(SystemClock::start()),
        tasks: Tasks::default(),
        audience: Arc::new(Silent),
        manifests: Arc::new(Forgetful),
        pins: Arc::new(Unkept),
        journal: Arc::new(bowline_journal::Memory::default()),
        audit,
        keys: bowline_core::lane::KeyScope::default(),
    };
    Host::start(vec![spec("s")], HostLimits::default(), ports)
}

fn server(gate: &Gate) -> Generation {
    Generation::tools([
        ("do", Act::Answers),
        ("fails", Act::ToolError),
        ("refuses", Act::RpcError),
        ("hangs", Act::Hangs(gate.clone())),
        (
            "secret",
            Act::Says(r#"{"content":[],"x":"hunter22"}"#.to_owned()),
        ),
        (
            "kept",
            Act::Says(r#"{"content":[],"ttlMs":60000,"cacheScope":"public"}"#.to_owned()),
        ),
    ])
}

struct Stage {
    world: World,
    host: Host,
    trail: Arc<MemoryTrail>,
    gate: Gate,
}

async fn stage_of(shows: Shows) -> Stage {
    let gate = Gate::closed();
    let world = World::new([("s", Script::always(server(&gate)))]);
    let trail = Arc::new(MemoryTrail::new(render(shows)));
    let host = host_of(&world, Arc::clone(&trail) as _);
    assert!(reaches(&host, "s", "ready").await);
    Stage {
        world,
        host,
        trail,
        gate,
    }
}

async fn stage() -> Stage {
    stage_of(Shows::default()).await
}

/// The one row that a call leaves.
impl Stage {
    async fn row(&self, call: Call) -> Row<'static> {
        let before = self.trail.rows().len();
        let _ended = self.host.call(call).await;
        let mut rows = self.trail.rows();
        assert_eq!(rows.len(), before + 1);
        rows.pop().unwrap()
    }
}

fn by(name: &str, call: Call) -> Call {
    let mut principal = Principal::new(name, Role::Named("r".into()));
    principal.credential = format!("cred-{name}").into();
    Call {
        principal: Arc::new(principal),
        ..call
    }
}

/// What a row says of how it ended.
fn said<'a>(row: &'a Row<'_>) -> (Kind, &'a str, &'a str, &'a str, &'a str) {
    let word = |word: &'a Option<_>| word.as_deref().unwrap_or("-");
    let Row {
        outcome,
        class,
        execution,
        origin,
        ..
    } = row;
    (
        row.kind,
        word(outcome),
        word(class),
        word(execution),
        word(origin),
    )
}

#[tokio::test(start_paused = true)]
async fn a_row_says_who_asked_for_what_how_it_ended_and_by_hash_what_was_said() {
    let stage = stage().await;
    let mut asked = by("ann", call("s__do", r#"{"a":1}"#));
    asked.caller = Some(Hearer::of(7) as Arc<dyn CallerEnd>);
    asked.key = Some("k-1".into());
    stage.host.set_policy(Policy::new(Otherwise::Allow));
    let row = stage.row(asked).await;
    assert_eq!(said(&row), (Kind::Call, "ok", "-", "completed", "live"));
    assert_eq!(row.principal.as_deref(), Some("ann"));
    assert_eq!(row.credential.as_deref(), Some("cred-ann"));
    assert_eq!((row.session, row.key.as_deref()), (Some(7), Some("k-1")));
    assert_eq!(
        (row.server.as_deref(), row.name.as_deref()),
        (Some("s"), Some("do"))
    );
    assert_eq!(
        (row.scope.as_deref(), row.method.as_deref()),
        (Some("all"), Some("tools/call"))
    );
    // printf '{"a":1}' | sha256sum
    let hash = "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862";
    assert_eq!(row.arguments.as_deref(), Some(hash));
    assert_eq!(row.result.as_ref().map(|hash| hash.len()), Some(64));
    assert!(row.payload.is_none() && row.duration_us.is_some());
    stage.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn every_way_a_call_can_end_leaves_exactly_one_row() {
    let stage = stage().await;
    let row = stage.row(call("s__fails", "{}")).await;
    assert_eq!(
        said(&row),
        (Kind::Call, "tool_error", "-", "completed", "live")
    );
    let row = stage.row(call("s__refuses", "{}")).await;
    assert_eq!(
        said(&row),
        (Kind::Call, "rejected", "-", "completed", "live")
    );
    let row = stage.row(call("s__nothing", "{}")).await;
    assert_eq!(
        said(&row),
        (Kind::Call, "failed", "not_found", "not_started", "gateway")
    );
    assert_eq!(
        (row.server, row.name.as_deref()),
        (None, Some("s__nothing"))
    );
    let row = stage.row(bowline_sim::call_of("gone", "do", "{}")).await;
    assert_eq!(row.server.as_deref(), Some("gone"));
    stage.row(call("s__kept", "{}")).await;
    let row = stage.row(call("s__kept", "{}")).await;
    assert_eq!(said(&row), (Kind::Call, "ok", "-", "completed", "cached"));
    let row = stage
        .row(ask(Subject::Resource("file:///a".into()), "uri"))
        .await;
    assert_eq!(
        (row.method.as_deref(), row.arguments),
        (Some("resources/read"), None)
    );
    let row = stage.row(ask(Subject::Prompt("s__p".into()), "name")).await;
    assert_eq!(row.method.as_deref(), Some("prompts/get"));
    stage.host.shutdown().await;
    let row = stage.row(call("s__do", "{}")).await;
    assert_eq!(
        said(&row),
        (
            Kind::Call,
            "failed",
            "unavailable",
            "not_started",
            "gateway"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_leaves_a_row_as_well() {
    let stage = stage().await;
    let before = stage.trail.rows().len();
    let hanging = stage.host.call(call("s__hangs", "{}"));
    let (world, ran) = (stage.world.clone(), |record: &bowline_sim::Record| {
        let mut ran = record.executions.iter();
        ran.any(|deed| deed.tool == "hangs")
    });
    tokio::select! {
        _ = hanging => panic!("it hangs"),
        _ = world.until(ran) => {}
    }
    let rows = stage.trail.rows();
    assert_eq!(rows.len(), before + 1);
    assert_eq!(
        said(&rows[before]),
        (Kind::Call, "cancelled", "cancelled", "-", "-")
    );
    assert_eq!(rows[before].server.as_deref(), Some("s"));
    // Never polled, it was never made.
    drop(stage.host.call(call("s__do", "{}")));
    assert_eq!(stage.trail.rows().len(), before + 1);
    stage.gate.release();
    stage.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn every_denial_is_a_row_of_its_own_kind_with_its_reason() {
    let stage = stage().await;
    let per = Duration::from_secs(60);
    let rules = |allowance| RoleRules {
        allow: vec![Pattern::parse("s.do").unwrap()],
        allowance,
        ..RoleRules::default()
    };
    let set = |allowance| {
        let policy = Policy::new(Otherwise::Deny).with_role("r", rules(allowance));
        stage.host.set_policy(policy);
    };
    set(Allowance::default());
    let row = stage.row(by("ann", call("s__fails", "{}"))).await;
    assert_eq!(
        said(&row),
        (Kind::Denied, "failed", "denied", "not_started", "policy")
    );
    assert!(row.reason.unwrap().contains("ann"), "says by which rule");
    assert_eq!(
        (row.server.as_deref(), row.name.as_deref()),
        (Some("s"), Some("fails"))
    );
    let budget = Some(BudgetRule { calls: 1, per });
    set(Allowance { budget, rate: None });
    assert_eq!(
        stage.row(by("bob", call("s__do", "{}"))).await.kind,
        Kind::Call
    );
    let row = stage.row(by("bob", call("s__do", "{}"))).await;
    assert_eq!(
        said(&row),
        (Kind::Denied, "failed", "denied", "not_started", "policy")
    );
    let rate = Some(RateRule {
        calls: 1,
        per,
        burst: 1,
    });
    set(Allowance { budget: None, rate });
    assert_eq!(
        stage.row(by("cid", call("s__do", "{}"))).await.kind,
        Kind::Call
    );
    let row = stage.row(by("cid", call("s__do", "{}"))).await;
    assert_eq!(
        said(&row),
        (Kind::Denied, "failed", "throttled", "not_started", "policy")
    );
    stage.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_denied_by_another_name_is_a_denial_in_the_trail() {
    let offers = Generation::tools([("do", Act::Answers)])
        .introduces(concat!(
            r#"{"protocolVersion":"2025-11-25","serverInfo":{"name":"n"},"#,
            r#""capabilities":{"tools":{},"resources":{"subscribe":true}}}"#
        ))
        .answers(
            "resources/templates/list",
            "",
            r#"{"resourceTemplates":[]}"#,
        )
        .answers(
            "resources/list",
            "",
            r#"{"resources":[{"uri":"file:///a","name":"a"}]}"#,
        );
    let world = World::new([("s", Script::always(offers))]);
    let trail = Arc::new(MemoryTrail::new(render(Shows::default())));
    let host = host_of(&world, Arc::clone(&trail) as _);
    assert!(reaches(&host, "s", "ready").await);
    host.set_policy(Policy::new(Otherwise::Deny));
    let read = by("ann", ask(Subject::Resource("file:///a".into()), "uri"));
    let told = host.call(read).await.unwrap_err();
    assert_eq!(
        told.to_string(),
        "no resource at `file:///a`",
        "the caller learns nothing"
    );
    let ann = Principal::new("ann", Role::Named("r".into()));
    let hearer = Hearer::of(3) as Arc<dyn CallerEnd>;
    let refused = host
        .subscribe(&ann, &Scope::All, &hearer, "file:///a")
        .await;
    assert!(refused.is_err());
    let rows = trail.rows();
    let kinds: Vec<_> = rows
        .iter()
        .map(|row| (row.kind, row.method.as_deref()))
        .collect();
    let denied = |method| (Kind::Denied, Some(method));
    assert_eq!(
        kinds,
        [denied("resources/read"), denied("resources/subscribe")]
    );
    assert!(rows.iter().all(|row| row.server.as_deref() == Some("s")));
    assert_eq!(rows[1].session, Some(3));
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_said_is_kept_only_where_it_is_wanted_and_without_secrets() {
    let redactor = Redactor::new([("KEY", "hunter22")]);
    let clean: audit::Clean = Box::new(move |text| redactor.clean(text));
    let stage = stage_of(Shows {
        clean,
        payload: true,
    })
    .await;
    let row = stage.row(call("s__secret", r#"{"a":"hunter22"}"#)).await;
    let payload = row.payload.unwrap();
    assert_eq!(payload.arguments.as_deref(), Some(r#"{"a":"‹KEY›"}"#));
    assert_eq!(
        payload.result.as_deref(),
        Some(r#"{"content":[],"x":"‹KEY›"}"#)
    );
    let long = format!(r#"{{"a":"{}"}}"#, "é".repeat(audit::PAYLOAD_BYTES_MAX));
    let row = stage.row(call("s__do", &long)).await;
    let kept = row.payload.unwrap().arguments.unwrap();
    assert!(kept.ends_with("é…") && kept.len() <= audit::PAYLOAD_BYTES_MAX + 3);
    let row = stage.row(call("s__hunter22", "{}")).await;
    assert_eq!(row.name.as_deref(), Some("s__‹KEY›"));
    stage.host.shutdown().await;
}

/// An audit that has no room until it is told.
#[derive(Debug, Default)]
struct Narrow {
    room: tokio::sync::watch::Sender<bool>,
    notes: Mutex<Vec<Note>>,
}

impl Audit for Narrow {
    fn has_room(&self) -> bool {
        *self.room.borrow()
    }

    fn room(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let _ = self.room.subscribe().wait_for(|room| *room).await;
        })
    }

    fn note(&self, note: Note) {
        self.notes.lock().unwrap().push(note);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_waits_for_room_before_it_is_carried_and_is_noted_if_it_goes() {
    let world = World::new([("s", Script::always(server(&Gate::closed())))]);
    let narrow = Arc::new(Narrow::default());
    let host = host_of(&world, Arc::clone(&narrow) as _);
    assert!(reaches(&host, "s", "ready").await);
    let waited = tokio::time::timeout(Duration::from_secs(1), host.call(call("s__do", "{}"))).await;
    assert!(waited.is_err());
    assert_eq!(
        world.look(|record| record.executions.len()),
        0,
        "not carried"
    );
    assert_eq!(
        narrow.notes.lock().unwrap().len(),
        1,
        "its caller went away"
    );
    let going = host.call(call("s__do", "{}"));
    let (went, _) = tokio::join!(going, async { narrow.room.send_replace(true) });
    went.unwrap();
    assert_eq!(narrow.notes.lock().unwrap().len(), 2);
    host.shutdown().await;
}

#[tokio::test]
async fn calls_are_answered_while_the_disk_of_the_trail_does_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (let_on, waits) = std::sync::mpsc::channel::<()>();
    let waits = Mutex::new(Some(waits));
    let clean: audit::Clean = Box::new(move |text| {
        // The thread of the trail stands still with its first row.
        let waits = waits.lock().unwrap().take();
        waits.map(|waits| waits.recv());
        text.into()
    });
    let shows = Shows {
        clean,
        payload: false,
    };
    let clock = Arc::new(SystemClock::start());
    let trail = audit::open(directory.path(), Limits::default(), clock, shows).unwrap();
    let trail = Arc::new(trail);
    let world = World::new([("s", Script::always(server(&Gate::closed())))]);
    let host = host_of(&world, Arc::clone(&trail) as _);
    assert!(reaches(&host, "s", "ready").await);
    let on_disk = trail.health().head;
    for _ in 0..1_000 {
        host.call(call("s__do", "{}")).await.unwrap();
    }
    let health = trail.health();
    assert_eq!(
        (health.head, health.waiting),
        (on_disk, 1_000),
        "nothing was written"
    );
    drop(let_on);
    host.shutdown().await;
    trail.close().await;
    let verdict = verify(directory.path(), None).unwrap();
    assert_eq!((verdict.broken, verdict.rows), (None, 1_003));
}
