//! The session with a server: made by a handshake, and made again when the server forgot it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::pending::Sent;
use bowline_wire::mcp::{Revision, method};
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderName, HeaderValue};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::info;

use super::carry::{TRIES_AFTER, Trouble};
use super::client::Lines;
use super::clock;
use super::labels;
use super::refusal;
use super::talk::{Form, Talk, message};
use super::waiting::Waiting;
use crate::desk::Change;
use crate::link::{LinkError, Request, ServerInfo};
use crate::peer::frame;
use crate::stdio::handshake::{self, Failure};

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");

const US: HeaderValue = HeaderValue::from_static(concat!("bowline/", env!("CARGO_PKG_VERSION")));
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

/// A session as requests need it.
#[derive(Debug)]
pub(super) struct Held {
    /// The server's name for it, where it keeps sessions.
    pub(super) id: Option<HeaderValue>,
    /// The headers of what posts a message, the id included. Made once, not for every request.
    pub(super) post: Lines,
    /// The headers of what opens a stream.
    pub(super) get: Lines,
    /// The headers of what ends the session.
    pub(super) delete: Lines,
    /// Whether it is known what came of opening the stream outside requests.
    listened: watch::Sender<bool>,
    /// Until when that is waited for.
    listened_until: Instant,
}

/// How long a call may wait for the stream outside requests to be opened.
const LISTEN_WAIT: Duration = Duration::from_secs(1);

impl Held {
    /// Before the handshake.
    pub(super) fn none() -> Self {
        let mut common = Lines::default();
        common.push(&USER_AGENT, &US);
        Self::with(None, common)
    }

    /// What every request says to a server that keeps no sessions.
    pub(super) fn stateless() -> Self {
        Self::new(None, Revision::LATEST)
    }

    /// The stream outside requests is open, or will not be.
    pub(super) fn set_listened(&self) {
        self.listened.send_replace(true);
    }

    /// Whether that is known.
    pub(super) fn is_listened(&self) -> bool {
        *self.listened.borrow()
    }

    /// Waits until what the server asks outside requests is heard. Some ask there during a call,
    /// and what nobody hears is lost; some never say whether they offer such a stream.
    pub(super) async fn listened(&self) {
        let mut listened = self.listened.subscribe();
        let heard = listened.wait_for(|listened| *listened);
        let _ = timeout_at(self.listened_until, heard).await;
    }

    pub(super) fn new(id: Option<HeaderValue>, revision: Revision) -> Self {
        let mut common = Self::none().delete;
        // Not known to the first revision, and no harm there.
        let revision = HeaderValue::from_static(revision.as_str());
        common.push(&PROTOCOL_VERSION, &revision);
        if let Some(id) = &id {
            common.push(&SESSION_ID, id);
        }
        Self::with(id, common)
    }

    fn with(mut id: Option<HeaderValue>, common: Lines) -> Self {
        if let Some(id) = &mut id {
            id.set_sensitive(true);
        }
        let (mut post, mut get) = (common.clone(), common.clone());
        post.push(&ACCEPT, &BOTH);
        post.push(&CONTENT_TYPE, &JSON);
        get.push(&ACCEPT, &STREAM);
        Self {
            id,
            post,
            get,
            delete: common,
            listened: watch::Sender::new(false),
            listened_until: clock::after(LISTEN_WAIT),
        }
    }
}

impl Talk {
    /// Shakes hands; what fails by chance is tried again within the deadline.
    pub(super) async fn shake(self: &Arc<Self>, deadline: Instant) -> Result<ServerInfo, Failure> {
        let shaken = timeout_at(deadline, self.try_to_shake(deadline)).await;
        shaken.unwrap_or(Err(Failure::Link(LinkError::Timeout {
            sent: Sent::Perhaps,
        })))
    }

    async fn try_to_shake(self: &Arc<Self>, deadline: Instant) -> Result<ServerInfo, Failure> {
        let mut delays = TRIES_AFTER.iter();
        let (held, info) = loop {
            match self.initialize(deadline).await {
                Err(Failure::Link(error)) if refusal::is_transient(&error) => match delays.next() {
                    Some(delay) => sleep(*delay).await,
                    None => return Err(Failure::Link(error)),
                },
                other => break other?,
            }
        };
        self.initialized(&held, deadline)
            .await
            .map_err(Failure::Link)?;
        self.session.send_replace(Arc::new(held));
        Ok(info)
    }

    async fn initialize(
        self: &Arc<Self>,
        deadline: Instant,
    ) -> Result<(Held, ServerInfo), Failure> {
        let request = handshake::request(&self.client, self.abilities(), deadline);
        let registered = self.register(&request, usize::MAX);
        let (id, mut answer) = registered.map_err(Failure::Link)?;
        let mut waiting = Waiting::handshake(self, id);
        let body = message(frame::request(id, &request, frame::Place::Header));
        let none = Held::none();
        // A server that speaks both ways may want to see from outside what a request is.
        let verb = labels::labelled(&none, body, request).map_err(Failure::Link)?;
        let mut session = None;
        let carrying = async {
            let response = self.send(&none, Some(id), &verb, deadline).await?;
            let named = response.headers.get(&SESSION_ID);
            session = named.and_then(|id| HeaderValue::from_bytes(id).ok());
            if refusal::is_decisive(response.status) {
                return self.refuse(response, id).await;
            }
            match self.digest(response, &none, id, deadline).await {
                Ok(()) => Ok(()),
                Err(Trouble::Link(error)) => Err(error),
                // There is no session yet that could be forgotten.
                Err(Trouble::Expired) => Err(LinkError::BadAnswer("no session".into())),
            }
        };
        let outcome = self
            .exchange(id, &mut answer, deadline, pin!(carrying))
            .await;
        let answer = waiting.settle(outcome, &mut answer);
        let answer = answer.map_err(Failure::Link)?;
        let info = handshake::read(&answer)?;
        Ok((Held::new(session, info.revision), info))
    }

    /// Tells the server that it may begin.
    async fn initialized(&self, held: &Held, deadline: Instant) -> Result<(), LinkError> {
        let note = message(frame::notification(method::INITIALIZED, None));
        let said = Request::own(method::INITIALIZED, None, deadline);
        let verb = labels::labelled(held, note, said)?;
        let mut delays = TRIES_AFTER.iter();
        loop {
            let error = match self.send(held, None, &verb, deadline).await {
                Ok(response) if response.status.is_success() => {
                    self.read_on(response.body);
                    return Ok(());
                }
                Ok(response) => refusal::refusal(response).await,
                Err(error) => error,
            };
            match delays.next() {
                Some(delay) if refusal::is_transient(&error) => sleep(*delay).await,
                _ => return Err(error),
            }
        }
    }

    /// Has every list asked for again.
    pub(super) fn offers_anew(&self) {
        for change in [Change::Tools, Change::Prompts, Change::Resources] {
            self.events.changed(change);
        }
        self.due.notify_one();
    }

    /// Makes a new session in place of one that the server forgot, once for all who found out.
    pub(super) async fn renew(
        self: &Arc<Self>,
        stale: &Arc<Held>,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let Ok(_alone) = self.renewing.acquire().await else {
            return Err(crate::desk::GONE);
        };
        if !Arc::ptr_eq(stale, &self.session.borrow()) {
            return Ok(());
        }
        if let Some(exit) = self.exit() {
            return Err(LinkError::Closed(exit));
        }
        debug_assert_eq!(self.form, Form::Streamable);
        info!(server = %self.spec.server, "the server forgot the session; making a new one");
        match self.shake(deadline).await {
            Ok(_) => {
                // It knows nothing of what it was told, and may offer other things than then.
                self.events.changed(Change::Renewed);
                self.offers_anew();
                Ok(())
            }
            Err(failure) => {
                // Without a session there is no link; whoever waits for one finds that out too.
                self.lose();
                Err(match failure {
                    Failure::Link(error @ LinkError::Unauthorized { .. }) => error,
                    // The request itself was refused with the session that it named.
                    failure => LinkError::Unreachable(failure.reason()),
                })
            }
        }
    }
}
