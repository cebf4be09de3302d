//! What outlives a connection with an executor: the numbers of streams, what may wait to be read,
//! and the streams of servers that run over there.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bowline_core::flow::{Budget, FlowLimits};
use bowline_core::sync::lock;
use bowline_wire::executor::{Frame, Mark};
use foldhash::fast::RandomState;

use super::voice::Voice;
use crate::websocket::Ended;

/// Whether more frames may come for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Took {
    /// Yes.
    More,
    /// No: frames that come later are nobody's.
    Over,
}

/// Whether a stream outlives its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// It waits for another one.
    Waits,
    /// It is over.
    Over,
}

/// One stream: an exchange over HTTP, or a server that runs over there. It is called with no lock
/// held, and must not wait.
pub(crate) trait Stream: fmt::Debug + Send + Sync {
    /// Takes a frame that came for it.
    fn take(&self, frame: Frame, voice: &Voice) -> Took;

    /// The connection is lost.
    fn cut(&self, ended: &Ended) -> Cut;

    /// Returns how far it is, if it goes on over another connection.
    fn mark(&self) -> Option<Mark>;

    /// Goes on over another connection, from where the other side is.
    fn resume(&self, mark: &Mark, voice: &Voice);

    /// The executor does not have it any more, or is not waited for.
    fn gone(&self, reason: &str);
}

/// A connection that is the one in use of its session, until another is.
#[derive(Debug)]
pub struct Attached {
    pub(super) session: Arc<Session>,
    pub(super) connection: u64,
}

impl Attached {
    /// Goes on with what the executor still has; the rest of what outlived the last connection is
    /// gone.
    pub(super) fn resume(&self, marks: &[Mark], voice: &Voice) {
        let open: Vec<_> = {
            let table = lock(&self.session.table);
            if table.connection != self.connection {
                return;
            }
            table
                .open
                .iter()
                .map(|(n, s)| (*n, Arc::clone(s)))
                .collect()
        };
        let there: HashMap<u64, &Mark> = marks.iter().map(|mark| (mark.stream, mark)).collect();
        for (number, stream) in open {
            match there.get(&number) {
                Some(mark) => stream.resume(mark, voice),
                None => {
                    self.session.remove(number);
                    stream.gone("the executor does not have it any more");
                }
            }
        }
    }
}

/// One session with one executor. Its streams are numbered from 1, and no number is used again.
pub struct Session {
    id: Arc<str>,
    /// The start of the executor that it is with.
    instance: Arc<str>,
    last: AtomicU64,
    limits: FlowLimits,
    budget: Mutex<Budget>,
    /// Bytes of answers that are here and not read.
    waiting: AtomicU64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Which connection is the one in use, counted from 1.
    connection: u64,
    /// How that one ended, once it has.
    ended: Option<Ended>,
    open: HashMap<u64, Arc<dyn Stream>, RandomState>,
    /// The session is over.
    closed: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Returns a session in which nothing was asked for. Its id is told to nobody else.
    #[must_use]
    pub fn new(id: Arc<str>, instance: Arc<str>, limits: FlowLimits) -> Arc<Self> {
        Arc::new(Self {
            id,
            instance,
            last: AtomicU64::new(0),
            limits,
            budget: Mutex::new(Budget::new(limits)),
            waiting: AtomicU64::new(0),
            table: Mutex::default(),
        })
    }

    /// Returns what it is called.
    #[must_use]
    pub const fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Returns the start of the executor that it is with.
    #[must_use]
    pub const fn instance(&self) -> &Arc<str> {
        &self.instance
    }

    /// Returns how many streams are open.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        lock(&self.table).open.len()
    }

    /// Returns how many bytes of answers are here and not read.
    #[must_use]
    pub fn waiting_bytes(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Returns whether something in it goes on over another connection.
    #[must_use]
    pub fn is_worth_keeping(&self) -> bool {
        !self.marks().is_empty()
    }

    /// Ends it: what still waited for another connection is told so.
    pub fn end(&self, reason: &str) {
        let open = {
            let mut table = lock(&self.table);
            table.closed = true;
            std::mem::take(&mut table.open)
        };
        for stream in open.values() {
            stream.gone(reason);
        }
    }

    pub(crate) const fn limits(&self) -> &FlowLimits {
        &self.limits
    }

    /// Returns what all its streams together may have waiting.
    pub(crate) fn budget(&self) -> MutexGuard<'_, Budget> {
        lock(&self.budget)
    }

    /// Notes that bytes came and wait.
    pub(super) fn queued(&self, bytes: u64) {
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Notes that bytes do not wait any more.
    pub(super) fn read(&self, bytes: u64) {
        self.waiting.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the number of a new stream.
    pub(crate) fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Returns how many streams there were.
    pub(crate) fn numbers(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Adds a stream that is about to be asked for on a connection.
    pub(crate) fn add(
        &self,
        connection: u64,
        number: u64,
        stream: Arc<dyn Stream>,
    ) -> Result<(), Ended> {
        let mut table = lock(&self.table);
        if table.closed || table.connection != connection {
            return Err(Ended::Local);
        }
        if let Some(ended) = &table.ended {
            return Err(ended.clone());
        }
        table.open.insert(number, stream);
        Ok(())
    }

    /// Forgets a stream: frames that come for it are nobody's.
    pub(crate) fn remove(&self, number: u64) {
        let stream = lock(&self.table).open.remove(&number);
        drop(stream);
    }

    /// Returns how far the streams are that go on over another connection.
    pub(crate) fn marks(&self) -> Vec<Mark> {
        let open: Vec<_> = lock(&self.table).open.values().cloned().collect();
        open.iter().filter_map(|stream| stream.mark()).collect()
    }

    /// Begins a connection, which is the one in use from now on: what an older one carried is cut.
    #[must_use]
    pub fn attach(self: &Arc<Self>) -> Attached {
        let older = lock(&self.table).connection;
        self.cut(older, &Ended::Local);
        let mut table = lock(&self.table);
        table.connection += 1;
        table.ended = None;
        Attached {
            session: Arc::clone(self),
            connection: table.connection,
        }
    }

    /// Hands a frame to its stream. One for a stream that is over, or never was, is nobody's.
    pub(crate) fn deliver(&self, connection: u64, number: u64, frame: Frame, voice: &Voice) {
        let stream = {
            let table = lock(&self.table);
            match table.connection == connection && table.ended.is_none() {
                true => table.open.get(&number).cloned(),
                false => None,
            }
        };
        if let Some(stream) = stream
            && stream.take(frame, voice) == Took::Over
        {
            self.remove(number);
        }
    }

    /// Tells all streams that the connection is lost; only those stay that outlive it.
    pub(crate) fn cut(&self, connection: u64, ended: &Ended) {
        let open: Vec<_> = {
            let mut table = lock(&self.table);
            if table.connection != connection || table.ended.is_some() {
                return;
            }
            table.ended = Some(ended.clone());
            table
                .open
                .iter()
                .map(|(n, s)| (*n, Arc::clone(s)))
                .collect()
        };
        for (number, stream) in open {
            if stream.cut(ended) == Cut::Over {
                self.remove(number);
            }
        }
    }
}
