//! A server that a peer has, as one more link: supervised, listed and called like any other.
//!
//! The link is over when the connection is: then the server is shown as away, its menu as last
//! known, and calls wait for the next link. Requests that it has are not: whoever carries them
//! knows whether they survive a lost connection.

mod acquainted;
mod ear;
mod following;
mod introduced;
pub(super) mod menu;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bowline_core::call::Body;
use bowline_core::caller::SessionKey;
use bowline_core::era::Era;
use bowline_core::error::Execution;
use bowline_core::mailbox::HUB;
use bowline_core::pending::Sent;
use bowline_core::sync::lock;
use bowline_core::time::Now;
use bowline_link::{
    Answer, BoxFuture, ConnectError, Exit, Link, LinkError, LinkEvent, Request, ServerInfo,
};
use bowline_wire::broker::{self, Arguments, Ask, Context, From, SessionEvent, Told};
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bowline_wire::span::Span;
use bowline_wire::splice::{replace, write_string};
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use self::ear::Ear;
use self::following::{Following, ware};
use self::introduced::{introduced, of_tools};
use self::menu::Menu;
use crate::broker::{Errand, ErrandError, Hears, Remote};
use crate::inprocess::{Waiting, error, result};
use crate::ports::Clock;
use crate::spec::{PeerSpec, Side};
use crate::supervisor::Dialled;
use crate::tasks::Tasks;

pub(crate) use acquainted::Acquainted;

/// Events that may wait to be read. Changes of lists wait beside them, all others are dropped.
const EVENTS_MAX: usize = 64;

/// A link to one server of a peer.
#[derive(Debug)]
pub(crate) struct PeerLink {
    remote: Arc<dyn Remote>,
    side: Side,
    clock: Arc<dyn Clock>,
    /// The tools of the server, and which of them may run twice.
    menu: Menu,
    /// Whether the peer takes every request for the server, and brings back what it asks.
    is_whole: bool,
    /// Of which resources of a server of the modern era the peer was told that news are wanted.
    listening: Mutex<BTreeSet<Arc<str>>>,
    /// The sessions that the peer knows.
    acquainted: Arc<Acquainted>,
    events: mpsc::Sender<LinkEvent>,
    in_flight: AtomicUsize,
    /// How it ended, once it has. [`Exit::Stopping`] ends its requests as well.
    over: watch::Sender<Option<Exit>>,
    info: ServerInfo,
}

/// Says to which run and trace a request belongs, and nothing else of it.
fn belonging(request: &Request) -> Context {
    let whom = request.on_behalf.as_deref();
    Context {
        run: whom.and_then(|whom| whom.run.clone()),
        trace: request.trace.as_deref().cloned().map(Box::new),
        ..Context::default()
    }
}

/// Says that a peer is away.
pub(crate) fn away(server: &Arc<str>, peer: &PeerSpec) -> ConnectError {
    ConnectError::Refused {
        server: Arc::clone(server),
        source: LinkError::Unreachable(format!("{} is away", peer.shown()).into()),
    }
}

impl PeerLink {
    /// Waits for the peer, where it was there a moment ago, and takes its server as it is told.
    pub(crate) async fn connect(
        name: &Arc<str>,
        spec: &PeerSpec,
        (clock, tasks): (&Arc<dyn Clock>, &Tasks),
        deadline: Instant,
    ) -> Result<Dialled, ConnectError> {
        let remote = &spec.remote;
        let mut changes = remote.changes();
        if !remote.is_connected() {
            let met = async { while !remote.is_connected() && changes.changed().await.is_ok() {} };
            if spec.take_patience() {
                let _late = timeout_at(deadline, met).await;
            }
        }
        if !remote.is_connected() {
            return Err(away(name, spec));
        }
        spec.met();
        let (events, heard) = mpsc::channel(EVENTS_MAX);
        let manifest = remote.manifest();
        let whole = ware(&manifest, &spec.server);
        let link = Arc::new(Self {
            remote: Arc::clone(remote),
            side: spec.side,
            clock: Arc::clone(clock),
            menu: Menu::new(&spec.server, &manifest),
            is_whole: whole.is_some(),
            listening: Mutex::default(),
            acquainted: Arc::clone(&spec.acquainted),
            events: events.clone(),
            in_flight: AtomicUsize::new(0),
            over: watch::Sender::new(None),
            info: whole.map_or_else(|| of_tools(&spec.server), introduced),
        });
        let ear: Weak<dyn Hears> = Arc::downgrade(&(Arc::clone(&link) as Arc<dyn Hears>));
        remote.hear(&spec.server, ear);
        let over = link.over.subscribe();
        let following = Following {
            link: Arc::downgrade(&link),
            changes,
            over,
            events,
        };
        tasks.spawn("peer link", following.run(manifest));
        Ok((link, heard))
    }

    async fn serve(&self, request: Request) -> Result<Answer, LinkError> {
        match request.method.as_ref() {
            method::PING => Ok(result(&request, b"{}")),
            method::TOOLS_LIST if !self.is_whole => {
                self.menu.refresh(&self.remote.manifest());
                Ok(result(&request, &self.menu.page()))
            }
            method::TOOLS_CALL => self.call(request).await,
            _ if self.is_whole => self.pass(request).await,
            other => {
                let message = format!("`{other}` does not go to a peer");
                Ok(error(&request, code::METHOD_NOT_FOUND, &message, None))
            }
        }
    }

    async fn call(&self, request: Request) -> Result<Answer, LinkError> {
        let params = renamed(&request).unwrap_or_default();
        let Some(tool) = object::text(&params, "name").map(Arc::<str>::from) else {
            let message = "the call names no tool";
            return Ok(error(&request, code::INVALID_PARAMS, message, None));
        };
        self.menu.refresh(&self.remote.manifest());
        let Some(repeatable) = self.menu.repeatable(&tool) else {
            let message = format!("Unknown tool: {tool}");
            return Ok(error(&request, code::INVALID_PARAMS, &message, None));
        };
        let context = match self.is_whole {
            true => self.context(&request),
            false => belonging(&request),
        };
        let arguments = match self.is_whole || !context.is_empty() {
            true => Arguments::Told(Box::new(Told { params, context })),
            false => Arguments::Params(params),
        };
        let ask = Ask::Call {
            tool,
            server: Some(Arc::clone(self.menu.server())),
            arguments,
        };
        let stored = !repeatable;
        self.run(request, ask, stored).await
    }

    /// Passes on a request that is no call of a tool: live, so that it may be lost.
    async fn pass(&self, request: Request) -> Result<Answer, LinkError> {
        let lists_tools = request.method == method::TOOLS_LIST;
        let ask = Ask::Mcp {
            server: Arc::clone(self.menu.server()),
            method: request.method.as_ref().into(),
            params: renamed(&request),
            context: self.context(&request),
        };
        let answer = self.run(request, ask, false).await?;
        if lists_tools && answer.body == Body::Result {
            self.menu.listed(answer.body_bytes());
        }
        Ok(answer)
    }

    async fn run(&self, request: Request, ask: Ask, stored: bool) -> Result<Answer, LinkError> {
        let caller = match (self.side, &request.on_behalf) {
            (Side::Worker, Some(whom)) => Some(From {
                session_id: HUB.into(),
                role: whom.role.clone(),
                principal: Some(Arc::clone(&whom.principal)),
            }),
            (Side::Worker, None) | (Side::Hub, _) => None,
        };
        let sink = request.caller.as_ref().map(|caller| {
            let token = request.progress_at.clone();
            let token =
                token.and_then(|at| request.params.as_ref()?.get(at).map(Bytes::copy_from_slice));
            Ear::over(caller, token)
        });
        let errand = Errand {
            ask,
            stored,
            deadline: self.moment(request.deadline),
            caller,
            sink,
        };
        match self.remote.ask(errand).await {
            Ok(answer) => answered(&request, answer),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Says who asks, as far as a server may know it.
    fn context(&self, request: &Request) -> Context {
        let context = Context {
            era: request.era,
            ..belonging(request)
        };
        match &request.caller {
            None => context,
            Some(caller) => Context {
                session: self.acquainted.introduce(caller.session()),
                abilities: caller.abilities(),
                level: caller.level(),
                ..context
            },
        }
    }

    /// Says that news of a resource are wanted, or not any more; `false` where that is refused.
    async fn subscribe(
        &self,
        method: &'static str,
        uri: &str,
        deadline: Instant,
    ) -> Result<bool, LinkError> {
        let mut params = Vec::from(&b"{\"uri\":"[..]);
        write_string(&mut params, uri);
        params.push(b'}');
        let request = Request::own(method, Some(params.into()), deadline);
        let answer = Link::request(self, request).await?;
        Ok(answer.body == Body::Result)
    }

    /// Says whether a resource was taken; nothing where the peer did not say. That costs no other
    /// resource anything while the link is open, and is said again with the next change.
    fn said(&self, uri: &str, told: Result<bool, LinkError>) -> Result<Option<bool>, LinkError> {
        match told {
            Ok(taken) => Ok(Some(taken)),
            Err(error) if self.closed_as().is_none() => {
                tracing::warn!(server = %self.menu.server(), uri, %error, "was not taken");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Puts what became of an errand into the terms of links.
    fn failed(&self, error: ErrandError) -> LinkError {
        match error {
            ErrandError::NotSent(reason) => {
                if self.remote.is_connected() {
                    return LinkError::Unreachable(reason);
                }
                self.end(Exit::Gone);
                LinkError::Closed(Exit::Gone)
            }
            ErrandError::Lost(_) => {
                // Whatever is connected now is another connection.
                self.end(Exit::Gone);
                LinkError::Lost(Exit::Gone)
            }
            ErrandError::Timeout(execution) => LinkError::Timeout {
                sent: match execution {
                    Execution::NotStarted => Sent::No,
                    Execution::Unknown | Execution::Completed => Sent::Perhaps,
                },
            },
            ErrandError::Refused(failure) => LinkError::Elsewhere(Arc::new(failure)),
        }
    }

    /// Returns a deadline as peers count.
    fn moment(&self, deadline: Instant) -> Now {
        let now = self.clock.now();
        now.plus(deadline.saturating_duration_since(self.clock.instant(now)))
    }

    fn end(&self, how: Exit) {
        self.over.send_if_modified(|over| {
            // A stop ends the requests of a link that is over already.
            let is_news = over.is_none() || (how == Exit::Stopping && *over != Some(how));
            if is_news {
                *over = Some(how);
            }
            is_news
        });
    }

    async fn until(&self, is_it: impl Fn(Exit) -> bool) -> Exit {
        let mut over = self.over.subscribe();
        // The sender is ours, so the channel cannot close under us.
        let exit = over.wait_for(|over| over.is_some_and(&is_it)).await;
        exit.ok().and_then(|exit| *exit).unwrap_or(Exit::Gone)
    }

    fn closed_as(&self) -> Option<Exit> {
        if let Some(exit) = *self.over.borrow() {
            return Some(exit);
        }
        (!self.remote.is_connected()).then_some(Exit::Gone)
    }
}

/// Returns the parameters with the name that the peer's server knows.
fn renamed(request: &Request) -> Option<Bytes> {
    let params = request.params.clone()?;
    let Some(rename) = &request.rename else {
        return Some(params);
    };
    let mut name = Vec::with_capacity(rename.to.len() + 2);
    write_string(&mut name, &rename.to);
    let at = Span {
        start: rename.at.start,
        end: rename.at.end,
    };
    Some(replace(&params, at, &name).into())
}

fn answered(request: &Request, answer: broker::Answer) -> Result<Answer, LinkError> {
    match answer {
        broker::Answer::Output {
            result: body, era, ..
        } => Ok(Answer {
            era,
            ..result(request, &body)
        }),
        broker::Answer::Rpc { error, era } => Ok(Answer {
            era,
            ..refused(request, &error)
        }),
        broker::Answer::Failed(failure) => Err(LinkError::Elsewhere(Arc::new(failure))),
        broker::Answer::Manifest { .. } => Err(LinkError::BadAnswer(
            "it lists tools in place of a result".into(),
        )),
    }
}

/// The error of a server under the caller's id, every byte of it kept.
fn refused(request: &Request, error: &[u8]) -> Answer {
    let mut bytes = Vec::from(&b"{\"jsonrpc\":\"2.0\",\"id\":"[..]);
    bytes.extend_from_slice(&request.reply_id);
    bytes.extend_from_slice(b",\"error\":");
    let start = bytes.len();
    bytes.extend_from_slice(error);
    let end = bytes.len();
    bytes.push(b'}');
    Answer {
        body: Body::Error,
        body_at: start..end,
        bytes: bytes.into(),
        era: Era::Legacy,
    }
}

impl Link for PeerLink {
    fn request(&self, request: Request) -> BoxFuture<'_, Result<Answer, LinkError>> {
        Box::pin(async move {
            if let Some(exit) = self.closed_as() {
                return Err(LinkError::Closed(exit));
            }
            let _waiting = Waiting::new(&self.in_flight);
            tokio::select! {
                biased;
                answer = self.serve(request) => answer,
                exit = self.until(|exit| exit == Exit::Stopping) => Err(LinkError::Lost(exit)),
            }
        })
    }

    /// A call that is taken back is dropped, and its carrier tells the peer.
    fn notify(&self, _method: &str, _params: Option<&[u8]>) -> Result<(), LinkError> {
        self.closed_as()
            .map_or(Ok(()), |exit| Err(LinkError::Closed(exit)))
    }

    fn is_open(&self) -> bool {
        self.closed_as().is_none()
    }

    fn closed(&self) -> BoxFuture<'_, Exit> {
        Box::pin(self.until(|_| true))
    }

    fn close(&self) -> BoxFuture<'_, Exit> {
        self.end(Exit::Stopping);
        Box::pin(self.until(|_| true))
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    /// The peer is told by requests, in whichever era its server speaks.
    fn listen_to(
        &self,
        uris: Vec<Arc<str>>,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<Arc<str>>, LinkError>> {
        Box::pin(async move {
            let wanted: BTreeSet<_> = uris.into_iter().collect();
            let known = lock(&self.listening).clone();
            for uri in known.difference(&wanted) {
                let told = self.subscribe(method::RESOURCES_UNSUBSCRIBE, uri, deadline);
                if self.said(uri, told.await)?.is_some() {
                    lock(&self.listening).remove(uri);
                }
            }
            for uri in wanted.difference(&known) {
                let told = self.subscribe(method::RESOURCES_SUBSCRIBE, uri, deadline);
                if self.said(uri, told.await)? == Some(true) {
                    lock(&self.listening).insert(Arc::clone(uri));
                }
            }
            let now = lock(&self.listening).iter().cloned().collect();
            Ok(now)
        })
    }

    fn session_ended(&self, session: SessionKey) {
        if let Some(name) = self.acquainted.part(session) {
            let server = self.menu.server();
            self.remote.session(server, name, SessionEvent::Ended);
        }
    }

    fn roots_changed(&self, session: SessionKey) {
        if let Some(name) = self.acquainted.known(session) {
            let server = self.menu.server();
            self.remote
                .session(server, name, SessionEvent::RootsChanged);
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn server(&self) -> &ServerInfo {
        &self.info
    }
}
