//! Real servers on real sockets: answers, streams, sessions, and what goes wrong.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::http::{HeaderName, HeaderValue};
use bowline_core::caller::{Abilities, Ability, CallerEnd, Question, QuestionId, SessionKey};
use bowline_core::era::{Era, Speaks};
use bowline_core::level::Level;
use bowline_link::http::client::HttpClient;
use bowline_link::http::credentials::{Anonymous, CredentialError, Credentials};
use bowline_link::http::endpoint::Endpoint;
use bowline_link::http::hyper_client::{ClientLimits, HyperClient};
use bowline_link::http::{self, HttpLimits, HttpSpec, Transport};
use bowline_link::{
    Answer, BoxFuture, ClientInfo, ConnectError, Link, LinkError, LinkEvent, Request, Spawner,
};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod calls;
#[path = "../websocket/certificate.rs"]
mod certificate;
mod egress;
mod ends;
mod first;
mod hostile;
mod limits;
mod modern;
mod redirects;
mod refreshed;
mod server;
mod sessions;
mod streams;
mod tls;
mod uploads;
mod wire;
use server::{Server, soon};

type Outcome = Result<Answer, LinkError>;
type Connected = Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), ConnectError>;

/// A link and the server at its other end.
struct Scene {
    server: Server,
    link: Arc<dyn Link>,
    events: mpsc::Receiver<LinkEvent>,
}

impl Scene {
    /// A link whose handshake is over, under the session `one`; the server offers no stream.
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut HttpSpec)) -> Self {
        let mut server = Server::start().await;
        let mut spec = spec(&server);
        change(&mut spec);
        let connecting = spawn(connect(spec));
        server.shakes("one").await;
        let (link, events) = connecting.await.unwrap().unwrap();
        Self {
            server,
            link,
            events,
        }
    }

    /// Begins a call.
    fn call(&self) -> JoinHandle<Outcome> {
        self.begin(request("tools/call"))
    }

    fn begin(&self, request: Request) -> JoinHandle<Outcome> {
        let link = self.link.clone();
        spawn(async move { link.request(request).await })
    }
}

/// How to reach a server.
fn spec(server: &Server) -> HttpSpec {
    HttpSpec {
        server: "tracker".into(),
        url: Endpoint::parse(&format!("{}/mcp", server.origin)).unwrap(),
        transport: Transport::Auto,
        credentials: Arc::new(Anonymous),
        speaks: Speaks::Only(Era::Legacy),
        owner: None,
        limits: HttpLimits::default(),
    }
}

fn client() -> Arc<dyn HttpClient> {
    Arc::new(HyperClient::new(ClientLimits::default()).unwrap())
}

async fn connect(spec: HttpSpec) -> Connected {
    connect_within(spec, Duration::from_secs(20)).await
}

async fn connect_within(spec: HttpSpec, wait: Duration) -> Connected {
    let info = ClientInfo {
        name: "probe".into(),
        version: "9".into(),
    };
    http::connect(&spec, client(), info, after(wait), &Tokio).await
}

struct Tokio;

impl Spawner for Tokio {
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        spawn(task);
    }
}

#[expect(clippy::disallowed_methods, reason = "tests have no task keeper")]
fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(task)
}

#[expect(clippy::disallowed_methods, reason = "tests own their clock")]
fn after(wait: Duration) -> Instant {
    Instant::now() + wait
}

/// A request under the caller's id `"a"`.
fn request(method: &'static str) -> Request {
    Request {
        method: Cow::Borrowed(method),
        params: Some(Bytes::from_static(br#"{"name":"x"}"#)),
        rename: None,
        progress_at: None,
        reply_id: Bytes::from_static(b"\"a\""),
        deadline: after(Duration::from_secs(20)),
        caller: None,
        trace: None,
        key: None,
        on_behalf: None,
        era: Era::Legacy,
        mirrors: None,
    }
}

fn text(outcome: Outcome) -> String {
    String::from_utf8(outcome.unwrap().bytes.to_vec()).unwrap()
}

/// What the caller reads for a result.
fn answered(value: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":"a","result":{value}}}"#)
}

/// A caller that can be asked, and keeps what it hears.
#[derive(Debug)]
struct Caller {
    told: mpsc::Sender<Bytes>,
    asked: mpsc::Sender<Question>,
    level: Option<Level>,
}

/// What a caller hears.
struct Ears {
    told: mpsc::Receiver<Bytes>,
    asked: mpsc::Receiver<Question>,
}

fn caller() -> (Arc<dyn CallerEnd>, Ears) {
    caller_at(None)
}

/// One that said how much of the log it wants to hear.
fn caller_at(level: Option<Level>) -> (Arc<dyn CallerEnd>, Ears) {
    let (told, told_end) = mpsc::channel(16);
    let (asked, asked_end) = mpsc::channel(16);
    let ears = Ears {
        told: told_end,
        asked: asked_end,
    };
    let caller = Caller { told, asked, level };
    (Arc::new(caller), ears)
}

impl CallerEnd for Caller {
    fn session(&self) -> SessionKey {
        SessionKey(1)
    }

    fn abilities(&self) -> Abilities {
        Abilities::default().with(Ability::ElicitationForm)
    }

    fn level(&self) -> Option<Level> {
        self.level
    }

    fn push(&self, notification: Bytes) {
        self.told.try_send(notification).unwrap();
    }

    fn ask(&self, question: Question) -> Option<QuestionId> {
        self.asked.try_send(question).unwrap();
        Some(QuestionId(1))
    }

    fn withdraw(&self, _: QuestionId) {}

    fn home(&self) -> Arc<dyn CallerEnd> {
        caller().0
    }
}

/// A secret that can be changed.
#[derive(Default)]
struct Secret(Mutex<Option<&'static str>>);

impl Credentials for Secret {
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
