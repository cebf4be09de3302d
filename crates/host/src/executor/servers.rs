//! Servers that run here for a session of a gateway.
//!
//! Only what the executor's own configuration names is started. A server outlives the connections
//! of its session: what it wrote and what was written to it goes on where it was cut.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use bowline_core::error::Execution;
use bowline_core::sync::lock;
use bowline_link::executor::Voice;
use bowline_link::stdio::StdioSpec;
use bowline_wire::executor::{Fault, FaultCode, Frame, Mark, Start};

use super::offer::Offer;
use crate::tasks::Tasks;

mod run;
mod served;

use run::run;
use served::{Haste, Last, Served};

/// Servers of one session at once, those included whose end the gateway has not heard of.
const SERVERS_MAX: usize = 64;

/// The servers of one session. They outlive its connections.
#[derive(Debug)]
pub(super) struct Servers {
    /// What may be started, by name.
    offered: BTreeMap<Arc<str>, StdioSpec>,
    tasks: Tasks,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: HashMap<u64, Arc<Served>>,
    /// The session is over.
    is_over: bool,
}

impl Servers {
    /// Returns a session of which nothing runs.
    pub(super) fn new(offer: &Offer, tasks: &Tasks) -> Self {
        Self::of(offer.servers.clone(), tasks)
    }

    fn of(offered: BTreeMap<Arc<str>, StdioSpec>, tasks: &Tasks) -> Self {
        Self {
            offered,
            tasks: tasks.clone(),
            state: Mutex::default(),
        }
    }

    /// Goes on with what a gateway still has; returns what is still here. Nothing is sent before
    /// [`attach`](Self::attach). What the gateway does not name is not wanted any more.
    pub(super) fn resume(&self, marks: &[Mark]) -> Vec<Mark> {
        let there: HashMap<u64, &Mark> = marks.iter().map(|mark| (mark.stream, mark)).collect();
        let mut here = Vec::new();
        for served in self.all() {
            let mark = there.get(&served.stream);
            match mark.and_then(|mark| served.resume(mark)) {
                Some(mark) => here.push(mark),
                None => self.drop_one(served.stream),
            }
        }
        here
    }

    /// Takes a connection that is open.
    pub(super) fn attach(&self, voice: &Voice) {
        for served in self.all() {
            served.attach(voice);
        }
    }

    /// The connection is gone; the session may come back.
    pub(super) fn detach(&self) {
        for served in self.all() {
            served.detach();
        }
    }

    /// The session is over: nothing of it stays.
    pub(super) fn kill(&self) {
        let open = {
            let mut state = self.lock();
            state.is_over = true;
            std::mem::take(&mut state.open)
        };
        for served in open.values() {
            served.farewell();
            served.stop(Haste::Forgotten);
        }
    }

    /// Takes a frame of a stream that is no request, without waiting.
    pub(super) fn take(&self, frame: &Frame, voice: &Voice) {
        match frame {
            Frame::Start { stream, start } => self.start(*stream, start, voice),
            Frame::Data {
                stream,
                offset,
                bytes,
            } => self.with(*stream, |served| served.arrived(*offset, bytes.clone())),
            Frame::End { stream, offset, .. } => {
                self.with(*stream, |served| served.closed(*offset));
            }
            Frame::Credit { stream, bytes } => self.with(*stream, |served| served.credited(*bytes)),
            Frame::Stop { stream, at_once } => {
                let haste = match at_once {
                    true => Haste::AtOnce,
                    false => Haste::InOrder,
                };
                self.with(*stream, |served| served.stop(haste));
            }
            // Nobody wants it, or has heard of its end.
            Frame::Cancel { stream } => self.drop_one(*stream),
            // Not for servers.
            _ => {}
        }
    }

    fn start(&self, stream: u64, start: &Start, voice: &Voice) {
        let mut state = self.lock();
        // It is said again after a cut.
        if state.is_over || state.open.contains_key(&stream) {
            return;
        }
        let refuse = |code, reason: &str| {
            let fault = fault(code, reason);
            voice.say(&Frame::Failed { stream, fault });
        };
        if state.open.len() >= SERVERS_MAX {
            return refuse(FaultCode::Busy, "too many servers run already");
        }
        let served = Arc::new(Served::new(stream, start.credit, voice.clone()));
        state.open.insert(stream, Arc::clone(&served));
        drop(state);
        match self.offered.get(&start.server) {
            Some(spec) => {
                tracing::info!(server = %start.server, "a gateway has a server started");
                let running = run(served, spec.clone());
                self.tasks.spawn("executor server", running);
            }
            None => {
                tracing::warn!(server = %start.server, "a gateway asks for an unknown server");
                let reason = "the executor has no such server";
                served.end(Last::Failed(fault(FaultCode::UnknownServer, reason)));
            }
        }
    }

    /// Ends one of which nothing is told any more.
    fn drop_one(&self, stream: u64) {
        let served = self.lock().open.remove(&stream);
        if let Some(served) = served {
            served.stop(Haste::Forgotten);
        }
    }

    fn with(&self, stream: u64, act: impl FnOnce(&Served)) {
        let served = self.lock().open.get(&stream).cloned();
        if let Some(served) = served {
            act(&served);
        }
    }

    fn all(&self) -> Vec<Arc<Served>> {
        self.lock().open.values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns why a server that nobody else ended does not run any more.
fn closing() -> Fault {
    Fault {
        code: FaultCode::Closing,
        execution: Execution::Unknown,
        reason: "the executor goes down".into(),
    }
}

/// Returns why a server does not run; it never began.
fn fault(code: FaultCode, reason: &str) -> Fault {
    Fault {
        code,
        execution: Execution::NotStarted,
        reason: reason.into(),
    }
}
