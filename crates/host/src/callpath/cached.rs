//! Answers that stay good for a while, because their server says so.

use bowline_core::call::{Call, Reply, Route};
use bowline_core::time::Now;

use crate::supervisor::Supervisor;

/// The answers that are kept.
#[derive(Debug, Default)]
pub struct Answers {}

/// What came of looking for an answer.
#[derive(Debug)]
pub(crate) enum Entered {
    /// There is one.
    #[expect(dead_code, reason = "nothing is kept yet")]
    Hit(Reply),
    /// The server must be asked.
    Live(Flight),
}

/// A call that goes to its server, and whose answer may be kept.
#[derive(Debug)]
pub(crate) struct Flight;

impl Answers {
    /// Looks for an answer, and waits where the same call is under way already.
    #[expect(clippy::unused_async, reason = "nothing is kept yet")]
    pub(crate) async fn enter(
        &self,
        _call: &Call,
        (_route, _server): (&Route, &Supervisor),
        _now: Now,
    ) -> Entered {
        Entered::Live(Flight)
    }

    /// Forgets all answers of a server.
    #[expect(dead_code, reason = "nothing is kept yet")]
    pub(crate) fn purge(&self, _server: &str) {}
}

impl Flight {
    /// Keeps an answer as long as its server says that it stays good.
    pub(crate) fn land(self, _reply: &Reply, _now: Now) {}
}
