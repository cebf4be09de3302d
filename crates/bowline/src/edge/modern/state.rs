//! What a caller brings back with its answers: sealed, and good for one caller and one request.

use std::time::Duration;

use bowline_core::call::{Principal, Scope};
use bowline_wire::canonical::canonical;
use sha2::{Digest as _, Sha256};

use crate::edge::seal::{Seal, Use, scope_line};

/// How long a caller may take to bring answers.
pub(crate) const STATE_TTL: Duration = Duration::from_secs(600);

/// Whose a state is, and for which request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound<'a> {
    pub(crate) principal: &'a Principal,
    pub(crate) scope: &'a Scope,
    /// See [`digest`].
    pub(crate) request: &'a [u8; 32],
}

/// What is kept in a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A call that waits here for its caller.
    Parked(Ticket),
    /// What the server wrote, which keeps nothing here.
    Carried(String),
}

/// Names one round of a call that waits here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The process that the call waits in.
    pub(crate) boot: u64,
    /// The call.
    pub(crate) handle: u64,
    /// How often it was asked; a state is good for one answer.
    pub(crate) round: u32,
}

/// Why a state is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// This gateway did not write it, or not so.
    Forged,
    /// It was given to somebody else, or at another endpoint.
    NotYours,
    /// It was given for another request.
    OtherRequest,
    /// It is too old.
    Expired,
}

/// Tells requests apart: by their method, what they name, and their arguments however written.
pub(crate) fn digest(method: &str, name: &str, arguments: Option<&[u8]>) -> [u8; 32] {
    let arguments = arguments.map(|raw| canonical(raw).unwrap_or_else(|_| raw.to_vec()));
    let mut hash = Sha256::new();
    for part in [method.as_bytes(), name.as_bytes()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.update([u8::from(arguments.is_some())]);
    hash.update(arguments.unwrap_or_default());
    hash.finalize().into()
}

/// Seals a state; `None` when the system gives no randomness.
pub(crate) fn seal(seal: &Seal, bound: Bound<'_>, now_ms: u64, state: &State) -> Option<String> {
    let ttl_ms = u64::try_from(STATE_TTL.as_millis()).unwrap_or(u64::MAX);
    let until_ms = now_ms.saturating_add(ttl_ms);
    let (kind, inner) = match state {
        State::Parked(at) => ("p", format!("{}\n{}\n{}", at.boot, at.handle, at.round)),
        State::Carried(inner) => ("c", inner.clone()),
    };
    // None of the parts before the last holds a line break.
    let text = format!(
        "{kind}\n{until_ms}\n{}\n{}\n{}\n{}\n{inner}",
        crate::state::hex(bound.request),
        scope_line(bound.scope),
        bound.principal.name,
        bound.principal.credential,
    );
    seal.close(Use::State, text.as_bytes())
}

/// Opens a state that `bound` brings, `now_ms` after 1970.
pub(crate) fn open(
    seal: &Seal,
    bound: Bound<'_>,
    now_ms: u64,
    text: &str,
) -> Result<State, Refused> {
    let text = seal.disclose(Use::State, text).ok_or(Refused::Forged)?;
    let text = String::from_utf8(text).map_err(|_| Refused::Forged)?;
    let mut lines = text.splitn(7, '\n');
    let mut line = || lines.next().ok_or(Refused::Forged);
    let (kind, until_ms, request) = (line()?, line()?, line()?);
    let (scope, name, credential, inner) = (line()?, line()?, line()?, line()?);
    let principal = bound.principal;
    if scope != scope_line(bound.scope)
        || *name != *principal.name
        || *credential != *principal.credential
    {
        return Err(Refused::NotYours);
    }
    if request != crate::state::hex(bound.request) {
        return Err(Refused::OtherRequest);
    }
    let until_ms: u64 = until_ms.parse().map_err(|_| Refused::Forged)?;
    if now_ms >= until_ms {
        return Err(Refused::Expired);
    }
    match kind {
        "p" => ticket(inner).map(State::Parked).ok_or(Refused::Forged),
        "c" => Ok(State::Carried(inner.to_owned())),
        _ => Err(Refused::Forged),
    }
}

fn ticket(text: &str) -> Option<Ticket> {
    let mut lines = text.split('\n');
    let ticket = Ticket {
        boot: lines.next()?.parse().ok()?,
        handle: lines.next()?.parse().ok()?,
        round: lines.next()?.parse().ok()?,
    };
    lines.next().is_none().then_some(ticket)
}

#[cfg(test)]
mod tests;
