//! Servers that run on the executor for a gateway session.
//!
//! Only servers named in the executor's own configuration are started. A server outlives the
//! session's connections: stdin and stdout resume at the exact byte after a cut.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use bowline_core::error::ExecutionStatus;
use bowline_core::sync::lock;
use bowline_link::stdio::StdioSpec;
use bowline_runtime::TaskTracker;

use crate::connection::FrameWriter;
use crate::frames::{ExecutorFrame, StartServer, StreamFault, StreamFaultCode, StreamMark};

use super::offer::ExecutorOffer;

mod hosted_server;
mod server_run;

use hosted_server::{HostedServer, HostedServerEnd, StopMode};
use server_run::run_server;

/// Servers of one session, ended servers included until the gateway acknowledges the end.
const SERVERS_MAX: usize = 64;

/// The servers of one session. Servers outlive the session's connections.
#[derive(Debug)]
pub(super) struct SessionServers {
    /// Startable servers, by name.
    offered: BTreeMap<Arc<str>, StdioSpec>,
    tasks: TaskTracker,
    state: Mutex<SessionServersState>,
}

#[derive(Debug, Default)]
struct SessionServersState {
    servers: HashMap<u64, Arc<HostedServer>>,
    /// The session ended.
    is_over: bool,
}

impl SessionServers {
    /// Returns a session without running servers.
    pub(super) fn new(offer: &ExecutorOffer, tasks: &TaskTracker) -> Self {
        Self::with_servers(offer.servers.clone(), tasks)
    }

    fn with_servers(offered: BTreeMap<Arc<str>, StdioSpec>, tasks: &TaskTracker) -> Self {
        Self {
            offered,
            tasks: tasks.clone(),
            state: Mutex::default(),
        }
    }

    /// Resumes the servers that the gateway still knows; returns the marks of the resumed servers.
    /// Nothing is sent before [`attach_writer`](Self::attach_writer). Servers without a mark are
    /// discarded.
    pub(super) fn resume_servers(&self, marks: &[StreamMark]) -> Vec<StreamMark> {
        let remote_marks: HashMap<u64, &StreamMark> =
            marks.iter().map(|mark| (mark.stream, mark)).collect();
        let mut own_marks = Vec::new();
        for hosted in self.open_servers() {
            let mark = remote_marks.get(&hosted.stream);
            match mark.and_then(|mark| hosted.resume(mark)) {
                Some(mark) => own_marks.push(mark),
                None => self.discard_server(hosted.stream),
            }
        }
        own_marks
    }

    /// Attaches an open connection.
    pub(super) fn attach_writer(&self, writer: &FrameWriter) {
        for hosted in self.open_servers() {
            hosted.attach_writer(writer);
        }
    }

    /// Detaches a lost connection; the session may resume.
    pub(super) fn detach_writer(&self) {
        for hosted in self.open_servers() {
            hosted.detach_writer();
        }
    }

    /// Ends the session and all servers.
    pub(super) fn kill_all(&self) {
        let servers = {
            let mut state = self.lock_state();
            state.is_over = true;
            std::mem::take(&mut state.servers)
        };
        for hosted in servers.values() {
            hosted.report_closing();
            hosted.request_stop(StopMode::Discard);
        }
    }

    /// Dispatches a frame of a server stream, without waiting.
    pub(super) fn dispatch_frame(&self, frame: &ExecutorFrame, writer: &FrameWriter) {
        match frame {
            ExecutorFrame::StartServer { stream, start } => {
                self.start_server(*stream, start, writer)
            }
            ExecutorFrame::Data {
                stream,
                offset,
                bytes,
            } => self.with_server(*stream, |hosted| hosted.push_input(*offset, bytes.clone())),
            ExecutorFrame::End { stream, offset, .. } => {
                self.with_server(*stream, |hosted| hosted.close_input(*offset));
            }
            ExecutorFrame::Credit { stream, bytes } => {
                self.with_server(*stream, |hosted| hosted.add_credit(*bytes))
            }
            ExecutorFrame::StopServer { stream, at_once } => {
                let mode = match at_once {
                    true => StopMode::Immediate,
                    false => StopMode::Graceful,
                };
                self.with_server(*stream, |hosted| hosted.request_stop(mode));
            }
            // The server is unwanted, or the gateway acknowledged the end.
            ExecutorFrame::Cancel { stream } => self.discard_server(*stream),
            // Other frames are not for servers.
            _ => {}
        }
    }

    fn start_server(&self, stream: u64, start: &StartServer, writer: &FrameWriter) {
        let mut state = self.lock_state();
        // The gateway repeats the start after a cut.
        if state.is_over || state.servers.contains_key(&stream) {
            return;
        }
        let refuse = |code, reason: &str| {
            let fault = not_started_fault(code, reason);
            writer.push_frame(&ExecutorFrame::Fault { stream, fault });
        };
        if state.servers.len() >= SERVERS_MAX {
            return refuse(StreamFaultCode::Busy, "too many servers run already");
        }
        let hosted = Arc::new(HostedServer::new(stream, start.credit, writer.clone()));
        state.servers.insert(stream, Arc::clone(&hosted));
        drop(state);
        match self.offered.get(&start.server) {
            Some(spec) => {
                tracing::info!(server = %start.server, "starting a server for the gateway");
                let running = run_server(hosted, spec.clone());
                self.tasks.spawn("executor server", running);
            }
            None => {
                tracing::warn!(server = %start.server, "gateway requested an unknown server");
                let reason = "the executor has no such server";
                hosted.report_end(HostedServerEnd::Failed(not_started_fault(
                    StreamFaultCode::UnknownServer,
                    reason,
                )));
            }
        }
    }

    /// Stops a server without further frames.
    fn discard_server(&self, stream: u64) {
        let hosted = self.lock_state().servers.remove(&stream);
        if let Some(hosted) = hosted {
            hosted.request_stop(StopMode::Discard);
        }
    }

    fn with_server(&self, stream: u64, act: impl FnOnce(&HostedServer)) {
        let hosted = self.lock_state().servers.get(&stream).cloned();
        if let Some(hosted) = hosted {
            act(&hosted);
        }
    }

    fn open_servers(&self) -> Vec<Arc<HostedServer>> {
        self.lock_state().servers.values().cloned().collect()
    }

    fn lock_state(&self) -> MutexGuard<'_, SessionServersState> {
        lock(&self.state)
    }
}

impl Drop for SessionServers {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// Fault of a server that ends with the executor.
fn closing_fault() -> StreamFault {
    StreamFault {
        code: StreamFaultCode::Closing,
        execution: ExecutionStatus::Unknown,
        reason: "the executor goes down".into(),
    }
}

/// Fault of a server that never started.
fn not_started_fault(code: StreamFaultCode, reason: &str) -> StreamFault {
    StreamFault {
        code,
        execution: ExecutionStatus::NotStarted,
        reason: reason.into(),
    }
}
