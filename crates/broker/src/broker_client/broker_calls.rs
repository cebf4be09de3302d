//! Sends broker calls: live over one connection, stored over as many connections as needed.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::{
    ExecutionStatus, FailureClass, FailureOrigin, FailureReport, RetryAdvice,
};
use bowline_core::time::MonotonicTime;
use tokio::time::{sleep, timeout_at};

use super::super::{BrokerCall, BrokerCallError};
use super::hub_connection::HubConnection;
use super::{BrokerClientShared, BrokerClientState};
use crate::frames::{BrokerRefusal, BrokerResponse};

/// Wait before retrying a request throttled by the hub.
const THROTTLED_WAIT: Duration = Duration::from_millis(50);

/// How long a caller waits for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionWait {
    /// Until a round of attempts failed.
    Round,
    /// Until the deadline: the request may be stored, with a reply waiting.
    Deadline,
}

impl BrokerClientShared {
    /// Sends a call to the hub, or to the peer with mailbox `to`.
    pub(super) async fn call(
        &self,
        to: Option<&Arc<str>>,
        call: BrokerCall,
    ) -> Result<BrokerResponse, BrokerCallError> {
        match call.stored {
            true => self.call_stored(to, call).await,
            false => self.call_live(to, call).await,
        }
    }

    /// Sends a live call. An unsent call moves to the next connection; a call that may have been
    /// sent fails with the connection, and the caller decides about a retry.
    async fn call_live(
        &self,
        to: Option<&Arc<str>>,
        call: BrokerCall,
    ) -> Result<BrokerResponse, BrokerCallError> {
        let mut body = Vec::new();
        call.request.write(&mut body);
        let body = bytes::Bytes::from(body);
        let mut after = 0;
        loop {
            let connection = self
                .wait_connection(after, call.deadline, ConnectionWait::Round)
                .await?;
            after = connection.generation;
            let deadline = self.live_deadline(call.deadline);
            let client = call.client.clone();
            let to = to.cloned();
            match connection
                .send_live(to, body.clone(), deadline, client)
                .await
            {
                Ok(body) => {
                    match BrokerResponse::parse(&body).map_err(|_| unreadable_response())? {
                        // The hub releases permits slightly later than the client.
                        BrokerResponse::Failed(failure)
                            if self.can_retry_throttled(&failure, call.deadline) =>
                        {
                            sleep(THROTTLED_WAIT).await;
                            after = 0;
                        }
                        response => return Ok(response),
                    }
                }
                Err(BrokerCallError::NotSent(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the hub only throttled a request, and the deadline allows a retry.
    fn can_retry_throttled(&self, failure: &FailureReport, deadline: MonotonicTime) -> bool {
        let full = (
            FailureClass::Throttled,
            ExecutionStatus::NotStarted,
            FailureOrigin::Broker,
        );
        (failure.class, failure.execution, failure.origin) == full
            && self.options.clock.now().plus(THROTTLED_WAIT) < deadline
    }

    /// Returns a connection newer than `after`, shared by all waiting callers.
    pub(super) async fn wait_connection(
        &self,
        after: u64,
        deadline: MonotonicTime,
        wait: ConnectionWait,
    ) -> Result<Arc<HubConnection>, BrokerCallError> {
        {
            // Fast path without a subscription.
            let snapshot = self.snapshot.load();
            if let BrokerClientState::Connected(connection) = &snapshot.state
                && connection.generation > after
                && connection.connection_end().is_none()
            {
                return Ok(Arc::clone(connection));
            }
        }
        let mut changes = self.changes.subscribe();
        let failed_rounds = self.snapshot.load().failed_rounds;
        let at = self.options.clock.instant(deadline);
        loop {
            {
                let snapshot = self.snapshot.load();
                match &snapshot.state {
                    BrokerClientState::Connected(connection)
                        if connection.generation > after
                            && connection.connection_end().is_none() =>
                    {
                        return Ok(Arc::clone(connection));
                    }
                    BrokerClientState::Closed(error) => {
                        return Err(BrokerCallError::NotSent(error.display_chain()));
                    }
                    BrokerClientState::BackingOff(error)
                        if wait == ConnectionWait::Round
                            && snapshot.failed_rounds > failed_rounds =>
                    {
                        return Err(BrokerCallError::NotSent(error.display_chain()));
                    }
                    BrokerClientState::BackingOff(_) => self.connect_wanted.notify_one(),
                    BrokerClientState::Connected(_) | BrokerClientState::Connecting => {}
                }
            }
            match timeout_at(at, changes.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(BrokerCallError::NotSent("the client is closed".into())),
                Err(_) => return Err(BrokerCallError::Timeout(ExecutionStatus::NotStarted)),
            }
        }
    }
}

/// Error for an unreadable response: the request ran.
fn unreadable_response() -> BrokerCallError {
    BrokerCallError::Refused(FailureReport {
        class: FailureClass::ProtocolError,
        execution: ExecutionStatus::Completed,
        retry: RetryAdvice::Never,
        origin: FailureOrigin::Broker,
        code: "bad_answer".into(),
        reason: "the hub's answer cannot be read".into(),
    })
}

/// Converts a refusal of the broker to a call error.
pub(super) fn to_refused_error(
    refusal: &BrokerRefusal,
    execution: ExecutionStatus,
) -> BrokerCallError {
    let code = refusal.code.as_deref().unwrap_or("refused");
    let (class, retry) = match code {
        "mailbox_full" | "storage_full" | "throttled" => (
            FailureClass::Throttled,
            RetryAdvice::After(Duration::from_secs(1)),
        ),
        "not_allowed" | "auth" | "expired" | "fenced" => (FailureClass::Denied, RetryAdvice::Never),
        "not_stored" | "shutting_down" => (
            FailureClass::Unavailable,
            RetryAdvice::After(Duration::from_secs(1)),
        ),
        _ => (FailureClass::Invalid, RetryAdvice::Never),
    };
    BrokerCallError::Refused(FailureReport {
        class,
        execution,
        retry,
        origin: FailureOrigin::Broker,
        code: code.into(),
        reason: Arc::clone(&refusal.reason),
    })
}
