//! The same against a real hub: its journal, its mailboxes and the tools of its host.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bowline_core::error::Execution;
use bowline_host::broker::{ClientOptions, ConnectError, Credential, Remote as _, RemoteTools};
use bowline_host::tasks::Tasks;
use bowline_host::tools::{
    Arguments, ExecuteContext, ExecuteError, ToolExecutor as _, ToolSchema, Toolbox,
};
use bowline_host::{Server, SpawnOptions, ToolOutput};
use bowline_sim::OpenHub;
use serde_json::json;
use tokio::sync::{Barrier, Semaphore, watch};
use tokio::time::timeout;

use crate::script::{LONG, Wire, quick};

/// A hub that can be dialled.
struct World {
    hub: OpenHub,
    /// How often `put` ran.
    ran: Arc<AtomicUsize>,
    /// How many of `put` stand in it.
    inside: watch::Receiver<usize>,
    /// Lets `put` end.
    gate: Arc<Semaphore>,
}

/// Counts itself for as long as it lives.
struct Inside(watch::Sender<usize>);

impl Drop for Inside {
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

impl World {
    async fn start() -> Self {
        let ran = Arc::new(AtomicUsize::new(0));
        let gate = Arc::new(Semaphore::new(0));
        let (entered, inside) = watch::channel(0);
        let tools = {
            let (ran, gate) = (Arc::clone(&ran), Arc::clone(&gate));
            let echo = |arguments: Arguments, _| async move {
                Ok(ToolOutput::of_text(
                    std::str::from_utf8(arguments.raw()).unwrap(),
                ))
            };
            // Nobody leaves before eight are in.
            let meeting = |all: Arc<Barrier>| {
                move |arguments: Arguments, _| {
                    let all = Arc::clone(&all);
                    async move {
                        all.wait().await;
                        Ok(ToolOutput::of_text(&arguments.value()["nth"].to_string()))
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
                    let (inside, gate) = (Inside(entered.clone()), Arc::clone(&gate));
                    async move {
                        let _inside = inside;
                        gate.acquire().await.unwrap().forget();
                        Ok(ToolOutput::of_text("put"))
                    }
                })
        };
        Self {
            hub: OpenHub::with(tools).await.unwrap(),
            ran,
            inside,
            gate,
        }
    }

    async fn tools(&self) -> RemoteTools {
        connect(self.hub.url(), quick()).await
    }

    /// Waits until so many stand inside `put`.
    async fn inside(&self, count: usize) {
        let mut inside = self.inside.clone();
        let entered = inside.wait_for(|inside| *inside == count);
        timeout(LONG, entered).await.unwrap().unwrap();
    }
}

async fn connect(url: &str, options: ClientOptions) -> RemoteTools {
    let options = ClientOptions {
        part: Some("#mcp".into()),
        ..options
    };
    let credential = Credential::fixed("ann");
    let tools = RemoteTools::connect_with(url, credential, LONG, options);
    tools.await.unwrap()
}

#[tokio::test]
async fn a_real_hub_is_used_like_tools_of_ones_own() {
    let world = World::start().await;
    let tools = world.tools().await;
    assert_eq!(tools.client().mailbox().as_deref(), Some("ann#mcp"));
    let names: Vec<_> = tools
        .tools()
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
        let arguments = Arguments::parse(text).unwrap();
        let output = tools.execute(name, arguments, &context).await.unwrap();
        assert_eq!(output.text(), text, "{name}");
    }
    let unknown = tools
        .execute("box__gone", Arguments::default(), &context)
        .await;
    assert_eq!(unknown, Err(ExecuteError::unknown("box__gone")));
}

#[tokio::test]
async fn eight_calls_of_a_real_hub_run_at_once_and_each_gets_its_own_answer() {
    let world = World::start().await;
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
        // They meet inside the tool: one after the other would never end.
        let all = timeout(LONG, all).await.unwrap();
        let all = [all.0, all.1, all.2, all.3, all.4, all.5, all.6, all.7];
        let texts = all.map(|output| output.unwrap().text().into_owned());
        assert_eq!(texts, ["0", "1", "2", "3", "4", "5", "6", "7"], "{name}");
    }
}

#[tokio::test]
async fn a_call_whose_link_is_cut_without_a_word_runs_once_and_is_answered() {
    let world = World::start().await;
    let wire = Wire::to(world.hub.address()).await;
    let mut options = quick();
    options.socket.ping_every = Duration::from_millis(20);
    options.socket.silence_max = Duration::from_millis(150);
    let tasks = Tasks::default();
    let (cut, was_cut) = watch::channel(false);
    let whole = watch::Sender::new(false);
    let url = wire.url();
    let (tools, ()) = tokio::join!(connect(&url, options), wire.carry(&tasks, was_cut));
    let context = ExecuteContext::default();
    let run = tools.execute("box__put", Arguments::default(), &context);
    let meanwhile = async {
        world.inside(1).await;
        cut.send_replace(true);
        wire.carry(&tasks, whole.subscribe()).await;
        let mut changes = tools.client().changes();
        while tools.client().generation() != Some(2) {
            changes.changed().await.unwrap();
        }
        world.gate.add_permits(1);
    };
    let (output, ()) = timeout(LONG, async { tokio::join!(run, meanwhile) })
        .await
        .unwrap();
    assert_eq!(output.unwrap().text(), "put");
    assert_eq!(world.ran.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_caller_that_leaves_stops_the_tool_at_a_real_hub() {
    let world = World::start().await;
    let tools = world.tools().await;
    let context = ExecuteContext::default();
    tokio::select! {
        _ = tools.execute("box__put", Arguments::default(), &context) => panic!("it ended"),
        () = world.inside(1) => {}
    }
    world.inside(0).await;
    assert_eq!(tools.client().waiting(), 0);
    let late = ExecuteContext {
        timeout: Some(Duration::from_millis(200)),
        ..ExecuteContext::default()
    };
    let error = tools
        .execute("box__put", Arguments::default(), &late)
        .await
        .unwrap_err();
    assert_eq!(error.execution(), Execution::Unknown);
    world.inside(0).await;
}

#[tokio::test]
async fn a_server_that_comes_later_is_listed_without_asking() {
    let world = World::start().await;
    let tools = world.tools().await;
    let mut changes = tools.client().changes();
    let any = json!({"type": "object"});
    let more = Toolbox::default().with(("tell", "Tells."), &any, |_, _| async {
        Ok(ToolOutput::of_text("told"))
    });
    let server = Server::in_process("late", more);
    world
        .hub
        .host
        .spawn(server, SpawnOptions::default())
        .await
        .unwrap();
    let listed = async {
        while !tools.has("late__tell") {
            changes.changed().await.unwrap();
        }
    };
    timeout(LONG, listed).await.unwrap();
    let context = ExecuteContext::default();
    let told = tools
        .execute("late__tell", Arguments::default(), &context)
        .await;
    assert_eq!(told.unwrap().text(), "told");
}

#[tokio::test]
async fn of_two_with_one_mailbox_the_newer_stays_and_the_older_says_why() {
    let world = World::start().await;
    let older = world.tools().await;
    let mut changes = older.client().changes();
    let newer = world.tools().await;
    let ended = async {
        while older.client().ended().is_none() {
            changes.changed().await.unwrap();
        }
    };
    timeout(LONG, ended).await.unwrap();
    let why = older.client().ended();
    assert!(matches!(why, Some(ConnectError::Fenced(_))), "{why:?}");
    let context = ExecuteContext::default();
    let refused = older
        .execute("box__get", Arguments::default(), &context)
        .await;
    assert_eq!(refused.unwrap_err().execution(), Execution::NotStarted);
    let output = newer
        .execute("box__get", Arguments::default(), &context)
        .await;
    assert_eq!(output.unwrap().text(), "{}");
}
