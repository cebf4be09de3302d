//! Parses request bodies: small bodies inline, large bodies off the serving thread.

use std::time::Duration;

use bowline_wire::jsonrpc::MessageError;
use bowline_wire::{RpcMessage, object};
use bytes::Bytes;

use super::{McpCaller, request_body};
use crate::edge::rate_limit;
use crate::edge::response_body::EdgeResponse;

/// Larger bodies are parsed off the serving thread: a body of nothing but keys takes up to 60 ms
/// per MiB.
const LARGE_BODY_BYTES_MIN: usize = 256 * 1024;

/// Retry delay for a principal with too many large bodies in flight.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Reason for not returning a single message.
#[derive(Debug)]
pub(super) enum ParseFailure {
    /// The body is a batch.
    Batch,
    /// The body is not a message; holds the error response.
    Refused(Bytes),
    /// The principal has too many large bodies in flight.
    Busy(Box<EdgeResponse>),
}

/// A batch message: raw bytes and parse result.
pub(super) type BatchItem = (Bytes, Result<RpcMessage, MessageError>);

/// Parses a body as a single message.
pub(super) async fn parse_message(
    caller: McpCaller<'_>,
    text: &Bytes,
) -> Result<RpcMessage, ParseFailure> {
    if text.len() <= LARGE_BODY_BYTES_MIN {
        return parse_single(text);
    }
    let owned = text.clone();
    // Boxed to keep the future of a plain call small.
    let parsed = Box::pin(parse_off_thread(caller, move || parse_single(&owned))).await;
    parsed.map_err(|busy| ParseFailure::Busy(Box::new(busy)))?
}

/// Parses the messages of a batch, at most `messages_max` plus one to detect an excess.
pub(super) async fn parse_batch(
    caller: McpCaller<'_>,
    text: &Bytes,
    messages_max: usize,
) -> Result<Vec<BatchItem>, EdgeResponse> {
    let split = move |text: &Bytes| {
        let items = object::items(text).take(messages_max + 1);
        let items = items.map(|at| text.slice(at.start..at.end));
        items
            .map(|item| (item.clone(), RpcMessage::parse_from_client(item)))
            .collect()
    };
    if text.len() <= LARGE_BODY_BYTES_MIN {
        return Ok(split(text));
    }
    let owned = text.clone();
    parse_off_thread(caller, move || split(&owned)).await
}

fn parse_single(text: &Bytes) -> Result<RpcMessage, ParseFailure> {
    RpcMessage::parse_from_client(text.clone()).map_err(|refusal| match refusal {
        MessageError::Batch => ParseFailure::Batch,
        refusal => ParseFailure::Refused(request_body::refusal_message(text, refusal)),
    })
}

/// Runs a parser off the serving thread.
async fn parse_off_thread<T: Send + 'static>(
    caller: McpCaller<'_>,
    parser: impl FnOnce() -> T + Send + 'static,
) -> Result<T, EdgeResponse> {
    let principal = caller.principal;
    let parsed = caller.edge.host.offload().run_job(principal, parser).await;
    parsed.map_err(|_| rate_limit::too_fast_response(principal, BUSY_WAIT))
}
