//! A server that runs on an executor, in the care of a host.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::error::Class;
use bowline_core::supervision::RestartPolicy;
use bowline_host::executor::{Executors, ExecutorsOptions, Offer, Porter, Servant};
use bowline_host::ports::SystemClock;
use bowline_host::spec::{PlacedSpec, Reach};
use bowline_host::tasks::Tasks;
use bowline_host::{ExecuteError, Host, Principal, Role, ServerSpec};
use bowline_link::BoxFuture;
use bowline_link::websocket::{Side, join};
use bowline_sim::reaches;
use bowline_wire::broker::Refusal;
use bowline_wire::executor::Hello;
use bytes::Bytes;
use serde_json::json;

use super::rig::{pair, soon, spec};

/// Has a tool that tells its process, and one that ends it.
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

/// Lets everybody in, for ever.
#[derive(Debug)]
struct Open;

impl Porter for Open {
    fn admit(&self, _hello: &Hello) -> Result<BoxFuture<'static, Refusal>, Refusal> {
        Ok(Box::pin(std::future::pending()))
    }
}

struct Scene {
    host: Host,
    executors: Executors,
    tasks: Tasks,
}

impl Scene {
    /// A gateway whose one server is on an executor that nobody has seen yet.
    fn new(restarts_max: u32) -> Self {
        let tasks = Tasks::default();
        let clock = Arc::new(SystemClock::start());
        let options = ExecutorsOptions::default();
        let executors = Executors::new(tasks.clone(), clock, options);
        let placed = PlacedSpec {
            executor: "office".into(),
            server: "files".into(),
        };
        let hour = Duration::from_secs(3_600);
        let server = ServerSpec {
            // Whoever waits for that sees no end.
            backoff: Backoff {
                base: hour,
                cap: hour,
            },
            restart: RestartPolicy {
                restarts_max,
                window: hour,
            },
            ..ServerSpec::reached("docs", Reach::Placed(placed))
        };
        let host = Host::builder().tasks(tasks.clone());
        let host = host.executors(executors.clone()).server(server);
        Self {
            host: host.build().unwrap(),
            executors,
            tasks,
        }
    }

    /// An executor comes in.
    async fn join(&self) -> Servant {
        let mut offer = Offer::new("office");
        offer.servers.insert("files".into(), spec("files", SERVER));
        let socket = offer.limits.socket;
        let clock = Arc::new(SystemClock::start());
        let servant = Servant::new(offer, self.tasks.clone(), clock);
        let (ours, theirs) = pair().await;
        let io = join(theirs, Side::Client, Bytes::new(), socket, &self.tasks);
        let serving = servant.clone();
        self.tasks.spawn("servant", async move {
            serving.attend(io).await;
        });
        let io = join(ours, Side::Server, Bytes::new(), socket, &self.tasks);
        let executors = self.executors.clone();
        self.tasks.spawn("executor", async move {
            executors.attend(io, "here", &Open).await;
        });
        servant
    }

    async fn call(&self, tool: &str) -> Result<String, Class> {
        let owner = Principal::new("owner", Role::Owner);
        let called = soon(self.host.call_tool(&owner, "docs", tool, json!({}))).await;
        match called {
            Ok(output) => Ok(output.text().into_owned()),
            Err(ExecuteError::Call(error)) => Err(error.class()),
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test]
async fn a_server_starts_the_moment_its_executor_joins_and_is_shown_where_it_is() {
    let scene = Scene::new(5);
    assert!(soon(reaches(&scene.host, "docs", "backoff")).await);
    let status = scene.host.status_of("docs").unwrap();
    let error = status.last_error.unwrap();
    assert!(error.message.contains("`office`"), "{}", error.message);
    assert_eq!(status.restart_count, 0);
    let _office = scene.join().await;
    assert!(soon(reaches(&scene.host, "docs", "ready")).await);
    let text = scene.call("where").await.unwrap();
    let status = scene.host.status_of("docs").unwrap();
    assert_eq!(Some(text), status.pid.map(|pid| format!("process {pid}")));
    assert_eq!(status.transport, "stdio");
    assert_eq!(&*status.command, "files on executor office");
    assert_eq!((status.processes, status.memory_bytes), (None, None));
}

#[tokio::test]
async fn an_executor_that_comes_and_goes_is_not_held_against_its_servers() {
    let scene = Scene::new(1);
    let mut seen = Vec::new();
    for _ in 0..4 {
        let office = scene.join().await;
        assert!(soon(reaches(&scene.host, "docs", "ready")).await);
        seen.push(scene.call("where").await.unwrap());
        soon(office.close()).await;
        assert!(soon(reaches(&scene.host, "docs", "backoff")).await);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4, "each is a process of its own");
    let status = scene.host.status_of("docs").unwrap();
    assert_eq!((status.restart_count, status.ejected), (0, false));
}

#[tokio::test]
async fn a_server_that_dies_on_its_executor_is_restarted_as_often_as_it_may() {
    let scene = Scene::new(0);
    let _office = scene.join().await;
    assert!(soon(reaches(&scene.host, "docs", "ready")).await);
    assert_eq!(scene.call("die").await, Err(Class::ConnectionLost));
    assert!(soon(reaches(&scene.host, "docs", "ejected")).await);
    let error = scene.host.status_of("docs").unwrap().last_error.unwrap();
    assert!(error.message.contains("exit code 3"), "{}", error.message);
}
