//! One request of an exec-server client, up to the end of the response.

use std::borrow::Cow;
use std::sync::Arc;

use bowline_core::error::ExecutionStatus;
use bowline_link::http::http_client::{HttpBody, HttpResponse};

use crate::execserver::{
    self, BODY_BYTES_MAX, DELTA_BYTES_MAX, ExecHeaderRef, ExecHttpRequest, ExecHttpResponse,
    ExecRefusal, ExecRequestId, code,
};
use crate::frames::{StreamFault, StreamFaultCode};
use bytes::{Bytes, BytesMut};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::{ActiveStreamGuard, AdapterShared, follow_redirects};
use crate::http_egress::to_fault;

/// Body bytes per delta, if available at once. The client's buffer is limited by the number of
/// deltas, whatever the size.
const PIECE_BYTES: usize = 256 * 1024;

const _: () = assert!(PIECE_BYTES <= DELTA_BYTES_MAX);

/// Performs one request.
#[derive(Debug)]
pub(super) struct AdapterRequest {
    pub(super) shared: Arc<AdapterShared>,
    pub(super) id: ExecRequestId,
    /// The stream name; absent for a whole response.
    pub(super) active: Option<ActiveStreamGuard>,
}

impl AdapterRequest {
    /// Performs the request and sends the outcome.
    pub(super) async fn run(self, request_head: ExecHttpRequest) {
        let until = request_head
            .timeout_ms
            .map(|ms| self.shared.egress.instant_after(ms));
        let response = match run_until(
            until,
            follow_redirects::send_following(&self.shared.egress, &request_head),
        )
        .await
        {
            Some(Ok(response)) => response,
            Some(Err(fault)) => return self.send_refusal(&fault).await,
            None => return self.send_refusal(&timeout_fault()).await,
        };
        match &self.active {
            None => self.send_whole(response, until).await,
            Some(_) => self.send_stream(response, until).await,
        }
    }

    async fn send_refusal(self, fault: &StreamFault) {
        let message = execserver::write_refusal(&self.id, &to_refusal(fault));
        drop(self.active);
        // After a disconnect no client waits.
        let _ = self.shared.outgoing.send(message).await;
    }

    /// Sends the whole response.
    async fn send_whole(self, response: HttpResponse, until: Option<Instant>) {
        let HttpResponse {
            status,
            headers,
            mut body,
        } = response;
        let gathering = read_whole(&mut body, &self.shared.body_permits);
        let (bytes, _room) = match run_until(until, gathering).await {
            Some(Ok(gathered)) => gathered,
            Some(Err(fault)) => return self.send_refusal(&fault).await,
            None => return self.send_refusal(&timeout_fault()).await,
        };
        drop(body);
        let message = write_with_headers(headers.lines(), |headers| {
            ExecHttpResponse::encode(&self.id, status.as_u16(), headers, &bytes)
        });
        let _ = self.shared.outgoing.send(message).await;
    }

    /// Sends the response head, then the body in deltas.
    async fn send_stream(self, response: HttpResponse, until: Option<Instant>) {
        let head = write_with_headers(response.headers.lines(), |headers| {
            ExecHttpResponse::encode(&self.id, response.status.as_u16(), headers, b"")
        });
        let Self { shared, active, .. } = self;
        let (Some(active), Ok(())) = (active, shared.outgoing.send(head).await) else {
            return;
        };
        let mut seq = 1;
        let mut body = response.body;
        let sending = send_pieces(&mut body, &shared, &active.name, &mut seq);
        let end = match run_until(until, sending).await {
            Some(Ok(())) => Ok(()),
            Some(Err(reason)) => Err(reason),
            None => Err(timeout_fault().reason),
        };
        drop(body);
        let end = match &end {
            Ok(()) => Ok(()),
            Err(reason) => Err(&**reason),
        };
        let last = execserver::write_delta(&active.name, seq, b"", Some(end));
        // The client may reuse the name right after the last delta.
        drop(active);
        let _ = shared.outgoing.send(last).await;
    }
}

/// Sends the body in deltas, with the backpressure of the connection.
async fn send_pieces(
    body: &mut HttpBody,
    shared: &AdapterShared,
    name: &str,
    seq: &mut u64,
) -> Result<(), Arc<str>> {
    loop {
        body.set_read_max(PIECE_BYTES);
        let Some(chunk) = body.next_chunk().await else {
            return Ok(());
        };
        let chunk = chunk.map_err(|error| to_fault(&error).reason)?;
        for piece in chunk.chunks(PIECE_BYTES) {
            let message = execserver::write_delta(name, *seq, piece, None);
            let sent = shared.outgoing.send(message).await;
            sent.map_err(|_ended| "the client is gone")?;
            *seq += 1;
        }
    }
}

/// Reads a whole body, within the byte permits.
async fn read_whole(
    body: &mut HttpBody,
    permits: &Arc<Semaphore>,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), StreamFault> {
    let mut bytes = BytesMut::new();
    let mut permit: Option<OwnedSemaphorePermit> = None;
    while let Some(chunk) = body.next_chunk().await {
        let chunk = chunk.map_err(|error| to_fault(&error))?;
        if bytes.len().saturating_add(chunk.len()) > BODY_BYTES_MAX {
            let reason = format!("the answer is longer than {BODY_BYTES_MAX} bytes");
            return Err(lost_fault(&reason));
        }
        let weight = u32::try_from(chunk.len()).unwrap_or(u32::MAX);
        let chunk_permit = Arc::clone(permits).try_acquire_many_owned(weight);
        let chunk_permit =
            chunk_permit.map_err(|_full| lost_fault("too many whole answers at once"))?;
        match &mut permit {
            Some(permit) => permit.merge(chunk_permit),
            none => *none = Some(chunk_permit),
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok((bytes.freeze(), permit))
}

/// Passes the headers as text to `write`. A value that is not UTF-8 is read as Latin-1, so that
/// no header is lost.
fn write_with_headers(lines: &[u8], write: impl FnOnce(&[ExecHeaderRef<'_>]) -> Bytes) -> Bytes {
    let mut texts: Vec<(&str, Cow<'_, str>)> = Vec::new();
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        let Some(colon) = memchr::memchr(b':', line) else {
            continue;
        };
        let (name, value) = line.split_at_checked(colon).unwrap_or_default();
        let value = value.strip_prefix(b":").unwrap_or(value).trim_ascii();
        let name = std::str::from_utf8(name).unwrap_or_default();
        texts.push((name, header_text(value)));
    }
    let headers: Vec<_> = texts
        .iter()
        .map(|(name, value)| ExecHeaderRef {
            name,
            value,
            secret_name: None,
        })
        .collect();
    write(&headers)
}

fn header_text(value: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(value) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => value.iter().copied().map(char::from).collect(),
    }
}

/// Converts a fault to a refusal with the codes of the exec-server protocol.
fn to_refusal(fault: &StreamFault) -> ExecRefusal {
    let (code, message) = match fault.code {
        StreamFaultCode::Invalid
        | StreamFaultCode::Denied
        | StreamFaultCode::UnknownServer
        | StreamFaultCode::UnknownSecret => (
            code::INVALID_PARAMS,
            format!("http/request: {}", fault.reason),
        ),
        _ => (
            code::INTERNAL,
            format!("http/request failed: {}", fault.reason),
        ),
    };
    ExecRefusal {
        code,
        message: message.into(),
        stream_fault: Some(fault.clone()),
    }
}

/// Returns the refusal for a request beyond a limit.
pub(super) fn busy_refusal(reason: &str) -> ExecRefusal {
    to_refusal(&StreamFault {
        code: StreamFaultCode::Busy,
        execution: ExecutionStatus::NotStarted,
        reason: reason.into(),
    })
}

fn lost_fault(reason: &str) -> StreamFault {
    StreamFault {
        code: StreamFaultCode::Lost,
        execution: ExecutionStatus::Unknown,
        reason: reason.into(),
    }
}

fn timeout_fault() -> StreamFault {
    StreamFault {
        code: StreamFaultCode::FirstByteTimeout,
        execution: ExecutionStatus::Unknown,
        reason: "the request timed out".into(),
    }
}

async fn run_until<T>(until: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    match until {
        None => Some(future.await),
        Some(until) => timeout_at(until, future).await.ok(),
    }
}
