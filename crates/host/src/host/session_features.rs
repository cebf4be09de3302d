//! Session features besides calls: subscriptions, log level, task list.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::breaker::HealthSignal;
use bowline_core::call::{BodyKind, CallSubject, EndpointScope, FeatureKind, Principal, Route};
use bowline_core::client_handle::{ClientHandle, SessionKey};
use bowline_core::error::{CallError, FailureOrigin};
use bowline_core::log_level::LogLevel;
use bowline_core::policy::PolicyTarget;
use bowline_core::sync::lock;
use bowline_core::task_table::LinkKey;
use bowline_core::time::MonotonicTime;
use bowline_link::{CallerIdentity, LinkRequest};
use bowline_wire::mcp::method;
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;

use super::Host;
use crate::audit::AuditTarget;
use crate::callpath::resolve::AccessRequest;
use crate::callpath::{ResponseWait, to_call_error, to_health};
use crate::catalog::initialize_info::declares_capability;
use crate::catalog::rendered_list;
use crate::supervisor::list_fetch::{self, ListError};
use crate::supervisor::{ReadyLink, Supervisor};

/// Maximum wait for a server to accept an unsubscribe or a log level.
const SERVER_WAIT: Duration = Duration::from_secs(5);

/// Maximum wait if several servers receive a log level: a slow server must not delay calls to the
/// rest.
const ALL_SERVERS_WAIT: Duration = Duration::from_millis(250);

/// Maximum number of tasks of a server.
const TASKS_MAX: usize = 2_048;

/// Timeout of `tasks/list`.
const TASKS_TIMEOUT: Duration = Duration::from_secs(30);

impl Host {
    /// Subscribes the session of `caller` to a resource. The server receives a request only for the
    /// first subscriber.
    pub async fn subscribe(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        caller: &Arc<dyn ClientHandle>,
        uri: &str,
    ) -> Result<(), CallError> {
        let session = caller.session();
        let known_as: Arc<str> = uri.into();
        let started = self.call_path.clock.now();
        let resolved = self.authorize_subscription(principal, scope, Some(session), &known_as);
        let (route, server) = resolved.await?;
        let permit = server.admit_call()?;
        let deadline = started.plus(server.spec().call_timeout);
        let ready = server.shared_link(deadline).await?;
        if let Some(identity) = self
            .call_path
            .authorizer
            .principal_identity(principal, &server.spec().transport)
        {
            self.authorize_at_worker(&route, &ready, identity, deadline)
                .await?;
        }
        lock(&self.call_path.sessions.identities).set_identity(
            session,
            &Arc::new(principal.clone()),
            scope,
        );
        let sessions = &self.call_path.sessions;
        sessions.subscribe(principal, session, &route.server, &route.name, &known_as)?;
        let undo = UnsubscribeGuard {
            host: self,
            session,
            known_as: &known_as,
            server: &server,
        };
        let subscriptions = &self.subscriptions;
        let outcome = subscriptions
            .wait_subscribed(&server, &route.name, deadline)
            .await;
        if let Err(error) = outcome {
            permit.report(to_health(&error));
            return Err(error);
        }
        // The server may have accepted the subscription long ago: no health signal.
        drop(permit);
        undo.disarm();
        Ok(())
    }

    /// Checks whether a principal may subscribe to a resource.
    #[cfg(feature = "broker")]
    pub(crate) async fn check_subscribe(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        uri: &str,
    ) -> Result<(), CallError> {
        let uri = uri.into();
        let authorized = self.authorize_subscription(principal, scope, None, &uri);
        authorized.await.map(drop)
    }

    /// Resolves a resource and authorizes the subscription.
    async fn authorize_subscription(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        session: Option<SessionKey>,
        uri: &Arc<str>,
    ) -> Result<(Arc<Route>, Supervisor), CallError> {
        let subject = CallSubject::Resource(Arc::clone(uri));
        let request = AccessRequest {
            principal,
            scope,
            subject: &subject,
            session,
            deadline: None,
            params: None,
            sealed: None,
        };
        let auditor = &self.call_path.auditor;
        let resolved = self
            .call_path
            .resolve(request, self.call_path.clock.now())
            .await;
        let (route, server) = resolved.inspect_err(|error| {
            if error.failure_origin() == FailureOrigin::Policy {
                auditor.record_denied_subscription(request, AuditTarget::Unknown, error);
            }
        })?;
        self.call_path
            .authorize(request, &route)
            .await
            .inspect_err(|error| {
                let target = AuditTarget::Route(Arc::clone(&route));
                auditor.record_denied_subscription(request, target, error);
            })?;
        Ok((route, server))
    }

    /// Asks a worker to authorize the principal; the subscription itself is shared by this gateway.
    async fn authorize_at_worker(
        &self,
        route: &Route,
        ready: &ReadyLink,
        identity: CallerIdentity,
        deadline: MonotonicTime,
    ) -> Result<(), CallError> {
        let mut params = Vec::from(&b"{\"uri\":"[..]);
        write_string(&mut params, &route.name);
        params.push(b'}');
        let until = self.call_path.clock.instant(deadline);
        let own = LinkRequest::new_internal(method::RESOURCES_SUBSCRIBE, params.into(), until);
        let request = LinkRequest {
            caller_identity: Some(Box::new(identity)),
            ..own
        };
        let response = ready.link.request(request).await.map_err(|error| {
            let timeout = deadline.millis_since(self.call_path.clock.now());
            let timeout = ResponseWait::for_server(timeout);
            to_call_error(&error, &route.server, ready.ended_generation(), timeout)
        })?;
        match response.body {
            BodyKind::Result => Ok(()),
            BodyKind::Error => Err(CallError::Refused {
                server: Arc::clone(&route.server),
                error: response.bytes.slice(response.body_at),
            }),
        }
    }

    /// Ends a subscription; the server is notified after the last subscriber. A session ends only
    /// its own subscriptions, so no authorization is needed.
    pub async fn unsubscribe(
        &self,
        _principal: &Principal,
        _scope: &EndpointScope,
        session: SessionKey,
        uri: &str,
    ) -> Result<(), CallError> {
        let left = self.call_path.sessions.unsubscribe(session, uri);
        let Some(left) = left else {
            return Ok(());
        };
        if let Ok(server) = self.server(&left.server) {
            let deadline = self.call_path.clock.now().plus(SERVER_WAIT);
            self.subscriptions
                .wait_unsubscribed(&server, &left.uri, deadline)
                .await;
        }
        Ok(())
    }

    /// Sets the log level of a session in `scope`. Each server receives the most verbose level
    /// wanted by any session; servers invisible to the principal are skipped.
    pub async fn set_log_level(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
        session: SessionKey,
        level: LogLevel,
    ) -> Result<(), CallError> {
        let reaches = |server: &str| {
            self.call_path
                .authorizer
                .can_reach(principal, scope, server)
        };
        let (servers, wait): (Vec<Supervisor>, _) = match scope {
            EndpointScope::All | EndpointScope::Profile(_) => {
                let all = self.call_path.servers.load();
                let reachable = all.iter().filter(|(name, _)| reaches(name));
                (
                    reachable.map(|(_, server)| server.clone()).collect(),
                    ALL_SERVERS_WAIT,
                )
            }
            EndpointScope::Server(server) if reaches(server) => {
                (vec![self.server(server)?], SERVER_WAIT)
            }
            EndpointScope::Server(server) => {
                let server = Arc::clone(server);
                return Err(CallError::UnknownServer { server });
            }
        };
        {
            let mut levels = lock(&self.call_path.sessions.log_levels);
            match scope.is_multi_server()
                && !self
                    .call_path
                    .authorizer
                    .snapshot()
                    .can_see_all(principal, &EndpointScope::All)
            {
                true => {
                    let names = servers.iter().map(|server| &server.spec().name);
                    levels.set_for_servers(session, names, level);
                }
                false => levels.set_for_scope(session, scope, level),
            }
        }
        let deadline = self.call_path.clock.now().plus(wait);
        // Wake all syncs before waiting for any.
        for server in &servers {
            self.subscriptions.wake(server);
        }
        for server in &servers {
            self.subscriptions.wait_level(server, deadline).await;
            server.wait_session_level(session, deadline).await;
        }
        Ok(())
    }

    /// Returns the result of `tasks/list`: the principal's tasks as described by their servers.
    pub async fn list_tasks(
        &self,
        principal: &Principal,
        scope: &EndpointScope,
    ) -> Result<Bytes, CallError> {
        let mut own: BTreeMap<(Arc<str>, LinkKey), HashSet<Arc<str>>> = BTreeMap::new();
        {
            let table = lock(&self.call_path.sessions.tasks);
            for task in table.principal_tasks(&principal.name, self.call_path.clock.now()) {
                // A task has the permissions of the tool that created it.
                let target = PolicyTarget {
                    kind: FeatureKind::Tool,
                    server: &task.server,
                    name: &task.tool,
                    arguments: None,
                };
                if matches!(scope, EndpointScope::Server(only) if *only != task.server)
                    || !self.call_path.authorizer.allows(principal, scope, target)
                {
                    continue;
                }
                let at = (Arc::clone(&task.server), task.link);
                let ids = own.entry(at).or_default();
                ids.insert(Arc::clone(&task.id));
            }
        }
        let mut result = Vec::from(&b"{\"tasks\":["[..]);
        let mut failed = None;
        let mut listed = 0_usize;
        for ((server, link), ids) in own {
            match self.fetch_tasks(principal, &server, link).await {
                Ok(pages) => {
                    listed += 1;
                    write_own_tasks(&ids, &pages, &mut result);
                }
                Err(error) => {
                    tracing::warn!(%server, %error, "tasks of a server could not be listed");
                    failed = Some(error);
                }
            }
        }
        result.extend_from_slice(b"]}");
        match failed {
            Some(error) if listed == 0 => Err(error),
            Some(_) | None => Ok(result.into()),
        }
    }

    /// Fetches all tasks of a server on a link, for any principal.
    async fn fetch_tasks(
        &self,
        principal: &Principal,
        name: &str,
        link: LinkKey,
    ) -> Result<Vec<Bytes>, CallError> {
        let server = self.server(name)?;
        let permit = server.admit_call()?;
        let end = self.call_path.clock.now().plus(TASKS_TIMEOUT);
        let ready = server.task_list_link(link, end).await?;
        let lists = |ready: &Arc<ReadyLink>| {
            declares_capability(&ready.link.server_info().initialize, "tasks.list")
        };
        let Some(ready) = ready.filter(lists) else {
            return Ok(Vec::new());
        };
        let until = self.call_path.clock.instant(end);
        let identity = self
            .call_path
            .authorizer
            .principal_identity(principal, &server.spec().transport);
        let pages = list_fetch::fetch_pages(
            ready.link.as_ref(),
            method::TASKS_LIST,
            identity.map(Box::new),
            "tasks",
            TASKS_MAX,
            until,
        );
        let pages = pages.await;
        // A truncated list must not look as if the principal's tasks were gone.
        let pages = pages.and_then(|read| match read.omitted.is_empty() {
            true => Ok(read.pages),
            false => Err(ListError::TooManyItems(method::TASKS_LIST)),
        });
        let pages = pages.map_err(|error| to_list_call_error(error, &server, &ready));
        let health = pages.as_ref().err().map(to_health);
        permit.report(health.unwrap_or(HealthSignal::Healthy));
        pages
    }

    /// Notifies servers of changed roots, on dedicated links only.
    pub fn notify_roots_changed(&self, session: SessionKey) {
        for server in self.call_path.servers.load().values() {
            server.notify_roots_changed(session);
        }
    }

    /// Updates the principal of a session after a context change: notifications are authorized for
    /// it.
    pub fn update_session_principal(&self, session: SessionKey, principal: &Arc<Principal>) {
        lock(&self.call_path.sessions.identities).set_principal(session, principal);
    }

    /// Releases everything kept for an ended session.
    pub fn end_session(&self, session: SessionKey) {
        let memory = &self.call_path.sessions;
        lock(&memory.identities).remove_session(session);
        lock(&memory.resource_links).remove_session(session);
        lock(&memory.log_levels).remove_session(session);
        let left = memory.end_subscriptions(session);
        let servers = self.call_path.servers.load();
        for server in left.iter().filter_map(|name| servers.get(name)) {
            self.subscriptions.wake(server);
        }
        for server in servers.values() {
            server.close_session(session);
        }
    }
}

/// Writes the tasks with these `ids`.
fn write_own_tasks(ids: &HashSet<Arc<str>>, pages: &[Bytes], out: &mut Vec<u8>) {
    for task in pages
        .iter()
        .flat_map(|page| rendered_list::member_elements("tasks", page))
    {
        let id = object::field(&task, "taskId").map(|at| at.slice(&task));
        let id = id.and_then(object::parse_string);
        if id.is_some_and(|id| ids.contains(id.as_ref())) {
            if out.last() != Some(&b'[') {
                out.push(b',');
            }
            out.extend_from_slice(&task);
        }
    }
}

/// Reverts an incomplete subscription, also if the caller leaves.
struct UnsubscribeGuard<'a> {
    host: &'a Host,
    session: SessionKey,
    known_as: &'a str,
    server: &'a Supervisor,
}

impl UnsubscribeGuard<'_> {
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for UnsubscribeGuard<'_> {
    fn drop(&mut self) {
        let memory = &self.host.call_path.sessions;
        memory.unsubscribe(self.session, self.known_as);
        self.host.subscriptions.wake(self.server);
    }
}

/// Translates a list error for `tasks/list`.
fn to_list_call_error(error: ListError, server: &Supervisor, ready: &ReadyLink) -> CallError {
    let server = &server.spec().name;
    match error {
        ListError::Link { source, .. } => {
            let timeout = bowline_core::time::to_millis(TASKS_TIMEOUT);
            let timeout = ResponseWait::for_server(timeout);
            to_call_error(&source, server, ready.ended_generation(), timeout)
        }
        ListError::Refused { error, .. } => CallError::Refused {
            server: Arc::clone(server),
            error,
        },
        error @ (ListError::TooManyItems(_)
        | ListError::RepeatedCursor(_)
        | ListError::CursorTooLarge(_)) => CallError::BadResponse {
            server: Arc::clone(server),
            reason: error.to_string().into(),
        },
    }
}
