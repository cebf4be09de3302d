//! Servers that run here for a session of a gateway.

use bowline_core::error::Execution;
use bowline_link::executor::Voice;
use bowline_wire::executor::{Fault, FaultCode, Frame, Mark};

use super::offer::Offer;

/// The servers of one session. They outlive its connections.
#[derive(Debug)]
pub(super) struct Servers;

impl Servers {
    /// Returns no servers yet.
    pub(super) const fn new(_offer: &Offer) -> Self {
        Self
    }

    /// Goes on with what a gateway still has; returns what is still here. Nothing is sent before
    /// [`attach`](Self::attach).
    pub(super) fn resume(&self, _marks: &[Mark]) -> Vec<Mark> {
        Vec::new()
    }

    /// Takes a connection that is open.
    pub(super) fn attach(&self, _voice: &Voice) {}

    /// Takes a frame of a stream that is no request: `Start`, `Data`, `End`, `Credit`, `Stop`,
    /// `Cancel`. Must not wait.
    pub(super) fn take(&self, frame: &Frame, voice: &Voice) {
        if let Frame::Start { stream, .. } = frame {
            let fault = Fault {
                code: FaultCode::UnknownServer,
                execution: Execution::NotStarted,
                reason: "there is no such server".into(),
            };
            let stream = *stream;
            voice.say(&Frame::Failed { stream, fault });
        }
    }

    /// The connection is gone; the session may come back.
    pub(super) fn detach(&self) {}

    /// The session is over: nothing of it stays.
    pub(super) fn kill(&self) {}
}
