//! Engine that answers broker requests concurrently, under limits, each exactly once.

mod in_flight;
mod reply_sink;
mod run_limiter;

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Principal;
use bowline_core::client_handle::ClientHandle;
use bowline_core::error::{ExecutionStatus, FailureReport};
use bowline_core::time::MonotonicTime;
use bowline_journal::{JournalError, Timestamps};
use bowline_link::CLIENT_WAIT_MAX;
use bowline_runtime::Clock;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use self::in_flight::{ClaimOutcome, DedupGuard, InFlightEnd, InFlightRequests, RequestKey};
use self::run_limiter::RunLimiter;
use super::failures;
use super::ledger::{BeginOutcome, LedgerEntry};
use crate::frames::{BrokerRequest, BrokerResponse, MailboxMessage, MessageSender, ResultForm};
use crate::{Backend, BackendRequest, PeerManifest, RequestLedger};

pub use reply_sink::{ReplyError, ReplySink, reply_id};

/// Redelivery delay of a request beyond the in-flight limit.
const PUT_BACK_DELAY: Duration = Duration::from_secs(1);

/// How long cancelled requests may take to reply on shutdown.
const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// Limits of serving.
#[derive(Clone, Copy, Debug)]
pub struct ServeLimits {
    /// Requests running at once.
    pub running_max: usize,
    /// Requests of one caller running at once.
    pub caller_running_max: usize,
    /// Stored requests in flight, running or queued; more are returned to the mailbox.
    pub waiting_max: usize,
}

impl Default for ServeLimits {
    fn default() -> Self {
        Self {
            running_max: 1_024,
            caller_running_max: 256,
            waiting_max: 4_096,
        }
    }
}

/// A received request: stamped by the hub, not yet parsed.
#[derive(Clone, Debug)]
pub struct ServeRequest {
    /// The sender, stamped by the hub.
    pub sender: MessageSender,
    /// The sender as a local principal; set only on the hub.
    pub principal: Option<Arc<Principal>>,
    /// The message with the request. The id of a stored request is unique per caller forever.
    pub message: MailboxMessage,
    /// A response is useless after this time.
    pub deadline: MonotonicTime,
    /// Receives notifications and server requests of the tool before the response.
    pub client: Option<Arc<dyn ClientHandle>>,
}

/// The engine that answers requests.
#[derive(Debug)]
pub struct ServeEngine {
    backend: Arc<dyn Backend>,
    ledger: RequestLedger,
    limits: ServeLimits,
    clock: Arc<dyn Clock>,
    run_limiter: RunLimiter,
    in_flight: InFlightRequests,
}

/// Outcome of a stored request.
struct ServeOutcome {
    response: BrokerResponse,
    /// The ledger entry, if recorded as started and not yet as finished.
    entry: Option<LedgerEntry>,
}

impl ServeEngine {
    /// Returns an engine that runs requests on `backend`.
    #[must_use]
    pub fn new(
        backend: Arc<dyn Backend>,
        ledger: RequestLedger,
        limits: ServeLimits,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            backend,
            ledger,
            limits,
            run_limiter: RunLimiter::new(limits.running_max, limits.caller_running_max),
            in_flight: InFlightRequests::default(),
            clock,
        }
    }

    /// Returns the ledger.
    #[must_use]
    pub const fn ledger(&self) -> &RequestLedger {
        &self.ledger
    }

    /// Returns the tools that a sender may use.
    pub async fn manifest(
        &self,
        from: &MessageSender,
        principal: Option<&Arc<Principal>>,
    ) -> Result<PeerManifest, FailureReport> {
        self.backend.manifest(from, principal).await
    }

    /// Answers a live request. Dropping the future cancels the request.
    pub async fn handle_live(&self, incoming: ServeRequest) -> BrokerResponse {
        let request = match self.parse_request(incoming, None) {
            Ok(request) => request,
            Err(failure) => return BrokerResponse::Failed(failure),
        };
        if matches!(request.request, BrokerRequest::Manifest) {
            return self.list_tools(&request).await;
        }
        let waited = tokio::time::timeout_at(
            self.clock.instant(request.incoming.deadline),
            self.run_limiter
                .acquire(&request.incoming.sender.session_id),
        );
        match waited.await {
            Ok(_seat) => self.run_tool(&request).await,
            Err(_late) => BrokerResponse::Failed(failures::request_expired()),
        }
    }

    /// Handles a stored request: runs the request unless recorded in the ledger, stores the reply,
    /// records the outcome, and acks the request, in this order.
    ///
    /// A duplicate that arrives meanwhile neither runs nor replies a second time.
    pub async fn handle_stored(&self, incoming: ServeRequest, sink: &dyn ReplySink) {
        let key = RequestKey {
            caller: Arc::clone(&incoming.sender.session_id),
            id: Arc::clone(&incoming.message.id),
        };
        let guard = loop {
            match self.in_flight.claim(&key, self.limits.waiting_max) {
                ClaimOutcome::Claimed(guard) => break guard,
                ClaimOutcome::Full => return sink.put_back(PUT_BACK_DELAY).await,
                ClaimOutcome::Duplicate(duplicate) => match duplicate.wait_end().await {
                    Some(InFlightEnd::Replied) => return sink.ack().await,
                    Some(InFlightEnd::Unreplied(answer)) => {
                        let replied = send_reply(&answer, sink).await;
                        return settle_request(replied, sink).await;
                    }
                    // The owner disappeared; claim again.
                    None => {}
                },
            }
        };
        let ServeOutcome {
            response: answer,
            entry,
        } = self.resolve_response(incoming, &key, &guard).await;
        let replied = send_reply(&answer, sink).await;
        // Record the outcome even without a stored reply: a finished request must not run again.
        if let Some(entry) = entry {
            self.record_outcome(&entry, &answer).await;
        }
        guard.finish(match replied {
            Ok(()) => InFlightEnd::Replied,
            Err(_) => InFlightEnd::Unreplied(Arc::new(answer)),
        });
        settle_request(replied, sink).await;
    }

    /// Cancels a stored request of `caller`; `false` if not in flight.
    pub fn cancel_request(&self, caller: &Arc<str>, id: &Arc<str>) -> bool {
        self.in_flight.cancel(&RequestKey {
            caller: Arc::clone(caller),
            id: Arc::clone(id),
        })
    }

    /// Accepts no more stored requests, and cancels the requests in flight.
    pub fn abandon(&self) {
        self.in_flight.close();
        self.in_flight.cancel_all();
    }

    /// Accepts no more stored requests and waits for the requests in flight; unfinished requests
    /// are cancelled after `wait`, and answered accordingly.
    pub async fn close(&self, wait: Duration) {
        let all = async {
            for other in self.in_flight.close() {
                other.wait_end().await;
            }
        };
        if tokio::time::timeout(wait, all).await.is_err() {
            self.in_flight.cancel_all();
            let last = async {
                for other in self.in_flight.close() {
                    other.wait_end().await;
                }
            };
            if tokio::time::timeout(CANCEL_GRACE, last).await.is_err() {
                tracing::warn!(
                    left = self.in_flight.len(),
                    "requests did not finish before shutdown"
                );
            }
        }
    }

    /// Returns the number of stored requests in flight.
    #[must_use]
    pub fn in_flight_count(&self) -> usize {
        self.in_flight.len()
    }

    fn timestamps(&self) -> Timestamps {
        Timestamps {
            now: self.clock.now(),
            unix_ms: self.clock.unix_ms(),
        }
    }

    /// Parses a request, and refuses a request that need not start.
    fn parse_request(
        &self,
        incoming: ServeRequest,
        key: Option<Arc<str>>,
    ) -> Result<BackendRequest, FailureReport> {
        let parsed = BrokerRequest::parse(&incoming.message.body);
        let parsed = parsed.map_err(|bad| failures::bad_request(&bad))?;
        if incoming.deadline <= self.clock.now() {
            return Err(failures::request_expired());
        }
        let request = BackendRequest {
            incoming,
            request: parsed,
            key,
        };
        self.backend.authorize(&request)?;
        Ok(request)
    }

    /// Finds or computes the response to a stored request.
    async fn resolve_response(
        &self,
        incoming: ServeRequest,
        key: &RequestKey,
        guard: &DedupGuard<'_>,
    ) -> ServeOutcome {
        let name = format!("{}/{}", key.caller, key.id);
        let request = match self.parse_request(incoming, Some(name.into())) {
            Ok(request) => request,
            Err(failure) => return self.replay_or_refuse(key, failure).await,
        };
        if matches!(request.request, BrokerRequest::Manifest) {
            return ServeOutcome::from_response(self.list_tools(&request).await);
        }
        let permit = tokio::select! {
            biased;
            seat = self.run_limiter.acquire(&key.caller) => seat,
            () = guard.wait_cancelled() => {
                let failure = failures::request_cancelled(ExecutionStatus::NotStarted);
                return self.replay_or_refuse(key, failure).await;
            }
            () = tokio::time::sleep_until(self.clock.instant(request.incoming.deadline)) => {
                return self.replay_or_refuse(key, failures::request_expired()).await;
            }
        };
        let entry = match self.backend.is_repeatable(&request) {
            true => None,
            false => match self
                .begin_request(key, &request.incoming.message.body)
                .await
            {
                Ok(entry) => Some(entry),
                Err(outcome) => return outcome,
            },
        };
        let response = tokio::select! {
            biased;
            answer = self.run_tool(&request) => answer,
            () = guard.wait_cancelled() => {
                BrokerResponse::Failed(failures::request_cancelled(ExecutionStatus::Unknown))
            }
        };
        drop(permit);
        ServeOutcome { response, entry }
    }

    /// Records a request as started; a request already known to the ledger yields a response.
    async fn begin_request(
        &self,
        key: &RequestKey,
        body: &Bytes,
    ) -> Result<LedgerEntry, ServeOutcome> {
        let digest = Sha256::digest(body).into();
        let body = body.clone();
        match self
            .ledger
            .begin_request(&key.caller, &key.id, digest, body, self.timestamps())
            .await
        {
            Ok(BeginOutcome::Started(entry)) => Ok(entry),
            Ok(BeginOutcome::Answered(body)) => {
                Err(ServeOutcome::from_response(replay_response(body)))
            }
            Ok(BeginOutcome::Interrupted(entry)) => Err(ServeOutcome {
                response: BrokerResponse::Failed(failures::outcome_unknown()),
                entry,
            }),
            Err(JournalError::Conflict) => {
                Err(ServeOutcome::from_failure(failures::idempotency_conflict()))
            }
            Err(error) => {
                let failure = failures::not_stored(&error, ExecutionStatus::NotStarted);
                Err(ServeOutcome::from_failure(failure))
            }
        }
    }

    /// Answers a request that must not start: with the recorded outcome if started before,
    /// otherwise with the refusal.
    async fn replay_or_refuse(&self, key: &RequestKey, failure: FailureReport) -> ServeOutcome {
        let lookup = async {
            if let Some(body) = self.ledger.find_response(&key.caller, &key.id).await? {
                return Ok(Some(ServeOutcome::from_response(replay_response(body))));
            }
            let entry = self
                .ledger
                .find_unfinished(&key.caller, &key.id, self.timestamps())
                .await?;
            Ok::<_, JournalError>(entry.map(|entry| ServeOutcome {
                response: BrokerResponse::Failed(failures::outcome_unknown()),
                entry: Some(entry),
            }))
        };
        match lookup.await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => ServeOutcome::from_failure(failure),
            Err(error) => {
                ServeOutcome::from_failure(failures::not_stored(&error, ExecutionStatus::Unknown))
            }
        }
    }

    async fn list_tools(&self, request: &BackendRequest) -> BrokerResponse {
        match self
            .backend
            .manifest(
                &request.incoming.sender,
                request.incoming.principal.as_ref(),
            )
            .await
        {
            Ok(PeerManifest {
                revision, items, ..
            }) => BrokerResponse::Manifest { items, revision },
            Err(failure) => BrokerResponse::Failed(failure),
        }
    }

    /// Runs a tool until the deadline. If the caller can answer server requests, the deadline is
    /// extended by the longest answer time: only the link to the server knows the time spent
    /// waiting for the caller.
    async fn run_tool(&self, request: &BackendRequest) -> BrokerResponse {
        let may_ask = request
            .request
            .context()
            .is_some_and(|caller_context| caller_context.capabilities.has_any());
        let until = match may_ask {
            true => request.incoming.deadline.plus(CLIENT_WAIT_MAX),
            false => request.incoming.deadline,
        };
        tokio::select! {
            biased;
            answer = self.backend.run(request) => answer,
            () = tokio::time::sleep_until(self.clock.instant(until)) => {
                BrokerResponse::Failed(failures::tool_timeout())
            }
        }
    }

    async fn record_outcome(&self, entry: &LedgerEntry, response: &BrokerResponse) {
        let mut body = Vec::new();
        response.write(ResultForm::Whole, &mut body);
        if let Err(error) = self
            .ledger
            .finish_request(entry, body.into(), self.timestamps())
            .await
        {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "cannot record the outcome of a request"
            );
        }
    }
}

impl ServeOutcome {
    const fn from_response(response: BrokerResponse) -> Self {
        Self {
            response,
            entry: None,
        }
    }

    const fn from_failure(failure: FailureReport) -> Self {
        Self::from_response(BrokerResponse::Failed(failure))
    }
}

/// Parses a recorded response.
fn replay_response(body: Option<Bytes>) -> BrokerResponse {
    let response = body.and_then(|body| BrokerResponse::parse(&body).ok());
    match response {
        Some(BrokerResponse::Output { result, era, .. }) => BrokerResponse::Output {
            result,
            from_journal: true,
            era,
        },
        Some(response) => response,
        None => BrokerResponse::Failed(failures::response_forgotten()),
    }
}

/// Stores a reply; an oversized reply is replaced by an error.
async fn send_reply(response: &BrokerResponse, sink: &dyn ReplySink) -> Result<(), ReplyError> {
    match sink.store_reply(response).await {
        Err(ReplyError::TooLarge) => {
            sink.store_reply(&BrokerResponse::Failed(failures::response_too_large()))
                .await
        }
        other => other,
    }
}

/// Acks a request, or leaves the request for redelivery.
async fn settle_request(replied: Result<(), ReplyError>, sink: &dyn ReplySink) {
    match replied {
        Ok(()) => sink.ack().await,
        // Without a connection the nak is lost, and the request is redelivered anyway.
        Err(ReplyError::Lost) => sink.put_back(PUT_BACK_DELAY).await,
        Err(ReplyError::TooLarge) => sink.dead_letter("the reply is too large".into()).await,
        Err(ReplyError::Refused(reason)) => {
            tracing::warn!(%reason, "reply refused; request becomes a dead letter");
            sink.dead_letter(reason).await;
        }
    }
}
