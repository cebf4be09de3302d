//! Streams of calls that this process does not know: those of a gateway that was restarted, and
//! those that ended too long ago. The seal in the name of such a stream says whose it was and
//! which requests wait for a response on it.

use std::sync::Arc;

use bytes::Bytes;

use super::Session;
use crate::edge::errors;
use crate::edge::seal::Use;
use crate::edge::stream::{
    EventBody, Label, Line, Opening, Place, Reader, Source, StreamName, Told,
};

/// Bytes that a seal holds. A batch with more ids cannot be resumed once its stream is unknown.
const SEALED_BYTES_MAX: usize = 512;

/// Whether a stream goes on with all that its caller has not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// It does.
    Whole,
    /// Some of it may be missing: it was not kept, or the gateway was restarted.
    Partial,
}

/// Tells one session from every other: the start of its id, which is random.
pub(super) type SessionMark = [u8; 16];

pub(super) fn mark_of(id: &str) -> SessionMark {
    let mut mark = SessionMark::default();
    for (to, from) in mark.iter_mut().zip(id.bytes()) {
        *to = from;
    }
    mark
}

/// Marks the names of streams that sessions listen on; those of calls do not have it.
const HOME: u64 = 1 << 63;

/// Names the stream a session listens on: the same after a restart, another for each session.
pub(super) fn home_label(id: &str) -> Label {
    let mut start = [0; 8];
    for (to, from) in start.iter_mut().zip(id.bytes()) {
        *to = from;
    }
    Label(HOME | u64::from_be_bytes(start))
}

impl Session {
    /// Names the stream of the calls `ids`.
    pub(super) fn name_stream<'a>(
        &self,
        label: Label,
        ids: impl Iterator<Item = &'a Bytes>,
    ) -> StreamName {
        let text = encode(&self.mark, label, ids);
        let seal = text.and_then(|text| self.shared.seal.close(Use::Stream, &text));
        StreamName {
            label,
            seal: seal.map(Arc::from),
        }
    }

    /// Answers the calls of a stream of this session that is not known here; `None` when it is a
    /// stream of another session, or none.
    pub(super) fn answer_lost(&self, place: Place<'_>) -> Option<EventBody> {
        let seal = place.seal?;
        let text = self.shared.seal.disclose(Use::Stream, seal)?;
        let ids = decode(&text, &self.mark, place.label)?;
        let lost = Arc::new(LostCalls::new(&ids, place.number));
        let reader = lost.line.read();
        let name = StreamName {
            label: place.label,
            seal: Some(seal.into()),
        };
        let source = lost as Arc<dyn Source>;
        Some(EventBody::new(source, reader, Some(name), Opening::Comment))
    }
}

/// The mark, the label, and each id after its length.
fn encode<'a>(
    mark: &SessionMark,
    label: Label,
    ids: impl Iterator<Item = &'a Bytes>,
) -> Option<Vec<u8>> {
    let mut text = Vec::from(mark);
    text.extend_from_slice(&label.0.to_be_bytes());
    for id in ids {
        text.extend_from_slice(&u16::try_from(id.len()).ok()?.to_be_bytes());
        text.extend_from_slice(id);
        if text.len() > SEALED_BYTES_MAX {
            return None;
        }
    }
    Some(text)
}

/// Returns the ids, if they belong to this stream of this session.
fn decode<'a>(text: &'a [u8], mark: &SessionMark, label: Label) -> Option<Vec<&'a [u8]>> {
    let rest = text.strip_prefix(mark)?;
    let mut rest = rest.strip_prefix(&label.0.to_be_bytes())?;
    let mut ids = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length));
        let (id, after) = after.split_at_checked(length)?;
        ids.push(id);
        rest = after;
    }
    (rest.is_empty() && !ids.is_empty()).then_some(ids)
}

/// The stream that answers calls whose own stream is gone.
#[derive(Debug)]
struct LostCalls {
    line: Line,
}

impl LostCalls {
    fn new(ids: &[&[u8]], number: u64) -> Self {
        let line = Line::after(number);
        if let Some((last, before)) = ids.split_last() {
            for id in before {
                line.push(errors::outcome_unknown(id));
            }
            line.finish(errors::outcome_unknown(last));
        }
        Self { line }
    }
}

impl Source for LostCalls {
    fn line(&self) -> &Line {
        &self.line
    }

    fn left(&self, reader: Reader, _: Told) {
        self.line.leave(reader);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_name_reads_back_for_its_stream_only() {
        let mark = mark_of("0123456789abcdefrest");
        let ids = [Bytes::from_static(b"1"), Bytes::from_static(b"\"x\"")];
        let text = encode(&mark, Label(7), ids.iter()).unwrap();
        let read = decode(&text, &mark, Label(7)).unwrap();
        assert_eq!(read, [&b"1"[..], b"\"x\""]);
        assert_eq!(decode(&text, &mark, Label(8)), None);
        assert_eq!(decode(&text, &mark_of("another"), Label(7)), None);
        assert_eq!(decode(&text[..text.len() - 1], &mark, Label(7)), None);
        let many = vec![ids[1].clone(); SEALED_BYTES_MAX];
        assert_eq!(encode(&mark, Label(7), many.iter()), None);
    }
}
