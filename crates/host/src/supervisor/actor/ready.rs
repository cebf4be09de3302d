//! The ready phase: handles events, refreshes lists, and detects the end of the link.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_core::breaker::Breaker;
use bowline_core::error::FailureClass;
use bowline_core::task_table::LinkKey;
use bowline_link::{Link, LinkEvent};
use tokio::sync::mpsc;

use super::super::failure_cause::FailureCause;
use super::super::freshness::RelistOutcomes;
use super::super::list_fetch::ListFetch;
use super::super::relist::RelistBatch;
use super::super::{PendingCommand, ServerAction, ServerState, SupervisorCommand};
use super::drain::AfterStop;
use super::health_check::{LinkMonitor, MonitorEvent};
use super::reachability::ReachabilityProbe;
use super::{ActorPhase, RelistPair, SupervisorActor};
use crate::catalog::ListKind;
use crate::spec::Isolation;

impl SupervisorActor {
    pub(super) async fn run_ready(
        &mut self,
        link: Arc<dyn Link>,
        mut events: mpsc::Receiver<LinkEvent>,
        mut relists: RelistPair,
    ) -> ActorPhase {
        self.set_state(ServerState::Ready);
        let shared = Arc::clone(&self.shared);
        let sessions = Arc::clone(&self.deps.sessions);
        let since = shared.clock.now();
        // A new link proves the server reachable.
        shared.with_breaker(since, Breaker::mark_reachable);
        let mut reachability = ReachabilityProbe::default();
        let entries_max = shared.spec.list_max;
        let mut monitor = LinkMonitor::new(&shared);
        let mut closed = link.wait_closed();
        let _serving = shared.freshness.begin_serving(since);
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(PendingCommand {
                        command: SupervisorCommand::Action(ServerAction::Start),
                        done,
                    }) => {
                        let _ = done.send(());
                    }
                    Some(PendingCommand { command: SupervisorCommand::Relist, .. }) => {
                        self.purge_cache();
                        relists.mark_all_changed();
                    }
                    command => return self.handle_command_ready(command, &link).await,
                },
                exit = &mut closed => return self.on_link_lost(exit, since),
                kinds = shared.freshness.next_requested() => relists.mark_changed(&kinds),
                Some(event) = events.recv() => match self.invalidate_cache(event) {
                    LinkEvent::ToolsChanged => relists.tools.mark_changed(&[ListKind::Tools]),
                    LinkEvent::PromptsChanged => relists.others.mark_changed(&[ListKind::Prompts]),
                    LinkEvent::ResourcesChanged => {
                        relists.others.mark_changed(&[ListKind::Resources, ListKind::Templates]);
                    }
                    LinkEvent::SessionReset => shared.session_resets.send_modify(|nth| *nth += 1),
                    LinkEvent::UnattributedRequest => self.mark_interactive(),
                    event => self.deps.deliver_event(&shared, LinkKey::SHARED, event),
                },
                listed = relists.tools.next_lists(&link, entries_max, shared.clock.as_ref()) => {
                    if let Some(cause) = credentials_refusal(&listed) {
                        return self.drain(&link, AfterStop::Refused(cause), Vec::new()).await;
                    }
                    self.update_relist(&mut relists.tools, &listed);
                    self.publish_refreshed(&link, listed).await;
                }
                listed = relists.others.next_lists(&link, entries_max, shared.clock.as_ref()) => {
                    self.update_relist(&mut relists.others, &listed);
                    self.publish_refreshed(&link, listed).await;
                }
                () = reachability.run_checks(&link, &shared) => {}
                seen = monitor.next_event(&link, &shared, &sessions) => match seen {
                    MonitorEvent::Idle => {
                        let pings = monitor.pings_in_flight();
                        if let Some(phase) = self.stop_if_idle(&link, pings).await {
                            return phase;
                        }
                    }
                    MonitorEvent::Silent => {
                        self.close_links(&link).await;
                        let class = FailureClass::Timeout;
                        let cause = FailureCause::new(class, "does not answer pings");
                        return self.on_ready_failed(cause, since);
                    }
                },
            }
        }
    }

    /// Invalidates cached responses after a change notification.
    fn invalidate_cache(&self, event: LinkEvent) -> LinkEvent {
        self.deps
            .cache
            .invalidate_on_event(&self.shared.spec.name, &event);
        event
    }

    /// Publishes refreshed lists and wakes the waiting callers.
    async fn publish_refreshed(&mut self, link: &Arc<dyn Link>, listed: Vec<ListFetch>) {
        let outcomes = RelistOutcomes::from(listed.as_slice());
        self.publish_lists(link, listed).await;
        let now = self.shared.clock.now();
        self.shared.freshness.record_outcomes(outcomes, now);
    }

    pub(super) fn update_relist(&self, relist: &mut RelistBatch, listed: &[ListFetch]) {
        relist.record_results(listed, self.shared.clock.as_ref());
    }

    /// Reacts to an unattributed server request: from now on each session with client capabilities
    /// gets a dedicated link.
    fn mark_interactive(&self) {
        let server = &self.shared.spec.name;
        if self.shared.spec.isolation != Isolation::Auto {
            tracing::warn!(%server, "server request while several sessions had calls; refused");
        } else if !self.shared.interactive.swap(true, Ordering::Relaxed) {
            tracing::info!(%server, "server sends requests; sessions get dedicated links");
        }
    }
}

/// Returns the cause if the server refuses its tools for lack of credentials: then calls must stop
/// too, until the server lists them again.
fn credentials_refusal(listed: &[ListFetch]) -> Option<FailureCause> {
    let errors = listed
        .iter()
        .filter_map(|(_, listed)| listed.as_ref().err());
    let mut causes = errors.map(FailureCause::from);
    causes.find(FailureCause::needs_credentials)
}
