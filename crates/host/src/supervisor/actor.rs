//! The task behind a supervisor: one server, one phase at a time.

mod fail;
mod leave;
pub(super) mod reachability;
mod ready;
mod start;
mod vigil;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bowline_core::breaker::Breaker;
use bowline_core::recovery::{Place, Recovery};
use tokio::sync::mpsc;

use super::cause::{Blame, Cause};
use super::relist::Relist;
use super::{Command, Dialled, Order, Shared, State, Surroundings, Wish};
use crate::catalog::{Age, ListKind};
use crate::events::What;
use crate::manifest::Manifest;
use crate::spec::Reach;

/// The task's own state.
#[derive(Debug)]
pub(super) struct Actor {
    shared: Arc<Shared>,
    around: Surroundings,
    commands: mpsc::Receiver<Command>,
    recovery: Recovery,
    /// Under which digest of its spec the manifest is kept.
    digest: String,
    /// What the server said when it last served, in this life of the gateway or in another.
    manifest: Option<Manifest>,
    /// The newest line of the server's log before its latest start.
    log_before: u64,
}

/// What the server is doing, with what only the actor holds.
enum Phase {
    Idle,
    Stopped,
    Starting,
    Ready(Dialled, Relists),
    Backoff(Duration, Cause),
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

impl Relists {
    /// Every list may have changed.
    fn note_all(&mut self) {
        self.tools.note(&[ListKind::Tools]);
        let others = [ListKind::Prompts, ListKind::Resources, ListKind::Templates];
        self.others.note(&others);
    }

    /// These lists may have changed.
    fn note(&mut self, kinds: &[ListKind]) {
        for kind in kinds {
            match kind {
                ListKind::Tools => self.tools.note(&[*kind]),
                ListKind::Prompts | ListKind::Resources | ListKind::Templates => {
                    self.others.note(&[*kind]);
                }
            }
        }
    }
}

impl Actor {
    pub(super) fn new(
        shared: Arc<Shared>,
        around: &Surroundings,
        commands: mpsc::Receiver<Command>,
        (digest, manifest): (String, Option<Manifest>),
    ) -> Self {
        let spec = &shared.spec;
        let place = match spec.reach {
            Reach::Child(_) | Reach::Placed(_) | Reach::InProcess(_) => Place::Child,
            Reach::Remote(_) | Reach::Peer(_) => Place::Remote,
        };
        Self {
            recovery: Recovery::new(place, spec.backoff, spec.restart),
            shared,
            around: around.clone(),
            commands,
            digest,
            manifest,
            log_before: 0,
        }
    }

    /// Shows what is known of the server before it is up.
    pub(super) fn begin(&self) {
        let spec = &self.shared.spec;
        let card = spec.card.as_ref().filter(|_| spec.lazy);
        let card = card.and_then(|card| card.manifest.as_ref());
        if let Some(kept) = &self.manifest
            && spec.reach.is_process()
        {
            self.around.dial.recall_era(spec, kept.era());
        }
        let known = self.manifest.as_ref().or(card);
        let is_shown = known.is_some_and(|known| self.offer_kept(&known.initialize, &known.pages));
        if !is_shown && spec.lazy {
            self.around.catalog.unlisted.add(&spec.name);
        }
        let first = self.shared.state.borrow().clone();
        self.announce(&first);
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
                Phase::Backoff(wait, cause) => self.backoff(wait, cause).await,
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

    async fn backoff(&mut self, wait: Duration, cause: Cause) -> Phase {
        self.age(Age::LastKnown);
        self.tell(State::Backoff {
            until: self.shared.clock.now().plus(wait),
            reason: cause.reason,
            class: cause.class,
            challenge: cause.challenge,
            blame: cause.blame,
        });
        let (dial, shared) = (Arc::clone(&self.around.dial), Arc::clone(&self.shared));
        tokio::select! {
            biased;
            command = self.commands.recv() => self.obey_at_rest(command),
            () = tokio::time::sleep(wait) => Phase::Starting,
            // What was never the server's fault is no reason to keep it waiting.
            () = dial.back(&shared.spec), if cause.blame == Blame::Way => Phase::Starting,
        }
    }

    /// Takes an order while no link is up; `None` means that the host is gone.
    fn obey_at_rest(&mut self, command: Option<Command>) -> Phase {
        let Some(Command { wish, done }) = command else {
            return Phase::End;
        };
        self.shared.own.clear();
        let state = self.shared.state.borrow().clone();
        let is_idle = state == State::Idle;
        let phase = match wish {
            // Where nobody was to be reached with the old ones, nothing is known of the new ones.
            Wish::Relist => match state {
                State::Idle => Phase::Idle,
                State::Stopped => Phase::Stopped,
                _ => self.afresh(),
            },
            Wish::Order(Order::Reload) if is_idle => {
                self.forgive();
                Phase::Idle
            }
            Wish::Order(Order::Start | Order::Restart | Order::Reload) => self.afresh(),
            Wish::Order(Order::Stop) => self.stopped(),
            Wish::Retire => self.gone(),
        };
        let _ = done.send(());
        phase
    }

    /// A person asked for a fresh start.
    fn afresh(&mut self) -> Phase {
        self.forgive();
        self.tell(State::Starting);
        Phase::Starting
    }

    /// A person stopped it.
    fn stopped(&self) -> Phase {
        self.withdraw();
        self.forget_answers();
        self.tell(State::Stopped);
        Phase::Stopped
    }

    /// It is gone for good. Its name may be its successor's by now, so only those are told who
    /// wait for this very one.
    fn gone(&self) -> Phase {
        self.shared.state.send_replace(State::Stopped);
        Phase::End
    }

    /// Offers nothing any more, unless the name is its successor's by now.
    fn withdraw(&self) {
        if !self.shared.is_retired() {
            self.around.catalog.withdraw(&self.shared.spec.name);
        }
    }

    /// What it answered in another life may not be what it would answer now, for all that a
    /// person knows who gave the order.
    fn forget_answers(&self) {
        if !self.shared.is_retired() {
            self.around.answers.purge(&self.shared.spec.name);
        }
    }

    fn forgive(&mut self) {
        self.forget_answers();
        self.recovery.reset();
        self.shared.own.forgive();
        self.shared.counts.restarts.store(0, Ordering::Relaxed);
        let now = self.shared.clock.now();
        self.shared.with_breaker(now, Breaker::reset);
    }

    /// Well mixed, different for each server, and the same again on the same clock.
    fn jitter(&self) -> u64 {
        let mut mixer = DefaultHasher::new();
        let (server, now) = (&self.shared.spec.name, self.shared.clock.now());
        (server, self.recovery.failures(), now).hash(&mut mixer);
        mixer.finish()
    }

    /// Notes whether what is shown of it is known from before.
    fn age(&self, age: Age) {
        if !self.shared.is_retired() {
            self.around.catalog.age(&self.shared.spec.name, age);
        }
    }

    fn tell(&self, state: State) {
        let told = state.clone();
        let changed = self.shared.state.send_if_modified(|current| {
            let changed = *current != state;
            *current = state;
            changed
        });
        if changed {
            self.announce(&told);
        }
    }

    fn announce(&self, state: &State) {
        self.around.events.tell(What::State {
            server: Arc::clone(&self.shared.spec.name),
            state: state.as_str(),
            generation: self.shared.counts.generation.load(Ordering::Relaxed),
            reason: state.reason().cloned(),
        });
    }
}
