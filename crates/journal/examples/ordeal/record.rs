//! What the writer tells its parent: fixed records through a pipe, written without a buffer.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;

/// Bytes of a record. Smaller than what a pipe takes at once, so that it is there whole or not.
pub(crate) const RECORD_BYTES: usize = 16;

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It is about to be asked for.
    Begun,
    /// Its future ended well: it must hold from here on.
    Ended,
    /// It was refused: nothing may have changed.
    Refused,
    /// The engine says that it does not know any more: it may hold or not.
    Poisoned,
    /// The journal is open.
    Opened,
    /// The journal could not be opened.
    Shut,
    /// A read gave what it should not, or nothing.
    Misread,
    /// The script came to its end.
    Over,
    /// The shim failed a call; the operation says which.
    Hit,
    /// What was there has been ended: there must be room again.
    Roomy,
}

/// What is done to a message or a value.
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
    /// None: the record is about the writer itself.
    None,
}

/// One thing that was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) phase: Phase,
    pub(crate) op: Op,
    /// For a put: whose value. For a hit: which call.
    pub(crate) detail: u16,
    /// The message, or the value that is put.
    pub(crate) number: u64,
}

const PHASES: [Phase; 10] = [
    Phase::Begun,
    Phase::Ended,
    Phase::Refused,
    Phase::Poisoned,
    Phase::Opened,
    Phase::Shut,
    Phase::Misread,
    Phase::Over,
    Phase::Hit,
    Phase::Roomy,
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

impl Record {
    fn bytes(self) -> [u8; RECORD_BYTES] {
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

    fn of(bytes: [u8; RECORD_BYTES]) -> Option<Self> {
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

/// Where the writer tells.
#[derive(Debug)]
pub(crate) struct Teller {
    pipe: File,
}

impl Teller {
    /// The standard output, without the buffer that the standard library puts before it.
    pub(crate) fn stdout() -> io::Result<Self> {
        let pipe = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(Self { pipe })
    }

    /// Tells one thing; it is with the parent when this returns, whatever happens to us then.
    pub(crate) fn tell(&self, phase: Phase, op: Op, detail: u16, number: u64) -> io::Result<()> {
        let record = Record {
            phase,
            op,
            detail,
            number,
        };
        (&self.pipe).write_all(&record.bytes())
    }
}

/// What was read of a pipe and is no whole record yet.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    rest: Vec<u8>,
}

impl Reader {
    /// Takes in bytes and gives the records that are whole.
    pub(crate) fn take(&mut self, bytes: &[u8], mut each: impl FnMut(Record)) -> io::Result<()> {
        self.rest.extend_from_slice(bytes);
        let mut rest = self.rest.as_slice();
        while let Some((record, after)) = rest.split_first_chunk::<RECORD_BYTES>() {
            let strange = || io::Error::new(io::ErrorKind::InvalidData, "not a record");
            each(Record::of(*record).ok_or_else(strange)?);
            rest = after;
        }
        self.rest = rest.to_vec();
        Ok(())
    }
}
