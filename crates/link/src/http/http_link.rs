//! Connects to a server over HTTP: probes the era, performs the handshake, runs the link.

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::call::ServerResponse;
use bowline_core::era::{Era, EraSetting};
use bowline_runtime::TaskSpawner;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::conversation::{ConversationQueues, HttpConversation, HttpMode, strip_newline};
use super::endpoint::HttpEndpoint;
use super::event_stream::EventStream;
use super::http_client::HttpClient;
use super::legacy_session::{LegacySession, LegacySessionConfig};
use super::{HttpSpec, HttpTransport, background, legacy_session, sse_listener};
use crate::link::{Link, LinkError, LinkEvent, LinkExit, LinkRequest, ServerInfo};
use crate::modern::change_listen::{ChangeListener, ListenFilter, run_listener as listen_to};
use crate::modern::era_discovery::DiscoverOutcome;
use crate::modern::{era_params, input_rounds};
use crate::rpc;
use crate::stdio::mcp_handshake::HandshakeError;
use crate::stdio::{ClientInfo, LinkConnectError};

/// Connects to a server and performs the handshake. The link runs in tasks of `spawner`; the
/// receiver gets events outside calls.
///
/// # Errors
/// Every error names the server; nothing is left running.
pub async fn connect(
    spec: &HttpSpec,
    client: Arc<dyn HttpClient>,
    info: ClientInfo,
    deadline: Instant,
    spawner: &dyn TaskSpawner,
) -> Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), LinkConnectError> {
    let dialing = HttpDialer {
        spec,
        client,
        info,
        deadline,
        spawner,
    };
    let connected = match (spec.era_setting, spec.transport) {
        (EraSetting::Only(Era::Legacy), _) | (EraSetting::Auto, HttpTransport::Sse) => {
            dialing.connect_legacy().await
        }
        (EraSetting::Only(Era::Modern), _) => match dialing.connect_modern().await {
            Ok(Some(connected)) => Ok(connected),
            Ok(None) => Err(HandshakeError::Malformed(
                "it does not speak without a handshake",
            )),
            Err(failure) => Err(failure),
        },
        (EraSetting::Auto, HttpTransport::Auto | HttpTransport::Streamable) => {
            match dialing.connect_modern().await {
                Ok(Some(connected)) => Ok(connected),
                Ok(None) => dialing.connect_legacy().await,
                Err(failure) => Err(failure),
            }
        }
    };
    connected.map_err(|failure| dialing.to_connect_error(failure))
}

type LinkAndEvents = (Arc<dyn Link>, mpsc::Receiver<LinkEvent>);
type DialResult = Result<LinkAndEvents, HandshakeError>;

/// Builder of an HTTP link.
struct HttpDialer<'a> {
    spec: &'a HttpSpec,
    client: Arc<dyn HttpClient>,
    info: ClientInfo,
    deadline: Instant,
    spawner: &'a dyn TaskSpawner,
}

impl HttpDialer<'_> {
    /// Connects to a modern server; `None` for a legacy server.
    async fn connect_modern(&self) -> Result<Option<LinkAndEvents>, HandshakeError> {
        let (events, event_receiver) = mpsc::channel(self.spec.limits.events_max.max(1));
        let (conversation, queues) =
            self.new_conversation(HttpMode::Stateless, self.spec.url.clone(), events.clone());
        let mut starting = ConversationGuard(Some(Arc::clone(&conversation)));
        let info = match conversation
            .discover_era(self.deadline)
            .await
            .map_err(HandshakeError::Link)?
        {
            DiscoverOutcome::Modern(info) => info,
            DiscoverOutcome::Refused { code, message } => {
                return Err(HandshakeError::Refused { code, message });
            }
            DiscoverOutcome::Legacy => {
                let leaving = Arc::clone(&conversation).end_stray_session();
                self.spawner.spawn("link.session_end", Box::pin(leaving));
                return Ok(None);
            }
        };
        starting.0 = None;
        let listener = Arc::new(ChangeListener::default());
        let declared = ListenFilter::from_capabilities(&info.initialize);
        let (transport, client) = (Arc::clone(&conversation), self.info.clone());
        let listening = listen_to(transport, Arc::clone(&listener), client, declared);
        self.spawner.spawn("link.listener", Box::pin(listening));
        let legacy_session = self.start_legacy_session(&conversation, events);
        let link = self.start_link(
            conversation,
            queues,
            info,
            Some(Arc::clone(&listener)),
            legacy_session,
        );
        listener.wait_started(self.deadline).await;
        Ok(Some((link, event_receiver)))
    }

    /// Connects to a legacy server.
    async fn connect_legacy(&self) -> DialResult {
        if self.spec.transport == HttpTransport::Sse {
            return self.connect_sse().await;
        }
        match self.connect_streamable().await {
            // The server does not know Streamable HTTP: try HTTP+SSE.
            Err(HandshakeError::Link(LinkError::Http { status, preview }))
                if self.spec.transport == HttpTransport::Auto
                    && matches!(status, 400 | 404 | 405) =>
            {
                self.connect_sse().await.map_err(|second| match second {
                    // HTTP+SSE is unknown as well; the first error tells more.
                    HandshakeError::Link(
                        LinkError::Http { .. } | LinkError::ContentType { .. },
                    ) => HandshakeError::Link(LinkError::Http { status, preview }),
                    second => second,
                })
            }
            other => other,
        }
    }

    async fn connect_streamable(&self) -> DialResult {
        self.connect_session(HttpMode::Streamable, self.spec.url.clone(), None)
            .await
    }

    async fn connect_sse(&self) -> DialResult {
        let found = sse_listener::find_endpoint(self.spec, &self.client, self.deadline).await;
        let (endpoint, stream) = found.map_err(HandshakeError::Link)?;
        self.connect_session(HttpMode::Sse, endpoint, Some(stream))
            .await
    }

    async fn connect_session(
        &self,
        mode: HttpMode,
        endpoint: HttpEndpoint,
        stream: Option<EventStream>,
    ) -> DialResult {
        let (events, event_receiver) = mpsc::channel(self.spec.limits.events_max.max(1));
        let (conversation, queues) = self.new_conversation(mode, endpoint, events);
        // Dropping the guard early stops the conversation.
        let mut starting = ConversationGuard(Some(Arc::clone(&conversation)));
        if let Some(stream) = stream {
            let task = sse_listener::run_sse_transport(Arc::clone(&conversation), stream);
            self.spawner.spawn("link.stream", Box::pin(task));
        }
        let info = conversation.initialize_session(self.deadline).await?;
        starting.0 = None;
        if conversation.mode == HttpMode::Streamable {
            let listening = sse_listener::run_sse_listener(Arc::clone(&conversation));
            self.spawner.spawn("link.stream", Box::pin(listening));
        }
        Ok((
            self.start_link(conversation, queues, info, None, None),
            event_receiver,
        ))
    }

    fn new_conversation(
        &self,
        mode: HttpMode,
        endpoint: HttpEndpoint,
        events: mpsc::Sender<LinkEvent>,
    ) -> (Arc<HttpConversation>, ConversationQueues) {
        let (client, info) = (Arc::clone(&self.client), self.info.clone());
        HttpConversation::new(self.spec, client, info, mode, endpoint, events)
    }

    /// Prepares a legacy session with a modern server, opened on demand.
    fn start_legacy_session(
        &self,
        conversation: &Arc<HttpConversation>,
        events: mpsc::Sender<LinkEvent>,
    ) -> Option<Arc<LegacySession>> {
        if self.spec.era_setting != EraSetting::Auto {
            return None;
        }
        let legacy_session = Arc::new(LegacySession::default());
        let config = LegacySessionConfig {
            spec: self.spec.clone(),
            client: Arc::clone(&self.client),
            info: self.info.clone(),
            events,
        };
        let session_task = legacy_session::run_legacy_session(
            Arc::clone(&legacy_session),
            Arc::clone(conversation),
            config,
        );
        self.spawner
            .spawn("link.legacy_session", Box::pin(session_task));
        Some(legacy_session)
    }

    /// Starts the background tasks of a conversation.
    fn start_link(
        &self,
        conversation: Arc<HttpConversation>,
        ends: ConversationQueues,
        info: ServerInfo,
        listener: Option<Arc<ChangeListener>>,
        legacy_session: Option<Arc<LegacySession>>,
    ) -> Arc<dyn Link> {
        let spawn = |name, task| self.spawner.spawn(name, task);
        let post = background::run_outbox(Arc::clone(&conversation), ends.outbox);
        spawn("link.post", Box::pin(post));
        let rest = background::run_background(Arc::clone(&conversation), ends.trailing_bodies);
        spawn("link.maintenance", Box::pin(rest));
        spawn(
            "link.session_end",
            Box::pin(background::end_session_on_stop(Arc::clone(&conversation))),
        );
        Arc::new(HttpLink {
            conversation,
            info,
            listener,
            legacy_session,
        })
    }

    fn to_connect_error(&self, failure: HandshakeError) -> LinkConnectError {
        let server = Arc::clone(&self.spec.server);
        match failure {
            HandshakeError::Link(
                error @ (LinkError::Unreachable(_)
                | LinkError::ConnectionLost(_)
                | LinkError::NotSent(_)
                | LinkError::Credentials(_)
                | LinkError::Unauthorized { .. }
                | LinkError::Throttled { .. }
                | LinkError::Http { .. }
                | LinkError::ContentType { .. }
                | LinkError::BadHead(_)
                | LinkError::Redirect(_)
                | LinkError::RemoteFailure(_)),
            ) => LinkConnectError::Refused {
                server,
                source: error,
            },
            other => other.into_connect_error(server, LinkExit::Closed, Vec::new()),
        }
    }
}

/// Guard of a conversation during its handshake.
#[derive(Debug)]
struct ConversationGuard(Option<Arc<HttpConversation>>);

impl Drop for ConversationGuard {
    fn drop(&mut self) {
        if let Some(conversation) = &self.0 {
            conversation.finish(LinkExit::Stopping);
        }
    }
}

/// A link over HTTP.
#[derive(Debug)]
struct HttpLink {
    conversation: Arc<HttpConversation>,
    info: ServerInfo,
    /// Present for a modern server.
    listener: Option<Arc<ChangeListener>>,
    /// Present if a modern server may support legacy sessions as well.
    legacy_session: Option<Arc<LegacySession>>,
}

impl HttpLink {
    /// Sends a request to a modern server.
    async fn request_modern(&self, request: LinkRequest) -> Result<ServerResponse, LinkError> {
        let conversation = &self.conversation;
        let once = |round| conversation.request_stateless(round);
        match request.message.era {
            Era::Modern => once(request).await,
            // Boxed: requests without rounds do not reserve memory for rounds.
            Era::Legacy => {
                let (server, client) = (&conversation.spec.server, &conversation.client);
                Box::pin(input_rounds::request_with_rounds(
                    server, client, request, once,
                ))
                .await
            }
        }
    }

    /// Sends a request over the legacy session if available.
    async fn request_over_session(
        &self,
        legacy_session: &LegacySession,
        mut request: LinkRequest,
    ) -> Result<ServerResponse, LinkError> {
        let Some(session) = legacy_session.get_or_open(request.deadline).await else {
            return self.request_modern(request).await;
        };
        if request.message.era == Era::Modern {
            era_params::to_legacy(&mut request);
        }
        session.request(request).await
    }
}

impl Link for HttpLink {
    fn request(
        &self,
        mut request: LinkRequest,
    ) -> BoxFuture<'_, Result<ServerResponse, LinkError>> {
        let conversation = &self.conversation;
        match (request.message.era, conversation.mode.era()) {
            (Era::Legacy, Era::Legacy) => Box::pin(conversation.request(request)),
            (Era::Modern, Era::Legacy) => {
                era_params::to_legacy(&mut request);
                Box::pin(conversation.request(request))
            }
            (_, Era::Modern) => match &self.legacy_session {
                Some(legacy_session) if legacy_session.is_preferred_for(&request) => {
                    Box::pin(self.request_over_session(legacy_session, request))
                }
                Some(_) | None => Box::pin(self.request_modern(request)),
            },
        }
    }

    fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError> {
        let note = strip_newline(rpc::notification_frame(method, params));
        match self
            .legacy_session
            .as_ref()
            .and_then(|legacy_session| legacy_session.current())
        {
            Some(legacy_session) => legacy_session.queue_post(note),
            None => self.conversation.queue_post(note),
        }
    }

    fn is_open(&self) -> bool {
        self.conversation.exit().is_none()
    }

    fn wait_closed(&self) -> BoxFuture<'_, LinkExit> {
        Box::pin(self.conversation.wait_ended())
    }

    fn close(&self) -> BoxFuture<'_, LinkExit> {
        self.conversation.begin_shutdown();
        Box::pin(self.conversation.wait_ended())
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn in_flight(&self) -> usize {
        let legacy_session = self
            .legacy_session
            .as_ref()
            .and_then(|legacy_session| legacy_session.current());
        self.conversation.in_flight()
            + legacy_session.map_or(0, |legacy_session| legacy_session.in_flight())
    }

    fn server_info(&self) -> &ServerInfo {
        &self.info
    }

    fn subscribe_resources(
        &self,
        uris: Vec<Arc<str>>,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<Arc<str>>, LinkError>> {
        Box::pin(async move {
            match &self.listener {
                Some(listener) => listener.set_resources(uris, deadline).await,
                None => Ok(Vec::new()),
            }
        })
    }
}

impl Drop for HttpLink {
    fn drop(&mut self) {
        self.conversation.begin_shutdown();
    }
}
