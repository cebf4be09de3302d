//! The stages of every call, in order: routing, policy, budget, cache, outbox, breaker, link.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bowline_core::call::{CallReply, CallRequest, CallSubject, ReplyOrigin, Route};
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::lane::KeyScope;
use bowline_core::sync::lock;
use bowline_core::task_table::LinkKey;
use bowline_core::time::{CallDeadline, MonotonicTime};
use bowline_link::{LinkError, LinkRequest, ParamRename};
use bowline_runtime::{Clock, ClockReading};
use foldhash::fast::RandomState;
use tracing::Instrument as _;

use crate::authorizer::Authorizer;
use crate::callpath::budget::{BudgetAccounts, CallLimiter};
use crate::callpath::call_record::{CallAuditGuard, CallAuditor};
use crate::callpath::error_map::can_retry;
use crate::callpath::output_schema::OutputValidator;
use crate::callpath::repeated_arguments::{check_headers, key_header, scope_key};
use crate::callpath::response_cache::{CacheLookup, CacheRequest, CallStart, ResponseCache};
use crate::callpath::result_store::ResultStore;
use crate::catalog::CatalogStore;
use crate::offload::OffloadPool;
use crate::outbox::{self, Outbox};
use crate::session_state::SessionState;
use crate::supervisor::{CallStatsGuard, LinkLease, ReadyLink, Supervisor};

pub(crate) mod budget;
pub(crate) mod call_record;
mod error_map;
pub(crate) mod output_schema;
mod repeated_arguments;
mod replay;
pub(crate) mod resolve;
pub(crate) mod response_cache;
pub(crate) mod result_store;

pub(crate) use error_map::{ResponseWait, to_call_error, to_health};
pub(crate) use replay::ReplayKey;

/// How long a queueable write waits for a starting server.
const STORED_WAIT: Duration = Duration::from_secs(1);

/// Supervised servers by name; replaced as a whole when the configuration changes.
pub type ServerMap = HashMap<Arc<str>, Supervisor, RandomState>;

/// The components used by every call.
#[derive(Debug)]
pub struct CallPath {
    pub(crate) catalog: Arc<CatalogStore>,
    pub(crate) authorizer: Arc<Authorizer>,
    pub(crate) budget: BudgetAccounts,
    pub(crate) limiter: CallLimiter,
    pub(crate) cache: Arc<ResponseCache>,
    pub(crate) outbox: Outbox,
    pub(crate) validator: OutputValidator,
    pub(crate) auditor: CallAuditor,
    pub(crate) servers: ArcSwap<ServerMap>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) sessions: Arc<SessionState>,
    pub(crate) offload: OffloadPool,
    /// Long results, read in parts.
    pub(crate) stored_results: ResultStore,
    /// Binds idempotency keys to principals.
    pub(crate) key_scope: KeyScope,
    /// Set once at shutdown: from then on a missing server is not logged.
    pub(crate) closing: AtomicBool,
}

impl CallPath {
    /// Sends `call` to its server and returns the response, or an error stating whether the tool
    /// may have run.
    ///
    /// Dropping the future at any point cancels the call: the permit is released, the breaker
    /// records nothing, and a server holding the request gets a cancellation.
    pub async fn call(&self, call: &CallRequest) -> Result<CallReply, CallError> {
        self.call_with_audit(call, None).await
    }

    /// Sends `call` to this very server, never to a successor of the same name.
    pub(crate) async fn call_on_server(
        &self,
        call: &CallRequest,
        server: &Supervisor,
    ) -> Result<CallReply, CallError> {
        self.call_with_audit(call, Some(server)).await
    }

    /// Executes a call and writes its audit entry.
    async fn call_with_audit(
        &self,
        call: &CallRequest,
        only: Option<&Supervisor>,
    ) -> Result<CallReply, CallError> {
        let mut record = self.auditor.open_guard(call).await;
        let outcome = self
            .execute(call, ChargeState::Due, only, &mut record)
            .await;
        record.close(&outcome);
        outcome
    }

    async fn execute(
        &self,
        call: &CallRequest,
        charge: ChargeState,
        only: Option<&Supervisor>,
        record: &mut CallAuditGuard<'_>,
    ) -> Result<CallReply, CallError> {
        if self.closing.load(Ordering::Relaxed) {
            return Err(CallError::ShuttingDown);
        }
        let started = self.clock.reading();
        let start = self.cache.start_call(started.now());

        // Catalog: resolve the server and its item. Waits for a starting server.
        let (route, server) = self.resolve(call.into(), started.now()).await?;
        server.ensure_same(only)?;
        record.set_route(&route);

        // Policy: the same decision as for lists.
        self.authorize(call.into(), &route)
            .await
            .inspect_err(|_| record.mark_denied())?;

        // Headers: `Mcp-Param-*` must match the arguments, since proxies may act on them.
        check_headers(call, &route)?;

        // Budget: a unit for each call, whatever the result; then the principal's limit of calls in
        // flight, released on drop.
        if charge == ChargeState::Due {
            self.charge(call, started).await?;
        }
        let permit = self.limiter.acquire(&call.principal)?;

        // Cache and outbox come before the breaker: a cache hit needs no server, and an open
        // breaker must queue the writes meant for the outbox.
        let resolved = ResolvedCall::new(call, &route, &server, started.now());
        let mut flight = match self
            .cache
            .lookup_or_wait(resolved.cache_request(call, start), resolved.deadline)
            .await?
        {
            CacheLookup::Hit(reply) => return self.serve_from_cache(call, &route, reply),
            CacheLookup::Miss(flight) => flight,
        };
        let until = resolved.deadline.at;
        let admission = match &route.queue_policy {
            // Boxed because it is rare: keeps the future of an ordinary call small.
            Some(queue) => Box::pin(self.outbox.admit_call(call, &route, queue, until)).await?,
            None => outbox::OutboxAdmission::Send(None),
        };
        let stored_call = match admission {
            outbox::OutboxAdmission::Replied { reply, key } => {
                record.set_key(key);
                return Ok(reply);
            }
            outbox::OutboxAdmission::Send(stored_call) => stored_call,
        };

        // Server: a stored write is sent with the idempotency key in place.
        let sent_call = stored_call.as_ref().map_or(call, |stored_call| {
            record.set_key(stored_call.key());
            stored_call.call()
        });
        let scoped = scope_key(&self.key_scope, sent_call, &route);
        let sent_call = scoped.as_deref().unwrap_or(sent_call);
        let is_stored = stored_call.is_some();
        let (outcome, serves) = self
            .attempt_call(sent_call, resolved, started, is_stored)
            .await;
        flight.mark_returned();

        // Configuration: a call not taken before the server's entry changed goes to the successor.
        if matches!(outcome, Err(CallError::Stopped { .. })) && self.is_replaced(&server) {
            drop((permit, flight));
            if let Some(stored_call) = stored_call {
                stored_call.withdraw_write().await;
            }
            return Box::pin(self.execute(call, ChargeState::Paid, only, record)).await;
        }

        // Sessions and cache: remember links and tasks named by the response, and cache the
        // response if its hint allows.
        if let Ok((reply, link)) = &outcome {
            let ended_at = self.clock.now();
            self.sessions
                .record_reply(call, &route, *link, reply, ended_at);
            flight.store_response(reply, ended_at);
        }
        let outcome = outcome.map(|(reply, _)| reply);
        match stored_call {
            None => outcome,
            Some(stored_call) => stored_call.settle(outcome, serves).await,
        }
    }

    /// Charges a call to its principal, if the policy limits the principal, and to its run.
    async fn charge(&self, call: &CallRequest, started: ClockReading) -> Result<(), CallError> {
        let Some(limits) = self.authorizer.budget_limits(&call.principal) else {
            return budget::charge_run(call);
        };
        self.budget.ensure_loaded().await;
        self.budget.charge_call(call, &limits, started.now())
    }

    /// Sends a call to its server. A stored write fails at once if its connection is known to be
    /// down; for such a write the flag reports whether the server answered other calls meanwhile.
    async fn attempt_call(
        &self,
        call: &CallRequest,
        resolved: ResolvedCall<'_>,
        started: ClockReading,
        is_stored: bool,
    ) -> (Result<(CallReply, LinkKey), CallError>, bool) {
        if !is_stored {
            return (self.send_counted(call, resolved, started).await, false);
        }
        let reachable = self
            .outbox
            .check_reachable(resolved.route, resolved.server.spec());
        if let Err(error) = reachable {
            return (Err(error), false);
        }
        let before = resolved.server.answered_calls();
        let outcome = self.send_counted(call, resolved, started).await;
        (outcome, resolved.server.answered_calls() > before)
    }

    /// Sends a call to its server, counts it there and checks the response.
    async fn send_counted(
        &self,
        call: &CallRequest,
        resolved: ResolvedCall<'_>,
        started: ClockReading,
    ) -> Result<(CallReply, LinkKey), CallError> {
        // Load: from here on the server's statistics count the call, even if the caller leaves.
        let ResolvedCall { route, server, .. } = resolved;
        let span = call_record::call_span(call, route);
        let mut stats = server.start_stats(started, span.clone());
        let outcome = self.dispatch(call, resolved, &mut stats);
        let outcome = outcome.instrument(span.clone()).await;
        stats.finish(&outcome, self.clock.reading());
        call_record::log_failure(&span, resolved, outcome.as_ref().err());

        // Output schema: the response must match the tool's declaration.
        let (reply, link) = outcome.map_err(|error| error.redact(&server.spec().secrets))?;
        let spec = server.spec();
        self.validator
            .validate(&self.catalog, call, route, spec, &reply)?;
        self.authorizer.check_result(route, &reply)?;

        // Length: a result over the limit is stored and read in parts.
        match spec.is_within_result_limit(reply.response.bytes.len()) {
            true => Ok((reply, link)),
            false => {
                let reply = Box::pin(self.store_result(call, route, spec, reply)).await?;
                Ok((reply, link))
            }
        }
    }

    /// Returns a cached response. The guard may have changed since, and the session may see the
    /// response's resource links for the first time.
    fn serve_from_cache(
        &self,
        call: &CallRequest,
        route: &Route,
        reply: CallReply,
    ) -> Result<CallReply, CallError> {
        call_record::record_cache_hit(call, route);
        self.authorizer.check_result(route, &reply)?;
        let now = self.clock.now();
        self.sessions
            .record_reply(call, route, LinkKey::SHARED, &reply, now);
        Ok(reply)
    }

    /// True if a server was retired and its name belongs to a successor, or to no server.
    fn is_replaced(&self, server: &Supervisor) -> bool {
        let servers = self.servers.load();
        let now = servers.get(&server.spec().name);
        server.has_successor() && !now.is_some_and(|now| now.is_same(server))
    }

    /// Runs a call through the server's breaker, queue and link.
    async fn dispatch(
        &self,
        call: &CallRequest,
        resolved: ResolvedCall<'_>,
        stats: &mut CallStatsGuard<'_>,
    ) -> Result<(CallReply, LinkKey), CallError> {
        // Breaker: a dropped permit reports no outcome.
        stats.set_permit(resolved.server.admit_call()?);

        // Queue: limits calls in flight per server. Boxed because it is rare: keeps the future
        // small.
        let _permit = match resolved.server.try_acquire(&call.principal) {
            Some(permit) => permit,
            None => {
                Box::pin(
                    resolved
                        .server
                        .acquire(&call.principal, resolved.deadline.at),
                )
                .await?
            }
        };

        // Supervisor: a single start serves all waiting callers.
        let ready = match resolved.server.try_link_for(call) {
            Some(ready) => ready,
            None => Box::pin(self.acquire_link(call, resolved)).await?,
        };
        stats.record_generation(ready.generation);

        // Link, with a single retry if a retry is safe.
        match self.send_request(call, resolved, &ready).await {
            Ok(reply) => Ok((reply, ready.link_key())),
            Err(error) if can_retry(&error, call, resolved.route) => {
                Box::pin(self.retry(call, resolved, stats, &ready, error)).await
            }
            Err(error) => Err(resolved.to_call_error(&error, &ready, self.clock.now())),
        }
    }

    /// Retries a call on the replacement link, or on the same link if still open (HTTP). Without a
    /// link in time, the caller gets the first error.
    async fn retry(
        &self,
        call: &CallRequest,
        resolved: ResolvedCall<'_>,
        stats: &mut CallStatsGuard<'_>,
        old: &ReadyLink,
        error: LinkError,
    ) -> Result<(CallReply, LinkKey), CallError> {
        let first = resolved.to_call_error(&error, old, self.clock.now());
        let next = match self.acquire_link(call, resolved).await {
            Ok(next) if next.generation != old.generation || next.link.is_open() => next,
            Ok(_) | Err(_) => return Err(first),
        };
        stats.record_retry(next.generation);
        call_record::log_retry(resolved, &first, next.generation);
        match self.send_request(call, resolved, &next).await {
            Ok(reply) => Ok((reply, next.link_key())),
            // The first attempt may have run, whatever happened to the second.
            Err(error) if error.execution() == ExecutionStatus::NotStarted => Err(first),
            Err(error) => Err(resolved.to_call_error(&error, &next, self.clock.now())),
        }
    }

    /// Returns the link for a call; a task request goes to the link of its task.
    async fn acquire_link(
        &self,
        call: &CallRequest,
        resolved: ResolvedCall<'_>,
    ) -> Result<LinkLease, CallError> {
        let server = resolved.server;
        // A queueable write is stored already: its caller is told so instead of waiting.
        let deadline = match &resolved.route.queue_policy {
            Some(_) if !server.is_idle() => {
                resolved.deadline.at.min(self.clock.now().plus(STORED_WAIT))
            }
            Some(_) | None => resolved.deadline.at,
        };
        let CallSubject::Task { id, .. } = &call.subject else {
            return server.link_for(call, deadline).await;
        };
        if let Some(sealed) = call.sealed_task_id() {
            return server.task_link(call, sealed.link, deadline).await;
        }
        let session = call.message.client.as_ref().map(|caller| caller.session());
        let (principal, name) = (&call.principal.name, &server.spec().name);
        let link = lock(&self.sessions.tasks)
            .find_task(principal, session, name, id)
            .map_or(LinkKey::SHARED, |task| task.link);
        server.task_link(call, link, deadline).await
    }

    async fn send_request(
        &self,
        call: &CallRequest,
        resolved: ResolvedCall<'_>,
        ready: &ReadyLink,
    ) -> Result<CallReply, LinkError> {
        let response = ready
            .link
            .request(LinkRequest {
                method: Cow::Borrowed(call.subject.method()),
                message: call.message.clone(),
                rename: (**call.subject.name() != *resolved.route.name).then(|| ParamRename {
                    at: call.name_at.clone(),
                    to: Arc::clone(&resolved.route.name),
                }),
                deadline: self.clock.instant(resolved.deadline.at),
                idempotency_header: key_header(call, resolved.route),
                caller_identity: self
                    .authorizer
                    .call_identity(call, &resolved.server.spec().transport)
                    .map(Box::new),
                header_params: resolved.route.header_params.clone(),
            })
            .await?;
        Ok(CallReply {
            response,
            origin: ReplyOrigin::Live,
            server: Some(Arc::clone(&resolved.route.server)),
        })
    }
}

/// Whether a call was charged already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChargeState {
    Due,
    Paid,
}

/// Route, server and deadline of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedCall<'a> {
    route: &'a Route,
    server: &'a Supervisor,
    started: MonotonicTime,
    deadline: CallDeadline,
}

impl<'a> ResolvedCall<'a> {
    /// The deadline is the earlier of the caller's and the tool's or server's limit; time spent
    /// queueing and starting counts.
    fn new(
        call: &CallRequest,
        route: &'a Route,
        server: &'a Supervisor,
        started: MonotonicTime,
    ) -> Self {
        let limit = route.timeout.unwrap_or_else(|| server.spec().call_timeout);
        let limit = started.plus(limit);
        Self {
            route,
            server,
            started,
            deadline: CallDeadline::from_limits(limit, call.deadline),
        }
    }

    const fn cache_request(self, call: &'a CallRequest, start: CallStart) -> CacheRequest<'a> {
        let Self { route, server, .. } = self;
        CacheRequest {
            call,
            route,
            server,
            start,
        }
    }

    /// Translates a link error at `now` for the caller.
    fn to_call_error(self, error: &LinkError, ready: &ReadyLink, now: MonotonicTime) -> CallError {
        let wait = ResponseWait {
            ms: self.deadline.at.millis_since(self.started),
            limit: self.deadline.limit_passed_at(now),
        };
        to_call_error(error, &self.route.server, ready.ended_generation(), wait)
    }
}
