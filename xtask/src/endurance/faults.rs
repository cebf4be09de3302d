//! The faults of an endurance run, in turn: restarts and outages of the server over HTTP, a frozen
//! server, a killed process of the gateway.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::PIPE;
use crate::{gateway::RunningGateway, http_fixture::HttpFixture, process};

/// The time from one fault to the next.
const FAULT_EVERY: Duration = Duration::from_secs(20);

/// No fault begins so late that the run ends before everything recovered.
const CALM_AT_END: Duration = Duration::from_secs(15);

const OUTAGE: Duration = Duration::from_secs(1);

/// After a return nothing is broken for this long.
pub(super) const UNDISTURBED: Duration = Duration::from_secs(18);

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    /// The server over HTTP is killed with calls in flight and started again at once.
    Restart,
    /// The server over HTTP is away for a second.
    Outage,
    /// The process that the gateway started is killed; once in two minutes, within its budget.
    Kill,
}

/// The order of faults: of six, one is a kill.
const ORDER: [Fault; 6] = [
    Fault::Restart,
    Fault::Outage,
    Fault::Restart,
    Fault::Outage,
    Fault::Restart,
    Fault::Kill,
];

/// A fault and the moment from which its server could be reached again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recovery {
    pub(super) fault: Fault,
    pub(super) back: Instant,
}

/// Breaks servers while the load runs.
#[derive(Debug)]
pub(super) struct Faults {
    web: HttpFixture,
}

impl Faults {
    pub(super) fn new(web: HttpFixture) -> Self {
        Self { web }
    }

    /// Runs faults until shortly before the end, and returns them.
    pub(super) fn run(mut self, gateway: &RunningGateway, end: Instant) -> Result<Vec<Recovery>> {
        let mut recoveries = Vec::new();
        let mut next = process::now() + FAULT_EVERY / 2;
        for fault in ORDER.into_iter().cycle() {
            if next + CALM_AT_END > end {
                break;
            }
            thread::sleep(next.saturating_duration_since(process::now()));
            self.cause(fault, gateway)?;
            let back = process::now();
            recoveries.push(Recovery { fault, back });
            next += FAULT_EVERY;
        }
        // The server stays until the last call has ended.
        thread::sleep(end.saturating_duration_since(process::now()) + OUTAGE);
        Ok(recoveries)
    }

    fn cause(&mut self, fault: Fault, gateway: &RunningGateway) -> Result<()> {
        match fault {
            Fault::Restart => self.web.restart(),
            Fault::Outage => {
                self.web.kill();
                thread::sleep(OUTAGE);
                self.web.restart()
            }
            Fault::Kill => {
                if let Some(pid) = gateway.server_pids()?.get(PIPE) {
                    // It may have gone by itself in the meantime.
                    let mut kill = Command::new("kill");
                    let _ = process::quiet(kill.args(["-KILL", &pid.to_string()]));
                }
                Ok(())
            }
        }
    }
}
