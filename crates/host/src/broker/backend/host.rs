//! The tools of a host, each caller as a principal of its own.

use std::fmt;
use std::sync::Arc;

use bowline_core::call::{Body, Call, Principal, Reply, Route, Scope, Subject};
use bowline_core::era::Era;
use bowline_core::error::Failure;
use bowline_core::trace::Trace;
use bowline_link::BoxFuture;
use bowline_wire::broker::{Answer, Ask, Context, From, Item};
use bytes::Bytes;

use super::mcp::{self, Asked};
use super::params::Given;
use super::{Backend, Job, manifest, run};
use crate::broker::visitors::Stay;
use crate::broker::{Manifest, Visitors, failures};
use crate::catalog::{self, Found};
use crate::host::Host;

/// The id of calls; answers carry none.
const CALL_ID: &[u8] = b"1";

/// Who may ask at a host that is not the hub, and for what: a worker's rules for its hub.
pub trait Guests: fmt::Debug + Send + Sync {
    /// Returns the principal that stands for whoever the hub says is asking; nothing where it may
    /// do nothing.
    fn principal(&self, from: &From) -> Option<Arc<Principal>>;

    /// Whether a server is there for others at all.
    fn serves(&self, server: &str) -> bool;
}

/// Knows which credentials a person took back. A request is stored under one, and may be carried
/// out long after its connection is gone.
pub trait Credentials: fmt::Debug + Send + Sync {
    /// Whether it was taken back; one that only ran out was not.
    fn is_revoked(&self, credential: &str) -> bool;
}

/// Decides where requests of peers stand in traces.
pub trait TracePlacer: fmt::Debug + Send + Sync {
    /// Returns where a call stands of which its caller said this: within a span of our own where
    /// it is recorded.
    fn place(&self, said: Option<Trace>) -> Option<Arc<Trace>>;
}

/// The tools of a host.
#[derive(Clone, Debug)]
pub struct HostBackend {
    host: Host,
    guests: Option<Arc<dyn Guests>>,
    credentials: Option<Arc<dyn Credentials>>,
    visitors: Option<Arc<Visitors>>,
    tracer: Option<Arc<dyn TracePlacer>>,
}

impl HostBackend {
    /// Returns the backend of a hub: everybody comes as a principal of this host, and sees what it
    /// sees over MCP.
    #[must_use]
    pub const fn new(host: Host) -> Self {
        Self {
            host,
            guests: None,
            credentials: None,
            visitors: None,
            tracer: None,
        }
    }

    /// Records spans of what peers ask for, as `tracer` decides; what they say of their trace is
    /// passed on without it.
    #[must_use]
    pub fn traced(self, tracer: Arc<dyn TracePlacer>) -> Self {
        Self {
            tracer: Some(tracer),
            ..self
        }
    }

    fn trace(&self, context: Option<&Context>) -> Option<Arc<Trace>> {
        let said = context.and_then(|context| context.trace.as_deref().cloned());
        match &self.tracer {
            Some(tracer) => tracer.place(said),
            None => said.map(Arc::new),
        }
    }

    /// Carries out nothing for whoever came with a credential that was taken back since.
    #[must_use]
    pub fn heeding(self, credentials: Arc<dyn Credentials>) -> Self {
        Self {
            credentials: Some(credentials),
            ..self
        }
    }

    /// Returns the backend of a worker: everybody comes as the principal that `guests` gives.
    #[must_use]
    pub const fn with_guests(host: Host, guests: Arc<dyn Guests>) -> Self {
        Self {
            host,
            guests: Some(guests),
            credentials: None,
            visitors: None,
            tracer: None,
        }
    }

    /// Serves requests of every kind, for sessions of the hub that these are.
    #[must_use]
    pub fn for_visitors(self, visitors: &Arc<Visitors>) -> Self {
        Self {
            visitors: Some(Arc::clone(visitors)),
            ..self
        }
    }

    pub(super) const fn host(&self) -> &Host {
        &self.host
    }

    /// Lets a session of the hub in, or the hub itself, for one request.
    pub(super) fn stay(
        &self,
        server: &Arc<str>,
        session: Option<&Arc<str>>,
    ) -> Result<Stay, Failure> {
        let visitors = self.visitors.as_ref();
        let visitors = visitors.ok_or_else(|| failures::only_tools("a session"))?;
        Ok(visitors.enter(server, session))
    }

    pub(super) fn principal(
        &self,
        from: &From,
        known: Option<&Arc<Principal>>,
    ) -> Result<Arc<Principal>, Failure> {
        let principal = match &self.guests {
            Some(guests) => guests.principal(from),
            None => known.cloned(),
        };
        let principal = principal.ok_or_else(failures::stranger)?;
        let credentials = self.credentials.as_ref();
        match credentials.is_some_and(|all| all.is_revoked(&principal.credential)) {
            true => Err(failures::revoked()),
            false => Ok(principal),
        }
    }

    fn serves(&self, server: &str) -> bool {
        let guests = self.guests.as_ref();
        guests.is_none_or(|guests| guests.serves(server))
    }

    fn found(&self, scope: &Scope, tool: &Arc<str>) -> Found {
        let subject = Subject::Tool(Arc::clone(tool));
        self.host.catalog().find(scope, &subject)
    }

    async fn answer(&self, job: &Job) -> Answer {
        if let Err(failure) = self.check(job) {
            return Answer::Failed(failure);
        }
        match &job.ask {
            Ask::Call {
                tool, arguments, ..
            } => match Given::read(tool, arguments) {
                Ok(given) => self.call(job, scope(&job.ask), given).await,
                Err(failure) => Answer::Failed(failure),
            },
            Ask::Mcp {
                server,
                method,
                params,
                ..
            } => {
                let asked = Asked {
                    server,
                    method,
                    params: params.as_ref(),
                };
                self.mcp(job, asked).await
            }
            Ask::Manifest => Answer::Failed(failures::bad_request(&"it is no call")),
        }
    }

    /// Carries out what one of the servers answers.
    pub(super) async fn call(&self, job: &Job, scope: Scope, given: Given) -> Answer {
        let principal = match self.principal(&job.from, job.principal.as_ref()) {
            Ok(principal) => principal,
            Err(failure) => return Answer::Failed(failure),
        };
        // Lives for as long as the request: its session is not forgotten meanwhile.
        let stay = self.visit(job, &scope).await;
        let context = job.ask.context();
        let caller = match (&stay, context, &job.sink) {
            (Some(stay), Some(context), Some(sink)) => Some(stay.end(sink, context)),
            _ => job.sink.clone(),
        };
        let call = Call {
            principal,
            scope,
            key: given.key().or_else(|| job.key.clone()),
            stateless: given.stateless(context.map_or(Era::Legacy, |context| context.era)),
            subject: given.subject,
            params: given.params,
            name_at: given.name_at,
            makes_task: given.makes_task,
            progress_at: given.progress_at,
            id: Bytes::from_static(CALL_ID),
            deadline: Some(job.deadline),
            caller,
            trace: self.trace(context),
            run: context.and_then(run),
        };
        match self.host.call(call).await {
            Ok(reply) => answer(&reply),
            Err(error) => Answer::Failed(error.to_failure()),
        }
    }

    /// Lets the session in that asks, where it says which it is, at the level it wants.
    async fn visit(&self, job: &Job, scope: &Scope) -> Option<Stay> {
        let context = job.ask.context()?;
        let (Scope::Server(server), Some(visitors)) = (scope, &self.visitors) else {
            return None;
        };
        let stay = visitors.enter(server, Some(context.session.as_ref()?));
        if let Some(level) = context.level
            && stay.is_news(Some(level))
        {
            // A server that does not take the level is called all the same.
            if let Ok(who) = self.principal(&job.from, job.principal.as_ref()) {
                let _untaken = self.host.set_level(&who, scope, stay.key(), level).await;
            }
        }
        Some(stay)
    }
}

impl Backend for HostBackend {
    fn manifest<'a>(
        &'a self,
        from: &'a From,
        principal: Option<&'a Arc<Principal>>,
    ) -> BoxFuture<'a, Result<Manifest, Failure>> {
        Box::pin(async move {
            let principal = self.principal(from, principal)?;
            self.host.settled().await;
            self.host.shown_to(&principal, &Scope::All).await;
            let items = self.host.tools_seen(&principal);
            let items = items.iter().filter(|item| self.serves(&item.route.server));
            Ok(manifest(items.map(item).collect()))
        })
    }

    fn check(&self, job: &Job) -> Result<(), Failure> {
        if let Ask::Mcp { server, method, .. } = &job.ask {
            if self.visitors.is_none() {
                return Err(failures::only_tools(method));
            }
            if !mcp::is_hub(&job.from) {
                self.principal(&job.from, job.principal.as_ref())?;
            }
            return match self.serves(server) {
                true => Ok(()),
                false => Err(failures::unknown_server(server)),
            };
        }
        self.principal(&job.from, job.principal.as_ref())?;
        let Ask::Call { tool, server, .. } = &job.ask else {
            return Ok(());
        };
        if self.guests.is_none() {
            return Ok(());
        }
        let served = match server {
            Some(server) => self.serves(server),
            None => match self.found(&Scope::All, tool) {
                Found::Route(route) | Found::Withdrawn(route) => self.serves(&route.server),
                Found::Unlisted(server) => self.serves(&server),
                Found::Nothing => true,
            },
        };
        match served {
            true => Ok(()),
            // What is not there for others is told like what is not there.
            false => Err(failures::unknown_tool(tool)),
        }
    }

    fn is_repeatable(&self, job: &Job) -> bool {
        let Ask::Call { tool, .. } = &job.ask else {
            return true;
        };
        match self.found(&scope(&job.ask), tool) {
            Found::Route(route) => is_repeatable(&route),
            Found::Withdrawn(_) | Found::Unlisted(_) | Found::Nothing => false,
        }
    }

    fn run<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Answer> {
        Box::pin(self.answer(job))
    }
}

/// What can be queued is written down under its key, so that its outcome is known later: it is
/// not repeated without that key.
fn is_repeatable(route: &Route) -> bool {
    route.is_repeatable() && route.queue.is_none()
}

fn scope(ask: &Ask) -> Scope {
    match ask {
        Ask::Call {
            server: Some(server),
            ..
        } => Scope::Server(Arc::clone(server)),
        Ask::Mcp { server, .. } => Scope::Server(Arc::clone(server)),
        Ask::Call { .. } | Ask::Manifest => Scope::All,
    }
}

fn item(item: &catalog::Item) -> Item {
    let mut definition = Vec::with_capacity(item.definition.len() + item.visible.len());
    item.write_visible(&mut definition);
    Item {
        name: Arc::clone(&item.visible),
        server: Some(Arc::clone(&item.route.server)),
        tool: Some(Arc::clone(&item.route.name)),
        repeatable: is_repeatable(&item.route),
        definition: definition.into(),
    }
}

fn answer(reply: &Reply) -> Answer {
    let body = reply.answer.slice(reply.body_at.clone());
    match reply.body {
        Body::Result => Answer::Output {
            result: body,
            again: false,
            era: reply.era,
        },
        Body::Error => Answer::Rpc {
            error: body,
            era: reply.era,
        },
    }
}
