//! Faults of an endurance run, in turn: restarts and outages of the HTTP server, and kills of the
//! gateway's child process.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::PIPE;
use crate::{http_fixture::HttpFixture, process, running_gateway::RunningGateway};

/// Time from one fault to the next.
const FAULT_EVERY: Duration = Duration::from_secs(20);

/// Time before the end without new faults, so that everything recovers within the run.
const QUIET_AT_END: Duration = Duration::from_secs(15);

const OUTAGE_TIME: Duration = Duration::from_secs(1);

/// Minimum time without a fault after each recovery.
pub(super) const UNDISTURBED_TIME: Duration = Duration::from_secs(18);

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EnduranceFault {
    /// The HTTP server is killed with calls in flight and restarted at once.
    Restart,
    /// The HTTP server is down for a second.
    Outage,
    /// The gateway's child process is killed; once in two minutes, within the restart budget.
    Kill,
}

/// Order of faults: every sixth is a kill.
const FAULT_ORDER: [EnduranceFault; 6] = [
    EnduranceFault::Restart,
    EnduranceFault::Outage,
    EnduranceFault::Restart,
    EnduranceFault::Outage,
    EnduranceFault::Restart,
    EnduranceFault::Kill,
];

/// A fault, and the time from which the server was reachable again.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultRecovery {
    pub(super) fault: EnduranceFault,
    pub(super) back_at: Instant,
}

/// Injects faults while the load runs.
#[derive(Debug)]
pub(super) struct EnduranceFaults {
    web: HttpFixture,
}

impl EnduranceFaults {
    pub(super) fn new(web: HttpFixture) -> Self {
        Self { web }
    }

    /// Injects faults until shortly before the end, and returns them.
    pub(super) fn run(
        mut self,
        gateway: &RunningGateway,
        end: Instant,
    ) -> Result<Vec<FaultRecovery>> {
        let mut recoveries = Vec::new();
        let mut next = process::now() + FAULT_EVERY / 2;
        for fault in FAULT_ORDER.into_iter().cycle() {
            if next + QUIET_AT_END > end {
                break;
            }
            thread::sleep(next.saturating_duration_since(process::now()));
            self.inject_fault(fault, gateway)?;
            let back = process::now();
            recoveries.push(FaultRecovery {
                fault,
                back_at: back,
            });
            next += FAULT_EVERY;
        }
        // The server stays up until the last call has ended.
        thread::sleep(end.saturating_duration_since(process::now()) + OUTAGE_TIME);
        Ok(recoveries)
    }

    fn inject_fault(&mut self, fault: EnduranceFault, gateway: &RunningGateway) -> Result<()> {
        match fault {
            EnduranceFault::Restart => self.web.restart(),
            EnduranceFault::Outage => {
                self.web.kill();
                thread::sleep(OUTAGE_TIME);
                self.web.restart()
            }
            EnduranceFault::Kill => {
                if let Some(pid) = gateway.server_pids()?.get(PIPE) {
                    // The process may have exited in the meantime.
                    let mut kill = Command::new("kill");
                    let _ = process::run_captured(kill.args(["-KILL", &pid.to_string()]));
                }
                Ok(())
            }
        }
    }
}
