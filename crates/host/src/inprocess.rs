//! A server that is part of this program: its tools are those of an executor, and calls of them
//! take the same road as calls of any other server.

use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use bowline_core::call::Body;
use bowline_core::caller::CallerEnd;
use bowline_core::era::Era;
use bowline_core::pending::Sent;
use bowline_link::stderr::StderrLog;
use bowline_link::{
    Answer, BoxFuture, ConnectError, Exit, Link, LinkError, LinkEvent, Request, Revision,
    ServerInfo,
};
use bowline_wire::jsonrpc::{write_error, write_result};
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use crate::broker::PeerLink;
use crate::output::ToolOutput;
use crate::ports::Clock;
use crate::spec::{InProcessSpec, Reach, ServerSpec};
use crate::supervisor::{Dial, Dialled};
use crate::tasks::Tasks;
use crate::tools::{Arguments, ExecuteContext, ExecuteError, ToolExecutor};

/// What every such server says of itself.
const INITIALIZE: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"#,
    r#""serverInfo":{"name":"in-process","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}"#,
);

/// Events that may wait to be read. None are sent yet.
const EVENTS_MAX: usize = 1;

/// Answers itself for servers that are part of this program or a peer's, and lets another reach
/// the rest.
#[derive(Debug)]
pub(crate) struct Beside {
    dial: Arc<dyn Dial>,
    clock: Arc<dyn Clock>,
    tasks: Tasks,
}

impl Beside {
    pub(crate) fn new(dial: Arc<dyn Dial>, clock: &Arc<dyn Clock>, tasks: &Tasks) -> Self {
        Self {
            dial,
            clock: Arc::clone(clock),
            tasks: tasks.clone(),
        }
    }
}

impl Dial for Beside {
    fn dial<'a>(
        &'a self,
        spec: &'a ServerSpec,
        log: &'a Arc<StderrLog>,
        owner: Option<Arc<dyn CallerEnd>>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Dialled, ConnectError>> {
        match &spec.reach {
            Reach::InProcess(inside) => Box::pin(std::future::ready(Ok(connect(inside)))),
            Reach::Peer(peer) => {
                let around = (&self.clock, &self.tasks);
                Box::pin(PeerLink::connect(&spec.name, peer, around, deadline))
            }
            Reach::Child(_) | Reach::Placed(_) | Reach::Remote(_) => {
                self.dial.dial(spec, log, owner, deadline)
            }
        }
    }

    fn recall_era(&self, spec: &ServerSpec, era: Era) {
        self.dial.recall_era(spec, era);
    }

    fn back<'a>(&'a self, spec: &'a ServerSpec) -> BoxFuture<'a, ()> {
        self.dial.back(spec)
    }

    fn is_away(&self, spec: &ServerSpec) -> bool {
        self.dial.is_away(spec)
    }
}

/// Connects to an executor, which always succeeds.
pub(crate) fn connect(spec: &InProcessSpec) -> Dialled {
    let (events, heard) = mpsc::channel(EVENTS_MAX);
    let link = InProcessLink {
        executor: Arc::clone(&spec.executor),
        in_flight: AtomicUsize::new(0),
        ended: watch::Sender::new(None),
        info: ServerInfo {
            revision: Revision::LATEST_LEGACY,
            initialize: Bytes::from_static(INITIALIZE.as_bytes()),
            name: "in-process".into(),
            version: env!("CARGO_PKG_VERSION").into(),
        },
        _events: events,
    };
    (Arc::new(link), heard)
}

/// One connection to an executor.
#[derive(Debug)]
struct InProcessLink {
    executor: Arc<dyn ToolExecutor>,
    in_flight: AtomicUsize,
    /// How it ended, once it has.
    ended: watch::Sender<Option<Exit>>,
    info: ServerInfo,
    /// Held, so that nobody takes silence for the end.
    _events: mpsc::Sender<LinkEvent>,
}

impl InProcessLink {
    async fn serve(&self, request: &Request) -> Result<Answer, LinkError> {
        match request.method.as_ref() {
            method::PING => Ok(result(request, b"{}")),
            method::TOOLS_LIST => Ok(self.list(request)),
            method::TOOLS_CALL => self.run(request).await,
            other => {
                let message = format!("`{other}` is not served in process");
                Ok(error(request, code::METHOD_NOT_FOUND, &message, None))
            }
        }
    }

    fn list(&self, request: &Request) -> Answer {
        let tools = catch_unwind(AssertUnwindSafe(|| self.executor.tools()));
        let Ok(tools) = tools else {
            return error(request, code::INTERNAL, "the executor panicked", None);
        };
        let mut page = Vec::from(&b"{\"tools\":["[..]);
        for (at, tool) in tools.iter().enumerate() {
            if at > 0 {
                page.push(b',');
            }
            page.extend_from_slice(tool.definition());
        }
        page.extend_from_slice(b"]}");
        result(request, &page)
    }

    async fn run(&self, request: &Request) -> Result<Answer, LinkError> {
        let params = request.params.clone().unwrap_or_default();
        let named = object::text(&params, "name");
        let renamed = request.rename.as_ref().map(|rename| &*rename.to);
        let Some(tool) = renamed.or(named.as_deref()) else {
            let message = "the call names no tool";
            return Ok(error(request, code::INVALID_PARAMS, message, None));
        };
        let at = object::field(&params, "arguments");
        let arguments = at.map_or_else(
            || Ok(Arguments::default()),
            |at| Arguments::parse(params.slice(at.start..at.end)),
        );
        let arguments = match arguments {
            Ok(arguments) => arguments,
            Err(bad) => {
                let message = format!("the arguments cannot be read: {bad}");
                return Ok(error(request, code::INVALID_PARAMS, &message, None));
            }
        };
        let context = ExecuteContext {
            timeout: None,
            run: None,
            caller: request.caller.clone(),
            trace: request.trace.clone(),
        };
        let outcome = contained(self.executor.as_ref(), tool, arguments, &context).await;
        Ok(match outcome {
            Some(Ok(output)) => result(request, output.raw()),
            Some(Err(failure)) => failed(request, &failure),
            None => {
                tracing::error!(tool, "a tool of this program panicked");
                let text = format!("tool `{tool}` panicked; whether it took effect is not known");
                result(request, ToolOutput::failed(&text).raw())
            }
        })
    }

    async fn ending(&self) -> Exit {
        let mut ended = self.ended.subscribe();
        // The sender is ours, so the channel cannot close under us.
        let exit = ended.wait_for(Option::is_some).await;
        exit.ok().and_then(|exit| *exit).unwrap_or(Exit::Gone)
    }
}

/// Runs a tool; nothing where it panicked, which ends the call and nothing else.
pub(crate) async fn contained(
    executor: &dyn ToolExecutor,
    tool: &str,
    arguments: Arguments,
    context: &ExecuteContext,
) -> Option<Result<ToolOutput, ExecuteError>> {
    let begin = || executor.execute(tool, arguments, context);
    let mut running = catch_unwind(AssertUnwindSafe(begin)).ok()?;
    poll_fn(|wake| {
        let step = || running.as_mut().poll(wake);
        match catch_unwind(AssertUnwindSafe(step)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(outcome)) => Poll::Ready(Some(outcome)),
            Err(_panic) => Poll::Ready(None),
        }
    })
    .await
}

impl Link for InProcessLink {
    fn request(&self, request: Request) -> BoxFuture<'_, Result<Answer, LinkError>> {
        Box::pin(async move {
            if let Some(exit) = *self.ended.borrow() {
                return Err(LinkError::Closed(exit));
            }
            let _waiting = Waiting::new(&self.in_flight);
            let served = async {
                tokio::select! {
                    biased;
                    exit = self.ending() => Err(LinkError::Lost(exit)),
                    answer = self.serve(&request) => answer,
                }
            };
            let answer = timeout_at(request.deadline, served).await;
            answer.unwrap_or(Err(LinkError::Timeout {
                sent: Sent::Perhaps,
            }))
        })
    }

    /// There is nobody to tell: a call that is taken back is dropped.
    fn notify(&self, _method: &str, _params: Option<&[u8]>) -> Result<(), LinkError> {
        match *self.ended.borrow() {
            Some(exit) => Err(LinkError::Closed(exit)),
            None => Ok(()),
        }
    }

    fn is_open(&self) -> bool {
        self.ended.borrow().is_none()
    }

    fn closed(&self) -> BoxFuture<'_, Exit> {
        Box::pin(self.ending())
    }

    fn close(&self) -> BoxFuture<'_, Exit> {
        self.ended.send_replace(Some(Exit::Stopping));
        Box::pin(self.ending())
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

/// One request that waits for its answer, counted until dropped.
pub(crate) struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    pub(crate) fn new(in_flight: &'a AtomicUsize) -> Self {
        in_flight.fetch_add(1, Ordering::Relaxed);
        Self(in_flight)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers with an error that says what is known about the execution.
fn failed(request: &Request, failure: &ExecuteError) -> Answer {
    let code = match failure {
        ExecuteError::UnknownTool { .. }
        | ExecuteError::AmbiguousTool { .. }
        | ExecuteError::Arguments { .. } => code::INVALID_PARAMS,
        ExecuteError::Call(_) | ExecuteError::Failed { .. } => code::INTERNAL,
    };
    let data = format!("{{\"execution\":\"{}\"}}", failure.execution().as_str());
    error(request, code, &failure.to_string(), Some(data.as_bytes()))
}

pub(crate) fn result(request: &Request, body: &[u8]) -> Answer {
    let mut bytes = Vec::new();
    write_result(&mut bytes, &request.reply_id, body);
    // The result stands last, before the brace that ends the message.
    let end = bytes.len().saturating_sub(1);
    Answer {
        body: Body::Result,
        body_at: end.saturating_sub(body.len())..end,
        bytes: bytes.into(),
        era: Era::Legacy,
    }
}

pub(crate) fn error(request: &Request, code: i64, message: &str, data: Option<&[u8]>) -> Answer {
    let mut bytes = Vec::new();
    write_error(&mut bytes, Some(&request.reply_id), code, message, data);
    let at = object::field(&bytes, "error");
    Answer {
        body: Body::Error,
        body_at: at.map_or(0..0, |at| at.start..at.end),
        bytes: bytes.into(),
        era: Era::Legacy,
    }
}

impl fmt::Debug for InProcessSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcessSpec").finish_non_exhaustive()
    }
}
