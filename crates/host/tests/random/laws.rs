//! Invariants of supervision, checked against the history of a world.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bowline_core::time::to_millis;
use bowline_host::HostLimits;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::ServerAction;
use bowline_testkit::{HistoryEntry, HistoryEvent, ServerInstance, SimRecord};

/// A longer start releases its permit.
const START_PLACE_MS: u64 = 2_000;

/// Checks every invariant against the history.
pub(crate) fn check_invariants(
    record: &SimRecord,
    specs: &[ServerSpec],
    limits: &HostLimits,
    broken: &mut Vec<String>,
) {
    let mut servers: BTreeMap<Arc<str>, ServerHistory<'_>> = specs
        .iter()
        .map(|spec| (Arc::clone(&spec.name), ServerHistory::new(spec)))
        .collect();
    let mut before = None;
    for (nth, moment) in record.history.iter().enumerate() {
        let law = match moment.event.server() {
            Some(name) => servers.get_mut(name).unwrap().apply_event(moment, before),
            None => {
                servers
                    .values_mut()
                    .for_each(|seen| seen.record_event(&moment.event));
                Ok(())
            }
        };
        if let Err(law) = law {
            let at = moment.at_ms;
            broken.push(format!("{law}: entry {nth} at {at} ms, {:?}", moment.event));
        }
        before = Some(&moment.event);
    }
    check_concurrent_starts(record, limits, broken);
}

/// State of a server so far.
#[derive(Debug)]
struct ServerHistory<'a> {
    spec: &'a ServerSpec,
    /// Start times within the budget window, oldest first.
    starts: VecDeque<u64>,
    /// The latest generation.
    generation: u64,
    /// True if a process lives.
    alive: bool,
    /// True if the latest generation ended by idle stop.
    idle: bool,
    /// Actions sent but not accepted yet.
    open: Vec<ServerAction>,
    /// Time of an accepted reload without a restart yet.
    reloads_since: Option<u64>,
    /// True if the last accepted action is a stop.
    stopped: bool,
    /// True if the host shuts down.
    closing: bool,
    /// True if the host is down.
    down: bool,
    /// Running calls, by arguments.
    running: Vec<String>,
    /// The probing call.
    probe: Option<String>,
}

type LawResult = Result<(), &'static str>;

fn require(holds: bool, law: &'static str) -> LawResult {
    if holds { Ok(()) } else { Err(law) }
}

/// True if an action starts a stopped server.
const fn starts_server(order: ServerAction) -> bool {
    !matches!(order, ServerAction::Stop)
}

impl<'a> ServerHistory<'a> {
    fn new(spec: &'a ServerSpec) -> Self {
        Self {
            spec,
            starts: VecDeque::new(),
            generation: 0,
            alive: false,
            idle: false,
            open: Vec::new(),
            reloads_since: None,
            stopped: false,
            closing: false,
            down: false,
            running: Vec::new(),
            probe: None,
        }
    }

    fn record_event(&mut self, what: &HistoryEvent) {
        match what {
            HistoryEvent::Note(word) if word == "shutdown" => self.closing = true,
            HistoryEvent::Note(word) if word == "down" => self.down = true,
            _ => {}
        }
    }

    fn apply_event(&mut self, moment: &HistoryEntry, before: Option<&HistoryEvent>) -> LawResult {
        match &moment.event {
            HistoryEvent::Started(life) => self.on_started(life, moment.at_ms),
            HistoryEvent::Closed { running, .. } => self.on_closed(*running, moment.at_ms),
            HistoryEvent::Ended(_) => {
                self.alive = false;
                Ok(())
            }
            HistoryEvent::Executed(deed) => self.on_executed(&deed.arguments, before),
            HistoryEvent::Finished(deed) | HistoryEvent::Cancelled(deed) => {
                let at = self.running.iter().position(|own| *own == deed.arguments);
                if let Some(at) = at {
                    self.running.remove(at);
                }
                if self.probe.as_ref() == Some(&deed.arguments) {
                    self.probe = None;
                }
                require(at.is_some(), "a call ended that did not run")
            }
            HistoryEvent::OrderGiven { order, .. } => {
                self.open.push(*order);
                if starts_server(*order) {
                    self.stopped = false;
                    self.starts.clear();
                }
                Ok(())
            }
            HistoryEvent::OrderAccepted { order, .. } => self.on_action_taken(*order, moment.at_ms),
            HistoryEvent::Connected(_)
            | HistoryEvent::FinishedLate(_)
            | HistoryEvent::Called { .. }
            | HistoryEvent::Note(_) => Ok(()),
        }
    }

    fn on_started(&mut self, life: &ServerInstance, at_ms: u64) -> LawResult {
        let was_idle = std::mem::take(&mut self.idle);
        self.reloads_since = None;
        let was_alive = std::mem::replace(&mut self.alive, true);
        let next = life.generation == self.generation + 1;
        self.generation = life.generation;
        require(!self.stopped, "a stopped server was started")?;
        require(!self.down, "a server was started after the shutdown")?;
        require(
            !was_alive && next,
            "a generation was restarted more than once",
        )?;
        // Requested by a call: not a restart.
        if was_idle {
            return Ok(());
        }
        let window = to_millis(self.spec.restart.window);
        while self
            .starts
            .front()
            .is_some_and(|start| start + window <= at_ms)
        {
            self.starts.pop_front();
        }
        self.starts.push_back(at_ms);
        if self.open.iter().copied().any(starts_server) {
            return Ok(());
        }
        let max = self.spec.restart.restarts_max as usize + 1;
        require(self.starts.len() <= max, "the restart budget was exceeded")
    }

    /// The host closed a link: by an operator action or idle stop.
    fn on_closed(&mut self, running: usize, at_ms: u64) -> LawResult {
        if self.closing || self.open.iter().any(|order| *order != ServerAction::Start) {
            return Ok(());
        }
        if let Some(since) = self.reloads_since {
            let drained = since + to_millis(self.spec.drain_timeout);
            let waited = running == 0 || at_ms >= drained;
            return require(waited, "a reload did not wait for a call");
        }
        self.idle = true;
        require(
            self.spec.idle_stop.is_some(),
            "the host ended a server that served",
        )?;
        require(running == 0, "idle_stop stopped a server with a call")
    }

    fn on_executed(&mut self, arguments: &str, before: Option<&HistoryEvent>) -> LawResult {
        self.running.push(arguments.to_owned());
        require(!self.stopped, "a stopped server was called")?;
        require(!self.down, "a call ran after the shutdown")?;
        require(
            self.running.len() <= self.spec.calls_max,
            "more calls in flight than calls_max",
        )?;
        // Nothing happened between the call and its execution, so the breaker admitted it in the
        // recorded state.
        let probes = matches!(before, Some(HistoryEvent::Called { arguments: own, circuit, .. })
            if *circuit == "half_open" && own == arguments);
        if !probes {
            return Ok(());
        }
        let alone = self.probe.is_none();
        self.probe = Some(arguments.to_owned());
        require(alone, "two probes at once")
    }

    fn on_action_taken(&mut self, order: ServerAction, at_ms: u64) -> LawResult {
        let at = self.open.iter().position(|open| *open == order);
        at.map(|at| self.open.remove(at));
        if starts_server(order) {
            self.starts.clear();
            self.probe = None;
            if order == ServerAction::Reload && self.alive {
                // A second reload changes nothing: the drain timeout is not extended.
                self.reloads_since.get_or_insert(at_ms);
            }
            return Ok(());
        }
        if self.open.iter().copied().any(starts_server) {
            return Ok(());
        }
        self.stopped = true;
        require(
            !self.alive && self.running.is_empty(),
            "a stopped server lives on",
        )
    }
}

/// Concurrent starts stay within the limit.
fn check_concurrent_starts(record: &SimRecord, limits: &HostLimits, broken: &mut Vec<String>) {
    let mut starting: Vec<(&ServerInstance, u64)> = Vec::new();
    for moment in &record.history {
        match &moment.event {
            HistoryEvent::Started(life) => {
                starting.retain(|(_, since)| moment.at_ms < since + START_PLACE_MS);
                starting.push((life, moment.at_ms));
                if starting.len() > limits.starts_max {
                    broken.push(format!("more starts at once than may be: {starting:?}"));
                }
            }
            HistoryEvent::Connected(life) | HistoryEvent::Ended(life) => {
                starting.retain(|(own, _)| *own != life);
            }
            _ => {}
        }
    }
}
