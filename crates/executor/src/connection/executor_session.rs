//! Session with an executor: stream numbers, flow-control budget and remote server streams, which
//! outlive a connection.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bowline_core::sync::lock;
use bowline_link::websocket::DisconnectReason;

use crate::flow::{FlowBudget, FlowLimits};
use crate::frames::{ExecutorFrame, StreamMark};
use foldhash::fast::RandomState;

use super::frame_writer::FrameWriter;

/// Whether a stream accepts more frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameOutcome {
    /// More frames may arrive.
    Open,
    /// Later frames are ignored.
    Closed,
}

/// Whether a stream outlives its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutOutcome {
    /// It waits for the next connection.
    Resumable,
    /// It has ended.
    Closed,
}

/// One stream: an HTTP exchange or a remote server. Methods are called without a lock and must not
/// block.
pub(crate) trait ExecutorStream: fmt::Debug + Send + Sync {
    /// Handles a frame.
    fn on_frame(&self, frame: ExecutorFrame, writer: &FrameWriter) -> FrameOutcome;

    /// Handles the loss of the connection.
    fn on_disconnect(&self, reason: &DisconnectReason) -> CutOutcome;

    /// Returns the resume position, if the stream can resume.
    fn resume_mark(&self) -> Option<StreamMark>;

    /// Resumes over a new connection from the position of the executor.
    fn resume(&self, mark: &StreamMark, writer: &FrameWriter);

    /// Handles that the executor no longer has the stream, or that the session has ended.
    fn on_gone(&self, reason: &str);
}

/// The current connection of a session, until the next attachment.
#[derive(Debug)]
pub struct SessionAttachment {
    pub(super) session: Arc<ExecutorSession>,
    pub(super) connection: u64,
}

impl SessionAttachment {
    /// Resumes the streams that the executor still has; all remaining streams are gone.
    pub(super) fn resume_streams(&self, marks: &[StreamMark], writer: &FrameWriter) {
        let open: Vec<_> = {
            let table = lock(&self.session.table);
            if table.connection != self.connection {
                return;
            }
            table
                .streams
                .iter()
                .map(|(n, s)| (*n, Arc::clone(s)))
                .collect()
        };
        let remote_marks: HashMap<u64, &StreamMark> =
            marks.iter().map(|mark| (mark.stream, mark)).collect();
        for (number, stream) in open {
            match remote_marks.get(&number) {
                Some(mark) => stream.resume(mark, writer),
                None => {
                    self.session.remove_stream(number);
                    stream.on_gone("the executor does not have it any more");
                }
            }
        }
    }
}

/// One session with an executor. Stream numbers start at 1 and are never reused.
pub struct ExecutorSession {
    id: Arc<str>,
    /// Start id of the executor process.
    instance: Arc<str>,
    last_stream_id: AtomicU64,
    limits: FlowLimits,
    budget: Mutex<FlowBudget>,
    /// Unread response bytes.
    waiting_bytes: AtomicU64,
    table: Mutex<StreamTable>,
}

#[derive(Debug, Default)]
struct StreamTable {
    /// Number of the current connection, counted from 1.
    connection: u64,
    /// Cause of its disconnect.
    disconnect_reason: Option<DisconnectReason>,
    streams: HashMap<u64, Arc<dyn ExecutorStream>, RandomState>,
    /// The session has ended.
    is_closed: bool,
}

impl fmt::Debug for ExecutorSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutorSession")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl ExecutorSession {
    /// Returns an empty session. The id is a secret shared with the executor only.
    #[must_use]
    pub fn new(id: Arc<str>, instance: Arc<str>, limits: FlowLimits) -> Arc<Self> {
        Arc::new(Self {
            id,
            instance,
            last_stream_id: AtomicU64::new(0),
            limits,
            budget: Mutex::new(FlowBudget::new(limits)),
            waiting_bytes: AtomicU64::new(0),
            table: Mutex::default(),
        })
    }

    /// Returns the session id.
    #[must_use]
    pub const fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Returns the start id of the executor process.
    #[must_use]
    pub const fn instance(&self) -> &Arc<str> {
        &self.instance
    }

    /// Returns the number of open streams.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        lock(&self.table).streams.len()
    }

    /// Returns the number of unread response bytes.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting_bytes.load(Ordering::Relaxed)
    }

    /// Whether any stream can resume over another connection.
    #[must_use]
    pub fn has_resumable_streams(&self) -> bool {
        !self.resume_marks().is_empty()
    }

    /// Ends the session: streams that wait for a connection are gone.
    pub fn end(&self, reason: &str) {
        let open = {
            let mut table = lock(&self.table);
            table.is_closed = true;
            std::mem::take(&mut table.streams)
        };
        for stream in open.values() {
            stream.on_gone(reason);
        }
    }

    pub(crate) const fn limits(&self) -> &FlowLimits {
        &self.limits
    }

    /// Returns the flow-control budget of all streams.
    pub(crate) fn budget(&self) -> MutexGuard<'_, FlowBudget> {
        lock(&self.budget)
    }

    /// Adds received bytes to the unread count.
    pub(super) fn add_waiting_bytes(&self, bytes: u64) {
        self.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes from the unread count.
    pub(super) fn subtract_waiting_bytes(&self, bytes: u64) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the number of a new stream.
    pub(crate) fn next_stream_id(&self) -> u64 {
        self.last_stream_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns the number of streams so far.
    pub(crate) fn stream_count(&self) -> u64 {
        self.last_stream_id.load(Ordering::Relaxed)
    }

    /// Adds a stream before its first frame is sent.
    pub(crate) fn add_stream(
        &self,
        connection: u64,
        number: u64,
        stream: Arc<dyn ExecutorStream>,
    ) -> Result<(), DisconnectReason> {
        let mut table = lock(&self.table);
        if table.is_closed || table.connection != connection {
            return Err(DisconnectReason::Local);
        }
        if let Some(reason) = &table.disconnect_reason {
            return Err(reason.clone());
        }
        table.streams.insert(number, stream);
        Ok(())
    }

    /// Removes a stream; later frames are ignored.
    pub(crate) fn remove_stream(&self, number: u64) {
        let stream = lock(&self.table).streams.remove(&number);
        drop(stream);
    }

    /// Returns the resume positions of all resumable streams.
    pub(crate) fn resume_marks(&self) -> Vec<StreamMark> {
        let open: Vec<_> = lock(&self.table).streams.values().cloned().collect();
        open.iter()
            .filter_map(|stream| stream.resume_mark())
            .collect()
    }

    /// Makes a new connection the current connection; streams of the old connection are cut.
    #[must_use]
    pub fn attach(self: &Arc<Self>) -> SessionAttachment {
        let older = lock(&self.table).connection;
        self.disconnect(older, &DisconnectReason::Local);
        let mut table = lock(&self.table);
        table.connection += 1;
        table.disconnect_reason = None;
        SessionAttachment {
            session: Arc::clone(self),
            connection: table.connection,
        }
    }

    /// Delivers a frame to its stream; frames of unknown streams are ignored.
    pub(crate) fn deliver_frame(
        &self,
        connection: u64,
        number: u64,
        frame: ExecutorFrame,
        writer: &FrameWriter,
    ) {
        let stream = {
            let table = lock(&self.table);
            match table.connection == connection && table.disconnect_reason.is_none() {
                true => table.streams.get(&number).cloned(),
                false => None,
            }
        };
        if let Some(stream) = stream
            && stream.on_frame(frame, writer) == FrameOutcome::Closed
        {
            self.remove_stream(number);
        }
    }

    /// Handles the loss of the connection; only resumable streams stay.
    pub(crate) fn disconnect(&self, connection: u64, reason: &DisconnectReason) {
        let open: Vec<_> = {
            let mut table = lock(&self.table);
            if table.connection != connection || table.disconnect_reason.is_some() {
                return;
            }
            table.disconnect_reason = Some(reason.clone());
            table
                .streams
                .iter()
                .map(|(n, s)| (*n, Arc::clone(s)))
                .collect()
        };
        for (number, stream) in open {
            if stream.on_disconnect(reason) == CutOutcome::Closed {
                self.remove_stream(number);
            }
        }
    }
}
