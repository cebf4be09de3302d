//! Route, server and deadline of a call, found before the call is sent.

use bowline_core::call::{CallDeadline, CallRequest, Route};
use bowline_core::error::CallError;
use bowline_core::time::MonotonicTime;
use bowline_link::LinkError;

use super::response_cache::{CacheRequest, CallStart};
use super::{ResponseWait, to_call_error};
use crate::supervisor::{ReadyLink, Supervisor};

/// Route, server and deadline of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedCall<'a> {
    pub(super) route: &'a Route,
    pub(super) server: &'a Supervisor,
    pub(super) started: MonotonicTime,
    pub(super) deadline: CallDeadline,
}

impl<'a> ResolvedCall<'a> {
    /// The deadline is the earlier of the caller's and the tool's or server's limit; time spent
    /// queueing and starting counts.
    pub(super) fn new(
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

    pub(super) const fn cache_request(
        self,
        call: &'a CallRequest,
        start: CallStart,
    ) -> CacheRequest<'a> {
        let Self { route, server, .. } = self;
        CacheRequest {
            call,
            route,
            server,
            start,
        }
    }

    /// Translates a link error at `now` for the caller.
    pub(super) fn to_call_error(
        self,
        error: &LinkError,
        ready: &ReadyLink,
        now: MonotonicTime,
    ) -> CallError {
        let wait = ResponseWait {
            ms: self.deadline.at.millis_since(self.started),
            limit: self.deadline.limit_passed_at(now),
        };
        to_call_error(error, &self.route.server, ready.ended_generation(), wait)
    }
}
