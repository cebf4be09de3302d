//! Records of the writer for its parent: fixed size, through a pipe, unbuffered.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

/// Bytes of a record, below the atomic write size of a pipe.
pub(crate) const RECORD_BYTES: usize = 16;

/// Phase of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpPhase {
    /// About to be requested.
    Begun,
    /// Acknowledged: must hold from here on.
    Ended,
    /// Refused: nothing may have changed.
    Refused,
    /// Failed as poisoned: may hold or not.
    Poisoned,
    /// The journal is open.
    Opened,
    /// The journal could not be opened.
    OpenFailed,
    /// A read failed or returned wrong data.
    ReadFailed,
    /// The script finished.
    Finished,
    /// The shim failed a call; `detail` names the call.
    CallFailed,
    /// Existing messages were settled: space must be free again.
    SpaceFreed,
}

/// Operation on a message or a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Publish,
    Ack,
    Nak,
    Bury,
    Revive,
    Remove,
    Withdraw,
    Put,
    /// No operation: the record concerns the writer itself.
    None,
}

/// Record of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpRecord {
    pub(crate) phase: OpPhase,
    pub(crate) op: Op,
    /// Producer of a put, or index of a failed call.
    pub(crate) detail: u16,
    /// Message number, or n-th value of a put.
    pub(crate) number: u64,
}

const PHASES: [OpPhase; 10] = [
    OpPhase::Begun,
    OpPhase::Ended,
    OpPhase::Refused,
    OpPhase::Poisoned,
    OpPhase::Opened,
    OpPhase::OpenFailed,
    OpPhase::ReadFailed,
    OpPhase::Finished,
    OpPhase::CallFailed,
    OpPhase::SpaceFreed,
];

const OPS: [Op; 9] = [
    Op::Publish,
    Op::Ack,
    Op::Nak,
    Op::Bury,
    Op::Revive,
    Op::Remove,
    Op::Withdraw,
    Op::Put,
    Op::None,
];

impl OpRecord {
    fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let [detail_low, detail_high] = self.detail.to_le_bytes();
        let [a, b, c, d, e, f, g, h] = self.number.to_le_bytes();
        let (phase, op) = (self.phase as u8, self.op as u8);
        [
            b'O',
            phase,
            op,
            0,
            detail_low,
            detail_high,
            0,
            0,
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            h,
        ]
    }

    fn from_bytes(bytes: [u8; RECORD_BYTES]) -> Option<Self> {
        let [b'O', phase, op, 0, low, high, 0, 0, a, b, c, d, e, f, g, h] = bytes else {
            return None;
        };
        Some(Self {
            phase: *PHASES.get(usize::from(phase))?,
            op: *OPS.get(usize::from(op))?,
            detail: u16::from_le_bytes([low, high]),
            number: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        })
    }
}

/// Writing end of the record pipe.
#[derive(Debug)]
pub(crate) struct RecordWriter {
    pipe: File,
}

impl RecordWriter {
    /// Returns the unbuffered standard output.
    pub(crate) fn stdout() -> io::Result<Self> {
        let pipe = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(Self { pipe })
    }

    /// Writes a record; the parent has the record on return, whatever happens next.
    pub(crate) fn write_record(
        &self,
        phase: OpPhase,
        op: Op,
        detail: u16,
        number: u64,
    ) -> io::Result<()> {
        let record = OpRecord {
            phase,
            op,
            detail,
            number,
        };
        (&self.pipe).write_all(&record.to_bytes())
    }
}

/// Buffer for a partial record.
#[derive(Debug, Default)]
pub(crate) struct RecordReader {
    rest: Vec<u8>,
}

impl RecordReader {
    /// Appends bytes and passes complete records to `each`.
    pub(crate) fn push_bytes(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(OpRecord),
    ) -> io::Result<()> {
        self.rest.extend_from_slice(bytes);
        let mut rest = self.rest.as_slice();
        while let Some((record, after)) = rest.split_first_chunk::<RECORD_BYTES>() {
            let strange = || io::Error::new(io::ErrorKind::InvalidData, "not a record");
            each(OpRecord::from_bytes(*record).ok_or_else(strange)?);
            rest = after;
        }
        self.rest = rest.to_vec();
        Ok(())
    }
}
