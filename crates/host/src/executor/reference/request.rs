//! One request of a client, from what it asks to the end of the answer.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_core::error::Execution;
use bowline_link::http::client::{Body, Response};
use bowline_wire::execserver::{
    self, Answered, Asked, BODY_BYTES_MAX, DELTA_BYTES_MAX, HeaderRef, Id, Refusal, code,
};
use bowline_wire::executor::{Fault, FaultCode};
use bytes::{Bytes, BytesMut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::{Active, Shared, follow};
use crate::executor::engine::fault;

/// Bytes of a body that go into one piece, where so many are here at once. A client has room for
/// so many pieces only, however small they are.
const PIECE_BYTES: usize = 256 * 1024;

const _: () = assert!(PIECE_BYTES <= DELTA_BYTES_MAX);

/// What performs one request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) shared: Arc<Shared>,
    pub(super) id: Id,
    /// The name of its stream; absent where the answer is sent whole.
    pub(super) active: Option<Active>,
}

impl Request {
    /// Performs it, and tells how that went.
    pub(super) async fn run(self, asked: Asked) {
        let until = asked.timeout_ms.map(|ms| self.shared.engine.after(ms));
        let answered = match within(until, follow::perform(&self.shared.engine, &asked)).await {
            Some(Ok(response)) => response,
            Some(Err(fault)) => return self.refuse(&fault).await,
            None => return self.refuse(&late()).await,
        };
        match &self.active {
            None => self.whole(answered, until).await,
            Some(_) => self.stream(answered, until).await,
        }
    }

    async fn refuse(self, fault: &Fault) {
        let message = execserver::refused(&self.id, &refused(fault));
        drop(self.active);
        // Where the connection is over, nobody waits.
        let _ = self.shared.outgoing.send(message).await;
    }

    /// Sends the whole answer.
    async fn whole(self, response: Response, until: Option<Instant>) {
        let Response {
            status,
            headers,
            mut body,
        } = response;
        let gathering = gathered(&mut body, &self.shared.bodies);
        let (bytes, _room) = match within(until, gathering).await {
            Some(Ok(gathered)) => gathered,
            Some(Err(fault)) => return self.refuse(&fault).await,
            None => return self.refuse(&late()).await,
        };
        drop(body);
        let message = with_headers(headers.lines(), |headers| {
            Answered::write(&self.id, status.as_u16(), headers, &bytes)
        });
        let _ = self.shared.outgoing.send(message).await;
    }

    /// Sends the head of the answer, and then its body in pieces.
    async fn stream(self, response: Response, until: Option<Instant>) {
        let head = with_headers(response.headers.lines(), |headers| {
            Answered::write(&self.id, response.status.as_u16(), headers, b"")
        });
        let Self { shared, active, .. } = self;
        let (Some(active), Ok(())) = (active, shared.outgoing.send(head).await) else {
            return;
        };
        let mut seq = 1;
        let mut body = response.body;
        let sending = pieces(&mut body, &shared, &active.name, &mut seq);
        let end = match within(until, sending).await {
            Some(Ok(())) => Ok(()),
            Some(Err(reason)) => Err(reason),
            None => Err(late().reason),
        };
        drop(body);
        let end = match &end {
            Ok(()) => Ok(()),
            Err(reason) => Err(&**reason),
        };
        let last = execserver::write_delta(&active.name, seq, b"", Some(end));
        // Whoever is told of the end may use the name again at once.
        drop(active);
        let _ = shared.outgoing.send(last).await;
    }
}

/// Sends the pieces of a body; waits while the client reads too slowly for the connection.
async fn pieces(
    body: &mut Body,
    shared: &Shared,
    name: &str,
    seq: &mut u64,
) -> Result<(), Arc<str>> {
    loop {
        body.want(PIECE_BYTES);
        let Some(chunk) = body.chunk().await else {
            return Ok(());
        };
        let chunk = chunk.map_err(|error| fault(&error).reason)?;
        for piece in chunk.chunks(PIECE_BYTES) {
            let message = execserver::write_delta(name, *seq, piece, None);
            let sent = shared.outgoing.send(message).await;
            sent.map_err(|_ended| "the client is gone")?;
            *seq += 1;
        }
    }
}

/// Reads a whole body, as long as there is room for it.
async fn gathered(
    body: &mut Body,
    room: &Arc<Semaphore>,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Fault> {
    let mut all = BytesMut::new();
    let mut held: Option<OwnedSemaphorePermit> = None;
    while let Some(chunk) = body.chunk().await {
        let chunk = chunk.map_err(|error| fault(&error))?;
        if all.len().saturating_add(chunk.len()) > BODY_BYTES_MAX {
            let reason = format!("the answer is longer than {BODY_BYTES_MAX} bytes");
            return Err(lost(&reason));
        }
        let weight = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
        let more = Arc::clone(room).try_acquire_many_owned(weight);
        let more = more.map_err(|_full| lost("too many whole answers at once"))?;
        match &mut held {
            Some(held) => held.merge(more),
            none => *none = Some(more),
        }
        all.extend_from_slice(&chunk);
    }
    Ok((all.freeze(), held))
}

/// Writes with headers as this wire says them, which is as text. What is no UTF-8 is taken for
/// what HTTP once meant, so that nothing is left out.
fn with_headers(lines: &[u8], write: impl FnOnce(&[HeaderRef<'_>]) -> Bytes) -> Bytes {
    let mut texts: Vec<(&str, Cow<'_, str>)> = Vec::new();
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let Some(colon) = memchr::memchr(b':', line) else {
            continue;
        };
        let (name, value) = line.split_at_checked(colon).unwrap_or_default();
        let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii();
        let name = std::str::from_utf8(name).unwrap_or_default();
        texts.push((name, text(value)));
    }
    let headers: Vec<_> = texts
        .iter()
        .map(|(name, value)| HeaderRef {
            name,
            value,
            secret: None,
        })
        .collect();
    write(&headers)
}

fn text(value: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(value) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => value.iter().copied().map(char::from).collect(),
    }
}

/// Returns what a client is told: the codes of this wire, and what exactly it was.
fn refused(fault: &Fault) -> Refusal {
    let (code, message) = match fault.code {
        FaultCode::Invalid
        | FaultCode::Denied
        | FaultCode::UnknownServer
        | FaultCode::UnknownSecret => (
            code::INVALID_PARAMS,
            format!("http/request: {}", fault.reason),
        ),
        _ => (
            code::INTERNAL,
            format!("http/request failed: {}", fault.reason),
        ),
    };
    Refusal {
        code,
        message: message.into(),
        fault: Some(fault.clone()),
    }
}

/// Returns what is told where there is no room for a request.
pub(super) fn busy(reason: &str) -> Refusal {
    refused(&Fault {
        code: FaultCode::Busy,
        execution: Execution::NotStarted,
        reason: reason.into(),
    })
}

fn lost(reason: &str) -> Fault {
    Fault {
        code: FaultCode::Lost,
        execution: Execution::Unknown,
        reason: reason.into(),
    }
}

fn late() -> Fault {
    Fault {
        code: FaultCode::FirstByteTimeout,
        execution: Execution::Unknown,
        reason: "the request timed out".into(),
    }
}

async fn within<T>(until: Option<Instant>, what: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(what.await),
        Some(until) => timeout_at(until, what).await.ok(),
    }
}
