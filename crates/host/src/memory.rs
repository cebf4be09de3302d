//! What is remembered for sessions and principals, and who is told what a server says outside
//! calls.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use bowline_core::askers::Askers;
use bowline_core::call::{Body, Call, Kind, Principal, Reply, Route, Scope, Subject};
use bowline_core::caller::SessionKey;
use bowline_core::era::Era;
use bowline_core::error::{CallError, Execution};
use bowline_core::level::Levels;
use bowline_core::policy::Thing;
use bowline_core::seen::Seen;
use bowline_core::shares::{Resource, ShareError};
use bowline_core::subscriptions::{Place, Subscriptions, units};
use bowline_core::sync::lock;
use bowline_core::tasks::{LinkKey, MadeBy, TaskTable};
use bowline_core::time::Now;
use bowline_link::LinkEvent;
use bowline_wire::era::result::{ResultKind, kind};
use bowline_wire::era::tasks::Task;
use bowline_wire::object;
use bowline_wire::splice::{replace, write_string};
use bytes::Bytes;
use foldhash::fast::RandomState;

use crate::accounts::{PrincipalAccounts, Share};
use crate::decide::{Decider, Delivered};
use crate::ports::Audience;

/// Machines that outlive calls, each behind its own lock.
#[derive(Debug)]
pub struct Memory {
    /// Says whether a session may still hear what it asked for.
    decider: Arc<Decider>,
    /// Who is at the other end of sessions that are told anything outside calls.
    pub(crate) askers: Mutex<Askers>,
    /// Links that tools showed to a session.
    pub(crate) seen: Mutex<Seen>,
    /// Tasks, and who made them.
    pub(crate) tasks: Mutex<TaskTable>,
    /// Resources of which sessions want news.
    pub(crate) subscriptions: Mutex<Subscriptions>,
    /// What the subscriptions of each session count in the share of its principal. Locked while
    /// `subscriptions` is, never before it.
    subscribed: Mutex<HashMap<SessionKey, Share, RandomState>>,
    accounts: PrincipalAccounts,
    /// How much sessions want to hear.
    pub(crate) levels: Mutex<Levels>,
}

impl Memory {
    pub(crate) fn new(decider: Arc<Decider>, accounts: PrincipalAccounts) -> Self {
        Self {
            decider,
            accounts,
            subscribed: Mutex::default(),
            askers: Mutex::default(),
            seen: Mutex::default(),
            tasks: Mutex::default(),
            subscriptions: Mutex::default(),
            levels: Mutex::default(),
        }
    }

    /// Has a session told of changes of a resource, as a part of the share of its principal.
    pub(crate) fn subscribe(
        &self,
        principal: &Principal,
        session: SessionKey,
        (server, uri): (&Arc<str>, &Arc<str>),
        known_as: &Arc<str>,
    ) -> Result<(), CallError> {
        let mut subscriptions = lock(&self.subscriptions);
        if !subscriptions.has(session, known_as) {
            self.charge(principal, session, units(known_as))
                .map_err(|cause| CallError::ShareExceeded {
                    cause,
                    execution: Execution::NotStarted,
                })?;
        }
        subscriptions
            .add(session, server, uri, known_as)
            .map_err(|limit| {
                self.discharge(session, units(known_as));
                CallError::TooManySubscriptions { limit }
            })
    }

    /// Ends one subscription and returns its server and the server's own URI, if it is there.
    pub(crate) fn unsubscribe(&self, session: SessionKey, known_as: &str) -> Option<Place> {
        let place = lock(&self.subscriptions).remove(session, known_as)?;
        self.discharge(session, units(known_as));
        Some(place)
    }

    /// Ends all subscriptions of a session and returns the servers that had any of them.
    pub(crate) fn end_subscriptions(&self, session: SessionKey) -> BTreeSet<Arc<str>> {
        let servers = lock(&self.subscriptions).end(session);
        let share = lock(&self.subscribed).remove(&session);
        drop(share);
        servers
    }

    fn charge(
        &self,
        principal: &Principal,
        session: SessionKey,
        units: u64,
    ) -> Result<(), ShareError> {
        let mut subscribed = lock(&self.subscribed);
        if let Some(share) = subscribed.get_mut(&session) {
            return share.grow(units);
        }
        let share = self
            .accounts
            .take(principal, Resource::Subscriptions, units)?;
        subscribed.insert(session, share);
        Ok(())
    }

    fn discharge(&self, session: SessionKey, units: u64) {
        let mut subscribed = lock(&self.subscribed);
        if let Some(share) = subscribed.get_mut(&session) {
            share.shrink(units);
            if share.amount() == 0 {
                subscribed.remove(&session);
            }
        }
    }

    /// Notes who is at the other end of a session that is to be told something outside calls.
    pub(crate) fn meet(&self, session: SessionKey, principal: &Principal, scope: &Scope) {
        lock(&self.askers).note(session, &Arc::new(principal.clone()), scope);
    }

    /// Whether a session may still see something: what it was told once says nothing of today.
    fn may_hear(&self, session: SessionKey, thing: Thing<'_>) -> bool {
        let asker = lock(&self.askers).get(session).cloned();
        asker.is_some_and(|asker| self.decider.allows(&asker.principal, &asker.scope, thing))
    }

    /// Whether a session may be told what became of a call that it queued.
    pub(crate) fn may_hear_of(&self, session: SessionKey, about: (Thing<'_>, Delivered)) -> bool {
        let asker = lock(&self.askers).get(session).cloned();
        asker.is_some_and(|asker| self.decider.tells(&asker.principal, &asker.scope, about))
    }

    /// Remembers what an answer gave out that later requests will name.
    pub(crate) fn learn(
        &self,
        call: &Call,
        (route, link): (&Route, LinkKey),
        reply: &Reply,
        now: Now,
    ) {
        if !matches!(call.subject, Subject::Tool(_)) || reply.body != Body::Result {
            return;
        }
        let result = reply.answer.get(reply.body_at.clone()).unwrap_or_default();
        let session = call.caller.as_ref().map(|caller| caller.session());
        if let Some(id) = task_of(call, reply.era, result) {
            let by = MadeBy {
                server: &route.server,
                tool: &route.name,
                link,
            };
            let mut tasks = lock(&self.tasks);
            let made = tasks.note(&call.principal.name, session, by, &id, now);
            let made = made.cloned();
            drop(tasks);
            if let (Some(caller), Some(made)) = (&call.caller, &made) {
                caller.task_made(made);
            }
            if let Some(session) = session {
                lock(&self.askers).note(session, &call.principal, &call.scope);
            }
        }
        if let Some(session) = session
            && call.scope.is_shared()
            && memchr::memmem::find(result, b"\"uri\"").is_some()
        {
            let mut seen = lock(&self.seen);
            for uri in links_of(result) {
                seen.note(session, &route.server, &uri);
            }
        }
    }

    /// Brings what a server said outside calls to those whom it is for.
    pub(crate) fn heard(
        &self,
        audience: &dyn Audience,
        (server, link): (&Arc<str>, LinkKey),
        event: LinkEvent,
    ) {
        match event {
            LinkEvent::ResourceUpdated { uri, notification } => {
                let wanting = lock(&self.subscriptions).sessions(server, &uri);
                let thing = Thing {
                    kind: Kind::Resource,
                    server,
                    name: &uri,
                    arguments: None,
                };
                for (session, known_as) in wanting {
                    if !self.may_hear(session, thing) {
                        continue;
                    }
                    audience.tell(session, renamed(&notification, &uri, &known_as));
                }
            }
            LinkEvent::TaskStatus { task, notification } => {
                let made = lock(&self.tasks).made(server, link, &task).cloned();
                let heard = made.and_then(|made| {
                    let thing = Thing {
                        kind: Kind::Tool,
                        server,
                        name: &made.tool,
                        arguments: None,
                    };
                    made.session
                        .filter(|session| self.may_hear(*session, thing))
                });
                if let Some(session) = heard {
                    audience.tell(session, notification);
                }
            }
            LinkEvent::Told {
                session,
                notification,
            } => {
                audience.tell(session, notification);
            }
            LinkEvent::ToolsChanged
            | LinkEvent::PromptsChanged
            | LinkEvent::ResourcesChanged
            | LinkEvent::Renewed
            | LinkEvent::Ambiguous
            | LinkEvent::Log(_)
            | LinkEvent::Other(_) => {}
        }
    }
}

/// Reads the id of a task that was made: where it was wanted in the one era, where the server
/// liked to in the other.
fn task_of(call: &Call, era: Era, result: &[u8]) -> Option<String> {
    let task = match era {
        Era::Legacy if call.makes_task => Task::read_created(result)?,
        Era::Legacy => return None,
        Era::Modern if kind(result) == ResultKind::Task => Task::read(result)?,
        Era::Modern => return None,
    };
    Some(task.id.into_owned())
}

/// Reads the addresses of resources in the content of an answer.
fn links_of(result: &[u8]) -> impl Iterator<Item = String> + '_ {
    let content = object::field(result, "content").map_or(&b""[..], |at| at.of(result));
    object::items(content).filter_map(move |item| {
        let block = item.of(content);
        let kind = object::field(block, "type")?.of(block);
        let holder = match object::string(kind)?.as_ref() {
            "resource_link" => block,
            "resource" => object::field(block, "resource")?.of(block),
            _ => return None,
        };
        let uri = object::field(holder, "uri")?.of(holder);
        object::string(uri).map(Into::into)
    })
}

/// Writes news of a resource under the URI by which its hearer knows it.
fn renamed(notification: &Bytes, uri: &str, known_as: &str) -> Bytes {
    if uri == known_as {
        return notification.clone();
    }
    let params = object::field(notification, "params");
    let at = params.and_then(|params| {
        let at = object::field(params.of(notification), "uri")?;
        Some(at.shift(params.start))
    });
    let Some(at) = at else {
        return notification.clone();
    };
    let mut with = Vec::new();
    write_string(&mut with, known_as);
    replace(notification, at, &with).into()
}
