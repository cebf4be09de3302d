//! Request and byte rate limits of every principal except the owner.
//!
//! A request above the rate waits before its body is read, so a fast sender is slowed at no further
//! cost. A request with too long a wait is refused with 429, after the longest wait.

use bowline_core::call::Principal;
use bowline_core::error::CallError;
use bowline_core::rate_limiter::{RateDecision, RequestCost, WAIT_MAX};
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use std::sync::Arc;
use std::time::Duration;

use super::Edge;
use super::call_errors::{self, TooManyRequests};
use super::response_body::{self, EdgeResponse};

/// Charges a request with its announced bytes, and waits until admitted.
pub(super) async fn admit_request(
    edge: &Edge,
    principal: &Principal,
    incoming: &Incoming,
) -> Result<(), EdgeResponse> {
    let cost = RequestCost {
        requests: 1,
        bytes: incoming.size_hint().lower(),
    };
    let is_read = incoming.is_end_stream();
    charge_rate(edge, principal, cost)
        .await
        .map_err(|mut refused| {
            if !is_read {
                // The rest of the body must not be parsed as the next request.
                let close = HeaderValue::from_static("close");
                refused.headers_mut().insert(header::CONNECTION, close);
            }
            refused
        })
}

/// Charges a body without announced length.
pub(super) async fn admit_body(
    edge: &Edge,
    principal: &Principal,
    parts: &Parts,
    bytes: usize,
) -> Result<(), EdgeResponse> {
    if parts.headers.contains_key(header::CONTENT_LENGTH) {
        return Ok(());
    }
    let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
    charge_rate(edge, principal, RequestCost { requests: 0, bytes }).await
}

/// Charges the messages of a batch; the first was charged as the request.
pub(super) async fn admit_batch(
    edge: &Edge,
    principal: &Principal,
    messages: usize,
) -> Result<(), EdgeResponse> {
    let requests = u64::try_from(messages.saturating_sub(1)).unwrap_or(u64::MAX);
    charge_rate(edge, principal, RequestCost { requests, bytes: 0 }).await
}

async fn charge_rate(
    edge: &Edge,
    principal: &Principal,
    cost: RequestCost,
) -> Result<(), EdgeResponse> {
    match edge.host.charge_request(principal, cost) {
        RateDecision::Immediate => Ok(()),
        // Boxed to keep the future of a plain request small.
        RateDecision::Wait(wait) => {
            Box::pin(tokio::time::sleep(wait)).await;
            Ok(())
        }
        RateDecision::Refused(after) => {
            Box::pin(tokio::time::sleep(WAIT_MAX)).await;
            Err(too_fast_response(principal, after))
        }
    }
}

/// Returns the 429 response for a request above the rate.
pub(super) fn too_fast_response(principal: &Principal, after: Duration) -> EdgeResponse {
    let error = CallError::RateExceeded {
        principal: Arc::clone(&principal.name),
        after,
    };
    let text = call_errors::error_response(b"null", &error);
    let limit = TooManyRequests::from_error(&error);
    let retry_after_s = limit.and_then(TooManyRequests::retry_after_seconds);
    response_body::retry_response(StatusCode::TOO_MANY_REQUESTS, text, retry_after_s)
}
