//! How long a line may be, by the requests that are in flight.

use bowline_wire::{Kind, Message};
use bytes::Bytes;

use super::Peer;
use crate::desk;

impl Peer {
    /// Returns how long a line may be that answers one of the requests in flight.
    pub(super) fn large_bytes_max(&self) -> usize {
        let state = self.lock();
        let kinds = state.waiters.pending.iter().map(|(_, waiter)| waiter.kind);
        let limits = kinds.map(|kind| self.limits.large.bytes_max(kind, 0));
        limits.max().unwrap_or_default()
    }

    /// Returns how long the response to a request may be.
    pub(super) fn response_bytes_max(&self, id: u64) -> usize {
        let usual = self.limits.line_bytes_max;
        let kind = self
            .lock()
            .waiters
            .pending
            .get(id)
            .map(|waiter| waiter.kind);
        kind.map_or(usual, |kind| self.limits.large.bytes_max(kind, usual))
    }

    /// Refuses a line that is longer than usual and no response that may be so long; returns the
    /// request that it answers, if it answers one.
    pub(super) fn admits(&self, line: &Bytes) -> Result<(), Option<u64>> {
        if line.len() <= self.limits.line_bytes_max {
            return Ok(());
        }
        let message = Message::parse_peer(line.clone()).map_err(|_| None)?;
        let answers = match message.kind() {
            Kind::Answer => message.id().and_then(desk::own_id),
            Kind::Request | Kind::Notification => None,
        };
        match answers {
            Some(id) if line.len() <= self.response_bytes_max(id) => Ok(()),
            answers => Err(answers),
        }
    }
}
