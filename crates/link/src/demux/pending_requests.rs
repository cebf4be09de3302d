//! Pending requests of a link, and attribution of server-initiated messages.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::ServerResponse;
use bowline_core::client_handle::{ClientHandle, ServerRequestId, SessionKey};
use bowline_core::era::Era;
use bowline_core::pending_table::{PendingTable, SendState};
use bowline_wire::mcp::method;
use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::server_requests::{OpenServerRequest, ServerRequests};
use crate::link::{LinkError, LinkRequest};

/// Longest total client wait of a call before the deadline runs again.
pub const CLIENT_WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Minimum extension of a deadline while a server request is open.
const CLIENT_WAIT_GRACE: Duration = Duration::from_secs(1);

/// Receives the response of a pending request.
pub(crate) type ResponseReceiver = oneshot::Receiver<Result<ServerResponse, LinkError>>;

/// A request that waits for the response.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) response: oneshot::Sender<Result<ServerResponse, LinkError>>,
    /// Id of the caller's request.
    pub(crate) reply_id: Bytes,
    /// Era of the sent request.
    pub(crate) era: Era,
    /// Absent for requests of the gateway itself.
    pub(crate) caller: Option<Arc<dyn ClientHandle>>,
    /// Raw progress token of the caller.
    token: Option<Bytes>,
    client_wait: ClientWaitTime,
    /// Response kind, for the size limit.
    pub(crate) kind: ResponseKind,
    /// Whether MCP allows server requests during this method.
    can_request_input: bool,
    /// Present if the request opens a change stream.
    subscription: Option<PendingSubscription>,
}

/// A requested or open change stream.
#[derive(Debug)]
struct PendingSubscription {
    /// Receives the acknowledged filter; taken when the server has acknowledged.
    acknowledge: Option<oneshot::Sender<Bytes>>,
}

/// Client wait time of a call.
#[derive(Clone, Copy, Debug, Default)]
struct ClientWaitTime {
    /// Open server requests.
    open: u32,
    /// Start of the current wait.
    since: Option<Instant>,
    /// Duration of earlier waits.
    earlier: Duration,
}

impl ClientWaitTime {
    fn begin_wait(&mut self, now: Instant) {
        self.open += 1;
        self.since.get_or_insert(now);
    }

    fn end_wait(&mut self, now: Instant) {
        self.open = self.open.saturating_sub(1);
        if self.open == 0
            && let Some(since) = self.since.take()
        {
            self.earlier += now.saturating_duration_since(since);
        }
    }

    fn total(&self, now: Instant) -> Duration {
        let running = self.since.map(|since| now.saturating_duration_since(since));
        (self.earlier + running.unwrap_or_default()).min(CLIENT_WAIT_MAX)
    }
}

/// Kind of a response, for the size limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseKind {
    /// One of the four lists.
    List,
    /// A tool result.
    Result,
    /// A resource or a prompt.
    Content,
    /// Everything else.
    Other,
}

impl ResponseKind {
    /// Returns the response kind of a method.
    pub(crate) fn from_method(method: &str) -> Self {
        match method {
            method::TOOLS_LIST
            | method::PROMPTS_LIST
            | method::RESOURCES_LIST
            | method::RESOURCES_TEMPLATES_LIST => Self::List,
            method::TOOLS_CALL => Self::Result,
            method::RESOURCES_READ | method::PROMPTS_GET => Self::Content,
            _ => Self::Other,
        }
    }
}

impl PendingRequest {
    /// Returns the pending entry of a request and the response receiver.
    pub(crate) fn new(request: &LinkRequest) -> (Self, ResponseReceiver) {
        let (sender, receiver) = oneshot::channel();
        let message = &request.message;
        let token = message.client.as_ref().and_then(|_| {
            let at = message.progress_at.clone()?;
            // Copied: the parameters can be large, and the wait long.
            Some(Bytes::copy_from_slice(message.params.get(at)?))
        });
        let entry = Self {
            response: sender,
            reply_id: message.id.clone(),
            era: message.era,
            caller: message.client.clone(),
            token,
            client_wait: ClientWaitTime::default(),
            kind: ResponseKind::from_method(&request.method),
            can_request_input: can_request_input(&request.method),
            subscription: None,
        };
        (entry, receiver)
    }

    /// Marks the request as a change stream; `acknowledge` receives the acknowledged filter.
    pub(crate) fn with_subscription(mut self, acknowledge: oneshot::Sender<Bytes>) -> Self {
        self.subscription = Some(PendingSubscription {
            acknowledge: Some(acknowledge),
        });
        self
    }
}

/// All pending requests and server requests of a link.
#[derive(Debug)]
pub(crate) struct PendingRequests {
    pub(crate) pending: PendingTable<PendingRequest>,
    pub(crate) server_requests: ServerRequests,
    /// Exclusive owner session; absent for a shared link.
    owner: Option<Arc<dyn ClientHandle>>,
}

/// Recipient of a server-initiated message.
#[derive(Debug)]
pub(super) enum Recipient {
    /// Exactly this client.
    Client {
        caller: Arc<dyn ClientHandle>,
        /// The call of the message.
        call: Option<u64>,
    },
    /// Calls of several sessions are in flight.
    Ambiguous,
    /// No call is in flight.
    NoClient,
}

impl PendingRequests {
    pub(crate) fn new(in_flight_max: usize, owner: Option<Arc<dyn ClientHandle>>) -> Self {
        Self {
            pending: PendingTable::new(in_flight_max),
            server_requests: ServerRequests::default(),
            owner,
        }
    }

    /// Finds the recipient of a message from the stream of `via`, or from the shared stream.
    pub(super) fn find_recipient(&self, via: Option<u64>) -> Recipient {
        let client_recipient = |call: u64, caller: &Arc<dyn ClientHandle>| Recipient::Client {
            caller: Arc::clone(caller),
            call: Some(call),
        };
        if let Some(id) = via {
            let entry = self.pending.get(id);
            return match entry.and_then(|entry| entry.caller.as_ref()) {
                Some(caller) => client_recipient(id, caller),
                None => self.owner_recipient(),
            };
        }
        let mut candidates = RecipientCandidates::default();
        for (id, entry) in self.pending.iter() {
            if let Some(caller) = &entry.caller
                && !candidates.add_call(id, caller, entry.can_request_input)
            {
                return Recipient::Ambiguous;
            }
        }
        match candidates.newest {
            None => self.owner_recipient(),
            // Calls without a session share only the client name, so two such calls are ambiguous.
            Some((_, caller)) if candidates.count > 1 && caller.answers_by_retry() => {
                Recipient::Ambiguous
            }
            Some((id, caller)) => client_recipient(id, caller),
        }
    }

    fn owner_recipient(&self) -> Recipient {
        match &self.owner {
            Some(owner) => Recipient::Client {
                caller: Arc::clone(owner),
                call: None,
            },
            None => Recipient::NoClient,
        }
    }

    /// Whether a request is a change stream.
    pub(super) fn is_subscription(&self, id: u64) -> bool {
        let entry = self.pending.get(id);
        entry.is_some_and(|entry| entry.subscription.is_some())
    }

    /// Takes the channel for the acknowledged filter.
    pub(super) fn take_acknowledge(&mut self, id: u64) -> Option<oneshot::Sender<Bytes>> {
        self.pending
            .get_mut(id)?
            .subscription
            .as_mut()?
            .acknowledge
            .take()
    }

    /// Returns the client of the newest pending call of a session.
    pub(super) fn newest_client(&self, session: SessionKey) -> Option<Arc<dyn ClientHandle>> {
        let of_session = self.pending.iter().filter_map(|(id, entry)| {
            let caller = entry.caller.as_ref()?;
            (caller.session() == session).then_some((id, caller))
        });
        of_session
            .max_by_key(|(id, _)| *id)
            .map(|(_, caller)| Arc::clone(caller))
    }

    /// Returns the client and the progress token of a request.
    pub(super) fn progress_target(&self, id: u64) -> Option<(Arc<dyn ClientHandle>, Bytes)> {
        let entry = self.pending.get(id)?;
        Some((Arc::clone(entry.caller.as_ref()?), entry.token.clone()?))
    }

    /// Registers a server request to a client; `false` when the table is full.
    pub(super) fn open_server_request(
        &mut self,
        id: &Bytes,
        caller: &Arc<dyn ClientHandle>,
        call: Option<u64>,
    ) -> bool {
        let open = OpenServerRequest {
            caller: Arc::clone(caller),
            client_id: None,
            call,
        };
        let opened = self.server_requests.insert(id, open);
        if opened && let Some(entry) = call.and_then(|call| self.pending.get_mut(call)) {
            entry.client_wait.begin_wait(now());
        }
        opened
    }

    /// Closes a server request after the answer or a cancellation.
    pub(super) fn close_server_request(
        &mut self,
        id: &[u8],
    ) -> Option<(Arc<dyn ClientHandle>, Option<ServerRequestId>)> {
        let open = self.server_requests.remove(id)?;
        if let Some(entry) = open.call.and_then(|call| self.pending.get_mut(call)) {
            entry.client_wait.end_wait(now());
        }
        Some((open.caller, open.client_id))
    }

    /// Removes a request whose caller gave up. Returns whether possibly sent, and the open
    /// server requests, to be cancelled outside the lock.
    pub(crate) fn abandon_request(
        &mut self,
        id: u64,
    ) -> Option<(SendState, Vec<OrphanedServerRequest>)> {
        let (_, send_state) = self.pending.take(id)?;
        let orphaned = self.server_requests.remove_for_call(id);
        Some((
            send_state,
            orphaned.into_iter().map(OrphanedServerRequest).collect(),
        ))
    }

    /// Returns the extended deadline of a wait from `deadline` to `until`;
    /// `None` when the time is up.
    pub(super) fn extended_deadline(
        &self,
        id: u64,
        deadline: Instant,
        until: Instant,
    ) -> Option<Instant> {
        let waited = self.pending.get(id)?.client_wait;
        let now = now();
        let more = deadline.checked_add(waited.total(now))?;
        if more > until {
            // While a server request is open, the deadline moves with the clock.
            let least = if waited.open > 0 {
                now + CLIENT_WAIT_GRACE
            } else {
                more
            };
            Some(more.max(least))
        } else {
            None
        }
    }
}

/// Calls of a session as candidates for a server message: calls with possible server
/// requests if any, otherwise all calls.
#[derive(Default)]
struct RecipientCandidates<'a> {
    newest: Option<(u64, &'a Arc<dyn ClientHandle>)>,
    count: usize,
    can_request_input: bool,
}

impl<'a> RecipientCandidates<'a> {
    /// Adds a call; `false` if the session differs from the earlier calls.
    fn add_call(&mut self, id: u64, caller: &'a Arc<dyn ClientHandle>, may_ask: bool) -> bool {
        match self.newest {
            Some((_, seen)) if seen.session() != caller.session() => return false,
            Some(_) if self.can_request_input && !may_ask => {}
            Some((seen, _)) if self.can_request_input == may_ask => {
                self.count += 1;
                if id > seen {
                    self.newest = Some((id, caller));
                }
            }
            Some(_) | None => {
                *self = Self {
                    newest: Some((id, caller)),
                    count: 1,
                    can_request_input: may_ask,
                };
            }
        }
        true
    }
}

/// Whether MCP allows server requests during a method.
fn can_request_input(method: &str) -> bool {
    matches!(
        method,
        method::TOOLS_CALL | method::PROMPTS_GET | method::RESOURCES_READ | method::TASKS_RESULT
    )
}

/// A server request of an ended call.
#[derive(Debug)]
pub(crate) struct OrphanedServerRequest(OpenServerRequest);

impl OrphanedServerRequest {
    /// Tells the client about the end of the request.
    pub(crate) fn cancel(self) {
        if let Some(number) = self.0.client_id {
            self.0.caller.cancel_request(number);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "how long a person takes is measured on the clock that deadlines go by"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests;
