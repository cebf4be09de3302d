//! Adding, stopping, reloading and removing servers at run time.

use std::time::Duration;

use bowline_core::breaker::BreakerPolicy;
use bowline_core::error::{CallError, FailureClass};
use bowline_host::tools::ExecuteError;
use bowline_host::{ServerSpec, SpawnError, SpawnOptions};
use bowline_link::LinkExit;
use bowline_testkit::{
    GenerationScript, ReleaseGate, ServerScript, SimWorld, ToolBehaviour, server_spec, tool_call,
    wait_for_state,
};
use serde_json::json;

use super::{DenyGuard, build_host, host_builder, named_principal, output_text, owner_principal};

fn plain_script() -> ServerScript {
    ServerScript::always(GenerationScript::with_tools([(
        "do",
        ToolBehaviour::Respond,
    )]))
}

fn lazy_options() -> SpawnOptions {
    SpawnOptions {
        lazy: Some(true),
        ..SpawnOptions::default()
    }
}

#[tokio::test(start_paused = true)]
async fn spawned_server_is_ready_on_return() {
    let world = SimWorld::new([("s", plain_script())]);
    let host = build_host(&world);
    let name = host
        .spawn(server_spec("s"), SpawnOptions::default())
        .await
        .unwrap();
    assert_eq!(&*name, "s");
    assert_eq!(host.server_status("s").unwrap().state, "ready");
    let tools = host.list_tools(&owner_principal(), "s").await.unwrap();
    assert_eq!(tools[0].name().as_ref(), "do");
    assert_eq!(
        output_text(
            host.call_tool(&owner_principal(), "s", "do", json!({}))
                .await
        ),
        "s#1"
    );
}

#[tokio::test(start_paused = true)]
async fn refused_server_is_never_started() {
    let world = SimWorld::new([("s", plain_script()), ("t", plain_script())]);
    let built = host_builder(&world).guard(DenyGuard("s", None));
    let host = built.server(server_spec("t")).build().unwrap();
    for options in [SpawnOptions::default(), lazy_options()] {
        let refused = host.spawn(server_spec("s"), options).await.unwrap_err();
        assert!(matches!(refused, SpawnError::Denied { .. }));
        let expect = "server `s` is refused: not on the list";
        assert_eq!(refused.to_string(), expect);
    }
    assert_eq!(host.servers(), ["t".into()]);
    assert_eq!(world.record().start_count("s"), 0);
    let built = host_builder(&world)
        .guard(DenyGuard("s", None))
        .server(server_spec("s"));
    assert!(built.build().is_err());
}

#[tokio::test(start_paused = true)]
async fn failed_spawn_leaves_no_server() {
    let world = SimWorld::new([(
        "s",
        ServerScript::always(GenerationScript::failing_start("no such file")).then(
            GenerationScript::with_tools([("do", ToolBehaviour::Respond)]),
        ),
    )]);
    let host = build_host(&world);
    let failed = host.spawn(server_spec("s"), SpawnOptions::default()).await;
    let Err(SpawnError::Start {
        server,
        class,
        reason,
    }) = failed
    else {
        panic!("{failed:?}");
    };
    assert_eq!((&*server, class), ("s", FailureClass::ProtocolError));
    assert!(reason.contains("no such file"), "{reason}");
    assert!(host.servers().is_empty());
    assert!(host.catalog().server("s").is_none());
    // No retry in the background.
    tokio::time::advance(Duration::from_secs(600)).await;
    assert_eq!(world.record().start_count("s"), 1);
    host.spawn(server_spec("s"), SpawnOptions::default())
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn dropped_spawn_removes_server() {
    let gate = ReleaseGate::new_closed();
    let hangs = GenerationScript::with_tools([("do", ToolBehaviour::Respond)]).hang_start(&gate);
    let world = SimWorld::new([("s", ServerScript::always(hangs))]);
    let host = build_host(&world);
    tokio::select! {
        biased;
        _ = host.spawn(server_spec("s"), SpawnOptions::default()) => panic!("it hangs"),
        _ = world.wait_until(|record| record.start_count("s") == 1) => {}
    }
    assert!(host.servers().is_empty());
    world.wait_until(|record| record.live_count("s") == 0).await;
}

#[tokio::test(start_paused = true)]
async fn spawned_lazy_server_starts_on_call() {
    let world = SimWorld::new([("s", plain_script())]);
    let host = build_host(&world);
    host.spawn(server_spec("s"), lazy_options()).await.unwrap();
    assert_eq!(host.server_status("s").unwrap().state, "idle");
    assert_eq!(world.record().start_count("s"), 0);
    assert_eq!(
        output_text(
            host.call_tool(&owner_principal(), "s", "do", json!({}))
                .await
        ),
        "s#1"
    );
}

#[tokio::test(start_paused = true)]
async fn spawn_options_override_spec() {
    let world = SimWorld::new([("s", plain_script())]);
    let host = build_host(&world);
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
        ..server_spec("s")
    };
    host.spawn(eager, options).await.unwrap();
    let server = host.server("s").unwrap();
    let spec = server.spec();
    assert!(!spec.lazy);
    assert_eq!(spec.idle_stop, Some(Duration::from_secs(7)));
    let breaker = BreakerPolicy {
        failures_max: 2,
        cooldown: Duration::from_secs(3),
    };
    assert_eq!(spec.breaker, breaker);
    let limits = host.server_status("s").unwrap().limits;
    assert_eq!((limits.restarts_max, limits.restart_window_ms), (9, 11_000));
}

#[tokio::test(start_paused = true)]
async fn running_name_is_refused() {
    let world = SimWorld::new([("s", plain_script())]);
    let host = build_host(&world);
    host.spawn(server_spec("s"), SpawnOptions::default())
        .await
        .unwrap();
    let again = host.spawn(server_spec("s"), SpawnOptions::default()).await;
    assert!(matches!(again, Err(SpawnError::InUse(_))), "{again:?}");
    assert_eq!(world.record().start_count("s"), 1);
    assert_eq!(
        output_text(
            host.call_tool(&owner_principal(), "s", "do", json!({}))
                .await
        ),
        "s#1"
    );
    let options = SpawnOptions {
        replace: true,
        ..SpawnOptions::default()
    };
    host.spawn(server_spec("s"), options).await.unwrap();
    world.wait_until(|record| record.live_count("s") == 1).await;
    assert_eq!(
        output_text(
            host.call_tool(&owner_principal(), "s", "do", json!({}))
                .await
        ),
        "s#2"
    );
}

#[tokio::test(start_paused = true)]
async fn respawn_clears_breaker_and_ejection() {
    let dies = GenerationScript::with_tools([("do", ToolBehaviour::Exit)]);
    let well = GenerationScript::with_tools([("do", ToolBehaviour::Respond)]);
    let world = SimWorld::new([("s", ServerScript::always(dies).then(well))]);
    let host = build_host(&world);
    let options = SpawnOptions {
        circuit_threshold: Some(1),
        max_restarts: Some(0),
        ..SpawnOptions::default()
    };
    host.spawn(server_spec("s"), options.clone()).await.unwrap();
    let lost = host.call(tool_call("s__do", "{}")).await.unwrap_err();
    assert_eq!(lost.failure_class(), FailureClass::ConnectionLost);
    assert!(wait_for_state(&host, "s", "ejected").await);
    assert_eq!(host.server_status("s").unwrap().circuit, "open");
    host.spawn(server_spec("s"), options).await.unwrap();
    let status = host.server_status("s").unwrap();
    assert_eq!(
        (&*status.state, &*status.circuit, status.restart_count),
        ("ready", "closed", 0)
    );
    assert_eq!(
        output_text(
            host.call_tool(&owner_principal(), "s", "do", json!({}))
                .await
        ),
        "s#2"
    );
}

#[tokio::test(start_paused = true)]
async fn stopped_server_refuses_until_restarted() {
    let world = SimWorld::new([("s", plain_script())]);
    let host = build_host(&world);
    host.spawn(server_spec("s"), SpawnOptions::default())
        .await
        .unwrap();
    host.stop_server("s").await.unwrap();
    assert_eq!(world.record().live_count("s"), 0);
    let refused = host
        .call_tool(&owner_principal(), "s", "do", json!({}))
        .await;
    let Err(ExecuteError::Call(CallError::Stopped { .. })) = refused else {
        panic!("{refused:?}");
    };
    host.reload_server("s").await.unwrap();
    assert!(wait_for_state(&host, "s", "ready").await);
    host.remove_server("s").await.unwrap();
    assert!(host.servers().is_empty());
    for refused in [
        host.stop_server("s").await,
        host.reload_server("s").await,
        host.remove_server("s").await,
        host.list_tools(&owner_principal(), "s").await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().to_string(), "no server named `s`");
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_call_never_runs_on_replacement() {
    let gate = ReleaseGate::new_closed();
    let slow = GenerationScript::with_tools([("do", ToolBehaviour::Respond)]).hang_start(&gate);
    let well = GenerationScript::with_tools([("do", ToolBehaviour::Respond)]);
    let world = SimWorld::new([("s", ServerScript::always(slow).then(well))]);
    let host = build_host(&world);
    host.spawn(server_spec("s"), lazy_options()).await.unwrap();
    let owner = owner_principal();
    let waits = host.call_tool(&owner, "s", "do", json!({}));
    let replaced = async {
        world
            .wait_until(|record| record.start_count("s") == 1)
            .await;
        host.remove_server("s").await.unwrap();
        host.spawn(server_spec("s"), SpawnOptions::default())
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
async fn card_is_listed_until_server_lists() {
    let world = SimWorld::new([("s", plain_script())]);
    let host = build_host(&world);
    let path = std::env::temp_dir().join(format!("bowline-card-{}.json", std::process::id()));
    std::fs::write(
        &path,
        r#"{"serverInfo":{"name":"s","version":"1"},"tools":[{"name":"promised"}]}"#,
    )
    .unwrap();
    let source = format!("file://{}", path.display());
    let options = SpawnOptions {
        card: Some(source.clone()),
        ..lazy_options()
    };
    host.spawn(server_spec("s"), options).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let listed = host.list_tools(&owner_principal(), "s").await.unwrap();
    assert_eq!(listed[0].name().as_ref(), "promised");
    assert_eq!(world.record().start_count("s"), 0);
    assert_eq!(
        host.server_status("s").unwrap().card.as_deref(),
        Some(source.as_str())
    );
    let promised = host
        .call_tool(&owner_principal(), "s", "promised", json!({}))
        .await;
    assert_eq!(output_text(promised), "s#1", "the server itself was asked");
    let listed = host.list_tools(&owner_principal(), "s").await.unwrap();
    let names: Vec<_> = listed.iter().map(|tool| tool.name().as_ref()).collect();
    assert_eq!(names, ["do"], "what the server says takes its place");
    let missing = SpawnOptions {
        card: Some("/nowhere/card.json".to_owned()),
        ..lazy_options()
    };
    let refused = host.spawn(server_spec("t"), missing).await;
    assert!(
        matches!(refused, Err(SpawnError::Card { .. })),
        "{refused:?}"
    );
    assert_eq!(host.servers(), ["s".into()]);
}

#[tokio::test(start_paused = true)]
async fn discovery_entries_have_tools_and_errors() {
    let world = SimWorld::new([
        ("s", plain_script()),
        (
            "t",
            ServerScript::always(GenerationScript::failing_start("broken")),
        ),
    ]);
    let built = host_builder(&world)
        .server(server_spec("s"))
        .server(server_spec("t"));
    let host = built.build().unwrap();
    assert!(
        wait_for_state(&host, "s", "ready").await && wait_for_state(&host, "t", "backoff").await
    );
    let found = host
        .discover_tools(&owner_principal(), Duration::from_secs(1))
        .await;
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
async fn spawned_server_is_supervised() {
    let world = SimWorld::new([("s", plain_script())]);
    let host = build_host(&world);
    host.spawn(server_spec("s"), SpawnOptions::default())
        .await
        .unwrap();
    assert!(world.kill("s", LinkExit::Signal(9)));
    assert!(
        wait_for_state(&host, "s", "backoff").await && wait_for_state(&host, "s", "ready").await
    );
    assert_eq!(
        output_text(
            host.call_tool(&owner_principal(), "s", "do", json!({}))
                .await
        ),
        "s#2"
    );
    assert!(
        host.call_tool(&named_principal("x"), "s", "do", json!({}))
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn given_name_is_slugged_as_in_files() {
    let world = SimWorld::new([("my-server", plain_script()), ("other-one", plain_script())]);
    let built = host_builder(&world).server(server_spec("My_Server"));
    let host = built.build().unwrap();
    let other = host
        .spawn(server_spec("Other One"), SpawnOptions::default())
        .await
        .unwrap();
    assert_eq!(&*other, "other-one");
    assert_eq!(host.servers(), ["my-server".into(), other]);
    for name in ["My_Server", "my-server"] {
        let tools = host.list_tools(&owner_principal(), name).await.unwrap();
        assert_eq!(tools[0].name().as_ref(), "do");
        let done = host
            .call_tool(&owner_principal(), name, "do", json!({}))
            .await;
        assert_eq!(output_text(done), "my-server#1");
    }
    host.call(tool_call("my-server__do", "{}")).await.unwrap();
    let limited = named_principal("guest");
    let refused = host.call_tool(&limited, "My_Server", "do", json!({})).await;
    let Err(ExecuteError::Call(refused)) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refused.failure_class(), FailureClass::Denied, "{refused}");
    host.remove_server("My_Server").await.unwrap();
    assert_eq!(host.servers(), ["other-one".into()]);
    let nameless = host.spawn(server_spec(""), SpawnOptions::default()).await;
    assert_eq!(nameless.unwrap_err().to_string(), "a server needs a name");
}

#[tokio::test(start_paused = true)]
async fn names_with_one_slug_are_refused_with_both() {
    let world = SimWorld::new([("my-server", plain_script())]);
    let clash = |first, second| {
        format!(
            "the names `{first}` and `{second}` both stand for server `my-server`: \
             rename one of them"
        )
    };
    let built = host_builder(&world)
        .server(server_spec("My_Server"))
        .server(server_spec("my server"));
    let expected = clash("My_Server", "my server");
    assert_eq!(built.build().unwrap_err().to_string(), expected);
    assert_eq!(world.record().start_count("my-server"), 0);

    let host = host_builder(&world)
        .server(server_spec("my-server"))
        .build()
        .unwrap();
    let replace = SpawnOptions {
        replace: true,
        ..SpawnOptions::default()
    };
    let refused = host
        .spawn(server_spec("My_Server"), replace)
        .await
        .unwrap_err();
    assert_eq!(refused.to_string(), clash("my-server", "My_Server"));

    let applied = host.apply_config(vec![server_spec("my-server"), server_spec("My_Server")]);
    assert_eq!(applied.kept, ["my-server".into()]);
    let told: Vec<_> = applied.clashes.iter().map(ToString::to_string).collect();
    assert_eq!(told, [clash("my-server", "My_Server")]);
    assert!(wait_for_state(&host, "my-server", "ready").await);
    assert_eq!(world.record().start_count("my-server"), 1);
}
