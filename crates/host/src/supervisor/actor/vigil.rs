//! Watches over a link that is quiet: asks whether the server is still there, and notices that
//! nobody needs it.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::era::Era;
use bowline_core::load::Totals;
use bowline_core::sync::lock;
use bowline_core::tasks::LinkKey;
use bowline_core::time::{Now, millis};
use bowline_link::{BoxFuture, Link, LinkError, Request};
use bowline_wire::mcp::method;
use tokio::time::sleep_until;

use super::super::Shared;
use crate::memory::Memory;
use crate::ports::Clock;

/// How long a server may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// So many pings in a row without an answer end a link.
const MISSES_MAX: u32 = 3;

/// Within the time after which a server is stopped for being idle, it is looked so often whether
/// it is: that costs calls nothing, and stops the server late by no more than such a part.
const LOOKS: u32 = 8;

/// What was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// Nobody needed the server for long enough.
    Idle,
    /// It used to answer pings, and does no more.
    Silent,
}

/// What came of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pong {
    /// An answer, be it an error.
    Answer,
    /// Not an answer, but a sign of life.
    Alive,
    /// Nothing.
    Silence,
    /// The link is gone, or the ping never left: nothing was learned.
    Untold,
}

/// Watches over one link.
pub(super) struct Vigil {
    ping: Option<Duration>,
    ping_at: Now,
    /// A ping on its way.
    asked: Option<BoxFuture<'static, Pong>>,
    /// Calls that were answered when it was last looked.
    answered: u64,
    /// Whether the server has answered a ping on this link: one that never did is not judged by it.
    proven: bool,
    misses: u32,
    idle: Option<Duration>,
    idle_at: Now,
    /// Calls that had ended when it was last looked.
    calls: u64,
    /// Since when nobody needed it.
    quiet_since: Now,
}

impl Vigil {
    pub(super) fn new(shared: &Shared) -> Self {
        let now = shared.clock.now();
        let spec = &shared.spec;
        Self {
            ping: spec.ping,
            ping_at: spec.ping.map_or(now, |every| now.plus(every)),
            asked: None,
            answered: shared.answered(),
            proven: false,
            misses: 0,
            idle: spec.idle_stop,
            idle_at: spec.idle_stop.map_or(now, |after| now.plus(after / LOOKS)),
            calls: shared.counted(Totals::awaited),
            quiet_since: now,
        }
    }

    /// Returns how many pings are on their way.
    pub(super) fn pings(&self) -> usize {
        usize::from(self.asked.is_some())
    }

    /// Watches until there is something to tell. Dropped, it goes on when it is called again.
    pub(super) async fn next(
        &mut self,
        link: &Arc<dyn Link>,
        shared: &Shared,
        memory: &Memory,
    ) -> Seen {
        loop {
            // While one ping is on its way, the next is not due.
            let ping_at = match (self.ping, &self.asked) {
                (Some(_), None) => Some(self.ping_at),
                (Some(_) | None, _) => None,
            };
            let idle_at = self.idle.map(|_| self.idle_at);
            let pong = async {
                match &mut self.asked {
                    Some(asked) => asked.await,
                    None => pending().await,
                }
            };
            let clock = shared.clock.as_ref();
            tokio::select! {
                biased;
                pong = pong => {
                    self.asked = None;
                    self.judge(pong, link, shared);
                    if self.misses >= MISSES_MAX {
                        return Seen::Silent;
                    }
                }
                () = due(clock, ping_at) => self.ask(link, shared),
                () = due(clock, idle_at) => {
                    if self.is_idle(link, shared, memory) {
                        return Seen::Idle;
                    }
                }
            }
        }
    }

    /// Asks a server that said nothing since it was last looked, and has nothing to do: one that
    /// does one thing at a time answers when it is done.
    fn ask(&mut self, link: &Arc<dyn Link>, shared: &Shared) {
        let now = shared.clock.now();
        self.ping_at = self.ping.map_or(now, |every| now.plus(every));
        let answered = shared.answered();
        let spoke = std::mem::replace(&mut self.answered, answered) != answered;
        if spoke {
            self.misses = 0;
        }
        if !spoke && link.in_flight() == 0 {
            let deadline = shared.clock.instant(now.plus(PING_TIMEOUT));
            let link = Arc::clone(link);
            self.asked = Some(Box::pin(async move {
                // The modern era has no pings; every server answers this.
                let method = match link.era() {
                    Era::Legacy => method::PING,
                    Era::Modern => method::DISCOVER,
                };
                let request = Request::own(method, None, deadline);
                Pong::of(&link.request(request).await)
            }));
        }
    }

    fn judge(&mut self, pong: Pong, link: &Arc<dyn Link>, shared: &Shared) {
        let now = shared.clock.now();
        self.ping_at = self.ping.map_or(now, |every| now.plus(every));
        let answered = shared.answered();
        let spoke = std::mem::replace(&mut self.answered, answered) != answered;
        match pong {
            Pong::Answer => {
                self.proven = true;
                self.misses = 0;
            }
            Pong::Alive => self.misses = 0,
            Pong::Silence if spoke => self.misses = 0,
            // It may be busy with a call that came meanwhile.
            Pong::Silence if link.in_flight() > 0 => {}
            Pong::Silence if self.proven => self.misses += 1,
            Pong::Silence | Pong::Untold => {}
        }
    }

    fn is_idle(&mut self, link: &Arc<dyn Link>, shared: &Shared, memory: &Memory) -> bool {
        let now = shared.clock.now();
        let Some(after) = self.idle else {
            return false;
        };
        self.idle_at = now.plus((after / LOOKS).max(Duration::from_millis(1)));
        let calls = shared.counted(Totals::awaited);
        let called = std::mem::replace(&mut self.calls, calls) != calls;
        let own = self.pings();
        let name = &shared.spec.name;
        let needed = called
            || link.in_flight() > own
            || shared.own.len() > 0
            || lock(&memory.subscriptions).wanted(name).next().is_some()
            || lock(&memory.tasks).any_at(name, LinkKey::SHARED, now);
        if needed {
            self.quiet_since = now;
        }
        now.millis_since(self.quiet_since) >= millis(after)
    }
}

impl Pong {
    fn of<T>(outcome: &Result<T, LinkError>) -> Self {
        match outcome {
            Ok(_) => Self::Answer,
            Err(
                LinkError::TooLong { .. }
                | LinkError::BadAnswer(_)
                | LinkError::Unauthorized { .. }
                | LinkError::Throttled { .. }
                | LinkError::Http { .. }
                | LinkError::ContentType { .. }
                | LinkError::BadHead(_)
                | LinkError::Redirect(_)
                | LinkError::Unanswered(_)
                | LinkError::Elsewhere(_),
            ) => Self::Alive,
            Err(LinkError::Timeout { .. } | LinkError::NotSent(_) | LinkError::Unreachable(_)) => {
                Self::Silence
            }
            Err(
                LinkError::Busy { .. }
                | LinkError::Closed(_)
                | LinkError::Lost(_)
                | LinkError::Cut(_)
                | LinkError::Credentials(_),
            ) => Self::Untold,
        }
    }
}

async fn due(clock: &dyn Clock, at: Option<Now>) {
    match at {
        Some(at) => sleep_until(clock.instant(at)).await,
        None => pending().await,
    }
}

impl fmt::Debug for Vigil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vigil")
            .field("misses", &self.misses)
            .field("quiet_since", &self.quiet_since)
            .finish_non_exhaustive()
    }
}
