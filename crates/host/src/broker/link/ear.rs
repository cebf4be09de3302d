//! Lets through what a peer may say to a caller before it answers, and nothing else.

use std::sync::Arc;

use bowline_core::caller::{Abilities, Ability, CallerEnd, Question, QuestionId, SessionKey};
use bowline_core::level::Level;
use bowline_wire::mcp::method;
use bowline_wire::object;
use bytes::Bytes;

/// The end of a caller as a peer reaches it: progress of this very call, log messages, and
/// questions that the caller can be asked.
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
            Some(method::MESSAGE | method::ELICITATION_COMPLETE) => true,
            Some(_) | None => false,
        }
    }
}

impl CallerEnd for Ear {
    fn session(&self) -> SessionKey {
        self.caller.session()
    }

    fn abilities(&self) -> Abilities {
        self.caller.abilities()
    }

    fn level(&self) -> Option<Level> {
        self.caller.level()
    }

    fn ask(&self, question: Question) -> Option<QuestionId> {
        self.caller.ask(question)
    }

    fn lacks(&self, ability: Ability) {
        self.caller.lacks(ability);
    }

    fn withdraw(&self, question: QuestionId) {
        self.caller.withdraw(question);
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
