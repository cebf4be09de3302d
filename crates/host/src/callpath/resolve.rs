//! From a name to a server: the catalog first, then what sessions and principals are remembered
//! for.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Call, Kind, Principal, Route, Scope, Subject};
use bowline_core::caller::SessionKey;
use bowline_core::error::CallError;
use bowline_core::lane::{Verdict, live};
use bowline_core::name;
use bowline_core::policy::Thing;
use bowline_core::sync::lock;
use bowline_core::tasks::{Holder, MadeIn, Owner, Sealed};
use bowline_core::time::Now;
use bowline_wire::object;

use super::{CallPath, STORED_WAIT, Servers};
use crate::catalog::{Found, ListKind};
use crate::decide::Refusal;
use crate::spec::ServerSpec;
use crate::supervisor::{State, Supervisor};

/// How long a URI that nobody is known to have waits for servers that are starting.
const STARTING_WAIT: Duration = Duration::from_millis(1_500);

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) principal: &'a Principal,
    pub(crate) scope: &'a Scope,
    pub(crate) subject: &'a Subject,
    pub(crate) session: Option<SessionKey>,
    pub(crate) deadline: Option<Now>,
    /// The parameters of a call.
    pub(crate) params: Option<&'a [u8]>,
    /// What the id of a task says of it.
    pub(crate) sealed: Option<&'a Sealed>,
}

impl<'a> Ask<'a> {
    /// Returns the arguments, where conditions may look at some.
    fn arguments(self) -> Option<&'a [u8]> {
        let params = self.params?;
        let named = match self.subject.kind() {
            Kind::Tool | Kind::Prompt => object::field(params, "arguments"),
            Kind::Resource => None,
            // What made it was decided with its arguments then.
            Kind::Task => return None,
        };
        Some(named.map_or(b"{}", |at| at.of(params)))
    }
}

impl<'a> From<&'a Call> for Ask<'a> {
    fn from(call: &'a Call) -> Self {
        Self {
            principal: &call.principal,
            scope: &call.scope,
            subject: &call.subject,
            session: call.caller.as_ref().map(|caller| caller.session()),
            deadline: call.deadline,
            params: Some(&call.params),
            sealed: call.sealed_task(),
        }
    }
}

impl CallPath {
    /// Returns where the answer to `ask` is to be had. Waits for a server that is still starting.
    pub(crate) async fn resolve(
        &self,
        ask: Ask<'_>,
        started: Now,
    ) -> Result<(Arc<Route>, Supervisor), CallError> {
        let unknown = || unknown(ask.subject);
        let servers = self.servers.load();
        let route = match self.look_up(ask)? {
            Found::Route(route) => route,
            // A URI does not say whose it is; a server that is still starting may list it. Its
            // list may have changed without notice where the name says whose it is.
            Found::Nothing => {
                let waits = matches!(ask.subject, Subject::Resource(_)) && ask.scope.is_shared();
                let looks_again = match waits {
                    true => Box::pin(settle(&servers)).await,
                    false => Box::pin(self.relist(ask, &servers, started)).await,
                };
                if !looks_again {
                    return Err(unknown());
                }
                match self.look_up(ask)? {
                    Found::Route(route) => route,
                    Found::Withdrawn(route) => return Err(self.withdrawn(ask, &route).await),
                    Found::Nothing | Found::Unlisted(_) => return Err(unknown()),
                }
            }
            Found::Withdrawn(route) => return Err(self.withdrawn(ask, &route).await),
            Found::Unlisted(name) => {
                let server = servers
                    .get(&name)
                    .ok_or(CallError::UnknownServer { server: name })?;
                self.may_wake(ask, server)?;
                let queued = queued_route(ask, server.spec());
                // A write that can be queued waits for its server no longer than a listed one.
                let limit = match &queued {
                    Some(_) if self.outbox.check_way(server.spec()).is_err() => Duration::ZERO,
                    Some(_) if !server.is_idle() => STORED_WAIT,
                    Some(_) | None => server.spec().call_timeout,
                };
                let limit = started.plus(limit);
                let end = ask.deadline.map_or(limit, |asked| asked.min(limit));
                match Box::pin(server.listed(end)).await {
                    // Its entry changed in the meantime: its successor is asked.
                    Err(CallError::Stopped { .. }) if self.is_replaced(server) => {
                        return Box::pin(self.resolve(ask, started)).await;
                    }
                    // There may be an answer yet that was kept.
                    Err(error @ CallError::Ejected { .. }) => {
                        let last = &self.catalog.last;
                        let route = last.find(&server.spec().name, ask.scope, ask.subject);
                        return Ok((route.or(queued).ok_or(error)?, server.clone()));
                    }
                    // The configuration says enough of a queued tool to store a call of it.
                    Err(error) if waits_for(&error) => {
                        return Ok((queued.ok_or(error)?, server.clone()));
                    }
                    listed => listed?,
                }
                match self.look_up(ask)? {
                    Found::Route(route) => route,
                    Found::Withdrawn(route) => return Err(self.withdrawn(ask, &route).await),
                    Found::Nothing | Found::Unlisted(_) => return Err(unknown()),
                }
            }
        };
        let server = servers.get(&route.server).cloned();
        let server = server.ok_or_else(|| match ask.scope {
            Scope::All | Scope::Profile(_) => unknown(),
            Scope::Server(server) => CallError::UnknownServer {
                server: Arc::clone(server),
            },
        })?;
        Ok((route, server))
    }

    /// Asks the server that a name belongs to for its list again; `false` where there is none
    /// that the principal may see, or its list was asked for a moment ago.
    async fn relist(&self, ask: Ask<'_>, servers: &Servers, started: Now) -> bool {
        let kind = match ask.subject {
            Subject::Tool(_) => ListKind::Tools,
            Subject::Prompt(_) | Subject::CompletePrompt(_) => ListKind::Prompts,
            Subject::Resource(_) | Subject::CompleteResource(_) | Subject::Task { .. } => {
                return false;
            }
        };
        let name = match ask.scope {
            Scope::Server(server) => Some(&**server),
            Scope::All | Scope::Profile(_) => name::server_of(ask.subject.name()),
        };
        let Some(server) = name.and_then(|name| servers.get(name)) else {
            return false;
        };
        let spec = server.spec();
        if !self.decider.reaches(ask.principal, ask.scope, &spec.name) {
            return false;
        }
        let limit = started.plus(spec.call_timeout);
        let end = ask.deadline.map_or(limit, |asked| asked.min(limit));
        server.relist_for_unknown(kind, end).await
    }

    fn look_up(&self, ask: Ask<'_>) -> Result<Found, CallError> {
        if let Subject::Task { id, .. } = ask.subject {
            return self.task(ask, id).map(Found::Route);
        }
        let found = self.catalog.current().find(ask.scope, ask.subject);
        Ok(match (found, ask.subject) {
            (Found::Nothing, Subject::Resource(uri) | Subject::CompleteResource(uri)) => {
                self.shown(ask, uri).map_or(Found::Nothing, Found::Route)
            }
            (found, _) => found,
        })
    }

    /// Finds the server that showed a link to this session.
    fn shown(&self, ask: Ask<'_>, uri: &Arc<str>) -> Option<Arc<Route>> {
        let server = lock(&self.memory.seen).server(ask.session?, uri)?;
        Some(Route::unlisted(&server, uri))
    }

    /// Finds the server of a task that this principal made.
    fn task(&self, ask: Ask<'_>, id: &Arc<str>) -> Result<Arc<Route>, CallError> {
        let wanted = |server: &str| match ask.scope {
            Scope::All | Scope::Profile(_) => true,
            Scope::Server(only) => **only == *server,
        };
        let now = self.clock.now();
        if let Some(sealed) = ask.sealed {
            let holder = lock(&self.memory.tasks).holder(&ask.principal.name, sealed, id, now);
            return match self.is_asked_by_its_own(holder, sealed) && wanted(&sealed.server) {
                true => Ok(Route::unlisted(&sealed.server, id)),
                false => Err(unknown(ask.subject)),
            };
        }
        let owner = lock(&self.memory.tasks).owner(&ask.principal.name, id, now, wanted);
        match owner {
            Owner::One(server) => Ok(Route::unlisted(&server, id)),
            Owner::Several(server) => Err(CallError::AmbiguousTask {
                task: Arc::clone(id),
                server,
            }),
            Owner::Unknown => Err(unknown(ask.subject)),
        }
    }

    /// Whether the task that an id names is still that of who brings the id. A server may give out
    /// an id again that it gave to somebody else: what this process made it remembers, and of what
    /// one before it made, it knows only whether another has that id by now. A process that is
    /// gone took its tasks along, and each that the gateway keeps goes with the gateway.
    fn is_asked_by_its_own(&self, holder: Holder, sealed: &Sealed) -> bool {
        match (holder, sealed.made_in) {
            (Holder::Asker, _) => true,
            (Holder::Nobody, MadeIn::Earlier) => {
                let servers = self.servers.load();
                let server = servers.get(&sealed.server);
                server.is_some_and(|server| server.spec().reach.outlives_us())
            }
            (Holder::Nobody, MadeIn::This) | (Holder::Another, _) => false,
        }
    }

    /// Says why a tool that waits for a person is not called; who may not call it at all is not
    /// told of it.
    async fn withdrawn(&self, ask: Ask<'_>, route: &Route) -> CallError {
        match Box::pin(self.permit(ask, route)).await {
            Err(denied) => denied,
            Ok(()) => CallError::PinChanged {
                server: Arc::clone(&route.server),
                tool: Arc::clone(&route.name),
            },
        }
    }

    /// Asks the policy, as listing does. Every refusal is counted and told.
    pub(crate) async fn permit(&self, ask: Ask<'_>, route: &Route) -> Result<(), CallError> {
        let tool = self.maker(ask, route);
        let thing = Thing {
            kind: if tool.is_some() {
                Kind::Tool
            } else {
                ask.subject.kind()
            },
            server: &route.server,
            name: tool.as_ref().unwrap_or(&route.name),
            arguments: None,
        };
        let quick = self
            .decider
            .decide(ask.principal, ask.scope, thing, || ask.arguments());
        // What is rare is boxed, so that a call carries no room for it.
        let decided = match quick {
            Some(decided) => decided,
            None => Box::pin(self.decide_off_thread(ask, thing)).await?,
        };
        decided.map_err(|refusal| self.refused(ask, route, refusal))
    }

    /// Evaluates the conditions of a call off the serving thread, by the rules of this moment.
    async fn decide_off_thread(
        &self,
        ask: Ask<'_>,
        thing: Thing<'_>,
    ) -> Result<Result<(), Refusal>, CallError> {
        let sight = self.decider.sight();
        let (principal, scope) = (ask.principal.clone(), ask.scope.clone());
        let (kind, server, name) = (thing.kind, thing.server.to_owned(), thing.name.to_owned());
        let arguments = ask.arguments().map(<[u8]>::to_vec);
        let job = move || {
            let thing = Thing {
                kind,
                server: &server,
                name: &name,
                arguments: arguments.as_deref(),
            };
            sight.decide(&principal, &scope, thing)
        };
        let done = self.offload.run(ask.principal, job).await;
        done.map_err(|error| error.to_call_error(ask.principal))
    }

    /// Returns the tool that made a task: who may not use that does not reach the task either.
    fn maker(&self, ask: Ask<'_>, route: &Route) -> Option<Arc<str>> {
        if !matches!(ask.subject, Subject::Task { .. }) {
            return None;
        }
        if let Some(sealed) = ask.sealed {
            return Some(Arc::clone(&sealed.tool));
        }
        let tasks = lock(&self.memory.tasks);
        let (who, id) = (&ask.principal.name, &route.name);
        let made = tasks.find(who, ask.session, &route.server, id)?;
        Some(Arc::clone(&made.tool))
    }

    fn refused(&self, ask: Ask<'_>, route: &Route, refusal: Refusal) -> CallError {
        let denials = &self.decider.denials;
        denials.add(ask.principal, route, &refusal, self.clock.now());
        // Whose a URI is, is nothing that one learns who may not use it.
        if ask.scope.is_shared()
            && matches!(ask.subject.kind(), Kind::Resource)
            && name::read_addressed(ask.subject.name()).is_none()
        {
            return unknown(ask.subject);
        }
        CallError::Denied {
            principal: Arc::clone(&ask.principal.name),
            server: Arc::clone(&route.server),
            name: Arc::clone(&route.name),
            reason: refusal.reason,
        }
    }

    /// Nobody has a server started of which nothing is for him.
    fn may_wake(&self, ask: Ask<'_>, server: &Supervisor) -> Result<(), CallError> {
        let name = &server.spec().name;
        if self.decider.reaches(ask.principal, ask.scope, name) {
            return Ok(());
        }
        let thing = Thing {
            kind: ask.subject.kind(),
            server: name,
            name: ask.subject.name(),
            arguments: None,
        };
        let decided = self
            .decider
            .decide(ask.principal, ask.scope, thing, || None);
        let refusal = decided.and_then(Result::err).unwrap_or_else(|| Refusal {
            source: "role",
            reason: "nothing of this server is allowed".into(),
        });
        let route = Route::unlisted(name, ask.subject.name());
        Err(self.refused(ask, &route, refusal))
    }
}

/// Returns the way to a tool that the configuration queues, of a server that has listed nothing.
fn queued_route(ask: Ask<'_>, spec: &ServerSpec) -> Option<Arc<Route>> {
    let Subject::Tool(asked) = ask.subject else {
        return None;
    };
    let is_asked = |own: &str| match ask.scope {
        Scope::Server(_) => *own == **asked,
        Scope::All | Scope::Profile(_) => name::visible(&spec.name, own) == **asked,
    };
    let (own, rule) = spec.tools.iter().find(|(own, _)| is_asked(own))?;
    let effect = rule.effect.unwrap_or_default();
    let queue = rule.queueing(effect)?;
    let unlisted = Route::unlisted(&spec.name, &own.as_str().into());
    Some(Arc::new(Route {
        effect,
        idempotent: rule.idempotent == Some(true),
        timeout: rule.timeout,
        queue: Some(Arc::new(queue)),
        ..Route::clone(&unlisted)
    }))
}

/// Whether a write may wait for a server that is not there; one that a person stopped is told of.
fn waits_for(error: &CallError) -> bool {
    !matches!(error, CallError::Stopped { .. }) && matches!(live(error), Verdict::Wait(_))
}

/// Waits until no server is starting any more, but not long; `false` when none was.
async fn settle(servers: &Servers) -> bool {
    let starting = servers.values().map(Supervisor::state);
    let starting: Vec<_> = starting
        .filter(|state| *state.borrow() == State::Starting)
        .collect();
    if starting.is_empty() {
        return false;
    }
    let all = async {
        for mut state in starting {
            // The sender lives as long as the supervisor does.
            let _ = state.wait_for(|state| *state != State::Starting).await;
        }
    };
    let _ = tokio::time::timeout(STARTING_WAIT, all).await;
    true
}

/// Says that there is nothing of that name.
fn unknown(subject: &Subject) -> CallError {
    let name = Arc::clone(subject.name());
    match subject {
        Subject::Tool(_) => CallError::UnknownTool { tool: name },
        Subject::Prompt(_) | Subject::CompletePrompt(_) => {
            CallError::UnknownPrompt { prompt: name }
        }
        Subject::Resource(_) | Subject::CompleteResource(_) => {
            CallError::UnknownResource { uri: name }
        }
        Subject::Task { .. } => CallError::UnknownTask { task: name },
    }
}
