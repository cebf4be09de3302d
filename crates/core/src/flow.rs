//! Credit: how much a sender may send before the reader has read.
//!
//! The windows of all streams of a connection together are never larger than its budget. Half of
//! it is floors: every stream has one, so that streams that nobody reads take nothing from others.
//! The other half is lent to streams that use up what they have.

/// What a connection takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// Bytes of all streams that may wait to be read or be on their way.
    pub connection_bytes_max: u64,
    /// Bytes of one stream, likewise.
    pub stream_bytes_max: u64,
    /// What a new stream is given where much is left.
    pub first_bytes: u64,
    /// Streams at once.
    pub streams_max: u64,
}

impl Default for FlowLimits {
    fn default() -> Self {
        Self {
            connection_bytes_max: 16 * 1024 * 1024,
            stream_bytes_max: 1024 * 1024,
            first_bytes: 64 * 1024,
            streams_max: 1_024,
        }
    }
}

impl FlowLimits {
    /// Returns what every stream has for itself.
    #[must_use]
    pub const fn floor(&self) -> u64 {
        match self.streams_max {
            0 => 0,
            streams => self.connection_bytes_max / 2 / streams,
        }
    }
}

/// More came than was allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdrawn;

/// What the reading side of a connection has to give.
#[derive(Debug)]
pub struct Budget {
    limits: FlowLimits,
    streams: u64,
    /// What is left to be lent.
    left: u64,
}

impl Budget {
    /// Returns a budget of which nothing is given.
    #[must_use]
    pub const fn new(limits: FlowLimits) -> Self {
        Self {
            limits,
            streams: 0,
            left: limits.connection_bytes_max / 2,
        }
    }

    /// Opens a stream, if one more is taken: its first credit is [`Window::size`].
    pub fn open(&mut self) -> Option<Window> {
        if self.streams >= self.limits.streams_max {
            return None;
        }
        self.streams += 1;
        let floor = self.limits.floor();
        // The last half of what can be lent is for those who read.
        let is_much = self.left > self.limits.connection_bytes_max / 4;
        let wanted = self.limits.first_bytes.saturating_sub(floor);
        let lent = if is_much { self.lend(wanted) } else { 0 };
        let size = floor + lent;
        Some(Window {
            size,
            lent,
            coming: size,
            waiting: 0,
        })
    }

    /// Ends a stream: what it was lent can be lent to others.
    pub fn close(&mut self, window: &Window) {
        self.streams = self.streams.saturating_sub(1);
        self.left = self.left.saturating_add(window.lent);
    }

    /// Notes that bytes were read; returns how many more the sender may be told to send.
    pub fn read(&mut self, window: &mut Window, bytes: u64) -> Option<u64> {
        window.waiting = window.waiting.saturating_sub(bytes);
        // Who used up all of it while it was read is held up by us.
        if window.coming == 0 {
            let most = self.limits.stream_bytes_max.saturating_sub(window.size);
            let lent = self.lend(window.size.min(most));
            window.size += lent;
            window.lent += lent;
        }
        let free = window
            .size
            .saturating_sub(window.coming)
            .saturating_sub(window.waiting);
        // Not for every byte: a credit costs a frame.
        if free == 0 || free < window.size / 2 {
            return None;
        }
        window.coming += free;
        Some(free)
    }

    fn lend(&mut self, wanted: u64) -> u64 {
        let lent = wanted.min(self.left);
        self.left -= lent;
        lent
    }
}

/// What one stream was given. Invariant: `coming + waiting <= size`.
#[derive(Debug)]
pub struct Window {
    size: u64,
    lent: u64,
    /// Told to the sender, and not here yet.
    coming: u64,
    /// Here, and not read yet.
    waiting: u64,
}

impl Window {
    /// Returns how many bytes may wait or be on their way.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Returns what the sender may still send: what it is told again on a new connection.
    #[must_use]
    pub const fn coming(&self) -> u64 {
        self.coming
    }

    /// Notes that bytes came.
    ///
    /// # Errors
    /// They were not allowed.
    pub const fn arrived(&mut self, bytes: u64) -> Result<(), Overdrawn> {
        if bytes > self.coming {
            return Err(Overdrawn);
        }
        self.coming -= bytes;
        self.waiting += bytes;
        Ok(())
    }
}

/// What the sending side of a stream may send.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Credit(u64);

impl Credit {
    /// Returns a credit of so many bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Adds what the reader takes more.
    pub const fn add(&mut self, bytes: u64) {
        self.0 = self.0.saturating_add(bytes);
    }

    /// Takes as much as is wanted and there, and returns how much that is.
    pub fn take(&mut self, wanted: u64) -> u64 {
        let taken = wanted.min(self.0);
        self.0 -= taken;
        taken
    }

    /// Returns what is left.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_together_are_never_larger_than_the_budget_and_none_is_without() {
        let limits = FlowLimits::default();
        for seed in 0..5 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut budget = Budget::new(limits);
            let mut open: Vec<Window> = Vec::new();
            for _ in 0..5_000 {
                match random.u8(..10) {
                    0..=2 => open.extend(budget.open()),
                    3 if !open.is_empty() => {
                        let window = open.swap_remove(random.usize(..open.len()));
                        budget.close(&window);
                    }
                    _ if !open.is_empty() => {
                        let at = random.usize(..open.len());
                        let window = &mut open[at];
                        let coming = window.coming();
                        window.arrived(coming).unwrap();
                        if random.bool() {
                            let waiting = window.waiting;
                            budget.read(window, waiting);
                        }
                    }
                    _ => {}
                }
                let sum: u64 = open.iter().map(Window::size).sum();
                assert!(sum <= limits.connection_bytes_max);
                assert!(open.iter().all(|window| window.size() >= limits.floor()));
                assert!(open.len() as u64 <= limits.streams_max);
            }
        }
    }

    #[test]
    fn who_reads_is_given_more_and_who_does_not_is_not() {
        let mut budget = Budget::new(FlowLimits::default());
        let mut read = budget.open().unwrap();
        let mut unread = budget.open().unwrap();
        let first = unread.size();
        unread.arrived(first).unwrap();
        let mut credit = Credit::new(read.size());
        for _ in 0..100 {
            let sent = credit.take(u64::MAX);
            read.arrived(sent).unwrap();
            credit.add(budget.read(&mut read, sent).unwrap_or_default());
        }
        assert_eq!(read.size(), FlowLimits::default().stream_bytes_max);
        assert_eq!(unread.size(), first);
        assert_eq!(unread.arrived(1), Err(Overdrawn));
    }

    #[test]
    fn one_stream_more_than_there_may_be_is_refused() {
        let limits = FlowLimits {
            streams_max: 2,
            ..FlowLimits::default()
        };
        let mut budget = Budget::new(limits);
        let one = budget.open().unwrap();
        let _two = budget.open().unwrap();
        assert!(budget.open().is_none());
        budget.close(&one);
        assert!(budget.open().is_some());
    }
}
