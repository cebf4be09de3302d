//! HTTP links against scripted servers on real sockets: responses, streams, sessions, failures.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::http::{HeaderName, HeaderValue};
use bowline_core::BoxFuture;
use bowline_core::call::ServerResponse;
use bowline_core::client_handle::{
    ClientCapabilities, ClientCapability, ClientHandle, ServerRequest, ServerRequestId, SessionKey,
};
use bowline_core::era::{Era, EraSetting};
use bowline_core::log_level::LogLevel;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::HttpClient;
use bowline_link::http::http1::{Http1Client, HttpClientLimits};
use bowline_link::http::upstream_credentials::{
    CredentialError, NoCredentials, UpstreamCredentials,
};
use bowline_link::http::{self, HttpLimits, HttpSpec, HttpTransport};
use bowline_link::{ClientInfo, Link, LinkConnectError, LinkError, LinkEvent, LinkRequest};
use bowline_testkit::{DetachedSpawner, deadline_after, spawn_task, test_deadline};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

mod body_limits;
#[path = "../websocket/certificate.rs"]
mod certificate;
mod credential_refresh;
mod egress;
mod event_streams;
mod hostile;
mod http1_wire;
mod http_calls;
mod http_modern;
mod http_sse;
mod link_end;
mod redirects;
mod scripted_server;
mod session_renewal;
mod streamed_uploads;
mod tls;
use scripted_server::ScriptedServer;

type LinkOutcome = Result<ServerResponse, LinkError>;
type ConnectOutcome = Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), LinkConnectError>;

/// A link and the scripted server.
struct HttpScene {
    server: ScriptedServer,
    link: Arc<dyn Link>,
    events: mpsc::Receiver<LinkEvent>,
}

impl HttpScene {
    /// Returns a link after the handshake with session `one`; the server offers no GET stream.
    async fn new() -> Self {
        Self::with_spec(|_| {}).await
    }

    async fn with_spec(change: impl FnOnce(&mut HttpSpec)) -> Self {
        let mut server = ScriptedServer::start().await;
        let mut spec = http_spec(&server);
        change(&mut spec);
        let connecting = spawn_task(connect(spec));
        server.complete_handshake("one").await;
        let (link, events) = connecting.await.unwrap().unwrap();
        Self {
            server,
            link,
            events,
        }
    }

    /// Starts a call.
    fn start_call(&self) -> JoinHandle<LinkOutcome> {
        self.start_request(test_request("tools/call"))
    }

    fn start_request(&self, request: LinkRequest) -> JoinHandle<LinkOutcome> {
        let link = self.link.clone();
        spawn_task(async move { link.request(request).await })
    }
}

/// Returns the link configuration for a server.
fn http_spec(server: &ScriptedServer) -> HttpSpec {
    HttpSpec {
        server: "tracker".into(),
        url: HttpEndpoint::parse(&format!("{}/mcp", server.origin)).unwrap(),
        transport: HttpTransport::Auto,
        credentials: Arc::new(NoCredentials),
        era_setting: EraSetting::Only(Era::Legacy),
        owner: None,
        limits: HttpLimits::default(),
    }
}

fn http_client() -> Arc<dyn HttpClient> {
    Arc::new(Http1Client::new(HttpClientLimits::default()).unwrap())
}

async fn connect(spec: HttpSpec) -> ConnectOutcome {
    connect_within(spec, Duration::from_secs(20)).await
}

async fn connect_within(spec: HttpSpec, wait: Duration) -> ConnectOutcome {
    let info = ClientInfo {
        name: "probe".into(),
        version: "9".into(),
    };
    http::connect(
        &spec,
        http_client(),
        info,
        deadline_after(wait),
        &DetachedSpawner,
    )
    .await
}

/// Returns a request with the caller id `"a"`.
fn test_request(method: &'static str) -> LinkRequest {
    let mut request = LinkRequest::new_internal(
        method,
        Bytes::from_static(br#"{"name":"x"}"#),
        test_deadline(),
    );
    request.message.id = Bytes::from_static(b"\"a\"");
    request
}

fn response_text(outcome: LinkOutcome) -> String {
    String::from_utf8(outcome.unwrap().bytes.to_vec()).unwrap()
}

/// Returns the caller's text for a result.
fn result_text(value: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"a","result":{value}}}"#)
}

/// A client with capabilities that records messages.
#[derive(Debug)]
struct TestClient {
    told: mpsc::Sender<Bytes>,
    asked: mpsc::Sender<ServerRequest>,
    level: Option<LogLevel>,
}

/// Recorded messages of a client.
struct ClientInbox {
    told: mpsc::Receiver<Bytes>,
    asked: mpsc::Receiver<ServerRequest>,
}

fn test_client() -> (Arc<dyn ClientHandle>, ClientInbox) {
    test_client_with_level(None)
}

/// Returns a client with a log level.
fn test_client_with_level(level: Option<LogLevel>) -> (Arc<dyn ClientHandle>, ClientInbox) {
    let (told, told_end) = mpsc::channel(16);
    let (asked, asked_end) = mpsc::channel(16);
    let ears = ClientInbox {
        told: told_end,
        asked: asked_end,
    };
    let caller = TestClient { told, asked, level };
    (Arc::new(caller), ears)
}

impl ClientHandle for TestClient {
    fn session(&self) -> SessionKey {
        SessionKey(1)
    }

    fn capabilities(&self) -> ClientCapabilities {
        ClientCapabilities::default().with_capability(ClientCapability::ElicitationForm)
    }

    fn log_level(&self) -> Option<LogLevel> {
        self.level
    }

    fn notify(&self, notification: Bytes) {
        self.told.try_send(notification).unwrap();
    }

    fn request(&self, question: ServerRequest) -> Option<ServerRequestId> {
        self.asked.try_send(question).unwrap();
        Some(ServerRequestId(1))
    }

    fn cancel_request(&self, _: ServerRequestId) {}

    fn session_handle(&self) -> Arc<dyn ClientHandle> {
        test_client().0
    }
}

/// A changeable secret.
#[derive(Default)]
struct MutableSecret(Mutex<Option<&'static str>>);

impl UpstreamCredentials for MutableSecret {
    fn headers(&self) -> Result<Vec<(HeaderName, HeaderValue)>, CredentialError> {
        let Some(value) = *self.0.lock().unwrap() else {
            return Err(CredentialError {
                name: "tracker".into(),
                reason: "it is gone".into(),
            });
        };
        let name = HeaderName::from_static("authorization");
        Ok(vec![(name, HeaderValue::from_static(value))])
    }
}
