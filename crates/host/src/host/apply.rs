//! Brings another configuration into force while calls go on: only servers whose entry changed
//! are started anew.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_link::stderr::{Stamps, StderrLimits, StderrLog};
use tokio::time::timeout_at;

use super::{Host, HostLimits};
use crate::callpath::Servers;
use crate::events::What;
use crate::spec::{NameClash, ServerSpec, settle_names};
use crate::supervisor::Supervisor;

/// How long servers may take to stand before whoever waits for all of them goes on.
const TURN_WAIT: Duration = Duration::from_secs(5);

/// What another configuration came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Servers that are new.
    pub added: Vec<Arc<str>>,
    /// Servers that are started anew.
    pub changed: Vec<Changed>,
    /// Servers that are gone.
    pub removed: Vec<Arc<str>>,
    /// Servers that were not touched.
    pub kept: Vec<Arc<str>>,
    /// Servers that were left out, because the slug of their given name is another server's.
    pub clashes: Vec<NameClash>,
}

/// A server whose entry changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The server.
    pub server: Arc<str>,
    /// The keys of its entry that say something else now.
    pub keys: Vec<&'static str>,
}

impl Applied {
    /// Whether every server is as it was.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    fn sort(&mut self) {
        self.added.sort();
        self.changed.sort_by(|a, b| a.server.cmp(&b.server));
        self.removed.sort();
        self.kept.sort();
    }
}

/// Servers that the last configuration brought.
#[derive(Debug, Default)]
pub(super) struct Turn {
    fresh: Vec<Supervisor>,
    until: Now,
}

impl Turn {
    /// These are on their way from now on, beside those that still are.
    pub(super) fn begin(&mut self, fresh: &[Supervisor], now: Now) {
        if now >= self.until {
            self.fresh.clear();
        }
        self.fresh
            .retain(|server| !server.state().borrow().is_settled());
        self.fresh.extend_from_slice(fresh);
        self.until = now.plus(TURN_WAIT);
    }
}

impl Host {
    /// Takes these servers into care in place of those of before.
    ///
    /// A server whose spec is the same goes on undisturbed. One whose spec changed has a successor
    /// at once; its calls in flight end with it. What it offered is shown until the successor
    /// tells what it offers. A name is treated as [`spawn`](Self::spawn) treats it: where two
    /// specs have one name, the last counts; where they were given two names with one slug, the
    /// first counts and the other is among [`Applied::clashes`].
    pub fn apply(&self, specs: Vec<ServerSpec>) -> Applied {
        let mut turn = lock(&self.turn);
        let mut applied = Applied::default();
        if self.path.closing.load(Ordering::Relaxed) {
            return applied;
        }
        let specs = settle_names(specs, &mut applied.clashes);
        self.around.pins.know(&specs);
        let old = self.path.servers.load_full();
        let mut new = Servers::with_capacity_and_hasher(specs.len(), old.hasher().clone());
        let (mut fresh, mut retired) = (Vec::new(), Vec::new());
        for spec in specs {
            let name = Arc::clone(&spec.name);
            let server = match old.get(&name) {
                None => {
                    applied.added.push(Arc::clone(&name));
                    self.take_in(spec, None)
                }
                // What a person wrote down goes before what a peer brought; it is no successor.
                Some(before) if before.is_peers() => {
                    self.oust(before);
                    applied.added.push(Arc::clone(&name));
                    retired.push(before.clone());
                    self.take_in(spec, None)
                }
                Some(before) => {
                    let keys = before.spec().differences(&spec);
                    if keys.is_empty() {
                        applied.kept.push(Arc::clone(&name));
                        new.insert(name, before.clone());
                        continue;
                    }
                    let server = Arc::clone(&name);
                    applied.changed.push(Changed { server, keys });
                    retired.push(before.clone());
                    self.take_in(spec, Some(before))
                }
            };
            fresh.push(server.clone());
            new.insert(name, server);
        }
        let rest = old.iter().filter(|(name, _)| !new.contains_key(*name));
        let (peers, gone): (Vec<_>, Vec<_>) = rest.partition(|(_, server)| server.is_peers());
        // They come and go with their peers, whatever is configured here.
        new.extend(
            peers
                .into_iter()
                .map(|(name, one)| (Arc::clone(name), one.clone())),
        );
        for (name, server) in gone {
            applied.removed.push(Arc::clone(name));
            retired.push(server.clone());
        }
        // Told before the catalog changes: whoever tells of lists waits for the fresh ones.
        turn.begin(&fresh, self.path.clock.now());
        self.path.servers.store(Arc::new(new));
        self.path.catalog.withdraw_all(&applied.removed);
        // After the swap: a call that is at the old one yet began before it, and leaves nothing.
        for changed in &applied.changed {
            self.path.answers.purge(&changed.server);
        }
        for removed in &applied.removed {
            self.path.answers.forget(removed);
        }
        drop(turn);
        for server in retired {
            let retirement = async move { server.retire().await };
            self.around.tasks.spawn("retirement", retirement);
        }
        for server in &fresh {
            // What sessions want of a server is wanted of its successor.
            self.standing.poke(server);
        }
        applied.sort();
        self.tell(&applied);
        applied
    }

    /// Changes how much is taken on. What is in flight beyond a new bound goes on.
    pub fn relimit(&self, limits: HostLimits) {
        self.path.seats.allow(limits.principal_calls_max);
        self.path.answers.relimit(limits.cache);
        self.accounts.set_limits(limits.shares);
        self.accounts.set_rates(limits.rates);
        self.limits.store(Arc::new(limits));
    }

    /// Waits until the servers that the last configuration brought stand or failed, but not long.
    ///
    /// Who tells sessions of changed lists waits for it, to tell them once.
    pub async fn turned(&self) {
        let (fresh, until) = {
            let turn = lock(&self.turn);
            (turn.fresh.clone(), turn.until)
        };
        let until = self.path.clock.instant(until);
        for server in fresh {
            let mut state = server.state();
            let settled = state.wait_for(|state| state.is_settled());
            if timeout_at(until, settled).await.is_err() {
                return;
            }
        }
    }

    /// Starts a server; the lines that one of its name wrote before stay in its log.
    pub(super) fn take_in(&self, spec: ServerSpec, before: Option<&Supervisor>) -> Supervisor {
        let log = match before {
            Some(before) => before.log().under(Arc::clone(&spec.secrets)),
            None => new_log(&spec, &self.stamps),
        };
        Supervisor::start(spec, log, &self.around)
    }

    pub(super) fn tell(&self, applied: &Applied) {
        if applied.is_nothing() {
            return;
        }
        let changed = applied.changed.iter();
        self.around.events.tell(What::Config {
            added: applied.added.clone(),
            changed: changed.map(|changed| Arc::clone(&changed.server)).collect(),
            removed: applied.removed.clone(),
        });
    }
}

/// Returns an empty log for a server.
pub(super) fn new_log(spec: &ServerSpec, stamps: &Arc<Stamps>) -> Arc<StderrLog> {
    let (name, secrets) = (Arc::clone(&spec.name), Arc::clone(&spec.secrets));
    StderrLog::redacted(name, Arc::clone(stamps), StderrLimits::default(), secrets)
}
