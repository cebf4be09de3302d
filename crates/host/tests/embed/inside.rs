//! Tools of the program itself, served by the host like those of any server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bowline_core::error::{CallError, Class, Execution};
use bowline_core::policy::RoleAllowlist;
use bowline_core::run::Run;
use bowline_host::tools::{ExecuteContext, ExecuteError, Toolbox};
use bowline_host::{Host, Server, SpawnOptions, ToolExecutor as _, ToolOutput};
use bowline_sim::reaches;
use serde_json::json;

use super::{named, owner, text};

fn tools() -> Toolbox {
    let any = json!({"type": "object"});
    Toolbox::default()
        .with(("echo", "Says it."), &any, |arguments, _| async move {
            Ok(ToolOutput::of_text(&String::from_utf8_lossy(
                arguments.raw(),
            )))
        })
        .with(("fail", ""), &any, |_, _| async {
            Ok(ToolOutput::failed("no"))
        })
        .with(("break", ""), &any, |_, _| async {
            Err(ExecuteError::failed("it broke"))
        })
        .with(("panic", ""), &any, |_, _| async { panic!("a bug") })
        .with(("panic-now", ""), &any, |_, _| -> std::future::Ready<_> {
            panic!("a bug")
        })
        .with(("hang", ""), &any, |_, _| std::future::pending())
}

async fn host() -> Host {
    let list = RoleAllowlist::default()
        .deny_others()
        .with_role("r", ["own.echo"]);
    let host = Host::builder().policy(&list).build().unwrap();
    let spawned = host.spawn(Server::in_process("own", tools()), SpawnOptions::default());
    spawned.await.unwrap();
    host
}

#[tokio::test(start_paused = true)]
async fn own_tools_are_listed_called_and_decided_like_any_others() {
    let host = host().await;
    let listed = host.tools(&owner(), "own").await.unwrap();
    assert_eq!(listed.len(), 6);
    let guest = host.as_executor(named("r"));
    let names: Vec<_> = guest
        .tools()
        .iter()
        .map(|tool| tool.name().to_string())
        .collect();
    assert_eq!(names, ["own__echo"]);
    let context = ExecuteContext::default();
    let big = "{\"n\":123456789012345678901234567890,\"b\":1,\"a\":2}";
    let arguments = bowline_host::Arguments::parse(big).unwrap();
    let said = guest.execute("own__echo", arguments, &context).await;
    assert_eq!(text(said), big, "no number changed and no member moved");
    let denied = guest.execute("own__fail", json!({}).into(), &context).await;
    assert!(
        matches!(denied, Err(ExecuteError::Call(CallError::Denied { .. }))),
        "{denied:?}"
    );
    let status = host.status_of("own").unwrap();
    assert_eq!((status.transport, status.calls), ("in_process", 1));
}

#[tokio::test(start_paused = true)]
async fn a_failure_inside_is_an_answer_and_says_whether_the_tool_ran() {
    let host = host().await;
    let owner = owner();
    let failed = host
        .call_tool(&owner, "own", "fail", json!({}))
        .await
        .unwrap();
    assert!(failed.is_error());
    let broke = host.call_tool(&owner, "own", "break", json!({})).await;
    let Err(ExecuteError::Call(CallError::Refused { error, .. })) = broke else {
        panic!("{broke:?}");
    };
    let error: serde_json::Value = serde_json::from_slice(&error).unwrap();
    assert_eq!(error["message"], "it broke");
    assert_eq!(error["data"]["execution"], "unknown");
    let unknown = host.call_tool(&owner, "own", "none", json!({})).await;
    assert!(matches!(
        unknown,
        Err(ExecuteError::Call(CallError::UnknownTool { .. }))
    ));
    let bad = host
        .call_tool(&owner, "own", "echo", json!([1]))
        .await
        .unwrap_err();
    assert_eq!(bad.execution(), Execution::NotStarted);
}

#[tokio::test(start_paused = true)]
async fn a_panic_inside_ends_its_call_and_nothing_else() {
    let host = host().await;
    for tool in ["panic", "panic-now"] {
        for _ in 0..6 {
            let output = host
                .call_tool(&owner(), "own", tool, json!({}))
                .await
                .unwrap();
            assert!(output.is_error());
            assert!(
                output
                    .text()
                    .contains("whether it took effect is not known")
            );
        }
    }
    let status = host.status_of("own").unwrap();
    assert_eq!((status.circuit, status.generation), ("closed", 1));
    assert_eq!(
        text(host.call_tool(&owner(), "own", "echo", json!({})).await),
        "{}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_inside_keeps_to_deadlines_and_runs() {
    let host = host().await;
    let executor = host.as_executor(owner());
    let context = ExecuteContext {
        timeout: Some(Duration::from_secs(1)),
        run: Some(Arc::new(Run::new("r", 2))),
        ..ExecuteContext::default()
    };
    let late = executor
        .execute("own__hang", json!({}).into(), &context)
        .await;
    let Err(ExecuteError::Call(late)) = late else {
        panic!("{late:?}");
    };
    assert_eq!(
        (late.class(), late.execution()),
        (Class::Timeout, Execution::Unknown)
    );
    executor
        .execute("own__echo", json!({}).into(), &context)
        .await
        .unwrap();
    let spent = executor
        .execute("own__echo", json!({}).into(), &context)
        .await;
    assert!(
        matches!(
            spent,
            Err(ExecuteError::Call(CallError::BudgetSpent { .. }))
        ),
        "{spent:?}"
    );
    assert_eq!(host.status_of("own").unwrap().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn own_tools_can_be_stopped_and_started_like_any_others() {
    let host = host().await;
    let owner = owner();
    let hangs = host.call_tool(&owner, "own", "hang", json!({}));
    let stopped = async {
        while host.status_of("own").unwrap().in_flight == 0 {
            tokio::task::yield_now().await;
        }
        host.stop("own").await.unwrap();
    };
    let (Err(ExecuteError::Call(lost)), ()) = tokio::join!(hangs, stopped) else {
        panic!("it answered");
    };
    assert_eq!(lost.execution(), Execution::Unknown);
    host.reload("own").await.unwrap();
    assert!(reaches(&host, "own", "ready").await);
    let said = host.call_tool(&owner, "own", "echo", json!({})).await;
    assert_eq!(text(said), "{}");
}

#[tokio::test(start_paused = true)]
async fn a_reload_asks_what_is_offered_now() {
    #[derive(Debug)]
    struct Growing(AtomicUsize);
    impl bowline_host::ToolExecutor for Growing {
        fn execute<'a>(
            &'a self,
            name: &'a str,
            _: bowline_host::Arguments,
            _: &'a ExecuteContext,
        ) -> bowline_host::BoxFuture<'a, Result<ToolOutput, ExecuteError>> {
            Box::pin(async move { Ok(ToolOutput::of_text(name)) })
        }

        fn tools(&self) -> Vec<bowline_host::ToolSchema> {
            let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            let schema = |n| bowline_host::ToolSchema::new(&format!("t{n}"), "", &json!({}));
            (0..count).map(schema).collect()
        }
    }
    let host = Host::builder().build().unwrap();
    let spec = Server::in_process("own", Growing(AtomicUsize::new(0)));
    host.spawn(spec, SpawnOptions::default()).await.unwrap();
    assert_eq!(host.tools(&owner(), "own").await.unwrap().len(), 1);
    host.reload("own").await.unwrap();
    assert!(reaches(&host, "own", "ready").await);
    assert_eq!(host.tools(&owner(), "own").await.unwrap().len(), 2);
}
