//! The audit trail of a gateway: `STATE/audit`, open until the last call has ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bowline_api::VERSION;
use bowline_api::audit_trail::{
    AuditRingBreak, AuditRingCounts, AuditRingHead, AuditRingReport, AuditVerifyResponse,
};
use bowline_api::status::{AuditExportStatus, AuditStatus, AuditTrailStatus, DenialsRingStatus};
use bowline_core::call::Principal;
use bowline_host::Host;
use bowline_host::audit::{
    self, AuditEntry, AuditRings, AuditTarget, NullAuditSink, RedactFn, RenderOptions, RingOptions,
};
use bowline_journal::audit::{
    AuditError, AuditLimits, AuditRowKind, DENIALS_RING, RingReports, VerifyReport,
};
use bowline_runtime::{Clock, Shutdown};

use crate::export_counts::ExportCounts;
use bowline_config::AuditExportConfig;
use bowline_config::state::{self, StateDir};

/// Directory of the trail inside the state directory.
const TRAIL_DIRECTORY: &str = "audit";

/// Polls, and their interval, while waiting for running calls at shutdown.
const SHUTDOWN_POLLS_MAX: u32 = 100;
const SHUTDOWN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Factor by which young rows may exceed the size limit.
const YOUNG_ROWS_FACTOR: usize = 4;

/// Interval for writing counted denials.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Reason why the trail cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum AuditOpenError {
    /// The directory is unusable.
    #[error(transparent)]
    State(#[from] state::StateError),
    /// The files are unusable.
    #[error("the audit trail cannot be written")]
    Trail(#[from] AuditError),
}

/// The audit trail of a gateway; empty when disabled by the configuration.
#[derive(Clone, Debug, Default)]
pub struct GatewayAudit {
    rings: Option<Arc<AuditRings>>,
    /// Counts of exported rows; absent without an export.
    export_counts: Option<Arc<ExportCounts>>,
}

/// Returns the trail directory of a state directory.
#[must_use]
pub fn trail_directory(state: &Path) -> PathBuf {
    state.join(TRAIL_DIRECTORY)
}

impl GatewayAudit {
    /// Opens the trail. The caller holds the lock of the state directory.
    pub fn open(
        state: &StateDir,
        config: bowline_config::AuditConfig,
        clock: &Arc<dyn Clock>,
        redact: &RedactFn,
    ) -> Result<Self, AuditOpenError> {
        if !config.calls {
            return Ok(Self::default());
        }
        let directory = state.open_subdirectory(TRAIL_DIRECTORY)?;
        state.open_subdirectory(&format!("{TRAIL_DIRECTORY}/{DENIALS_RING}"))?;
        let files_max = config.keep as usize;
        let calls = AuditLimits {
            file_bytes_max: config.max_bytes,
            files_max,
            files_hard_max: files_max.saturating_mul(YOUNG_ROWS_FACTOR),
            age_min: config.min_age,
            age_max: config.max_age,
            ..AuditLimits::default()
        };
        // Denials get no extra room for young rows.
        let denials = AuditLimits {
            file_bytes_max: config.denials_max_bytes,
            files_hard_max: files_max,
            age_min: Duration::ZERO,
            ..calls
        };
        let ring_options = |limits| RingOptions {
            limits,
            render: RenderOptions {
                redact: Arc::clone(redact),
                payload: config.payload,
            },
        };
        let (calls, denials) = (ring_options(calls), ring_options(denials));
        let rings = AuditRings::open(&directory, calls, denials, Arc::clone(clock))?;
        Ok(Self {
            rings: Some(Arc::new(rings)),
            export_counts: None,
        })
    }

    /// Enables counting of exported rows, if an export is configured.
    #[must_use]
    pub fn with_export_counts(self, config: Option<&AuditExportConfig>) -> Self {
        let export = config.map(|_| Arc::default());
        Self {
            export_counts: export,
            ..self
        }
    }

    /// Returns the counts of exported rows.
    #[must_use]
    pub const fn export_counts(&self) -> Option<&Arc<ExportCounts>> {
        self.export_counts.as_ref()
    }

    /// Writes counted denials at the end of each counting period.
    pub async fn write_counted_denials(self, shutdown: Shutdown) {
        let Some(rings) = self.rings else {
            return;
        };
        let sweeping = async {
            loop {
                rings.wait_counted().await;
                loop {
                    tokio::time::sleep(SWEEP_INTERVAL).await;
                    if !rings.sweep() {
                        break;
                    }
                }
            }
        };
        tokio::select! {
            () = sweeping => {}
            () = shutdown.wait_closing() => {}
        }
    }

    /// Returns the sink for the host's audit entries.
    #[must_use]
    pub fn audit_sink(&self) -> Arc<dyn audit::AuditSink> {
        match &self.rings {
            Some(trail) => Arc::clone(trail) as _,
            None => Arc::new(NullAuditSink),
        }
    }

    /// Returns the rings, if auditing is enabled.
    #[must_use]
    pub const fn rings(&self) -> Option<&Arc<AuditRings>> {
        self.rings.as_ref()
    }

    /// Flushes and closes the trail. Waits briefly for calls cut off by the stop of their servers.
    pub async fn close(&self, host: &Host) {
        let Some(trail) = &self.rings else {
            return;
        };
        for _ in 0..SHUTDOWN_POLLS_MAX {
            if host.calls_in_flight().in_flight.is_empty() {
                break;
            }
            tokio::time::sleep(SHUTDOWN_POLL_INTERVAL).await;
        }
        // A permit is released just before its row is queued; the flush takes longer.
        trail.flush().await;
        trail.close().await;
    }

    /// Returns whether rows are being lost or the trail is damaged.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.rings.as_ref().is_some_and(|rings| {
            let rings = [rings.calls(), rings.denials()];
            rings.iter().any(|ring| ring.health().failure.is_some())
        })
    }

    /// Returns the status of the trail.
    #[must_use]
    pub fn status(&self) -> AuditStatus {
        let Some(trail) = &self.rings else {
            return AuditStatus {
                state: "off".into(),
                trail: None,
            };
        };
        let (calls, denials) = (trail.calls().health(), trail.denials().health());
        let failure = calls.failure.or(denials.failure);
        let state = if failure.is_some() { "degraded" } else { "ok" };
        let export = self.export_counts.as_ref().map(|counts| AuditExportStatus {
            sent: counts.sent_count(),
            lost: counts.lost_count(),
        });
        let trail = AuditTrailStatus {
            reason: failure,
            lost: calls.lost + denials.lost,
            waiting: (calls.queued + denials.queued) as u64,
            seq: calls.head.seq,
            denials: DenialsRingStatus {
                seq: denials.head.seq,
                lost: denials.lost,
            },
            export,
        };
        AuditStatus {
            state: state.into(),
            trail: Some(trail),
        }
    }
}

/// Builds the audit entry of an owner's API request.
#[must_use]
pub(crate) fn admin_entry(
    principal: &Principal,
    at_ms: u64,
    method: &str,
    path: &str,
    has_succeeded: bool,
) -> AuditEntry {
    let word = if has_succeeded { "ok" } else { "failed" };
    let mut entry = AuditEntry::new(AuditRowKind::Admin, at_ms, word);
    entry.principal = Some(Arc::new(principal.clone()));
    let name = format!("{method} {path}").into();
    entry.target = AuditTarget::Named { server: None, name };
    entry
}

/// Returns the result of a trail verification in the API format.
#[must_use]
pub fn to_verify_response(verdicts: &RingReports) -> AuditVerifyResponse {
    AuditVerifyResponse {
        v: VERSION,
        ok: verdicts.is_intact(),
        calls: ring_counts(&verdicts.calls),
        denials: AuditRingReport {
            ok: verdicts.denials.broken.is_none(),
            counts: ring_counts(&verdicts.denials),
        },
    }
}

fn ring_counts(verdict: &VerifyReport) -> AuditRingCounts {
    let broken = verdict.broken.as_ref().map(|broken| AuditRingBreak {
        seq: broken.seq,
        reason: broken.damage.as_str().to_owned(),
        file: broken.file.clone(),
    });
    AuditRingCounts {
        rows: verdict.rows,
        first: verdict.first_seq,
        head: AuditRingHead {
            seq: verdict.head.seq,
            hash: verdict.head.hash.to_string(),
        },
        files: verdict.files as u64,
        gaps: verdict.gaps,
        lost: verdict.lost,
        let_go: verdict.evicted,
        let_go_early: verdict.evicted_early,
        merged: verdict.merged,
        coalesced: verdict.coalesced,
        broken,
    }
}
