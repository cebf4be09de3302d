//! Monitors a quiet link: pings the server, and detects that the server is unused.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::era::Era;
use bowline_core::load::LoadTotals;
use bowline_core::sync::lock;
use bowline_core::task_table::LinkKey;
use bowline_core::time::{MonotonicTime, to_millis};
use bowline_link::{Link, LinkError, LinkRequest};
use bowline_runtime::timer::sleep_until_due;
use bowline_wire::mcp::method;
use bytes::Bytes;

use super::super::SupervisorShared;
use crate::session_state::SessionState;

/// Response timeout of a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Missed pings in a row that end a link.
const MISSES_MAX: u32 = 3;

/// Idle checks per idle timeout. Polling costs calls nothing, and delays the stop by at most this
/// fraction.
const IDLE_CHECKS: u32 = 8;

/// Result of the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MonitorEvent {
    /// The server was unused for the idle timeout.
    Idle,
    /// The server answered pings before and no longer does.
    Silent,
}

/// Result of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PingOutcome {
    /// A response, possibly an error.
    Response,
    /// No valid response, but a sign of life.
    Alive,
    /// No reaction.
    Silence,
    /// The link is gone or the ping was never sent: no information.
    Unknown,
}

/// Monitors a link.
pub(super) struct LinkMonitor {
    ping_interval: Option<Duration>,
    ping_at: MonotonicTime,
    /// The ping in flight.
    in_flight: Option<BoxFuture<'static, PingOutcome>>,
    /// Responses counted at the last check.
    answered: u64,
    /// True once the server answered a ping on this link: a server without ping support is not
    /// judged.
    answers_pings: bool,
    misses: u32,
    idle_timeout: Option<Duration>,
    idle_check_at: MonotonicTime,
    /// Calls counted at the last check.
    calls: u64,
    /// Start of the unused period.
    quiet_since: MonotonicTime,
}

impl LinkMonitor {
    pub(super) fn new(shared: &SupervisorShared) -> Self {
        let now = shared.clock.now();
        let spec = &shared.spec;
        Self {
            ping_interval: spec.ping,
            ping_at: spec.ping.map_or(now, |every| now.plus(every)),
            in_flight: None,
            answered: shared.count_answered(),
            answers_pings: false,
            misses: 0,
            idle_timeout: spec.idle_stop,
            idle_check_at: spec
                .idle_stop
                .map_or(now, |after| now.plus(after / IDLE_CHECKS)),
            calls: shared.read_totals(LoadTotals::awaited_count),
            quiet_since: now,
        }
    }

    /// Returns the number of pings in flight.
    pub(super) fn pings_in_flight(&self) -> usize {
        usize::from(self.in_flight.is_some())
    }

    /// Monitors until an event. Cancel-safe: a later call continues.
    pub(super) async fn next_event(
        &mut self,
        link: &Arc<dyn Link>,
        shared: &SupervisorShared,
        memory: &SessionState,
    ) -> MonitorEvent {
        loop {
            // No second ping while a ping is in flight.
            let ping_at = match (self.ping_interval, &self.in_flight) {
                (Some(_), None) => Some(self.ping_at),
                (Some(_) | None, _) => None,
            };
            let idle_at = self.idle_timeout.map(|_| self.idle_check_at);
            let pong = async {
                match &mut self.in_flight {
                    Some(ping) => ping.await,
                    None => pending().await,
                }
            };
            let clock = shared.clock.as_ref();
            tokio::select! {
                biased;
                pong = pong => {
                    self.in_flight = None;
                    self.record_ping(pong, link, shared);
                    if self.misses >= MISSES_MAX {
                        return MonitorEvent::Silent;
                    }
                }
                () = sleep_until_due(clock, ping_at) => self.send_ping(link, shared),
                () = sleep_until_due(clock, idle_at) => {
                    if self.is_idle(link, shared, memory) {
                        return MonitorEvent::Idle;
                    }
                }
            }
        }
    }

    /// Pings a server without responses since the last check and without calls in flight: a
    /// sequential server responds only after its current call.
    fn send_ping(&mut self, link: &Arc<dyn Link>, shared: &SupervisorShared) {
        let now = shared.clock.now();
        self.ping_at = self.ping_interval.map_or(now, |every| now.plus(every));
        let answered = shared.count_answered();
        let spoke = std::mem::replace(&mut self.answered, answered) != answered;
        if spoke {
            self.misses = 0;
        }
        if !spoke && link.in_flight() == 0 {
            let deadline = shared.clock.instant(now.plus(PING_TIMEOUT));
            let link = Arc::clone(link);
            self.in_flight = Some(Box::pin(async move {
                // The modern era has no ping; every server supports discover.
                let method = match link.era() {
                    Era::Legacy => method::PING,
                    Era::Modern => method::DISCOVER,
                };
                let request = LinkRequest::new_internal(method, Bytes::new(), deadline);
                PingOutcome::from_result(&link.request(request).await)
            }));
        }
    }

    fn record_ping(&mut self, pong: PingOutcome, link: &Arc<dyn Link>, shared: &SupervisorShared) {
        let now = shared.clock.now();
        self.ping_at = self.ping_interval.map_or(now, |every| now.plus(every));
        let answered = shared.count_answered();
        let spoke = std::mem::replace(&mut self.answered, answered) != answered;
        match pong {
            PingOutcome::Response => {
                self.answers_pings = true;
                self.misses = 0;
            }
            PingOutcome::Alive => self.misses = 0,
            PingOutcome::Silence if spoke => self.misses = 0,
            // The server may be busy with a call started meanwhile.
            PingOutcome::Silence if link.in_flight() > 0 => {}
            PingOutcome::Silence if self.answers_pings => self.misses += 1,
            PingOutcome::Silence | PingOutcome::Unknown => {}
        }
    }

    fn is_idle(
        &mut self,
        link: &Arc<dyn Link>,
        shared: &SupervisorShared,
        memory: &SessionState,
    ) -> bool {
        let now = shared.clock.now();
        let Some(after) = self.idle_timeout else {
            return false;
        };
        self.idle_check_at = now.plus((after / IDLE_CHECKS).max(Duration::from_millis(1)));
        let calls = shared.read_totals(LoadTotals::awaited_count);
        let called = std::mem::replace(&mut self.calls, calls) != calls;
        let own = self.pings_in_flight();
        let name = &shared.spec.name;
        let needed = called
            || link.in_flight() > own
            || shared.dedicated.len() > 0
            || lock(&memory.subscriptions)
                .subscribed_uris(name)
                .next()
                .is_some()
            || lock(&memory.tasks).has_task_at(name, LinkKey::SHARED, now);
        if needed {
            self.quiet_since = now;
        }
        now.millis_since(self.quiet_since) >= to_millis(after)
    }
}

impl PingOutcome {
    fn from_result<T>(outcome: &Result<T, LinkError>) -> Self {
        match outcome {
            Ok(_) => Self::Response,
            Err(
                LinkError::TooLong { .. }
                | LinkError::BadResponse(_)
                | LinkError::Unauthorized { .. }
                | LinkError::Throttled { .. }
                | LinkError::Http { .. }
                | LinkError::ContentType { .. }
                | LinkError::BadHead(_)
                | LinkError::Redirect(_)
                | LinkError::InputFailed(_)
                | LinkError::RemoteFailure(_),
            ) => Self::Alive,
            Err(LinkError::Timeout { .. } | LinkError::NotSent(_) | LinkError::Unreachable(_)) => {
                Self::Silence
            }
            Err(
                LinkError::Busy { .. }
                | LinkError::Closed(_)
                | LinkError::Lost(_)
                | LinkError::ConnectionLost(_)
                | LinkError::Credentials(_),
            ) => Self::Unknown,
        }
    }
}

impl fmt::Debug for LinkMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkMonitor")
            .field("misses", &self.misses)
            .field("quiet_since", &self.quiet_since)
            .finish_non_exhaustive()
    }
}
