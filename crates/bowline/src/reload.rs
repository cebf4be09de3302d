//! Brings a changed config file into force: whole and valid, or not at all.

mod outcome;
pub(crate) mod strangers;
mod watch;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_core::time::millis;
use bowline_host::events::What;
use bowline_host::executor::Executors;
use bowline_host::spec::ServerSpec;
use bowline_host::{Applied, Host, HostLimits};
use tokio::sync::{Semaphore, broadcast, watch as signal};

pub use self::outcome::{Outcome, Refusal, Report, Standing};
use self::watch::Watch;
pub(crate) use self::watch::{Stamp, stamp};
use crate::assemble::executors::dial;
use crate::config::{
    self, Audit, AuditExport, Broken, BrokerConfig, Config, ConnectionLimits, Engine, Env,
    ExecutorConfig, Mention, PolicyConfig, Telemetry,
};
use crate::edge::Edge;
use crate::secrets::Vault;
use crate::telemetry::Secrets;
use crate::trust::{Trust, TrustStore};

/// Outcomes that one who listens may be behind.
const OUTCOMES_MAX: usize = 64;

/// Turns what a file says into what the host needs.
pub(crate) type Translate = dyn Fn(&Config) -> Vec<ServerSpec> + Send + Sync;

/// Knows where the configuration comes from and how it stands.
pub struct Reloader {
    source: Option<Arc<Source>>,
    /// Lets one reload at a time go on.
    turn: Semaphore,
    known: Mutex<Known>,
    outcomes: broadcast::Sender<Arc<Outcome>>,
    /// What only a new start of the gateway changes, as it was at its start.
    fixed: Fixed,
    /// What dials executors, and who must know their tokens.
    dialling: Option<(Executors, Secrets)>,
}

/// Where a configuration comes from.
struct Source {
    path: PathBuf,
    /// Set where the file counts only because its directory is trusted.
    trust: Option<TrustStore>,
    env: Env,
    vault: Arc<Vault>,
    translate: Box<Translate>,
}

#[derive(Debug)]
struct Fixed {
    listen: Vec<std::net::SocketAddr>,
    names: Vec<Arc<str>>,
    telemetry: Telemetry,
    journal: Engine,
    broker: BrokerConfig,
    audit: Audit,
    audit_export: Option<AuditExport>,
    starts_max: usize,
    connections: ConnectionLimits,
}

/// How the configuration stands.
#[derive(Debug, Default)]
struct Known {
    /// The text that was looked at last; none while there is no file.
    digest: Option<u64>,
    broken: Vec<Broken>,
    /// Which servers are one process for several principals.
    sharing: Option<Arc<str>>,
    /// Who may do what by the file that is in force.
    policy: PolicyConfig,
    /// Where its patterns stand.
    mentions: Vec<Mention>,
    /// Executors that are dialled.
    executors: BTreeMap<Arc<str>, ExecutorConfig>,
    error: Option<Arc<str>>,
}

/// What came into force.
struct Adopted {
    applied: Applied,
    policy: Standing,
    executors: Standing,
}

/// The gateway has no config file.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the gateway was started without a config file")]
pub struct NoFile;

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader")
            .field("path", &self.source.as_ref().map(|source| &source.path))
            .field("known", &self.known)
            .finish_non_exhaustive()
    }
}

impl Reloader {
    /// Returns one for a gateway that starts with `config`.
    pub(crate) fn new(config: &Config, env: &Env, translate: Box<Translate>) -> Self {
        let source = config.path.as_ref().map(|path| {
            Arc::new(Source {
                path: path.clone(),
                trust: config.trust.clone(),
                env: env.clone(),
                vault: Arc::clone(config.sources.vault()),
                translate,
            })
        });
        Self {
            source,
            turn: Semaphore::new(1),
            known: Mutex::new(Known {
                digest: Some(config.digest),
                broken: config.broken.clone(),
                sharing: config::sharing(config).map(Into::into),
                policy: config.policy.clone(),
                mentions: config.mentions.clone(),
                executors: config.executors.clone(),
                error: None,
            }),
            outcomes: broadcast::Sender::new(OUTCOMES_MAX),
            fixed: Fixed {
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
            dialling: None,
        }
    }

    /// Has executors dialled as the file says.
    pub(crate) fn dialling(self, executors: Executors, secrets: Secrets) -> Self {
        let dialling = Some((executors, secrets));
        Self { dialling, ..self }
    }

    /// Returns the servers that this machine cannot run.
    pub fn broken(&self) -> Vec<Broken> {
        lock(&self.known).broken.clone()
    }

    /// Names the servers that are one process for several principals.
    pub fn sharing(&self) -> Option<Arc<str>> {
        lock(&self.known).sharing.clone()
    }

    /// Says why the file as it is now is not in force, if it is not.
    pub fn error(&self) -> Option<Arc<str>> {
        lock(&self.known).error.clone()
    }

    /// Shows who may do what by the file in force, and where each pattern stands in it.
    pub(crate) fn rules<T>(&self, look: impl FnOnce(&PolicyConfig, &[Mention]) -> T) -> T {
        let known = lock(&self.known);
        look(&known.policy, &known.mentions)
    }

    /// Returns a receiver that hears what each reload comes to, whoever asked for it.
    pub fn outcomes(&self) -> broadcast::Receiver<Arc<Outcome>> {
        self.outcomes.subscribe()
    }

    /// Reads the file and brings it into force, whole or not at all.
    ///
    /// # Errors
    /// There is no file.
    pub async fn reload(&self, host: &Host) -> Result<Arc<Outcome>, NoFile> {
        let source = self.source.as_ref().ok_or(NoFile)?;
        // Never closed.
        let _turn = self.turn.acquire().await;
        let began = host.clock().now();
        let (digest, loaded) = source.read().await;
        let outcome = match loaded {
            Ok((config, specs)) => {
                let adopted = self.adopt(host, &config, specs);
                let took = began.until(host.clock().now());
                Outcome::Applied(self.report(host, config, adopted, millis(took)))
            }
            Err(refusal) => {
                let reason = Arc::clone(&refusal.summary);
                lock(&self.known).error = Some(Arc::clone(&reason));
                host.events().tell(What::ConfigRefused { reason });
                Outcome::Refused(refusal)
            }
        };
        lock(&self.known).digest = digest;
        let outcome = Arc::new(outcome);
        // Nobody listens: who asked is told all the same.
        let _unheard = self.outcomes.send(Arc::clone(&outcome));
        Ok(outcome)
    }

    fn adopt(&self, host: &Host, config: &Config, specs: Vec<ServerSpec>) -> Adopted {
        host.relimit(HostLimits {
            starts_max: self.fixed.starts_max,
            ..config.limits
        });
        let mut known = lock(&self.known);
        known.broken.clone_from(&config.broken);
        known.sharing = config::sharing(config).map(Into::into);
        known.error = None;
        known.mentions.clone_from(&config.mentions);
        let policy = Standing::of(&mut known.policy, &config.policy);
        let executors = Standing::of(&mut known.executors, &config.executors);
        drop(known);
        // Before the servers, so that nobody reaches a new one by rules that did not know it.
        if policy == Standing::Changed {
            host.set_policy(config.policy.policy());
        }
        if let Some((executors, secrets)) = &self.dialling {
            dial(executors, &config.executors, secrets);
        }
        Adopted {
            applied: host.apply(specs),
            policy,
            executors,
        }
    }

    fn report(&self, host: &Host, config: Config, adopted: Adopted, took_ms: u64) -> Report {
        let fixed = [
            ("gateway.listen", config.listen == self.fixed.listen),
            ("gateway.names", config.names == self.fixed.names),
            ("telemetry", config.telemetry == self.fixed.telemetry),
            ("journal", config.journal == self.fixed.journal),
            ("broker", config.broker == self.fixed.broker),
            ("audit", config.audit == self.fixed.audit),
            (
                "audit.export",
                config.audit_export == self.fixed.audit_export,
            ),
            (
                "limits.starts",
                config.limits.starts_max == self.fixed.starts_max,
            ),
            (
                "limits.unproven_connections",
                config.connections.unproven_max == self.fixed.connections.unproven_max,
            ),
            (
                "limits.address_connections",
                config.connections.address_max == self.fixed.connections.address_max,
            ),
        ];
        let strangers = strangers::of(&config.mentions, &host.catalog());
        let different = fixed.iter().filter(|(_, is_same)| !is_same);
        let Adopted {
            applied,
            policy,
            executors,
        } = adopted;
        Report {
            applied,
            policy,
            executors,
            broken: config.broken,
            warnings: config
                .warnings
                .into_iter()
                .chain(strangers)
                .map(|warning| warning.message)
                .collect(),
            needs_restart: different.map(|(key, _)| *key).collect(),
            took_ms,
        }
    }

    /// Whether the file says something else than when it was last looked at.
    async fn is_news(&self) -> bool {
        let Some(source) = &self.source else {
            return false;
        };
        let path = source.path.clone();
        let text = tokio::task::spawn_blocking(move || config::read(&path));
        let digest = text
            .await
            .ok()
            .and_then(Result::ok)
            .map(|text| digest(&text));
        digest != lock(&self.known).digest
    }
}

impl Source {
    /// Reads the file beside the runtime: files may be slow, and calls go on.
    async fn read(self: &Arc<Self>) -> (Option<u64>, Result<(Config, Vec<ServerSpec>), Refusal>) {
        let this = Arc::clone(self);
        let read = tokio::task::spawn_blocking(move || {
            let text = match config::read(&this.path) {
                Ok(text) => text,
                Err(error) => return (None, Err(Refusal::of(&error))),
            };
            if let Err(refusal) = this.check_trust(&text) {
                return (Some(digest(&text)), Err(refusal));
            }
            let config = config::parse_with(&text, &this.path, &this.env, &this.vault);
            let specs = config
                .map(|config| {
                    let specs = (this.translate)(&config);
                    (config, specs)
                })
                .map_err(|error| Refusal::of(&error));
            (Some(digest(&text)), specs)
        });
        read.await
            .unwrap_or_else(|error| (None, Err(Refusal::cut_short(&error))))
    }

    /// Refuses a text that nobody has trusted, where the file counts by trust alone.
    fn check_trust(&self, text: &str) -> Result<(), Refusal> {
        let (Some(store), Some(directory)) = (&self.trust, self.path.parent()) else {
            return Ok(());
        };
        match store.check(directory, text) {
            Ok(Trust::Trusted) => Ok(()),
            Ok(Trust::Changed | Trust::Unknown) => Err(Refusal::untrusted(directory)),
            Err(error) => Err(Refusal::plain(&bowline_core::error::whole(&error))),
        }
    }
}

/// Reloads whenever the file changes, until told to stop.
pub(crate) async fn follow(edge: Arc<Edge>, mut stop: signal::Receiver<bool>) {
    let Some(source) = &edge.reloader.source else {
        return;
    };
    let mut watch = Watch::of(&source.path);
    loop {
        // Looked at first: it may have changed before it was watched.
        if edge.reloader.is_news().await {
            // There is a file, and whoever wants to know of the outcome listens.
            let _told = edge.reloader.reload(&edge.host).await;
        }
        tokio::select! {
            () = watch.changed() => {}
            _ = stop.changed() => return,
        }
    }
}

/// Tells texts apart.
pub(crate) fn digest(text: &str) -> u64 {
    let mut mixer = DefaultHasher::new();
    text.hash(&mut mixer);
    mixer.finish()
}
