//! The actor task of a supervisor: a state machine over the phases of a server.

mod drain;
mod failure;
mod health_check;
pub(super) mod reachability;
mod ready;
mod start;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::breaker::Breaker;
use bowline_core::recovery::{ServerLocation, ServerRecovery};
use bowline_core::retry::JitterSource;
use tokio::sync::mpsc;

use super::failure_cause::{FailureCause, FailureSource};
use super::relist::RelistBatch;
use super::{
    DialedLink, PendingCommand, ServerAction, ServerState, SupervisorCommand, SupervisorDeps,
    SupervisorShared,
};
use crate::catalog::{ListKind, Staleness};
use crate::events::EventKind;
use crate::manifest::ServerManifest;
use crate::spec::ServerTransport;

/// State of the actor task.
#[derive(Debug)]
pub(super) struct SupervisorActor {
    shared: Arc<SupervisorShared>,
    deps: SupervisorDeps,
    commands: mpsc::Receiver<PendingCommand>,
    recovery: ServerRecovery,
    /// Spec digest, the key of the stored manifest.
    digest: String,
    /// The server's lists from the last time it was ready, possibly in an earlier run.
    manifest: Option<ServerManifest>,
    /// Newest log line before the latest start.
    log_before: u64,
}

/// Phase of the server, with the data owned by the actor.
enum ActorPhase {
    Idle,
    Stopped,
    Starting,
    Ready(DialedLink, Box<RelistPair>),
    Backoff(Duration, FailureCause),
    Ejected(Arc<str>),
    End,
}

/// Pending list refreshes: tools, and separately the other lists, so that those never delay the
/// tools.
#[derive(Debug)]
struct RelistPair {
    tools: RelistBatch,
    others: RelistBatch,
}

impl RelistPair {
    fn new(server: &str) -> Self {
        Self {
            tools: RelistBatch::new(server),
            others: RelistBatch::new(server),
        }
    }

    /// Marks every list as changed.
    fn mark_all_changed(&mut self) {
        self.tools.mark_changed(&[ListKind::Tools]);
        let others = [ListKind::Prompts, ListKind::Resources, ListKind::Templates];
        self.others.mark_changed(&others);
    }

    /// Marks these lists as changed.
    fn mark_changed(&mut self, kinds: &[ListKind]) {
        for kind in kinds {
            match kind {
                ListKind::Tools => self.tools.mark_changed(&[*kind]),
                ListKind::Prompts | ListKind::Resources | ListKind::Templates => {
                    self.others.mark_changed(&[*kind]);
                }
            }
        }
    }
}

impl SupervisorActor {
    pub(super) fn new(
        shared: Arc<SupervisorShared>,
        deps: &SupervisorDeps,
        commands: mpsc::Receiver<PendingCommand>,
        digest: String,
        manifest: Option<ServerManifest>,
    ) -> Self {
        let spec = &shared.spec;
        let location = match spec.transport {
            ServerTransport::Child(_)
            | ServerTransport::Executor(_)
            | ServerTransport::InProcess(_) => ServerLocation::Child,
            ServerTransport::Remote(_) | ServerTransport::Peer(_) => ServerLocation::Remote,
        };
        Self {
            recovery: ServerRecovery::new(
                location,
                spec.backoff,
                spec.restart,
                JitterSource::from_owner(&spec.name),
            ),
            shared,
            deps: deps.clone(),
            commands,
            digest,
            manifest,
            log_before: 0,
        }
    }

    /// Publishes the known lists before the server is up.
    pub(super) fn publish_known(&self) {
        let spec = &self.shared.spec;
        let card = spec.card.as_ref().filter(|_| spec.lazy);
        let card = card.and_then(|card| card.manifest.as_ref());
        if let Some(manifest) = &self.manifest
            && spec.transport.is_process()
        {
            self.deps.dial.restore_era(spec, manifest.era());
        }
        let known = self.manifest.as_ref().or(card);
        let is_shown =
            known.is_some_and(|known| self.show_last_known(&known.initialize, &known.pages));
        if !is_shown && spec.lazy {
            self.deps.catalog.unlisted.add(&spec.name);
        }
        let first = self.shared.state.borrow().clone();
        self.emit_state_event(&first);
    }

    pub(super) async fn run(mut self) {
        let mut phase = if self.shared.spec.lazy {
            ActorPhase::Idle
        } else {
            ActorPhase::Starting
        };
        loop {
            phase = match phase {
                ActorPhase::Idle => self.run_idle().await,
                ActorPhase::Stopped => self.wait_for_command(ServerState::Stopped).await,
                ActorPhase::Starting => self.run_starting().await,
                ActorPhase::Ready((link, events), relists) => {
                    self.run_ready(link, events, *relists).await
                }
                ActorPhase::Backoff(wait, cause) => self.run_backoff(wait, cause).await,
                ActorPhase::Ejected(reason) => {
                    self.wait_for_command(ServerState::Ejected { reason }).await
                }
                ActorPhase::End => return,
            };
        }
    }

    async fn run_idle(&mut self) -> ActorPhase {
        self.set_state(ServerState::Idle);
        tokio::select! {
            biased;
            command = self.commands.recv() => self.handle_command_offline(command),
            () = self.shared.start_requested.notified() => ActorPhase::Starting,
        }
    }

    /// Waits for an operator command.
    async fn wait_for_command(&mut self, state: ServerState) -> ActorPhase {
        self.set_state(state);
        let command = self.commands.recv().await;
        self.handle_command_offline(command)
    }

    async fn run_backoff(&mut self, wait: Duration, cause: FailureCause) -> ActorPhase {
        self.mark_staleness(Staleness::LastKnown);
        self.set_state(ServerState::Backoff {
            until: self.shared.clock.now().plus(wait),
            reason: cause.reason,
            class: cause.class,
            challenge: cause.challenge,
            blame: cause.source,
        });
        let (dial, shared) = (Arc::clone(&self.deps.dial), Arc::clone(&self.shared));
        tokio::select! {
            biased;
            command = self.commands.recv() => self.handle_command_offline(command),
            () = tokio::time::sleep(wait) => ActorPhase::Starting,
            // A lost path is not the server's fault: restart without waiting for the backoff.
            () = dial.wait_reachable(&shared.spec), if cause.source == FailureSource::Path => {
                ActorPhase::Starting
            }
        }
    }

    /// Handles a command while no link is up; `None` means the host is gone.
    fn handle_command_offline(&mut self, command: Option<PendingCommand>) -> ActorPhase {
        let Some(PendingCommand {
            command: command_kind,
            done,
        }) = command
        else {
            return ActorPhase::End;
        };
        self.shared.dedicated.close_in_background();
        let state = self.shared.state.borrow().clone();
        let is_idle = state == ServerState::Idle;
        let phase = match command_kind {
            // Unreachable with the old credentials: try again with the new ones.
            SupervisorCommand::Relist => match state {
                ServerState::Idle => ActorPhase::Idle,
                ServerState::Stopped => ActorPhase::Stopped,
                _ => self.restart(),
            },
            SupervisorCommand::Action(ServerAction::Reload) if is_idle => {
                self.reset_failures();
                ActorPhase::Idle
            }
            SupervisorCommand::Action(
                ServerAction::Start | ServerAction::Restart | ServerAction::Reload,
            ) => self.restart(),
            SupervisorCommand::Action(ServerAction::Stop) => self.stop(),
            SupervisorCommand::Retire => self.finish(),
        };
        let _ = done.send(());
        phase
    }

    /// Restarts on an operator's request.
    fn restart(&mut self) -> ActorPhase {
        self.reset_failures();
        self.set_state(ServerState::Starting);
        ActorPhase::Starting
    }

    /// Stops on an operator's request.
    fn stop(&self) -> ActorPhase {
        self.withdraw_catalog();
        self.purge_cache();
        self.set_state(ServerState::Stopped);
        ActorPhase::Stopped
    }

    /// Ends for good. The name may belong to a successor, so only callers of this server are
    /// notified.
    fn finish(&self) -> ActorPhase {
        self.shared.state.send_replace(ServerState::Stopped);
        ActorPhase::End
    }

    /// Withdraws the catalog entries, unless a successor owns the name.
    fn withdraw_catalog(&self) {
        if !self.shared.is_retired() {
            self.deps.catalog.withdraw_server(&self.shared.spec.name);
        }
    }

    /// Purges cached responses: after an operator's command they may be outdated.
    fn purge_cache(&self) {
        if !self.shared.is_retired() {
            self.deps.cache.purge_server(&self.shared.spec.name);
        }
    }

    fn reset_failures(&mut self) {
        self.purge_cache();
        self.recovery.reset();
        self.shared.dedicated.reset_restarts();
        self.shared.counts.restarts.store(0, Ordering::Relaxed);
        let now = self.shared.clock.now();
        self.shared.with_breaker(now, Breaker::reset);
    }

    /// Marks the catalog entries as live or last known.
    fn mark_staleness(&self, age: Staleness) {
        if !self.shared.is_retired() {
            self.deps
                .catalog
                .mark_staleness(&self.shared.spec.name, age);
        }
    }

    fn set_state(&self, state: ServerState) {
        let new_state = state.clone();
        let changed = self.shared.state.send_if_modified(|current| {
            let changed = *current != state;
            *current = state;
            changed
        });
        if changed {
            self.emit_state_event(&new_state);
        }
    }

    fn emit_state_event(&self, state: &ServerState) {
        self.deps.events.publish(EventKind::State {
            server: Arc::clone(&self.shared.spec.name),
            state: state.as_str().into(),
            generation: self.shared.counts.generation.load(Ordering::Relaxed),
            reason: state.reason().cloned(),
        });
    }
}
