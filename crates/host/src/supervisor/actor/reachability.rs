//! Finds out when a server can be reached again whose breaker is open.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::breaker::{Breaker, CheckPolicy, Checkup};
use bowline_core::era::Era;
use bowline_core::error::Class;
use bowline_core::sync::lock;
use bowline_link::{BoxFuture, Link, LinkError, Request};
use bowline_wire::mcp::method;
use tokio::time::sleep_until;

use super::super::Shared;
use crate::callpath::{ResponseWait, explain};
use crate::spec::{Reach, ServerSpec};

/// The waits between checks: callers are refused for about as long once the server is back.
const CHECK_BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(100),
    cap: Duration::from_millis(750),
};

/// How long a server may take to answer a check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the breaker of a server. Only a server that runs elsewhere is checked: a process that
/// we start is reached by starting it.
pub(in super::super) fn breaker(spec: &ServerSpec) -> Breaker {
    match spec.reach {
        Reach::Remote(_) | Reach::Peer(_) => {
            let mut mixer = DefaultHasher::new();
            spec.name.hash(&mut mixer);
            let checks = CheckPolicy {
                backoff: CHECK_BACKOFF,
                seed: mixer.finish(),
            };
            Breaker::with_checks(spec.breaker, checks)
        }
        Reach::Child(_) | Reach::Placed(_) | Reach::InProcess(_) => Breaker::new(spec.breaker),
    }
}

/// Carries out the reachability checks over one link, one at a time.
#[derive(Default)]
pub(super) struct Reachability {
    /// A check on its way.
    asked: Option<(Checkup, BoxFuture<'static, bool>)>,
}

impl Reachability {
    /// Carries out checks while the breaker asks for them. Dropped, it goes on when it is called
    /// again.
    pub(super) async fn watch(&mut self, link: &Arc<dyn Link>, shared: &Shared) {
        loop {
            if let Some((checkup, asked)) = &mut self.asked {
                let is_reached = asked.await;
                let (checkup, now) = (*checkup, shared.clock.now());
                self.asked = None;
                shared.with_breaker(now, |breaker| {
                    breaker.record_check(checkup, is_reached, now);
                });
            }
            let next = lock(&shared.breaker).next_check();
            match next {
                None => shared.opened.notified().await,
                Some(checkup) if checkup.due > shared.clock.now() => tokio::select! {
                    biased;
                    () = shared.opened.notified() => {}
                    () = sleep_until(shared.clock.instant(checkup.due)) => {}
                },
                Some(checkup) => {
                    let asked = ask(Arc::clone(link), shared);
                    self.asked = Some((checkup, asked));
                }
            }
        }
    }
}

/// Sends the cheapest request that the server answers.
fn ask(link: Arc<dyn Link>, shared: &Shared) -> BoxFuture<'static, bool> {
    let deadline = shared.clock.now().plus(CHECK_TIMEOUT);
    let deadline = shared.clock.instant(deadline);
    Box::pin(async move {
        let method = match link.era() {
            Era::Legacy => method::PING,
            Era::Modern => method::DISCOVER,
        };
        let request = Request::own(method, None, deadline);
        match link.request(request).await {
            Ok(_) => true,
            Err(error) => is_reached(&error),
        }
    })
}

/// Whether a server that answers a check so is there: any answer of its own will do.
fn is_reached(error: &LinkError) -> bool {
    let wait = ResponseWait::for_server(0);
    match explain(error, &Arc::default(), None, wait).class() {
        Class::Unavailable
        | Class::ConnectFailed
        | Class::SendFailed
        | Class::ConnectionLost
        | Class::Timeout
        | Class::Throttled => false,
        Class::Denied
        | Class::NotFound
        | Class::Invalid
        | Class::AuthRequired
        | Class::ScopeRequired
        | Class::ProtocolError
        | Class::Truncated
        | Class::Cancelled => true,
    }
}

impl fmt::Debug for Reachability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reachability")
            .field("is_asked", &self.asked.is_some())
            .finish()
    }
}
