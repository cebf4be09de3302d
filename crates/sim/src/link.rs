//! A link to a server that follows a script.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_core::call::Body;
use bowline_core::pending::Sent;
use bowline_core::time::millis;
use bowline_host::beacon;
use bowline_link::{
    ASKED_MAX, Answer, BoxFuture, Exit, Link, LinkError, LinkEvent, Request, Revision, ServerInfo,
};
use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use crate::history::Happened;
use crate::json;
use crate::ledger::{Deed, Ledger, Life};
use crate::script::{Act, Answered, Generation};

/// What every scripted server says of itself.
const INITIALIZE: &str = concat!(
    r#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true}},"#,
    r#""serverInfo":{"name":"scripted","version":"1"}}"#,
);

/// Events that may wait to be read.
pub(crate) const EVENTS_MAX: usize = 64;

/// The first process of a server has the number after this one.
const PID_BASE: u32 = 1_000;

/// One life of a scripted server.
#[derive(Debug)]
pub struct ScriptedLink {
    process: Process,
    script: Mutex<Generation>,
    phase: beacon::Sender<Phase>,
    in_flight: AtomicUsize,
    /// Tools that run.
    running: AtomicUsize,
    /// When it goes by itself, by the clock of the ledger.
    dies_at_ms: Option<u64>,
    events: mpsc::Sender<LinkEvent>,
    info: ServerInfo,
}

/// How far the life of a link has come; as with a child process, the end takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    Ending(Exit),
    Ended(Exit),
}

/// A process from its start to its end, however that comes.
#[derive(Debug)]
pub(crate) struct Process {
    life: Life,
    ledger: Ledger,
    over: AtomicBool,
}

impl Process {
    pub(crate) fn start(server: &Arc<str>, generation: u64, ledger: &Ledger) -> Self {
        let life = Life {
            server: Arc::clone(server),
            generation,
        };
        ledger.enter(Happened::Started(life.clone()));
        Self {
            life,
            ledger: ledger.clone(),
            over: AtomicBool::new(false),
        }
    }

    fn end(&self) {
        if !self.over.swap(true, Ordering::Relaxed) {
            self.ledger.enter(Happened::Ended(self.life.clone()));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

impl ScriptedLink {
    pub(crate) fn new(
        process: Process,
        script: Generation,
        events: mpsc::Sender<LinkEvent>,
    ) -> Self {
        let initialize = script.initialize.clone();
        let initialize = initialize.unwrap_or(Bytes::from_static(INITIALIZE.as_bytes()));
        process
            .ledger
            .enter(Happened::Connected(process.life.clone()));
        // What only servers of one era say.
        let said = String::from_utf8_lossy(&initialize);
        let revision = match said.contains("\"supportedVersions\"") {
            true => Revision::V2026_07_28,
            false => Revision::V2025_06_18,
        };
        let now_ms = process.ledger.now_ms();
        let dies_at_ms = script.dies_after.map(|after| now_ms + millis(after));
        Self {
            process,
            dies_at_ms,
            running: AtomicUsize::new(0),
            script: Mutex::new(script),
            phase: beacon::Sender::new(Phase::Open),
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

    /// Ends the server as if by itself: whoever waits for an answer has lost it.
    pub fn end(&self, exit: Exit) {
        self.phase.send_if_modified(|phase| {
            let open = *phase == Phase::Open;
            if open {
                *phase = Phase::Ending(exit);
            }
            open
        });
    }

    /// Says something outside calls; `false` when nobody listens or too much waits.
    #[must_use]
    pub fn say(&self, event: LinkEvent) -> bool {
        self.events.try_send(event).is_ok()
    }

    /// Makes the server go on as `script` says; how it was started does not change.
    pub fn follow(&self, script: Generation) {
        *self.script() = script;
    }

    fn script(&self) -> MutexGuard<'_, Generation> {
        self.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long it still lives; `None` where that is not known beforehand.
    fn rest(&self) -> Option<Duration> {
        let left_ms = self
            .dies_at_ms?
            .saturating_sub(self.process.ledger.now_ms());
        Some(Duration::from_millis(left_ms))
    }

    fn exit(&self) -> Option<Exit> {
        if self.rest() == Some(Duration::ZERO) {
            self.end(Exit::Signal(9));
        }
        match *self.phase.borrow() {
            Phase::Open => None,
            Phase::Ending(exit) | Phase::Ended(exit) => Some(exit),
        }
    }

    async fn ending(&self) -> Exit {
        let mut phase = self.phase.subscribe();
        let told = phase.wait_for(|phase| *phase != Phase::Open);
        // Ours is the sender, so the channel cannot close under us.
        match self.rest() {
            Some(rest) => drop(timeout(rest, told).await),
            None => drop(told.await),
        }
        self.exit().unwrap_or(Exit::Gone)
    }

    /// Waits for the end of the process and notes it.
    async fn ended(&self) -> Exit {
        let exit = self.ending().await;
        let wait = self.script().end_takes;
        if *self.phase.borrow() != Phase::Ended(exit) && !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        self.phase.send_replace(Phase::Ended(exit));
        self.process.end();
        exit
    }

    async fn list(&self, request: &Request) -> Result<Answer, LinkError> {
        let params = json::params_sent(request);
        let cursor = json::read_cursor(&params);
        self.process.ledger.paged(&self.process.life.server, cursor);
        let (wait, page, dies) = {
            let script = self.script();
            let page = script.pages.get(cursor).cloned();
            (script.list_takes, page, script.dies_listing)
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        if dies {
            self.end(Exit::Signal(6));
            return Err(LinkError::Lost(Exit::Signal(6)));
        }
        Ok(match page {
            Some(page) => {
                let page = String::from_utf8_lossy(&page);
                json::answer(request, Body::Result, &page)
            }
            None => {
                let error = r#"{"code":-32602,"message":"no such page"}"#;
                json::answer(request, Body::Error, error)
            }
        })
    }

    /// Answers what is neither a call nor a list of tools, as the script says; by default with
    /// the error of a method that it does not know.
    async fn other(&self, request: &Request) -> Answer {
        let params = json::params_sent(request);
        let life = &self.process.life;
        self.process.ledger.asked(life, &request.method, &params);
        let found = {
            let script = self.script();
            let mut answers = script.answers.iter();
            answers
                .find(|(method, part, _)| *method == request.method && params.contains(part))
                .map(|(.., answer)| answer.clone())
        };
        match found {
            Some(Answered::Result(result)) => {
                json::answer(request, Body::Result, &String::from_utf8_lossy(&result))
            }
            Some(Answered::Error(error)) => {
                json::answer(request, Body::Error, &String::from_utf8_lossy(&error))
            }
            Some(Answered::Never) => std::future::pending().await,
            None => {
                let error = r#"{"code":-32601,"message":"no such method"}"#;
                json::answer(request, Body::Error, error)
            }
        }
    }

    /// Returns until when a request may take; a tool that asks somebody has an hour for that.
    fn patience(&self, request: &Request) -> Instant {
        let params = json::params_sent(request);
        let tool = json::read_call(&params).map(|(tool, _)| tool);
        let asks = tool.is_some_and(|tool| {
            let script = self.script();
            matches!(script.acts.get(tool), Some(Act::Asks(_)))
        });
        match asks {
            true => request.deadline + ASKED_MAX,
            false => request.deadline,
        }
    }

    async fn run(&self, request: &Request) -> Result<Answer, LinkError> {
        let params = json::params_sent(request);
        let Some((tool, arguments)) = json::read_call(&params) else {
            return Err(LinkError::BadAnswer("the call cannot be read".into()));
        };
        let act = self.script().acts.get(tool).cloned();
        match act {
            Some(Act::Closes) => {
                self.end(Exit::Status(1));
                return Err(LinkError::Closed(Exit::Status(1)));
            }
            Some(Act::DiesUnread) => {
                self.end(Exit::Status(1));
                return Err(LinkError::Lost(Exit::Status(1)));
            }
            Some(Act::Fails(error)) => return Err(error),
            _ => {}
        }
        let mut running = Running::start(self, tool, arguments);
        running.heedless = matches!(act, Some(Act::AnswersLate(_)));
        let outcome = tokio::select! {
            biased;
            exit = self.ending() => Err(LinkError::Lost(exit)),
            outcome = self.perform(act.unwrap_or(Act::Answers), request, &running.deed) => outcome,
        };
        running.answered = true;
        outcome
    }

    async fn perform(&self, act: Act, request: &Request, deed: &Deed) -> Result<Answer, LinkError> {
        let result = |is_error: bool| {
            let text = json::literal(&format!("{}#{}", deed.server, deed.generation));
            let flag = if is_error { ",\"isError\":true" } else { "" };
            let content = format!("[{{\"type\":\"text\",\"text\":{text}}}]");
            let body = format!("{{\"content\":{content}{flag}}}");
            Ok(json::answer(request, Body::Result, &body))
        };
        match act {
            // Those that never ran are dealt with before.
            Act::Answers | Act::Closes | Act::DiesUnread | Act::Fails(_) => result(false),
            Act::AnswersAfter(wait) | Act::AnswersLate(wait) => {
                tokio::time::sleep(wait).await;
                result(false)
            }
            Act::Hangs(gate) | Act::Asks(gate) => {
                gate.passed().await;
                result(false)
            }
            Act::Dies => {
                self.end(Exit::Signal(9));
                Err(LinkError::Lost(Exit::Signal(9)))
            }
            Act::RpcError => {
                let error = r#"{"code":-32000,"message":"no"}"#;
                Ok(json::answer(request, Body::Error, error))
            }
            Act::ToolError => result(true),
            Act::Says(body) => Ok(json::answer(request, Body::Result, &body)),
            Act::Repeats(wait) => {
                let before = self.process.ledger.look(|record| record.executions.len()) - 1;
                tokio::time::sleep(wait).await;
                let members = deed.arguments.trim().strip_prefix('{').unwrap_or("}");
                let comma = if members == "}" { "" } else { "," };
                let body = format!("{{\"content\":[],\"before\":{before}{comma}{members}");
                Ok(json::answer(request, Body::Result, &body))
            }
            Act::Garbles => Err(LinkError::BadAnswer("garbled".into())),
            Act::Progress(times) => {
                for done in 1..=times {
                    let told = json::progress(request, done);
                    if let (Some(sink), Some(told)) = (&request.caller, told) {
                        sink.push(told.into());
                    }
                }
                result(false)
            }
        }
    }
}

impl Link for ScriptedLink {
    fn request(&self, request: Request) -> BoxFuture<'_, Result<Answer, LinkError>> {
        Box::pin(async move {
            if let Some(exit) = self.exit() {
                return Err(LinkError::Closed(exit));
            }
            let _waiting = Waiting::new(&self.in_flight);
            let served = async {
                match request.method.as_ref() {
                    "tools/list" => {
                        tokio::select! {
                            biased;
                            exit = self.ending() => Err(LinkError::Lost(exit)),
                            page = self.list(&request) => page,
                        }
                    }
                    "tools/call" => self.run(&request).await,
                    _ => {
                        tokio::select! {
                            biased;
                            exit = self.ending() => Err(LinkError::Lost(exit)),
                            answer = self.other(&request) => Ok(answer),
                        }
                    }
                }
            };
            timeout_at(self.patience(&request), served)
                .await
                .unwrap_or(Err(LinkError::Timeout {
                    sent: Sent::Perhaps,
                }))
        })
    }

    fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError> {
        if let Some(exit) = self.exit() {
            return Err(LinkError::Closed(exit));
        }
        let params = String::from_utf8_lossy(params.unwrap_or_default());
        let Process { life, ledger, .. } = &self.process;
        ledger.asked(life, method, &params);
        Ok(())
    }

    fn is_open(&self) -> bool {
        self.exit().is_none()
    }

    fn closed(&self) -> BoxFuture<'_, Exit> {
        Box::pin(self.ended())
    }

    fn close(&self) -> BoxFuture<'_, Exit> {
        let life = self.process.life.clone();
        // A server that has gone by itself took its calls along.
        let running = match self.exit() {
            None => self.running.load(Ordering::Relaxed),
            Some(_) => 0,
        };
        let closed = Happened::Closed { life, running };
        self.process.ledger.enter(closed);
        self.end(Exit::Status(0));
        Box::pin(self.ended())
    }

    fn pid(&self) -> Option<u32> {
        let nth = u32::try_from(self.process.life.generation).ok()?;
        PID_BASE.checked_add(nth)
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    fn server(&self) -> &ServerInfo {
        &self.info
    }
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(in_flight: &'a AtomicUsize) -> Self {
        in_flight.fetch_add(1, Ordering::Relaxed);
        Self(in_flight)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A tool that runs; dropped before its answer, it was cancelled.
#[derive(Debug)]
struct Running<'a> {
    link: &'a ScriptedLink,
    deed: Deed,
    answered: bool,
    /// Whether it goes on when nobody waits any more; its answer then finds nobody.
    heedless: bool,
}

impl<'a> Running<'a> {
    fn start(link: &'a ScriptedLink, tool: &str, arguments: &str) -> Self {
        let Life { server, generation } = link.process.life.clone();
        let deed = Deed {
            server,
            generation,
            tool: tool.to_owned(),
            arguments: arguments.to_owned(),
        };
        let ran = Happened::Executed(deed.clone());
        link.process.ledger.enter(ran);
        link.running.fetch_add(1, Ordering::Relaxed);
        Self {
            link,
            deed,
            answered: false,
            heedless: false,
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.link.running.fetch_sub(1, Ordering::Relaxed);
        let deed = self.deed.clone();
        self.link.process.ledger.enter(if self.answered {
            Happened::Finished(deed)
        } else {
            Happened::Cancelled(deed)
        });
        if !self.answered && self.heedless {
            let deed = self.deed.clone();
            self.link.process.ledger.enter(Happened::Late(deed));
        }
    }
}
