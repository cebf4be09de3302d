//! Brings a request to the server and reads what comes back with it.

use std::sync::Arc;
use std::time::Duration;

use bowline_wire::{Message, object};
use bytes::Bytes;
use http::StatusCode;
use tokio::time::{Instant, sleep};

use super::client::{Response, Wait};
use super::discover;
use super::refusal::{self, Content};
use super::road::{Parcel, Verb, trouble};
use super::session::Held;
use super::stream::{Ended, Resume, Stream};
use super::talk::{Again, Form, Talk};
use crate::desk::{Desk, own_id};
use crate::link::LinkError;

/// How long to wait before each further try of what failed by chance.
pub(super) const TRIES_AFTER: [Duration; 2] =
    [Duration::from_millis(250), Duration::from_millis(1_000)];

/// How often in a row a stream may fail to be opened again.
const RESUMES_MAX: usize = 5;

/// What is said of a stream that its server ended without the response.
const NO_RESPONSE: &str = "the server ended the stream before its response";

/// Why a request was not carried.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server does not know the session any more.
    Expired,
    Link(LinkError),
}

impl From<LinkError> for Trouble {
    fn from(error: LinkError) -> Self {
        Self::Link(error)
    }
}

impl Talk {
    /// Carries a request until its answer has been taken, or comes another way.
    pub(super) async fn carry(
        self: &Arc<Self>,
        id: u64,
        verb: Verb,
        again: Again,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let mut renewed = false;
        let mut delays = TRIES_AFTER.iter();
        loop {
            let held = Arc::clone(&self.session.borrow());
            if !held.is_listened() && self.form == Form::Streamable && self.has_caller(id) {
                Box::pin(held.listened()).await;
            }
            let error = match self.post(&held, id, &verb, deadline).await {
                Ok(()) => return Ok(()),
                Err(Trouble::Expired) if !renewed => {
                    // Rare roads are boxed: a call should carry no room for them.
                    Box::pin(self.renew(&held, deadline)).await?;
                    renewed = true;
                    continue;
                }
                Err(Trouble::Expired) => LinkError::Http {
                    status: StatusCode::NOT_FOUND.as_u16(),
                    preview: "the session is not known, though it is new".into(),
                },
                Err(Trouble::Link(error)) => error,
            };
            if again == Again::Transient
                && refusal::is_transient(&error)
                && let Some(delay) = delays.next()
            {
                sleep(*delay).await;
                continue;
            }
            if matches!(error, LinkError::Unreachable(_)) {
                self.lose();
            }
            return Err(error);
        }
    }

    /// Posts a request and reads what comes back.
    async fn post(
        self: &Arc<Self>,
        held: &Held,
        id: u64,
        verb: &Verb,
        deadline: Instant,
    ) -> Result<(), Trouble> {
        let response = self.send(held, Some(id), verb, deadline).await?;
        if refusal::is_decisive(response.status) {
            return Ok(Box::pin(self.refuse(response, id)).await?);
        }
        self.digest(response, held, id, deadline).await
    }

    /// Sends anything to where messages are posted. A request that is waited for counts as sent
    /// from the moment in which its first byte may leave, and is waited for by who asked.
    pub(super) async fn send(
        &self,
        held: &Held,
        id: Option<u64>,
        verb: &Verb,
        deadline: Instant,
    ) -> Result<Response, LinkError> {
        let leaving = || {
            if let Some(id) = id {
                self.with(|waiters| waiters.pending.mark_sent(id));
            }
        };
        let parcel = Parcel {
            to: &self.endpoint,
            verb,
            held,
            last_event: None,
        };
        let wait = Wait {
            connect: Some(deadline),
            first_byte: id.is_none().then_some(deadline),
            leaving: &leaving,
        };
        let sent = self.road.send(parcel, wait).await;
        if self.road.is_renewed() {
            // Who we are now may be shown other things.
            self.offers_anew();
        }
        sent
    }

    /// Reads a response whose status says what became of its request; its body is the message. A
    /// proxy or an overloaded server says 503 with a JSON-RPC error that no tool gave.
    pub(super) async fn refuse(
        self: &Arc<Self>,
        mut response: Response,
        id: u64,
    ) -> Result<(), LinkError> {
        if refusal::content(&response.headers) != Content::Json {
            return Err(refusal::refusal(response).await);
        }
        let bytes_max = self.spec.limits.body_bytes_max;
        let body = response.body.whole(bytes_max).await.map_err(trouble)?;
        let is_result = is_answer(&body, id) && object::field(&body, "error").is_none();
        if is_result && self.take(body.clone(), Some(id)) {
            return Ok(());
        }
        let (status, headers) = (response.status, &response.headers);
        Err(refusal::refusal_of(status, headers, &body))
    }

    /// Reads what came back for a request; its body is the answer where it is one, whatever the
    /// status is.
    pub(super) async fn digest(
        self: &Arc<Self>,
        mut response: Response,
        held: &Held,
        id: u64,
        deadline: Instant,
    ) -> Result<(), Trouble> {
        let status = response.status;
        if status == StatusCode::NOT_FOUND && held.id.is_some() {
            return Err(Trouble::Expired);
        }
        let usual_bytes = self.spec.limits.body_bytes_max;
        let content = refusal::content(&response.headers);
        if !status.is_success() {
            if content != Content::Json {
                return Err(Box::pin(refusal::refusal(response)).await.into());
            }
            let body = response.body.whole(usual_bytes).await.map_err(trouble)?;
            let body = match self.form {
                Form::Streamable | Form::Sse => body,
                Form::Stateless => addressed(status, body, id),
            };
            if is_answer(&body, id) {
                let own = !self.has_caller(id);
                if self.take(body.clone(), Some(id)) {
                    // What we ask ourselves is written as was agreed on, so that the server is
                    // another one by now. What callers write proves nothing.
                    if own && self.form != Form::Stateless && discover::is_modern_error(&body) {
                        self.lose();
                    }
                    return Ok(());
                }
            }
            return Err(refusal::refusal_of(status, &response.headers, &body).into());
        }
        let accepted = matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT);
        match self.form {
            // There is no other way for an answer to come.
            Form::Stateless if accepted => {
                return Err(Box::pin(refusal::refusal(response)).await.into());
            }
            Form::Streamable | Form::Stateless if !accepted => {}
            Form::Streamable | Form::Sse | Form::Stateless => {
                // The answer comes on the stream that all share.
                self.read_on(response.body);
                return Ok(());
            }
        }
        let bytes_max = self.response_bytes_max(id);
        match content {
            Content::Json => {
                let gate = Some(self.large_reads.as_ref());
                let body = response.body.whole_gated(usual_bytes, bytes_max, gate);
                let body = body.await.map_err(trouble)?;
                if self.take(body, Some(id)) {
                    return Ok(());
                }
                let reason = "it does not answer the request".into();
                Err(LinkError::BadAnswer(reason).into())
            }
            Content::Events => {
                let stream = Stream::new(response.body, bytes_max);
                let stream = stream.gated(usual_bytes, &self.large_reads);
                Ok(Box::pin(self.follow(stream, held, id, deadline)).await?)
            }
            Content::Other => Err(Box::pin(refusal::foreign(response)).await.into()),
        }
    }

    /// Reads the stream of a request until its answer, over as many connections as it takes.
    async fn follow(
        self: &Arc<Self>,
        mut stream: Stream,
        held: &Held,
        id: u64,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        let mut resume = Resume::default();
        loop {
            let ended = loop {
                match stream.next(&mut resume).await {
                    Ok(event) if is_message(event.event.as_deref()) => {
                        if self.take(event.data.into(), Some(id)) {
                            if let Some(rest) = stream.into_rest().await {
                                self.read_on(rest);
                            }
                            return Ok(());
                        }
                    }
                    Ok(_) => {}
                    Err(ended) => break ended,
                }
            };
            let lost = match ended {
                Ended::Fault(_) => {
                    let bytes_max = self.response_bytes_max(id);
                    return Err(LinkError::TooLong { bytes_max });
                }
                Ended::Broken(error) => trouble(error),
                Ended::Over => LinkError::Cut(NO_RESPONSE.into()),
            };
            let usual_bytes = self.spec.limits.body_bytes_max;
            let resumed = self.resume(&mut resume, held, id, deadline).await;
            stream = resumed.ok_or(lost)?.gated(usual_bytes, &self.large_reads);
        }
    }

    /// Opens the stream of a request again where it broke off, if that can be done.
    async fn resume(
        &self,
        resume: &mut Resume,
        held: &Held,
        id: u64,
        deadline: Instant,
    ) -> Option<Stream> {
        for _ in 0..RESUMES_MAX {
            if resume.last.is_none() || self.form == Form::Stateless {
                return None;
            }
            sleep(resume.pause()).await;
            let opened = self.open_stream(held, resume, Some(deadline)).await;
            let error = match opened {
                Ok(response) if response.status != StatusCode::OK => {
                    refusal::refusal(response).await
                }
                Ok(response) if refusal::content(&response.headers) == Content::Events => {
                    let bytes_max = self.response_bytes_max(id);
                    return Some(Stream::new(response.body, bytes_max));
                }
                Ok(_) => return None,
                Err(error) => error,
            };
            if !refusal::is_transient(&error) {
                return None;
            }
        }
        None
    }

    /// Opens a stream for what the server says, or goes on with a broken one.
    pub(super) async fn open_stream(
        &self,
        held: &Held,
        resume: &Resume,
        deadline: Option<Instant>,
    ) -> Result<Response, LinkError> {
        let parcel = Parcel {
            to: &self.endpoint,
            verb: &Verb::Get,
            held,
            last_event: resume.last.as_ref(),
        };
        let wait = Wait {
            connect: deadline,
            first_byte: None,
            leaving: &|| {},
        };
        self.road.send(parcel, wait).await
    }
}

/// Whether an event carries a message: other kinds are not for us.
pub(super) fn is_message(name: Option<&str>) -> bool {
    name.is_none_or(|name| name == "message")
}

/// Whether a body says that it answers this request.
fn is_answer(body: &Bytes, id: u64) -> bool {
    let answered = object::field(body, "id");
    answered.and_then(|at| own_id(at.of(body))) == Some(id)
}

/// Returns the error that a server refused a request with, under the id of that request. One that
/// refuses by the headers alone may not know the id; but a request of its own came with no other.
pub(super) fn addressed(status: StatusCode, body: Bytes, id: u64) -> Bytes {
    if !matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND) {
        return body;
    }
    let Ok(message) = Message::parse(body.clone()) else {
        return body;
    };
    let nameless = message.id().is_none_or(|id| id == b"null");
    let Some(error) = message.error().filter(|_| nameless) else {
        return body;
    };
    let mut out = br#"{"jsonrpc":"2.0","id":"#.to_vec();
    out.extend_from_slice(itoa::Buffer::new().format(id).as_bytes());
    out.extend_from_slice(br#","error":"#);
    out.extend_from_slice(error);
    out.push(b'}');
    out.into()
}
