//! Streams unknown to this process: opened before a restart, or ended too long ago. The seal in the
//! stream name identifies the session and the waiting requests.

use std::sync::Arc;

use bytes::Bytes;

use super::ClientSession;
use crate::call_errors;
use crate::event_stream::{
    EventBody, EventBuffer, EventId, EventSource, ReaderId, StreamDelivery, StreamLabel,
    StreamName, StreamOpening,
};
use crate::seal::SealPurpose;

/// Maximum size of sealed ids. A batch with more ids cannot be resumed once its stream is unknown.
const SEALED_BYTES_MAX: usize = 512;

/// Whether a resumed stream delivers all missed events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayCoverage {
    /// All events.
    Whole,
    /// Some events may be missing: evicted from the buffer, or lost in a restart.
    Partial,
}

/// Identifies a session: the start of its random id.
pub(super) type SessionMark = [u8; 16];

pub(super) fn session_mark(id: &str) -> SessionMark {
    let mut mark = SessionMark::default();
    for (to, from) in mark.iter_mut().zip(id.bytes()) {
        *to = from;
    }
    mark
}

/// Bit set in labels of listen streams, never in labels of call streams.
const LISTEN_BIT: u64 = 1 << 63;

/// Returns the label of a session's listen stream: stable across restarts and unique per session.
pub(super) fn listen_label(id: &str) -> StreamLabel {
    let mut start = [0; 8];
    for (to, from) in start.iter_mut().zip(id.bytes()) {
        *to = from;
    }
    StreamLabel(LISTEN_BIT | u64::from_be_bytes(start))
}

impl ClientSession {
    /// Names the stream of the calls `ids`.
    pub(super) fn name_stream<'a>(
        &self,
        label: StreamLabel,
        ids: impl Iterator<Item = &'a Bytes>,
    ) -> StreamName {
        let text = encode_stream_name(&self.mark, label, ids);
        let seal = text.and_then(|text| self.shared.seal.seal_bytes(SealPurpose::Stream, &text));
        StreamName {
            label,
            seal: seal.map(Arc::from),
        }
    }

    /// Responds to the calls of an unknown stream of this session; `None` for a stream of a
    /// different session, or an invalid name.
    pub(super) fn resume_lost_stream(&self, event_id: EventId<'_>) -> Option<EventBody> {
        let seal = event_id.seal?;
        let text = self.shared.seal.open_bytes(SealPurpose::Stream, seal)?;
        let ids = decode_stream_name(&text, &self.mark, event_id.label)?;
        let lost = Arc::new(LostCalls::new(&ids, event_id.number));
        let reader = lost.buffer.attach_reader();
        let name = StreamName {
            label: event_id.label,
            seal: Some(seal.into()),
        };
        let source = lost as Arc<dyn EventSource>;
        Some(EventBody::new(
            source,
            reader,
            Some(name),
            StreamOpening::Comment,
        ))
    }
}

/// Encodes the mark, the label, and each id with its length.
fn encode_stream_name<'a>(
    mark: &SessionMark,
    label: StreamLabel,
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

/// Decodes the ids, if the stream belongs to this session and label.
fn decode_stream_name<'a>(
    text: &'a [u8],
    mark: &SessionMark,
    label: StreamLabel,
) -> Option<Vec<&'a [u8]>> {
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

/// Stream with responses for calls of a lost stream.
#[derive(Debug)]
struct LostCalls {
    buffer: EventBuffer,
}

impl LostCalls {
    fn new(ids: &[&[u8]], number: u64) -> Self {
        let buffer = EventBuffer::starting_after(number);
        if let Some((last, before)) = ids.split_last() {
            for id in before {
                buffer.push(call_errors::outcome_unknown_response(id));
            }
            buffer.finish(call_errors::outcome_unknown_response(last));
        }
        Self { buffer }
    }
}

impl EventSource for LostCalls {
    fn buffer(&self) -> &EventBuffer {
        &self.buffer
    }

    fn reader_left(&self, reader: ReaderId, _: StreamDelivery) {
        self.buffer.release_reader(reader);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_name_reads_back_for_its_stream_only() {
        let mark = session_mark("0123456789abcdefrest");
        let ids = [Bytes::from_static(b"1"), Bytes::from_static(b"\"x\"")];
        let text = encode_stream_name(&mark, StreamLabel(7), ids.iter()).unwrap();
        let read = decode_stream_name(&text, &mark, StreamLabel(7)).unwrap();
        assert_eq!(read, [&b"1"[..], b"\"x\""]);
        assert_eq!(decode_stream_name(&text, &mark, StreamLabel(8)), None);
        assert_eq!(
            decode_stream_name(&text, &session_mark("another"), StreamLabel(7)),
            None
        );
        assert_eq!(
            decode_stream_name(&text[..text.len() - 1], &mark, StreamLabel(7)),
            None
        );
        let many = vec![ids[1].clone(); SEALED_BYTES_MAX];
        assert_eq!(encode_stream_name(&mark, StreamLabel(7), many.iter()), None);
    }
}
