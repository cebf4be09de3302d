//! What a failure leads to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::error::Class;
use bowline_core::recovery::{Failure, Next};
use bowline_core::time::{Now, millis};
use bowline_link::Exit;
use bowline_link::stderr::{LAST_WORDS_LINES, last_words};

use super::super::cause::{Blame, Cause, Menu};
use super::{Actor, Phase};

/// A server that served this long has recovered from whatever ailed it before.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);

impl Actor {
    /// The link ended by itself.
    pub(super) fn lost(&mut self, exit: Exit, since: Now) -> Phase {
        let words = self.shared.log.tail(self.log_before, LAST_WORDS_LINES);
        let reason = format!("{exit}{}", last_words(&words));
        let cause = Cause {
            blame: Blame::of(exit),
            ..Cause::new(Class::ConnectionLost, reason)
        };
        self.served_until_now(cause, since)
    }

    /// It served from `since` on, and does no more.
    pub(super) fn served_until_now(&mut self, cause: Cause, since: Now) -> Phase {
        self.shared.ready.store(None);
        let now = self.shared.clock.now();
        if now.millis_since(since) >= millis(HEALTHY_AFTER) {
            self.recovery.recovered();
        }
        self.failed(Failure::Lost, cause)
    }

    /// It could not be started.
    pub(super) fn unstarted(&mut self, cause: Cause) -> Phase {
        self.failed(Failure::Unstarted, cause)
    }

    /// Offers nothing, and remembers nothing of what it offered, until it lists again.
    fn unlearn(&mut self) {
        self.manifest = None;
        self.withdraw();
        if !self.shared.is_retired() {
            self.around.manifests.forget(&self.shared.spec.name);
        }
    }

    /// Counts a failure and decides what comes next.
    fn failed(&mut self, failure: Failure, cause: Cause) -> Phase {
        let cause = cause.cleaned(&self.shared.spec.secrets);
        self.shared.remember(cause.class, &cause.reason);
        let now = self.shared.clock.now();
        let failure = match cause.blame {
            Blame::Server if failure == Failure::Unstarted && cause.is_outage() => {
                Failure::Unreachable
            }
            Blame::Server => failure,
            Blame::Program => Failure::ProgramNotFound,
            Blame::Way => Failure::Away,
        };
        let next = self.recovery.failed(failure, now, self.jitter());
        self.shared
            .counts
            .restarts
            .store(self.recovery.spent().into(), Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        let (server, reason) = (&shared.spec.name, &cause.reason);
        match next {
            Next::Retry(wait) => {
                tracing::warn!(%server, %reason, ?wait, "failed; will be started again");
                if cause.menu == Menu::Withdrawn {
                    self.unlearn();
                }
                Phase::Backoff(wait, cause)
            }
            Next::Eject => {
                tracing::error!(%server, %reason, "failed too often; ejected");
                if !self.shared.is_retired() {
                    self.around.catalog.eject(server);
                }
                Phase::Ejected(cause.reason)
            }
        }
    }
}
