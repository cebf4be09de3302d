//! `subscriptions/listen`: a stream of what changes, for a caller that has no session.

mod filter;
mod table;
mod tag;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use bowline_core::call::{Principal, Scope};
use bowline_core::caller::{CallerEnd, Deaf, SessionKey};
use bowline_core::sync::lock;
use bowline_wire::era::result::{Completing, to_modern};
use bowline_wire::jsonrpc::{write_notification, write_result};
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bytes::Bytes;
use http::StatusCode;

use self::filter::Filter;
use self::tag::{mark, tagged};
use super::read::Asked;
use super::result::server_info;
use crate::edge::body::{self, Answer};
use crate::edge::mcp::read::accepts;
use crate::edge::mcp::{Caller, failure, outbox, over_share};
use crate::edge::session::{Lists, News};
use crate::edge::stream::{self, EventBody, Guard, Line, Opening, Reader, Source, Told};
use crate::edge::{Edge, announce};

pub(in crate::edge) use self::table::Listeners;

/// How long servers may take to say whether they tell of a resource. What is not known by then
/// is not promised.
const SUBSCRIBE_WAIT: Duration = Duration::from_secs(10);

/// Resources that are asked for at once.
const SUBSCRIBE_AT_ONCE: usize = 32;

/// One open stream.
#[derive(Debug)]
pub(in crate::edge) struct Listener {
    /// What servers know it by: a session of its own, which ends with the stream.
    key: SessionKey,
    /// The id of the request that opened it, as it was written.
    id: Bytes,
    /// Who answers at its endpoint.
    info: Bytes,
    principal: Arc<Principal>,
    scope: Scope,
    /// What it is told of; resources are remembered by the host.
    lists: Filter,
    /// The lists that its caller knows; different ones are news.
    known: Mutex<Lists>,
    line: Line,
}

/// Opens a stream, which begins with what it will tell of.
pub(super) async fn open(asked: Asked<'_>) -> Answer {
    let caller = asked.caller;
    if !accepts(caller.parts, "text/event-stream") {
        return body::empty(StatusCode::NOT_ACCEPTABLE);
    }
    let filter = match Filter::read(asked.params()) {
        Ok(filter) => filter,
        Err(bad) => {
            let (status, text) = (StatusCode::BAD_REQUEST, bad.to_string());
            return failure(status, Some(asked.id()), code::INVALID_PARAMS, &text);
        }
    };
    let edge = caller.edge;
    let seat = match edge.sessions.seat(caller.principal) {
        Ok(seat) => seat,
        Err(cause) => return over_share(Some(asked.id()), cause),
    };
    edge.host.settled().await;
    let own = edge.host.introduction(caller.principal, caller.scope);
    let declared = outbox::declare(edge, caller.scope, own.capabilities);
    let mut told = filter.offered(&declared);
    let listener = Arc::new(Listener {
        key: edge.sessions.new_key(),
        id: Bytes::copy_from_slice(asked.id()),
        info: server_info(&asked),
        principal: Arc::clone(caller.principal),
        scope: caller.scope.clone(),
        lists: told.clone(),
        known: Mutex::new(announce::lists(edge, caller.principal, caller.scope)),
        line: Line::default(),
    });
    edge.sessions.listeners.add(&listener);
    let leaving = Leaving {
        edge: Arc::clone(edge),
        key: listener.key,
    };
    // What changed before it was known to listen.
    listener.announce(&announce::lists(edge, caller.principal, caller.scope));
    told.resources = subscribed(caller, listener.key, filter.resources).await;
    let acknowledged = listener.acknowledged(&told);
    let reader = listener.line.read();
    let mut events = EventBody::new(listener, reader, None, Opening::Plain);
    events.begin_with(stream::frame(None, &acknowledged));
    events.keep(Box::new(seat));
    events.keep(Box::new(leaving));
    body::events(events)
}

/// Returns those resources of which the stream will hear.
async fn subscribed(caller: Caller<'_>, key: SessionKey, uris: Vec<String>) -> Vec<String> {
    let mut wanted: Vec<Wanted<'_>> = uris
        .iter()
        .map(|uri| Wanted::Asking(Box::pin(subscribe(caller, key, uri))))
        .collect();
    let all = async {
        for some in wanted.chunks_mut(SUBSCRIBE_AT_ONCE) {
            poll_fn(|cx| {
                let waits = some.iter_mut().map(|one| one.waits(cx));
                // Every one is polled.
                match waits.fold(false, |any, one| any | one) {
                    true => Poll::Pending,
                    false => Poll::Ready(()),
                }
            })
            .await;
        }
    };
    // Those that take longer are given up with their futures, and so is what they noted.
    let _late = tokio::time::timeout(SUBSCRIBE_WAIT, all).await;
    let taken: Vec<bool> = wanted
        .iter()
        .map(|one| matches!(one, Wanted::Taken))
        .collect();
    drop(wanted);
    let both = uris.into_iter().zip(taken);
    both.filter_map(|(uri, taken)| taken.then_some(uri))
        .collect()
}

/// How it stands with one resource.
enum Wanted<'a> {
    Asking(Pin<Box<dyn Future<Output = bool> + Send + 'a>>),
    Taken,
    Refused,
}

impl Wanted<'_> {
    fn waits(&mut self, cx: &mut std::task::Context<'_>) -> bool {
        if let Self::Asking(asking) = self {
            match asking.as_mut().poll(cx) {
                Poll::Ready(true) => *self = Self::Taken,
                Poll::Ready(false) => *self = Self::Refused,
                Poll::Pending => return true,
            }
        }
        false
    }
}

/// Asks for news of one resource; whether they will come.
async fn subscribe(caller: Caller<'_>, key: SessionKey, uri: &str) -> bool {
    let Caller {
        edge,
        principal,
        scope,
        ..
    } = caller;
    if outbox::is_ours(uri) {
        let outbox = edge.host.outbox();
        let taken = outbox.subscribe((principal, scope), key, uri).await;
        return taken.unwrap_or(false);
    }
    let end: Arc<dyn CallerEnd> = Arc::new(Deaf::new(key));
    let taken = edge.host.subscribe(principal, scope, &end, uri).await;
    if let Err(error) = &taken {
        tracing::debug!(%error, "a resource is not told of");
    }
    taken.is_ok()
}

impl Listener {
    /// Returns whose stream it is, and at which endpoint.
    pub(in crate::edge) const fn asker(&self) -> (&Arc<Principal>, &Scope) {
        (&self.principal, &self.scope)
    }

    /// Tells which of these lists are news, where they are wanted.
    pub(in crate::edge) fn announce(&self, lists: &Lists) {
        let mut known = lock(&self.known);
        let wanted = News::ALL.into_iter().filter(|news| self.lists.has(*news));
        for news in wanted {
            if !news.differs(&known, lists) {
                continue;
            }
            let mut text = Vec::new();
            write_notification(&mut text, news.method(), None);
            if !self.say(tagged(&text, &self.id)) {
                return;
            }
            news.learn(&mut known, lists);
        }
    }

    /// Hears what a server says outside calls: news of resources, and nothing else.
    fn tell(&self, notification: &Bytes) -> bool {
        let said = object::text(notification, "method");
        if said.as_deref() != Some(method::RESOURCES_UPDATED) {
            return true;
        }
        self.say(tagged(notification, &self.id))
    }

    /// Ends the stream in order: the request that opened it is answered.
    fn finish(&self) {
        let body = [b"{\"_meta\":{", &*mark(&self.id), b"}}"].concat();
        let known = Completing {
            server_info: Some(&self.info),
            hint: None,
        };
        let body = to_modern(&body, method::SUBSCRIPTIONS_LISTEN, &known);
        let mut text = Vec::new();
        write_result(&mut text, &self.id, &body);
        self.line.finish(text.into());
    }

    /// A caller so far behind that there is no room had better come back and list anew: the
    /// stream ends without an answer, as one that broke.
    fn say(&self, message: Bytes) -> bool {
        let said = self.line.push(message);
        if !said && !self.line.is_ended() {
            self.line.interrupt();
        }
        said
    }

    fn acknowledged(&self, told: &Filter) -> Bytes {
        let mut params = [b"{\"_meta\":{", &*mark(&self.id), b"},\"notifications\":"].concat();
        told.write(&mut params);
        params.push(b'}');
        let mut text = Vec::new();
        let acknowledged = method::SUBSCRIPTIONS_ACKNOWLEDGED;
        write_notification(&mut text, acknowledged, Some(&params));
        text.into()
    }
}

impl Source for Listener {
    fn line(&self) -> &Line {
        &self.line
    }

    fn left(&self, reader: Reader, _: Told) {
        self.line.leave(reader);
    }
}

/// Frees what is held for a stream when it is over, also when it never began.
#[derive(Debug)]
struct Leaving {
    edge: Arc<Edge>,
    key: SessionKey,
}

impl Guard for Leaving {}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.edge.sessions.listeners.remove(self.key);
        self.edge.forget(self.key);
    }
}
