//! Server requests (sampling, elicitation, roots) that cross a broker connection: outgoing
//! requests, incoming requests relayed to a local client, and deadline extension meanwhile.

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::client_handle::{ClientHandle, ServerRequest, ServerRequestId};
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_link::CLIENT_WAIT_MAX;
use bowline_runtime::Clock;
use bowline_wire::RpcMessage;
use bytes::Bytes;
use tokio::time::timeout_at;

/// Open server requests of one connection, per direction.
const SERVER_REQUESTS_MAX: usize = 1_024;

/// Minimum deadline extension of a call whose server request is open when the deadline passes.
const CALLER_WAIT_GRACE: Duration = Duration::from_secs(1);

/// Server requests sent to the far end of one connection.
#[derive(Debug, Default)]
pub(super) struct OutgoingServerRequests(Mutex<OutgoingTable>);

#[derive(Debug, Default)]
struct OutgoingTable {
    /// Number of the last request.
    last_number: u64,
    /// Open requests by number, each with the id of the call.
    requests: HashMap<u64, (Arc<str>, ServerRequest)>,
    /// Set once when the connection closes: no response can arrive.
    is_closed: bool,
}

impl OutgoingServerRequests {
    /// Registers a server request and returns the number and the request bytes. Beyond the limit
    /// the request is refused.
    pub(super) fn register(
        &self,
        id: &Arc<str>,
        server_request: ServerRequest,
    ) -> Option<(u64, Bytes)> {
        let mut open = lock(&self.0);
        if open.is_closed || open.requests.len() >= SERVER_REQUESTS_MAX {
            // Refuse outside the lock: the server may send another request at once.
            drop(open);
            drop(server_request);
            return None;
        }
        open.last_number += 1;
        let (number, request) = (open.last_number, server_request.request.clone());
        open.requests
            .insert(number, (Arc::clone(id), server_request));
        Some((number, request))
    }

    /// Completes a server request; `None` refuses the request. Returns `false` if no such request
    /// of call `id` is open.
    pub(super) fn complete(&self, id: &str, number: u64, answer: Option<Bytes>) -> bool {
        let removed = {
            let mut open = lock(&self.0);
            match open.requests.get(&number) {
                Some((call_id, _)) if **call_id == *id => open.requests.remove(&number),
                Some(_) | None => None,
            }
        };
        let Some((_, server_request)) = removed else {
            return false;
        };
        match answer {
            Some(answer) => server_request.respond(answer),
            None => drop(server_request),
        }
        true
    }

    /// Refuses all open requests of a finished call.
    pub(super) fn cancel_for_call(&self, id: &str) {
        let cancelled: Vec<_> = {
            let mut open = lock(&self.0);
            let of = |_: &u64, entry: &mut (Arc<str>, ServerRequest)| *entry.0 == *id;
            open.requests.extract_if(of).collect()
        };
        drop(cancelled);
    }

    /// Refuses all requests, open and future: the connection is closed.
    pub(super) fn close(&self) {
        let cancelled = {
            let mut open = lock(&self.0);
            open.is_closed = true;
            std::mem::take(&mut open.requests)
        };
        drop(cancelled);
    }
}

/// Server requests received over one connection and relayed to local clients.
#[derive(Debug, Default)]
pub(super) struct IncomingServerRequests(Mutex<HashMap<RelayKey, IncomingServerRequest>>);

/// Key of a relayed server request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RelayKey {
    /// Id of the call.
    pub(super) id: Arc<str>,
    /// Number of the server request on the connection.
    pub(super) number: u64,
}

/// A relayed server request.
#[derive(Debug)]
struct IncomingServerRequest {
    client: Arc<dyn ClientHandle>,
    /// Id given by the client handle; absent while the request is being relayed.
    id: Option<ServerRequestId>,
}

impl IncomingServerRequests {
    /// Relays a server request to the client of call `id`. `reply` runs exactly once, possibly
    /// before this function returns; with `None` if the client lacks the capability or does not
    /// answer.
    pub(super) fn relay_to_client(
        self: &Arc<Self>,
        caller: Option<&Arc<dyn ClientHandle>>,
        key: &RelayKey,
        request: Bytes,
        reply: impl FnOnce(Option<Bytes>) + Send + 'static,
    ) {
        let message = RpcMessage::parse_from_server(request).ok();
        let parsed = message.and_then(|message| {
            let capability = bowline_link::required_capability(&message)?;
            let caller = caller.filter(|caller| caller.capabilities().supports(capability))?;
            Some((caller, capability, message.id_span()?, message.into_bytes()))
        });
        let Some((caller, capability, id_at, request)) = parsed else {
            return reply(None);
        };
        {
            let mut relayed = lock(&self.0);
            if relayed.len() >= SERVER_REQUESTS_MAX || relayed.contains_key(key) {
                drop(relayed);
                return reply(None);
            }
            let relayed_request = IncomingServerRequest {
                client: Arc::clone(caller),
                id: None,
            };
            relayed.insert(key.clone(), relayed_request);
        }
        let (table, closed_key) = (Arc::downgrade(self), key.clone());
        let server_request =
            ServerRequest::new(request, id_at.start..id_at.end, capability, move |answer| {
                if let Some(table) = table.upgrade() {
                    lock(&table.0).remove(&closed_key);
                }
                reply(answer);
            });
        if let Some(number) = caller.request(server_request)
            && let Some(relayed_request) = lock(&self.0).get_mut(key)
        {
            relayed_request.id = Some(number);
        }
    }

    /// Cancels a request on behalf of the server.
    pub(super) fn cancel(&self, key: &RelayKey) {
        let removed = lock(&self.0).remove(key);
        removed.into_iter().for_each(IncomingServerRequest::cancel);
    }

    /// Cancels all requests of a finished call.
    pub(super) fn cancel_for_call(&self, id: &str) {
        self.cancel_where(|of| of == id);
    }

    /// Cancels all requests: the connection is closed.
    pub(super) fn cancel_all(&self) {
        self.cancel_where(|_| true);
    }

    fn cancel_where(&self, predicate: impl Fn(&str) -> bool) {
        let cancelled: Vec<_> = lock(&self.0)
            .extract_if(|key, _| predicate(&key.id))
            .collect();
        for (_, server_request) in cancelled {
            server_request.cancel();
        }
    }
}

impl IncomingServerRequest {
    fn cancel(self) {
        if let Some(number) = self.id {
            self.client.cancel_request(number);
        }
    }
}

/// Extends a call's deadline by the time spent waiting for the caller's own answers.
#[derive(Debug, Default)]
pub(super) struct DeadlineExtension(Mutex<CallerWaitTime>);

#[derive(Debug, Default)]
struct CallerWaitTime {
    /// Open server requests.
    open_requests: u32,
    /// Start of the current wait.
    waiting_since: Option<MonotonicTime>,
    /// Total of finished waits.
    finished_waits: Duration,
}

impl DeadlineExtension {
    pub(super) fn start_wait(&self, now: MonotonicTime) {
        let mut wait_time = lock(&self.0);
        wait_time.open_requests += 1;
        wait_time.waiting_since.get_or_insert(now);
    }

    pub(super) fn end_wait(&self, now: MonotonicTime) {
        let mut wait_time = lock(&self.0);
        wait_time.open_requests = wait_time.open_requests.saturating_sub(1);
        if wait_time.open_requests == 0
            && let Some(since) = wait_time.waiting_since.take()
        {
            wait_time.finished_waits += since.duration_until(now);
        }
    }

    /// Returns the extended deadline after a wait until `until`; `None` when time is up.
    fn extended_deadline(
        &self,
        deadline: MonotonicTime,
        until: MonotonicTime,
        now: MonotonicTime,
    ) -> Option<MonotonicTime> {
        let wait_time = lock(&self.0);
        let running = wait_time
            .waiting_since
            .map(|since| since.duration_until(now));
        let waited = (wait_time.finished_waits + running.unwrap_or_default()).min(CLIENT_WAIT_MAX);
        let extended = deadline.plus(waited);
        if extended <= until {
            return None;
        }
        // While a server request is open, the deadline moves with the clock.
        Some(match wait_time.open_requests {
            0 => extended,
            _ => extended.max(now.plus(CALLER_WAIT_GRACE)),
        })
    }

    /// Runs `work` until `deadline`, extended by the time the caller needs to answer server
    /// requests. Returns `None` on timeout.
    pub(super) async fn run_until_deadline<T>(
        &self,
        clock: &dyn Clock,
        deadline: MonotonicTime,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let mut work = pin!(work);
        let mut until = deadline;
        loop {
            if let Ok(done) = timeout_at(clock.instant(until), &mut work).await {
                return Some(done);
            }
            until = self.extended_deadline(deadline, until, clock.now())?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caller_wait_extends_deadline_up_to_one_hour() {
        let extension = DeadlineExtension::default();
        let (deadline, s) = (MonotonicTime(1_000), |seconds: u64| {
            MonotonicTime(seconds * 1_000)
        });
        assert_eq!(extension.extended_deadline(deadline, deadline, s(1)), None);
        extension.start_wait(MonotonicTime(500));
        extension.start_wait(MonotonicTime(700));
        let first = extension.extended_deadline(deadline, deadline, s(1));
        assert_eq!(first, Some(s(2)), "at least a second more while it is open");
        extension.end_wait(s(2));
        extension.end_wait(s(3));
        let after = extension.extended_deadline(deadline, s(3), s(3));
        assert_eq!(
            after,
            Some(MonotonicTime(3_500)),
            "two and a half seconds were the caller's"
        );
        assert_eq!(
            extension.extended_deadline(deadline, MonotonicTime(3_500), MonotonicTime(3_500)),
            None
        );
        extension.start_wait(MonotonicTime(3_500));
        let late = MonotonicTime(10_000_000);
        let hour = deadline.plus(CLIENT_WAIT_MAX);
        assert_eq!(extension.extended_deadline(deadline, hour, late), None);
    }
}
