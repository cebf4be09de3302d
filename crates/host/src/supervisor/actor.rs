//! The task behind a supervisor: one server, one phase at a time.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::breaker::Breaker;
use bowline_core::error::Class;
use bowline_core::supervision::{RestartBudget, Verdict};
use bowline_core::tasks::LinkKey;
use bowline_link::stdio::ConnectError;
use bowline_link::{Exit, Link, LinkEvent};
use thiserror::Error;
use tokio::sync::mpsc;

use super::list::{self, ListError, Listed, list_all};
use super::relist::Relist;
use super::{Command, Dialled, Order, Ready, Shared, State, Surroundings};
use crate::catalog::{ListKind, Offer, Pages};
use crate::spec::Isolation;

/// A server that served this long has recovered from whatever ailed it before.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);

/// The task's own state.
#[derive(Debug)]
pub(super) struct Actor {
    shared: Arc<Shared>,
    around: Surroundings,
    commands: mpsc::Receiver<Command>,
    budget: RestartBudget,
    /// Failures in a row, for the backoff.
    failures: u32,
}

/// What the server is doing, with what only the actor holds.
enum Phase {
    Idle,
    Stopped,
    Starting,
    Ready(Dialled, Relists),
    Backoff(Duration, Arc<str>),
    Ejected(Arc<str>),
    End,
}

/// The lists that are asked for again: the tools, and beside them all others, so that no other
/// list holds up the tools.
#[derive(Debug, Default)]
struct Relists {
    tools: Relist,
    others: Relist,
}

/// Why a start failed.
#[derive(Debug, Error)]
enum StartError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    List(#[from] ListError),
}

impl Actor {
    pub(super) fn new(
        shared: Arc<Shared>,
        around: &Surroundings,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        Self {
            budget: RestartBudget::new(shared.spec.restart),
            shared,
            around: around.clone(),
            commands,
            failures: 0,
        }
    }

    pub(super) async fn run(mut self) {
        let mut phase = if self.shared.spec.lazy {
            Phase::Idle
        } else {
            Phase::Starting
        };
        loop {
            phase = match phase {
                Phase::Idle => self.idle().await,
                Phase::Stopped => self.rest(State::Stopped).await,
                Phase::Starting => self.starting().await,
                Phase::Ready(dialled, relists) => self.ready(dialled, relists).await,
                Phase::Backoff(wait, reason) => self.backoff(wait, reason).await,
                Phase::Ejected(reason) => self.rest(State::Ejected { reason }).await,
                Phase::End => return,
            };
        }
    }

    async fn idle(&mut self) -> Phase {
        self.tell(State::Idle);
        tokio::select! {
            biased;
            command = self.commands.recv() => self.obey_at_rest(command),
            () = self.shared.demand.notified() => Phase::Starting,
        }
    }

    /// Nothing happens until a person says so.
    async fn rest(&mut self, state: State) -> Phase {
        self.tell(state);
        let command = self.commands.recv().await;
        self.obey_at_rest(command)
    }

    async fn backoff(&mut self, wait: Duration, reason: Arc<str>) -> Phase {
        let until = self.shared.clock.now().plus(wait);
        self.tell(State::Backoff { until, reason });
        tokio::select! {
            biased;
            command = self.commands.recv() => self.obey_at_rest(command),
            () = tokio::time::sleep(wait) => Phase::Starting,
        }
    }

    async fn starting(&mut self) -> Phase {
        let generation = self
            .shared
            .counts
            .generation
            .fetch_add(1, Ordering::Relaxed)
            + 1;
        self.tell(State::Starting);
        tracing::info!(server = %self.shared.spec.name, generation, "starting");
        let outcome = {
            let mut connect = std::pin::pin!(Self::connect(&self.shared, &self.around));
            loop {
                tokio::select! {
                    biased;
                    command = self.commands.recv() => match command {
                        // It is on its way already.
                        Some(Command { order: Order::Start, done }) => {
                            let _ = done.send(());
                        }
                        command => break Err(command),
                    },
                    outcome = &mut connect => break Ok(outcome),
                }
            }
        };
        match outcome {
            Ok(Ok((dialled, lists))) => {
                let mut relists = Relists::default();
                self.learn(&mut relists.others, &lists);
                self.publish(&dialled.0, lists);
                self.shared.ready.store(Some(Arc::new(Ready {
                    generation,
                    link: Arc::clone(&dialled.0),
                    since: self.shared.clock.now(),
                })));
                Phase::Ready(dialled, relists)
            }
            Ok(Err(error)) => self.failed(Class::ConnectFailed, &reason_of(&error)),
            // The connection under way was dropped, and its process with it.
            Err(command) => self.obey_at_rest(command),
        }
    }

    async fn connect(
        shared: &Shared,
        around: &Surroundings,
    ) -> Result<(Dialled, Vec<Listed>), StartError> {
        let end = shared.clock.now().plus(shared.spec.start_timeout);
        let deadline = shared.clock.instant(end);
        let dialled = around
            .dial
            .dial(&shared.spec, &shared.log, None, deadline)
            .await?;
        let others = shared.clock.now().plus(list::OTHERS_TIMEOUT);
        let others = shared.clock.instant(others);
        let lists = list_all(dialled.0.as_ref(), &ListKind::ALL, deadline, others).await;
        // Without its tools a server does not serve; without another list it does.
        let mut kept = Vec::new();
        for (kind, listed) in lists {
            match listed {
                Err(error) if kind == ListKind::Tools => return Err(error.into()),
                listed => kept.push((kind, listed)),
            }
        }
        Ok((dialled, kept))
    }

    async fn ready(&mut self, (link, mut events): Dialled, mut relists: Relists) -> Phase {
        self.tell(State::Ready);
        let since = self.shared.clock.now();
        let clock = Arc::clone(&self.shared.clock);
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(Command { order: Order::Start, done }) => {
                        let _ = done.send(());
                    }
                    command => return self.obey_while_ready(command, &link).await,
                },
                exit = link.closed() => return self.lost(exit, since),
                Some(event) = events.recv() => match event {
                    LinkEvent::ToolsChanged => relists.tools.note(&[ListKind::Tools]),
                    LinkEvent::PromptsChanged => relists.others.note(&[ListKind::Prompts]),
                    LinkEvent::ResourcesChanged => {
                        relists.others.note(&[ListKind::Resources, ListKind::Templates]);
                    }
                    LinkEvent::Renewed => self.shared.renewals.send_modify(|nth| *nth += 1),
                    LinkEvent::Ambiguous => self.interactive(),
                    event => self.around.heard(&self.shared, LinkKey::SHARED, event),
                },
                listed = relists.tools.next(&link, clock.as_ref()) => {
                    self.learn(&mut relists.tools, &listed);
                    self.publish(&link, listed);
                }
                listed = relists.others.next(&link, clock.as_ref()) => {
                    self.learn(&mut relists.others, &listed);
                    self.publish(&link, listed);
                }
            }
        }
    }

    fn learn(&self, relist: &mut Relist, listed: &[Listed]) {
        relist.learn(listed, self.shared.clock.as_ref(), self.jitter());
    }

    /// Well mixed, different for each server, and the same again on the same clock.
    fn jitter(&self) -> u64 {
        let mut mixer = DefaultHasher::new();
        let (server, now) = (&self.shared.spec.name, self.shared.clock.now());
        (server, self.failures, now).hash(&mut mixer);
        mixer.finish()
    }

    /// The server asked a client for something while nobody could say which one it meant. From
    /// now on each session that can answer gets a link of its own.
    fn interactive(&self) {
        let server = &self.shared.spec.name;
        if self.shared.spec.isolation != Isolation::Auto {
            tracing::warn!(%server, "asked while several sessions had calls in flight; refused");
        } else if !self.shared.interactive.swap(true, Ordering::Relaxed) {
            tracing::info!(%server, "asks clients; sessions get links of their own");
        }
    }

    /// The link ended by itself.
    fn lost(&mut self, exit: Exit, since: bowline_core::time::Now) -> Phase {
        self.shared.ready.store(None);
        let now = self.shared.clock.now();
        if now.millis_since(since) >= bowline_core::time::millis(HEALTHY_AFTER) {
            self.failures = 0;
        }
        self.failed(Class::ConnectionLost, &exit.to_string().into())
    }

    /// Counts a failure and decides what comes next.
    fn failed(&mut self, class: Class, reason: &Arc<str>) -> Phase {
        let now = self.shared.clock.now();
        self.failures = self.failures.saturating_add(1);
        self.shared.remember(class, Arc::clone(reason));
        let verdict = self.budget.spend(now);
        self.shared
            .counts
            .restarts
            .store(self.budget.spent().into(), Ordering::Relaxed);
        let server = &self.shared.spec.name;
        match verdict {
            Verdict::Restart => {
                let wait = self.shared.spec.backoff.wait(self.failures, self.jitter());
                tracing::warn!(%server, %reason, ?wait, "failed; will be started again");
                Phase::Backoff(wait, Arc::clone(reason))
            }
            Verdict::Eject => {
                tracing::error!(%server, %reason, "failed too often; ejected");
                Phase::Ejected(Arc::clone(reason))
            }
        }
    }

    /// Takes an order while no link is up; `None` means that the host is gone.
    fn obey_at_rest(&mut self, command: Option<Command>) -> Phase {
        let Some(Command { order, done }) = command else {
            return Phase::End;
        };
        let phase = match order {
            Order::Start | Order::Restart | Order::Reload => {
                self.shared.own.clear();
                self.forgive();
                self.tell(State::Starting);
                Phase::Starting
            }
            Order::Stop => {
                self.shared.own.clear();
                self.around.catalog.withdraw(&self.shared.spec.name);
                self.tell(State::Stopped);
                Phase::Stopped
            }
        };
        let _ = done.send(());
        phase
    }

    async fn obey_while_ready(&mut self, command: Option<Command>, link: &Arc<dyn Link>) -> Phase {
        self.tell(State::Draining);
        self.shared.ready.store(None);
        let exit = link.close().await;
        self.shared.own.close_all().await;
        tracing::info!(server = %self.shared.spec.name, %exit, "stopped");
        self.obey_at_rest(command)
    }

    /// A person asked for a fresh start.
    fn forgive(&mut self) {
        self.failures = 0;
        self.budget.reset();
        self.shared.counts.restarts.store(0, Ordering::Relaxed);
        let now = self.shared.clock.now();
        self.shared.with_breaker(now, Breaker::reset);
    }

    /// Shows what was listed. A list that could not be had leaves the old one in place.
    fn publish(&self, link: &Arc<dyn Link>, lists: Vec<Listed>) {
        let server = &self.shared.spec.name;
        let mut pages = Pages::default();
        for (kind, listed) in lists {
            match listed {
                Ok(read) => *pages.get_mut(kind) = Some(read),
                Err(error) => {
                    let reason = reason_of(&error);
                    tracing::warn!(%server, %reason, "a list could not be read");
                    self.shared.remember(Class::ProtocolError, reason);
                }
            }
        }
        let before = self.around.catalog.current();
        let offer = Offer::new(
            server,
            &link.server().initialize,
            &pages,
            &self.shared.spec.tools,
            before.offer(server).map(AsRef::as_ref),
        );
        for kind in ListKind::ALL {
            let withheld = offer.shelf(kind).withheld;
            if withheld > 0 && pages.get(kind).is_some() {
                let list = kind.member();
                tracing::warn!(%server, list, withheld, "definitions without a usable name");
            }
        }
        self.around.catalog.publish(offer);
    }

    fn tell(&self, state: State) {
        self.shared.state.send_if_modified(|current| {
            let changed = *current != state;
            *current = state;
            changed
        });
    }
}

/// Writes an error and its causes as one line for people.
pub(super) fn reason_of(error: &dyn std::error::Error) -> Arc<str> {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text.into()
}
