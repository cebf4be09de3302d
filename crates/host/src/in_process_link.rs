//! In-process servers: the tools of a [`ToolExecutor`], called through the same stages as any
//! server.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bowline_core::BoxFuture;
use bowline_core::call::ServerResponse;
use bowline_core::client_handle::ClientHandle;
use bowline_core::era::Era;
use bowline_core::pending_table::SendState;
use bowline_link::stderr::StderrLog;
use bowline_link::{
    InFlightGuard, Link, LinkConnectError, LinkError, LinkEvent, LinkExit, LinkRequest, Revision,
    ServerInfo,
};
use bowline_runtime::{Clock, TaskTracker};
use bowline_tools::{
    ExecuteContext, ExecuteError, ToolArguments, ToolExecutor, ToolOutput, execute_caught,
};
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use crate::dial::MissingFeature;
use crate::spec::{InProcessSpec, ServerSpec, ServerTransport};
use crate::supervisor::{Dial, DialedLink};

/// `initialize` result of every in-process server.
const INITIALIZE: &str = concat!(
    r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"#,
    r#""serverInfo":{"name":"in-process","version":""#,
    env!("CARGO_PKG_VERSION"),
    r#""}}"#,
);

/// Capacity of the event channel. No events are sent yet.
const EVENTS_MAX: usize = 1;

/// Connects in-process and peer servers itself, and delegates the rest.
#[derive(Debug)]
pub(crate) struct DialRouter {
    dial: Arc<dyn Dial>,
    clock: Arc<dyn Clock>,
    tasks: TaskTracker,
}

impl DialRouter {
    pub(crate) fn new(dial: Arc<dyn Dial>, clock: &Arc<dyn Clock>, tasks: &TaskTracker) -> Self {
        Self {
            dial,
            clock: Arc::clone(clock),
            tasks: tasks.clone(),
        }
    }
}

impl Dial for DialRouter {
    fn dial<'a>(
        &'a self,
        spec: &'a ServerSpec,
        log: &'a Arc<StderrLog>,
        owner: Option<Arc<dyn ClientHandle>>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<DialedLink, LinkConnectError>> {
        match &spec.transport {
            ServerTransport::InProcess(inside) => {
                Box::pin(std::future::ready(Ok(connect_in_process(inside))))
            }
            ServerTransport::Peer(peer) => {
                let (clock, tasks) = (&self.clock, &self.tasks);
                peer.connector.connect(&spec.name, clock, tasks, deadline)
            }
            ServerTransport::Child(_)
            | ServerTransport::Executor(_)
            | ServerTransport::Remote(_) => self.dial.dial(spec, log, owner, deadline),
        }
    }

    fn check_transport(&self, spec: &ServerSpec) -> Result<(), MissingFeature> {
        self.dial.check_transport(spec)
    }

    fn restore_era(&self, spec: &ServerSpec, era: Era) {
        self.dial.restore_era(spec, era);
    }

    fn wait_reachable<'a>(&'a self, spec: &'a ServerSpec) -> BoxFuture<'a, ()> {
        self.dial.wait_reachable(spec)
    }

    fn is_unreachable(&self, spec: &ServerSpec) -> bool {
        self.dial.is_unreachable(spec)
    }
}

/// Connects to an executor; always succeeds.
pub(crate) fn connect_in_process(spec: &InProcessSpec) -> DialedLink {
    let (events, receiver) = mpsc::channel(EVENTS_MAX);
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
    (Arc::new(link), receiver)
}

/// A connection to an executor.
#[derive(Debug)]
struct InProcessLink {
    executor: Arc<dyn ToolExecutor>,
    in_flight: AtomicUsize,
    /// The exit, once ended.
    ended: watch::Sender<Option<LinkExit>>,
    info: ServerInfo,
    /// Kept open, so that a silent channel is not taken for the end.
    _events: mpsc::Sender<LinkEvent>,
}

impl InProcessLink {
    async fn handle_request(&self, request: &LinkRequest) -> Result<ServerResponse, LinkError> {
        match request.method.as_ref() {
            method::PING => Ok(request.result_response(b"{}")),
            method::TOOLS_LIST => Ok(self.list_tools(request)),
            method::TOOLS_CALL => self.call_tool(request).await,
            other => {
                let message = format!("`{other}` is not served in process");
                Ok(request.error_response(code::METHOD_NOT_FOUND, &message, None))
            }
        }
    }

    fn list_tools(&self, request: &LinkRequest) -> ServerResponse {
        let tools = catch_unwind(AssertUnwindSafe(|| self.executor.list_tools()));
        let Ok(tools) = tools else {
            return request.error_response(code::INTERNAL, "the executor panicked", None);
        };
        let mut page = Vec::from(&b"{\"tools\":["[..]);
        for (at, tool) in tools.iter().enumerate() {
            if at > 0 {
                page.push(b',');
            }
            page.extend_from_slice(tool.definition());
        }
        page.extend_from_slice(b"]}");
        request.result_response(&page)
    }

    async fn call_tool(&self, request: &LinkRequest) -> Result<ServerResponse, LinkError> {
        let params = request.message.params.clone();
        let named = object::text_field(&params, "name");
        let renamed = request.rename.as_ref().map(|rename| &*rename.to);
        let Some(tool) = renamed.or(named.as_deref()) else {
            let message = "the call names no tool";
            return Ok(request.error_response(code::INVALID_PARAMS, message, None));
        };
        let at = object::field(&params, "arguments");
        let arguments = at.map_or_else(
            || Ok(ToolArguments::default()),
            |at| ToolArguments::parse(params.slice(at.start..at.end)),
        );
        let arguments = match arguments {
            Ok(arguments) => arguments,
            Err(bad) => {
                let message = format!("the arguments cannot be read: {bad}");
                return Ok(request.error_response(code::INVALID_PARAMS, &message, None));
            }
        };
        let context = ExecuteContext {
            timeout: None,
            run: None,
            caller: request.message.client.clone(),
            trace: request.message.trace.clone(),
        };
        let outcome = execute_caught(self.executor.as_ref(), tool, arguments, &context).await;
        Ok(match outcome {
            Some(Ok(output)) => request.result_response(output.raw()),
            Some(Err(failure)) => to_error_response(request, &failure),
            None => {
                tracing::error!(tool, "in-process tool panicked");
                let text = format!("tool `{tool}` panicked; whether it took effect is not known");
                request.result_response(ToolOutput::from_error(&text).raw())
            }
        })
    }

    async fn wait_ended(&self) -> LinkExit {
        let mut ended = self.ended.subscribe();
        // This struct owns the sender, so the channel stays open.
        let exit = ended.wait_for(Option::is_some).await;
        exit.ok().and_then(|exit| *exit).unwrap_or(LinkExit::Gone)
    }
}

impl Link for InProcessLink {
    fn request(&self, request: LinkRequest) -> BoxFuture<'_, Result<ServerResponse, LinkError>> {
        Box::pin(async move {
            if let Some(exit) = *self.ended.borrow() {
                return Err(LinkError::Closed(exit));
            }
            let _waiting = InFlightGuard::new(&self.in_flight);
            let served = async {
                tokio::select! {
                    biased;
                    exit = self.wait_ended() => Err(LinkError::Lost(exit)),
                    answer = self.handle_request(&request) => answer,
                }
            };
            let response = timeout_at(request.deadline, served).await;
            response.unwrap_or(Err(LinkError::Timeout {
                sent: SendState::MaybeSent,
            }))
        })
    }

    /// No peer to notify: a cancelled call is dropped.
    fn notify(&self, _method: &str, _params: Option<&[u8]>) -> Result<(), LinkError> {
        match *self.ended.borrow() {
            Some(exit) => Err(LinkError::Closed(exit)),
            None => Ok(()),
        }
    }

    fn is_open(&self) -> bool {
        self.ended.borrow().is_none()
    }

    fn wait_closed(&self) -> BoxFuture<'_, LinkExit> {
        Box::pin(self.wait_ended())
    }

    fn close(&self) -> BoxFuture<'_, LinkExit> {
        self.ended.send_replace(Some(LinkExit::Stopping));
        Box::pin(self.wait_ended())
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn server_info(&self) -> &ServerInfo {
        &self.info
    }
}

/// Writes an error response with the execution status.
fn to_error_response(request: &LinkRequest, failure: &ExecuteError) -> ServerResponse {
    let code = match failure {
        ExecuteError::UnknownTool { .. }
        | ExecuteError::AmbiguousTool { .. }
        | ExecuteError::Arguments { .. } => code::INVALID_PARAMS,
        ExecuteError::Call(_) | ExecuteError::Failed { .. } => code::INTERNAL,
    };
    let data = format!("{{\"execution\":\"{}\"}}", failure.execution().as_str());
    request.error_response(code, &failure.to_string(), Some(data.as_bytes()))
}
