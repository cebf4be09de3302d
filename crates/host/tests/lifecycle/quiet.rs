//! Servers that nobody needs, and those that keep silent.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Call, Principal, Role, Scope};
use bowline_core::caller::CallerEnd;
use bowline_host::Host;
use bowline_host::spec::{Isolation, ServerSpec};
use bowline_link::Exit;
use bowline_sim::{Act, Gate, Generation, Hearer, Record, Script, call, reaches, spec};

use super::{calls, pass, settle, states, well, world};

const IDLE: Duration = Duration::from_secs(80);

fn resting() -> ServerSpec {
    ServerSpec {
        idle_stop: Some(IDLE),
        ..spec("s")
    }
}

fn state(host: &Host) -> &'static str {
    host.status_of("s").unwrap().state
}

#[tokio::test(start_paused = true)]
async fn an_idle_server_is_stopped_and_the_next_call_starts_it_for_free() {
    let (world, host) = world(Script::always(well()), resting());
    let mut events = host.events().watch();
    assert!(reaches(&host, "s", "ready").await);
    pass(IDLE / 2).await;
    host.call(call("s__do", "{}")).await.unwrap();
    pass(IDLE - Duration::from_secs(1)).await;
    assert_eq!(state(&host), "ready", "the call counts");
    pass(IDLE / 4).await;
    assert_eq!(state(&host), "idle");
    assert_eq!(world.record().alive("s"), 0);
    assert!(host.catalog().offer("s").is_some(), "it is still offered");
    pass(IDLE * 4).await;
    assert_eq!(world.record().starts_of("s"), 1, "and stays down");

    host.call(call("s__do", "{}")).await.unwrap();
    let status = host.status_of("s").unwrap();
    assert_eq!((status.state, status.generation), ("ready", 2));
    assert_eq!(status.restart_count, 0, "nothing of its budget is spent");
    let seen: Vec<_> = states(&mut events)
        .into_iter()
        .map(|(state, ..)| state)
        .collect();
    assert_eq!(seen, ["ready", "draining", "idle", "starting", "ready"]);
    assert!(reaches(&host, "s", "idle").await, "and again");
}

#[tokio::test(start_paused = true)]
async fn many_who_wake_an_idle_server_do_not_wake_it_twice() {
    let (world, host) = world(Script::always(well()), resting());
    assert!(reaches(&host, "s", "idle").await);
    for outcome in calls(&host, "s__do", 10).join_all().await {
        outcome.unwrap();
    }
    assert!(reaches(&host, "s", "idle").await);
    pass(IDLE * 2).await;
    assert_eq!(state(&host), "idle");
    assert_eq!(world.record().starts_of("s"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_crash_is_not_taken_for_idling_however_long_the_process_takes_to_go() {
    let slow = well().end_takes(IDLE * 2);
    let (world, host) = world(Script::always(slow), resting());
    assert!(reaches(&host, "s", "ready").await);
    assert!(world.kill("s", Exit::Signal(9)));
    assert!(reaches(&host, "s", "backoff").await);
    assert_eq!(host.status_of("s").unwrap().restart_count, 1);
    assert_eq!(host.clock().now().0, 160_000);
}

#[tokio::test(start_paused = true)]
async fn a_server_with_a_call_in_flight_is_not_idle() {
    let gate = Gate::closed();
    let tools = Generation::tools([("wait", Act::Hangs(gate.clone()))]);
    let (_world, host) = world(Script::always(tools), resting());
    let waiting = calls(&host, "s__wait", 1);
    pass(IDLE * 3).await;
    assert_eq!(state(&host), "ready");
    gate.release();
    waiting.join_all().await.remove(0).unwrap();
    pass(IDLE / 2).await;
    assert_eq!(state(&host), "ready");
    assert!(reaches(&host, "s", "idle").await);
}

#[tokio::test(start_paused = true)]
async fn a_server_of_which_news_or_a_task_is_wanted_is_not_idle() {
    let resources = r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"resources":{"subscribe":true}},"serverInfo":{"name":"s","version":"1"}}"#;
    let answers = well()
        .introduces(resources)
        .answers("resources/list", "", r#"{"resources":[]}"#)
        .answers(
            "resources/templates/list",
            "",
            r#"{"resourceTemplates":[]}"#,
        )
        .answers("resources/subscribe", "", "{}")
        .answers("resources/unsubscribe", "", "{}");
    let (_world, host) = world(Script::always(answers), resting());
    assert!(reaches(&host, "s", "ready").await);
    let owner = Principal::new("owner", Role::Owner);
    let scope = Scope::Server("s".into());
    let caller: Arc<dyn CallerEnd> = Hearer::of(1);
    host.subscribe(&owner, &scope, &caller, "x://a")
        .await
        .unwrap();
    pass(IDLE * 3).await;
    assert_eq!(state(&host), "ready");
    host.session_ended(caller.session());
    assert!(reaches(&host, "s", "idle").await);

    let task = r#"{"task":{"taskId":"t1","status":"working"}}"#.to_owned();
    let tools = Generation::tools([("job", Act::Says(task))]);
    let (_world, host) = world(Script::always(tools), resting());
    let made = Call {
        makes_task: true,
        ..call("s__job", "{}")
    };
    host.call(made).await.unwrap();
    pass(IDLE * 3).await;
    assert_eq!(state(&host), "ready", "the task would go with it");
}

#[tokio::test(start_paused = true)]
async fn a_server_with_links_of_single_sessions_is_not_idle() {
    let spec = ServerSpec {
        isolation: Isolation::Session,
        ..resting()
    };
    let (world, host) = world(Script::always(well()), spec);
    let caller: Arc<dyn CallerEnd> = Hearer::of(1);
    let session = caller.session();
    let own = Call {
        caller: Some(caller),
        ..call("s__do", "{}")
    };
    host.call(own).await.unwrap();
    pass(IDLE * 2).await;
    assert_eq!((state(&host), world.record().alive("s")), ("ready", 2));
    host.session_ended(session);
    assert!(reaches(&host, "s", "idle").await);
    assert_eq!(world.record().alive("s"), 0);
}

fn pings(record: &Record) -> usize {
    let requests = record.requests_of("s").into_iter();
    requests
        .filter(|request| request.starts_with("ping"))
        .count()
}

#[tokio::test(start_paused = true)]
async fn a_quiet_server_is_pinged_and_a_busy_one_is_not() {
    let tools = Generation::tools([
        ("do", Act::Answers),
        ("slow", Act::AnswersAfter(Duration::from_secs(200))),
    ]);
    let (world, host) = world(Script::always(tools), spec("s"));
    assert!(reaches(&host, "s", "ready").await);
    pass(Duration::from_secs(29)).await;
    assert_eq!(pings(&world.record()), 0);
    pass(Duration::from_secs(2)).await;
    assert_eq!(pings(&world.record()), 1);
    pass(Duration::from_secs(10)).await;
    host.call(call("s__do", "{}")).await.unwrap();
    pass(Duration::from_secs(20)).await;
    assert_eq!(pings(&world.record()), 1, "an answer is as good as a pong");
    pass(Duration::from_secs(30)).await;
    assert_eq!(pings(&world.record()), 2);
    host.call(call("s__slow", "{}")).await.unwrap();
    assert_eq!(pings(&world.record()), 2, "it has something to do");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_answering_pings_is_restarted_like_a_crash() {
    let (world, host) = world(Script::always(well()), spec("s"));
    assert!(reaches(&host, "s", "ready").await);
    pass(Duration::from_secs(31)).await;
    world.link("s").unwrap().follow(well().ignores("ping"));
    pass(Duration::from_secs(110)).await;
    assert_eq!(host.status_of("s").unwrap().generation, 1, "two misses");
    assert!(reaches(&host, "s", "backoff").await);
    let status = host.status_of("s").unwrap();
    assert_eq!(status.restart_count, 1);
    assert_eq!(
        &*status.last_error.unwrap().message,
        "does not answer pings"
    );
    let now = host.clock().now().0;
    assert!((149_000..=152_000).contains(&now), "{now}");
    assert!(reaches(&host, "s", "ready").await);
    assert_eq!(world.record().alive("s"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answered_a_ping_is_not_judged_by_it() {
    let (world, host) = world(Script::always(well().ignores("ping")), spec("s"));
    assert!(reaches(&host, "s", "ready").await);
    pass(Duration::from_secs(1_200)).await;
    assert!(pings(&world.record()) > 10);
    assert_eq!(host.status_of("s").unwrap().generation, 1);
    host.call(call("s__do", "{}")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_server_that_answers_calls_between_misses_is_alive() {
    let (world, host) = world(Script::always(well()), spec("s"));
    assert!(reaches(&host, "s", "ready").await);
    pass(Duration::from_secs(31)).await;
    world.link("s").unwrap().follow(well().ignores("ping"));
    for _ in 0..5 {
        let before = pings(&world.record());
        world.until(|record| pings(record) > before).await;
        pass(Duration::from_secs(11)).await;
        // The ping was missed; before the next one the server shows that it lives.
        host.call(call("s__do", "{}")).await.unwrap();
    }
    assert_eq!(host.status_of("s").unwrap().generation, 1);
}

#[tokio::test(start_paused = true)]
async fn a_ping_that_is_missed_because_of_a_call_is_no_miss() {
    let gate = Gate::closed();
    let busy = || Generation::tools([("wait", Act::Hangs(gate.clone()))]).ignores("ping");
    let tools = Generation::tools([("wait", Act::Hangs(gate.clone()))]);
    let (world, host) = world(Script::always(tools), spec("s"));
    assert!(reaches(&host, "s", "ready").await);
    pass(Duration::from_secs(31)).await;
    world.link("s").unwrap().follow(busy());
    for nth in 1..=4 {
        let before = pings(&world.record());
        world.until(|record| pings(record) > before).await;
        // The call comes while the ping is on its way, and goes when it was missed.
        let waiting = calls(&host, "s__wait", 1);
        world.until(|record| record.executions.len() == nth).await;
        pass(Duration::from_secs(11)).await;
        drop(waiting);
        settle().await;
    }
    assert_eq!(host.status_of("s").unwrap().generation, 1);
}

#[tokio::test(start_paused = true)]
async fn pings_can_be_switched_off() {
    let spec = ServerSpec {
        ping: None,
        ..spec("s")
    };
    let (world, host) = world(Script::always(well()), spec);
    assert!(reaches(&host, "s", "ready").await);
    pass(Duration::from_secs(300)).await;
    assert_eq!(pings(&world.record()), 0);
}
