//! Performs one request: the only way by which HTTP leaves an executor, whichever wire asks.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::egress::Denied;
use bowline_core::error::Execution;
use bowline_link::http::client::{HttpError, Lines, Outgoing, Response, Upload, Wait};
use bowline_link::http::endpoint::Endpoint;
use bowline_wire::executor::{Fault, FaultCode, Fill};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderName, HeaderValue, Method};
use tokio::time::Instant;

use super::offer::{Offer, Secrets};
use crate::ports::Clock;

mod roads;

use roads::Roads;

/// Headers that are the carrier's own: with them, one request could be read as two, or go
/// elsewhere than where it was allowed to go.
const OURS: [HeaderName; 7] = [
    HOST,
    CONTENT_LENGTH,
    TRANSFER_ENCODING,
    CONNECTION,
    UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// What performs requests.
#[derive(Debug)]
pub(super) struct Engine {
    roads: Roads,
    secrets: Arc<dyn Secrets>,
    clock: Arc<dyn Clock>,
}

/// A request to be performed.
#[derive(Debug)]
pub(super) struct Order<'a> {
    /// The server that it is for: it has its own connections, and may have its own allow-list.
    pub(super) server: &'a Arc<str>,
    pub(super) method: &'a str,
    pub(super) to: &'a Endpoint,
    /// Its headers, each of them checked.
    pub(super) lines: Lines,
    /// Headers of which only we know all.
    pub(super) fills: &'a [Fill],
    pub(super) body: Upload<'a>,
    pub(super) connect_ms: Option<u64>,
    pub(super) first_byte_ms: Option<u64>,
}

impl Engine {
    pub(super) fn new(offer: &Offer, clock: Arc<dyn Clock>) -> Self {
        Self {
            roads: Roads::new(offer),
            secrets: Arc::clone(&offer.secrets),
            clock,
        }
    }

    /// Sends a request and waits for the head of its answer.
    pub(super) async fn perform(&self, order: Order<'_>) -> Result<Response, Fault> {
        let method = Method::from_bytes(order.method.as_bytes());
        let method = method.map_err(|_error| invalid("the method is not valid"))?;
        let mut lines = order.lines;
        for fill in order.fills {
            self.fill(fill, order.to, &mut lines)?;
        }
        let mut request = Outgoing::new(method, order.to);
        request.lines = Cow::Owned(lines);
        request.body = order.body;
        let Some(client) = self.roads.of(order.server) else {
            let reason = "the executor has no cryptography";
            return Err(not_started(FaultCode::Unreachable, reason));
        };
        let wait = Wait {
            connect: order.connect_ms.map(|ms| self.after(ms)),
            first_byte: order.first_byte_ms.map(|ms| self.after(ms)),
            leaving: &|| {},
        };
        client.send(request, wait).await.map_err(|error| {
            if let HttpError::Denied(denied) = &error {
                tell_remedy(order.server, denied);
            }
            fault(&error)
        })
    }

    /// Returns the moment so many milliseconds from now.
    pub(super) fn after(&self, ms: u64) -> Instant {
        let at = self.clock.now().plus(Duration::from_millis(ms));
        self.clock.instant(at)
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Lets go of connections that nobody has used for a while.
    pub(super) fn tidy(&self) {
        self.roads.tidy();
    }

    /// Adds a header of which who asks knows only what the secret in it is called.
    fn fill(&self, fill: &Fill, to: &Endpoint, lines: &mut Lines) -> Result<(), Fault> {
        let secret = self.secrets.read(&fill.secret, to).map_err(|error| {
            tracing::warn!(
                secret = &*fill.secret,
                error = &error as &dyn std::error::Error,
                "a secret cannot be filled in"
            );
            let reason = format!("the executor has no secret `{}` for this", fill.secret);
            not_started(FaultCode::UnknownSecret, &reason)
        })?;
        let name = name(fill.header.as_bytes())?;
        let value = format!("{}{secret}{}", fill.before, fill.after);
        // What is wrong with it is not told: it is about the secret.
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_error| not_started(FaultCode::UnknownSecret, "the secret fits no header"))?;
        value.set_sensitive(true);
        lines.push(&name, &value);
        Ok(())
    }
}

/// Tells whoever keeps the executor what would let a request go where it was not let.
fn tell_remedy(server: &str, denied: &Denied) {
    let what = denied.what();
    match denied.remedy() {
        Some(rule) => {
            let rule = format!("--allow {rule}");
            tracing::warn!(server, %what, rule, "a request is not allowed; the rule would let it");
        }
        None => tracing::warn!(server, %what, "a request is not allowed"),
    }
}

/// Adds a header, which is checked: what is no header could be another request.
pub(super) fn header(lines: &mut Lines, name_text: &[u8], value: &[u8]) -> Result<(), Fault> {
    let name = name(name_text)?;
    let value = HeaderValue::from_bytes(value);
    let value = value.map_err(|_error| invalid("the value of a header is not valid"))?;
    lines.push(&name, &value);
    Ok(())
}

fn name(text: &[u8]) -> Result<HeaderName, Fault> {
    let name = HeaderName::from_bytes(text);
    let name = name.map_err(|_error| invalid("the name of a header is not valid"))?;
    match OURS.contains(&name) {
        true => Err(invalid("a header is not the gateway's to say")),
        false => Ok(name),
    }
}

pub(super) fn invalid(reason: &str) -> Fault {
    not_started(FaultCode::Invalid, reason)
}

pub(super) fn not_started(code: FaultCode, reason: &str) -> Fault {
    Fault {
        code,
        execution: Execution::NotStarted,
        reason: reason.into(),
    }
}

/// Returns what who asks is told of an error.
pub(super) fn fault(error: &HttpError) -> Fault {
    let code = match error {
        HttpError::Unreachable(_) => FaultCode::Unreachable,
        HttpError::ConnectTimeout => FaultCode::ConnectTimeout,
        HttpError::Invalid(_) => FaultCode::Invalid,
        HttpError::FirstByteTimeout => FaultCode::FirstByteTimeout,
        HttpError::Head(_) => FaultCode::Head,
        HttpError::Denied(_) => FaultCode::Denied,
        HttpError::Overflow(_) => FaultCode::Overflow,
        HttpError::Lost(_)
        | HttpError::Disconnected(_)
        | HttpError::Elsewhere(_)
        | HttpError::TooLong { .. } => FaultCode::Lost,
    };
    let reason = match error {
        HttpError::Unreachable(reason) | HttpError::Head(reason) | HttpError::Lost(reason) => {
            Arc::clone(reason)
        }
        HttpError::Invalid(reason) => (*reason).into(),
        HttpError::Elsewhere(failure) => failure.reason.as_ref().into(),
        HttpError::Denied(_)
        | HttpError::ConnectTimeout
        | HttpError::FirstByteTimeout
        | HttpError::Disconnected(_)
        | HttpError::Overflow(_)
        | HttpError::TooLong { .. } => error.to_string().into(),
    };
    Fault {
        code,
        execution: error.execution(),
        reason,
    }
}
