//! A link to a scripted server.

mod execution_guard;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::pending_table::SendState;
use bowline_core::time::to_millis;
use bowline_link::{
    CLIENT_WAIT_MAX, Link, LinkError, LinkEvent, LinkExit, LinkRequest, Revision, ServerInfo,
};
use bowline_runtime::fifo_watch;
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use self::execution_guard::ExecutionGuard;
use crate::sim::history::HistoryEvent;
use crate::sim::server_script::{GenerationScript, ScriptedResponse, ToolBehaviour};
use crate::sim::sim_json;
use crate::sim::sim_ledger::{ServerInstance, SimLedger, ToolExecution};

/// The `initialize` result of every scripted server.
const INITIALIZE: &str = concat!(
    r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}},"#,
    r#""serverInfo":{"name":"scripted","version":"1"}}"#,
);

/// Unread events.
pub(crate) const EVENTS_MAX: usize = 64;

/// Process ids start after this number.
const PID_BASE: u32 = 1_000;

/// One instance of a scripted server.
#[derive(Debug)]
pub struct ScriptedLink {
    process: ScriptedProcess,
    script: Mutex<GenerationScript>,
    phase: fifo_watch::FifoSender<ScriptedPhase>,
    in_flight: AtomicUsize,
    /// Running tools.
    running: AtomicUsize,
    /// Time of a scripted exit, by the ledger's clock.
    dies_at_ms: Option<u64>,
    events: mpsc::Sender<LinkEvent>,
    info: ServerInfo,
}

/// Phase of a link; as with a child process, the end takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScriptedPhase {
    Open,
    Ending(LinkExit),
    Ended(LinkExit),
}

/// A process from start to end.
#[derive(Debug)]
pub(crate) struct ScriptedProcess {
    instance: ServerInstance,
    ledger: SimLedger,
    is_over: AtomicBool,
}

impl ScriptedProcess {
    pub(crate) fn start(server: &Arc<str>, generation: u64, ledger: &SimLedger) -> Self {
        let instance = ServerInstance {
            server: Arc::clone(server),
            generation,
        };
        ledger.record_event(HistoryEvent::Started(instance.clone()));
        Self {
            instance,
            ledger: ledger.clone(),
            is_over: AtomicBool::new(false),
        }
    }

    fn record_end(&self) {
        if !self.is_over.swap(true, Ordering::Relaxed) {
            self.ledger
                .record_event(HistoryEvent::Ended(self.instance.clone()));
        }
    }
}

impl Drop for ScriptedProcess {
    fn drop(&mut self) {
        self.record_end();
    }
}

impl ScriptedLink {
    pub(crate) fn new(
        process: ScriptedProcess,
        script: GenerationScript,
        events: mpsc::Sender<LinkEvent>,
    ) -> Self {
        let initialize = script.initialize.clone();
        let initialize = initialize.unwrap_or(Bytes::from_static(INITIALIZE.as_bytes()));
        process
            .ledger
            .record_event(HistoryEvent::Connected(process.instance.clone()));
        // Only modern servers have this member.
        let initialize_text = String::from_utf8_lossy(&initialize);
        let revision = match initialize_text.contains("\"supportedVersions\"") {
            true => Revision::V2026_07_28,
            false => Revision::V2025_06_18,
        };
        let now_ms = process.ledger.now_ms();
        let dies_at_ms = script.exits_after.map(|after| now_ms + to_millis(after));
        Self {
            process,
            dies_at_ms,
            running: AtomicUsize::new(0),
            script: Mutex::new(script),
            phase: fifo_watch::FifoSender::new(ScriptedPhase::Open),
            in_flight: AtomicUsize::new(0),
            events,
            info: ServerInfo {
                revision,
                initialize,
                name: "scripted".into(),
                version: "1".into(),
            },
        }
    }

    /// Ends the server as if by itself; pending requests are lost.
    pub fn exit_with(&self, exit: LinkExit) {
        self.phase.send_if_modified(|phase| {
            let open = *phase == ScriptedPhase::Open;
            if open {
                *phase = ScriptedPhase::Ending(exit);
            }
            open
        });
    }

    /// Emits an event outside calls; returns `false` without a receiver or if the queue is full.
    #[must_use]
    pub fn emit(&self, event: LinkEvent) -> bool {
        self.events.try_send(event).is_ok()
    }

    /// Replaces the script of the running server, except for the start.
    pub fn set_script(&self, script: GenerationScript) {
        *self.script() = script;
    }

    fn script(&self) -> MutexGuard<'_, GenerationScript> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the time until the scripted exit; `None` without a scripted exit.
    fn remaining_life(&self) -> Option<Duration> {
        let left_ms = self
            .dies_at_ms?
            .saturating_sub(self.process.ledger.now_ms());
        Some(Duration::from_millis(left_ms))
    }

    fn exit_status(&self) -> Option<LinkExit> {
        if self.remaining_life() == Some(Duration::ZERO) {
            self.exit_with(LinkExit::Signal(9));
        }
        match *self.phase.borrow() {
            ScriptedPhase::Open => None,
            ScriptedPhase::Ending(exit) | ScriptedPhase::Ended(exit) => Some(exit),
        }
    }

    async fn wait_ending(&self) -> LinkExit {
        let mut phase = self.phase.subscribe();
        let phase_change = phase.wait_for(|phase| *phase != ScriptedPhase::Open);
        // The sender is owned here, so the channel cannot close.
        match self.remaining_life() {
            Some(rest) => drop(timeout(rest, phase_change).await),
            None => drop(phase_change.await),
        }
        self.exit_status().unwrap_or(LinkExit::Gone)
    }

    /// Waits for the end of the process and records the end.
    async fn wait_ended(&self) -> LinkExit {
        let exit = self.wait_ending().await;
        let wait = self.script().end_delay;
        if *self.phase.borrow() != ScriptedPhase::Ended(exit) && !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        self.phase.send_replace(ScriptedPhase::Ended(exit));
        self.process.record_end();
        exit
    }

    async fn list_tools(&self, request: &LinkRequest) -> Result<ServerResponse, LinkError> {
        let params = sim_json::sent_params(request);
        let cursor = sim_json::parse_cursor(&params);
        self.process
            .ledger
            .record_page(&self.process.instance.server, cursor);
        let (wait, page, dies) = {
            let script = self.script();
            let page = script.pages.get(cursor).cloned();
            (script.list_delay, page, script.exits_on_list)
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        if dies {
            self.exit_with(LinkExit::Signal(6));
            return Err(LinkError::Lost(LinkExit::Signal(6)));
        }
        Ok(match page {
            Some(page) => {
                let page = String::from_utf8_lossy(&page);
                sim_json::to_response(request, BodyKind::Result, &page)
            }
            None => {
                let error = r#"{"code":-32602,"message":"no such page"}"#;
                sim_json::to_response(request, BodyKind::Error, error)
            }
        })
    }

    /// Responds to a method except tool calls and lists, as scripted; by default with a
    /// method-not-found error.
    async fn respond_other(&self, request: &LinkRequest) -> ServerResponse {
        let params = sim_json::sent_params(request);
        let instance = &self.process.instance;
        self.process
            .ledger
            .record_request(instance, &request.method, &params);
        let found = {
            let script = self.script();
            let mut responses = script.responses.iter();
            responses
                .find(|(method, part, _)| *method == request.method && params.contains(part))
                .map(|(.., response)| response.clone())
        };
        match found {
            Some(ScriptedResponse::Result(result)) => {
                sim_json::to_response(request, BodyKind::Result, &String::from_utf8_lossy(&result))
            }
            Some(ScriptedResponse::Error(error)) => {
                sim_json::to_response(request, BodyKind::Error, &String::from_utf8_lossy(&error))
            }
            Some(ScriptedResponse::Never) => std::future::pending().await,
            None => {
                let error = r#"{"code":-32601,"message":"no such method"}"#;
                sim_json::to_response(request, BodyKind::Error, error)
            }
        }
    }

    /// Returns the deadline of a request; a tool with a server request gets an extra hour.
    fn request_deadline(&self, request: &LinkRequest) -> Instant {
        let params = sim_json::sent_params(request);
        let tool = sim_json::parse_call(&params).map(|(tool, _)| tool);
        let asks_client = tool.is_some_and(|tool| {
            let script = self.script();
            matches!(
                script.behaviours.get(tool),
                Some(ToolBehaviour::AskClient(_))
            )
        });
        match asks_client {
            true => request.deadline + CLIENT_WAIT_MAX,
            false => request.deadline,
        }
    }

    async fn run_tool(&self, request: &LinkRequest) -> Result<ServerResponse, LinkError> {
        let params = sim_json::sent_params(request);
        let Some((tool, arguments)) = sim_json::parse_call(&params) else {
            return Err(LinkError::BadResponse("the call cannot be read".into()));
        };
        let behaviour = self.script().behaviours.get(tool).cloned();
        match behaviour {
            Some(ToolBehaviour::CloseLink) => {
                self.exit_with(LinkExit::Status(1));
                return Err(LinkError::Closed(LinkExit::Status(1)));
            }
            Some(ToolBehaviour::ExitUnread) => {
                self.exit_with(LinkExit::Status(1));
                return Err(LinkError::Lost(LinkExit::Status(1)));
            }
            Some(ToolBehaviour::FailWith(error)) => return Err(error),
            _ => {}
        }
        let mut running = ExecutionGuard::start(self, tool, arguments);
        running.ignores_cancel = matches!(behaviour, Some(ToolBehaviour::RespondLate(_)));
        let behaviour = behaviour.unwrap_or(ToolBehaviour::Respond);
        let outcome = tokio::select! {
            biased;
            exit = self.wait_ending() => Err(LinkError::Lost(exit)),
            outcome = self.perform_behaviour(behaviour, request, &running.execution) => outcome,
        };
        running.is_finished = true;
        outcome
    }

    async fn perform_behaviour(
        &self,
        behaviour: ToolBehaviour,
        request: &LinkRequest,
        execution: &ToolExecution,
    ) -> Result<ServerResponse, LinkError> {
        let result = |is_error: bool| {
            let text =
                sim_json::to_json_string(&format!("{}#{}", execution.server, execution.generation));
            let flag = if is_error { ",\"isError\":true" } else { "" };
            let content = format!("[{{\"type\":\"text\",\"text\":{text}}}]");
            let body = format!("{{\"content\":{content}{flag}}}");
            Ok(sim_json::to_response(request, BodyKind::Result, &body))
        };
        match behaviour {
            // Behaviours without an execution are handled earlier.
            ToolBehaviour::Respond
            | ToolBehaviour::CloseLink
            | ToolBehaviour::ExitUnread
            | ToolBehaviour::FailWith(_) => result(false),
            ToolBehaviour::RespondAfter(wait) | ToolBehaviour::RespondLate(wait) => {
                tokio::time::sleep(wait).await;
                result(false)
            }
            ToolBehaviour::BlockOn(gate) | ToolBehaviour::AskClient(gate) => {
                gate.wait_released().await;
                result(false)
            }
            ToolBehaviour::Exit => {
                self.exit_with(LinkExit::Signal(9));
                Err(LinkError::Lost(LinkExit::Signal(9)))
            }
            ToolBehaviour::RpcError => {
                let error = r#"{"code":-32000,"message":"no"}"#;
                Ok(sim_json::to_response(request, BodyKind::Error, error))
            }
            ToolBehaviour::ToolError => result(true),
            ToolBehaviour::RespondWith(body) => {
                Ok(sim_json::to_response(request, BodyKind::Result, &body))
            }
            ToolBehaviour::EchoArguments(wait) => {
                let before = self
                    .process
                    .ledger
                    .with_record(|record| record.executions.len())
                    - 1;
                tokio::time::sleep(wait).await;
                let members = execution.arguments.trim().strip_prefix('{').unwrap_or("}");
                let comma = if members == "}" { "" } else { "," };
                let body = format!("{{\"content\":[],\"before\":{before}{comma}{members}");
                Ok(sim_json::to_response(request, BodyKind::Result, &body))
            }
            ToolBehaviour::RespondGarbage => Err(LinkError::BadResponse("garbled".into())),
            ToolBehaviour::Progress(times) => {
                for done in 1..=times {
                    let notification = sim_json::progress_notification(request, done);
                    if let (Some(sink), Some(notification)) =
                        (&request.message.client, notification)
                    {
                        sink.notify(notification.into());
                    }
                }
                result(false)
            }
        }
    }
}

impl Link for ScriptedLink {
    fn request(&self, request: LinkRequest) -> BoxFuture<'_, Result<ServerResponse, LinkError>> {
        Box::pin(async move {
            if let Some(exit) = self.exit_status() {
                return Err(LinkError::Closed(exit));
            }
            let _waiting = InFlightGuard::new(&self.in_flight);
            let served = async {
                match request.method.as_ref() {
                    "tools/list" => {
                        tokio::select! {
                            biased;
                            exit = self.wait_ending() => Err(LinkError::Lost(exit)),
                            page = self.list_tools(&request) => page,
                        }
                    }
                    "tools/call" => self.run_tool(&request).await,
                    _ => {
                        tokio::select! {
                            biased;
                            exit = self.wait_ending() => Err(LinkError::Lost(exit)),
                            answer = self.respond_other(&request) => Ok(answer),
                        }
                    }
                }
            };
            timeout_at(self.request_deadline(&request), served)
                .await
                .unwrap_or(Err(LinkError::Timeout {
                    sent: SendState::MaybeSent,
                }))
        })
    }

    fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError> {
        if let Some(exit) = self.exit_status() {
            return Err(LinkError::Closed(exit));
        }
        let params = String::from_utf8_lossy(params.unwrap_or_default());
        let ScriptedProcess {
            instance, ledger, ..
        } = &self.process;
        ledger.record_request(instance, method, &params);
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.exit_status().is_none()
    }

    fn wait_closed(&self) -> BoxFuture<'_, LinkExit> {
        Box::pin(self.wait_ended())
    }

    fn close(&self) -> BoxFuture<'_, LinkExit> {
        let instance = self.process.instance.clone();
        // A server that exited by itself has no running calls.
        let running = match self.exit_status() {
            None => self.running.load(Ordering::Relaxed),
            Some(_) => 0,
        };
        let closed = HistoryEvent::Closed { instance, running };
        self.process.ledger.record_event(closed);
        self.exit_with(LinkExit::Status(0));
        Box::pin(self.wait_ended())
    }

    fn pid(&self) -> Option<u32> {
        let nth = u32::try_from(self.process.instance.generation).ok()?;
        PID_BASE.checked_add(nth)
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn server_info(&self) -> &ServerInfo {
        &self.info
    }
}

/// Counts a request in flight.
#[derive(Debug)]
struct InFlightGuard<'a>(&'a AtomicUsize);

impl<'a> InFlightGuard<'a> {
    fn new(in_flight: &'a AtomicUsize) -> Self {
        in_flight.fetch_add(1, Ordering::Relaxed);
        Self(in_flight)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
