//! Remote tools against a real hub: journal, mailboxes and host tools.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bowline_core::error::ExecutionStatus;
use bowline_host::broker::{
    BrokerClientOptions, BrokerConnectError, CredentialSource, RemotePeer as _, RemoteTools,
};
use bowline_host::tools::{
    ExecuteContext, ExecuteError, ToolArguments, ToolExecutor as _, ToolSchema, Toolbox,
};
use bowline_host::{Server, SpawnOptions, ToolOutput};
use bowline_runtime::TaskTracker;
use bowline_testkit::scripted_broker::{CuttableProxy, quick_options};
use bowline_testkit::{TestHub, WAIT_MAX, wait_bounded};
use serde_json::json;
use tokio::sync::{Barrier, Semaphore, watch};

/// A hub with a listener.
struct RealHub {
    hub: TestHub,
    /// Runs of `put`.
    ran: Arc<AtomicUsize>,
    /// Runs of `put` in progress.
    inside: watch::Receiver<usize>,
    /// Lets `put` end.
    gate: Arc<Semaphore>,
}

/// Counts live values of this type.
struct InsideCounter(watch::Sender<usize>);

impl Drop for InsideCounter {
    fn drop(&mut self) {
        self.0.send_modify(|inside| *inside -= 1);
    }
}

fn schema(name: &str, is_read: bool) -> ToolSchema {
    ToolSchema::from_definition(&json!({
        "name": name,
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": is_read},
    }))
    .unwrap()
}

impl RealHub {
    async fn start() -> Self {
        let ran = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let (entered, inside) = watch::channel(0);
        let tools = {
            let (ran, gate) = (Arc::clone(&ran), Arc::clone(&gate));
            let echo = |arguments: ToolArguments, _| async move {
                Ok(ToolOutput::from_text(
                    std::str::from_utf8(arguments.raw()).unwrap(),
                ))
            };
            // No run ends before eight are in progress.
            let meeting = |all: Arc<Barrier>| {
                move |arguments: ToolArguments, _| {
                    let all = Arc::clone(&all);
                    async move {
                        all.wait().await;
                        Ok(ToolOutput::from_text(
                            &arguments.to_value()["nth"].to_string(),
                        ))
                    }
                }
            };
            Toolbox::default()
                .with_schema(schema("get", true), echo)
                .with_schema(schema("echo", false), echo)
                .with_schema(schema("meet", true), meeting(Arc::new(Barrier::new(8))))
                .with_schema(schema("gather", false), meeting(Arc::new(Barrier::new(8))))
                .with_schema(schema("put", false), move |_, _| {
                    ran.fetch_add(1, Ordering::SeqCst);
                    entered.send_modify(|inside| *inside += 1);
                    let (inside, gate) = (InsideCounter(entered.clone()), Arc::clone(&gate));
                    async move {
                        let _inside = inside;
                        gate.acquire().await.unwrap().forget();
                        Ok(ToolOutput::from_text("put"))
                    }
                })
        };
        Self {
            hub: TestHub::start(tools).await.unwrap(),
            ran,
            inside,
            gate,
        }
    }

    async fn tools(&self) -> RemoteTools {
        connect(self.hub.url(), quick_options()).await
    }

    /// Waits until `count` runs of `put` are in progress.
    async fn wait_inside(&self, count: usize) {
        let mut inside = self.inside.clone();
        let entered = inside.wait_for(|inside| *inside == count);
        wait_bounded(entered).await.unwrap();
    }
}

async fn connect(url: &str, options: BrokerClientOptions) -> RemoteTools {
    let options = BrokerClientOptions {
        mailbox_part: Some("#mcp".into()),
        ..options
    };
    let credential = CredentialSource::from_token("ann");
    let tools = RemoteTools::connect_with(url, credential, WAIT_MAX, options);
    tools.await.unwrap()
}

#[tokio::test]
async fn real_hub_works_like_local_tools() {
    let world = RealHub::start().await;
    let tools = world.tools().await;
    assert_eq!(tools.client().mailbox().as_deref(), Some("ann#mcp"));
    let names: Vec<_> = tools
        .list_tools()
        .iter()
        .map(|tool| tool.name().to_string())
        .collect();
    let want = [
        "box__get",
        "box__echo",
        "box__meet",
        "box__gather",
        "box__put",
    ];
    assert_eq!(names, want);
    let context = ExecuteContext::default();
    let text = r#"{"n":1.0,"big":123456789012345678901234567890,"a":"\u00e9","b":[ ]}"#;
    for name in ["box__get", "box__echo"] {
        let arguments = ToolArguments::parse(text).unwrap();
        let output = tools.execute(name, arguments, &context).await.unwrap();
        assert_eq!(output.text(), text, "{name}");
    }
    let unknown = tools
        .execute("box__gone", ToolArguments::default(), &context)
        .await;
    assert_eq!(unknown, Err(ExecuteError::unknown_tool("box__gone")));
}

#[tokio::test]
async fn concurrent_real_hub_calls_get_own_responses() {
    let world = RealHub::start().await;
    let tools = world.tools().await;
    let context = ExecuteContext::default();
    for name in ["box__meet", "box__gather"] {
        let run = |nth: u32| tools.execute(name, json!({ "nth": nth }).into(), &context);
        let all = async {
            tokio::join!(
                run(0),
                run(1),
                run(2),
                run(3),
                run(4),
                run(5),
                run(6),
                run(7)
            )
        };
        // All calls meet inside the tool: sequential calls would never end.
        let all = wait_bounded(all).await;
        let all = [all.0, all.1, all.2, all.3, all.4, all.5, all.6, all.7];
        let texts = all.map(|output| output.unwrap().text().into_owned());
        assert_eq!(texts, ["0", "1", "2", "3", "4", "5", "6", "7"], "{name}");
    }
}

#[tokio::test]
async fn silently_cut_call_runs_once() {
    let world = RealHub::start().await;
    let wire = CuttableProxy::proxy_to(world.hub.address()).await;
    let mut options = quick_options();
    options.socket.ping_interval = Duration::from_millis(20);
    options.socket.silence_max = Duration::from_millis(150);
    let tasks = TaskTracker::default();
    let (cut, was_cut) = watch::channel(false);
    let whole = watch::Sender::new(false);
    let url = wire.url();
    let (tools, ()) = tokio::join!(
        connect(&url, options),
        wire.forward_until_cut(&tasks, was_cut)
    );
    let context = ExecuteContext::default();
    let run = tools.execute("box__put", ToolArguments::default(), &context);
    let meanwhile = async {
        world.wait_inside(1).await;
        cut.send_replace(true);
        wire.forward_until_cut(&tasks, whole.subscribe()).await;
        let mut changes = tools.client().subscribe_changes();
        while tools.client().generation() != Some(2) {
            changes.changed().await.unwrap();
        }
        world.gate.add_permits(1);
    };
    let (output, ()) = wait_bounded(async { tokio::join!(run, meanwhile) }).await;
    assert_eq!(output.unwrap().text(), "put");
    assert_eq!(world.ran.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn dropped_call_stops_the_remote_tool() {
    let world = RealHub::start().await;
    let tools = world.tools().await;
    let context = ExecuteContext::default();
    tokio::select! {
        _ = tools.execute("box__put", ToolArguments::default(), &context) => panic!("it ended"),
        () = world.wait_inside(1) => {}
    }
    world.wait_inside(0).await;
    assert_eq!(tools.client().pending_calls(), 0);
    let late = ExecuteContext {
        timeout: Some(Duration::from_millis(200)),
        ..ExecuteContext::default()
    };
    let error = tools
        .execute("box__put", ToolArguments::default(), &late)
        .await
        .unwrap_err();
    assert_eq!(error.execution(), ExecutionStatus::Unknown);
    world.wait_inside(0).await;
}

#[tokio::test]
async fn later_server_is_listed_automatically() {
    let world = RealHub::start().await;
    let tools = world.tools().await;
    let mut changes = tools.client().subscribe_changes();
    let any = json!({"type": "object"});
    let more = Toolbox::default().with("tell", "Tells.", &any, |_, _| async {
        Ok(ToolOutput::from_text("told"))
    });
    let server = Server::in_process("late", more);
    world
        .hub
        .host
        .spawn(server, SpawnOptions::default())
        .await
        .unwrap();
    let listed = async {
        while !tools.has_tool("late__tell") {
            changes.changed().await.unwrap();
        }
    };
    wait_bounded(listed).await;
    let context = ExecuteContext::default();
    let told = tools
        .execute("late__tell", ToolArguments::default(), &context)
        .await;
    assert_eq!(told.unwrap().text(), "told");
}

#[tokio::test]
async fn newer_client_fences_the_older() {
    let world = RealHub::start().await;
    let older = world.tools().await;
    let mut changes = older.client().subscribe_changes();
    let newer = world.tools().await;
    let ended = async {
        while older.client().closed_reason().is_none() {
            changes.changed().await.unwrap();
        }
    };
    wait_bounded(ended).await;
    let why = older.client().closed_reason();
    assert!(
        matches!(why, Some(BrokerConnectError::Fenced(_))),
        "{why:?}"
    );
    let context = ExecuteContext::default();
    let refused = older
        .execute("box__get", ToolArguments::default(), &context)
        .await;
    assert_eq!(
        refused.unwrap_err().execution(),
        ExecutionStatus::NotStarted
    );
    let output = newer
        .execute("box__get", ToolArguments::default(), &context)
        .await;
    assert_eq!(output.unwrap().text(), "{}");
}
