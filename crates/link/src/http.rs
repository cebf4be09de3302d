//! A server that is reached over HTTP.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::caller::CallerEnd;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::link::{
    Answer, BoxFuture, Exit, Link, LinkError, LinkEvent, Request, ServerInfo, Spawner,
};
use crate::peer::frame;
use crate::stdio::handshake::Failure;
use crate::stdio::{ClientInfo, ConnectError};

mod carry;
pub mod client;
pub(crate) mod clock;
pub mod credentials;
pub mod endpoint;
pub mod hyper_client;
mod listen;
mod refusal;
pub(crate) mod road;
mod session;
mod stream;
mod talk;
mod tasks;

use client::HttpClient;
use credentials::Credentials;
use endpoint::Endpoint;
pub use road::RedirectError;
use stream::Stream;
use talk::{Form, Talk, message};

/// How to reach a server.
#[derive(Clone, Debug)]
pub struct HttpSpec {
    /// The server's name, for messages.
    pub server: Arc<str>,
    /// Where it is.
    pub url: Endpoint,
    /// How it speaks.
    pub transport: Transport,
    /// What proves who we are, read for every request.
    pub credentials: Arc<dyn Credentials>,
    /// The one session that this link belongs to; absent where it is shared.
    pub owner: Option<Arc<dyn CallerEnd>>,
    /// The bounds.
    pub limits: HttpLimits,
}

/// Which HTTP transport is spoken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Streamable HTTP, and where the server does not know it, the one before.
    #[default]
    Auto,
    /// Streamable HTTP.
    Streamable,
    /// HTTP+SSE of 2024-11-05.
    Sse,
}

/// The bounds of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpLimits {
    /// The longest body, line or event.
    pub body_bytes_max: usize,
    /// Requests that may wait for an answer at once.
    pub in_flight_max: usize,
    /// Messages without an answer that may wait to be sent.
    pub outbox_max: usize,
    /// Events that may wait to be read.
    pub events_max: usize,
    /// How long a server may take to accept a message that wants no answer.
    pub post: Duration,
    /// How long it may take to end the session.
    pub stop: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            body_bytes_max: 8 * 1024 * 1024,
            in_flight_max: 1024,
            outbox_max: 256,
            events_max: 64,
            post: Duration::from_secs(10),
            stop: Duration::from_secs(3),
        }
    }
}

/// Reaches a server and shakes hands with it. The link lives in tasks of `spawner`; the receiver
/// hears what the server says outside calls.
///
/// # Errors
/// Every failure names the server, and leaves nothing behind.
pub async fn connect(
    spec: &HttpSpec,
    client: Arc<dyn HttpClient>,
    info: ClientInfo,
    deadline: Instant,
    spawner: &dyn Spawner,
) -> Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), ConnectError> {
    let dialing = Dialing {
        spec,
        client,
        info,
        deadline,
        spawner,
    };
    let streamable = match spec.transport {
        Transport::Sse => return dialing.sse().await.map_err(|error| dialing.explain(error)),
        Transport::Auto | Transport::Streamable => dialing.streamable().await,
    };
    match streamable {
        // It knows of no such thing here: it may be of the time before.
        Err(Failure::Link(LinkError::Http { status, preview }))
            if spec.transport == Transport::Auto && matches!(status, 400 | 404 | 405) =>
        {
            let first = Failure::Link(LinkError::Http { status, preview });
            dialing.sse().await.map_err(|second| match second {
                // It does not know that either; what it said first tells more.
                Failure::Link(LinkError::Http { .. } | LinkError::ContentType { .. }) => {
                    dialing.explain(first)
                }
                second => dialing.explain(second),
            })
        }
        other => other.map_err(|error| dialing.explain(error)),
    }
}

type Connected = Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), Failure>;

/// A link that does not exist yet.
struct Dialing<'a> {
    spec: &'a HttpSpec,
    client: Arc<dyn HttpClient>,
    info: ClientInfo,
    deadline: Instant,
    spawner: &'a dyn Spawner,
}

impl Dialing<'_> {
    async fn streamable(&self) -> Connected {
        self.shake((Form::Streamable, self.spec.url.clone()), None)
            .await
    }

    async fn sse(&self) -> Connected {
        let found = listen::find_endpoint(self.spec, &self.client, self.deadline).await;
        let (endpoint, stream) = found.map_err(Failure::Link)?;
        self.shake((Form::Sse, endpoint), Some(stream)).await
    }

    async fn shake(&self, how: (Form, Endpoint), stream: Option<Stream>) -> Connected {
        let (events, heard) = mpsc::channel(self.spec.limits.events_max.max(1));
        let (client, info) = (Arc::clone(&self.client), self.info.clone());
        let (talk, ends) = Talk::new(self.spec, client, info, how, events);
        // Dropped before the end, it stops what was started.
        let mut starting = Starting(Some(Arc::clone(&talk)));
        let spawn = |name, task| self.spawner.spawn(name, task);
        let is_streamable = stream.is_none();
        if let Some(stream) = stream {
            let task = listen::listen_only(Arc::clone(&talk), stream);
            spawn("link.stream", Box::pin(task));
        }
        let info = talk.shake(self.deadline).await?;
        starting.0 = None;
        if is_streamable {
            spawn("link.stream", Box::pin(listen::listen(Arc::clone(&talk))));
        }
        let post = tasks::post(Arc::clone(&talk), ends.outbox);
        spawn("link.post", Box::pin(post));
        let rest = tasks::rest(Arc::clone(&talk), ends.rests);
        spawn("link.rest", Box::pin(rest));
        spawn("link.keeper", Box::pin(tasks::keep(Arc::clone(&talk))));
        Ok((Arc::new(HttpLink { talk, info }), heard))
    }

    fn explain(&self, failure: Failure) -> ConnectError {
        let server = Arc::clone(&self.spec.server);
        match failure {
            Failure::Link(
                error @ (LinkError::Unreachable(_)
                | LinkError::NotSent(_)
                | LinkError::Credentials(_)
                | LinkError::Unauthorized { .. }
                | LinkError::Throttled { .. }
                | LinkError::Http { .. }
                | LinkError::ContentType { .. }
                | LinkError::BadHead(_)
                | LinkError::Redirect(_)
                | LinkError::Elsewhere(_)),
            ) => ConnectError::Refused {
                server,
                source: error,
            },
            other => other.explain(server, Exit::Closed, Vec::new()),
        }
    }
}

/// A conversation whose handshake is not over.
#[derive(Debug)]
struct Starting(Option<Arc<Talk>>);

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(talk) = &self.0 {
            talk.finish(Exit::Stopping);
        }
    }
}

/// A link over HTTP.
#[derive(Debug)]
struct HttpLink {
    talk: Arc<Talk>,
    info: ServerInfo,
}

impl Link for HttpLink {
    fn request(&self, request: Request) -> BoxFuture<'_, Result<Answer, LinkError>> {
        Box::pin(self.talk.request(request))
    }

    fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError> {
        let note = message(frame::notification(method, params));
        self.talk.post_later(note)
    }

    fn is_open(&self) -> bool {
        self.talk.exit().is_none()
    }

    fn closed(&self) -> BoxFuture<'_, Exit> {
        Box::pin(self.talk.ended())
    }

    fn close(&self) -> BoxFuture<'_, Exit> {
        self.talk.end();
        Box::pin(self.talk.ended())
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn in_flight(&self) -> usize {
        self.talk.in_flight()
    }

    fn server(&self) -> &ServerInfo {
        &self.info
    }
}

impl Drop for HttpLink {
    fn drop(&mut self) {
        self.talk.end();
    }
}
