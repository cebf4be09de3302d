//! Encodes the exit of a server for the executor protocol.

use crate::frames::ServerExit;

use bowline_link::LinkExit;

/// Encodes an exit.
#[must_use]
pub fn encode_exit(exit: LinkExit) -> ServerExit {
    let number = |number: i32| u64::try_from(number).ok();
    let (cause, number) = match exit {
        LinkExit::Status(code) => ("status", number(code)),
        LinkExit::Signal(signal) => ("signal", number(signal)),
        LinkExit::Closed => ("closed", None),
        LinkExit::Overrun => ("overrun", None),
        LinkExit::OverMemory { bytes_max } => ("memory", Some(bytes_max)),
        LinkExit::OverProcesses { processes_max } => ("processes", Some(processes_max)),
        LinkExit::ProgramNotFound => ("program_not_found", None),
        LinkExit::Stopping => ("stopping", None),
        LinkExit::Gone | LinkExit::Away => ("gone", None),
    };
    ServerExit {
        cause: cause.into(),
        number,
    }
}

/// Decodes an exit; an unknown word becomes `Gone`.
#[must_use]
pub fn decode_exit(exited: &ServerExit) -> LinkExit {
    let small = exited.number.and_then(|number| i32::try_from(number).ok());
    match (&*exited.cause, exited.number) {
        ("status", _) => small.map_or(LinkExit::Gone, LinkExit::Status),
        ("signal", _) => small.map_or(LinkExit::Gone, LinkExit::Signal),
        ("closed", _) => LinkExit::Closed,
        ("overrun", _) => LinkExit::Overrun,
        ("memory", Some(bytes_max)) => LinkExit::OverMemory { bytes_max },
        ("processes", Some(processes_max)) => LinkExit::OverProcesses { processes_max },
        ("program_not_found", _) => LinkExit::ProgramNotFound,
        _ => LinkExit::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_survives_encode_and_decode() {
        for end in [
            LinkExit::Status(0),
            LinkExit::Status(7),
            LinkExit::Signal(9),
            LinkExit::Closed,
            LinkExit::Overrun,
            LinkExit::OverMemory { bytes_max: 1 << 40 },
            LinkExit::OverProcesses { processes_max: 9 },
            LinkExit::ProgramNotFound,
            LinkExit::Gone,
        ] {
            assert_eq!(decode_exit(&encode_exit(end)), end);
        }
        for how in ["", "stopping", "status", "memory", "what"] {
            let exited = ServerExit {
                cause: how.into(),
                number: None,
            };
            assert_eq!(decode_exit(&exited), LinkExit::Gone, "{how}");
        }
    }
}
