//! Tools served by a program through the library, over a real gateway.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bowline_core::run::AgentRun;
use bowline_core::trace::CallTrace;
use bowline_host::broker::{
    CredentialSource, RemoteTools, RequestLedger, ServeOptions, serve_with,
};
use bowline_host::tools::{ExecuteContext, ExecuteError, ToolExecutor as _, Toolbox};
use bowline_host::{RoleAllowlist, ToolOutput};
use bowline_testkit::gateway::Gateway;
use bowline_testkit::{block_on, wait_until};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::create_token;

/// Peers; `tools` serves tools and may offer a server.
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

/// Connects to a hub with this token.
pub(crate) async fn remote_tools(gateway: &Gateway, token: &str) -> RemoteTools {
    let url = format!("http://{}", gateway.address);
    let wait = Duration::from_secs(30);
    let tools = RemoteTools::connect(&url, CredentialSource::from_token(token), wait).await;
    tools.unwrap()
}

/// Returns the text of a tool's output.
pub(crate) fn output_text(output: Result<ToolOutput, ExecuteError>) -> String {
    output.unwrap().text().to_string()
}

/// A tool-serving program, in a separate thread and runtime.
struct ToolProgram {
    kill: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ToolProgram {
    /// Serves as `tools`, and waits until the peer is connected.
    fn start(gateway: &Gateway, tools: Toolbox, options: ServeOptions) -> Self {
        let secret = create_token(gateway, "tools", "writer");
        let url = format!("http://{}", gateway.address);
        let (kill, killed) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async {
                let list = RoleAllowlist::unrestricted();
                let (credential, tools) = (CredentialSource::from_token(&secret), Arc::new(tools));
                let never = std::future::pending();
                let served = serve_with(&url, credential, tools, list, options, never);
                tokio::select! {
                    ended = served => panic!("{ended:?}"),
                    _ = killed => {}
                }
            });
            // Dropping the runtime stops all polling, like a kill of the process.
            drop(runtime);
        });
        wait_until("the program serves", || {
            let broker = gateway.get_api("/api/v1/broker");
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

impl Drop for ToolProgram {
    fn drop(&mut self) {
        drop(self.kill.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A tool that returns the run and trace of the call.
fn context_toolbox() -> Toolbox {
    let any = json!({"type": "object"});
    let tools = Toolbox::default();
    tools.with(
        "where",
        "Says where it stands.",
        &any,
        |_, context| async move {
            let run = context.run.as_ref().map(|run| run.id.to_string());
            let trace = context.trace.as_ref();
            let trace = trace.map(|trace| trace.context.trace.to_string());
            let said = json!({"run": run, "trace": trace});
            Ok(ToolOutput::from_text(&said.to_string()))
        },
    )
}

#[test]
fn served_executor_offers_its_tools_to_catalog() {
    let gateway = Gateway::start(PEERS);
    let options = ServeOptions {
        offer_as: Some("desk".into()),
        ..ServeOptions::default()
    };
    let _program = ToolProgram::start(&gateway, context_toolbox(), options);
    gateway.wait_for_state("desk", "ready");
    let mut session = gateway.open_session("/mcp");
    assert_eq!(session.list_tool_names(), ["desk__where"]);
    let said: Value = serde_json::from_str(&session.call_text("desk__where", &json!({}))).unwrap();
    assert_eq!(said["run"], Value::Null);
    // The run and trace of the hub's caller reach the tool.
    let meta = json!({"traceparent": PARENT, "dev.bowline/run": {"id": "run-7", "calls": 9}});
    let params = json!({"name": "desk__where", "arguments": {}, "_meta": meta});
    let answer = session.request("tools/call", &params);
    let said = answer["result"]["content"][0]["text"].as_str().unwrap();
    let said: Value = serde_json::from_str(said).unwrap();
    assert_eq!(said["run"], "run-7");
    assert_eq!(said["trace"], "0af7651916cd43dd8448eb211c80319c");
}

#[test]
fn run_and_trace_reach_named_peer() {
    let gateway = Gateway::start(PEERS);
    let _program = ToolProgram::start(&gateway, context_toolbox(), ServeOptions::default());
    let ann = create_token(&gateway, "ann", "writer");
    block_on(async {
        let tools = remote_tools(&gateway, &ann).await;
        let tools = tools.for_peer("tools").await.unwrap();
        let context = ExecuteContext {
            run: Some(Arc::new(AgentRun::new("run-8", 3))),
            trace: CallTrace::parse(PARENT, None).map(Arc::new),
            ..ExecuteContext::default()
        };
        let said = tools.execute("where", json!({}).into(), &context).await;
        let said: Value = serde_json::from_str(&output_text(said)).unwrap();
        assert_eq!(said["run"], "run-8");
        assert_eq!(said["trace"], "0af7651916cd43dd8448eb211c80319c");
        let plain = ExecuteContext::default();
        let said = tools.execute("where", json!({}).into(), &plain).await;
        assert_eq!(output_text(said), r#"{"run":null,"trace":null}"#);
    });
}

/// A tool that writes a line for each run and never returns.
fn blocking_toolbox(ran: PathBuf) -> Toolbox {
    let any = json!({"type": "object"});
    Toolbox::default().with("put", "Never ends.", &any, move |_, _| {
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
    let gateway = Gateway::start(PEERS);
    let ran = gateway.dir.path().join("ran");
    let file = gateway.dir.path().join("served.db");
    let start = || {
        let mut ledger = None;
        wait_until("the ledger is free", || {
            ledger = RequestLedger::open(&file, "tools").ok();
            ledger.is_some()
        });
        let options = ServeOptions {
            ledger,
            ..ServeOptions::default()
        };
        ToolProgram::start(&gateway, blocking_toolbox(ran.clone()), options)
    };
    let count = || std::fs::read_to_string(&ran).map_or(0, |text| text.lines().count());
    let first = start();
    let ann = create_token(&gateway, "ann", "writer");
    let waiting = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            block_on(async {
                let tools = remote_tools(&gateway, &ann).await;
                let tools = tools.for_peer("tools").await.unwrap();
                let context = ExecuteContext::default();
                tools.execute("put", json!({}).into(), &context).await
            })
        });
        wait_until("it runs", || count() == 1);
        drop(first);
        let _second = start();
        asking.join().unwrap()
    });
    let error = waiting.unwrap_err().to_string();
    assert_eq!(count(), 1, "{error}");
    assert!(error.contains("nobody knows"), "{error}");
}
