//! Applies a changed config file: completely, or not at all when the file is invalid.

mod file_watch;
mod outcome;
pub(crate) mod unmatched_rules;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bowline_api::servers::BrokenServer;
use bowline_core::sync::lock;
use bowline_core::time::to_millis;
use bowline_host::events::EventKind;
use bowline_host::spec::ServerSpec;
use bowline_host::{ApplyReport, Host, HostLimits};
use bowline_runtime::Shutdown;
use tokio::sync::{Semaphore, broadcast};

use self::file_watch::FileWatch;
pub(crate) use self::file_watch::{FileStamp, file_stamp};
pub use self::outcome::{ChangeState, ReloadOutcome, ReloadRefusal, ReloadReport};
use crate::secrets::SecretVault;
use crate::trust::{TrustStatus, TrustStore};
use crate::{
    AuditConfig, AuditExportConfig, BrokerConfig, Config, ConnectionLimits, EnvVars,
    ExecutorConfig, JournalEngine, PatternMention, PolicyConfig, TelemetryConfig,
};

/// Outcomes buffered for a slow subscriber.
const OUTCOMES_MAX: usize = 64;

/// Translates a configuration into server specs.
pub(crate) type SpecTranslator = dyn Fn(&Config) -> Vec<ServerSpec> + Send + Sync;

/// Dials exactly the executors of a configuration.
pub type ExecutorDialer = dyn Fn(&BTreeMap<Arc<str>, ExecutorConfig>) + Send + Sync;

/// Reloads the config file and tracks the state of the configuration.
pub struct Reloader {
    source: Option<Arc<ConfigSource>>,
    /// Serializes reloads.
    reload_permit: Semaphore,
    state: Mutex<ReloadState>,
    outcomes: broadcast::Sender<Arc<ReloadOutcome>>,
    /// Settings that only a restart of the gateway changes, as of the start.
    startup: StartupSettings,
    /// Dials the executors of a new configuration.
    dial_executors: Option<Box<ExecutorDialer>>,
}

/// Origin of the configuration.
struct ConfigSource {
    path: PathBuf,
    /// Set when the file counts only because its directory is trusted.
    trust: Option<TrustStore>,
    env: EnvVars,
    vault: Arc<SecretVault>,
    translate: Box<SpecTranslator>,
}

#[derive(Debug)]
struct StartupSettings {
    listen: Vec<std::net::SocketAddr>,
    names: Vec<Arc<str>>,
    telemetry: TelemetryConfig,
    journal: JournalEngine,
    broker: BrokerConfig,
    audit: AuditConfig,
    audit_export: Option<AuditExportConfig>,
    starts_max: usize,
    connections: ConnectionLimits,
}

/// State of the configuration in force.
#[derive(Debug, Default)]
struct ReloadState {
    /// Digest of the text last read; `None` while the file is missing.
    text_digest: Option<u64>,
    broken_servers: Vec<BrokenServer>,
    /// Warning that names servers with one process for several principals.
    sharing_warning: Option<Arc<str>>,
    /// The policy in force.
    policy: PolicyConfig,
    /// Positions of the policy's patterns in the file.
    mentions: Vec<PatternMention>,
    /// Executors dialled by the gateway.
    executors: BTreeMap<Arc<str>, ExecutorConfig>,
    error: Option<Arc<str>>,
}

/// The changes that took effect.
struct AppliedChanges {
    applied: ApplyReport,
    policy: ChangeState,
    executors: ChangeState,
}

/// Error: the gateway has no config file.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the gateway was started without a config file")]
pub struct NoConfigFile;

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader")
            .field("path", &self.source.as_ref().map(|source| &source.path))
            .field("known", &self.state)
            .finish_non_exhaustive()
    }
}

impl Reloader {
    /// Creates a reloader for a gateway that starts with `config`.
    pub fn new(config: &Config, env: &EnvVars, translate: Box<SpecTranslator>) -> Self {
        let source = config.path.as_ref().map(|path| {
            Arc::new(ConfigSource {
                path: path.clone(),
                trust: config.trust.clone(),
                env: env.clone(),
                vault: Arc::clone(config.secrets.vault()),
                translate,
            })
        });
        Self {
            source,
            reload_permit: Semaphore::new(1),
            state: Mutex::new(ReloadState {
                text_digest: Some(config.digest),
                broken_servers: config.broken_servers.clone(),
                sharing_warning: crate::sharing_warning(config).map(Into::into),
                policy: config.policy.clone(),
                mentions: config.pattern_mentions.clone(),
                executors: config.executors.clone(),
                error: None,
            }),
            outcomes: broadcast::Sender::new(OUTCOMES_MAX),
            startup: StartupSettings {
                listen: config.listen.clone(),
                names: config.names.clone(),
                telemetry: config.telemetry.clone(),
                journal: config.journal,
                broker: config.broker.clone(),
                audit: config.audit,
                audit_export: config.audit_export.clone(),
                starts_max: config.limits.starts_max,
                connections: config.connections,
            },
            dial_executors: None,
        }
    }

    /// Sets how changed executors are dialled.
    #[must_use]
    pub fn with_executors(self, dial: Box<ExecutorDialer>) -> Self {
        Self {
            dial_executors: Some(dial),
            ..self
        }
    }

    /// Returns the servers unable to run on this machine.
    pub fn broken_servers(&self) -> Vec<BrokenServer> {
        lock(&self.state).broken_servers.clone()
    }

    /// Names the servers with one process for several principals.
    pub fn sharing_warning(&self) -> Option<Arc<str>> {
        lock(&self.state).sharing_warning.clone()
    }

    /// Returns why the current file is not in force, if the file was refused.
    pub fn config_error(&self) -> Option<Arc<str>> {
        lock(&self.state).error.clone()
    }

    /// Passes the policy in force and the positions of its patterns to `look`.
    pub fn with_policy<T>(&self, read: impl FnOnce(&PolicyConfig, &[PatternMention]) -> T) -> T {
        let state = lock(&self.state);
        read(&state.policy, &state.mentions)
    }

    /// Subscribes to the outcome of every reload.
    pub fn subscribe_outcomes(&self) -> broadcast::Receiver<Arc<ReloadOutcome>> {
        self.outcomes.subscribe()
    }

    /// Reads the file and applies it completely, or refuses it.
    ///
    /// # Errors
    /// The gateway has no config file.
    pub async fn reload(&self, host: &Host) -> Result<Arc<ReloadOutcome>, NoConfigFile> {
        let source = self.source.as_ref().ok_or(NoConfigFile)?;
        // The semaphore is never closed.
        let _permit = self.reload_permit.acquire().await;
        let began = host.clock().now();
        let (digest, loaded) = source.load_config().await;
        let outcome = match loaded {
            Ok((config, specs)) => {
                let changes = self.apply_config(host, &config, specs);
                let took = began.duration_until(host.clock().now());
                ReloadOutcome::Applied(self.build_report(host, config, changes, to_millis(took)))
            }
            Err(refusal) => {
                let reason = Arc::clone(&refusal.summary);
                lock(&self.state).error = Some(Arc::clone(&reason));
                host.events().publish(EventKind::ConfigRefused { reason });
                ReloadOutcome::Refused(refusal)
            }
        };
        lock(&self.state).text_digest = digest;
        let outcome = Arc::new(outcome);
        // Without subscribers the send fails; the caller gets the outcome anyway.
        let _sent = self.outcomes.send(Arc::clone(&outcome));
        Ok(outcome)
    }

    fn apply_config(&self, host: &Host, config: &Config, specs: Vec<ServerSpec>) -> AppliedChanges {
        host.set_limits(HostLimits {
            starts_max: self.startup.starts_max,
            ..config.limits
        });
        let mut state = lock(&self.state);
        state.broken_servers.clone_from(&config.broken_servers);
        state.sharing_warning = crate::sharing_warning(config).map(Into::into);
        state.error = None;
        state.mentions.clone_from(&config.pattern_mentions);
        let policy = ChangeState::update_value(&mut state.policy, &config.policy);
        let executors = ChangeState::update_value(&mut state.executors, &config.executors);
        drop(state);
        // The policy comes first, so no call reaches a new server under the old rules.
        if policy == ChangeState::Changed {
            host.set_policy(config.policy.compile());
        }
        if let Some(dial_executors) = &self.dial_executors {
            dial_executors(&config.executors);
        }
        AppliedChanges {
            applied: host.apply_config(specs),
            policy,
            executors,
        }
    }

    fn build_report(
        &self,
        host: &Host,
        config: Config,
        changes: AppliedChanges,
        took_ms: u64,
    ) -> ReloadReport {
        let fixed = [
            ("gateway.listen", config.listen == self.startup.listen),
            ("gateway.names", config.names == self.startup.names),
            ("telemetry", config.telemetry == self.startup.telemetry),
            ("journal", config.journal == self.startup.journal),
            ("broker", config.broker == self.startup.broker),
            ("audit", config.audit == self.startup.audit),
            (
                "audit.export",
                config.audit_export == self.startup.audit_export,
            ),
            (
                "limits.starts",
                config.limits.starts_max == self.startup.starts_max,
            ),
            (
                "limits.unproven_connections",
                config.connections.unauthenticated_max
                    == self.startup.connections.unauthenticated_max,
            ),
            (
                "limits.address_connections",
                config.connections.address_max == self.startup.connections.address_max,
            ),
        ];
        let unmatched =
            unmatched_rules::find_unmatched_rules(&config.pattern_mentions, &host.catalog());
        let different = fixed.iter().filter(|(_, is_same)| !is_same);
        let AppliedChanges {
            applied,
            policy,
            executors,
        } = changes;
        ReloadReport {
            applied,
            policy,
            executors,
            broken: config.broken_servers,
            warnings: config
                .warnings
                .into_iter()
                .chain(unmatched)
                .map(|warning| warning.message)
                .collect(),
            needs_restart: different.map(|(key, _)| *key).collect(),
            took_ms,
        }
    }

    /// Returns whether the file differs from the text last read.
    async fn has_file_changed(&self) -> bool {
        let Some(source) = &self.source else {
            return false;
        };
        let path = source.path.clone();
        let text = tokio::task::spawn_blocking(move || crate::read_config_text(&path));
        let digest = text
            .await
            .ok()
            .and_then(Result::ok)
            .map(|text| text_digest(&text));
        digest != lock(&self.state).text_digest
    }
}

impl ConfigSource {
    /// Reads the file on a blocking thread: files may be slow, and calls continue meanwhile.
    async fn load_config(
        self: &Arc<Self>,
    ) -> (
        Option<u64>,
        Result<(Config, Vec<ServerSpec>), ReloadRefusal>,
    ) {
        let this = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            let text = match crate::read_config_text(&this.path) {
                Ok(text) => text,
                Err(error) => return (None, Err(ReloadRefusal::from_config_error(&error))),
            };
            if let Err(refusal) = this.check_trust(&text) {
                return (Some(text_digest(&text)), Err(refusal));
            }
            let config = crate::parse_config_with(&text, &this.path, &this.env, &this.vault);
            let specs = config
                .map(|config| {
                    let specs = (this.translate)(&config);
                    (config, specs)
                })
                .map_err(|error| ReloadRefusal::from_config_error(&error));
            (Some(text_digest(&text)), specs)
        });
        read.await
            .unwrap_or_else(|error| (None, Err(ReloadRefusal::from_join_error(&error))))
    }

    /// Refuses an untrusted text when the file counts by trust alone.
    fn check_trust(&self, text: &str) -> Result<(), ReloadRefusal> {
        let (Some(store), Some(directory)) = (&self.trust, self.path.parent()) else {
            return Ok(());
        };
        match store.check_trust(directory, text) {
            Ok(TrustStatus::Trusted) => Ok(()),
            Ok(TrustStatus::Changed | TrustStatus::Unknown) => {
                Err(ReloadRefusal::untrusted_directory(directory))
            }
            Err(error) => Err(ReloadRefusal::from_message(
                &bowline_core::error::display_chain(&error),
            )),
        }
    }
}

/// Reloads whenever the file changes, until shutdown.
pub async fn watch_config_file(reloader: Arc<Reloader>, host: Host, shutdown: Shutdown) {
    let Some(source) = &reloader.source else {
        return;
    };
    let mut watch = FileWatch::new(&source.path);
    loop {
        // Checked first: the file may have changed before the watch began.
        if reloader.has_file_changed().await {
            // The file exists, and interested parties subscribe to outcomes.
            let _outcome = reloader.reload(&host).await;
        }
        tokio::select! {
            () = watch.wait_changed() => {}
            () = shutdown.wait_closing() => return,
        }
    }
}

/// Hashes a text for comparison.
pub(crate) fn text_digest(text: &str) -> u64 {
    let mut mixer = DefaultHasher::new();
    text.hash(&mut mixer);
    mixer.finish()
}
