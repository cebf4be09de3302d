//! What a call costs its principal and its run.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::Arc;
use std::time::Duration;

use bowline_core::budget::{Allowance, BudgetRule, RateRule};
use bowline_core::call::{Call, Origin, Principal, Role, Subject, TaskVerb};
use bowline_core::error::{CallError, Class, Execution};
use bowline_core::policy::{Otherwise, Pattern, Policy, RoleRules};
use bowline_core::run::Run;
use bowline_host::spec::ServerSpec;
use bowline_host::{Host, HostLimits, Ports};
use bowline_journal::{Journal, Memory};
use bowline_sim::{Act, Gate, Generation, Script, World, ask, call, reaches, spec};
use tokio::task::JoinSet;

/// Two tools; the server goes away with the first call of `do`, and answers it the second time.
fn once_lost() -> Script {
    let tools = ["do", "other"].map(|name| {
        format!(
            r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"annotations":{{"readOnlyHint":true}}}}"#
        )
    });
    let generation = |act| Generation::definitions(&tools).act("do", act);
    Script::always(generation(Act::Dies)).then(generation(Act::Answers))
}

fn well() -> Script {
    Script::always(Generation::tools([
        ("do", Act::Answers),
        ("other", Act::Answers),
    ]))
}

async fn ready(script: Script) -> (World, Host) {
    let world = World::new([("s", script)]);
    let host = world.host(vec![spec("s")], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    (world, host)
}

fn budget(calls: u64) -> Allowance {
    Allowance {
        budget: Some(BudgetRule {
            calls,
            per: Duration::from_secs(60),
        }),
        rate: None,
    }
}

/// A policy in which role `r` may use `s.do` and spend this.
fn allowing(allowance: Allowance) -> Policy {
    let rules = RoleRules {
        allow: vec![Pattern::parse("s.do").unwrap()],
        allowance,
        ..RoleRules::default()
    };
    Policy::new(Otherwise::Deny).with_role("r", rules)
}

fn by(name: &str, call: Call) -> Call {
    let principal = Principal::new(name, Role::Named("r".into()));
    Call {
        principal: Arc::new(principal),
        ..call
    }
}

async fn do_it(host: &Host, name: &str) -> Result<(), CallError> {
    host.call(by(name, call("s__do", "{}"))).await.map(|_| ())
}

fn spent(name: &str, allowed: u64, spent: u64, after: u64) -> Result<(), CallError> {
    Err(CallError::BudgetSpent {
        principal: name.into(),
        limit: "budget",
        allowed,
        spent,
        after: Some(Duration::from_millis(after)),
    })
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_sent_twice_costs_one_unit() {
    let (world, host) = ready(once_lost()).await;
    host.set_policy(allowing(budget(1)));
    assert_eq!(do_it(&host, "ann").await, Ok(()));
    assert_eq!(world.record().executions.len(), 2, "it was sent twice");
    let refused = do_it(&host, "ann").await.unwrap_err();
    let expected = matches!(
        refused,
        CallError::BudgetSpent {
            allowed: 1,
            spent: 1,
            ..
        }
    );
    assert!(expected, "{refused}");
    let told = (refused.class(), refused.execution());
    assert_eq!(told, (Class::Denied, Execution::NotStarted));
    assert_eq!(do_it(&host, "bob").await, Ok(()), "each has its own");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_goes_on_to_the_successor_of_its_server_costs_one_unit() {
    let gate = Gate::closed();
    let slow = Generation::tools([("do", Act::Hangs(gate.clone()))]);
    let script = Script::always(slow).then(Generation::tools([("do", Act::Answers)]));
    let world = World::new([("s", script)]);
    let one = |secs| ServerSpec {
        calls_max: 1,
        call_timeout: Duration::from_secs(secs),
        ..spec("s")
    };
    let host = world.host(vec![one(60)], HostLimits::default());
    assert!(reaches(&host, "s", "ready").await);
    host.set_policy(allowing(budget(2)));
    let mut first = std::pin::pin!(do_it(&host, "ann"));
    tokio::select! {
        outcome = &mut first => panic!("{outcome:?}"),
        _ = world.until(|record| record.executions.len() == 1) => {}
    }
    let mut queued = JoinSet::new();
    let queue = host.clone();
    queued.spawn(async move { do_it(&queue, "ann").await });
    tokio::task::yield_now().await;
    host.apply(vec![one(61)]);
    assert!(reaches(&host, "s", "ready").await);
    gate.release();
    let (first, queued) = tokio::join!(first, queued.join_all());
    assert_eq!(
        (first, queued),
        (Ok(()), vec![Ok(())]),
        "two units for two calls"
    );
    let spent = do_it(&host, "ann").await.unwrap_err();
    assert!(
        matches!(spent, CallError::BudgetSpent { spent: 2, .. }),
        "{spent}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_denied_costs_nothing_and_a_new_period_begins_with_the_next_call() {
    let (_world, host) = ready(well()).await;
    host.set_policy(allowing(budget(2)));
    for _ in 0..5 {
        let denied = host.call(by("ann", call("s__other", "{}"))).await;
        assert!(matches!(denied, Err(CallError::Denied { .. })));
    }
    assert_eq!(do_it(&host, "ann").await, Ok(()));
    assert_eq!(do_it(&host, "ann").await, Ok(()));
    assert_eq!(do_it(&host, "ann").await, spent("ann", 2, 2, 60_000));
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(do_it(&host, "ann").await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn other_rules_keep_what_was_spent() {
    let (_world, host) = ready(well()).await;
    host.set_policy(allowing(budget(3)));
    assert_eq!(do_it(&host, "ann").await, Ok(()));
    assert_eq!(do_it(&host, "ann").await, Ok(()));
    host.set_policy(allowing(budget(2)));
    assert_eq!(do_it(&host, "ann").await, spent("ann", 2, 2, 60_000));
    host.set_policy(allowing(Allowance::default()));
    assert_eq!(do_it(&host, "ann").await, Ok(()), "nothing is counted");
    host.set_policy(allowing(budget(3)));
    assert_eq!(do_it(&host, "ann").await, Ok(()));
    assert_eq!(do_it(&host, "ann").await, spent("ann", 3, 3, 60_000));
}

#[tokio::test(start_paused = true)]
async fn a_run_has_a_ceiling_that_all_its_branches_share() {
    let (_world, host) = ready(well()).await;
    let run = Arc::new(Run::new("r", 10));
    let mut branches = JoinSet::new();
    for _ in 0..30 {
        let (host, run) = (host.clone(), Arc::clone(&run));
        branches.spawn(async move {
            let call = Call {
                run: Some(run),
                ..call("s__do", "{}")
            };
            host.call(call).await.map(|_| ())
        });
    }
    let ends = branches.join_all().await;
    let over = CallError::BudgetSpent {
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
async fn what_the_run_refuses_is_not_charged_to_the_principal_and_the_other_way_round() {
    let (_world, host) = ready(well()).await;
    host.set_policy(allowing(budget(2)));
    let run = Arc::new(Run::new("r", 1));
    let within = |run: &Arc<Run>| {
        let call = Call {
            run: Some(Arc::clone(run)),
            ..by("ann", call("s__do", "{}"))
        };
        host.call(call)
    };
    within(&run).await.unwrap();
    for _ in 0..5 {
        within(&run).await.unwrap_err();
    }
    assert_eq!(
        do_it(&host, "ann").await,
        Ok(()),
        "the second unit is there"
    );
    let other = Arc::new(Run::new("other", 5));
    within(&other).await.unwrap_err();
    assert_eq!(other.spent(), 0, "the budget refused it first");
}

#[tokio::test(start_paused = true)]
async fn too_many_calls_at_once_are_told_when_the_next_may_come() {
    let (_world, host) = ready(well()).await;
    let rate = RateRule {
        calls: 2,
        per: Duration::from_secs(1),
        burst: 2,
    };
    host.set_policy(allowing(Allowance {
        rate: Some(rate),
        ..budget(3)
    }));
    assert_eq!(do_it(&host, "ann").await, Ok(()));
    assert_eq!(do_it(&host, "ann").await, Ok(()));
    let refused = CallError::TooFast {
        principal: "ann".into(),
        after: Duration::from_millis(500),
    };
    assert_eq!(refused.class(), Class::Throttled);
    assert_eq!(do_it(&host, "ann").await, Err(refused));
    tokio::time::advance(Duration::from_millis(500)).await;
    assert_eq!(
        do_it(&host, "ann").await,
        Ok(()),
        "it was not charged before"
    );
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(do_it(&host, "ann").await, spent("ann", 3, 3, 58_500));
}

#[tokio::test(start_paused = true)]
async fn an_answer_from_the_cache_costs_one_unit() {
    let tool =
        r#"{"name":"do","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true}}"#;
    let says = r#"{"content":[],"ttlMs":60000,"cacheScope":"public"}"#;
    let generation = Generation::definitions(&[tool.to_owned()]);
    let generation = generation.act("do", Act::Says(says.to_owned()));
    let (world, host) = ready(Script::always(generation)).await;
    host.set_policy(allowing(budget(3)));
    for origin in [Origin::Live, Origin::Cached, Origin::Cached] {
        let reply = host.call(by("ann", call("s__do", "{}"))).await.unwrap();
        assert_eq!(reply.origin, origin);
    }
    assert_eq!(world.record().executions.len(), 1);
    assert_eq!(do_it(&host, "ann").await, spent("ann", 3, 3, 60_000));
}

#[tokio::test(start_paused = true)]
async fn questions_about_a_task_are_free_of_the_budget_and_held_to_the_rate() {
    let made = r#"{"task":{"taskId":"t","status":"working"}}"#;
    let generation = Generation::tools([("do", Act::Says(made.to_owned()))]).answers(
        "tasks/get",
        "",
        r#"{"taskId":"t","status":"working"}"#,
    );
    let (_world, host) = ready(Script::always(generation)).await;
    let rate = RateRule {
        calls: 1,
        per: Duration::from_secs(1),
        burst: 4,
    };
    host.set_policy(allowing(Allowance {
        rate: Some(rate),
        ..budget(1)
    }));
    let make = Call {
        makes_task: true,
        ..by("ann", call("s__do", "{}"))
    };
    host.call(make).await.unwrap();
    let get = || {
        let (id, verb) = ("t".into(), TaskVerb::Get);
        host.call(by("ann", ask(Subject::Task { id, verb }, "taskId")))
    };
    for _ in 0..3 {
        get().await.unwrap();
    }
    assert!(matches!(get().await, Err(CallError::TooFast { .. })));
}

#[tokio::test(start_paused = true)]
async fn the_owner_pays_nothing() {
    let (_world, host) = ready(well()).await;
    host.set_policy(allowing(budget(1)));
    for _ in 0..10 {
        host.call(call("s__do", "{}")).await.unwrap();
    }
}

/// A host of the next life, with the journal of the one before.
async fn next_life(world: &World, journal: &Arc<dyn Journal>) -> Host {
    let ports = Ports {
        journal: Arc::clone(journal),
        ..world.ports()
    };
    let host = Host::start(vec![spec("s")], HostLimits::default(), ports);
    host.set_policy(allowing(budget(2)));
    assert!(reaches(&host, "s", "ready").await);
    host
}

fn is_spent(outcome: &Result<(), CallError>) -> bool {
    matches!(outcome, Err(CallError::BudgetSpent { spent: 2, .. }))
}

#[tokio::test(start_paused = true)]
async fn shutdown_keeps_spent_budget_for_next_start() {
    let world = World::new([("s", well())]);
    let journal: Arc<dyn Journal> = Arc::new(Memory::default());
    let host = next_life(&world, &journal).await;
    for _ in 0..2 {
        assert_eq!(do_it(&host, "ann").await, Ok(()));
    }
    host.shutdown().await;

    let host = next_life(&world, &journal).await;
    let mut calls = JoinSet::new();
    for _ in 0..5 {
        let host = host.clone();
        calls.spawn(async move { do_it(&host, "ann").await });
    }
    let outcomes = calls.join_all().await;
    assert!(outcomes.iter().all(is_spent), "{outcomes:?}");
    assert_eq!(do_it(&host, "bob").await, Ok(()), "each has its own");
}

#[tokio::test(start_paused = true)]
async fn kill_keeps_budget_spent_a_second_ago() {
    let world = World::new([("s", well())]);
    let journal: Arc<dyn Journal> = Arc::new(Memory::default());
    let host = next_life(&world, &journal).await;
    let mut written = journal.watch("budget/");
    for _ in 0..2 {
        assert_eq!(do_it(&host, "ann").await, Ok(()));
    }
    let changed = tokio::time::timeout(Duration::from_millis(1_100), written.changed());
    changed.await.unwrap().unwrap();
    drop(host);

    let host = next_life(&world, &journal).await;
    let again = do_it(&host, "ann").await;
    assert!(is_spent(&again), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn unlimited_calls_write_no_accounts() {
    let world = World::new([("s", well())]);
    let journal: Arc<dyn Journal> = Arc::new(Memory::default());
    let host = next_life(&world, &journal).await;
    host.call(call("s__do", "{}")).await.unwrap();
    host.set_policy(allowing(Allowance::default()));
    assert_eq!(do_it(&host, "ann").await, Ok(()));
    host.shutdown().await;
    let kept = journal.list("", usize::MAX).await.unwrap();
    let kept = kept.iter().filter(|(key, _)| key.starts_with("budget"));
    assert_eq!(kept.count(), 0);
}
