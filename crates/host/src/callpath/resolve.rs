//! Resolves a name, URI or task id to a route and server: first by the catalog, then by session
//! state.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{CallRequest, CallSubject, EndpointScope, FeatureKind, Principal, Route};
use bowline_core::client_handle::SessionKey;
use bowline_core::error::CallError;
use bowline_core::lane::{WriteDisposition, on_live_error};
use bowline_core::name;
use bowline_core::policy::PolicyTarget;
use bowline_core::sync::lock;
use bowline_core::task_table::{OriginProcess, SealedTaskId, TaskHolder, TaskOwner};
use bowline_core::time::MonotonicTime;
use bowline_wire::object;

use super::{CallPath, STORED_WAIT, ServerMap};
use crate::authorizer::PolicyRefusal;
use crate::catalog::{ListKind, NameLookup};
use crate::spec::ServerSpec;
use crate::supervisor::{ServerState, Supervisor};

/// How long an unknown URI waits for starting servers.
const STARTING_WAIT: Duration = Duration::from_millis(1_500);

/// A request to authorize: principal, scope and subject.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessRequest<'a> {
    pub(crate) principal: &'a Principal,
    pub(crate) scope: &'a EndpointScope,
    pub(crate) subject: &'a CallSubject,
    pub(crate) session: Option<SessionKey>,
    pub(crate) deadline: Option<MonotonicTime>,
    /// The parameters of a call.
    pub(crate) params: Option<&'a [u8]>,
    /// The sealed content of a task id.
    pub(crate) sealed: Option<&'a SealedTaskId>,
}

impl<'a> AccessRequest<'a> {
    /// Returns the arguments visible to policy conditions.
    fn arguments(self) -> Option<&'a [u8]> {
        let params = self.params?;
        let value_at = match self.subject.kind() {
            FeatureKind::Tool | FeatureKind::Prompt => object::field(params, "arguments"),
            FeatureKind::Resource => None,
            // The tool call behind the task was authorized with its arguments.
            FeatureKind::Task => return None,
        };
        Some(value_at.map_or(b"{}", |at| at.slice(params)))
    }
}

impl<'a> From<&'a CallRequest> for AccessRequest<'a> {
    fn from(call: &'a CallRequest) -> Self {
        Self {
            principal: &call.principal,
            scope: &call.scope,
            subject: &call.subject,
            session: call.message.client.as_ref().map(|caller| caller.session()),
            deadline: call.deadline,
            params: Some(&call.message.params),
            sealed: call.sealed_task_id(),
        }
    }
}

impl CallPath {
    /// Returns route and server of a request. Waits for a starting server.
    pub(crate) async fn resolve(
        &self,
        request: AccessRequest<'_>,
        started: MonotonicTime,
    ) -> Result<(Arc<Route>, Supervisor), CallError> {
        let unknown = || to_unknown_error(request.subject);
        let servers = self.servers.load();
        let route = match self.look_up(request)? {
            NameLookup::Route(route) => route,
            // A URI does not name its server; a starting server may list it. A tool or prompt name
            // does name its server, and that server's list may have changed without notice.
            NameLookup::Unknown => {
                let waits = matches!(request.subject, CallSubject::Resource(_))
                    && request.scope.is_multi_server();
                let looks_again = match waits {
                    true => Box::pin(wait_starting_servers(&servers)).await,
                    false => Box::pin(self.refresh_list(request, &servers, started)).await,
                };
                if !looks_again {
                    return Err(unknown());
                }
                self.look_up_again(request).await?
            }
            NameLookup::Withdrawn(route) => {
                return Err(self.to_withdrawn_error(request, &route).await);
            }
            NameLookup::Unlisted(name) => {
                let server = servers
                    .get(&name)
                    .ok_or(CallError::UnknownServer { server: name })?;
                self.authorize_start(request, server)?;
                let queued = queued_route(request, server.spec());
                // A queueable write waits no longer than for a listed server.
                let limit = match &queued {
                    Some(_) if self.outbox.check_connection_path(server.spec()).is_err() => {
                        Duration::ZERO
                    }
                    Some(_) if !server.is_idle() => STORED_WAIT,
                    Some(_) | None => server.spec().call_timeout,
                };
                let limit = started.plus(limit);
                let end = request
                    .deadline
                    .map_or(limit, |requested| requested.min(limit));
                match Box::pin(server.wait_listed(end)).await {
                    // The entry changed meanwhile: resolve again with the successor.
                    Err(CallError::Stopped { .. }) if self.is_replaced(server) => {
                        return Box::pin(self.resolve(request, started)).await;
                    }
                    // A cached response may exist.
                    Err(error @ CallError::Ejected { .. }) => {
                        let last = &self.catalog.ejected;
                        let route =
                            last.find_route(&server.spec().name, request.scope, request.subject);
                        return Ok((route.or(queued).ok_or(error)?, server.clone()));
                    }
                    // The configuration of a queued tool suffices to store a call.
                    Err(error) if is_queueable_failure(&error) => {
                        return Ok((queued.ok_or(error)?, server.clone()));
                    }
                    listed => listed?,
                }
                self.look_up_again(request).await?
            }
        };
        let server = servers.get(&route.server).cloned();
        let server = server.ok_or_else(|| match request.scope {
            EndpointScope::All | EndpointScope::Profile(_) => unknown(),
            EndpointScope::Server(server) => CallError::UnknownServer {
                server: Arc::clone(server),
            },
        })?;
        Ok((route, server))
    }

    /// Looks a name up after its server listed again; a name still unlisted is unknown.
    async fn look_up_again(&self, request: AccessRequest<'_>) -> Result<Arc<Route>, CallError> {
        match self.look_up(request)? {
            NameLookup::Route(route) => Ok(route),
            NameLookup::Withdrawn(route) => Err(self.to_withdrawn_error(request, &route).await),
            NameLookup::Unknown | NameLookup::Unlisted(_) => Err(to_unknown_error(request.subject)),
        }
    }

    /// Refreshes the list of the server named by the request; `false` if the principal may see no
    /// such server, or the list was refreshed moments ago.
    async fn refresh_list(
        &self,
        request: AccessRequest<'_>,
        servers: &ServerMap,
        started: MonotonicTime,
    ) -> bool {
        let kind = match request.subject {
            CallSubject::Tool(_) => ListKind::Tools,
            CallSubject::Prompt(_) | CallSubject::CompletePrompt(_) => ListKind::Prompts,
            CallSubject::Resource(_)
            | CallSubject::CompleteResource(_)
            | CallSubject::Task { .. } => {
                return false;
            }
        };
        let name = match request.scope {
            EndpointScope::Server(server) => Some(&**server),
            EndpointScope::All | EndpointScope::Profile(_) => {
                name::visible_server(request.subject.name())
            }
        };
        let Some(server) = name.and_then(|name| servers.get(name)) else {
            return false;
        };
        let spec = server.spec();
        if !self
            .authorizer
            .can_reach(request.principal, request.scope, &spec.name)
        {
            return false;
        }
        let limit = started.plus(spec.call_timeout);
        let end = request
            .deadline
            .map_or(limit, |requested| requested.min(limit));
        server.relist_for_unknown(kind, end).await
    }

    fn look_up(&self, request: AccessRequest<'_>) -> Result<NameLookup, CallError> {
        if let CallSubject::Task { id, .. } = request.subject {
            return self.find_task_route(request, id).map(NameLookup::Route);
        }
        let found = self
            .catalog
            .current()
            .lookup(request.scope, request.subject);
        Ok(match (found, request.subject) {
            (
                NameLookup::Unknown,
                CallSubject::Resource(uri) | CallSubject::CompleteResource(uri),
            ) => self
                .find_shown_link(request, uri)
                .map_or(NameLookup::Unknown, NameLookup::Route),
            (found, _) => found,
        })
    }

    /// Finds the server that showed this link to the session.
    fn find_shown_link(&self, request: AccessRequest<'_>, uri: &Arc<str>) -> Option<Arc<Route>> {
        let server = lock(&self.sessions.resource_links).server_for(request.session?, uri)?;
        Some(Route::new_unlisted(&server, uri))
    }

    /// Finds the server of a task created by this principal.
    fn find_task_route(
        &self,
        request: AccessRequest<'_>,
        id: &Arc<str>,
    ) -> Result<Arc<Route>, CallError> {
        let in_scope = |server: &str| match request.scope {
            EndpointScope::All | EndpointScope::Profile(_) => true,
            EndpointScope::Server(only) => **only == *server,
        };
        let now = self.clock.now();
        if let Some(sealed) = request.sealed {
            let holder =
                lock(&self.sessions.tasks).find_holder(&request.principal.name, sealed, id, now);
            return match self.is_task_of_caller(holder, sealed) && in_scope(&sealed.server) {
                true => Ok(Route::new_unlisted(&sealed.server, id)),
                false => Err(to_unknown_error(request.subject)),
            };
        }
        let owner =
            lock(&self.sessions.tasks).find_owner(&request.principal.name, id, now, in_scope);
        match owner {
            TaskOwner::One(server) => Ok(Route::new_unlisted(&server, id)),
            TaskOwner::Several(server) => Err(CallError::AmbiguousTask {
                task: Arc::clone(id),
                server,
            }),
            TaskOwner::Unknown => Err(to_unknown_error(request.subject)),
        }
    }

    /// True if the task still belongs to the caller with this id. A server may reuse an id for a
    /// task of another principal. Tasks of this process are remembered; for a task of an earlier
    /// process, only a newer task with the same id is known. Tasks of an ended child process are
    /// gone, and so are all tasks kept by an earlier gateway process.
    fn is_task_of_caller(&self, holder: TaskHolder, sealed: &SealedTaskId) -> bool {
        match (holder, sealed.origin_process) {
            (TaskHolder::Requester, _) => true,
            (TaskHolder::Unknown, OriginProcess::Earlier) => {
                let servers = self.servers.load();
                let server = servers.get(&sealed.server);
                server.is_some_and(|server| server.spec().transport.outlives_gateway())
            }
            (TaskHolder::Unknown, OriginProcess::Current) | (TaskHolder::OtherPrincipal, _) => {
                false
            }
        }
    }

    /// Returns the error for a withdrawn tool; a caller without access gets the denial instead.
    async fn to_withdrawn_error(&self, request: AccessRequest<'_>, route: &Route) -> CallError {
        match Box::pin(self.authorize(request, route)).await {
            Err(denied) => denied,
            Ok(()) => CallError::PinChanged {
                server: Arc::clone(&route.server),
                tool: Arc::clone(&route.name),
            },
        }
    }

    /// Authorizes a request by the same policy as lists. Every refusal is counted and reported.
    pub(crate) async fn authorize(
        &self,
        request: AccessRequest<'_>,
        route: &Route,
    ) -> Result<(), CallError> {
        let tool = self.creating_tool(request, route);
        let thing = PolicyTarget {
            kind: if tool.is_some() {
                FeatureKind::Tool
            } else {
                request.subject.kind()
            },
            server: &route.server,
            name: tool.as_ref().unwrap_or(&route.name),
            arguments: None,
        };
        let decision = self
            .authorizer
            .decide(request.principal, request.scope, thing, || {
                request.arguments()
            });
        // Boxed because it is rare: keeps the future of an ordinary call small.
        let decided = match decision {
            Some(decided) => decided,
            None => Box::pin(self.decide_off_thread(request, thing)).await?,
        };
        decided.map_err(|refusal| self.record_refusal(request, route, refusal))
    }

    /// Evaluates policy conditions off the serving thread, on a snapshot of the rules.
    async fn decide_off_thread(
        &self,
        request: AccessRequest<'_>,
        thing: PolicyTarget<'_>,
    ) -> Result<Result<(), PolicyRefusal>, CallError> {
        let rules = self.authorizer.snapshot();
        let (principal, scope) = (request.principal.clone(), request.scope.clone());
        let (kind, server, name) = (thing.kind, thing.server.to_owned(), thing.name.to_owned());
        let arguments = request.arguments().map(<[u8]>::to_vec);
        let job = move || {
            let thing = PolicyTarget {
                kind,
                server: &server,
                name: &name,
                arguments: arguments.as_deref(),
            };
            rules.decide(&principal, &scope, thing)
        };
        let done = self.offload.run_job(request.principal, job).await;
        done.map_err(|error| error.to_call_error(request.principal))
    }

    /// Returns the tool that created a task: access to the task requires access to the tool.
    fn creating_tool(&self, request: AccessRequest<'_>, route: &Route) -> Option<Arc<str>> {
        if !matches!(request.subject, CallSubject::Task { .. }) {
            return None;
        }
        if let Some(sealed) = request.sealed {
            return Some(Arc::clone(&sealed.tool));
        }
        let tasks = lock(&self.sessions.tasks);
        let (principal, id) = (&request.principal.name, &route.name);
        let task = tasks.find_task(principal, request.session, &route.server, id)?;
        Some(Arc::clone(&task.tool))
    }

    fn record_refusal(
        &self,
        request: AccessRequest<'_>,
        route: &Route,
        refusal: PolicyRefusal,
    ) -> CallError {
        let denials = &self.authorizer.denials;
        denials.record_denial(request.principal, route, &refusal, self.clock.now());
        // Do not reveal which server owns a URI to a caller without access.
        if request.scope.is_multi_server()
            && matches!(request.subject.kind(), FeatureKind::Resource)
            && name::parse_qualified_uri(request.subject.name()).is_none()
        {
            return to_unknown_error(request.subject);
        }
        CallError::Denied {
            principal: Arc::clone(&request.principal.name),
            server: Arc::clone(&route.server),
            name: Arc::clone(&route.name),
            reason: refusal.reason,
        }
    }

    /// Refuses to start a lazy server for a caller without access to any of its items.
    fn authorize_start(
        &self,
        request: AccessRequest<'_>,
        server: &Supervisor,
    ) -> Result<(), CallError> {
        let name = &server.spec().name;
        if self
            .authorizer
            .can_reach(request.principal, request.scope, name)
        {
            return Ok(());
        }
        let thing = PolicyTarget {
            kind: request.subject.kind(),
            server: name,
            name: request.subject.name(),
            arguments: None,
        };
        let decided = self
            .authorizer
            .decide(request.principal, request.scope, thing, || None);
        let refusal = decided
            .and_then(Result::err)
            .unwrap_or_else(|| PolicyRefusal {
                source: "role",
                reason: "nothing of this server is allowed".into(),
            });
        let route = Route::new_unlisted(name, request.subject.name());
        Err(self.record_refusal(request, &route, refusal))
    }
}

/// Returns a route for a configured queued tool of a server without lists.
fn queued_route(request: AccessRequest<'_>, spec: &ServerSpec) -> Option<Arc<Route>> {
    let CallSubject::Tool(asked) = request.subject else {
        return None;
    };
    let is_asked = |own: &str| match request.scope {
        EndpointScope::Server(_) => *own == **asked,
        EndpointScope::All | EndpointScope::Profile(_) => {
            name::visible_name(&spec.name, own) == **asked
        }
    };
    let (own, rule) = spec.tools.iter().find(|(own, _)| is_asked(own))?;
    let effect = rule.effect.unwrap_or_default();
    let queue = rule.queue_policy(effect)?;
    let unlisted = Route::new_unlisted(&spec.name, &own.as_str().into());
    Some(Arc::new(Route {
        effect,
        is_idempotent: rule.idempotent == Some(true),
        timeout: rule.timeout,
        queue_policy: Some(Arc::new(queue)),
        ..Route::clone(&unlisted)
    }))
}

/// True if a write may be queued for an unavailable server; a stopped server is reported instead.
fn is_queueable_failure(error: &CallError) -> bool {
    !matches!(error, CallError::Stopped { .. })
        && matches!(on_live_error(error), WriteDisposition::Wait(_))
}

/// Waits, bounded by [`STARTING_WAIT`], until no server is starting; `false` if none was.
async fn wait_starting_servers(servers: &ServerMap) -> bool {
    let starting = servers.values().map(Supervisor::subscribe_state);
    let starting: Vec<_> = starting
        .filter(|state| *state.borrow() == ServerState::Starting)
        .collect();
    if starting.is_empty() {
        return false;
    }
    let all = async {
        for mut state in starting {
            // The sender lives as long as the supervisor.
            let _ = state
                .wait_for(|state| *state != ServerState::Starting)
                .await;
        }
    };
    let _ = tokio::time::timeout(STARTING_WAIT, all).await;
    true
}

/// Returns the "unknown" error for a subject.
fn to_unknown_error(subject: &CallSubject) -> CallError {
    let name = Arc::clone(subject.name());
    match subject {
        CallSubject::Tool(_) => CallError::UnknownTool { tool: name },
        CallSubject::Prompt(_) | CallSubject::CompletePrompt(_) => {
            CallError::UnknownPrompt { prompt: name }
        }
        CallSubject::Resource(_) | CallSubject::CompleteResource(_) => {
            CallError::UnknownResource { uri: name }
        }
        CallSubject::Task { .. } => CallError::UnknownTask { task: name },
    }
}
