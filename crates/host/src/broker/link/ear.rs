//! Lets through what a peer may say to a caller before it answers, and nothing else.

use std::sync::Arc;

use bowline_core::caller::{CallerEnd, SessionKey};
use bowline_wire::mcp::method;
use bowline_wire::object;
use bytes::Bytes;

/// The end of a caller as a peer reaches it: progress of this very call, and log messages.
/// Questions do not travel.
#[derive(Debug)]
pub(super) struct Ear {
    caller: Arc<dyn CallerEnd>,
    /// The caller's progress token, as it wrote it.
    token: Option<Bytes>,
}

impl Ear {
    pub(super) fn over(caller: &Arc<dyn CallerEnd>, token: Option<Bytes>) -> Arc<dyn CallerEnd> {
        Arc::new(Self {
            caller: Arc::clone(caller),
            token,
        })
    }

    fn lets(&self, notification: &[u8]) -> bool {
        let said = object::text(notification, "method");
        match said.as_deref() {
            Some(method::PROGRESS) => {
                let params = object::field(notification, "params").map(|at| at.of(notification));
                let token = params.and_then(|params| {
                    object::field(params, "progressToken").map(|at| at.of(params))
                });
                token.is_some() && token == self.token.as_deref()
            }
            Some(method::MESSAGE) => true,
            Some(_) | None => false,
        }
    }
}

impl CallerEnd for Ear {
    fn session(&self) -> SessionKey {
        self.caller.session()
    }

    fn push(&self, notification: Bytes) {
        if self.lets(&notification) {
            self.caller.push(notification);
        }
    }

    fn home(&self) -> Arc<dyn CallerEnd> {
        self.caller.home()
    }
}
