//! Tools that a program serves through the library, over a real gateway.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bowline_core::run::Run;
use bowline_core::trace::Trace;
use bowline_host::broker::{Credential, Ledger, RemoteTools, ServeOptions, serve_with};
use bowline_host::tools::{ExecuteContext, ExecuteError, ToolExecutor as _, Toolbox};
use bowline_host::{RoleAllowlist, ToolOutput};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::token;
use crate::harness::{Gateway, eventually};

/// Peers of which one serves and may bring a server.
const PEERS: &str = r#"
[roles.writer]
allow = ["*"]
[principals.ann]
to = ["tools"]
[principals.tools]
to = ["ann"]
offers = ["desk"]
"#;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Runs something to its end.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(work)
}

/// Connects to a hub as whoever has this token.
pub(crate) async fn remote_tools(gateway: &Gateway, token: &str) -> RemoteTools {
    let url = format!("http://{}", gateway.address);
    let wait = Duration::from_secs(30);
    let tools = RemoteTools::connect(&url, Credential::fixed(token), wait).await;
    tools.unwrap()
}

/// Returns what a tool said.
pub(crate) fn text_of(output: Result<ToolOutput, ExecuteError>) -> String {
    output.unwrap().text().to_string()
}

/// A program that serves tools, in a thread and a runtime of its own.
struct Program {
    kill: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Program {
    /// Serves as `tools`, and waits until it is there.
    fn start(gateway: &Gateway, tools: Toolbox, options: ServeOptions) -> Self {
        let secret = token(gateway, "tools", "writer");
        let url = format!("http://{}", gateway.address);
        let (kill, killed) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async {
                let list = RoleAllowlist::unrestricted();
                let (credential, tools) = (Credential::fixed(&secret), Arc::new(tools));
                let never = std::future::pending();
                let served = serve_with(&url, credential, (tools, list), options, never);
                tokio::select! {
                    ended = served => panic!("{ended:?}"),
                    _ = killed => {}
                }
            });
            // Nothing of it is polled any more, as if the process were killed.
            drop(runtime);
        });
        eventually("the program serves", || {
            let broker = gateway.api("/api/v1/broker");
            let here = broker["peers"].as_array().unwrap();
            here.iter()
                .any(|peer| peer["mailbox"] == "tools" && peer["subscribed"] == true)
        });
        Self {
            kill: Some(kill),
            thread: Some(thread),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.kill.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A tool that says to which run and trace its call belongs.
fn witness() -> Toolbox {
    let any = json!({"type": "object"});
    let tools = Toolbox::default();
    tools.with(
        ("where", "Says where it stands."),
        &any,
        |_, context| async move {
            let run = context.run.as_ref().map(|run| run.id.to_string());
            let trace = context.trace.as_ref();
            let trace = trace.map(|trace| trace.context.trace.to_string());
            let said = json!({"run": run, "trace": trace});
            Ok(ToolOutput::of_text(&said.to_string()))
        },
    )
}

#[test]
fn served_executor_offers_its_tools_to_catalog() {
    let gateway = Gateway::up(PEERS);
    let options = ServeOptions {
        offer_as: Some("desk".into()),
        ..ServeOptions::default()
    };
    let _program = Program::start(&gateway, witness(), options);
    gateway.wait_for("desk", "ready");
    let mut session = gateway.session("/mcp");
    assert_eq!(session.tools(), ["desk__where"]);
    let said: Value = serde_json::from_str(&session.text("desk__where", &json!({}))).unwrap();
    assert_eq!(said["run"], Value::Null);
    // What the caller of the hub says of its call reaches the tool.
    let meta = json!({"traceparent": PARENT, "dev.bowline/run": {"id": "run-7", "calls": 9}});
    let params = json!({"name": "desk__where", "arguments": {}, "_meta": meta});
    let answer = session.request("tools/call", &params);
    let said = answer["result"]["content"][0]["text"].as_str().unwrap();
    let said: Value = serde_json::from_str(said).unwrap();
    assert_eq!(said["run"], "run-7");
    assert_eq!(said["trace"], "0af7651916cd43dd8448eb211c80319c");
}

#[test]
fn run_and_trace_travel_to_named_peer() {
    let gateway = Gateway::up(PEERS);
    let _program = Program::start(&gateway, witness(), ServeOptions::default());
    let ann = token(&gateway, "ann", "writer");
    block_on(async {
        let tools = remote_tools(&gateway, &ann).await;
        let tools = tools.for_peer("tools").await.unwrap();
        let context = ExecuteContext {
            run: Some(Arc::new(Run::new("run-8", 3))),
            trace: Trace::read(PARENT, None).map(Arc::new),
            ..ExecuteContext::default()
        };
        let said = tools.execute("where", json!({}).into(), &context).await;
        let said: Value = serde_json::from_str(&text_of(said)).unwrap();
        assert_eq!(said["run"], "run-8");
        assert_eq!(said["trace"], "0af7651916cd43dd8448eb211c80319c");
        let plain = ExecuteContext::default();
        let said = tools.execute("where", json!({}).into(), &plain).await;
        assert_eq!(text_of(said), r#"{"run":null,"trace":null}"#);
    });
}

/// A tool that leaves a line for each run and never ends.
fn stuck(ran: PathBuf) -> Toolbox {
    let any = json!({"type": "object"});
    Toolbox::default().with(("put", "Never ends."), &any, move |_, _| {
        use std::io::Write as _;
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&ran);
        writeln!(file.unwrap(), "put").unwrap();
        std::future::pending()
    })
}

#[test]
fn ledger_file_keeps_write_from_running_twice() {
    let gateway = Gateway::up(PEERS);
    let ran = gateway.dir.path().join("ran");
    let file = gateway.dir.path().join("served.db");
    let start = || {
        let mut ledger = None;
        eventually("the ledger is free", || {
            ledger = Ledger::open(&file, "tools").ok();
            ledger.is_some()
        });
        let options = ServeOptions {
            ledger,
            ..ServeOptions::default()
        };
        Program::start(&gateway, stuck(ran.clone()), options)
    };
    let count = || std::fs::read_to_string(&ran).map_or(0, |text| text.lines().count());
    let first = start();
    let ann = token(&gateway, "ann", "writer");
    let waiting = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            block_on(async {
                let tools = remote_tools(&gateway, &ann).await;
                let tools = tools.for_peer("tools").await.unwrap();
                let context = ExecuteContext::default();
                tools.execute("put", json!({}).into(), &context).await
            })
        });
        eventually("it runs", || count() == 1);
        drop(first);
        let _second = start();
        asking.join().unwrap()
    });
    let error = waiting.unwrap_err().to_string();
    assert_eq!(count(), 1, "{error}");
    assert!(error.contains("nobody knows"), "{error}");
}
