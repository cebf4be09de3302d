//! A server that a peer has, as one more link: supervised, listed and called like any other.
//!
//! The link is over when the connection is: then the server is shown as away, its menu as last
//! known, and calls wait for the next link. Requests that it has are not: whoever carries them
//! knows whether they survive a lost connection.

mod ear;
pub(super) mod menu;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bowline_core::call::Body;
use bowline_core::era::Era;
use bowline_core::error::Execution;
use bowline_core::mailbox::HUB;
use bowline_core::pending::Sent;
use bowline_core::time::Now;
use bowline_link::{
    Answer, BoxFuture, ConnectError, Exit, Link, LinkError, LinkEvent, Request, Revision,
    ServerInfo,
};
use bowline_wire::broker::{self, Arguments, Ask, From};
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bowline_wire::span::Span;
use bowline_wire::splice::{replace, write_string};
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use self::ear::Ear;
use self::menu::Menu;
use crate::broker::{Errand, ErrandError, Manifest, Remote};
use crate::inprocess::{Waiting, error, result};
use crate::ports::Clock;
use crate::spec::{PeerSpec, Side};
use crate::supervisor::Dialled;
use crate::tasks::Tasks;

/// What every server of a peer says of itself: tools are what travels.
const INITIALIZE: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"#,
    r#""serverInfo":{"name":"peer","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}"#,
);

/// Events that may wait to be read: all say that the tools changed, so one says it for all.
const EVENTS_MAX: usize = 1;

/// A link to one server of a peer.
#[derive(Debug)]
pub(crate) struct PeerLink {
    remote: Arc<dyn Remote>,
    side: Side,
    clock: Arc<dyn Clock>,
    /// The tools of the server, and which of them may run twice.
    menu: Menu,
    in_flight: AtomicUsize,
    /// How it ended, once it has. [`Exit::Stopping`] ends its requests as well.
    over: watch::Sender<Option<Exit>>,
    info: ServerInfo,
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
        let link = Arc::new(Self {
            remote: Arc::clone(remote),
            side: spec.side,
            clock: Arc::clone(clock),
            menu: Menu::new(&spec.server, &manifest),
            in_flight: AtomicUsize::new(0),
            over: watch::Sender::new(None),
            info: ServerInfo {
                revision: Revision::LATEST_LEGACY,
                initialize: Bytes::from_static(INITIALIZE.as_bytes()),
                name: Arc::clone(&spec.server),
                version: Arc::default(),
            },
        });
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
            method::TOOLS_LIST => {
                self.menu.refresh(&self.remote.manifest());
                Ok(result(&request, &self.menu.page()))
            }
            method::TOOLS_CALL => self.call(request).await,
            other => {
                let message = format!("`{other}` does not go to a peer");
                Ok(error(&request, code::METHOD_NOT_FOUND, &message, None))
            }
        }
    }

    async fn call(&self, request: Request) -> Result<Answer, LinkError> {
        let params = renamed(&request);
        let Some(tool) = object::text(&params, "name").map(Arc::<str>::from) else {
            let message = "the call names no tool";
            return Ok(error(&request, code::INVALID_PARAMS, message, None));
        };
        self.menu.refresh(&self.remote.manifest());
        let Some(repeatable) = self.menu.repeatable(&tool) else {
            let message = format!("Unknown tool: {tool}");
            return Ok(error(&request, code::INVALID_PARAMS, &message, None));
        };
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
            ask: Ask::Call {
                tool,
                server: Some(Arc::clone(self.menu.server())),
                arguments: Arguments::Params(params),
            },
            stored: !repeatable,
            deadline: self.moment(request.deadline),
            caller,
            sink,
        };
        match self.remote.ask(errand).await {
            Ok(answer) => answered(&request, answer),
            Err(error) => Err(self.failed(error)),
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

/// Tells the supervisor that the tools changed, and ends the link with its connection.
struct Following {
    link: Weak<PeerLink>,
    changes: watch::Receiver<u64>,
    over: watch::Receiver<Option<Exit>>,
    events: mpsc::Sender<LinkEvent>,
}

impl Following {
    async fn run(mut self, mut told: Arc<Manifest>) {
        loop {
            if !self.look(&mut told) {
                return;
            }
            tokio::select! {
                changed = self.changes.changed() => if changed.is_err() {
                    // Nobody will tell any more: the peer is gone for good.
                    if let Some(link) = self.link.upgrade() {
                        link.end(Exit::Gone);
                    }
                    return;
                },
                _ = self.over.wait_for(Option::is_some) => return,
            }
        }
    }

    /// Whether there is more to follow.
    fn look(&self, told: &mut Arc<Manifest>) -> bool {
        let Some(link) = self.link.upgrade() else {
            return false;
        };
        if !link.remote.is_connected() {
            link.end(Exit::Gone);
            return false;
        }
        let now = link.remote.manifest();
        if !link.menu.is_same(told, &now) {
            // Where there is no room, the same waits to be read.
            let _full = self.events.try_send(LinkEvent::ToolsChanged);
        }
        *told = now;
        true
    }
}

/// Returns the parameters with the name that the peer's server knows.
fn renamed(request: &Request) -> Bytes {
    let params = request.params.clone().unwrap_or_default();
    let Some(rename) = &request.rename else {
        return params;
    };
    let mut name = Vec::with_capacity(rename.to.len() + 2);
    write_string(&mut name, &rename.to);
    let at = Span {
        start: rename.at.start,
        end: rename.at.end,
    };
    replace(&params, at, &name).into()
}

fn answered(request: &Request, answer: broker::Answer) -> Result<Answer, LinkError> {
    match answer {
        broker::Answer::Output { result: body, .. } => Ok(result(request, &body)),
        broker::Answer::Rpc { error } => Ok(refused(request, &error)),
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

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn server(&self) -> &ServerInfo {
        &self.info
    }
}
