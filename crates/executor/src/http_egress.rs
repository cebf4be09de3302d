//! Performs HTTP requests: the only path for HTTP out of an executor, for both wire protocols.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::egress::DeniedDestination;
use bowline_core::error::ExecutionStatus;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{
    HeaderLines, HttpError, HttpRequest, HttpResponse, RequestBody, SendOptions,
};
use bowline_runtime::Clock;

use crate::frames::{SecretHeader, StreamFault, StreamFaultCode};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderName, HeaderValue, Method};
use tokio::time::Instant;

use super::offer::{ExecutorOffer, ExecutorSecrets};

mod client_pools;

use client_pools::ClientPools;

/// Headers owned by the HTTP client: a caller could otherwise smuggle a second request or redirect
/// the request past the allow-list.
const CARRIER_HEADERS: [HeaderName; 7] = [
    HOST,
    CONTENT_LENGTH,
    TRANSFER_ENCODING,
    CONNECTION,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// Performs HTTP requests.
#[derive(Debug)]
pub(super) struct HttpEgress {
    pools: ClientPools,
    secrets: Arc<dyn ExecutorSecrets>,
    clock: Arc<dyn Clock>,
}

/// A request to perform.
#[derive(Debug)]
pub(super) struct EgressRequest<'a> {
    /// The server that the request is for: each server has separate connections and possibly an
    /// allow-list.
    pub(super) server: &'a Arc<str>,
    pub(super) method: &'a str,
    pub(super) to: &'a HttpEndpoint,
    /// The headers, already validated.
    pub(super) headers: HeaderLines,
    /// Headers to complete with secrets.
    pub(super) fills: &'a [SecretHeader],
    pub(super) body: RequestBody<'a>,
    pub(super) connect_ms: Option<u64>,
    pub(super) first_byte_ms: Option<u64>,
}

impl HttpEgress {
    pub(super) fn new(offer: &ExecutorOffer, clock: Arc<dyn Clock>) -> Self {
        Self {
            pools: ClientPools::new(offer),
            secrets: Arc::clone(&offer.secrets),
            clock,
        }
    }

    /// Sends a request and waits for the response head.
    pub(super) async fn send_request(
        &self,
        request_spec: EgressRequest<'_>,
    ) -> Result<HttpResponse, StreamFault> {
        let method = Method::from_bytes(request_spec.method.as_bytes());
        let method = method.map_err(|_error| invalid_request("the method is not valid"))?;
        let mut lines = request_spec.headers;
        for fill in request_spec.fills {
            self.fill_header(fill, request_spec.to, &mut lines)?;
        }
        let mut request = HttpRequest::new(method, request_spec.to);
        request.shared_headers = Cow::Owned(lines);
        request.body = request_spec.body;
        let Some(client) = self.pools.client_for(request_spec.server) else {
            let reason = "the executor has no cryptography";
            return Err(not_started_fault(StreamFaultCode::Unreachable, reason));
        };
        let wait = SendOptions {
            connect_by: request_spec.connect_ms.map(|ms| self.instant_after(ms)),
            first_byte_by: request_spec.first_byte_ms.map(|ms| self.instant_after(ms)),
            on_send: &|| {},
        };
        client.send(request, wait).await.map_err(|error| {
            if let HttpError::Denied(denied) = &error {
                log_denied(request_spec.server, denied);
            }
            to_fault(&error)
        })
    }

    /// Returns the instant `ms` milliseconds from now.
    pub(super) fn instant_after(&self, ms: u64) -> Instant {
        let at = self.clock.now().plus(Duration::from_millis(ms));
        self.clock.instant(at)
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Closes idle connections.
    pub(super) fn close_idle(&self) {
        self.pools.close_idle();
    }

    /// Adds a header with a secret; the caller knows only the name of the secret.
    fn fill_header(
        &self,
        fill: &SecretHeader,
        to: &HttpEndpoint,
        lines: &mut HeaderLines,
    ) -> Result<(), StreamFault> {
        let secret = self.secrets.read(&fill.secret, to).map_err(|error| {
            tracing::warn!(
                secret = &*fill.secret,
                error = &error as &dyn std::error::Error,
                "cannot fill in a secret"
            );
            let reason = format!("the executor has no secret `{}` for this", fill.secret);
            not_started_fault(StreamFaultCode::UnknownSecret, &reason)
        })?;
        let name = parse_header_name(fill.header.as_bytes())?;
        let value = format!("{}{secret}{}", fill.before, fill.after);
        // Without the cause: the error text is about the secret.
        let mut value = HeaderValue::from_str(&value).map_err(|_error| {
            not_started_fault(StreamFaultCode::UnknownSecret, "the secret fits no header")
        })?;
        value.set_sensitive(true);
        lines.push(&name, &value);
        Ok(())
    }
}

/// Logs a denied request, with the rule that would allow the destination.
fn log_denied(server: &str, denied: &DeniedDestination) {
    let detail = denied.detail();
    match denied.remedy_rule() {
        Some(rule) => {
            let rule = format!("--allow {rule}");
            tracing::warn!(server, %detail, rule, "request denied; the rule would allow it");
        }
        None => tracing::warn!(server, %detail, "request denied"),
    }
}

/// Adds a validated header: an invalid header could smuggle a second request.
pub(super) fn push_header(
    lines: &mut HeaderLines,
    name_text: &[u8],
    value: &[u8],
) -> Result<(), StreamFault> {
    let name = parse_header_name(name_text)?;
    let value = HeaderValue::from_bytes(value);
    let value = value.map_err(|_error| invalid_request("the value of a header is not valid"))?;
    lines.push(&name, &value);
    Ok(())
}

fn parse_header_name(text: &[u8]) -> Result<HeaderName, StreamFault> {
    let name = HeaderName::from_bytes(text);
    let name = name.map_err(|_error| invalid_request("the name of a header is not valid"))?;
    match CARRIER_HEADERS.contains(&name) {
        true => Err(invalid_request("a header is not the gateway's to say")),
        false => Ok(name),
    }
}

pub(super) fn invalid_request(reason: &str) -> StreamFault {
    not_started_fault(StreamFaultCode::Invalid, reason)
}

pub(super) fn not_started_fault(code: StreamFaultCode, reason: &str) -> StreamFault {
    StreamFault {
        code,
        execution: ExecutionStatus::NotStarted,
        reason: reason.into(),
    }
}

/// Converts an HTTP error to a fault for the caller.
pub(super) fn to_fault(error: &HttpError) -> StreamFault {
    let code = match error {
        HttpError::Unreachable(_) => StreamFaultCode::Unreachable,
        HttpError::ConnectTimeout => StreamFaultCode::ConnectTimeout,
        HttpError::Invalid(_) => StreamFaultCode::Invalid,
        HttpError::FirstByteTimeout => StreamFaultCode::FirstByteTimeout,
        HttpError::BadHead(_) => StreamFaultCode::Head,
        HttpError::Denied(_) => StreamFaultCode::Denied,
        HttpError::Overflow(_) => StreamFaultCode::Overflow,
        HttpError::Lost(_)
        | HttpError::Disconnected(_)
        | HttpError::RemoteFailure(_)
        | HttpError::TooLong { .. } => StreamFaultCode::Lost,
    };
    let reason = match error {
        HttpError::Unreachable(reason) | HttpError::BadHead(reason) | HttpError::Lost(reason) => {
            Arc::clone(reason)
        }
        HttpError::Invalid(reason) => (*reason).into(),
        HttpError::RemoteFailure(failure) => failure.reason.as_ref().into(),
        HttpError::Denied(_)
        | HttpError::ConnectTimeout
        | HttpError::FirstByteTimeout
        | HttpError::Disconnected(_)
        | HttpError::Overflow(_)
        | HttpError::TooLong { .. } => error.to_string().into(),
    };
    StreamFault {
        code,
        execution: error.execution(),
        reason,
    }
}
