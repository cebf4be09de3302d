//! In-process tools, served like those of any server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bowline_core::error::{CallError, ExecutionStatus, FailureClass};
use bowline_core::policy::RoleAllowlist;
use bowline_core::redact::Redactor;
use bowline_core::run::AgentRun;
use bowline_host::access_guard::GuardDecision;
use bowline_host::tools::{ExecuteContext, ExecuteError, Toolbox};
use bowline_host::{Host, Server, SpawnOptions, ToolExecutor as _, ToolOutput};
use bowline_testkit::{run_until_idle, wait_for_state};
use serde_json::json;

use super::{named_principal, output_text, owner_principal};

fn test_tools() -> Toolbox {
    let any = json!({"type": "object"});
    Toolbox::default()
        .with("echo", "Says it.", &any, |arguments, _| async move {
            Ok(ToolOutput::from_text(&String::from_utf8_lossy(
                arguments.raw(),
            )))
        })
        .with("fail", "", &any, |_, _| async {
            Ok(ToolOutput::from_error("no"))
        })
        .with("break", "", &any, |_, _| async {
            Err(ExecuteError::outcome_unknown("it broke"))
        })
        .with("panic", "", &any, |_, _| async { panic!("a bug") })
        .with("panic-now", "", &any, |_, _| -> std::future::Ready<_> {
            panic!("a bug")
        })
        .with("hang", "", &any, |_, _| std::future::pending())
}

async fn host_with_tools() -> Host {
    let list = RoleAllowlist::default()
        .deny_others()
        .with_role("r", ["own.echo"]);
    let host = Host::builder().policy(&list).build().unwrap();
    let spawned = host.spawn(
        Server::in_process("own", test_tools()),
        SpawnOptions::default(),
    );
    spawned.await.unwrap();
    host
}

#[tokio::test(start_paused = true)]
async fn in_process_tools_are_listed_and_authorized() {
    let host = host_with_tools().await;
    let listed = host.list_tools(&owner_principal(), "own").await.unwrap();
    assert_eq!(listed.len(), 6);
    let guest = host.as_executor(named_principal("r"));
    let names: Vec<_> = guest
        .list_tools()
        .iter()
        .map(|tool| tool.name().to_string())
        .collect();
    assert_eq!(names, ["own__echo"]);
    let context = ExecuteContext::default();
    let big = "{\"n\":123456789012345678901234567890,\"b\":1,\"a\":2}";
    let arguments = bowline_host::ToolArguments::parse(big).unwrap();
    let said = guest.execute("own__echo", arguments, &context).await;
    assert_eq!(
        output_text(said),
        big,
        "no number changed and no member moved"
    );
    let denied = guest.execute("own__fail", json!({}).into(), &context).await;
    assert!(
        matches!(denied, Err(ExecuteError::Call(CallError::Denied { .. }))),
        "{denied:?}"
    );
    let status = host.server_status("own").unwrap();
    assert_eq!((&*status.transport, status.calls), ("in_process", 1));
}

#[tokio::test(start_paused = true)]
async fn in_process_failure_reports_execution() {
    let host = host_with_tools().await;
    let owner = owner_principal();
    let failed = host
        .call_tool(&owner, "own", "fail", json!({}))
        .await
        .unwrap();
    assert!(failed.is_error());
    let broke = host.call_tool(&owner, "own", "break", json!({})).await;
    let shown = broke.as_ref().unwrap_err().to_string();
    assert_eq!(
        shown,
        "server `own` refused the request: it broke (code -32603)"
    );
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
    assert_eq!(bad.execution(), ExecutionStatus::NotStarted);
}

#[tokio::test(start_paused = true)]
async fn panic_ends_only_its_call() {
    let host = host_with_tools().await;
    for tool in ["panic", "panic-now"] {
        for _ in 0..6 {
            let output = host
                .call_tool(&owner_principal(), "own", tool, json!({}))
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
    let status = host.server_status("own").unwrap();
    assert_eq!((&*status.circuit, status.generation), ("closed", 1));
    assert_eq!(
        output_text(
            host.call_tool(&owner_principal(), "own", "echo", json!({}))
                .await
        ),
        "{}"
    );
}

#[tokio::test(start_paused = true)]
async fn in_process_call_obeys_deadline_and_run() {
    let host = host_with_tools().await;
    let executor = host.as_executor(owner_principal());
    let context = ExecuteContext {
        timeout: Some(Duration::from_secs(1)),
        run: Some(Arc::new(AgentRun::new("r", 2))),
        ..ExecuteContext::default()
    };
    let late = executor
        .execute("own__hang", json!({}).into(), &context)
        .await;
    let Err(ExecuteError::Call(late)) = late else {
        panic!("{late:?}");
    };
    assert_eq!(
        (late.failure_class(), late.execution_status()),
        (FailureClass::Timeout, ExecutionStatus::Unknown)
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
            Err(ExecuteError::Call(CallError::BudgetExceeded { .. }))
        ),
        "{spent:?}"
    );
    assert_eq!(host.server_status("own").unwrap().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn in_process_server_can_stop_and_start() {
    let host = host_with_tools().await;
    let owner = owner_principal();
    let hangs = host.call_tool(&owner, "own", "hang", json!({}));
    let stopped = async {
        run_until_idle().await;
        assert_eq!(host.server_status("own").unwrap().in_flight, 1);
        host.stop_server("own").await.unwrap();
    };
    let (Err(ExecuteError::Call(lost)), ()) = tokio::join!(hangs, stopped) else {
        panic!("it answered");
    };
    assert_eq!(lost.execution_status(), ExecutionStatus::Unknown);
    host.reload_server("own").await.unwrap();
    assert!(wait_for_state(&host, "own", "ready").await);
    let said = host.call_tool(&owner, "own", "echo", json!({})).await;
    assert_eq!(output_text(said), "{}");
}

#[tokio::test(start_paused = true)]
async fn reload_lists_tools_again() {
    #[derive(Debug)]
    struct GrowingTools(AtomicUsize);
    impl bowline_host::ToolExecutor for GrowingTools {
        fn execute<'a>(
            &'a self,
            name: &'a str,
            _: bowline_host::ToolArguments,
            _: &'a ExecuteContext,
        ) -> bowline_host::BoxFuture<'a, Result<ToolOutput, ExecuteError>> {
            Box::pin(async move { Ok(ToolOutput::from_text(name)) })
        }

        fn list_tools(&self) -> Vec<bowline_host::ToolSchema> {
            let count = self.0.fetch_add(1, Ordering::Relaxed) + 1;
            let schema = |n| bowline_host::ToolSchema::new(&format!("t{n}"), "", &json!({}));
            (0..count).map(schema).collect()
        }
    }
    let host = Host::builder().build().unwrap();
    let spec = Server::in_process("own", GrowingTools(AtomicUsize::new(0)));
    host.spawn(spec, SpawnOptions::default()).await.unwrap();
    assert_eq!(
        host.list_tools(&owner_principal(), "own")
            .await
            .unwrap()
            .len(),
        1
    );
    host.reload_server("own").await.unwrap();
    assert!(wait_for_state(&host, "own", "ready").await);
    assert_eq!(
        host.list_tools(&owner_principal(), "own")
            .await
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn server_message_is_shown_short_and_redacted() {
    let host = Host::builder().build().unwrap();
    let reason = format!(
        "the key hunter2-hunter2 is wrong\nand {}",
        "long ".repeat(100)
    );
    let tools = Toolbox::default().with("break", "", &json!({}), move |_, _| {
        let error = ExecuteError::outcome_unknown(&reason);
        async { Err(error) }
    });
    let server = Server {
        secrets: Arc::new(Redactor::new([("key", "hunter2-hunter2")])),
        ..Server::in_process("own", tools)
    };
    host.spawn(server, SpawnOptions::default()).await.unwrap();
    let broke = host
        .call_tool(&owner_principal(), "own", "break", json!({}))
        .await;
    let shown = broke.unwrap_err().to_string();
    let start = "server `own` refused the request: the key ";
    assert!(shown.starts_with(start), "{shown}");
    assert!(shown.contains("is wrong and long"), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.chars().count() < 400, "{shown}");
}

#[tokio::test(start_paused = true)]
async fn guard_may_be_closure() {
    let guard = |server: &str, tool: Option<&str>| match (server, tool) {
        ("own", Some("fail")) => GuardDecision::Deny {
            reason: "not today".into(),
        },
        _ => GuardDecision::Allow,
    };
    let host = Host::builder().guard(guard).build().unwrap();
    let server = Server::in_process("own", test_tools());
    host.spawn(server, SpawnOptions::default()).await.unwrap();
    let owner = owner_principal();
    let denied = host.call_tool(&owner, "own", "fail", json!({})).await;
    let denied = denied.unwrap_err().to_string();
    assert!(denied.contains("not today"), "{denied}");
    let allowed = host.call_tool(&owner, "own", "echo", json!({})).await;
    assert_eq!(output_text(allowed), "{}");
}
