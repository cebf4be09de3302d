//! A server on an executor, supervised by a host.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::backoff::Backoff;
use bowline_core::error::FailureClass;
use bowline_core::restart_budget::RestartPolicy;
use bowline_host::executor::frames::ExecutorHello;
use bowline_host::executor::{
    ExecutorAuthenticator, ExecutorOffer, ExecutorRefusal, ExecutorRegistry,
    ExecutorRegistryOptions, ExecutorService,
};
use bowline_host::spec::{ExecutorProcessSpec, ServerTransport};
use bowline_host::{ExecuteError, Host, Principal, Role, ServerSpec};
use bowline_link::websocket::{WebSocketRole, open_websocket};
use bowline_runtime::{SystemClock, TaskTracker};
use bowline_testkit::process_rig::spec;
use bowline_testkit::{tcp_pair, wait_bounded, wait_for_state};
use bytes::Bytes;
use serde_json::json;

/// Server with one tool that returns the pid, and one that exits.
const SERVER: &str = r#"
while read -r line; do
  id=${line#*\"id\":}
  id=${id%%,*}
  id=${id%%\}*}
  case "$line" in
    *'"method":"initialize"'*)
      body='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"t"}}' ;;
    *'"method":"notifications/'*) continue ;;
    *'"method":"tools/list"'*)
      body='{"tools":[{"name":"where","inputSchema":{"type":"object"}},'
      body="$body"'{"name":"die","inputSchema":{"type":"object"}}]}' ;;
    *'"die"'*) exit 3 ;;
    *) body='{"content":[{"type":"text","text":"process '$$'"}]}' ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$body"
done
"#;

/// Admits every executor, forever.
#[derive(Debug)]
struct AdmitAllExecutors;

impl ExecutorAuthenticator for AdmitAllExecutors {
    fn authenticate(
        &self,
        _hello: &ExecutorHello,
    ) -> Result<BoxFuture<'static, ExecutorRefusal>, ExecutorRefusal> {
        Ok(Box::pin(std::future::pending()))
    }
}

struct HostedScene {
    host: Host,
    executors: ExecutorRegistry,
    tasks: TaskTracker,
}

impl HostedScene {
    /// A gateway with one server on an executor that has not joined yet.
    fn new(restarts_max: u32) -> Self {
        let tasks = TaskTracker::default();
        let clock = Arc::new(SystemClock::start());
        let options = ExecutorRegistryOptions::default();
        let executors = ExecutorRegistry::new(tasks.clone(), clock, options);
        let placed = ExecutorProcessSpec {
            executor: "office".into(),
            server: "files".into(),
        };
        let hour = Duration::from_secs(3_600);
        let server = ServerSpec {
            // A wait for the credential's end never finishes.
            backoff: Backoff {
                base: hour,
                cap: hour,
            },
            restart: RestartPolicy {
                restarts_max,
                window: hour,
            },
            ..ServerSpec::with_transport("docs", ServerTransport::Executor(placed))
        };
        let host = Host::builder().tasks(tasks.clone());
        let host = host.executors(executors.clone()).server(server);
        Self {
            host: host.build().unwrap(),
            executors,
            tasks,
        }
    }

    /// Joins an executor.
    async fn join(&self) -> ExecutorService {
        let mut offer = ExecutorOffer::new("office");
        offer.servers.insert("files".into(), spec("files", SERVER));
        let limits = offer.limits.socket;
        let clock = Arc::new(SystemClock::start());
        let servant = ExecutorService::new(offer, self.tasks.clone(), clock);
        let (ours, theirs) = tcp_pair().await;
        let socket = open_websocket(
            theirs,
            WebSocketRole::Client,
            Bytes::new(),
            limits,
            &self.tasks,
        );
        let serving = servant.clone();
        self.tasks.spawn("servant", async move {
            serving.serve_gateway(socket).await;
        });
        let socket = open_websocket(
            ours,
            WebSocketRole::Server,
            Bytes::new(),
            limits,
            &self.tasks,
        );
        let executors = self.executors.clone();
        self.tasks.spawn("executor", async move {
            executors
                .serve_executor(socket, "here", &AdmitAllExecutors)
                .await;
        });
        servant
    }

    async fn call(&self, tool: &str) -> Result<String, FailureClass> {
        let owner = Principal::new("owner", Role::Owner);
        let called = wait_bounded(self.host.call_tool(&owner, "docs", tool, json!({}))).await;
        match called {
            Ok(output) => Ok(output.text().into_owned()),
            Err(ExecuteError::Call(error)) => Err(error.failure_class()),
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn server_starts_when_executor_joins() {
    let scene = HostedScene::new(5);
    assert!(wait_bounded(wait_for_state(&scene.host, "docs", "backoff")).await);
    let status = scene.host.server_status("docs").unwrap();
    let error = status.last_error.unwrap();
    assert!(error.message.contains("`office`"), "{}", error.message);
    assert_eq!(status.restart_count, 0);
    let _office = scene.join().await;
    assert!(wait_bounded(wait_for_state(&scene.host, "docs", "ready")).await);
    let text = scene.call("where").await.unwrap();
    let status = scene.host.server_status("docs").unwrap();
    assert_eq!(Some(text), status.pid.map(|pid| format!("process {pid}")));
    assert_eq!(&*status.transport, "stdio");
    assert_eq!(&*status.command, "files on executor office");
    assert_eq!((status.processes, status.memory_bytes), (None, None));
}

#[tokio::test]
async fn executor_loss_spends_no_restart_budget() {
    let scene = HostedScene::new(1);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let office = scene.join().await;
        assert!(wait_bounded(wait_for_state(&scene.host, "docs", "ready")).await);
        seen.push(scene.call("where").await.unwrap());
        wait_bounded(office.close()).await;
        assert!(wait_bounded(wait_for_state(&scene.host, "docs", "backoff")).await);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4, "each is a process of its own");
    let status = scene.host.server_status("docs").unwrap();
    assert_eq!((status.restart_count, status.ejected), (0, false));
}

#[tokio::test]
async fn remote_server_restarts_within_budget() {
    let scene = HostedScene::new(0);
    let _office = scene.join().await;
    assert!(wait_bounded(wait_for_state(&scene.host, "docs", "ready")).await);
    assert_eq!(scene.call("die").await, Err(FailureClass::ConnectionLost));
    assert!(wait_bounded(wait_for_state(&scene.host, "docs", "ejected")).await);
    let error = scene
        .host
        .server_status("docs")
        .unwrap()
        .last_error
        .unwrap();
    assert!(error.message.contains("exit code 3"), "{}", error.message);
}
