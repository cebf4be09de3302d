//! A server that is reached over HTTP.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::caller::CallerEnd;
use bowline_core::era::{Era, Speaks};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::link::{
    Answer, BoxFuture, Exit, Link, LinkError, LinkEvent, Request, ServerInfo, Spawner,
};
use crate::message_limits::LargeLimits;
use crate::modern::discover::Found;
use crate::modern::listen::{Filter, Listener, listen as listen_to};
use crate::modern::{params, rounds};
use crate::peer::frame;
use crate::stdio::handshake::Failure;
use crate::stdio::{ClientInfo, ConnectError};

mod carry;
mod changes;
pub mod client;
pub(crate) mod clock;
pub mod credentials;
mod discover;
mod elder;
pub mod endpoint;
pub mod hyper_client;
mod labels;
mod listen;
mod mirrors;
mod refusal;
pub(crate) mod road;
mod session;
mod stream;
mod talk;
mod tasks;
mod waiting;

use client::HttpClient;
use credentials::Credentials;
use elder::{Elder, Making};
use endpoint::Endpoint;
pub use road::RedirectError;
use stream::Stream;
use talk::{Ends, Form, Talk, message};

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
    /// What is known beforehand of whether it keeps sessions.
    pub speaks: Speaks,
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
    /// The longest bodies and events that are lists or results; one of a link is read at a time.
    pub large: LargeLimits,
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
            large: LargeLimits::default(),
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
    let connected = match (spec.speaks, spec.transport) {
        (Speaks::Only(Era::Legacy), _) | (Speaks::Auto, Transport::Sse) => dialing.legacy().await,
        (Speaks::Only(Era::Modern), _) => match dialing.modern().await {
            Ok(Some(connected)) => Ok(connected),
            Ok(None) => Err(Failure::Bad("it does not speak without a handshake")),
            Err(failure) => Err(failure),
        },
        (Speaks::Auto, Transport::Auto | Transport::Streamable) => match dialing.modern().await {
            Ok(Some(connected)) => Ok(connected),
            Ok(None) => dialing.legacy().await,
            Err(failure) => Err(failure),
        },
    };
    connected.map_err(|failure| dialing.explain(failure))
}

type Connection = (Arc<dyn Link>, mpsc::Receiver<LinkEvent>);
type Connected = Result<Connection, Failure>;

/// A link that does not exist yet.
struct Dialing<'a> {
    spec: &'a HttpSpec,
    client: Arc<dyn HttpClient>,
    info: ClientInfo,
    deadline: Instant,
    spawner: &'a dyn Spawner,
}

impl Dialing<'_> {
    /// Meets a server that keeps no sessions; nothing where it is one that does.
    async fn modern(&self) -> Result<Option<Connection>, Failure> {
        let (events, heard) = mpsc::channel(self.spec.limits.events_max.max(1));
        let (talk, ends) = self.talk((Form::Stateless, self.spec.url.clone()), events.clone());
        let mut starting = Starting(Some(Arc::clone(&talk)));
        let info = match talk.discover(self.deadline).await.map_err(Failure::Link)? {
            Found::Modern(info) => info,
            Found::Refused { code, message } => return Err(Failure::Refused { code, message }),
            Found::Legacy => {
                let leaving = Arc::clone(&talk).leave();
                self.spawner.spawn("link.leave", Box::pin(leaving));
                return Ok(None);
            }
        };
        starting.0 = None;
        let listener = Arc::new(Listener::default());
        let declared = Filter::declared(&info.initialize);
        let (ear, client) = (Arc::clone(&talk), self.info.clone());
        let listening = listen_to(ear, Arc::clone(&listener), client, declared);
        self.spawner.spawn("link.listener", Box::pin(listening));
        let elder = self.elder(&talk, events);
        let link = self.begin(talk, ends, info, (Some(Arc::clone(&listener)), elder));
        listener.begun(self.deadline).await;
        Ok(Some((link, heard)))
    }

    /// Shakes hands with a server.
    async fn legacy(&self) -> Connected {
        if self.spec.transport == Transport::Sse {
            return self.sse().await;
        }
        match self.streamable().await {
            // It knows of no such thing here: it may be of the time before.
            Err(Failure::Link(LinkError::Http { status, preview }))
                if self.spec.transport == Transport::Auto && matches!(status, 400 | 404 | 405) =>
            {
                self.sse().await.map_err(|second| match second {
                    // It does not know that either; what it said first tells more.
                    Failure::Link(LinkError::Http { .. } | LinkError::ContentType { .. }) => {
                        Failure::Link(LinkError::Http { status, preview })
                    }
                    second => second,
                })
            }
            other => other,
        }
    }

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
        let (talk, ends) = self.talk(how, events);
        // Dropped before the end, it stops what was started.
        let mut starting = Starting(Some(Arc::clone(&talk)));
        if let Some(stream) = stream {
            let task = listen::listen_only(Arc::clone(&talk), stream);
            self.spawner.spawn("link.stream", Box::pin(task));
        }
        let info = talk.shake(self.deadline).await?;
        starting.0 = None;
        if talk.form == Form::Streamable {
            let listening = listen::listen(Arc::clone(&talk));
            self.spawner.spawn("link.stream", Box::pin(listening));
        }
        Ok((self.begin(talk, ends, info, (None, None)), heard))
    }

    fn talk(&self, how: (Form, Endpoint), events: mpsc::Sender<LinkEvent>) -> (Arc<Talk>, Ends) {
        let (client, info) = (Arc::clone(&self.client), self.info.clone());
        Talk::new(self.spec, client, info, how, events)
    }

    /// Has a session made with a server that keeps none, should one be needed.
    fn elder(&self, talk: &Arc<Talk>, events: mpsc::Sender<LinkEvent>) -> Option<Arc<Elder>> {
        if self.spec.speaks != Speaks::Auto {
            return None;
        }
        let elder = Arc::new(Elder::default());
        let making = Making {
            spec: self.spec.clone(),
            client: Arc::clone(&self.client),
            info: self.info.clone(),
            events,
        };
        let keeping = elder::keep(Arc::clone(&elder), Arc::clone(talk), making);
        self.spawner.spawn("link.elder", Box::pin(keeping));
        Some(elder)
    }

    /// Starts what goes on beside the requests of a conversation.
    fn begin(
        &self,
        talk: Arc<Talk>,
        ends: Ends,
        info: ServerInfo,
        (listener, elder): (Option<Arc<Listener>>, Option<Arc<Elder>>),
    ) -> Arc<dyn Link> {
        let spawn = |name, task| self.spawner.spawn(name, task);
        let post = tasks::post(Arc::clone(&talk), ends.outbox);
        spawn("link.post", Box::pin(post));
        let rest = tasks::rest(Arc::clone(&talk), ends.rests);
        spawn("link.rest", Box::pin(rest));
        spawn("link.keeper", Box::pin(tasks::keep(Arc::clone(&talk))));
        Arc::new(HttpLink {
            talk,
            info,
            listener,
            elder,
        })
    }

    fn explain(&self, failure: Failure) -> ConnectError {
        let server = Arc::clone(&self.spec.server);
        match failure {
            Failure::Link(
                error @ (LinkError::Unreachable(_)
                | LinkError::Cut(_)
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
    /// Present where the server keeps no sessions.
    listener: Option<Arc<Listener>>,
    /// Present where it may keep them nevertheless.
    elder: Option<Arc<Elder>>,
}

impl HttpLink {
    /// Carries a request to a server of the modern era.
    async fn drive(&self, request: Request) -> Result<Answer, LinkError> {
        let talk = &self.talk;
        let once = |round| talk.stand_alone(round);
        match request.era {
            Era::Modern => once(request).await,
            // Boxed, so that a request that needs no rounds carries no room for them.
            Era::Legacy => {
                let (server, client) = (&talk.spec.server, &talk.client);
                Box::pin(rounds::drive(server, client, request, once)).await
            }
        }
    }

    /// The same, over the session where that can be had.
    async fn drive_over(&self, elder: &Elder, mut request: Request) -> Result<Answer, LinkError> {
        let Some(session) = elder.session(request.deadline).await else {
            return self.drive(request).await;
        };
        if request.era == Era::Modern {
            params::to_legacy(&mut request);
        }
        session.request(request).await
    }
}

impl Link for HttpLink {
    fn request(&self, mut request: Request) -> BoxFuture<'_, Result<Answer, LinkError>> {
        let talk = &self.talk;
        match (request.era, talk.form.era()) {
            (Era::Legacy, Era::Legacy) => Box::pin(talk.request(request)),
            (Era::Modern, Era::Legacy) => {
                params::to_legacy(&mut request);
                Box::pin(talk.request(request))
            }
            (_, Era::Modern) => match &self.elder {
                Some(elder) if elder.is_for(&request) => Box::pin(self.drive_over(elder, request)),
                Some(_) | None => Box::pin(self.drive(request)),
            },
        }
    }

    fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError> {
        let note = message(frame::notification(method, params));
        match self.elder.as_ref().and_then(|elder| elder.open()) {
            Some(elder) => elder.post_later(note),
            None => self.talk.post_later(note),
        }
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
        let elder = self.elder.as_ref().and_then(|elder| elder.open());
        self.talk.in_flight() + elder.map_or(0, |elder| elder.in_flight())
    }

    fn server(&self) -> &ServerInfo {
        &self.info
    }

    fn listen_to(
        &self,
        uris: Vec<Arc<str>>,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<Arc<str>>, LinkError>> {
        Box::pin(async move {
            match &self.listener {
                Some(listener) => listener.listen_to(uris, deadline).await,
                None => Ok(Vec::new()),
            }
        })
    }
}

impl Drop for HttpLink {
    fn drop(&mut self) {
        self.talk.end();
    }
}
