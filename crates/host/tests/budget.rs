//! Charges of calls to principals and runs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use bowline_core::budget::{BudgetRule, CallAllowance, RateRule};
use bowline_core::call::{CallRequest, CallSubject, Principal, ReplyOrigin, Role, TaskOperation};
use bowline_core::error::{CallError, ExecutionStatus, FailureClass};
use bowline_core::policy::{DefaultAction, FeaturePattern, Policy, RoleRules};
use bowline_core::run::AgentRun;
use bowline_host::spec::ServerSpec;
use bowline_host::{Host, HostLimits, HostPorts};
use bowline_journal::{Journal, MemoryJournal};
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, SimWorld, ToolBehaviour, run_until_idle,
    server_spec, subject_call, tool_call, wait_for_state,
};
use tokio::task::JoinSet;

/// Two tools; the server dies at the first call of `do` and answers the second.
fn lost_once_script() -> ServerScript {
    let tools = ["do", "other"].map(|name| {
        format!(
            r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"annotations":{{"readOnlyHint":true}}}}"#
        )
    });
    let generation = |act| GenerationScript::with_definitions(&tools).with_behaviour("do", act);
    ServerScript::always(generation(ToolBehaviour::Exit)).then(generation(ToolBehaviour::Respond))
}

fn healthy_script() -> ServerScript {
    ServerScript::always(GenerationScript::with_tools([
        ("do", ToolBehaviour::Respond),
        ("other", ToolBehaviour::Respond),
    ]))
}

async fn ready_host(script: ServerScript) -> (SimWorld, Host) {
    let world = SimWorld::new([("s", script)]);
    let host = world.start_host(vec![server_spec("s")], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    (world, host)
}

fn budget_of(calls: u64) -> CallAllowance {
    CallAllowance {
        budget: Some(BudgetRule {
            calls,
            per: Duration::from_secs(60),
        }),
        rate: None,
    }
}

/// A policy in which role `r` may use `s.do` with this allowance.
fn policy_allowing(allowance: CallAllowance) -> Policy {
    let rules = RoleRules {
        allow: vec![FeaturePattern::parse("s.do").unwrap()],
        allowance,
        ..RoleRules::default()
    };
    Policy::new(DefaultAction::Deny).with_role("r", rules)
}

fn as_principal(name: &str, call: CallRequest) -> CallRequest {
    let principal = Principal::new(name, Role::Named("r".into()));
    CallRequest {
        principal: Arc::new(principal),
        ..call
    }
}

async fn call_do(host: &Host, name: &str) -> Result<(), CallError> {
    host.call(as_principal(name, tool_call("s__do", "{}")))
        .await
        .map(|_| ())
}

fn budget_spent_error(name: &str, allowed: u64, spent: u64, after: u64) -> Result<(), CallError> {
    Err(CallError::BudgetExceeded {
        principal: name.into(),
        limit: "budget",
        allowed,
        spent,
        after: Some(Duration::from_millis(after)),
    })
}

#[tokio::test(start_paused = true)]
async fn retried_call_costs_one_unit() {
    let (world, host) = ready_host(lost_once_script()).await;
    host.set_policy(policy_allowing(budget_of(1)));
    assert_eq!(call_do(&host, "ann").await, Ok(()));
    assert_eq!(world.record().executions.len(), 2, "it was sent twice");
    let refused = call_do(&host, "ann").await.unwrap_err();
    let expected = matches!(
        refused,
        CallError::BudgetExceeded {
            allowed: 1,
            spent: 1,
            ..
        }
    );
    assert!(expected, "{refused}");
    let told = (refused.failure_class(), refused.execution_status());
    assert_eq!(told, (FailureClass::Denied, ExecutionStatus::NotStarted));
    assert_eq!(call_do(&host, "bob").await, Ok(()), "each has its own");
}

#[tokio::test(start_paused = true)]
async fn call_moved_to_successor_costs_one_unit() {
    let gate = ReleaseGate::new_closed();
    let slow = GenerationScript::with_tools([("do", ToolBehaviour::BlockOn(gate.clone()))]);
    let script = ServerScript::always(slow).then(GenerationScript::with_tools([(
        "do",
        ToolBehaviour::Respond,
    )]));
    let world = SimWorld::new([("s", script)]);
    let one = |secs| ServerSpec {
        calls_max: 1,
        call_timeout: Duration::from_secs(secs),
        ..server_spec("s")
    };
    let host = world.start_host(vec![one(60)], HostLimits::default());
    assert!(wait_for_state(&host, "s", "ready").await);
    host.set_policy(policy_allowing(budget_of(2)));
    let mut first = std::pin::pin!(call_do(&host, "ann"));
    tokio::select! {
        outcome = &mut first => panic!("{outcome:?}"),
        _ = world.wait_until(|record| record.executions.len() == 1) => {}
    }
    let mut queued = JoinSet::new();
    let queue = host.clone();
    queued.spawn(async move { call_do(&queue, "ann").await });
    run_until_idle().await;
    assert_eq!(host.server("s").unwrap().queued_calls(), 1);
    host.apply_config(vec![one(61)]);
    assert!(wait_for_state(&host, "s", "ready").await);
    gate.release();
    let (first, queued) = tokio::join!(first, queued.join_all());
    assert_eq!(
        (first, queued),
        (Ok(()), vec![Ok(())]),
        "two units for two calls"
    );
    let spent = call_do(&host, "ann").await.unwrap_err();
    assert!(
        matches!(spent, CallError::BudgetExceeded { spent: 2, .. }),
        "{spent}"
    );
}

#[tokio::test(start_paused = true)]
async fn denied_call_is_free_and_period_renews() {
    let (_world, host) = ready_host(healthy_script()).await;
    host.set_policy(policy_allowing(budget_of(2)));
    for _ in 0..5 {
        let denied = host
            .call(as_principal("ann", tool_call("s__other", "{}")))
            .await;
        assert!(matches!(denied, Err(CallError::Denied { .. })));
    }
    assert_eq!(call_do(&host, "ann").await, Ok(()));
    assert_eq!(call_do(&host, "ann").await, Ok(()));
    assert_eq!(
        call_do(&host, "ann").await,
        budget_spent_error("ann", 2, 2, 60_000)
    );
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(call_do(&host, "ann").await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn changed_policy_keeps_spending() {
    let (_world, host) = ready_host(healthy_script()).await;
    host.set_policy(policy_allowing(budget_of(3)));
    assert_eq!(call_do(&host, "ann").await, Ok(()));
    assert_eq!(call_do(&host, "ann").await, Ok(()));
    host.set_policy(policy_allowing(budget_of(2)));
    assert_eq!(
        call_do(&host, "ann").await,
        budget_spent_error("ann", 2, 2, 60_000)
    );
    host.set_policy(policy_allowing(CallAllowance::default()));
    assert_eq!(call_do(&host, "ann").await, Ok(()), "nothing is counted");
    host.set_policy(policy_allowing(budget_of(3)));
    assert_eq!(call_do(&host, "ann").await, Ok(()));
    assert_eq!(
        call_do(&host, "ann").await,
        budget_spent_error("ann", 3, 3, 60_000)
    );
}

#[tokio::test(start_paused = true)]
async fn run_limit_is_shared_by_branches() {
    let (_world, host) = ready_host(healthy_script()).await;
    let run = Arc::new(AgentRun::new("r", 10));
    let mut branches = JoinSet::new();
    for _ in 0..30 {
        let (host, run) = (host.clone(), Arc::clone(&run));
        branches.spawn(async move {
            let call = CallRequest {
                run: Some(run),
                ..tool_call("s__do", "{}")
            };
            host.call(call).await.map(|_| ())
        });
    }
    let ends = branches.join_all().await;
    let over = CallError::BudgetExceeded {
        principal: "owner".into(),
        limit: "run",
        allowed: 10,
        spent: 10,
        after: None,
    };
    assert_eq!(ends.iter().filter(|end| end.is_ok()).count(), 10);
    assert!(
        ends.iter()
            .all(|end| *end == Ok(()) || *end == Err(over.clone()))
    );
}

#[tokio::test(start_paused = true)]
async fn refused_charge_is_not_taken_elsewhere() {
    let (_world, host) = ready_host(healthy_script()).await;
    host.set_policy(policy_allowing(budget_of(2)));
    let run = Arc::new(AgentRun::new("r", 1));
    let within = |run: &Arc<AgentRun>| {
        let call = CallRequest {
            run: Some(Arc::clone(run)),
            ..as_principal("ann", tool_call("s__do", "{}"))
        };
        host.call(call)
    };
    within(&run).await.unwrap();
    for _ in 0..5 {
        within(&run).await.unwrap_err();
    }
    assert_eq!(
        call_do(&host, "ann").await,
        Ok(()),
        "the second unit is there"
    );
    let other = Arc::new(AgentRun::new("other", 5));
    within(&other).await.unwrap_err();
    assert_eq!(other.spent_calls(), 0, "the budget refused it first");
}

#[tokio::test(start_paused = true)]
async fn rate_limit_reports_retry_time() {
    let (_world, host) = ready_host(healthy_script()).await;
    let rate = RateRule {
        calls: 2,
        per: Duration::from_secs(1),
        burst: 2,
    };
    host.set_policy(policy_allowing(CallAllowance {
        rate: Some(rate),
        ..budget_of(3)
    }));
    assert_eq!(call_do(&host, "ann").await, Ok(()));
    assert_eq!(call_do(&host, "ann").await, Ok(()));
    let refused = CallError::RateExceeded {
        principal: "ann".into(),
        after: Duration::from_millis(500),
    };
    assert_eq!(refused.failure_class(), FailureClass::Throttled);
    assert_eq!(call_do(&host, "ann").await, Err(refused));
    tokio::time::advance(Duration::from_millis(500)).await;
    assert_eq!(
        call_do(&host, "ann").await,
        Ok(()),
        "it was not charged before"
    );
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(
        call_do(&host, "ann").await,
        budget_spent_error("ann", 3, 3, 58_500)
    );
}

#[tokio::test(start_paused = true)]
async fn cache_hit_costs_one_unit() {
    let tool =
        r#"{"name":"do","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}"#;
    let says = r#"{"content":[],"ttlMs":60000,"cacheScope":"public"}"#;
    let generation = GenerationScript::with_definitions(&[tool.to_owned()]);
    let generation = generation.with_behaviour("do", ToolBehaviour::RespondWith(says.to_owned()));
    let (world, host) = ready_host(ServerScript::always(generation)).await;
    host.set_policy(policy_allowing(budget_of(3)));
    for origin in [ReplyOrigin::Live, ReplyOrigin::Cached, ReplyOrigin::Cached] {
        let reply = host
            .call(as_principal("ann", tool_call("s__do", "{}")))
            .await
            .unwrap();
        assert_eq!(reply.origin, origin);
    }
    assert_eq!(world.record().executions.len(), 1);
    assert_eq!(
        call_do(&host, "ann").await,
        budget_spent_error("ann", 3, 3, 60_000)
    );
}

#[tokio::test(start_paused = true)]
async fn task_requests_cost_only_rate() {
    let made = r#"{"task":{"taskId":"t","status":"working"}}"#;
    let generation =
        GenerationScript::with_tools([("do", ToolBehaviour::RespondWith(made.to_owned()))])
            .respond_with("tasks/get", "", r#"{"taskId":"t","status":"working"}"#);
    let (_world, host) = ready_host(ServerScript::always(generation)).await;
    let rate = RateRule {
        calls: 1,
        per: Duration::from_secs(1),
        burst: 4,
    };
    host.set_policy(policy_allowing(CallAllowance {
        rate: Some(rate),
        ..budget_of(1)
    }));
    let make = CallRequest {
        wants_task: true,
        ..as_principal("ann", tool_call("s__do", "{}"))
    };
    host.call(make).await.unwrap();
    let get = || {
        let (id, operation) = ("t".into(), TaskOperation::Get);
        host.call(as_principal(
            "ann",
            subject_call(CallSubject::Task { id, operation }, "taskId"),
        ))
    };
    for _ in 0..3 {
        get().await.unwrap();
    }
    assert!(matches!(get().await, Err(CallError::RateExceeded { .. })));
}

#[tokio::test(start_paused = true)]
async fn owner_has_no_budget() {
    let (_world, host) = ready_host(healthy_script()).await;
    host.set_policy(policy_allowing(budget_of(1)));
    for _ in 0..10 {
        host.call(tool_call("s__do", "{}")).await.unwrap();
    }
}

/// A restarted host with the previous journal.
async fn restart_host(world: &SimWorld, journal: &Arc<dyn Journal>) -> Host {
    let ports = HostPorts {
        journal: Arc::clone(journal),
        ..world.ports()
    };
    let host = Host::start(vec![server_spec("s")], HostLimits::default(), ports);
    host.set_policy(policy_allowing(budget_of(2)));
    assert!(wait_for_state(&host, "s", "ready").await);
    host
}

fn is_spent(outcome: &Result<(), CallError>) -> bool {
    matches!(outcome, Err(CallError::BudgetExceeded { spent: 2, .. }))
}

#[tokio::test(start_paused = true)]
async fn shutdown_keeps_spent_budget_for_next_start() {
    let world = SimWorld::new([("s", healthy_script())]);
    let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::default());
    let host = restart_host(&world, &journal).await;
    for _ in 0..2 {
        assert_eq!(call_do(&host, "ann").await, Ok(()));
    }
    host.shutdown().await;

    let host = restart_host(&world, &journal).await;
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        let host = host.clone();
        calls.spawn(async move { call_do(&host, "ann").await });
    }
    let outcomes = calls.join_all().await;
    assert!(outcomes.iter().all(is_spent), "{outcomes:?}");
    assert_eq!(call_do(&host, "bob").await, Ok(()), "each has its own");
}

#[tokio::test(start_paused = true)]
async fn kill_keeps_budget_spent_a_second_ago() {
    let world = SimWorld::new([("s", healthy_script())]);
    let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::default());
    let host = restart_host(&world, &journal).await;
    let mut written = journal.watch_prefix("budget/");
    for _ in 0..2 {
        assert_eq!(call_do(&host, "ann").await, Ok(()));
    }
    let changed = tokio::time::timeout(Duration::from_millis(1_100), written.changed());
    changed.await.unwrap().unwrap();
    drop(host);

    let host = restart_host(&world, &journal).await;
    let again = call_do(&host, "ann").await;
    assert!(is_spent(&again), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn unlimited_calls_write_no_accounts() {
    let world = SimWorld::new([("s", healthy_script())]);
    let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::default());
    let host = restart_host(&world, &journal).await;
    host.call(tool_call("s__do", "{}")).await.unwrap();
    host.set_policy(policy_allowing(CallAllowance::default()));
    assert_eq!(call_do(&host, "ann").await, Ok(()));
    host.shutdown().await;
    let kept = journal.list_values("", usize::MAX).await.unwrap();
    let kept = kept.iter().filter(|(key, _)| key.starts_with("budget"));
    assert_eq!(kept.count(), 0);
}
