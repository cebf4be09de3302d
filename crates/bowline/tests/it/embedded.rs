//! A host built by another program and served over HTTP in the program's own process.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use bowline::{BindError, BoundGateway, Gateway, SessionSelector};
use bowline_core::policy::{FeaturePattern, Policy, RoleRules};
use bowline_edge::{TokenKind, TokenRequest};
use bowline_host::access_guard::{AccessGuard, GuardDecision};
use bowline_host::tools::Toolbox;
use bowline_host::{ContextSet, Host, Role, Server, SpawnOptions, ToolOutput};
use bowline_testkit::block_on;
use bowline_testkit::gateway::{HttpConnection, Session};
use serde_json::json;
use tokio::sync::oneshot;

use crate::streams::next_event;

/// A host served by its own thread, as an embedding program would.
struct EmbeddedGateway {
    host: Host,
    server: Arc<BoundGateway>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

fn test_policy() -> Policy {
    let rules = RoleRules {
        allow: vec![FeaturePattern::parse("own.*").unwrap()],
        ..RoleRules::default()
    };
    Policy::default()
        .with_role("guest", rules)
        .with_context("quiet", vec![FeaturePattern::parse("own.shout").unwrap()])
}

fn named_toolbox(names: &[&'static str]) -> Toolbox {
    let any = json!({"type": "object"});
    names.iter().fold(Toolbox::default(), |tools, &name| {
        tools.with(name, "", &any, move |_, _| async move {
            Ok(ToolOutput::from_text(name))
        })
    })
}

impl EmbeddedGateway {
    fn start() -> Self {
        let (told, ready) = mpsc::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            block_on(async {
                let host = Host::builder().policy(test_policy()).build().unwrap();
                let own = Server::in_process("own", named_toolbox(&["shout", "whisper"]));
                host.spawn(own, SpawnOptions::default()).await.unwrap();
                let any = "127.0.0.1:0".parse().unwrap();
                let bound = Arc::new(Gateway::bind(host.clone(), any).await.unwrap());
                let taken = Gateway::bind(host.clone(), any).await;
                assert!(matches!(taken, Err(BindError::Occupied(_))), "{taken:?}");
                told.send((host, Arc::clone(&bound))).unwrap();
                let _ = stopped.await;
                // The test holds no reference any more.
                Arc::into_inner(bound).unwrap().stop().await;
            });
        });
        let (host, server) = ready.recv().unwrap();
        Self {
            host,
            server,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn address(&self) -> SocketAddr {
        format!("127.0.0.1:{}", self.server.port).parse().unwrap()
    }

    fn create_token(&self) -> String {
        let wanted = TokenRequest {
            principal: "ann".into(),
            kind: TokenKind::Agent,
            role: Role::Named("guest".into()),
            run: None,
            contexts: ContextSet::default(),
            lifetime: None,
        };
        self.server.issue_token(&wanted).unwrap()
    }

    fn open_session(&self, token: &str) -> Session {
        Session::open(self.address(), "/mcp", Some(token))
    }

    fn stop_and_join(mut self) {
        let (stop, thread) = (self.stop.take().unwrap(), self.thread.take().unwrap());
        let address = self.address();
        drop(self.server);
        stop.send(()).unwrap();
        thread.join().unwrap();
        assert!(
            std::net::TcpStream::connect(address).is_err(),
            "it is served no more"
        );
        assert!(!self.host.is_closing(), "the host is its builder's");
    }
}

/// A host is served without files, and open sessions can be narrowed.
#[test]
fn embedded_host_serves_and_narrows_open_sessions() {
    let served = EmbeddedGateway::start();
    let token = served.create_token();
    let mut session = served.open_session(&token);
    assert_eq!(session.list_tool_names(), ["own__shout", "own__whisper"]);
    let said = session.call("own__shout", &json!({}));
    assert_eq!(said["result"]["content"][0]["text"], "shout", "{said}");
    let mut stream = session.open_stream();
    next_event(&mut stream).unwrap();
    let quiet = ContextSet::new(["quiet"]);
    for whom in [
        SessionSelector::Session(&session.id.clone()),
        SessionSelector::All,
    ] {
        let mut other = served.open_session(&token);
        served.server.set_context(whom, &quiet).unwrap();
        let told = next_event(&mut stream).unwrap().data_json();
        assert_eq!(told["method"], "notifications/tools/list_changed");
        assert_eq!(session.list_tool_names(), ["own__whisper"]);
        let refused = session.call("own__shout", &json!({}));
        assert!(refused.get("error").is_some(), "{refused}");
        let all = whom == SessionSelector::All;
        assert_eq!(other.list_tool_names().len(), if all { 1 } else { 2 });
        assert_eq!(
            served.open_session(&token).list_tool_names().len(),
            if all { 1 } else { 2 },
            "one that comes"
        );
        served
            .server
            .set_context(whom, &ContextSet::default())
            .unwrap();
        next_event(&mut stream).unwrap();
        assert_eq!(session.list_tool_names().len(), 2);
    }
    let unknown = served
        .server
        .set_context(SessionSelector::Session("x"), &quiet);
    assert!(unknown.is_err());
    assert!(
        served
            .server
            .sessions()
            .iter()
            .all(|(_, whose)| **whose == *"ann")
    );
    // Revoking a token ends the token's sessions.
    assert_eq!(served.server.revoke_tokens("ann"), 1);
    assert!(served.server.sessions().is_empty());
    served.stop_and_join();
}

#[test]
fn embedded_sessions_hear_server_and_guard_changes() {
    /// Refuses one tool.
    #[derive(Debug)]
    struct DenyShout;
    impl AccessGuard for DenyShout {
        fn check_access(&self, _: &str, tool: Option<&str>) -> GuardDecision {
            match tool {
                Some("shout") => GuardDecision::Deny {
                    reason: "it is late".into(),
                },
                _ => GuardDecision::Allow,
            }
        }
    }
    let served = EmbeddedGateway::start();
    let mut session = served.open_session(&served.server.token);
    let mut stream = session.open_stream();
    next_event(&mut stream).unwrap();
    served.host.set_guard(Some(Box::new(DenyShout)));
    served.server.refresh_tools();
    let told = next_event(&mut stream).unwrap().data_json();
    assert_eq!(told["method"], "notifications/tools/list_changed");
    assert_eq!(session.list_tool_names(), ["own__whisper"]);
    // The API serves the owner only, and every endpoint needs a token.
    let bearer = format!("Bearer {}", served.server.token);
    let answer = HttpConnection::connect(served.address())
        .get("/api/v1/status", &[("Authorization", &bearer)]);
    assert_eq!(answer.json()["servers"][0]["transport"], "in_process");
    assert_eq!(
        HttpConnection::connect(served.address())
            .get("/api/v1/status", &[])
            .status,
        401
    );
    assert_eq!(
        HttpConnection::connect(served.address())
            .get("/mcp", &[])
            .status,
        401
    );
    served.stop_and_join();
}
