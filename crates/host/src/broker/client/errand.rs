//! Carries errands out: live over one connection, stored over as many as it takes.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::{Class, Execution, Failure, Origin, Retry};
use bowline_core::time::Now;
use bowline_wire::broker::{Answer, Refusal};
use tokio::time::{sleep, timeout_at};

use super::super::{Errand, ErrandError};
use super::connection::Connection;
use super::{Shared, State};

/// How long a request waits that found no place at the hub.
const PLACE_WAIT: Duration = Duration::from_millis(50);

/// How long somebody waits for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Until all attempts of a round failed.
    Round,
    /// Until the deadline: what was sent may have been stored, and its answer may wait for us.
    Deadline,
}

impl Shared {
    /// Carries an errand out: at the hub, or at the peer whose mailbox is `to`.
    pub(super) async fn ask(
        &self,
        to: Option<&Arc<str>>,
        errand: Errand,
    ) -> Result<Answer, ErrandError> {
        match errand.stored {
            true => self.store(to, errand).await,
            false => self.live(to, errand).await,
        }
    }

    /// Sends it over one connection. What never left goes over the next; what may have left is
    /// lost with its connection, and whoever asked decides.
    async fn live(&self, to: Option<&Arc<str>>, errand: Errand) -> Result<Answer, ErrandError> {
        let mut body = Vec::new();
        errand.ask.write(&mut body);
        let body = bytes::Bytes::from(body);
        let mut after = 0;
        loop {
            let connection = self
                .connected(after, errand.deadline, Patience::Round)
                .await?;
            after = connection.generation;
            let deadline = self.deadline(errand.deadline);
            let sink = errand.sink.clone();
            let to = to.cloned();
            match connection.live((to, body.clone()), deadline, sink).await {
                Ok(body) => match Answer::read(&body).map_err(|_| unreadable())? {
                    // The hub counts places a moment longer than we do.
                    Answer::Failed(failure) if self.may_wait(&failure, errand.deadline) => {
                        sleep(PLACE_WAIT).await;
                        after = 0;
                    }
                    answer => return Ok(answer),
                },
                Err(ErrandError::NotSent(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether a request only found no place at the hub, and has time to look for one again.
    fn may_wait(&self, failure: &Failure, deadline: Now) -> bool {
        let full = (Class::Throttled, Execution::NotStarted, Origin::Broker);
        (failure.class, failure.execution, failure.origin) == full
            && self.options.clock.now().plus(PLACE_WAIT) < deadline
    }

    /// Returns a connection newer than `after`, made for all who wait.
    pub(super) async fn connected(
        &self,
        after: u64,
        deadline: Now,
        patience: Patience,
    ) -> Result<Arc<Connection>, ErrandError> {
        {
            // The usual case, without a subscription.
            let snapshot = self.snapshot.load();
            if let State::Up(connection) = &snapshot.state
                && connection.generation > after
                && connection.over().is_none()
            {
                return Ok(Arc::clone(connection));
            }
        }
        let mut ticks = self.ticks.subscribe();
        let floor = self.snapshot.load().rounds;
        let at = self.options.clock.instant(deadline);
        loop {
            {
                let snapshot = self.snapshot.load();
                match &snapshot.state {
                    State::Up(connection)
                        if connection.generation > after && connection.over().is_none() =>
                    {
                        return Ok(Arc::clone(connection));
                    }
                    State::Over(error) => return Err(ErrandError::NotSent(error.whole())),
                    State::Resting(error)
                        if patience == Patience::Round && snapshot.rounds > floor =>
                    {
                        return Err(ErrandError::NotSent(error.whole()));
                    }
                    State::Resting(_) => self.need.notify_one(),
                    State::Up(_) | State::Trying => {}
                }
            }
            match timeout_at(at, ticks.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(ErrandError::NotSent("the client is closed".into())),
                Err(_) => return Err(ErrandError::Timeout(Execution::NotStarted)),
            }
        }
    }
}

/// An answer came, and cannot be read: it was carried out.
fn unreadable() -> ErrandError {
    ErrandError::Refused(Failure {
        class: Class::ProtocolError,
        execution: Execution::Completed,
        retry: Retry::Never,
        origin: Origin::Broker,
        code: "bad_answer".into(),
        reason: "the hub's answer cannot be read".into(),
    })
}

/// Puts a refusal of the broker into the words of a failure.
pub(super) fn refused(refusal: &Refusal, execution: Execution) -> ErrandError {
    let code = refusal.code.as_deref().unwrap_or("refused");
    let (class, retry) = match code {
        "mailbox_full" | "storage_full" | "throttled" => {
            (Class::Throttled, Retry::After(Duration::from_secs(1)))
        }
        "not_allowed" | "auth" | "expired" | "fenced" => (Class::Denied, Retry::Never),
        "not_stored" | "shutting_down" => {
            (Class::Unavailable, Retry::After(Duration::from_secs(1)))
        }
        _ => (Class::Invalid, Retry::Never),
    };
    ErrandError::Refused(Failure {
        class,
        execution,
        retry,
        origin: Origin::Broker,
        code: code.into(),
        reason: Arc::clone(&refusal.reason),
    })
}
