//! Flow control by credit: how much a sender may send before the reader has read.
//!
//! The windows of all streams of a connection never exceed the connection budget. Half of the
//! budget is reserved as floors, one per stream, so that unread streams cannot starve active
//! streams. The second half is lent to streams that use up their window.

/// Flow limits of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowLimits {
    /// Unread and in-flight bytes of all streams.
    pub connection_bytes_max: u64,
    /// Unread and in-flight bytes of one stream.
    pub stream_bytes_max: u64,
    /// Initial window of a stream while plenty is lendable.
    pub first_bytes: u64,
    /// Concurrent streams.
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
    /// Returns the guaranteed window of every stream.
    #[must_use]
    pub const fn stream_floor(&self) -> u64 {
        match self.streams_max {
            0 => 0,
            streams => self.connection_bytes_max / 2 / streams,
        }
    }
}

/// The sender exceeded its credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditExceeded;

/// The receive budget of a connection.
#[derive(Debug)]
pub struct FlowBudget {
    limits: FlowLimits,
    stream_count: u64,
    /// Bytes left to lend.
    lendable: u64,
}

impl FlowBudget {
    /// Returns an unused budget.
    #[must_use]
    pub const fn new(limits: FlowLimits) -> Self {
        Self {
            limits,
            stream_count: 0,
            lendable: limits.connection_bytes_max / 2,
        }
    }

    /// Opens a stream, if the limit allows; the initial credit is [`StreamWindow::size`].
    pub fn open_stream(&mut self) -> Option<StreamWindow> {
        if self.stream_count >= self.limits.streams_max {
            return None;
        }
        self.stream_count += 1;
        let floor = self.limits.stream_floor();
        // The last half of the lendable bytes is reserved for streams being read.
        let is_much = self.lendable > self.limits.connection_bytes_max / 4;
        let wanted = self.limits.first_bytes.saturating_sub(floor);
        let lent = if is_much { self.lend_bytes(wanted) } else { 0 };
        let size = floor + lent;
        Some(StreamWindow {
            size,
            lent,
            outstanding: size,
            unread: 0,
        })
    }

    /// Closes a stream and takes back the lent bytes.
    pub fn close_stream(&mut self, window: &StreamWindow) {
        self.stream_count = self.stream_count.saturating_sub(1);
        self.lendable = self.lendable.saturating_add(window.lent);
    }

    /// Records read bytes; returns the credit to grant to the sender, if any.
    pub fn record_read(&mut self, window: &mut StreamWindow, bytes: u64) -> Option<u64> {
        window.unread = window.unread.saturating_sub(bytes);
        // The sender used up the window while the reader kept reading: the window is the
        // bottleneck.
        if window.outstanding == 0 {
            let most = self.limits.stream_bytes_max.saturating_sub(window.size);
            let lent = self.lend_bytes(window.size.min(most));
            window.size += lent;
            window.lent += lent;
        }
        let free = window
            .size
            .saturating_sub(window.outstanding)
            .saturating_sub(window.unread);
        // Grants are batched: each costs a frame.
        if free == 0 || free < window.size / 2 {
            return None;
        }
        window.outstanding += free;
        Some(free)
    }

    fn lend_bytes(&mut self, wanted: u64) -> u64 {
        let lent = wanted.min(self.lendable);
        self.lendable -= lent;
        lent
    }
}

/// Receive window of one stream. Invariant: `outstanding + unread <= size`.
#[derive(Debug)]
pub struct StreamWindow {
    size: u64,
    lent: u64,
    /// Granted to the sender and not received.
    outstanding: u64,
    /// Received and not read.
    unread: u64,
}

impl StreamWindow {
    /// Returns the limit of unread and in-flight bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Returns the credit the sender has left; repeated to the sender on a new connection.
    #[must_use]
    pub const fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Records received bytes.
    ///
    /// # Errors
    /// The sender exceeded its credit.
    pub const fn record_arrival(&mut self, bytes: u64) -> Result<(), CreditExceeded> {
        if bytes > self.outstanding {
            return Err(CreditExceeded);
        }
        self.outstanding -= bytes;
        self.unread += bytes;
        Ok(())
    }
}

/// Send credit of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SendCredit(u64);

impl SendCredit {
    /// Returns a credit of `bytes`.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Adds credit granted by the reader.
    pub const fn add_bytes(&mut self, bytes: u64) {
        self.0 = self.0.saturating_add(bytes);
    }

    /// Takes up to `wanted` bytes of credit and returns the amount taken.
    pub fn take_up_to(&mut self, wanted: u64) -> u64 {
        let taken = wanted.min(self.0);
        self.0 -= taken;
        taken
    }

    /// Returns the remaining credit.
    #[must_use]
    pub const fn remaining_bytes(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_stay_within_budget_and_above_floor() {
        let limits = FlowLimits::default();
        for seed in 0..5 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut budget = FlowBudget::new(limits);
            let mut open: Vec<StreamWindow> = Vec::new();
            for _ in 0..5_000 {
                match random.u8(..10) {
                    0..=2 => open.extend(budget.open_stream()),
                    3 if !open.is_empty() => {
                        let window = open.swap_remove(random.usize(..open.len()));
                        budget.close_stream(&window);
                    }
                    _ if !open.is_empty() => {
                        let at = random.usize(..open.len());
                        let window = &mut open[at];
                        let coming = window.outstanding();
                        window.record_arrival(coming).unwrap();
                        if random.bool() {
                            let waiting = window.unread;
                            budget.record_read(window, waiting);
                        }
                    }
                    _ => {}
                }
                let sum: u64 = open.iter().map(StreamWindow::size).sum();
                assert!(sum <= limits.connection_bytes_max);
                assert!(
                    open.iter()
                        .all(|window| window.size() >= limits.stream_floor())
                );
                assert!(open.len() as u64 <= limits.streams_max);
            }
        }
    }

    #[test]
    fn read_stream_grows_and_unread_does_not() {
        let mut budget = FlowBudget::new(FlowLimits::default());
        let mut read = budget.open_stream().unwrap();
        let mut unread = budget.open_stream().unwrap();
        let first = unread.size();
        unread.record_arrival(first).unwrap();
        let mut credit = SendCredit::new(read.size());
        for _ in 0..100 {
            let sent = credit.take_up_to(u64::MAX);
            read.record_arrival(sent).unwrap();
            credit.add_bytes(budget.record_read(&mut read, sent).unwrap_or_default());
        }
        assert_eq!(read.size(), FlowLimits::default().stream_bytes_max);
        assert_eq!(unread.size(), first);
        assert_eq!(unread.record_arrival(1), Err(CreditExceeded));
    }

    #[test]
    fn stream_beyond_limit_is_refused() {
        let limits = FlowLimits {
            streams_max: 2,
            ..FlowLimits::default()
        };
        let mut budget = FlowBudget::new(limits);
        let one = budget.open_stream().unwrap();
        let _two = budget.open_stream().unwrap();
        assert!(budget.open_stream().is_none());
        budget.close_stream(&one);
        assert!(budget.open_stream().is_some());
    }
}
