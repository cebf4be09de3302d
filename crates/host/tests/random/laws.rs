//! The laws of supervision, held against the history of a world.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bowline_core::time::millis;
use bowline_host::HostLimits;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::Order;
use bowline_sim::{Happened, Life, Moment, Record};

/// A start that takes longer gives its place to another.
const START_PLACE_MS: u64 = 2_000;

/// Holds every law against the history.
pub(crate) fn check(
    record: &Record,
    specs: &[ServerSpec],
    limits: &HostLimits,
    broken: &mut Vec<String>,
) {
    let mut servers: BTreeMap<Arc<str>, Seen<'_>> = specs
        .iter()
        .map(|spec| (Arc::clone(&spec.name), Seen::new(spec)))
        .collect();
    let mut before = None;
    for (nth, moment) in record.history.iter().enumerate() {
        let law = match moment.what.server() {
            Some(name) => servers.get_mut(name).unwrap().see(moment, before),
            None => {
                servers
                    .values_mut()
                    .for_each(|seen| seen.noted(&moment.what));
                Ok(())
            }
        };
        if let Err(law) = law {
            let at = moment.at_ms;
            broken.push(format!("{law}: entry {nth} at {at} ms, {:?}", moment.what));
        }
        before = Some(&moment.what);
    }
    starts_at_once(record, limits, broken);
}

/// What was seen of one server so far.
#[derive(Debug)]
struct Seen<'a> {
    spec: &'a ServerSpec,
    /// Moments of starts that the budget must allow, oldest first.
    starts: VecDeque<u64>,
    /// The latest life.
    generation: u64,
    /// Whether a process of it lives.
    alive: bool,
    /// Whether its latest life ended because nobody called.
    idle: bool,
    /// Orders that were given and not taken yet.
    open: Vec<Order>,
    /// When a reload was taken that has not started it anew yet.
    reloads_since: Option<u64>,
    /// Whether the last order that was taken is to stop.
    stopped: bool,
    /// Whether the host goes down.
    closing: bool,
    /// Whether the host is down.
    down: bool,
    /// Calls that run, by their arguments.
    running: Vec<String>,
    /// The call that probes it.
    probe: Option<String>,
}

type Law = Result<(), &'static str>;

fn demand(holds: bool, law: &'static str) -> Law {
    if holds { Ok(()) } else { Err(law) }
}

/// Whether an order makes a server run that did not.
const fn starts(order: Order) -> bool {
    !matches!(order, Order::Stop)
}

impl<'a> Seen<'a> {
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

    fn noted(&mut self, what: &Happened) {
        match what {
            Happened::Noted(word) if word == "shutdown" => self.closing = true,
            Happened::Noted(word) if word == "down" => self.down = true,
            _ => {}
        }
    }

    fn see(&mut self, moment: &Moment, before: Option<&Happened>) -> Law {
        match &moment.what {
            Happened::Started(life) => self.started(life, moment.at_ms),
            Happened::Closed { running, .. } => self.closed(*running, moment.at_ms),
            Happened::Ended(_) => {
                self.alive = false;
                Ok(())
            }
            Happened::Executed(deed) => self.executed(&deed.arguments, before),
            Happened::Finished(deed) | Happened::Cancelled(deed) => {
                let at = self.running.iter().position(|own| *own == deed.arguments);
                if let Some(at) = at {
                    self.running.remove(at);
                }
                if self.probe.as_ref() == Some(&deed.arguments) {
                    self.probe = None;
                }
                demand(at.is_some(), "a call ended that did not run")
            }
            Happened::Ordered { order, .. } => {
                self.open.push(*order);
                if starts(*order) {
                    self.stopped = false;
                    self.starts.clear();
                }
                Ok(())
            }
            Happened::Taken { order, .. } => self.taken(*order, moment.at_ms),
            Happened::Connected(_)
            | Happened::Late(_)
            | Happened::Called { .. }
            | Happened::Noted(_) => Ok(()),
        }
    }

    fn started(&mut self, life: &Life, at_ms: u64) -> Law {
        let was_idle = std::mem::take(&mut self.idle);
        self.reloads_since = None;
        let was_alive = std::mem::replace(&mut self.alive, true);
        let next = life.generation == self.generation + 1;
        self.generation = life.generation;
        demand(!self.stopped, "a stopped server was started")?;
        demand(!self.down, "a server was started after the shutdown")?;
        demand(
            !was_alive && next,
            "a generation was restarted more than once",
        )?;
        // A call asked for it: that is no restart.
        if was_idle {
            return Ok(());
        }
        let window = millis(self.spec.restart.window);
        while self
            .starts
            .front()
            .is_some_and(|start| start + window <= at_ms)
        {
            self.starts.pop_front();
        }
        self.starts.push_back(at_ms);
        if self.open.iter().copied().any(starts) {
            return Ok(());
        }
        let max = self.spec.restart.restarts_max as usize + 1;
        demand(self.starts.len() <= max, "the restart budget was exceeded")
    }

    /// The host closed a link: because a person said so, or because nobody called.
    fn closed(&mut self, running: usize, at_ms: u64) -> Law {
        if self.closing || self.open.iter().any(|order| *order != Order::Start) {
            return Ok(());
        }
        if let Some(since) = self.reloads_since {
            let drained = since + millis(self.spec.drain_timeout);
            let waited = running == 0 || at_ms >= drained;
            return demand(waited, "a reload did not wait for a call");
        }
        self.idle = true;
        demand(
            self.spec.idle_stop.is_some(),
            "the host ended a server that served",
        )?;
        demand(running == 0, "idle_stop stopped a server with a call")
    }

    fn executed(&mut self, arguments: &str, before: Option<&Happened>) -> Law {
        self.running.push(arguments.to_owned());
        demand(!self.stopped, "a stopped server was called")?;
        demand(!self.down, "a call ran after the shutdown")?;
        demand(
            self.running.len() <= self.spec.calls_max,
            "more calls in flight than calls_max",
        )?;
        // Nothing happened between the call and its execution, so the breaker let it through as
        // it stood then.
        let probes = matches!(before, Some(Happened::Called { arguments: own, circuit, .. })
            if *circuit == "half_open" && own == arguments);
        if !probes {
            return Ok(());
        }
        let alone = self.probe.is_none();
        self.probe = Some(arguments.to_owned());
        demand(alone, "two probes at once")
    }

    fn taken(&mut self, order: Order, at_ms: u64) -> Law {
        let at = self.open.iter().position(|open| *open == order);
        at.map(|at| self.open.remove(at));
        if starts(order) {
            self.starts.clear();
            self.probe = None;
            if order == Order::Reload && self.alive {
                // A second one changes nothing: calls in flight have no more time.
                self.reloads_since.get_or_insert(at_ms);
            }
            return Ok(());
        }
        if self.open.iter().copied().any(starts) {
            return Ok(());
        }
        self.stopped = true;
        demand(
            !self.alive && self.running.is_empty(),
            "a stopped server lives on",
        )
    }
}

/// No more servers are started at the same time than may be.
fn starts_at_once(record: &Record, limits: &HostLimits, broken: &mut Vec<String>) {
    let mut starting: Vec<(&Life, u64)> = Vec::new();
    for moment in &record.history {
        match &moment.what {
            Happened::Started(life) => {
                starting.retain(|(_, since)| moment.at_ms < since + START_PLACE_MS);
                starting.push((life, moment.at_ms));
                if starting.len() > limits.starts_max {
                    broken.push(format!("more starts at once than may be: {starting:?}"));
                }
            }
            Happened::Connected(life) | Happened::Ended(life) => {
                starting.retain(|(own, _)| *own != life);
            }
            _ => {}
        }
    }
}
