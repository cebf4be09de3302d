//! Parses the bodies of requests: small ones at once, large ones off the serving thread.

use std::time::Duration;

use bowline_wire::jsonrpc::Refusal;
use bowline_wire::{Message, object};
use bytes::Bytes;

use super::{Caller, read};
use crate::edge::body::Answer;
use crate::edge::pace;

/// Bodies longer than this are parsed off the serving thread: one takes up to 60 ms for each MiB
/// that holds nothing but keys.
const LARGE_BODY_BYTES_MIN: usize = 256 * 1024;

/// How long a caller is told to wait that has too many large bodies under way.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Why a body is no single message.
#[derive(Debug)]
pub(super) enum Unparsed {
    /// It is an array.
    Batch,
    /// It is no message; the answer that says so.
    Refused(Bytes),
    /// The principal has too much under way.
    Busy(Box<Answer>),
}

/// One message of a batch as it was written, and what it is.
pub(super) type Item = (Bytes, Result<Message, Refusal>);

/// Parses a body as one message.
pub(super) async fn message(caller: Caller<'_>, text: &Bytes) -> Result<Message, Unparsed> {
    if text.len() <= LARGE_BODY_BYTES_MIN {
        return parse(text);
    }
    let owned = text.clone();
    // What is rare is boxed, so that a call carries no room for it.
    let parsed = Box::pin(off_thread(caller, move || parse(&owned))).await;
    parsed.map_err(|busy| Unparsed::Busy(Box::new(busy)))?
}

/// Parses the messages of a batch, at most `messages_max` and one more.
pub(super) async fn batch(
    caller: Caller<'_>,
    text: &Bytes,
    messages_max: usize,
) -> Result<Vec<Item>, Answer> {
    let split = move |text: &Bytes| {
        let items = object::items(text).take(messages_max + 1);
        let items = items.map(|at| text.slice(at.start..at.end));
        items
            .map(|item| (item.clone(), Message::parse(item)))
            .collect()
    };
    if text.len() <= LARGE_BODY_BYTES_MIN {
        return Ok(split(text));
    }
    let owned = text.clone();
    off_thread(caller, move || split(&owned)).await
}

fn parse(text: &Bytes) -> Result<Message, Unparsed> {
    Message::parse(text.clone()).map_err(|refusal| match refusal {
        Refusal::Batch => Unparsed::Batch,
        refusal => Unparsed::Refused(read::refusal_of(text, refusal)),
    })
}

/// Runs a parser off the serving thread.
async fn off_thread<T: Send + 'static>(
    caller: Caller<'_>,
    parser: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Answer> {
    let principal = caller.principal;
    let parsed = caller.edge.host.offload().run(principal, parser).await;
    parsed.map_err(|_| pace::refusal(principal, BUSY_WAIT))
}
