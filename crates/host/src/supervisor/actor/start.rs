//! From nothing to a server that serves and has told what it offers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_link::Link;
use bowline_link::stderr::{LAST_WORDS_LINES, last_words};
use bowline_wire::object;
use bytes::Bytes;

use super::super::cause::Cause;
use super::super::list::{self, LeftOut, Listed, list_all};
use super::super::starts::paced;
use super::super::{Command, Dialled, Order, Ready, Shared, State, Surroundings, Wish};
use super::{Actor, Phase, Relists};
use crate::catalog::{Age, ListKind, Mirroring, Offer, Pages};
use crate::manifest::Manifest;
use crate::pins::PinMode;
use crate::spec::Reach;

impl Actor {
    pub(super) async fn starting(&mut self) -> Phase {
        let generation = self
            .shared
            .counts
            .generation
            .fetch_add(1, Ordering::Relaxed)
            + 1;
        self.age(Age::LastKnown);
        self.tell(State::Starting);
        tracing::info!(server = %self.shared.spec.name, generation, "starting");
        self.log_before = self.shared.log.stamps().newest();
        let timeout = self.start_timeout();
        let begun = AtomicU64::new(self.shared.clock.now().0);
        let mut is_stale = false;
        let outcome = {
            let connect = || {
                begun.store(self.shared.clock.now().0, Ordering::Relaxed);
                connect(&self.shared, &self.around, timeout)
            };
            let mut connect = std::pin::pin!(paced(&self.around.starts, connect));
            loop {
                tokio::select! {
                    biased;
                    command = self.commands.recv() => match command {
                        // It is on its way already.
                        Some(Command { wish: Wish::Order(Order::Start), done }) => {
                            let _ = done.send(());
                        }
                        // Some of what it said may have been for the old ones.
                        Some(Command { wish: Wish::Relist, .. }) => is_stale = true,
                        command => break Err(command),
                    },
                    outcome = &mut connect => break Ok(outcome),
                }
            }
        };
        self.recovery.begins(Now(begun.into_inner()));
        match outcome {
            Ok(Ok((dialled, lists))) => {
                let mut relists = Relists::default();
                if is_stale {
                    relists.note_all();
                }
                self.learn(&mut relists.others, &lists);
                self.publish(&dialled.0, lists).await;
                self.recovery.served();
                self.shared.ready.store(Some(Arc::new(Ready {
                    generation,
                    link: Arc::clone(&dialled.0),
                    since: self.shared.clock.now(),
                })));
                Phase::Ready(dialled, relists)
            }
            Ok(Err(StartError::Connect(cause))) => self.unstarted(cause),
            Ok(Err(StartError::List(mut cause))) => {
                let words = self.shared.log.tail(self.log_before, LAST_WORDS_LINES);
                cause.reason = format!("{}{}", cause.reason, last_words(&words)).into();
                self.unstarted(cause)
            }
            // The connection under way was dropped, and its process with it.
            Err(command) => self.obey_at_rest(command),
        }
    }

    /// A server that was never seen may have to be installed first.
    fn start_timeout(&self) -> Duration {
        let spec = &self.shared.spec;
        match (&self.manifest, spec.install_timeout) {
            (None, Some(install)) => install.max(spec.start_timeout),
            (Some(_), _) | (None, None) => spec.start_timeout,
        }
    }

    /// Shows and keeps what was listed. A list that could not be had leaves the old one in place.
    pub(super) async fn publish(&mut self, link: &Arc<dyn Link>, lists: Vec<Listed>) {
        let server = &self.shared.spec.name;
        let mut pages = Pages::default();
        for (kind, listed) in lists {
            match listed {
                Ok(read) => {
                    self.note_left_out(kind, read.left_out);
                    *pages.get_mut(kind) = Some(read.pages);
                }
                Err(error) => {
                    let cause = Cause::from(&error);
                    tracing::warn!(%server, reason = %cause.reason, "a list could not be read");
                    self.shared.remember(cause.class, &cause.reason);
                    // What is refused may have been taken away.
                    if cause.is_of_credentials() {
                        *pages.get_mut(kind) = Some(Vec::new());
                    }
                }
            }
        }
        let initialize = &link.server().initialize;
        self.offer(initialize, &pages).await;
        self.keep(initialize, &pages);
    }

    /// Remembers which entries of a list are left out, and logs it when that changes.
    fn note_left_out(&self, kind: ListKind, left_out: LeftOut) {
        let before = std::mem::replace(lock(&self.shared.left_out).get_mut(kind), left_out);
        if before != left_out && !left_out.is_empty() {
            let (server, entries_max) = (&self.shared.spec.name, self.shared.spec.list_max);
            let (list, LeftOut { entries, more }) = (kind.member(), left_out);
            tracing::warn!(%server, list, entries, more, entries_max, "list is cut at its limit");
        }
    }

    /// Puts what the server said into the catalog, once it is known for good what of it was
    /// never seen before.
    async fn offer(&self, initialize: &Bytes, pages: &Pages) {
        let read_at = self.shared.clock.now();
        let offer = self.read(initialize, pages, Some(read_at));
        // The name may be its successor's by now.
        if !self.shared.is_retired() {
            self.around.pins.see(&self.shared.spec, &offer).await;
            self.show(&offer);
        }
    }

    /// Shows what the server said when it last served; `false` where that must not be shown
    /// before it says it again.
    pub(super) fn offer_kept(&self, initialize: &Bytes, pages: &Pages) -> bool {
        let spec = &self.shared.spec;
        // One that waits to be needed is not away.
        let age = if spec.lazy { Age::Live } else { Age::LastKnown };
        let offer = self.read(initialize, pages, None).aged(age);
        if spec.pin == PinMode::Block && self.around.pins.is_news(spec, &offer) {
            return false;
        }
        self.show(&offer);
        true
    }

    fn show(&self, offer: &Offer) {
        if !self.shared.is_retired() {
            let judge = |offer: &_| self.around.pins.judge(&self.shared.spec, offer);
            self.around.catalog.publish(offer, judge);
        }
    }

    fn read(&self, initialize: &Bytes, pages: &Pages, read_at: Option<Now>) -> Offer {
        let server = &self.shared.spec.name;
        let before = self.around.catalog.current();
        let before = before.offer(server).map(AsRef::as_ref);
        let spec = &self.shared.spec;
        // Only what speaks the modern era over HTTP hears of arguments in headers.
        let is_modern = object::field(initialize, "supportedVersions").is_some();
        let mirroring = match &spec.reach {
            Reach::Remote(_) if is_modern => Mirroring::Needed,
            _ => Mirroring::Idle,
        };
        let rules = (&spec.tools, mirroring);
        let offer = Offer::new(server, initialize, pages, rules, before, read_at);
        for (tool, why) in &offer.tools.unusable {
            tracing::warn!(%server, %tool, %why, "tool left out");
        }
        for kind in ListKind::ALL {
            let withheld = offer.shelf(kind).withheld;
            if withheld > 0 && pages.get(kind).is_some() {
                let list = kind.member();
                tracing::warn!(%server, list, withheld, "definitions without a usable name");
            }
        }
        offer
    }

    /// Keeps what the server said for the next life of the gateway, unless it is kept already.
    fn keep(&mut self, initialize: &Bytes, pages: &Pages) {
        let mut manifest = self.manifest.clone().unwrap_or_else(|| Manifest {
            initialize: Bytes::new(),
            pages: Pages::default(),
        });
        manifest.learn(initialize, pages);
        if self.manifest.as_ref() == Some(&manifest) {
            return;
        }
        let server = &self.shared.spec.name;
        if self.shared.spec.reach.is_remembered() {
            let manifests = &self.around.manifests;
            manifests.save(server, &self.digest, manifest.clone());
        }
        self.manifest = Some(manifest);
    }
}

/// Why a start failed: before the handshake was over, or after it.
enum StartError {
    Connect(Cause),
    List(Cause),
}

async fn connect(
    shared: &Shared,
    around: &Surroundings,
    timeout: Duration,
) -> Result<(Dialled, Vec<Listed>), StartError> {
    let end = shared.clock.now().plus(timeout);
    let deadline = shared.clock.instant(end);
    let dialled = around
        .dial
        .dial(&shared.spec, &shared.log, None, deadline)
        .await
        .map_err(|error| StartError::Connect(Cause::from(&error)))?;
    let others = shared.clock.now().plus(list::OTHERS_TIMEOUT);
    let others = shared.clock.instant(others);
    let entries_max = shared.spec.list_max;
    let lists = list_all(
        dialled.0.as_ref(),
        &ListKind::ALL,
        entries_max,
        deadline,
        others,
    )
    .await;
    // Without its tools a server does not serve; without another list it does.
    let mut kept = Vec::new();
    for (kind, listed) in lists {
        match listed {
            Err(error) if kind == ListKind::Tools => {
                return Err(StartError::List(Cause::from(&error)));
            }
            listed => kept.push((kind, listed)),
        }
    }
    Ok((dialled, kept))
}
