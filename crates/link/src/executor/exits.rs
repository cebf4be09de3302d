//! How the end of a server is told between a gateway and an executor.

use bowline_wire::executor::Exited;

use crate::link::Exit;

/// Returns the words for an end.
#[must_use]
pub fn exited(exit: Exit) -> Exited {
    let number = |number: i32| u64::try_from(number).ok();
    let (how, number) = match exit {
        Exit::Status(code) => ("status", number(code)),
        Exit::Signal(signal) => ("signal", number(signal)),
        Exit::Closed => ("closed", None),
        Exit::Overrun => ("overrun", None),
        Exit::OverMemory { bytes_max } => ("memory", Some(bytes_max)),
        Exit::OverProcesses { processes_max } => ("processes", Some(processes_max)),
        Exit::ProgramNotFound => ("program_not_found", None),
        Exit::Stopping => ("stopping", None),
        Exit::Gone | Exit::Away => ("gone", None),
    };
    Exited {
        how: how.into(),
        number,
    }
}

/// Returns what those words say; of others it is only known that the server is gone.
#[must_use]
pub fn exit(exited: &Exited) -> Exit {
    let small = exited.number.and_then(|number| i32::try_from(number).ok());
    match (&*exited.how, exited.number) {
        ("status", _) => small.map_or(Exit::Gone, Exit::Status),
        ("signal", _) => small.map_or(Exit::Gone, Exit::Signal),
        ("closed", _) => Exit::Closed,
        ("overrun", _) => Exit::Overrun,
        ("memory", Some(bytes_max)) => Exit::OverMemory { bytes_max },
        ("processes", Some(processes_max)) => Exit::OverProcesses { processes_max },
        ("program_not_found", _) => Exit::ProgramNotFound,
        _ => Exit::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_the_same_on_the_other_side() {
        for end in [
            Exit::Status(0),
            Exit::Status(7),
            Exit::Signal(9),
            Exit::Closed,
            Exit::Overrun,
            Exit::OverMemory { bytes_max: 1 << 40 },
            Exit::OverProcesses { processes_max: 9 },
            Exit::ProgramNotFound,
            Exit::Gone,
        ] {
            assert_eq!(exit(&exited(end)), end);
        }
        for how in ["", "stopping", "status", "memory", "what"] {
            let exited = Exited {
                how: how.into(),
                number: None,
            };
            assert_eq!(exit(&exited), Exit::Gone, "{how}");
        }
    }
}
