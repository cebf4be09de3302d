//! Stops a ready server: new calls get no link, calls in flight drain, then the link closes.

use std::sync::Arc;
use std::time::Duration;

use bowline_link::Link;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::super::failure_cause::FailureCause;
use super::super::{PendingCommand, ServerAction, ServerState, SupervisorCommand};
use super::{ActorPhase, SupervisorActor};

/// Poll interval while calls are in flight.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The phase after a stop.
#[derive(Debug)]
pub(super) enum AfterStop {
    /// The next call starts the server.
    Idle,
    /// The server restarts.
    Restart,
    /// Calls are refused.
    Stopped,
    /// The actor ends.
    Finished,
    /// The server refused its tools for this cause; retried later.
    Refused(FailureCause),
}

/// Commands to acknowledge after the stop.
type StopWaiters = Vec<oneshot::Sender<()>>;

impl SupervisorActor {
    /// Handles a command while a link is up; `None` means the host is gone.
    pub(super) async fn handle_command_ready(
        &mut self,
        command: Option<PendingCommand>,
        link: &Arc<dyn Link>,
    ) -> ActorPhase {
        let Some(PendingCommand {
            command: wish,
            done,
        }) = command
        else {
            self.close_links(link).await;
            return ActorPhase::End;
        };
        match wish {
            // The ready loop refreshes lists without a drain where possible.
            SupervisorCommand::Action(ServerAction::Reload) | SupervisorCommand::Relist => {
                self.drain(link, AfterStop::Restart, vec![done]).await
            }
            SupervisorCommand::Retire => self.drain(link, AfterStop::Finished, vec![done]).await,
            SupervisorCommand::Action(ServerAction::Stop) => {
                self.close_and_continue(link, AfterStop::Stopped, vec![done])
                    .await
            }
            SupervisorCommand::Action(ServerAction::Start | ServerAction::Restart) => {
                self.close_and_continue(link, AfterStop::Restart, vec![done])
                    .await
            }
        }
    }

    /// Stops an unused server, unless a call arrived at the last moment or the link ended; `pings`
    /// of the monitor may be in flight.
    pub(super) async fn stop_if_idle(
        &mut self,
        link: &Arc<dyn Link>,
        pings: usize,
    ) -> Option<ActorPhase> {
        let ready = self.shared.shared_link.swap(None);
        if link.is_open() && link.in_flight() + self.shared.dedicated.in_flight() <= pings {
            return Some(
                self.close_and_continue(link, AfterStop::Idle, Vec::new())
                    .await,
            );
        }
        self.shared.shared_link.store(ready);
        None
    }

    /// Drains calls in flight within the drain timeout, then stops the server.
    pub(super) async fn drain(
        &mut self,
        link: &Arc<dyn Link>,
        mut after: AfterStop,
        mut waiters: StopWaiters,
    ) -> ActorPhase {
        self.begin_drain();
        let mut timeout = std::pin::pin!(sleep(self.shared.spec.drain_timeout));
        while link.in_flight() + self.shared.dedicated.in_flight() > 0 {
            let command = tokio::select! {
                biased;
                command = self.commands.recv() => command,
                _ = link.wait_closed() => break,
                () = &mut timeout => break,
                () = sleep(POLL_INTERVAL) => continue,
            };
            let Some(PendingCommand {
                command: wish,
                done,
            }) = command
            else {
                after = AfterStop::Finished;
                break;
            };
            match wish {
                // Already on the way to a restart, or retired.
                SupervisorCommand::Action(ServerAction::Start | ServerAction::Reload)
                | SupervisorCommand::Relist => waiters.push(done),
                SupervisorCommand::Action(order) => {
                    after = match (after, order) {
                        (AfterStop::Finished, _) => AfterStop::Finished,
                        (_, ServerAction::Stop) => AfterStop::Stopped,
                        (_, ServerAction::Start | ServerAction::Restart | ServerAction::Reload) => {
                            AfterStop::Restart
                        }
                    };
                    waiters.push(done);
                    break;
                }
                SupervisorCommand::Retire => {
                    after = AfterStop::Finished;
                    waiters.push(done);
                }
            }
        }
        self.close_and_continue(link, after, waiters).await
    }

    /// Stops the server now.
    async fn close_and_continue(
        &mut self,
        link: &Arc<dyn Link>,
        after: AfterStop,
        waiters: StopWaiters,
    ) -> ActorPhase {
        self.close_links(link).await;
        let phase = match after {
            AfterStop::Idle => self.go_idle().await,
            AfterStop::Restart => self.restart(),
            AfterStop::Stopped => self.stop(),
            AfterStop::Finished => self.finish(),
            AfterStop::Refused(cause) => self.on_start_failed(cause),
        };
        for done in waiters {
            let _ = done.send(());
        }
        phase
    }

    /// Hides the link from calls.
    fn begin_drain(&self) {
        self.shared.shared_link.store(None);
        self.set_state(ServerState::Draining);
    }

    /// Closes every link and waits for the end.
    pub(super) async fn close_links(&self, link: &Arc<dyn Link>) {
        self.begin_drain();
        let exit = link.close().await;
        self.shared.dedicated.close_all().await;
        tracing::info!(server = %self.shared.spec.name, %exit, "server stopped");
    }

    /// Goes idle until the next call. A pending start signal belongs to the ended generation.
    async fn go_idle(&self) -> ActorPhase {
        tokio::select! {
            biased;
            () = self.shared.start_requested.notified() => {}
            () = std::future::ready(()) => {}
        }
        ActorPhase::Idle
    }
}
