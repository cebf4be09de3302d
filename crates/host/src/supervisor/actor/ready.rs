//! While a server serves: what it says is heard, its lists are kept fresh, and its end is noticed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bowline_core::breaker::Breaker;
use bowline_core::error::Class;
use bowline_core::tasks::LinkKey;
use bowline_link::{Link, LinkEvent};

use super::super::cause::Cause;
use super::super::freshness::Outcomes;
use super::super::list::Listed;
use super::super::relist::Relist;
use super::super::{Command, Dialled, Order, State, Wish};
use super::leave::Aim;
use super::reachability::Reachability;
use super::vigil::{Seen, Vigil};
use super::{Actor, Phase, Relists};
use crate::catalog::ListKind;
use crate::spec::Isolation;

impl Actor {
    pub(super) async fn ready(
        &mut self,
        (link, mut events): Dialled,
        mut relists: Relists,
    ) -> Phase {
        self.tell(State::Ready);
        let shared = Arc::clone(&self.shared);
        let memory = Arc::clone(&self.around.memory);
        let since = shared.clock.now();
        // A new link is proof that the server can be reached.
        shared.with_breaker(since, Breaker::reached);
        let mut reachability = Reachability::default();
        let entries_max = shared.spec.list_max;
        let mut vigil = Vigil::new(&shared);
        let mut closed = link.closed();
        let _serving = shared.freshness.serve(since);
        loop {
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(Command { wish: Wish::Order(Order::Start), done }) => {
                        let _ = done.send(());
                    }
                    Some(Command { wish: Wish::Relist, .. }) => {
                        self.forget_answers();
                        relists.note_all();
                    }
                    command => return self.obey_while_ready(command, &link).await,
                },
                exit = &mut closed => return self.lost(exit, since),
                kinds = shared.freshness.next_wanted() => relists.note(&kinds),
                Some(event) = events.recv() => match self.noted(event) {
                    LinkEvent::ToolsChanged => relists.tools.note(&[ListKind::Tools]),
                    LinkEvent::PromptsChanged => relists.others.note(&[ListKind::Prompts]),
                    LinkEvent::ResourcesChanged => {
                        relists.others.note(&[ListKind::Resources, ListKind::Templates]);
                    }
                    LinkEvent::Renewed => shared.renewals.send_modify(|nth| *nth += 1),
                    LinkEvent::Ambiguous => self.interactive(),
                    event => self.around.heard(&shared, LinkKey::SHARED, event),
                },
                listed = relists.tools.next(&link, entries_max, shared.clock.as_ref()) => {
                    if let Some(cause) = refused(&listed) {
                        return self.leave(&link, Aim::Refused(cause), Vec::new()).await;
                    }
                    self.learn(&mut relists.tools, &listed);
                    self.relisted(&link, listed).await;
                }
                listed = relists.others.next(&link, entries_max, shared.clock.as_ref()) => {
                    self.learn(&mut relists.others, &listed);
                    self.relisted(&link, listed).await;
                }
                () = reachability.watch(&link, &shared) => {}
                seen = vigil.next(&link, &shared, &memory) => match seen {
                    Seen::Idle => {
                        if let Some(phase) = self.doze(&link, vigil.pings()).await {
                            return phase;
                        }
                    }
                    Seen::Silent => {
                        self.close(&link).await;
                        let cause = Cause::new(Class::Timeout, "does not answer pings");
                        return self.served_until_now(cause, since);
                    }
                },
            }
        }
    }

    /// Forgets answers that are no longer good, now that the server said so.
    fn noted(&self, event: LinkEvent) -> LinkEvent {
        self.around.answers.heard(&self.shared.spec.name, &event);
        event
    }

    /// Publishes lists that were asked for again, and releases the callers that wait for them.
    async fn relisted(&mut self, link: &Arc<dyn Link>, listed: Vec<Listed>) {
        let outcomes = Outcomes::from(listed.as_slice());
        self.publish(link, listed).await;
        let now = self.shared.clock.now();
        self.shared.freshness.complete(outcomes, now);
    }

    pub(super) fn learn(&self, relist: &mut Relist, listed: &[Listed]) {
        relist.learn(listed, self.shared.clock.as_ref(), self.jitter());
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
}

/// Says why the tools are not shown to us any more, if they are not: then they are not ours to
/// call either, until the server lists them again.
fn refused(listed: &[Listed]) -> Option<Cause> {
    let errors = listed
        .iter()
        .filter_map(|(_, listed)| listed.as_ref().err());
    let mut causes = errors.map(Cause::from);
    causes.find(Cause::is_of_credentials)
}
