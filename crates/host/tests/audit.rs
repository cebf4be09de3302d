//! Audit: a single row for each call and denial, however it ends.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::budget::{BudgetRule, CallAllowance, RateRule};
use bowline_core::call::{CallRequest, CallSubject, EndpointScope, Principal, Role};
use bowline_core::client_handle::ClientHandle;
use bowline_core::policy::{DefaultAction, FeaturePattern, Policy, RoleRules};
use bowline_core::redact::Redactor;
use bowline_core::time::MonotonicTime;
use bowline_host::audit::{
    self, AuditEntry, AuditSink, AuditTrail, MemoryAuditTrail, RenderOptions,
};
use bowline_host::manifest::NullManifestStore;
use bowline_host::pins::NullPinStore;
use bowline_host::ports::NullSink;
use bowline_host::{Host, HostLimits, HostPorts};
use bowline_journal::audit::{
    AuditLimits, AuditRow, AuditRowKind, BodyDigest, LongBodies, RowScope, verify_trail,
};
use bowline_runtime::{Clock, SystemClock, TaskTracker};
use bowline_testkit::{
    GenerationScript, RecordingClient, ReleaseGate, ScriptedDial, ServerScript, SimRecord,
    SimWorld, ToolBehaviour, server_spec, subject_call, tool_call, wait_for_state,
};
use tokio::time::Instant;

fn host_with_audit(world: &SimWorld, audit: Arc<dyn AuditSink>) -> Host {
    let ports = HostPorts {
        dial: Arc::new(ScriptedDial::new(world.clone())),
        clock: Arc::new(SystemClock::start()),
        tasks: TaskTracker::default(),
        notifications: Arc::new(NullSink),
        manifests: Arc::new(NullManifestStore),
        pins: Arc::new(NullPinStore),
        journal: Arc::new(bowline_journal::MemoryJournal::default()),
        audit,
        keys: bowline_core::lane::KeyScope::default(),
    };
    Host::start(vec![server_spec("s")], HostLimits::default(), ports)
}

fn audit_server(gate: &ReleaseGate) -> GenerationScript {
    GenerationScript::with_tools([
        ("do", ToolBehaviour::Respond),
        ("fails", ToolBehaviour::ToolError),
        ("refuses", ToolBehaviour::RpcError),
        ("hangs", ToolBehaviour::BlockOn(gate.clone())),
        (
            "secret",
            ToolBehaviour::RespondWith(r#"{"content":[],"x":"hunter22"}"#.to_owned()),
        ),
        (
            "kept",
            ToolBehaviour::RespondWith(
                r#"{"content":[],"ttlMs":60000,"cacheScope":"public"}"#.to_owned(),
            ),
        ),
    ])
}

struct AuditStage {
    world: SimWorld,
    host: Host,
    trail: Arc<MemoryAuditTrail>,
    gate: ReleaseGate,
}

async fn stage_with_options(shows: RenderOptions) -> AuditStage {
    let gate = ReleaseGate::new_closed();
    let world = SimWorld::new([("s", ServerScript::always(audit_server(&gate)))]);
    let trail = Arc::new(MemoryAuditTrail::new(shows));
    let host = host_with_audit(&world, Arc::clone(&trail) as _);
    assert!(wait_for_state(&host, "s", "ready").await);
    AuditStage {
        world,
        host,
        trail,
        gate,
    }
}

async fn default_stage() -> AuditStage {
    stage_with_options(RenderOptions::default()).await
}

/// The single row of a call.
impl AuditStage {
    async fn call_row(&self, call: CallRequest) -> AuditRow<'static> {
        let before = self.trail.rows().len();
        let _ended = self.host.call(call).await;
        let mut rows = self.trail.rows();
        assert_eq!(rows.len(), before + 1);
        rows.pop().unwrap()
    }
}

fn as_principal(name: &str, call: CallRequest) -> CallRequest {
    let mut principal = Principal::new(name, Role::Named("r".into()));
    principal.credential = format!("cred-{name}").into();
    CallRequest {
        principal: Arc::new(principal),
        ..call
    }
}

/// The outcome columns of a row.
fn outcome_columns<'a>(
    row: &'a AuditRow<'_>,
) -> (AuditRowKind, &'a str, &'a str, &'a str, &'a str) {
    let word = |word: &'a Option<_>| word.as_deref().unwrap_or("-");
    let AuditRow {
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
async fn row_has_principal_target_outcome_and_hashes() {
    let stage = default_stage().await;
    let mut asked = as_principal("ann", tool_call("s__do", r#"{"a":1}"#));
    asked.message.client = Some(RecordingClient::new(7) as Arc<dyn ClientHandle>);
    asked.idempotency_key = Some("k-1".into());
    stage.host.set_policy(Policy::new(DefaultAction::Allow));
    let row = stage.call_row(asked).await;
    assert_eq!(
        outcome_columns(&row),
        (AuditRowKind::Call, "ok", "-", "completed", "live")
    );
    assert_eq!(row.principal.as_deref(), Some("ann"));
    assert_eq!(row.credential.as_deref(), Some("cred-ann"));
    assert_eq!((row.session, row.key.as_deref()), (Some(7), Some("k-1")));
    assert_eq!(
        (row.server.as_deref(), row.name.as_deref()),
        (Some("s"), Some("do"))
    );
    assert_eq!(
        (&row.scope, row.method.as_deref()),
        (&Some(RowScope::All), Some("tools/call"))
    );
    // printf '{"a":1}' | sha256sum
    let hash = "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862";
    assert_eq!(row.arguments.unwrap().to_string(), hash);
    assert_ne!(row.result.unwrap(), BodyDigest::PENDING);
    assert!(row.payload.is_none() && row.duration_us.is_some());
    stage.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn every_call_outcome_leaves_one_row() {
    let stage = default_stage().await;
    let row = stage.call_row(tool_call("s__fails", "{}")).await;
    assert_eq!(
        outcome_columns(&row),
        (AuditRowKind::Call, "tool_error", "-", "completed", "live")
    );
    let row = stage.call_row(tool_call("s__refuses", "{}")).await;
    assert_eq!(
        outcome_columns(&row),
        (AuditRowKind::Call, "rejected", "-", "completed", "live")
    );
    let row = stage.call_row(tool_call("s__nothing", "{}")).await;
    assert_eq!(
        outcome_columns(&row),
        (
            AuditRowKind::Call,
            "failed",
            "not_found",
            "not_started",
            "gateway"
        )
    );
    assert_eq!(
        (row.server, row.name.as_deref()),
        (None, Some("s__nothing"))
    );
    let row = stage
        .call_row(bowline_testkit::server_tool_call("gone", "do", "{}"))
        .await;
    assert_eq!(row.server.as_deref(), Some("gone"));
    stage.call_row(tool_call("s__kept", "{}")).await;
    let row = stage.call_row(tool_call("s__kept", "{}")).await;
    assert_eq!(
        outcome_columns(&row),
        (AuditRowKind::Call, "ok", "-", "completed", "cached")
    );
    let row = stage
        .call_row(subject_call(
            CallSubject::Resource("file:///a".into()),
            "uri",
        ))
        .await;
    assert_eq!(
        (row.method.as_deref(), row.arguments),
        (Some("resources/read"), None)
    );
    let row = stage
        .call_row(subject_call(CallSubject::Prompt("s__p".into()), "name"))
        .await;
    assert_eq!(row.method.as_deref(), Some("prompts/get"));
    stage.host.shutdown().await;
    let row = stage.call_row(tool_call("s__do", "{}")).await;
    assert_eq!(
        outcome_columns(&row),
        (
            AuditRowKind::Call,
            "failed",
            "unavailable",
            "not_started",
            "gateway"
        )
    );
}

#[tokio::test(start_paused = true)]
async fn dropped_call_leaves_one_row() {
    let stage = default_stage().await;
    let before = stage.trail.rows().len();
    let hanging = stage.host.call(tool_call("s__hangs", "{}"));
    let (world, ran) = (stage.world.clone(), |record: &SimRecord| {
        let mut ran = record.executions.iter();
        ran.any(|deed| deed.tool == "hangs")
    });
    tokio::select! {
        _ = hanging => panic!("it hangs"),
        _ = world.wait_until(ran) => {}
    }
    let rows = stage.trail.rows();
    assert_eq!(rows.len(), before + 1);
    assert_eq!(
        outcome_columns(&rows[before]),
        (AuditRowKind::Call, "cancelled", "cancelled", "-", "-")
    );
    assert_eq!(rows[before].server.as_deref(), Some("s"));
    // Never polled: no call was made.
    drop(stage.host.call(tool_call("s__do", "{}")));
    assert_eq!(stage.trail.rows().len(), before + 1);
    stage.gate.release();
    stage.host.shutdown().await;
}

/// The outcome columns of a call denied by the policy.
const fn denied_columns(
    class: &'static str,
) -> (
    AuditRowKind,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
) {
    let kind = AuditRowKind::Denied;
    (kind, "failed", class, "not_started", "policy")
}

#[tokio::test(start_paused = true)]
async fn every_denial_has_kind_and_reason() {
    let stage = default_stage().await;
    let per = Duration::from_secs(60);
    let rules = |allowance| RoleRules {
        allow: vec![FeaturePattern::parse("s.do").unwrap()],
        allowance,
        ..RoleRules::default()
    };
    let set = |allowance| {
        let policy = Policy::new(DefaultAction::Deny).with_role("r", rules(allowance));
        stage.host.set_policy(policy);
    };
    set(CallAllowance::default());
    let row = stage
        .call_row(as_principal("ann", tool_call("s__fails", "{}")))
        .await;
    assert_eq!(outcome_columns(&row), denied_columns("denied"));
    assert!(row.reason.unwrap().contains("ann"), "says by which rule");
    assert_eq!(
        (row.server.as_deref(), row.name.as_deref()),
        (Some("s"), Some("fails"))
    );
    let budget = Some(BudgetRule { calls: 1, per });
    set(CallAllowance { budget, rate: None });
    assert_eq!(
        stage
            .call_row(as_principal("bob", tool_call("s__do", "{}")))
            .await
            .kind,
        AuditRowKind::Call
    );
    let row = stage
        .call_row(as_principal("bob", tool_call("s__do", "{}")))
        .await;
    assert_eq!(outcome_columns(&row), denied_columns("denied"));
    let rate = Some(RateRule {
        calls: 1,
        per,
        burst: 1,
    });
    set(CallAllowance { budget: None, rate });
    assert_eq!(
        stage
            .call_row(as_principal("cid", tool_call("s__do", "{}")))
            .await
            .kind,
        AuditRowKind::Call
    );
    let row = stage
        .call_row(as_principal("cid", tool_call("s__do", "{}")))
        .await;
    assert_eq!(outcome_columns(&row), denied_columns("throttled"));
    stage.host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn denial_by_alias_is_recorded_as_denial() {
    let offers = GenerationScript::with_tools([("do", ToolBehaviour::Respond)])
        .with_initialize_result(concat!(
            r#"{"protocolVersion":"2025-11-25","serverInfo":{"name":"n"},"#,
            r#""capabilities":{"tools":{},"resources":{"subscribe":true}}}"#
        ))
        .respond_with(
            "resources/templates/list",
            "",
            r#"{"resourceTemplates":[]}"#,
        )
        .respond_with(
            "resources/list",
            "",
            r#"{"resources":[{"uri":"file:///a","name":"a"}]}"#,
        );
    let world = SimWorld::new([("s", ServerScript::always(offers))]);
    let trail = Arc::new(MemoryAuditTrail::default());
    let host = host_with_audit(&world, Arc::clone(&trail) as _);
    assert!(wait_for_state(&host, "s", "ready").await);
    host.set_policy(Policy::new(DefaultAction::Deny));
    let read = as_principal(
        "ann",
        subject_call(CallSubject::Resource("file:///a".into()), "uri"),
    );
    let told = host.call(read).await.unwrap_err();
    assert_eq!(
        told.to_string(),
        "no resource at `file:///a`",
        "the caller learns nothing"
    );
    let ann = Principal::new("ann", Role::Named("r".into()));
    let hearer = RecordingClient::new(3) as Arc<dyn ClientHandle>;
    let refused = host
        .subscribe(&ann, &EndpointScope::All, &hearer, "file:///a")
        .await;
    assert!(refused.is_err());
    let rows = trail.rows();
    let kinds: Vec<_> = rows
        .iter()
        .map(|row| (row.kind, row.method.as_deref()))
        .collect();
    let denied = |method| (AuditRowKind::Denied, Some(method));
    assert_eq!(
        kinds,
        [denied("resources/read"), denied("resources/subscribe")]
    );
    assert!(rows.iter().all(|row| row.server.as_deref() == Some("s")));
    assert_eq!(rows[1].session, Some(3));
    host.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn payload_is_optional_and_redacted() {
    let redactor = Redactor::new([("KEY", "hunter22")]);
    let redact: audit::RedactFn = Arc::new(move |text| redactor.redact_text(text));
    let stage = stage_with_options(RenderOptions {
        redact,
        payload: true,
    })
    .await;
    let row = stage
        .call_row(tool_call("s__secret", r#"{"a":"hunter22"}"#))
        .await;
    let payload = row.payload.unwrap();
    assert_eq!(payload.arguments.as_deref(), Some(r#"{"a":"‹KEY›"}"#));
    assert_eq!(
        payload.result.as_deref(),
        Some(r#"{"content":[],"x":"‹KEY›"}"#)
    );
    let long = format!(r#"{{"a":"{}"}}"#, "é".repeat(audit::PAYLOAD_BYTES_MAX));
    let row = stage.call_row(tool_call("s__do", &long)).await;
    let kept = row.payload.unwrap().arguments.unwrap();
    assert!(kept.ends_with("é…") && kept.len() <= audit::PAYLOAD_BYTES_MAX + 3);
    let row = stage.call_row(tool_call("s__hunter22", "{}")).await;
    assert_eq!(row.name.as_deref(), Some("s__‹KEY›"));
    stage.host.shutdown().await;
}

/// An audit sink without room until released.
#[derive(Debug, Default)]
struct BoundedAudit {
    room: tokio::sync::watch::Sender<bool>,
    notes: Mutex<Vec<AuditEntry>>,
}

impl AuditSink for BoundedAudit {
    fn has_room(&self) -> bool {
        *self.room.borrow()
    }

    fn wait_room(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let _ = self.room.subscribe().wait_for(|room| *room).await;
        })
    }

    fn record(&self, note: AuditEntry) {
        self.notes.lock().unwrap().push(note);
    }
}

#[tokio::test(start_paused = true)]
async fn call_waits_for_audit_room() {
    let world = SimWorld::new([(
        "s",
        ServerScript::always(audit_server(&ReleaseGate::new_closed())),
    )]);
    let narrow = Arc::new(BoundedAudit::default());
    let host = host_with_audit(&world, Arc::clone(&narrow) as _);
    assert!(wait_for_state(&host, "s", "ready").await);
    let waited =
        tokio::time::timeout(Duration::from_secs(1), host.call(tool_call("s__do", "{}"))).await;
    assert!(waited.is_err());
    assert_eq!(
        world.with_record(|record| record.executions.len()),
        0,
        "not carried"
    );
    assert_eq!(
        narrow.notes.lock().unwrap().len(),
        1,
        "its caller went away"
    );
    let going = host.call(tool_call("s__do", "{}"));
    let (went, _) = tokio::join!(going, async { narrow.room.send_replace(true) });
    went.unwrap();
    assert_eq!(narrow.notes.lock().unwrap().len(), 2);
    host.shutdown().await;
}

/// Clock that blocks the audit thread at its first reading.
#[derive(Debug)]
struct BlockedClock {
    clock: SystemClock,
    waits: Mutex<Option<std::sync::mpsc::Receiver<()>>>,
}

impl Clock for BlockedClock {
    fn now(&self) -> MonotonicTime {
        self.clock.now()
    }

    fn instant(&self, at: MonotonicTime) -> Instant {
        self.clock.instant(at)
    }

    fn unix_ms(&self) -> u64 {
        let is_writer = std::thread::current().name() == Some("audit");
        let waits = is_writer
            .then(|| self.waits.lock().unwrap().take())
            .flatten();
        waits.map(|waits| waits.recv());
        self.clock.unix_ms()
    }
}

#[tokio::test]
async fn blocked_audit_disk_does_not_delay_calls() {
    let directory = tempfile::tempdir().unwrap();
    let (let_on, waits) = std::sync::mpsc::channel::<()>();
    let clock = Arc::new(BlockedClock {
        clock: SystemClock::start(),
        waits: Mutex::new(Some(waits)),
    });
    let shows = RenderOptions::default();
    let trail = AuditTrail::open(directory.path(), AuditLimits::default(), clock, shows).unwrap();
    // The thread reads the clock behind its first batch.
    let first = AuditRow::new(AuditRowKind::Admin, 0);
    trail.file().append(first, LongBodies::default());
    trail.file().flush().await;
    let trail = Arc::new(trail);
    let world = SimWorld::new([(
        "s",
        ServerScript::always(audit_server(&ReleaseGate::new_closed())),
    )]);
    let host = host_with_audit(&world, Arc::clone(&trail) as _);
    assert!(wait_for_state(&host, "s", "ready").await);
    let on_disk = trail.file().health().head;
    for _ in 0..1_000 {
        host.call(tool_call("s__do", "{}")).await.unwrap();
    }
    let health = trail.file().health();
    assert_eq!(
        (health.head, health.queued),
        (on_disk, 1_000),
        "nothing was written"
    );
    drop(let_on);
    host.shutdown().await;
    trail.file().close().await;
    let verdict = verify_trail(directory.path(), None).unwrap();
    assert_eq!((verdict.broken, verdict.rows), (None, 1_004));
}
