//! State of sessions and principals across calls, and delivery of notifications outside calls.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};

use bowline_core::call::{
    BodyKind, CallReply, CallRequest, CallSubject, EndpointScope, FeatureKind, Principal, Route,
};
use bowline_core::client_handle::SessionKey;
use bowline_core::era::Era;
use bowline_core::error::{CallError, ExecutionStatus};
use bowline_core::log_level::SessionLogLevels;
use bowline_core::policy::PolicyTarget;
use bowline_core::resource_links::ResourceLinks;
use bowline_core::session_identity::SessionIdentities;
use bowline_core::shares::{ShareError, SharedResource};
use bowline_core::subscriptions::{ResourceSubscriptions, ServerUri, share_units};
use bowline_core::sync::lock;
use bowline_core::task_table::{LinkKey, TaskOrigin, TaskTable};
use bowline_core::time::MonotonicTime;
use bowline_link::LinkEvent;
use bowline_wire::era::result_translation::{ResultKind, result_kind};
use bowline_wire::era::task_translation::ParsedTask;
use bowline_wire::object;
use bowline_wire::splice::{replace_span, write_string};
use bytes::Bytes;
use foldhash::fast::RandomState;

use crate::accounts::{PrincipalAccounts, ResourceShare};
use crate::authorizer::{Authorizer, DeliveryStatus};
use crate::ports::NotificationSink;

/// State that outlives calls, each part behind its own lock.
#[derive(Debug)]
pub struct SessionState {
    /// Authorizes notifications again on delivery.
    authorizer: Arc<Authorizer>,
    /// Principals of the sessions with notifications outside calls.
    pub(crate) identities: Mutex<SessionIdentities>,
    /// Resource links shown to sessions by tools.
    pub(crate) resource_links: Mutex<ResourceLinks>,
    /// Tasks and their principals.
    pub(crate) tasks: Mutex<TaskTable>,
    /// Resource subscriptions.
    pub(crate) subscriptions: Mutex<ResourceSubscriptions>,
    /// Shares charged to principals for the subscriptions of each session. Locked while
    /// `subscriptions` is locked, never before.
    subscription_shares: Mutex<HashMap<SessionKey, ResourceShare, RandomState>>,
    accounts: PrincipalAccounts,
    /// Log levels of sessions.
    pub(crate) log_levels: Mutex<SessionLogLevels>,
}

impl SessionState {
    pub(crate) fn new(authorizer: Arc<Authorizer>, accounts: PrincipalAccounts) -> Self {
        Self {
            authorizer,
            accounts,
            subscription_shares: Mutex::default(),
            identities: Mutex::default(),
            resource_links: Mutex::default(),
            tasks: Mutex::default(),
            subscriptions: Mutex::default(),
            log_levels: Mutex::default(),
        }
    }

    /// Subscribes a session to a resource, charged to the share of its principal.
    pub(crate) fn subscribe(
        &self,
        principal: &Principal,
        session: SessionKey,
        server: &Arc<str>,
        uri: &Arc<str>,
        known_as: &Arc<str>,
    ) -> Result<(), CallError> {
        let mut subscriptions = lock(&self.subscriptions);
        if !subscriptions.has_subscription(session, known_as) {
            self.charge_share(principal, session, share_units(known_as))
                .map_err(|cause| CallError::ShareExceeded {
                    cause,
                    execution: ExecutionStatus::NotStarted,
                })?;
        }
        subscriptions
            .subscribe(session, server, uri, known_as)
            .map_err(|limit| {
                self.release_share(session, share_units(known_as));
                CallError::TooManySubscriptions { limit }
            })
    }

    /// Ends a subscription; returns its server and the server's own URI.
    pub(crate) fn unsubscribe(&self, session: SessionKey, known_as: &str) -> Option<ServerUri> {
        let server_uri = lock(&self.subscriptions).unsubscribe(session, known_as)?;
        self.release_share(session, share_units(known_as));
        Some(server_uri)
    }

    /// Ends all subscriptions of a session; returns the affected servers.
    pub(crate) fn end_subscriptions(&self, session: SessionKey) -> BTreeSet<Arc<str>> {
        let servers = lock(&self.subscriptions).remove_session(session);
        let share = lock(&self.subscription_shares).remove(&session);
        drop(share);
        servers
    }

    fn charge_share(
        &self,
        principal: &Principal,
        session: SessionKey,
        units: u64,
    ) -> Result<(), ShareError> {
        let mut subscribed = lock(&self.subscription_shares);
        if let Some(share) = subscribed.get_mut(&session) {
            return share.grow(units);
        }
        let share = self
            .accounts
            .take_share(principal, SharedResource::Subscriptions, units)?;
        subscribed.insert(session, share);
        Ok(())
    }

    fn release_share(&self, session: SessionKey, units: u64) {
        let mut subscribed = lock(&self.subscription_shares);
        if let Some(share) = subscribed.get_mut(&session) {
            share.shrink(units);
            if share.amount() == 0 {
                subscribed.remove(&session);
            }
        }
    }

    /// Records the principal of a session with notifications outside calls.
    pub(crate) fn record_identity(
        &self,
        session: SessionKey,
        principal: &Principal,
        scope: &EndpointScope,
    ) {
        lock(&self.identities).set_identity(session, &Arc::new(principal.clone()), scope);
    }

    /// True if a session may still see an item: rights may have changed since.
    fn can_receive(&self, session: SessionKey, thing: PolicyTarget<'_>) -> bool {
        let asker = lock(&self.identities).get(session).cloned();
        asker.is_some_and(|asker| {
            self.authorizer
                .allows(&asker.principal, &asker.scope, thing)
        })
    }

    /// True if a session may learn the outcome of its queued call.
    pub(crate) fn can_learn_outcome(
        &self,
        session: SessionKey,
        thing: PolicyTarget<'_>,
        delivered: DeliveryStatus,
    ) -> bool {
        let asker = lock(&self.identities).get(session).cloned();
        asker.is_some_and(|asker| {
            self.authorizer
                .can_learn_outcome(&asker.principal, &asker.scope, thing, delivered)
        })
    }

    /// Records the task and the resource links of a result, for later requests.
    pub(crate) fn record_reply(
        &self,
        call: &CallRequest,
        route: &Route,
        link: LinkKey,
        reply: &CallReply,
        now: MonotonicTime,
    ) {
        if !matches!(call.subject, CallSubject::Tool(_)) || reply.response.body != BodyKind::Result
        {
            return;
        }
        let result = reply.response.body_bytes();
        let session = call.message.client.as_ref().map(|caller| caller.session());
        if let Some(id) = created_task_id(call, reply.response.era, result) {
            let origin = TaskOrigin {
                server: &route.server,
                tool: &route.name,
                link,
            };
            let mut tasks = lock(&self.tasks);
            let task = tasks.record_task(&call.principal.name, session, origin, &id, now);
            let task = task.cloned();
            drop(tasks);
            if let (Some(caller), Some(task)) = (&call.message.client, &task) {
                caller.on_task_created(task);
            }
            if let Some(session) = session {
                lock(&self.identities).set_identity(session, &call.principal, &call.scope);
            }
        }
        if let Some(session) = session
            && call.scope.is_multi_server()
            && memchr::memmem::find(result, b"\"uri\"").is_some()
        {
            let mut links = lock(&self.resource_links);
            for uri in resource_uris(result) {
                links.record_link(session, &route.server, &uri);
            }
        }
    }

    /// Delivers a server event outside calls to its sessions.
    pub(crate) fn deliver_event(
        &self,
        sink: &dyn NotificationSink,
        server: &Arc<str>,
        link: LinkKey,
        event: LinkEvent,
    ) {
        match event {
            LinkEvent::ResourceUpdated { uri, notification } => {
                let subscribers = lock(&self.subscriptions).uri_subscribers(server, &uri);
                let target = PolicyTarget {
                    kind: FeatureKind::Resource,
                    server,
                    name: &uri,
                    arguments: None,
                };
                for (session, known_as) in subscribers {
                    if !self.can_receive(session, target) {
                        continue;
                    }
                    sink.deliver(session, with_known_uri(&notification, &uri, &known_as));
                }
            }
            LinkEvent::TaskStatus { task, notification } => {
                let task_record = lock(&self.tasks).task_at(server, link, &task).cloned();
                let recipient = task_record.and_then(|task_record| {
                    let target = PolicyTarget {
                        kind: FeatureKind::Tool,
                        server,
                        name: &task_record.tool,
                        arguments: None,
                    };
                    task_record
                        .session
                        .filter(|session| self.can_receive(*session, target))
                });
                if let Some(session) = recipient {
                    sink.deliver(session, notification);
                }
            }
            LinkEvent::SessionNotification {
                session,
                notification,
            } => {
                sink.deliver(session, notification);
            }
            LinkEvent::ToolsChanged
            | LinkEvent::PromptsChanged
            | LinkEvent::ResourcesChanged
            | LinkEvent::SessionReset
            | LinkEvent::UnattributedRequest
            | LinkEvent::Log(_)
            | LinkEvent::Other(_) => {}
        }
    }
}

/// Returns the id of a created task: requested by the client in the legacy era, chosen by the
/// server in the modern era.
fn created_task_id(call: &CallRequest, era: Era, result: &[u8]) -> Option<String> {
    let task = match era {
        Era::Legacy if call.wants_task => ParsedTask::parse_created(result)?,
        Era::Legacy => return None,
        Era::Modern if result_kind(result) == ResultKind::Task => ParsedTask::parse(result)?,
        Era::Modern => return None,
    };
    Some(task.id.into_owned())
}

/// Returns the resource URIs in the content of a result.
fn resource_uris(result: &[u8]) -> impl Iterator<Item = String> + '_ {
    let content = object::field(result, "content").map_or(&b""[..], |at| at.slice(result));
    object::items(content).filter_map(move |item| {
        let block = item.slice(content);
        let kind = object::field(block, "type")?.slice(block);
        let holder = match object::parse_string(kind)?.as_ref() {
            "resource_link" => block,
            "resource" => object::field(block, "resource")?.slice(block),
            _ => return None,
        };
        let uri = object::field(holder, "uri")?.slice(holder);
        object::parse_string(uri).map(Into::into)
    })
}

/// Rewrites a resource notification to the URI known to the client.
fn with_known_uri(notification: &Bytes, uri: &str, known_as: &str) -> Bytes {
    if uri == known_as {
        return notification.clone();
    }
    let params = object::field(notification, "params");
    let at = params.and_then(|params| {
        let at = object::field(params.slice(notification), "uri")?;
        Some(at.shift(params.start))
    });
    let Some(at) = at else {
        return notification.clone();
    };
    let mut with = Vec::new();
    write_string(&mut with, known_as);
    replace_span(notification, at, &with).into()
}
