//! The one request on whose stream a server without sessions tells what changed between calls.

use std::sync::Arc;

use bowline_core::call::Body;
use bowline_core::era::Era;
use bowline_core::error::Class;
use bowline_core::pending::Sent;
use bowline_wire::mcp::method;
use bowline_wire::{Kind, Message, object};
use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use super::carry::{self, is_message};
use super::refusal::{self, Content};
use super::road::trouble;
use super::stream::{Ended, Resume, Stream};
use super::talk::Talk;
use crate::desk::Events;
use crate::link::{Answer, BoxFuture, Exit, LinkError, Request};
use crate::modern::listen::{Ear, Opened};

/// Requests that stay open are not among those that callers wait for, and have ids that those
/// never reach. No reader of JSON rounds them.
pub(super) const IDS_FROM: u64 = 1 << 52;

/// What is told on the stream.
enum Word {
    /// The server agrees, and says to what.
    Agreed(Bytes),
    /// Something changed.
    Changed,
    /// The request is answered, and the stream over.
    Answered(Answer),
    /// What has no place here.
    Stray,
}

impl Ear for Talk {
    fn open(self: &Arc<Self>, request: Request) -> Opened {
        let (agree, agreed) = oneshot::channel();
        let talk = Arc::clone(self);
        let over = Box::pin(async move {
            let deadline = request.deadline;
            let ended = timeout_at(deadline, talk.stay(request, agree)).await;
            let ended = ended.unwrap_or(Err(LinkError::Timeout {
                sent: Sent::Perhaps,
            }));
            match &ended {
                Err(LinkError::Unreachable(_)) => talk.lose(),
                // What carries requests is away, and the server with it.
                Err(LinkError::Elsewhere(failure)) if failure.class == Class::Unavailable => {
                    talk.lose();
                }
                Ok(_) | Err(_) => {}
            }
            ended
        });
        Opened { agreed, over }
    }

    fn server(&self) -> &str {
        &self.spec.server
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn gone(&self) -> BoxFuture<'_, Exit> {
        Box::pin(self.ended())
    }
}

impl Talk {
    /// Sends a request and reads its stream to the end.
    async fn stay(
        self: &Arc<Self>,
        request: Request,
        agree: oneshot::Sender<Bytes>,
    ) -> Result<Answer, LinkError> {
        let id = self.listen_id();
        let mut stream = match self.open_changes(id, request).await? {
            Opening::Stream(stream) => stream,
            Opening::Answer(answer) => return Ok(answer),
        };
        let mut agree = Some(agree);
        let mut resume = Resume::default();
        loop {
            let event = stream.next(&mut resume).await;
            let event = match event {
                Ok(event) if is_message(event.event.as_deref()) => event,
                Ok(_) => continue,
                Err(Ended::Fault(_)) => {
                    let bytes_max = self.spec.limits.body_bytes_max;
                    return Err(LinkError::TooLong { bytes_max });
                }
                Err(Ended::Over | Ended::Broken(_)) => {
                    return Err(LinkError::Lost(Exit::Closed));
                }
            };
            let data = Bytes::from(event.data);
            match heard(&data, id) {
                Word::Agreed(subset) => {
                    if let Some(agree) = agree.take() {
                        let _ = agree.send(subset);
                    }
                }
                Word::Changed if agree.is_none() => {
                    self.take(data, None);
                }
                Word::Answered(answer) => return Ok(answer),
                // Nothing may come before the server has agreed.
                Word::Changed | Word::Stray => self.stray(),
            }
        }
    }

    async fn open_changes(&self, id: u64, request: Request) -> Result<Opening, LinkError> {
        let deadline = request.deadline;
        let verb = self.verb(id, request)?;
        let held = Arc::clone(&self.session.borrow());
        let mut response = self.send(&held, None, &verb, deadline).await?;
        let bytes_max = self.spec.limits.body_bytes_max;
        let status = response.status;
        match refusal::content(&response.headers) {
            Content::Events if status.is_success() => {
                Ok(Opening::Stream(Stream::new(response.body, bytes_max)))
            }
            Content::Json => {
                let body = response.body.whole(bytes_max).await.map_err(trouble)?;
                let body = carry::addressed(status, body, id);
                match heard(&body, id) {
                    Word::Answered(answer) if !refusal::is_decisive(status) => {
                        Ok(Opening::Answer(answer))
                    }
                    _ => Err(refusal::refusal_of(status, &response.headers, &body)),
                }
            }
            Content::Events | Content::Other => Err(refusal::refusal(response).await),
        }
    }
}

/// What came back for a request that is to stay open.
enum Opening {
    Stream(Stream),
    Answer(Answer),
}

/// Returns what a message on the stream of request `id` says.
fn heard(data: &Bytes, id: u64) -> Word {
    let Ok(message) = Message::parse_peer(data.clone()) else {
        return Word::Stray;
    };
    match message.kind() {
        Kind::Request => Word::Stray,
        Kind::Answer => match answer(&message, id) {
            Some(answer) => Word::Answered(answer),
            None => Word::Stray,
        },
        Kind::Notification => match message.method().unwrap_or_default() {
            method::SUBSCRIPTIONS_ACKNOWLEDGED => {
                let params = message.params().unwrap_or_default();
                let subset = object::field(params, "notifications").map(|at| at.of(params));
                Word::Agreed(Bytes::copy_from_slice(subset.unwrap_or(b"{}")))
            }
            method::TOOLS_LIST_CHANGED
            | method::PROMPTS_LIST_CHANGED
            | method::RESOURCES_LIST_CHANGED
            | method::RESOURCES_UPDATED
            | method::TASKS_NOTIFICATION => Word::Changed,
            _ => Word::Stray,
        },
    }
}

/// Returns a message as the answer to request `id`, where it is one.
fn answer(message: &Message, id: u64) -> Option<Answer> {
    if crate::desk::own_id(message.id()?) != Some(id) {
        return None;
    }
    let (body, at) = match (message.result_span(), message.error_span()) {
        (Some(at), _) => (Body::Result, at),
        (None, at) => (Body::Error, at?),
    };
    Some(Answer {
        bytes: message.bytes().clone(),
        body,
        body_at: at.start..at.end,
        era: Era::Modern,
    })
}
