//! How a server that serves is stopped: no new call gets the link, those in flight end, and then
//! it is closed.

use std::sync::Arc;
use std::time::Duration;

use bowline_link::Link;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::super::cause::Cause;
use super::super::{Command, Order, State, Wish};
use super::{Actor, Phase};

/// How often is looked whether calls are still in flight.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What follows when a server was stopped.
#[derive(Debug)]
pub(super) enum Aim {
    /// The next call starts it.
    Idle,
    /// It is started afresh.
    Fresh,
    /// Calls are refused.
    Stopped,
    /// There is no next.
    Gone,
    /// It showed us nothing any more, for this cause; it is tried again later.
    Refused(Cause),
}

/// Those who are told when a server was stopped.
type Waiting = Vec<oneshot::Sender<()>>;

impl Actor {
    /// Takes an order while a link is up; `None` means that the host is gone.
    pub(super) async fn obey_while_ready(
        &mut self,
        command: Option<Command>,
        link: &Arc<dyn Link>,
    ) -> Phase {
        let Some(Command { wish, done }) = command else {
            self.close(link).await;
            return Phase::End;
        };
        match wish {
            // Lists are asked for again without leaving, where that can be done.
            Wish::Order(Order::Reload) | Wish::Relist => {
                self.leave(link, Aim::Fresh, vec![done]).await
            }
            Wish::Retire => self.leave(link, Aim::Gone, vec![done]).await,
            Wish::Order(Order::Stop) => self.end(link, Aim::Stopped, vec![done]).await,
            Wish::Order(Order::Start | Order::Restart) => {
                self.end(link, Aim::Fresh, vec![done]).await
            }
        }
    }

    /// Stops a server that nobody needs, unless somebody came at the last moment, or it ended by
    /// itself; `pings` of ours may be in flight.
    pub(super) async fn doze(&mut self, link: &Arc<dyn Link>, pings: usize) -> Option<Phase> {
        let ready = self.shared.ready.swap(None);
        if link.is_open() && link.in_flight() + self.shared.own.in_flight() <= pings {
            return Some(self.end(link, Aim::Idle, Vec::new()).await);
        }
        self.shared.ready.store(ready);
        None
    }

    /// Lets calls in flight end, though not later than they may, and then stops the server.
    pub(super) async fn leave(
        &mut self,
        link: &Arc<dyn Link>,
        mut aim: Aim,
        mut waiting: Waiting,
    ) -> Phase {
        self.bar();
        let mut late = std::pin::pin!(sleep(self.shared.spec.drain_timeout));
        while link.in_flight() + self.shared.own.in_flight() > 0 {
            let command = tokio::select! {
                biased;
                command = self.commands.recv() => command,
                _ = link.closed() => break,
                () = &mut late => break,
                () = sleep(LOOK_EVERY) => continue,
            };
            let Some(Command { wish, done }) = command else {
                aim = Aim::Gone;
                break;
            };
            match wish {
                // It is on its way to that already, or gone for good.
                Wish::Order(Order::Start | Order::Reload) | Wish::Relist => waiting.push(done),
                Wish::Order(order) => {
                    aim = match (aim, order) {
                        (Aim::Gone, _) => Aim::Gone,
                        (_, Order::Stop) => Aim::Stopped,
                        (_, Order::Start | Order::Restart | Order::Reload) => Aim::Fresh,
                    };
                    waiting.push(done);
                    break;
                }
                Wish::Retire => {
                    aim = Aim::Gone;
                    waiting.push(done);
                }
            }
        }
        self.end(link, aim, waiting).await
    }

    /// Stops the server now.
    async fn end(&mut self, link: &Arc<dyn Link>, aim: Aim, waiting: Waiting) -> Phase {
        self.close(link).await;
        let phase = match aim {
            Aim::Idle => self.quiet().await,
            Aim::Fresh => self.afresh(),
            Aim::Stopped => self.stopped(),
            Aim::Gone => self.gone(),
            Aim::Refused(cause) => self.unstarted(cause),
        };
        for done in waiting {
            let _ = done.send(());
        }
        phase
    }

    /// From here on no call gets a link.
    fn bar(&self) {
        self.shared.ready.store(None);
        self.tell(State::Draining);
    }

    /// Closes every link and waits for their end.
    pub(super) async fn close(&self, link: &Arc<dyn Link>) {
        self.bar();
        let exit = link.close().await;
        self.shared.own.close_all().await;
        tracing::info!(server = %self.shared.spec.name, %exit, "stopped");
    }

    /// Goes to rest until the next call. Who rang before did so for the life that is over.
    async fn quiet(&self) -> Phase {
        tokio::select! {
            biased;
            () = self.shared.demand.notified() => {}
            () = std::future::ready(()) => {}
        }
        Phase::Idle
    }
}
