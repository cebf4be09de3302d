//! Probes a server with an open breaker, to close the breaker soon after recovery.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::backoff::Backoff;
use bowline_core::breaker::{Breaker, ReachabilityCheck};
use bowline_core::era::Era;
use bowline_core::error::FailureClass;
use bowline_core::retry::{JitterSource, Retry};
use bowline_core::sync::lock;
use bowline_link::{Link, LinkError, LinkRequest};
use bowline_wire::mcp::method;
use bytes::Bytes;

use super::super::SupervisorShared;
use crate::callpath::{ResponseWait, to_call_error};
use crate::spec::{ServerSpec, ServerTransport};

/// Delays between checks: bounds how long callers are refused after recovery.
const CHECK_BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(100),
    cap: Duration::from_millis(750),
};

/// Response timeout of a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Creates the breaker of a server. Only remote servers are probed: a child process is reached by
/// starting it.
pub(in super::super) fn new_breaker(spec: &ServerSpec) -> Breaker {
    match spec.transport {
        ServerTransport::Remote(_) | ServerTransport::Peer(_) => {
            let checks = Retry::new(CHECK_BACKOFF, JitterSource::from_owner(&spec.name));
            Breaker::with_checks(spec.breaker, checks)
        }
        ServerTransport::Child(_)
        | ServerTransport::Executor(_)
        | ServerTransport::InProcess(_) => Breaker::new(spec.breaker),
    }
}

/// Runs the reachability checks over a link, a single check at a time.
#[derive(Default)]
pub(super) struct ReachabilityProbe {
    /// The check in flight.
    in_flight: Option<(ReachabilityCheck, BoxFuture<'static, bool>)>,
}

impl ReachabilityProbe {
    /// Runs the checks due by the breaker. Cancel-safe: a later call continues.
    pub(super) async fn run_checks(&mut self, link: &Arc<dyn Link>, shared: &SupervisorShared) {
        loop {
            if let Some((checkup, check)) = &mut self.in_flight {
                let is_reached = check.await;
                let (checkup, now) = (*checkup, shared.clock.now());
                self.in_flight = None;
                shared.with_breaker(now, |breaker| {
                    breaker.record_check(checkup, is_reached, now);
                });
            }
            let (next, clock) = (lock(&shared.breaker).next_check(), &*shared.clock);
            match next {
                Some(checkup) if checkup.due <= clock.now() => {
                    let check = send_check(Arc::clone(link), shared);
                    self.in_flight = Some((checkup, check));
                }
                next => {
                    let due = next.map(|checkup| checkup.due);
                    shared.breaker.wait_until(clock, due).await;
                }
            }
        }
    }
}

/// Sends the cheapest request supported by the server.
fn send_check(link: Arc<dyn Link>, shared: &SupervisorShared) -> BoxFuture<'static, bool> {
    let deadline = shared.clock.now().plus(CHECK_TIMEOUT);
    let deadline = shared.clock.instant(deadline);
    Box::pin(async move {
        let method = match link.era() {
            Era::Legacy => method::PING,
            Era::Modern => method::DISCOVER,
        };
        let request = LinkRequest::new_internal(method, Bytes::new(), deadline);
        match link.request(request).await {
            Ok(_) => true,
            Err(error) => is_reached(&error),
        }
    })
}

/// True if the error proves the server reachable: any response of its own suffices.
fn is_reached(error: &LinkError) -> bool {
    let wait = ResponseWait::for_server(0);
    match to_call_error(error, &Arc::default(), None, wait).failure_class() {
        FailureClass::Unavailable
        | FailureClass::ConnectFailed
        | FailureClass::SendFailed
        | FailureClass::ConnectionLost
        | FailureClass::Timeout
        | FailureClass::Throttled => false,
        FailureClass::Denied
        | FailureClass::NotFound
        | FailureClass::Invalid
        | FailureClass::AuthRequired
        | FailureClass::ScopeRequired
        | FailureClass::ProtocolError
        | FailureClass::Truncated
        | FailureClass::Cancelled => true,
    }
}

impl fmt::Debug for ReachabilityProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReachabilityProbe")
            .field("is_asked", &self.in_flight.is_some())
            .finish()
    }
}
