//! Holds every principal but the owner to its rates of requests and bytes.
//!
//! A request beyond the rate waits before its body is read, so that whoever sends too fast is
//! slowed down and costs no more than the wait. Where the wait would be too long it is refused
//! with 429, at the end of the longest wait.

use bowline_core::call::Principal;
use bowline_core::error::CallError;
use bowline_core::rates::{Pace, RequestCost, WAIT_MAX};
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use std::sync::Arc;
use std::time::Duration;

use super::Edge;
use super::body::{self, Answer};
use super::errors::{self, TooMuch};

/// Charges a request with the bytes that it announces, and waits until it may go on.
pub(super) async fn admit(
    edge: &Edge,
    principal: &Principal,
    incoming: &Incoming,
) -> Result<(), Answer> {
    let cost = RequestCost {
        requests: 1,
        bytes: incoming.size_hint().lower(),
    };
    let is_read = incoming.is_end_stream();
    charge(edge, principal, cost).await.map_err(|mut refused| {
        if !is_read {
            // What is left of the body must not be read as the next request.
            let close = HeaderValue::from_static("close");
            refused.headers_mut().insert(header::CONNECTION, close);
        }
        refused
    })
}

/// Charges a body that came without its length.
pub(super) async fn admit_body(
    edge: &Edge,
    principal: &Principal,
    parts: &Parts,
    bytes: usize,
) -> Result<(), Answer> {
    if parts.headers.contains_key(header::CONTENT_LENGTH) {
        return Ok(());
    }
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    charge(edge, principal, RequestCost { requests: 0, bytes }).await
}

/// Charges the messages of a batch; its first one was charged as the request.
pub(super) async fn admit_batch(
    edge: &Edge,
    principal: &Principal,
    messages: usize,
) -> Result<(), Answer> {
    let requests = u64::try_from(messages.saturating_sub(1)).unwrap_or(u64::MAX);
    charge(edge, principal, RequestCost { requests, bytes: 0 }).await
}

async fn charge(edge: &Edge, principal: &Principal, cost: RequestCost) -> Result<(), Answer> {
    match edge.host.charge_request(principal, cost) {
        Pace::Now => Ok(()),
        // What is rare is boxed, so that a request carries no room for it.
        Pace::Wait(wait) => {
            Box::pin(tokio::time::sleep(wait)).await;
            Ok(())
        }
        Pace::Refused(after) => {
            Box::pin(tokio::time::sleep(WAIT_MAX)).await;
            Err(refusal(principal, after))
        }
    }
}

/// Writes the answer to a request that comes too early.
pub(super) fn refusal(principal: &Principal, after: Duration) -> Answer {
    let error = CallError::TooFast {
        principal: Arc::clone(&principal.name),
        after,
    };
    let mut answer = body::json(
        StatusCode::TOO_MANY_REQUESTS,
        errors::answer(b"null", &error),
    );
    if let Some(seconds) = TooMuch::of(&error).and_then(TooMuch::seconds) {
        let wait = HeaderValue::from(seconds);
        answer.headers_mut().insert(header::RETRY_AFTER, wait);
    }
    answer
}
