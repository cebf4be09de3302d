//! Line length limits, by the requests in flight.

use bowline_wire::{MessageKind, RpcMessage};
use bytes::Bytes;

use super::RpcConnection;
use crate::demux;

impl RpcConnection {
    /// Returns the largest response limit of the requests in flight.
    pub(super) fn large_bytes_max(&self) -> usize {
        let state = self.lock();
        let kinds = state.requests.pending.iter().map(|(_, entry)| entry.kind);
        let limits = kinds.map(|kind| self.limits.large.bytes_max(kind, 0));
        limits.max().unwrap_or_default()
    }

    /// Returns the size limit of the response to a request.
    pub(super) fn response_bytes_max(&self, id: u64) -> usize {
        let usual = self.limits.line_bytes_max;
        let kind = self.lock().requests.pending.get(id).map(|entry| entry.kind);
        kind.map_or(usual, |kind| self.limits.large.bytes_max(kind, usual))
    }

    /// Rejects an overlong line unless it is a large response; the error holds the answered
    /// request.
    pub(super) fn check_line_length(&self, line: &Bytes) -> Result<(), Option<u64>> {
        if line.len() <= self.limits.line_bytes_max {
            return Ok(());
        }
        let message = RpcMessage::parse_from_server(line.clone()).map_err(|_| None)?;
        let response_id = match message.kind() {
            MessageKind::Response => message.id().and_then(demux::parse_own_id),
            MessageKind::Request | MessageKind::Notification => None,
        };
        match response_id {
            Some(id) if line.len() <= self.response_bytes_max(id) => Ok(()),
            response_id => Err(response_id),
        }
    }
}
