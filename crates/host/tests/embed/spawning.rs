//! Servers that are taken into care, stopped, reloaded and taken out while the host runs.

use std::time::Duration;

use bowline_core::breaker::BreakerPolicy;
use bowline_core::error::{CallError, Class};
use bowline_host::tools::ExecuteError;
use bowline_host::{ServerSpec, SpawnError, SpawnOptions};
use bowline_link::Exit;
use bowline_sim::{Act, Gate, Generation, Script, World, call, reaches, spec};
use serde_json::json;

use super::{Refuses, builder, host, named, owner, text};

fn plain() -> Script {
    Script::always(Generation::tools([("do", Act::Answers)]))
}

fn lazy() -> SpawnOptions {
    SpawnOptions {
        lazy: Some(true),
        ..SpawnOptions::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_spawned_serves_when_spawn_returns() {
    let world = World::new([("s", plain())]);
    let host = host(&world);
    let name = host
        .spawn(spec("s"), SpawnOptions::default())
        .await
        .unwrap();
    assert_eq!(&*name, "s");
    assert_eq!(host.status_of("s").unwrap().state, "ready");
    let tools = host.tools(&owner(), "s").await.unwrap();
    assert_eq!(tools[0].name().as_ref(), "do");
    assert_eq!(
        text(host.call_tool(&owner(), "s", "do", json!({})).await),
        "s#1"
    );
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_refuses_a_server_has_nothing_registered_or_started() {
    let world = World::new([("s", plain()), ("t", plain())]);
    let built = builder(&world).guard(Refuses("s", None));
    let host = built.server(spec("t")).build().unwrap();
    for options in [SpawnOptions::default(), lazy()] {
        let refused = host.spawn(spec("s"), options).await.unwrap_err();
        assert!(matches!(refused, SpawnError::Denied { .. }));
        let expect = "server `s` is refused: not on the list";
        assert_eq!(refused.to_string(), expect);
    }
    assert_eq!(host.servers(), ["t".into()]);
    assert_eq!(world.record().starts_of("s"), 0);
    let built = builder(&world).guard(Refuses("s", None)).server(spec("s"));
    assert!(built.build().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_be_started_leaves_nothing_behind() {
    let world = World::new([(
        "s",
        Script::always(Generation::fails("no such file"))
            .then(Generation::tools([("do", Act::Answers)])),
    )]);
    let host = host(&world);
    let failed = host.spawn(spec("s"), SpawnOptions::default()).await;
    let Err(SpawnError::Start {
        server,
        class,
        reason,
    }) = failed
    else {
        panic!("{failed:?}");
    };
    assert_eq!((&*server, class), ("s", Class::ProtocolError));
    assert!(reason.contains("no such file"), "{reason}");
    assert!(host.servers().is_empty());
    assert!(host.catalog().offer("s").is_none());
    // And it is not tried again behind anybody's back.
    tokio::time::advance(Duration::from_secs(600)).await;
    assert_eq!(world.record().starts_of("s"), 1);
    host.spawn(spec("s"), SpawnOptions::default())
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_spawn_that_is_dropped_takes_its_server_out_again() {
    let gate = Gate::closed();
    let hangs = Generation::tools([("do", Act::Answers)]).hangs(&gate);
    let world = World::new([("s", Script::always(hangs))]);
    let host = host(&world);
    tokio::select! {
        biased;
        _ = host.spawn(spec("s"), SpawnOptions::default()) => panic!("it hangs"),
        _ = world.until(|record| record.starts_of("s") == 1) => {}
    }
    assert!(host.servers().is_empty());
    world.until(|record| record.alive("s") == 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_lazy_server_is_registered_and_started_by_its_first_call() {
    let world = World::new([("s", plain())]);
    let host = host(&world);
    host.spawn(spec("s"), lazy()).await.unwrap();
    assert_eq!(host.status_of("s").unwrap().state, "idle");
    assert_eq!(world.record().starts_of("s"), 0);
    assert_eq!(
        text(host.call_tool(&owner(), "s", "do", json!({})).await),
        "s#1"
    );
}

#[tokio::test(start_paused = true)]
async fn options_count_more_than_the_spec() {
    let world = World::new([("s", plain())]);
    let host = host(&world);
    let options = SpawnOptions {
        lazy: Some(false),
        keep_alive: Some(Duration::from_secs(7)),
        circuit_threshold: Some(2),
        circuit_reset: Some(Duration::from_secs(3)),
        max_restarts: Some(9),
        restart_window: Some(Duration::from_secs(11)),
        ..SpawnOptions::default()
    };
    let eager = ServerSpec {
        lazy: true,
        ..spec("s")
    };
    host.spawn(eager, options).await.unwrap();
    let server = host.server("s").unwrap();
    let spec = server.spec();
    assert!(!spec.lazy);
    assert_eq!(spec.idle_stop, Some(Duration::from_secs(7)));
    let breaker = BreakerPolicy {
        failures_max: 2,
        rest: Duration::from_secs(3),
    };
    assert_eq!(spec.breaker, breaker);
    let limits = host.status_of("s").unwrap().limits;
    assert_eq!((limits.restarts_max, limits.restart_window_ms), (9, 11_000));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_runs_is_refused_and_its_server_untouched() {
    let world = World::new([("s", plain())]);
    let host = host(&world);
    host.spawn(spec("s"), SpawnOptions::default())
        .await
        .unwrap();
    let again = host.spawn(spec("s"), SpawnOptions::default()).await;
    assert!(matches!(again, Err(SpawnError::InUse(_))), "{again:?}");
    assert_eq!(world.record().starts_of("s"), 1);
    assert_eq!(
        text(host.call_tool(&owner(), "s", "do", json!({})).await),
        "s#1"
    );
    let options = SpawnOptions {
        replace: true,
        ..SpawnOptions::default()
    };
    host.spawn(spec("s"), options).await.unwrap();
    world.until(|record| record.alive("s") == 1).await;
    assert_eq!(
        text(host.call_tool(&owner(), "s", "do", json!({})).await),
        "s#2"
    );
}

#[tokio::test(start_paused = true)]
async fn spawning_again_clears_breaker_and_ejection() {
    let dies = Generation::tools([("do", Act::Dies)]);
    let well = Generation::tools([("do", Act::Answers)]);
    let world = World::new([("s", Script::always(dies).then(well))]);
    let host = host(&world);
    let options = SpawnOptions {
        circuit_threshold: Some(1),
        max_restarts: Some(0),
        ..SpawnOptions::default()
    };
    host.spawn(spec("s"), options.clone()).await.unwrap();
    let lost = host.call(call("s__do", "{}")).await.unwrap_err();
    assert_eq!(lost.class(), Class::ConnectionLost);
    assert!(reaches(&host, "s", "ejected").await);
    assert_eq!(host.status_of("s").unwrap().circuit, "open");
    host.spawn(spec("s"), options).await.unwrap();
    let status = host.status_of("s").unwrap();
    assert_eq!(
        (status.state, status.circuit, status.restart_count),
        ("ready", "closed", 0)
    );
    assert_eq!(
        text(host.call_tool(&owner(), "s", "do", json!({})).await),
        "s#2"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stopped_server_refuses_calls_until_it_is_wanted_again() {
    let world = World::new([("s", plain())]);
    let host = host(&world);
    host.spawn(spec("s"), SpawnOptions::default())
        .await
        .unwrap();
    host.stop("s").await.unwrap();
    assert_eq!(world.record().alive("s"), 0);
    let refused = host.call_tool(&owner(), "s", "do", json!({})).await;
    let Err(ExecuteError::Call(CallError::Stopped { .. })) = refused else {
        panic!("{refused:?}");
    };
    host.reload("s").await.unwrap();
    assert!(reaches(&host, "s", "ready").await);
    host.remove("s").await.unwrap();
    assert!(host.servers().is_empty());
    for refused in [
        host.stop("s").await,
        host.reload("s").await,
        host.remove("s").await,
        host.tools(&owner(), "s").await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().to_string(), "no server named `s`");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_when_its_server_is_removed_does_not_run_at_the_next_of_its_name() {
    let gate = Gate::closed();
    let slow = Generation::tools([("do", Act::Answers)]).hangs(&gate);
    let well = Generation::tools([("do", Act::Answers)]);
    let world = World::new([("s", Script::always(slow).then(well))]);
    let host = host(&world);
    host.spawn(spec("s"), lazy()).await.unwrap();
    let owner = owner();
    let waits = host.call_tool(&owner, "s", "do", json!({}));
    let replaced = async {
        world.until(|record| record.starts_of("s") == 1).await;
        host.remove("s").await.unwrap();
        host.spawn(spec("s"), SpawnOptions::default())
            .await
            .unwrap();
    };
    let (waited, ()) = tokio::join!(waits, replaced);
    let Err(ExecuteError::Call(CallError::Stopped { .. })) = waited else {
        panic!("{waited:?}");
    };
    assert_eq!(world.record().executions, []);
}

#[tokio::test(start_paused = true)]
async fn a_card_stands_in_until_the_server_has_spoken() {
    let world = World::new([("s", plain())]);
    let host = host(&world);
    let path = std::env::temp_dir().join(format!("bowline-card-{}.json", std::process::id()));
    std::fs::write(
        &path,
        r#"{"serverInfo":{"name":"s","version":"1"},"tools":[{"name":"promised"}]}"#,
    )
    .unwrap();
    let source = format!("file://{}", path.display());
    let options = SpawnOptions {
        card: Some(source.clone()),
        ..lazy()
    };
    host.spawn(spec("s"), options).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let listed = host.tools(&owner(), "s").await.unwrap();
    assert_eq!(listed[0].name().as_ref(), "promised");
    assert_eq!(world.record().starts_of("s"), 0);
    assert_eq!(
        host.status_of("s").unwrap().card.as_deref(),
        Some(source.as_str())
    );
    let promised = host.call_tool(&owner(), "s", "promised", json!({})).await;
    assert_eq!(text(promised), "s#1", "the server itself was asked");
    let listed = host.tools(&owner(), "s").await.unwrap();
    let names: Vec<_> = listed.iter().map(|tool| tool.name().as_ref()).collect();
    assert_eq!(names, ["do"], "what the server says takes its place");
    let missing = SpawnOptions {
        card: Some("/nowhere/card.json".to_owned()),
        ..lazy()
    };
    let refused = host.spawn(spec("t"), missing).await;
    assert!(
        matches!(refused, Err(SpawnError::Card { .. })),
        "{refused:?}"
    );
    assert_eq!(host.servers(), ["s".into()]);
}

#[tokio::test(start_paused = true)]
async fn what_is_discovered_reads_as_lines_of_tools_and_failures() {
    let world = World::new([
        ("s", plain()),
        ("t", Script::always(Generation::fails("broken"))),
    ]);
    let built = builder(&world).server(spec("s")).server(spec("t"));
    let host = built.build().unwrap();
    assert!(reaches(&host, "s", "ready").await && reaches(&host, "t", "backoff").await);
    let found = host.discover(&owner(), Duration::from_secs(1)).await;
    let entries: Vec<_> = found
        .into_iter()
        .flat_map(|one| one.into_entries())
        .collect();
    let lines = serde_json::to_value(&entries).unwrap();
    let expect = json!({"server": "s", "tool": "do", "schema": {"type": "object"}});
    assert_eq!(lines[0], expect);
    assert_eq!(
        (&lines[1]["server"], &lines[1]["error"]["class"]),
        (&json!("t"), &json!("protocol_error"))
    );
    assert_eq!(lines.as_array().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_crashes_after_its_spawn_is_cared_for() {
    let world = World::new([("s", plain())]);
    let host = host(&world);
    host.spawn(spec("s"), SpawnOptions::default())
        .await
        .unwrap();
    assert!(world.kill("s", Exit::Signal(9)));
    assert!(reaches(&host, "s", "backoff").await && reaches(&host, "s", "ready").await);
    assert_eq!(
        text(host.call_tool(&owner(), "s", "do", json!({})).await),
        "s#2"
    );
    assert!(
        host.call_tool(&named("x"), "s", "do", json!({}))
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn given_name_is_slugged_as_in_files() {
    let world = World::new([("my-server", plain()), ("other-one", plain())]);
    let built = builder(&world).server(spec("My_Server"));
    let host = built.build().unwrap();
    let other = host
        .spawn(spec("Other One"), SpawnOptions::default())
        .await
        .unwrap();
    assert_eq!(&*other, "other-one");
    assert_eq!(host.servers(), ["my-server".into(), other]);
    for name in ["My_Server", "my-server"] {
        let tools = host.tools(&owner(), name).await.unwrap();
        assert_eq!(tools[0].name().as_ref(), "do");
        let done = host.call_tool(&owner(), name, "do", json!({})).await;
        assert_eq!(text(done), "my-server#1");
    }
    host.call(call("my-server__do", "{}")).await.unwrap();
    let limited = named("guest");
    let refused = host.call_tool(&limited, "My_Server", "do", json!({})).await;
    let Err(ExecuteError::Call(refused)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refused.class(), Class::Denied, "{refused}");
    host.remove("My_Server").await.unwrap();
    assert_eq!(host.servers(), ["other-one".into()]);
    let nameless = host.spawn(spec(""), SpawnOptions::default()).await;
    assert_eq!(nameless.unwrap_err().to_string(), "a server needs a name");
}

#[tokio::test(start_paused = true)]
async fn names_with_one_slug_are_refused_with_both() {
    let world = World::new([("my-server", plain())]);
    let clash = |first, second| {
        format!(
            "the names `{first}` and `{second}` both stand for server `my-server`: \
             rename one of them"
        )
    };
    let built = builder(&world)
        .server(spec("My_Server"))
        .server(spec("my server"));
    let expected = clash("My_Server", "my server");
    assert_eq!(built.build().unwrap_err().to_string(), expected);
    assert_eq!(world.record().starts_of("my-server"), 0);

    let host = builder(&world).server(spec("my-server")).build().unwrap();
    let replace = SpawnOptions {
        replace: true,
        ..SpawnOptions::default()
    };
    let refused = host.spawn(spec("My_Server"), replace).await.unwrap_err();
    assert_eq!(refused.to_string(), clash("my-server", "My_Server"));

    let applied = host.apply(vec![spec("my-server"), spec("My_Server")]);
    assert_eq!(applied.kept, ["my-server".into()]);
    let told: Vec<_> = applied.clashes.iter().map(ToString::to_string).collect();
    assert_eq!(told, [clash("my-server", "My_Server")]);
    assert!(reaches(&host, "my-server", "ready").await);
    assert_eq!(world.record().starts_of("my-server"), 1);
}
