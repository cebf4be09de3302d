//! `subscriptions/listen`: event stream of changes for clients without a session.

mod listen_filter;
mod modern_listeners;
mod subscription_tag;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bowline_core::call::{EndpointScope, Principal};
use bowline_core::client_handle::{ClientHandle, NullClient, SessionKey};
use bowline_core::sync::lock;
use bowline_wire::era::result_translation::{ResultContext, to_modern};
use bowline_wire::jsonrpc::{write_notification, write_result};
use bowline_wire::mcp::{code, method};
use bowline_wire::{MemberList, object};
use bytes::Bytes;
use http::StatusCode;

use self::listen_filter::ListenFilter;
use self::subscription_tag::{subscription_meta, tag_notification};
use super::ModernRequest;
use crate::call::modern_response::server_info;
use crate::client_session::{ListChange, ListFingerprints};
use crate::event_stream::{
    self, EventBody, EventBuffer, EventSource, ReaderId, StreamDelivery, StreamGuard, StreamOpening,
};
use crate::mcp::request_body::accepts_type;
use crate::mcp::{McpCaller, error_http_response, outbox_resource, share_exceeded_response};
use crate::response_body::{self, EdgeResponse};
use crate::{Edge, announcer};

pub(crate) use self::modern_listeners::ModernListeners;

/// Maximum wait for servers to confirm resource subscriptions. Unconfirmed resources are not
/// acknowledged.
const SUBSCRIBE_WAIT: Duration = Duration::from_secs(10);

/// Number of concurrent subscribe requests.
const SUBSCRIBE_CONCURRENCY: usize = 32;

/// An open listen stream.
#[derive(Debug)]
pub(crate) struct ModernListener {
    /// Session key towards servers; ends with the stream.
    key: SessionKey,
    /// Id of the opening request, as written.
    id: Bytes,
    /// Server info of the endpoint.
    server_info: Bytes,
    principal: Arc<Principal>,
    scope: EndpointScope,
    /// Subscribed list changes; the host keeps resource subscriptions.
    filter: ListenFilter,
    /// Fingerprints known to the client; different fingerprints are announced.
    known_lists: Mutex<ListFingerprints>,
    buffer: EventBuffer,
}

/// Opens a stream; the first event acknowledges the subscriptions.
pub(super) async fn open_stream(request: ModernRequest<'_>) -> EdgeResponse {
    let caller = request.caller;
    if !accepts_type(caller.parts, "text/event-stream") {
        return response_body::empty_response(StatusCode::NOT_ACCEPTABLE);
    }
    let filter = match ListenFilter::parse(request.params()) {
        Ok(filter) => filter,
        Err(bad) => {
            let (status, text) = (StatusCode::BAD_REQUEST, bad.to_string());
            return error_http_response(status, Some(request.id()), code::INVALID_PARAMS, &text);
        }
    };
    let edge = caller.edge;
    let permit = match edge.sessions.acquire_stream(caller.principal) {
        Ok(permit) => permit,
        Err(cause) => return share_exceeded_response(Some(request.id()), cause),
    };
    edge.host.wait_settled().await;
    let own = edge.host.initialize_info(caller.principal, caller.scope);
    let declared = outbox_resource::declare_capabilities(edge, caller.scope, own.capabilities);
    let mut granted = filter.restrict_to(&declared);
    let listener = Arc::new(ModernListener {
        key: edge.sessions.new_key(),
        id: Bytes::copy_from_slice(request.id()),
        server_info: server_info(&request),
        principal: Arc::clone(caller.principal),
        scope: caller.scope.clone(),
        filter: granted.clone(),
        known_lists: Mutex::new(announcer::list_fingerprints(
            edge,
            caller.principal,
            caller.scope,
        )),
        buffer: EventBuffer::default(),
    });
    edge.sessions.listeners.insert(&listener);
    let guard = ListenerGuard {
        edge: Arc::clone(edge),
        key: listener.key,
    };
    // Changes before registration.
    listener.announce_changes(&announcer::list_fingerprints(
        edge,
        caller.principal,
        caller.scope,
    ));
    granted.resources = subscribe_all(caller, listener.key, filter.resources).await;
    let acknowledged = listener.acknowledgement(&granted);
    let reader = listener.buffer.attach_reader();
    let mut events = EventBody::new(listener, reader, None, StreamOpening::Plain);
    events.set_opening(event_stream::frame_event(None, &acknowledged));
    events.attach_guard(Box::new(permit));
    events.attach_guard(Box::new(guard));
    response_body::event_response(events)
}

/// Subscribes to resources and returns the confirmed URIs.
async fn subscribe_all(caller: McpCaller<'_>, key: SessionKey, uris: Vec<String>) -> Vec<String> {
    let mut attempts: Vec<SubscribeAttempt<'_>> = uris
        .iter()
        .map(|uri| SubscribeAttempt::Pending(Box::pin(subscribe_one(caller, key, uri))))
        .collect();
    let all = async {
        for some in attempts.chunks_mut(SUBSCRIBE_CONCURRENCY) {
            poll_fn(|cx| {
                let waits = some.iter_mut().map(|one| one.poll_pending(cx));
                // Without short-circuit, so that every attempt is polled.
                match waits.fold(false, |any, one| any | one) {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                }
            })
            .await;
        }
    };
    // Dropping a late attempt also removes its subscription.
    let _late = tokio::time::timeout(SUBSCRIBE_WAIT, all).await;
    let subscribed: Vec<bool> = attempts
        .iter()
        .map(|one| matches!(one, SubscribeAttempt::Subscribed))
        .collect();
    drop(attempts);
    let both = uris.into_iter().zip(subscribed);
    both.filter_map(|(uri, subscribed)| subscribed.then_some(uri))
        .collect()
}

/// State of a subscribe attempt.
enum SubscribeAttempt<'a> {
    Pending(Pin<Box<dyn Future<Output = bool> + Send + 'a>>),
    Subscribed,
    Refused,
}

impl SubscribeAttempt<'_> {
    fn poll_pending(&mut self, cx: &mut std::task::Context<'_>) -> bool {
        if let Self::Pending(future) = self {
            match future.as_mut().poll(cx) {
                Poll::Ready(true) => *self = Self::Subscribed,
                Poll::Ready(false) => *self = Self::Refused,
                Poll::Pending => return true,
            }
        }
        false
    }
}

/// Subscribes to a single resource; returns whether updates will arrive.
async fn subscribe_one(caller: McpCaller<'_>, key: SessionKey, uri: &str) -> bool {
    let McpCaller {
        edge,
        principal,
        scope,
        ..
    } = caller;
    if outbox_resource::is_outbox_uri(uri) {
        let outbox = edge.host.outbox();
        let subscribed = outbox.subscribe(principal, scope, key, uri).await;
        return subscribed.unwrap_or(false);
    }
    let end: Arc<dyn ClientHandle> = Arc::new(NullClient::new(key));
    let subscribed = edge.host.subscribe(principal, scope, &end, uri).await;
    if let Err(error) = &subscribed {
        tracing::debug!(%error, "resource subscription failed");
    }
    subscribed.is_ok()
}

impl ModernListener {
    /// Returns principal and scope of the stream.
    pub(crate) const fn principal_and_scope(&self) -> (&Arc<Principal>, &EndpointScope) {
        (&self.principal, &self.scope)
    }

    /// Announces changed lists, as far as subscribed.
    pub(crate) fn announce_changes(&self, lists: &ListFingerprints) {
        let mut known = lock(&self.known_lists);
        let included = ListChange::ALL
            .into_iter()
            .filter(|change| self.filter.includes(*change));
        for change in included {
            if !change.has_changed(&known, lists) {
                continue;
            }
            let mut text = Vec::new();
            write_notification(&mut text, change.method(), None);
            if !self.push_or_close(tag_notification(&text, &self.id)) {
                return;
            }
            change.copy_fingerprints(&mut known, lists);
        }
    }

    /// Forwards resource updates; drops all further notifications outside calls.
    fn forward_notification(&self, notification: &Bytes) -> bool {
        let method_name = object::text_field(notification, "method");
        if method_name.as_deref() != Some(method::RESOURCES_UPDATED) {
            return true;
        }
        self.push_or_close(tag_notification(notification, &self.id))
    }

    /// Ends the stream with the response to the opening request.
    fn finish(&self) {
        let body = MemberList::from_member("_meta", &subscription_meta(&self.id)).into_object();
        let context = ResultContext {
            server_info: Some(&self.server_info),
            hint: None,
        };
        let body = to_modern(&body, method::SUBSCRIPTIONS_LISTEN, &context);
        let mut text = Vec::new();
        write_result(&mut text, &self.id, &body);
        self.buffer.finish(text.into());
    }

    /// Pushes a message. A full buffer ends the stream without a response, like a broken
    /// connection, so that the client reconnects and lists again.
    fn push_or_close(&self, message: Bytes) -> bool {
        let is_pushed = self.buffer.push(message);
        if !is_pushed && !self.buffer.is_ended() {
            self.buffer.detach_reader();
        }
        is_pushed
    }

    fn acknowledgement(&self, granted: &ListenFilter) -> Bytes {
        let mut notifications = Vec::new();
        granted.write(&mut notifications);
        let mut params = MemberList::from_member("_meta", &subscription_meta(&self.id));
        params.push("notifications", &notifications);
        let params = params.into_object();
        let mut text = Vec::new();
        let acknowledged = method::SUBSCRIPTIONS_ACKNOWLEDGED;
        write_notification(&mut text, acknowledged, Some(&params));
        text.into()
    }
}

impl EventSource for ModernListener {
    fn buffer(&self) -> &EventBuffer {
        &self.buffer
    }

    fn reader_left(&self, reader: ReaderId, _: StreamDelivery) {
        self.buffer.release_reader(reader);
    }
}

/// Releases the resources of a stream on drop, even if the stream never started.
#[derive(Debug)]
struct ListenerGuard {
    edge: Arc<Edge>,
    key: SessionKey,
}

impl StreamGuard for ListenerGuard {}

impl Drop for ListenerGuard {
    fn drop(&mut self) {
        self.edge.sessions.listeners.remove(self.key);
        self.edge.forget_session(self.key);
    }
}
