//! The starting phase: connect, handshake, and read the lists.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_link::Link;
use bowline_link::stderr::{LAST_WORDS_LINES, last_words};
use bowline_wire::object;
use bytes::Bytes;

use super::super::failure_cause::FailureCause;
use super::super::list_fetch::{self, ListFetch, OmittedEntries, fetch_lists};
use super::super::start_pacing::start_with_permit;
use super::super::{
    DialedLink, PendingCommand, ReadyLink, ServerAction, ServerState, SupervisorCommand,
    SupervisorDeps, SupervisorShared,
};
use super::{ActorPhase, RelistPair, SupervisorActor};
use crate::catalog::{HeaderParamPolicy, ListKind, ListPages, ServerCatalog, Staleness};
use crate::manifest::ServerManifest;
use crate::pins::PinMode;
use crate::spec::ServerTransport;

impl SupervisorActor {
    pub(super) async fn run_starting(&mut self) -> ActorPhase {
        let generation = self
            .shared
            .counts
            .generation
            .fetch_add(1, Ordering::Relaxed)
            + 1;
        self.mark_staleness(Staleness::LastKnown);
        self.set_state(ServerState::Starting);
        tracing::info!(server = %self.shared.spec.name, generation, "server starting");
        self.log_before = self.shared.log.sequencer().newest_seq();
        let timeout = self.start_timeout();
        let started_at = AtomicU64::new(self.shared.clock.now().0);
        let mut is_stale = false;
        let outcome = {
            let connect = || {
                started_at.store(self.shared.clock.now().0, Ordering::Relaxed);
                connect_and_list(&self.shared, &self.deps, timeout)
            };
            let mut connect = std::pin::pin!(start_with_permit(&self.deps.start_permits, connect));
            loop {
                tokio::select! {
                    biased;
                    command = self.commands.recv() => match command {
                        // Already starting.
                        Some(PendingCommand {
                            command: SupervisorCommand::Action(ServerAction::Start),
                            done,
                        }) => {
                            let _ = done.send(());
                        }
                        // Some lists may have been read with the old credentials.
                        Some(PendingCommand { command: SupervisorCommand::Relist, .. }) => {
                            is_stale = true;
                        }
                        command => break Err(command),
                    },
                    outcome = &mut connect => break Ok(outcome),
                }
            }
        };
        self.recovery
            .on_start(MonotonicTime(started_at.into_inner()));
        match outcome {
            Ok(Ok((dialled, lists))) => {
                let mut relists = RelistPair::new(&self.shared.spec.name);
                if is_stale {
                    relists.mark_all_changed();
                }
                self.update_relist(&mut relists.others, &lists);
                self.publish_lists(&dialled.0, lists).await;
                self.recovery.on_served();
                self.shared.shared_link.store(Some(Arc::new(ReadyLink {
                    generation,
                    link: Arc::clone(&dialled.0),
                    since: self.shared.clock.now(),
                })));
                ActorPhase::Ready(dialled, Box::new(relists))
            }
            Ok(Err(StartFailure::Connect(cause))) => self.on_start_failed(cause),
            Ok(Err(StartFailure::List(mut cause))) => {
                let words = self.shared.log.tail(self.log_before, LAST_WORDS_LINES);
                cause.reason = format!("{}{}", cause.reason, last_words(&words)).into();
                self.on_start_failed(cause)
            }
            // Dropping the pending connection killed its process.
            Err(command) => self.handle_command_offline(command),
        }
    }

    /// Returns the start timeout; longer for a server never seen, since it may install first.
    fn start_timeout(&self) -> Duration {
        let spec = &self.shared.spec;
        match (&self.manifest, spec.install_timeout) {
            (None, Some(install)) => install.max(spec.start_timeout),
            (Some(_), _) | (None, None) => spec.start_timeout,
        }
    }

    /// Publishes and stores the lists. A failed list leaves the old list in place.
    pub(super) async fn publish_lists(&mut self, link: &Arc<dyn Link>, lists: Vec<ListFetch>) {
        let server = &self.shared.spec.name;
        let mut pages = ListPages::default();
        for (kind, listed) in lists {
            match listed {
                Ok(read) => {
                    self.record_omitted(kind, read.omitted);
                    *pages.get_mut(kind) = Some(read.pages);
                }
                Err(error) => {
                    let cause = FailureCause::from(&error);
                    tracing::warn!(%server, reason = %cause.reason, "list could not be read");
                    self.shared.set_last_error(cause.class, &cause.reason);
                    // Refused for lack of credentials: the items may have been revoked.
                    if cause.needs_credentials() {
                        *pages.get_mut(kind) = Some(Vec::new());
                    }
                }
            }
        }
        let initialize = &link.server_info().initialize;
        self.pin_and_show(initialize, &pages).await;
        self.store_manifest(initialize, &pages);
    }

    /// Records omitted entries, and logs a change.
    fn record_omitted(&self, kind: ListKind, left_out: OmittedEntries) {
        let before = std::mem::replace(lock(&self.shared.omitted).get_mut(kind), left_out);
        if before != left_out && !left_out.is_empty() {
            let (server, entries_max) = (&self.shared.spec.name, self.shared.spec.list_max);
            let (list, OmittedEntries { entries, more }) = (kind.member(), left_out);
            tracing::warn!(%server, list, entries, more, entries_max, "list truncated at limit");
        }
    }

    /// Publishes the server's lists in the catalog, after new definitions are durably pinned.
    async fn pin_and_show(&self, initialize: &Bytes, pages: &ListPages) {
        let read_at = self.shared.clock.now();
        let catalog = self.build_server_catalog(initialize, pages, Some(read_at));
        // The name may belong to the successor by now.
        if !self.shared.is_retired() {
            self.deps
                .pins
                .record_listed(&self.shared.spec, &catalog)
                .await;
            self.show_in_catalog(&catalog);
        }
    }

    /// Publishes the lists of the last run; `false` if they must not be shown before the server
    /// confirms them.
    pub(super) fn show_last_known(&self, initialize: &Bytes, pages: &ListPages) -> bool {
        let spec = &self.shared.spec;
        // An idle lazy server is not down.
        let age = if spec.lazy {
            Staleness::Live
        } else {
            Staleness::LastKnown
        };
        let catalog = self
            .build_server_catalog(initialize, pages, None)
            .with_staleness(age);
        if spec.pin == PinMode::Block && self.deps.pins.has_unseen(spec, &catalog) {
            return false;
        }
        self.show_in_catalog(&catalog);
        true
    }

    fn show_in_catalog(&self, catalog: &ServerCatalog) {
        if !self.shared.is_retired() {
            let judge = |catalog: &_| self.deps.pins.filter_catalog(&self.shared.spec, catalog);
            self.deps.catalog.publish_server(catalog, judge);
        }
    }

    fn build_server_catalog(
        &self,
        initialize: &Bytes,
        pages: &ListPages,
        read_at: Option<MonotonicTime>,
    ) -> ServerCatalog {
        let server = &self.shared.spec.name;
        let before = self.deps.catalog.current();
        let before = before.server(server).map(AsRef::as_ref);
        let spec = &self.shared.spec;
        // Only modern HTTP servers receive arguments in headers.
        let is_modern = object::field(initialize, "supportedVersions").is_some();
        let header_policy = match &spec.transport {
            ServerTransport::Remote(_) if is_modern => HeaderParamPolicy::Enforce,
            _ => HeaderParamPolicy::Ignore,
        };
        let catalog = ServerCatalog::new(
            server,
            initialize,
            pages,
            &spec.tools,
            header_policy,
            before,
            read_at,
        );
        for (tool, why) in &catalog.tools.unusable {
            tracing::warn!(%server, %tool, %why, "tool omitted");
        }
        for kind in ListKind::ALL {
            let withheld = catalog.list(kind).withheld;
            if withheld > 0 && pages.get(kind).is_some() {
                let list = kind.member();
                tracing::warn!(%server, list, withheld, "definitions have no usable name");
            }
        }
        catalog
    }

    /// Stores the lists for the next run, if changed.
    fn store_manifest(&mut self, initialize: &Bytes, pages: &ListPages) {
        let mut manifest = self.manifest.clone().unwrap_or_else(|| ServerManifest {
            initialize: Bytes::new(),
            pages: ListPages::default(),
        });
        manifest.merge_lists(initialize, pages);
        if self.manifest.as_ref() == Some(&manifest) {
            return;
        }
        let server = &self.shared.spec.name;
        if self.shared.spec.transport.keeps_manifest() {
            let manifests = &self.deps.manifests;
            manifests.save(server, &self.digest, manifest.clone());
        }
        self.manifest = Some(manifest);
    }
}

/// A failed start: before or after the handshake.
enum StartFailure {
    Connect(FailureCause),
    List(FailureCause),
}

async fn connect_and_list(
    shared: &SupervisorShared,
    deps: &SupervisorDeps,
    timeout: Duration,
) -> Result<(DialedLink, Vec<ListFetch>), StartFailure> {
    let end = shared.clock.now().plus(timeout);
    let deadline = shared.clock.instant(end);
    let dialled = deps
        .dial
        .dial(&shared.spec, &shared.log, None, deadline)
        .await
        .map_err(|error| StartFailure::Connect(FailureCause::from(&error)))?;
    let others = shared.clock.now().plus(list_fetch::SECONDARY_LISTS_TIMEOUT);
    let others = shared.clock.instant(others);
    let entries_max = shared.spec.list_max;
    let lists = fetch_lists(
        dialled.0.as_ref(),
        &ListKind::ALL,
        entries_max,
        deadline,
        others,
    )
    .await;
    // The tools are required for readiness; the other lists are not.
    let mut fetched = Vec::new();
    for (kind, listed) in lists {
        match listed {
            Err(error) if kind == ListKind::Tools => {
                return Err(StartFailure::List(FailureCause::from(&error)));
            }
            listed => fetched.push((kind, listed)),
        }
    }
    Ok((dialled, fetched))
}
