//! What sessions want besides calls: news of resources, a log level, the list of their tasks.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::{Body, Kind, Principal, Route, Scope, Subject};
use bowline_core::caller::{CallerEnd, SessionKey};
use bowline_core::error::{CallError, Origin};
use bowline_core::level::Level;
use bowline_core::policy::Thing;
use bowline_core::sync::lock;
use bowline_core::tasks::LinkKey;
use bowline_core::time::Now;
use bowline_link::{OnBehalf, Request};
use bowline_wire::mcp::method;
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;

use super::Host;
use crate::audit::Target;
use crate::callpath::resolve::Ask;
use crate::callpath::{ResponseWait, explain, health};
use crate::catalog::introduction::declares;
use crate::catalog::listing;
use crate::supervisor::list::{self, ListError};
use crate::supervisor::{Ready, Supervisor};

/// How long a caller waits for servers to hear of what it no longer wants, or of its level.
const TOLD_WAIT: Duration = Duration::from_secs(5);

/// How long a caller waits where several servers are told of its level: one that is slow must not
/// hold up calls of the others.
const ALL_TOLD_WAIT: Duration = Duration::from_millis(250);

/// Tasks that one server may have.
const TASKS_MAX: usize = 2_048;

/// How long a server may take to list its tasks.
const TASKS_TIMEOUT: Duration = Duration::from_secs(30);

impl Host {
    /// Has the session of `caller` told of changes of a resource. The server is asked when nobody
    /// else wants to know of that resource already.
    pub async fn subscribe(
        &self,
        principal: &Principal,
        scope: &Scope,
        caller: &Arc<dyn CallerEnd>,
        uri: &str,
    ) -> Result<(), CallError> {
        let session = caller.session();
        let known_as: Arc<str> = uri.into();
        let started = self.path.clock.now();
        let found = self.judged(principal, scope, Some(session), &known_as);
        let (route, server) = found.await?;
        let ticket = server.admit()?;
        let deadline = started.plus(server.spec().call_timeout);
        let ready = server.link(deadline).await?;
        if let Some(whom) = self.path.stamped(principal, &server) {
            self.judged_there(&route, &ready, whom, deadline).await?;
        }
        lock(&self.path.memory.askers).note(session, &Arc::new(principal.clone()), scope);
        let place = (&route.server, &route.name);
        let memory = &self.path.memory;
        memory.subscribe(principal, session, place, &known_as)?;
        let undo = Unsubscribe {
            host: self,
            session,
            known_as: &known_as,
            server: &server,
        };
        let standing = &self.standing;
        let told = standing.subscribed(&server, &route.name, deadline).await;
        if let Err(error) = told {
            ticket.report(health(Some(&error)));
            return Err(error);
        }
        // It may have been told long ago, so that it took the subscription says nothing of today.
        drop(ticket);
        undo.keep();
        Ok(())
    }

    /// Says whether a principal may have itself told of changes of a resource.
    pub(crate) async fn may_subscribe(
        &self,
        principal: &Principal,
        scope: &Scope,
        uri: &str,
    ) -> Result<(), CallError> {
        let uri = uri.into();
        let judged = self.judged(principal, scope, None, &uri);
        judged.await.map(drop)
    }

    /// Finds a resource, and refuses whoever may not hear of it.
    async fn judged(
        &self,
        principal: &Principal,
        scope: &Scope,
        session: Option<SessionKey>,
        uri: &Arc<str>,
    ) -> Result<(Arc<Route>, Supervisor), CallError> {
        let subject = Subject::Resource(Arc::clone(uri));
        let ask = Ask {
            principal,
            scope,
            subject: &subject,
            session,
            deadline: None,
            params: None,
            sealed: None,
        };
        let auditor = &self.path.auditor;
        let found = self.path.resolve(ask, self.path.clock.now()).await;
        let (route, server) = found.inspect_err(|error| {
            if error.origin() == Origin::Policy {
                auditor.unsubscribed(ask, Target::Unknown, error);
            }
        })?;
        self.path.permit(ask, &route).await.inspect_err(|error| {
            let target = Target::Route(Arc::clone(&route));
            auditor.unsubscribed(ask, target, error);
        })?;
        Ok((route, server))
    }

    /// Asks a worker whether it lets somebody hear of a resource; what is then subscribed to is
    /// for all of this gateway.
    async fn judged_there(
        &self,
        route: &Route,
        ready: &Ready,
        whom: OnBehalf,
        deadline: Now,
    ) -> Result<(), CallError> {
        let mut params = Vec::from(&b"{\"uri\":"[..]);
        write_string(&mut params, &route.name);
        params.push(b'}');
        let until = self.path.clock.instant(deadline);
        let own = Request::own(method::RESOURCES_SUBSCRIBE, Some(params.into()), until);
        let request = Request {
            on_behalf: Some(Box::new(whom)),
            ..own
        };
        let answer = ready.link.request(request).await.map_err(|error| {
            let timeout = deadline.millis_since(self.path.clock.now());
            let timeout = ResponseWait::for_server(timeout);
            explain(&error, &route.server, ready.ended(), timeout)
        })?;
        match answer.body {
            Body::Result => Ok(()),
            Body::Error => Err(CallError::Refused {
                server: Arc::clone(&route.server),
                error: answer.bytes.slice(answer.body_at),
            }),
        }
    }

    /// Ends what [`subscribe`](Self::subscribe) began; the server is told when nobody else wants
    /// to know of that resource. What a session ends is its own, so there is nothing to decide.
    pub async fn unsubscribe(
        &self,
        _principal: &Principal,
        _scope: &Scope,
        session: SessionKey,
        uri: &str,
    ) -> Result<(), CallError> {
        let left = self.path.memory.unsubscribe(session, uri);
        let Some((server, own)) = left else {
            return Ok(());
        };
        if let Ok(server) = self.server(&server) {
            let deadline = self.path.clock.now().plus(TOLD_WAIT);
            self.standing.unsubscribed(&server, &own, deadline).await;
        }
        Ok(())
    }

    /// Notes from which level on a session of `principal` wants to hear of `scope`. Servers are
    /// told the most verbose level that anybody wants; those of which the principal may see
    /// nothing are not asked.
    pub async fn set_level(
        &self,
        principal: &Principal,
        scope: &Scope,
        session: SessionKey,
        level: Level,
    ) -> Result<(), CallError> {
        let reaches = |server: &str| self.path.decider.reaches(principal, scope, server);
        let (servers, wait): (Vec<Supervisor>, _) = match scope {
            Scope::All | Scope::Profile(_) => {
                let all = self.path.servers.load();
                let seen = all.iter().filter(|(name, _)| reaches(name));
                (
                    seen.map(|(_, server)| server.clone()).collect(),
                    ALL_TOLD_WAIT,
                )
            }
            Scope::Server(server) if reaches(server) => (vec![self.server(server)?], TOLD_WAIT),
            Scope::Server(server) => {
                let server = Arc::clone(server);
                return Err(CallError::UnknownServer { server });
            }
        };
        {
            let mut levels = lock(&self.path.memory.levels);
            match scope.is_shared() && !self.path.decider.sight().all(principal, &Scope::All) {
                true => {
                    let names = servers.iter().map(|server| &server.spec().name);
                    levels.set_of(session, names, level);
                }
                false => levels.set(session, scope, level),
            }
        }
        let deadline = self.path.clock.now().plus(wait);
        // All hear of it before the first is waited for.
        for server in &servers {
            self.standing.poke(server);
        }
        for server in &servers {
            self.standing.levelled(server, deadline).await;
            server.own_levelled(session, deadline).await;
        }
        Ok(())
    }

    /// Returns the result of `tasks/list`: the tasks that this principal made, as the servers
    /// that have them describe them.
    pub async fn tasks_of(&self, principal: &Principal, scope: &Scope) -> Result<Bytes, CallError> {
        let mut own: BTreeMap<(Arc<str>, LinkKey), HashSet<Arc<str>>> = BTreeMap::new();
        {
            let table = lock(&self.path.memory.tasks);
            for made in table.of(&principal.name, self.path.clock.now()) {
                // A task is decided as the tool that made it.
                let thing = Thing {
                    kind: Kind::Tool,
                    server: &made.server,
                    name: &made.tool,
                    arguments: None,
                };
                if matches!(scope, Scope::Server(only) if *only != made.server)
                    || !self.path.decider.allows(principal, scope, thing)
                {
                    continue;
                }
                let at = (Arc::clone(&made.server), made.link);
                let ids = own.entry(at).or_default();
                ids.insert(Arc::clone(&made.id));
            }
        }
        let mut result = Vec::from(&b"{\"tasks\":["[..]);
        let mut failed = None;
        let mut answered = 0_usize;
        for ((server, link), ids) in own {
            match self.tasks_at(principal, &server, link).await {
                Ok(pages) => {
                    answered += 1;
                    keep_own(&ids, &pages, &mut result);
                }
                Err(error) => {
                    tracing::warn!(%server, %error, "tasks could not be listed");
                    failed = Some(error);
                }
            }
        }
        result.extend_from_slice(b"]}");
        match failed {
            Some(error) if answered == 0 => Err(error),
            Some(_) | None => Ok(result.into()),
        }
    }

    /// Asks one server for all tasks it has at one link, whoever made them.
    async fn tasks_at(
        &self,
        principal: &Principal,
        name: &str,
        link: LinkKey,
    ) -> Result<Vec<Bytes>, CallError> {
        let server = self.server(name)?;
        let ticket = server.admit()?;
        let end = self.path.clock.now().plus(TASKS_TIMEOUT);
        let ready = server.link_of_tasks(link, end).await?;
        let lists = |ready: &Arc<Ready>| declares(&ready.link.server().initialize, "tasks.list");
        let Some(ready) = ready.filter(lists) else {
            return Ok(Vec::new());
        };
        let until = self.path.clock.instant(end);
        let whom = self.path.stamped(principal, &server);
        let asked = (method::TASKS_LIST, whom.map(Box::new));
        let pages = list::pages(ready.link.as_ref(), asked, "tasks", TASKS_MAX, until).await;
        // Nobody is told that a task of theirs is gone because there are many of others.
        let pages = pages.and_then(|read| match read.left_out.is_empty() {
            true => Ok(read.pages),
            false => Err(ListError::TooManyItems(method::TASKS_LIST)),
        });
        let pages = pages.map_err(|error| unlisted(error, &server, &ready));
        ticket.report(health(pages.as_ref().err()));
        pages
    }

    /// Tells servers that the roots of a session's client changed, where a link is its own.
    pub fn roots_changed(&self, session: SessionKey) {
        for server in self.path.servers.load().values() {
            server.roots_changed(session);
        }
    }

    /// Says who a session is from now on, because its contexts changed: what it is told outside
    /// calls is decided for that principal.
    pub fn session_narrowed(&self, session: SessionKey, principal: &Arc<Principal>) {
        lock(&self.path.memory.askers).narrow(session, principal);
    }

    /// Lets go of what was kept for a session that is over.
    pub fn session_ended(&self, session: SessionKey) {
        let memory = &self.path.memory;
        lock(&memory.askers).end(session);
        lock(&memory.seen).end(session);
        lock(&memory.levels).end(session);
        let left = memory.end_subscriptions(session);
        let servers = self.path.servers.load();
        for server in left.iter().filter_map(|name| servers.get(name)) {
            self.standing.poke(server);
        }
        for server in servers.values() {
            server.session_ended(session);
        }
    }
}

/// Writes those tasks that are `ids`.
fn keep_own(ids: &HashSet<Arc<str>>, pages: &[Bytes], out: &mut Vec<u8>) {
    for task in pages
        .iter()
        .flat_map(|page| listing::read_member("tasks", page))
    {
        let id = object::field(&task, "taskId").map(|at| at.of(&task));
        let id = id.and_then(object::string);
        if id.is_some_and(|id| ids.contains(id.as_ref())) {
            if out.last() != Some(&b'[') {
                out.push(b',');
            }
            out.extend_from_slice(&task);
        }
    }
}

/// Takes a subscription back that was not made, also when its caller went away.
struct Unsubscribe<'a> {
    host: &'a Host,
    session: SessionKey,
    known_as: &'a str,
    server: &'a Supervisor,
}

impl Unsubscribe<'_> {
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unsubscribe<'_> {
    fn drop(&mut self) {
        let memory = &self.host.path.memory;
        memory.unsubscribe(self.session, self.known_as);
        self.host.standing.poke(self.server);
    }
}

/// Says why a server's tasks are not known.
fn unlisted(error: ListError, server: &Supervisor, ready: &Ready) -> CallError {
    let server = &server.spec().name;
    match error {
        ListError::Link { source, .. } => {
            let timeout = bowline_core::time::millis(TASKS_TIMEOUT);
            let timeout = ResponseWait::for_server(timeout);
            explain(&source, server, ready.ended(), timeout)
        }
        ListError::Refused { error, .. } => CallError::Refused {
            server: Arc::clone(server),
            error,
        },
        error @ (ListError::TooManyItems(_)
        | ListError::RepeatedCursor(_)
        | ListError::CursorTooLarge(_)) => CallError::BadAnswer {
            server: Arc::clone(server),
            reason: error.to_string().into(),
        },
    }
}
