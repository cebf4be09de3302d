//! The audit trail of a gateway: `STATE/audit`, opened with it and closed after its last call.

mod export;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Principal;
use bowline_host::Host;
use bowline_host::audit::{self, Note, Rings, Shows, Target, Unaudited};
use bowline_host::ports::Clock;
use bowline_journal::audit::{AuditError, DENIALS, Kind, Limits, Verdict, Verdicts};
use bowline_link::http::client::HttpClient;
use serde_json::{Value, json};
use tokio::sync::watch;

pub use self::export::ExportCounts;
use self::export::Shipper;
use crate::config::{self, AuditExport};
use crate::state::{self, State};
use crate::telemetry::Secrets;

/// The directory of the trail inside the state directory.
const DIRECTORY: &str = "audit";

/// How often, and after which time, it is looked whether calls are under way at the end.
const LEFT_LOOKS_MAX: u32 = 100;
const LEFT_WAIT: Duration = Duration::from_millis(10);

/// Rows that are young may take so many times the room that others may.
const YOUNG_FACTOR: usize = 4;

/// How often refusals that are counted are looked at.
const SWEEP: Duration = Duration::from_secs(1);

/// Why the trail cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Its directory cannot be used.
    #[error(transparent)]
    State(#[from] state::Error),
    /// Its files cannot be used.
    #[error("the audit trail cannot be written")]
    Trail(#[from] AuditError),
}

/// The trail of a gateway, or none where the configuration wants none.
#[derive(Clone, Debug, Default)]
pub struct Auditing {
    rings: Option<Arc<Rings>>,
    /// What became of rows that are shipped; absent where none are.
    export: Option<Arc<ExportCounts>>,
}

/// Returns where the trail of a state directory is.
#[must_use]
pub fn directory(state: &Path) -> PathBuf {
    state.join(DIRECTORY)
}

impl Auditing {
    /// Opens the trail. The lock of the state directory is held by then.
    pub fn open(
        state: &State,
        wanted: config::Audit,
        clock: &Arc<dyn Clock>,
        secrets: &Secrets,
    ) -> Result<Self, OpenError> {
        if !wanted.calls {
            return Ok(Self::default());
        }
        let directory = state.directory(DIRECTORY)?;
        state.directory(&format!("{DIRECTORY}/{DENIALS}"))?;
        let files_max = wanted.keep as usize;
        let calls = Limits {
            file_bytes_max: wanted.max_bytes,
            files_max,
            files_hard_max: files_max.saturating_mul(YOUNG_FACTOR),
            age_min: wanted.min_age,
            age_max: wanted.max_age,
            ..Limits::default()
        };
        // What was only refused is not worth more room because it is young.
        let denials = Limits {
            file_bytes_max: wanted.denials_max_bytes,
            files_hard_max: files_max,
            age_min: Duration::ZERO,
            ..calls
        };
        let shows = || {
            let secrets = secrets.clone();
            Shows {
                clean: Box::new(move |text| secrets.clean(text)),
                payload: wanted.payload,
            }
        };
        let (limits, shows) = ((calls, denials), (shows(), shows()));
        let rings = Rings::open(&directory, limits, Arc::clone(clock), shows)?;
        Ok(Self {
            rings: Some(Arc::new(rings)),
            export: None,
        })
    }

    /// The same, with rows that are shipped as they are written.
    #[must_use]
    pub fn exporting(self, wanted: Option<&AuditExport>) -> Self {
        let export = wanted.map(|_| Arc::default());
        Self { export, ..self }
    }

    /// Ships rows until told to stop.
    pub async fn ship(
        self,
        wanted: AuditExport,
        traces: config::Telemetry,
        http: Arc<dyn HttpClient>,
        stop: watch::Receiver<bool>,
    ) {
        let (Some(rings), Some(counts)) = (self.rings, self.export) else {
            return;
        };
        let collector = (traces.otlp.as_ref(), traces.service_name.as_str());
        match Shipper::new(&rings, &wanted, collector, http, &counts) {
            Some(shipper) => shipper.run(stop).await,
            None => tracing::error!("audit rows are not exported: [telemetry] names no `otlp`"),
        }
    }

    /// Returns what became of rows that are shipped.
    #[must_use]
    pub const fn export(&self) -> Option<&Arc<ExportCounts>> {
        self.export.as_ref()
    }

    /// Writes rows of refusals when the time is over in which they are counted together.
    pub async fn sweep(self, mut stop: watch::Receiver<bool>) {
        let Some(rings) = self.rings else {
            return;
        };
        let sweeping = async {
            loop {
                rings.counted().await;
                loop {
                    tokio::time::sleep(SWEEP).await;
                    if !rings.sweep() {
                        break;
                    }
                }
            }
        };
        tokio::select! {
            () = sweeping => {}
            // Whoever could say so being gone means the same.
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }

    /// Returns what the host notes calls in.
    #[must_use]
    pub fn port(&self) -> Arc<dyn audit::Audit> {
        match &self.rings {
            Some(trail) => Arc::clone(trail) as _,
            None => Arc::new(Unaudited),
        }
    }

    /// Returns the trail, where there is one.
    #[must_use]
    pub const fn trail(&self) -> Option<&Arc<Rings>> {
        self.rings.as_ref()
    }

    /// Writes down what is left, and takes no more. Calls that were cut off by the end of their
    /// servers are waited for, but not long.
    pub async fn close(&self, host: &Host) {
        let Some(trail) = &self.rings else {
            return;
        };
        for _ in 0..LEFT_LOOKS_MAX {
            if host.seats().taken.is_empty() {
                break;
            }
            tokio::time::sleep(LEFT_WAIT).await;
        }
        // A seat is free a moment before the row is noted, and this takes longer.
        trail.flush().await;
        trail.close().await;
    }

    /// Whether rows are lost at present, or the trail was found damaged.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.rings.as_ref().is_some_and(|rings| {
            let rings = [rings.calls(), rings.denials()];
            rings.iter().any(|ring| ring.health().trouble.is_some())
        })
    }

    /// Returns how it does, for people.
    #[must_use]
    pub fn status(&self) -> Value {
        let Some(trail) = &self.rings else {
            return json!({"state": "off"});
        };
        let (calls, denials) = (trail.calls().health(), trail.denials().health());
        let trouble = calls.trouble.or(denials.trouble);
        let state = if trouble.is_some() { "degraded" } else { "ok" };
        json!({
            "state": state,
            "reason": trouble,
            "lost": calls.lost + denials.lost,
            "waiting": calls.waiting + denials.waiting,
            "seq": calls.head.seq,
            "denials": {"seq": denials.head.seq, "lost": denials.lost},
            "export": self.export.as_ref().map(|counts| {
                json!({"sent": counts.sent(), "lost": counts.lost()})
            }),
        })
    }
}

/// Returns a note of what the owner did through the API.
#[must_use]
pub fn admin(
    principal: &Principal,
    at_ms: u64,
    (method, path): (&str, &str),
    is_done: bool,
) -> Note {
    let word = if is_done { "ok" } else { "failed" };
    let mut note = Note::new(Kind::Admin, at_ms, word);
    note.principal = Some(Arc::new(principal.clone()));
    let name = format!("{method} {path}").into();
    note.target = Target::Named { server: None, name };
    note
}

/// Returns what came of looking at a trail, for programs.
#[must_use]
pub fn verdicts(verdicts: &Verdicts) -> Value {
    let mut told = verdict(&verdicts.calls);
    if let Some(members) = told.as_object_mut() {
        members.insert("v".to_owned(), json!(1));
        members.insert("ok".to_owned(), json!(verdicts.is_whole()));
        members.insert(DENIALS.to_owned(), verdict(&verdicts.denials));
    }
    told
}

fn verdict(verdict: &Verdict) -> Value {
    let broken = verdict.broken.as_ref().map(
        |broken| json!({"seq": broken.seq, "reason": broken.damage.as_str(), "file": broken.file}),
    );
    json!({
        "ok": broken.is_none(),
        "rows": verdict.rows,
        "first": verdict.first,
        "head": {"seq": verdict.head.seq, "hash": verdict.head.hash.to_string()},
        "files": verdict.files,
        "gaps": verdict.gaps,
        "lost": verdict.lost,
        "let_go": verdict.let_go,
        "let_go_early": verdict.let_go_early,
        "merged": verdict.merged,
        "coalesced": verdict.coalesced,
        "broken": broken,
    })
}
