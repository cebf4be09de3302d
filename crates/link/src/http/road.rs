//! Brings one request to a server: credentials, redirects, deadlines.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_core::hex::hex;
use bowline_core::pending::Sent;
use bowline_core::trace::{self, Trace};
use bytes::Bytes;
use http::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use thiserror::Error;
use tokio::sync::Semaphore;

use super::client::{HttpClient, HttpError, Lines, Outgoing, Response, Upload, Wait};
use super::credentials::Credentials;
use super::endpoint::{Endpoint, EndpointError};
use super::labels;
use super::session::Held;
use crate::executor;
use crate::link::{KeyHeader, LinkError, NotSent};

/// Redirects that are followed for one request.
const REDIRECTS_MAX: usize = 10;

const TRACEPARENT: HeaderName = HeaderName::from_static(trace::TRACEPARENT);

const TRACESTATE: HeaderName = HeaderName::from_static(trace::TRACESTATE);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// What frames a message, says what it is or names the session is ours alone.
const OURS: [HeaderName; 11] = [
    ACCEPT,
    CONNECTION,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    HOST,
    LAST_EVENT_ID,
    TRANSFER_ENCODING,
    super::session::PROTOCOL_VERSION,
    super::session::SESSION_ID,
    labels::METHOD,
    labels::NAME,
];

/// What leads to one server.
#[derive(Debug)]
pub(super) struct Road {
    pub(super) client: Arc<dyn HttpClient>,
    credentials: Arc<dyn Credentials>,
    /// One permit: who holds it gets credentials anew, for all.
    refreshing: Semaphore,
    /// Set when other credentials took the place of some that the server refused.
    renewed: AtomicBool,
}

/// What proves who we are, as it was read for one request.
type Proof = Vec<(HeaderName, HeaderValue)>;

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parcel<'a> {
    pub(super) to: &'a Endpoint,
    pub(super) verb: &'a Verb,
    /// The session that it belongs to.
    pub(super) held: &'a Held,
    /// Where a broken stream is to go on.
    pub(super) last_event: Option<&'a HeaderValue>,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) enum Verb {
    /// Takes a message.
    Post(Bytes),
    /// Takes a message that stands in a trace.
    Traced(Bytes, Arc<Trace>),
    /// Takes a message that its server knows again by a key.
    Keyed(Bytes, Option<Arc<Trace>>, Box<KeyHeader>),
    /// Takes a message that stands alone, and says in its headers what it is.
    Labelled(Bytes, Box<Labels>),
    /// Opens a stream.
    Get,
    /// Ends the session.
    Delete,
}

/// The headers of a message that stands alone.
#[derive(Clone, Debug)]
pub(super) struct Labels {
    /// All that are ours.
    pub(super) lines: Lines,
    pub(super) trace: Option<Arc<Trace>>,
    pub(super) key: Option<Box<KeyHeader>>,
}

/// Puts what a client knows into the terms of a link.
#[must_use]
pub fn trouble(error: HttpError) -> LinkError {
    match error {
        HttpError::Unreachable(reason) => LinkError::Unreachable(reason),
        HttpError::Invalid(reason) => LinkError::Unreachable(reason.into()),
        HttpError::ConnectTimeout => LinkError::Timeout { sent: Sent::No },
        HttpError::FirstByteTimeout => LinkError::Timeout {
            sent: Sent::Perhaps,
        },
        HttpError::Head(reason) => LinkError::BadHead(reason),
        HttpError::Lost(reason) => LinkError::Cut(reason),
        HttpError::Disconnected(_) => LinkError::Cut(error.to_string().into()),
        HttpError::Overflow(_) => LinkError::Elsewhere(executor::overflow(&error.to_string())),
        HttpError::Elsewhere(failure) => LinkError::Elsewhere(failure),
        HttpError::Denied(denied) => LinkError::Elsewhere(executor::denied(&denied)),
        HttpError::TooLong { bytes_max } => LinkError::TooLong { bytes_max },
    }
}

/// Why a redirect is not followed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RedirectError {
    /// It leads to another origin, which must not see the request.
    #[error("it leads to another origin")]
    Origin,
    /// It leads on and on.
    #[error("more than {REDIRECTS_MAX} times")]
    TooMany,
    /// It leads nowhere.
    #[error("{0}")]
    Nowhere(#[from] EndpointError),
}

impl Road {
    pub(super) fn new(client: Arc<dyn HttpClient>, credentials: Arc<dyn Credentials>) -> Self {
        Self {
            client,
            credentials,
            refreshing: Semaphore::new(1),
            renewed: AtomicBool::new(false),
        }
    }

    /// Whether other credentials took the place of refused ones since this was last asked.
    pub(super) fn is_renewed(&self) -> bool {
        self.renewed.load(Ordering::Relaxed) && self.renewed.swap(false, Ordering::Relaxed)
    }

    /// Sends a request and waits for the head of its answer; redirects within the origin are
    /// followed, and all hops share the deadline. What a server refuses for its credentials did
    /// not run: it is sent once more where there are others by now.
    pub(super) async fn send(
        &self,
        parcel: Parcel<'_>,
        wait: Wait<'_>,
    ) -> Result<Response, LinkError> {
        let proof = self.credentials.headers()?;
        let first = request(parcel.to, parcel, &proof)?;
        let mut response = self.client.send(first, wait).await.map_err(trouble)?;
        if is_redirect(response.status) {
            response = Box::pin(self.follow(parcel, response, &proof, wait)).await?;
        }
        if !is_refusal(response.status) || proof.is_empty() {
            return Ok(response);
        }
        Box::pin(self.send_again(parcel, response, proof, wait)).await
    }

    async fn send_again(
        &self,
        parcel: Parcel<'_>,
        refusal: Response,
        refused: Proof,
        wait: Wait<'_>,
    ) -> Result<Response, LinkError> {
        let Some(proof) = self.other_than(&refused).await else {
            return Ok(refusal);
        };
        drop(refusal);
        self.renewed.store(true, Ordering::Relaxed);
        let again = request(parcel.to, parcel, &proof)?;
        let response = self.client.send(again, wait).await.map_err(trouble)?;
        if is_redirect(response.status) {
            return self.follow(parcel, response, &proof, wait).await;
        }
        Ok(response)
    }

    /// Gets credentials anew, once for all whose were refused; nothing where they stay the same.
    async fn other_than(&self, refused: &Proof) -> Option<Proof> {
        let _alone = self.refreshing.acquire().await.ok()?;
        let other = || self.credentials.headers().ok().filter(|now| now != refused);
        // They may have changed since they were read for this request.
        if let Some(other) = other() {
            return Some(other);
        }
        self.credentials.refresh().await;
        other()
    }

    async fn follow(
        &self,
        parcel: Parcel<'_>,
        mut response: Response,
        proof: &Proof,
        wait: Wait<'_>,
    ) -> Result<Response, LinkError> {
        let mut here = parcel.to.clone();
        let mut verb = parcel.verb.clone();
        for _ in 0..REDIRECTS_MAX {
            let Some(location) = response.headers.get(&LOCATION) else {
                return Ok(response);
            };
            let location = std::str::from_utf8(location).unwrap_or_default();
            let next = here.resolve(location);
            let next = next.map_err(|error| LinkError::Redirect(error.into()))?;
            if !next.is_same_origin(parcel.to) {
                return Err(LinkError::Redirect(RedirectError::Origin));
            }
            verb = verb.redirected(response.status);
            let hop = Parcel {
                verb: &verb,
                ..parcel
            };
            let request = request(&next, hop, proof)?;
            let sent = self.client.send(request, wait).await;
            // Whether a server did anything before it pointed elsewhere is not known.
            response = sent.map_err(after_a_hop)?;
            if !is_redirect(response.status) {
                return Ok(response);
            }
            here = next;
        }
        Err(LinkError::Redirect(RedirectError::TooMany))
    }
}

fn request<'a>(
    to: &'a Endpoint,
    parcel: Parcel<'a>,
    proof: &Proof,
) -> Result<Outgoing<'a>, LinkError> {
    if !proof.is_empty() && !to.is_private() {
        return Err(LinkError::NotSent(NotSent::Exposed));
    }
    let held = parcel.held;
    let (method, lines, body) = match parcel.verb {
        Verb::Post(body) | Verb::Traced(body, _) | Verb::Keyed(body, ..) => {
            (Method::POST, &held.post, &**body)
        }
        Verb::Labelled(body, labels) => (Method::POST, &labels.lines, &**body),
        Verb::Get => (Method::GET, &held.get, &[][..]),
        Verb::Delete => (Method::DELETE, &held.delete, &[][..]),
    };
    let mut request = Outgoing {
        method,
        to,
        lines: Cow::Borrowed(lines),
        headers: Vec::new(),
        body: Upload::Whole(body),
    };
    let (trace, key) = parcel.verb.notes();
    if let Some(trace) = trace {
        request.headers.extend(traced(trace));
    }
    if let Some(key) = key {
        request.headers.extend(keyed(key));
    }
    add(&mut request, proof);
    if let Some(id) = parcel.last_event {
        request.headers.push((LAST_EVENT_ID, id.clone()));
    }
    Ok(request)
}

fn is_ours(name: &HeaderName) -> bool {
    OURS.contains(name) || name.as_str().starts_with(labels::PARAM)
}

/// Adds what proves who we are. Of one name, the last is taken.
fn add(request: &mut Outgoing<'_>, proof: &Proof) {
    for (name, value) in proof {
        if is_ours(name) {
            continue;
        }
        if *name == USER_AGENT {
            request.lines = Cow::Owned(request.lines.without(name));
        }
        let mut value = value.clone();
        value.set_sensitive(true);
        request.headers.retain(|(known, _)| known != name);
        request.headers.push((name.clone(), value));
    }
}

/// Returns the header by which a server knows a call again. What is ours alone is not overwritten,
/// and a key that no header can hold is sent in hexadecimal.
fn keyed(key: &KeyHeader) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_bytes(key.name.as_bytes()).ok()?;
    let value = HeaderValue::from_str(&key.value)
        .or_else(|_| HeaderValue::from_str(&hex(key.value.as_bytes())));
    let value = value.ok().filter(|_| !is_ours(&name))?;
    Some((name, value))
}

/// Returns the headers that say where a call stands in a trace.
fn traced(trace: &Trace) -> impl Iterator<Item = (HeaderName, HeaderValue)> + use<> {
    let parent = HeaderValue::try_from(trace.context.to_string()).ok();
    let state = trace.state.as_deref();
    let state = state.and_then(|state| HeaderValue::from_str(state).ok());
    let parent = parent.map(|value| (TRACEPARENT, value));
    parent
        .into_iter()
        .chain(state.map(|value| (TRACESTATE, value)))
}

impl Verb {
    /// Returns a call, which may stand in a trace and have a key.
    pub(super) fn call(
        body: Bytes,
        trace: Option<Arc<Trace>>,
        key: Option<Box<KeyHeader>>,
    ) -> Self {
        match (trace, key) {
            (trace, Some(key)) => Self::Keyed(body, trace, key),
            (Some(trace), None) => Self::Traced(body, trace),
            (None, None) => Self::Post(body),
        }
    }

    /// Returns where it stands in a trace, and its key.
    fn notes(&self) -> (Option<&Trace>, Option<&KeyHeader>) {
        match self {
            Self::Post(_) | Self::Get | Self::Delete => (None, None),
            Self::Traced(_, trace) => (Some(trace), None),
            Self::Keyed(_, trace, key) => (trace.as_deref(), Some(key)),
            Self::Labelled(_, labels) => (labels.trace.as_deref(), labels.key.as_deref()),
        }
    }

    /// Returns what is asked for at the place that a redirect leads to.
    fn redirected(self, status: StatusCode) -> Self {
        match (status, self) {
            (StatusCode::SEE_OTHER, _) => Self::Get,
            (
                StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND,
                Self::Post(_) | Self::Traced(..) | Self::Keyed(..) | Self::Labelled(..),
            ) => Self::Get,
            (_, same) => same,
        }
    }
}

/// Whether a server would not take the credentials. 403 counts: some say it of what has expired,
/// and of what was given more rights since.
const fn is_refusal(status: StatusCode) -> bool {
    matches!(status.as_u16(), 401 | 403)
}

const fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn after_a_hop(error: HttpError) -> LinkError {
    trouble(match error {
        HttpError::Unreachable(reason) => HttpError::Lost(reason),
        HttpError::ConnectTimeout => HttpError::FirstByteTimeout,
        other => other,
    })
}
