//! A host that another program built and serves over HTTP, in its own process.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use bowline::tokens::{TokenKind, Wanted};
use bowline::{BindError, Bound, Gateway, Whom};
use bowline_core::policy::{Pattern, Policy, RoleRules};
use bowline_host::guard::{Guard, Verdict};
use bowline_host::tools::Toolbox;
use bowline_host::{Contexts, Host, Role, Server, SpawnOptions, ToolOutput};
use serde_json::json;
use tokio::sync::oneshot;

use crate::harness::{Http, Session};
use crate::streams::next_event;

/// A host served by a thread of its own, as a program would.
struct Served {
    host: Host,
    bound: Arc<Bound>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

fn policy() -> Policy {
    let rules = RoleRules {
        allow: vec![Pattern::parse("own.*").unwrap()],
        ..RoleRules::default()
    };
    Policy::default()
        .with_role("guest", rules)
        .with_context("quiet", vec![Pattern::parse("own.shout").unwrap()])
}

fn tools(names: &[&'static str]) -> Toolbox {
    let any = json!({"type": "object"});
    names.iter().fold(Toolbox::default(), |tools, &name| {
        tools.with((name, ""), &any, move |_, _| async move {
            Ok(ToolOutput::of_text(name))
        })
    })
}

impl Served {
    fn start() -> Self {
        let (told, ready) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = { runtime }.enable_all().build().unwrap();
            runtime.block_on(async {
                let host = Host::builder().policy(policy()).build().unwrap();
                let own = Server::in_process("own", tools(&["shout", "whisper"]));
                host.spawn(own, SpawnOptions::default()).await.unwrap();
                let any = "127.0.0.1:0".parse().unwrap();
                let bound = Arc::new(Gateway::bind(host.clone(), any).await.unwrap());
                let taken = Gateway::bind(host.clone(), any).await;
                assert!(matches!(taken, Err(BindError::Occupied(_))), "{taken:?}");
                told.send((host, Arc::clone(&bound))).unwrap();
                let _ = stopped.await;
                // The test has let go of it by now.
                Arc::into_inner(bound).unwrap().stop().await;
            });
        });
        let (host, bound) = ready.recv().unwrap();
        Self {
            host,
            bound,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn address(&self) -> SocketAddr {
        format!("127.0.0.1:{}", self.bound.port).parse().unwrap()
    }

    fn token(&self) -> String {
        let wanted = Wanted {
            principal: "ann".into(),
            kind: TokenKind::Agent,
            role: Role::Named("guest".into()),
            run: None,
            contexts: Contexts::default(),
            life: None,
        };
        self.bound.issue(&wanted).unwrap()
    }

    fn session(&self, token: &str) -> Session {
        Session::open(self.address(), "/mcp", Some(token))
    }

    fn end(mut self) {
        let (stop, thread) = (self.stop.take().unwrap(), self.thread.take().unwrap());
        let address = self.address();
        drop(self.bound);
        stop.send(()).unwrap();
        thread.join().unwrap();
        assert!(
            std::net::TcpStream::connect(address).is_err(),
            "it is served no more"
        );
        assert!(!self.host.is_closing(), "the host is its builder's");
    }
}

#[test]
fn a_host_is_served_without_files_and_narrowed_while_sessions_are_open() {
    let served = Served::start();
    let token = served.token();
    let mut session = served.session(&token);
    assert_eq!(session.tools(), ["own__shout", "own__whisper"]);
    let said = session.call("own__shout", &json!({}));
    assert_eq!(said["result"]["content"][0]["text"], "shout", "{said}");
    let mut stream = session.listen();
    next_event(&mut stream).unwrap();
    let quiet = Contexts::new(["quiet"]);
    for whom in [Whom::Session(&session.id.clone()), Whom::All] {
        let mut other = served.session(&token);
        served.bound.set_context(whom, &quiet).unwrap();
        let told = next_event(&mut stream).unwrap().json();
        assert_eq!(told["method"], "notifications/tools/list_changed");
        assert_eq!(session.tools(), ["own__whisper"]);
        let refused = session.call("own__shout", &json!({}));
        assert!(refused.get("error").is_some(), "{refused}");
        let all = whom == Whom::All;
        assert_eq!(other.tools().len(), if all { 1 } else { 2 });
        assert_eq!(
            served.session(&token).tools().len(),
            if all { 1 } else { 2 },
            "one that comes"
        );
        served
            .bound
            .set_context(whom, &Contexts::default())
            .unwrap();
        next_event(&mut stream).unwrap();
        assert_eq!(session.tools().len(), 2);
    }
    let unknown = served.bound.set_context(Whom::Session("x"), &quiet);
    assert!(unknown.is_err());
    assert!(
        served
            .bound
            .sessions()
            .iter()
            .all(|(_, whose)| **whose == *"ann")
    );
    // What was opened ends with its token.
    assert_eq!(served.bound.revoke("ann"), 1);
    assert!(served.bound.sessions().is_empty());
    served.end();
}

#[test]
fn sessions_of_an_embedded_gateway_hear_of_servers_and_guards_that_change() {
    /// Refuses one tool.
    #[derive(Debug)]
    struct Silence;
    impl Guard for Silence {
        fn check(&self, _: &str, tool: Option<&str>) -> Verdict {
            match tool {
                Some("shout") => Verdict::Deny {
                    reason: "it is late".into(),
                },
                _ => Verdict::Allow,
            }
        }
    }
    let served = Served::start();
    let mut session = served.session(&served.bound.token);
    let mut stream = session.listen();
    next_event(&mut stream).unwrap();
    served.host.set_guard(Some(Box::new(Silence)));
    served.bound.refresh_tools();
    let told = next_event(&mut stream).unwrap().json();
    assert_eq!(told["method"], "notifications/tools/list_changed");
    assert_eq!(session.tools(), ["own__whisper"]);
    // The API is there for the owner, and nothing is without a token.
    let bearer = format!("Bearer {}", served.bound.token);
    let answer =
        Http::connect(served.address()).get("/api/v1/status", &[("Authorization", &bearer)]);
    assert_eq!(answer.json()["servers"][0]["transport"], "in_process");
    assert_eq!(
        Http::connect(served.address())
            .get("/api/v1/status", &[])
            .status,
        401
    );
    assert_eq!(Http::connect(served.address()).get("/mcp", &[]).status, 401);
    served.end();
}
