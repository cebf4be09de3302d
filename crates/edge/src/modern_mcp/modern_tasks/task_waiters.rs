//! Legacy servers send a task's requests only while `tasks/result` is pending. For polling (modern)
//! clients the gateway keeps such a request open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::{CallReply, TaskOperation};
use bowline_core::sync::lock;
use bowline_core::task_table::LinkKey;
use bowline_core::time::MonotonicTime;
use bowline_wire::era::input_required::write_input_requests;
use bowline_wire::object;
use foldhash::fast::RandomState;

use super::TaskRequest;
use crate::call::call_rounds::{self, OwnedInputRequest};
use crate::call::modern_call_handle::ModernCallHandle;
use crate::call::request_state::STATE_TTL;
use crate::call::run_call;

/// Maximum number of pending `tasks/result` requests; requests of further tasks are not received.
const WAITERS_MAX: usize = 1_024;

/// Maximum wait for a task's requests after `tasks/result` was sent.
const REQUEST_WAIT_MAX: Duration = Duration::from_millis(200);

/// Poll interval during the wait.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Distance between the request numbers of consecutive waiters.
const KEY_STRIDE: u64 = 1 << 16;

/// Identity of a task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct TaskKey {
    principal: Arc<str>,
    server: Arc<str>,
    link: LinkKey,
    /// Task id of the server.
    server_id: Arc<str>,
}

/// Pending `tasks/result` requests.
#[derive(Debug, Default)]
pub(crate) struct TaskWaiters {
    tasks: Mutex<HashMap<TaskKey, TaskWaiter, RandomState>>,
    /// Number of waiters started, so that no request key repeats.
    started: AtomicU64,
}

#[derive(Debug)]
struct TaskWaiter {
    handle: Arc<ModernCallHandle>,
    until: MonotonicTime,
}

impl TaskWaiters {
    /// Cancels waiters without a recent client request.
    pub(crate) fn sweep(&self, now: MonotonicTime) {
        self.cancel_where(|one| one.until <= now);
    }

    /// Cancels the waiters of an ended credential.
    pub(crate) fn cancel_by_credential(&self, credential: &str) {
        self.cancel_where(|one| one.handle.client().has_credential(credential));
    }

    fn cancel_where(&self, which: impl Fn(&TaskWaiter) -> bool) {
        let removed: Vec<_> = {
            let mut tasks = lock(&self.tasks);
            let removed = tasks.extract_if(|_, one| which(one));
            removed.map(|(_, one)| one.handle).collect()
        };
        for end in removed {
            end.cancel();
        }
    }

    /// Returns the waiter of a task; `None` after the wait ended.
    fn find_waiter(&self, name: &TaskKey, now: MonotonicTime) -> Option<Arc<ModernCallHandle>> {
        let mut tasks = lock(&self.tasks);
        let one = tasks.get_mut(name)?;
        one.until = now.plus(STATE_TTL);
        (!one.handle.is_finished()).then(|| Arc::clone(&one.handle))
    }

    /// Registers `handle` as the waiter of a task, or returns the existing waiter: of concurrent
    /// attempts only the first receives the requests.
    fn register(
        &self,
        name: TaskKey,
        handle: &Arc<ModernCallHandle>,
        now: MonotonicTime,
    ) -> WaiterRegistration {
        let until = now.plus(STATE_TTL);
        let mut tasks = lock(&self.tasks);
        if let Some(one) = tasks.get_mut(&name)
            && !one.handle.is_finished()
        {
            one.until = until;
            return WaiterRegistration::Existing(Arc::clone(&one.handle));
        }
        if tasks.len() >= WAITERS_MAX && !tasks.contains_key(&name) {
            return WaiterRegistration::Full;
        }
        let handle = Arc::clone(handle);
        // A wait that ended before the task leaves nothing worth keeping.
        tasks.insert(name, TaskWaiter { handle, until });
        WaiterRegistration::New
    }

    /// Takes the server's reply of a finished wait. A failed wait says nothing about the task.
    fn take_reply(&self, name: &TaskKey) -> Option<CallReply> {
        let mut tasks = lock(&self.tasks);
        let one = tasks.remove(name)?;
        if !one.handle.is_finished() {
            tasks.insert(name.clone(), one);
            return None;
        }
        drop(tasks);
        one.handle.take_result()?.ok()
    }
}

/// Outcome of registering a waiter.
#[derive(Debug)]
enum WaiterRegistration {
    /// Registered.
    New,
    /// A waiter exists already.
    Existing(Arc<ModernCallHandle>),
    /// Too many waiters.
    Full,
}

impl TaskRequest {
    fn task_key(&self) -> TaskKey {
        let origin = &self.task.origin;
        TaskKey {
            principal: Arc::clone(&self.responder.principal.name),
            server: Arc::clone(&origin.server),
            link: origin.link,
            server_id: Arc::clone(&self.task.server_id),
        }
    }

    fn find_waiter(&self) -> Option<Arc<ModernCallHandle>> {
        let edge = &self.responder.edge;
        edge.modern_calls
            .task_waiters
            .find_waiter(&self.task_key(), edge.host.clock().now())
    }

    /// Takes the reply received on the client's behalf.
    pub(super) fn take_waiter_reply(&self) -> Option<CallReply> {
        self.responder
            .edge
            .modern_calls
            .task_waiters
            .take_reply(&self.task_key())
    }

    /// Forwards answers to a task's requests; `false` without a waiter.
    pub(super) fn answer_waiter(&self, answers: &[u8]) -> bool {
        let Some(end) = self.find_waiter() else {
            return false;
        };
        for (key, at) in object::fields(answers) {
            end.answer_request(&key, at.slice(answers));
        }
        true
    }

    /// Ensures a waiter for the task's result, and returns the task's requests.
    pub(super) async fn wait_for_requests(&self) -> Option<Vec<u8>> {
        let end = match self.find_waiter() {
            Some(end) => end,
            None => self.start_waiter()?,
        };
        let clock = self.responder.edge.host.clock();
        let until = clock.now().plus(REQUEST_WAIT_MAX);
        while !end.has_open_requests() && clock.now() < until {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let open = call_rounds::open_requests(&end);
        let requests: Vec<_> = open
            .iter()
            .map(OwnedInputRequest::as_input_request)
            .collect();
        (!requests.is_empty()).then(|| write_input_requests(&requests))
    }

    fn start_waiter(&self) -> Option<Arc<ModernCallHandle>> {
        let edge = &self.responder.edge;
        let attended = &edge.modern_calls.task_waiters;
        let (end, _, cancelled) =
            ModernCallHandle::new(Arc::clone(&self.client), self.options.clone());
        let nth = attended.started.fetch_add(1, Ordering::Relaxed);
        end.number_keys_from(nth.saturating_mul(KEY_STRIDE));
        let call = self.build_call(TaskOperation::Result, &end)?;
        match attended.register(self.task_key(), &end, edge.host.clock().now()) {
            WaiterRegistration::New => {}
            WaiterRegistration::Existing(other) => return Some(other),
            WaiterRegistration::Full => return None,
        }
        let (waiter_edge, waiter_handle) = (Arc::clone(edge), Arc::clone(&end));
        edge.host.tasks().spawn("task result wait", async move {
            let outcome = run_call(&waiter_edge, &call, cancelled).await;
            waiter_handle.finish(outcome);
        });
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    use bowline_core::call::{EndpointScope, Principal, Role};
    use bowline_core::error::CallError;
    use tokio::sync::oneshot;

    use super::*;
    use crate::call::modern_call_handle::RoundOptions;
    use crate::client_session::{CancelReason, ClientSessions};
    use crate::modern_mcp::sessionless_clients::{ClientDeclaration, SessionlessClients};

    fn test_handle() -> Arc<ModernCallHandle> {
        handle_with_credential("").0
    }

    fn handle_with_credential(
        credential: &str,
    ) -> (Arc<ModernCallHandle>, oneshot::Receiver<CancelReason>) {
        let ann = Principal {
            credential: credential.into(),
            ..Principal::new("ann", Role::Owner)
        };
        let (clients, sessions) = (SessionlessClients::default(), ClientSessions::new(&[1; 32]));
        let what = ClientDeclaration::default();
        let (client, _) =
            clients.enter_client(&sessions, &ann, &EndpointScope::All, what, MonotonicTime(0));
        let (end, _, cancelled) = ModernCallHandle::new(client, RoundOptions::default());
        (end, cancelled)
    }

    fn test_key(link: LinkKey) -> TaskKey {
        TaskKey {
            principal: "ann".into(),
            server: "s".into(),
            link,
            server_id: "1".into(),
        }
    }

    #[test]
    fn second_waiter_joins_the_first() {
        let attended = TaskWaiters::default();
        let (first, second) = (test_handle(), test_handle());
        let enter = |link, end: &Arc<ModernCallHandle>| {
            attended.register(test_key(LinkKey(link)), end, MonotonicTime(0))
        };
        assert!(matches!(enter(0, &first), WaiterRegistration::New));
        let WaiterRegistration::Existing(waits) = enter(0, &second) else {
            panic!("both wait");
        };
        assert!(Arc::ptr_eq(&waits, &first));
        assert!(
            matches!(enter(1, &second), WaiterRegistration::New),
            "another task"
        );
        let found = attended
            .find_waiter(&test_key(LinkKey(0)), MonotonicTime(0))
            .unwrap();
        assert!(Arc::ptr_eq(&found, &first));
    }

    #[test]
    fn revoked_token_cancels_its_waiter() {
        let attended = TaskWaiters::default();
        let (end, mut cancelled) = handle_with_credential("token");
        attended.register(test_key(LinkKey::SHARED), &end, MonotonicTime(0));
        attended.cancel_by_credential("another");
        assert!(cancelled.try_recv().is_err());
        attended.cancel_by_credential("token");
        assert_eq!(cancelled.try_recv(), Ok(CancelReason::Caller));
        assert!(lock(&attended.tasks).is_empty());
    }

    #[test]
    fn failed_wait_is_replaced_by_next() {
        let attended = TaskWaiters::default();
        let name = test_key(LinkKey::SHARED);
        let (first, second) = (test_handle(), test_handle());
        attended.register(name.clone(), &first, MonotonicTime(0));
        assert!(attended.take_reply(&name).is_none());
        assert!(
            attended.find_waiter(&name, MonotonicTime(0)).is_some(),
            "it waits on"
        );
        first.finish(Err(CallError::ShuttingDown));
        assert!(attended.find_waiter(&name, MonotonicTime(0)).is_none());
        assert!(matches!(
            attended.register(name.clone(), &second, MonotonicTime(0)),
            WaiterRegistration::New
        ));
        second.finish(Err(CallError::ShuttingDown));
        assert!(attended.take_reply(&name).is_none(), "no answer");
        assert!(lock(&attended.tasks).is_empty());
    }
}
