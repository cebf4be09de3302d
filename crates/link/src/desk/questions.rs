//! What a server asks, and which of its questions are open.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bowline_core::caller::{Ability, CallerEnd, QuestionId, SessionKey};
use bowline_wire::mcp::method;
use bowline_wire::{Message, object};
use bytes::Bytes;

/// Questions of one server that may be open at once.
const QUESTIONS_MAX: usize = 64;

/// Addresses that users were sent to and that are remembered, the newest ones.
const ADDRESSES_MAX: usize = 256;

/// The questions of one server.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    /// By the server's id, as it wrote it.
    open: HashMap<Bytes, Open>,
    /// Ids of addresses, and the session that was sent there.
    addresses: VecDeque<(Box<str>, SessionKey)>,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) caller: Arc<dyn CallerEnd>,
    /// How the caller's end calls it; absent while it is being put.
    pub(super) number: Option<QuestionId>,
    /// The request of ours during which it was asked.
    pub(super) call: Option<u64>,
}

impl Questions {
    /// Enters a question; `false` when there is no room or one has this id.
    pub(super) fn open(&mut self, id: &Bytes, open: Open) -> bool {
        if self.open.len() >= QUESTIONS_MAX || self.open.contains_key(id) {
            return false;
        }
        self.open.insert(id.clone(), open);
        true
    }

    /// Notes how the caller's end calls a question.
    pub(crate) fn name(&mut self, id: &Bytes, number: QuestionId) {
        if let Some(open) = self.open.get_mut(id) {
            open.number = Some(number);
        }
    }

    pub(super) fn close(&mut self, id: &[u8]) -> Option<Open> {
        self.open.remove(id)
    }

    /// Takes out what was asked during a request of ours.
    pub(super) fn close_of(&mut self, call: u64) -> Vec<Open> {
        self.open
            .extract_if(|_, open| open.call == Some(call))
            .map(|(_, open)| open)
            .collect()
    }

    /// Notes that a session was sent to an address.
    pub(crate) fn remember(&mut self, address: &str, session: SessionKey) {
        if self.addresses.len() >= ADDRESSES_MAX {
            self.addresses.pop_front();
        }
        self.addresses.push_back((address.into(), session));
    }

    /// Returns the session that was sent to an address.
    pub(crate) fn session_of(&self, address: &str) -> Option<SessionKey> {
        let mut newest = self.addresses.iter().rev();
        newest
            .find(|(known, _)| **known == *address)
            .map(|(_, session)| *session)
    }
}

/// Returns what a client must be able to do to be asked this; `None` when no client can be.
#[must_use]
pub fn ability(message: &Message) -> Option<Ability> {
    let params = message.params().unwrap_or_default();
    match message.method()? {
        method::SAMPLING_CREATE_MESSAGE if object::field(params, "tools").is_some() => {
            Some(Ability::SamplingTools)
        }
        method::SAMPLING_CREATE_MESSAGE => Some(Ability::Sampling),
        method::ELICITATION_CREATE if object::text(params, "mode").as_deref() == Some("url") => {
            Some(Ability::ElicitationUrl)
        }
        method::ELICITATION_CREATE => Some(Ability::ElicitationForm),
        method::ROOTS_LIST => Some(Ability::Roots),
        _ => None,
    }
}
