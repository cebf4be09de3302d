//! One client's way to the gateway: where it is, which session, and what to do when either is
//! gone.

use std::sync::Mutex;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_wire::sse::Limits;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::sync::{Semaphore, mpsc};

use super::deliver::{Audience, Wanted, lost};
use super::message::{self, Execution, Trouble};
use super::modern::Itself;
use super::start::{self, Starter};
use crate::cli::client::{self, ANSWER_BYTES_MAX, Http};
use crate::cli::daemon::{Daemon, Finder};
use crate::cli::failure::Failure;

/// Longest event of a stream.
pub(super) const EVENTS: Limits = Limits {
    line_bytes_max: ANSWER_BYTES_MAX,
    event_bytes_max: ANSWER_BYTES_MAX,
};
/// Longest wait for the gateway to take leave.
const CLOSE: Duration = Duration::from_secs(2);
/// Times a request is sent at most, each after proof that the last one did not run.
const ATTEMPTS_MAX: usize = 3;

const SESSION: &str = "mcp-session-id";
const REVISION: &str = "mcp-protocol-version";

/// What a message is sent with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Head<'a> {
    /// The session that its client opened.
    Session(&'a Session),
    /// What it says of itself.
    Itself(&'a Itself),
}

/// Where lines for the client go.
pub(super) type Lines = mpsc::Sender<Bytes>;

/// The state that all requests of one client share.
#[derive(Debug)]
pub(super) struct Shim {
    http: Http,
    finder: Finder,
    starter: Starter,
    /// `/mcp`, or the address of one server.
    path: String,
    /// The gateway as last found.
    daemon: Mutex<Daemon>,
    session: Mutex<Session>,
    /// One renewal of the session at a time; a permit, because it is held while waiting.
    renewal: Semaphore,
    /// One search for the gateway at a time, likewise.
    search: Semaphore,
}

/// What the gateway knows the client by.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    id: Option<HeaderValue>,
    revision: Option<HeaderValue>,
    /// How the client introduced itself, to do it again.
    initialize: Option<Bytes>,
    /// Grows with every new session, so that of many who miss it one renews it.
    pub(super) epoch: u64,
}

impl Shim {
    pub(super) fn new(finder: Finder, starter: Starter, path: String, daemon: Daemon) -> Self {
        Self {
            http: client::http(),
            finder,
            starter,
            path,
            daemon: Mutex::new(daemon),
            session: Mutex::default(),
            renewal: Semaphore::new(1),
            search: Semaphore::new(1),
        }
    }

    pub(super) fn session(&self) -> Session {
        lock(&self.session).clone()
    }

    /// Whether the client has introduced itself, and so has or wants a session.
    pub(super) fn is_introduced(&self) -> bool {
        lock(&self.session).initialize.is_some()
    }

    fn daemon(&self) -> Daemon {
        lock(&self.daemon).clone()
    }

    /// Introduces the client, and remembers how.
    pub(super) async fn initialize(&self, line: Bytes, id: &str, lines: &Lines) {
        *lock(&self.session) = Session {
            initialize: Some(line.clone()),
            epoch: self.session().epoch,
            ..Session::default()
        };
        if let Err(trouble) = self.open(line, id, Audience::Client, lines).await {
            let _gone = lines.send(trouble.answer(id)).await;
        }
    }

    async fn open(
        &self,
        line: Bytes,
        id: &str,
        audience: Audience,
        lines: &Lines,
    ) -> Result<(), Trouble> {
        let response = self.send(&line, Head::Session(&Session::default())).await?;
        let session_id = response.headers().get(SESSION).cloned();
        let success = response.status().is_success();
        let wanted = Wanted {
            id: Some(id),
            audience,
            lines,
        };
        let nobody = Session::default();
        let answer = self.deliver(response, &nobody, wanted).await?;
        let revision = message::revision(&answer);
        if success && revision.is_some() {
            let mut session = lock(&self.session);
            session.id = session_id;
            session.revision = revision.and_then(|text| HeaderValue::from_str(&text).ok());
            session.epoch += 1;
        }
        Ok(())
    }

    /// Carries a request there and its answer back, whatever happens.
    pub(super) async fn request(&self, line: Bytes, id: &str, lines: &Lines) {
        if let Err(trouble) = self.carry(line, Some(id), lines).await {
            // Nobody reads any more: nothing is left to be said.
            let _gone = lines.send(trouble.answer(id)).await;
        }
    }

    /// Carries a message that wants no answer.
    pub(super) async fn notify(&self, line: Bytes, lines: &Lines) -> Result<(), Trouble> {
        match self.carry(line.clone(), None, lines).await {
            // It may be said twice: an answer or a cancellation counts once, and without an answer
            // its server would wait in vain.
            Err(trouble) if trouble.execution == Execution::Unknown => {
                self.carry(line, None, lines).await
            }
            told => told,
        }
    }

    async fn carry(&self, line: Bytes, id: Option<&str>, lines: &Lines) -> Result<(), Trouble> {
        let mut session = self.session();
        let mut response = self.send(&line, Head::Session(&session)).await?;
        // The gateway forgot the session, so it ran nothing of it.
        if response.status() == StatusCode::NOT_FOUND && session.id.is_some() {
            self.renew(session.epoch, lines).await?;
            session = self.session();
            response = self.send(&line, Head::Session(&session)).await?;
        }
        let wanted = Wanted {
            id,
            audience: Audience::Client,
            lines,
        };
        self.deliver(response, &session, wanted).await.map(drop)
    }

    /// Opens a new session the way the client opened the first one.
    pub(super) async fn renew(&self, epoch: u64, lines: &Lines) -> Result<(), Trouble> {
        let closed = |_closed| Trouble::not_started("The shim is closing.");
        let _turn = self.renewal.acquire().await.map_err(closed)?;
        let session = self.session();
        if session.epoch != epoch {
            return Ok(());
        }
        let lost = || Trouble::not_started("The session is gone and cannot be opened again.");
        let line = session.initialize.ok_or_else(lost)?;
        let Some(message::Kind::Request { id, .. }) = message::kind(&line) else {
            return Err(lost());
        };
        self.open(line, &id, Audience::Nobody, lines).await?;
        let renewed = self.session();
        if renewed.epoch == epoch {
            return Err(lost());
        }
        let initialized = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let initialized = Bytes::from_static(initialized);
        self.send(&initialized, Head::Session(&renewed))
            .await
            .map(|_response| ())
    }

    /// Sends a message, again while it provably did not arrive.
    pub(super) async fn send(
        &self,
        line: &Bytes,
        head: Head<'_>,
    ) -> Result<Response<Incoming>, Trouble> {
        let mut attempt = 1;
        loop {
            let daemon = self.daemon();
            let request = self.build(Method::POST, &daemon, head, line.clone());
            let request = request.map_err(|_error| Trouble::not_started("Bad request."))?;
            match self.http.request(request).await {
                // Refused at the door, so it did not run; the token may have been replaced.
                Ok(response)
                    if response.status() == StatusCode::UNAUTHORIZED
                        && attempt < ATTEMPTS_MAX
                        && self.token_changed(&daemon) =>
                {
                    attempt += 1;
                }
                Ok(response) => return Ok(response),
                Err(error) if error.is_connect() && attempt < ATTEMPTS_MAX => {
                    attempt += 1;
                    self.find_again(&daemon.url).await.map_err(|failure| {
                        let message = failure.message;
                        Trouble::not_started(format!("Nothing was run: {message}."))
                    })?;
                }
                Err(error) if error.is_connect() => {
                    return Err(Trouble::not_started(
                        "Nothing was run: the gateway is away.",
                    ));
                }
                Err(_error) => return Err(lost()),
            }
        }
    }

    /// Reads the token again; whether it is another one than that of `daemon`.
    fn token_changed(&self, daemon: &Daemon) -> bool {
        match self.finder.find() {
            Ok(found) if found.token != daemon.token => {
                *lock(&self.daemon) = found;
                true
            }
            _ => false,
        }
    }

    /// Looks where the gateway is now; starts one if it is nowhere.
    pub(super) async fn find_again(&self, failed_url: &str) -> Result<(), Failure> {
        let _turn = self.search.acquire().await;
        if self.daemon().url != failed_url {
            return Ok(());
        }
        let daemon = start::ensure(&self.finder, &self.starter).await?;
        *lock(&self.daemon) = daemon;
        Ok(())
    }

    fn build(
        &self,
        method: Method,
        daemon: &Daemon,
        head: Head<'_>,
        body: Bytes,
    ) -> http::Result<Request<Full<Bytes>>> {
        let accept = match method {
            Method::GET => "text/event-stream",
            _ => "application/json, text/event-stream",
        };
        let mut builder = Request::builder()
            .method(method)
            .uri(format!("{}{}", daemon.url, self.path))
            .header(
                header::AUTHORIZATION,
                format!("Bearer {}", daemon.token.expose()),
            )
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, accept);
        match head {
            Head::Session(session) => {
                if let Some(id) = &session.id {
                    builder = builder.header(SESSION, id);
                }
                if let Some(revision) = &session.revision {
                    builder = builder.header(REVISION, revision);
                }
            }
            Head::Itself(itself) => {
                for (name, value) in itself.headers() {
                    builder = builder.header(name, value);
                }
            }
        }
        builder.body(Full::new(body))
    }

    /// Opens the stream of messages that belong to no request.
    pub(super) async fn listen(
        &self,
        session: &Session,
        after: Option<&str>,
    ) -> Result<Response<Incoming>, String> {
        let daemon = self.daemon();
        let request = self.build(Method::GET, &daemon, Head::Session(session), Bytes::new());
        let mut request = request.map_err(|_error| daemon.url.clone())?;
        if let Some(after) = after.and_then(|id| HeaderValue::from_str(id).ok()) {
            request.headers_mut().insert("last-event-id", after);
        }
        self.http
            .request(request)
            .await
            .map_err(|_error| daemon.url)
    }

    /// Takes leave, so that the gateway need not keep the session.
    pub(super) async fn close(&self) {
        let session = self.session();
        if session.id.is_none() {
            return;
        }
        let request = self.build(
            Method::DELETE,
            &self.daemon(),
            Head::Session(&session),
            Bytes::new(),
        );
        if let Ok(request) = request {
            // Best effort: sessions also end by themselves.
            let _answer = tokio::time::timeout(CLOSE, self.http.request(request)).await;
        }
    }
}

/// The gateway said no, in words of its own where it has some.
pub(super) fn refused(status: StatusCode, body: &[u8]) -> Trouble {
    let body: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let said = body
        .pointer("/error/message")
        .and_then(serde_json::Value::as_str);
    let message = match (said, status) {
        (Some(said), _) => format!("The gateway refused: {said}"),
        (None, StatusCode::UNAUTHORIZED) => "The gateway does not accept the token.".to_owned(),
        (None, status) => format!("The gateway answered {status}."),
    };
    let ran = body
        .pointer("/error/execution")
        .or_else(|| body.pointer("/error/data/execution"));
    let not_started = ran.and_then(serde_json::Value::as_str) == Some("not_started");
    let mut trouble = if status.is_client_error() || not_started {
        Trouble::not_started(message)
    } else {
        Trouble::unknown(message)
    };
    if let Some(code) = body
        .pointer("/error/code")
        .and_then(serde_json::Value::as_i64)
    {
        trouble.code = code;
    }
    trouble
}
