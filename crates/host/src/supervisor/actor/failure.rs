//! Handles failures: backoff, restart budget, ejection.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::error::FailureClass;
use bowline_core::recovery::{RecoveryAction, ServerFailure};
use bowline_core::time::{MonotonicTime, to_millis};
use bowline_link::LinkExit;
use bowline_link::stderr::{LAST_WORDS_LINES, last_words};

use super::super::failure_cause::{CatalogRetention, FailureCause, FailureSource};
use super::{ActorPhase, SupervisorActor};

/// A server ready for this long has recovered from earlier failures.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);

impl SupervisorActor {
    /// The link ended by itself.
    pub(super) fn on_link_lost(&mut self, exit: LinkExit, since: MonotonicTime) -> ActorPhase {
        let words = self.shared.log.tail(self.log_before, LAST_WORDS_LINES);
        let reason = format!("{exit}{}", last_words(&words));
        let cause = FailureCause {
            source: FailureSource::from_exit(exit),
            ..FailureCause::new(FailureClass::ConnectionLost, reason)
        };
        self.on_ready_failed(cause, since)
    }

    /// The server was ready since `since` and failed.
    pub(super) fn on_ready_failed(
        &mut self,
        cause: FailureCause,
        since: MonotonicTime,
    ) -> ActorPhase {
        self.shared.shared_link.store(None);
        let now = self.shared.clock.now();
        if now.millis_since(since) >= to_millis(HEALTHY_AFTER) {
            self.recovery.on_recovered();
        }
        self.on_failure(ServerFailure::LinkLost, cause)
    }

    /// The start failed.
    pub(super) fn on_start_failed(&mut self, cause: FailureCause) -> ActorPhase {
        self.on_failure(ServerFailure::StartFailed, cause)
    }

    /// Withdraws the catalog entries and forgets the stored lists, until the server lists again.
    fn forget_lists(&mut self) {
        self.manifest = None;
        self.withdraw_catalog();
        if !self.shared.is_retired() {
            self.deps.manifests.forget(&self.shared.spec.name);
        }
    }

    /// Counts a failure and returns the next phase.
    fn on_failure(&mut self, failure: ServerFailure, cause: FailureCause) -> ActorPhase {
        let cause = cause.redact(&self.shared.spec.secrets);
        self.shared.set_last_error(cause.class, &cause.reason);
        let now = self.shared.clock.now();
        let failure = match cause.source {
            FailureSource::Server if failure == ServerFailure::StartFailed && cause.is_outage() => {
                ServerFailure::Unreachable
            }
            FailureSource::Server => failure,
            FailureSource::Program => ServerFailure::ProgramNotFound,
            FailureSource::Path => ServerFailure::PathLost,
        };
        let next = self.recovery.on_failure(failure, now);
        self.shared
            .counts
            .restarts
            .store(self.recovery.spent_restarts().into(), Ordering::Relaxed);
        let shared = Arc::clone(&self.shared);
        let (server, reason) = (&shared.spec.name, &cause.reason);
        match next {
            RecoveryAction::Retry(wait) => {
                tracing::warn!(%server, %reason, ?wait, "server failed; will be restarted");
                if cause.retention == CatalogRetention::Withdrawn {
                    self.forget_lists();
                }
                ActorPhase::Backoff(wait, cause)
            }
            RecoveryAction::Eject => {
                tracing::error!(%server, %reason, "server failed too often; ejected");
                if !self.shared.is_retired() {
                    self.deps.catalog.eject_server(server);
                }
                ActorPhase::Ejected(cause.reason)
            }
        }
    }
}
