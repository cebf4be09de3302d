//! Sealed `requestState`: bound to a caller and a request.

use std::time::Duration;

use bowline_core::call::{EndpointScope, Principal};
use bowline_core::hex::to_hex;
use bowline_wire::canonical::to_canonical;
use sha2::{Digest as _, Sha256};

use crate::seal::{Seal, SealPurpose, scope_line};

/// Maximum time until a client returns with input.
pub(crate) const STATE_TTL: Duration = Duration::from_secs(600);

/// Caller and request that a state is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateBinding<'a> {
    pub(crate) principal: &'a Principal,
    pub(crate) scope: &'a EndpointScope,
    /// See [`request_digest`].
    pub(crate) request_digest: &'a [u8; 32],
}

/// Content of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestState {
    /// A call parked here.
    Parked(ParkedRound),
    /// The server's own state; nothing is kept here.
    ServerState(String),
}

/// A round of a parked call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParkedRound {
    /// Id of the process with the parked call.
    pub(crate) boot_id: u64,
    /// Handle of the call.
    pub(crate) handle: u64,
    /// Number of the round; a state is valid for a single continuation.
    pub(crate) round: u32,
}

/// Reason for rejecting a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestStateError {
    /// Not sealed by this gateway, or modified.
    Forged,
    /// Issued to a different caller or endpoint.
    WrongCaller,
    /// Issued for a different request.
    WrongRequest,
    /// Expired.
    Expired,
}

/// Returns the digest of a request: method, name and canonical arguments.
pub(crate) fn request_digest(method: &str, name: &str, arguments: Option<&[u8]>) -> [u8; 32] {
    let arguments = arguments.map(|raw| to_canonical(raw).unwrap_or_else(|_| raw.to_vec()));
    let mut hash = Sha256::new();
    for part in [method.as_bytes(), name.as_bytes()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.update([u8::from(arguments.is_some())]);
    hash.update(arguments.unwrap_or_default());
    hash.finalize().into()
}

/// Seals a state; `None` without system randomness.
pub(crate) fn seal_state(
    seal: &Seal,
    binding: StateBinding<'_>,
    now_ms: u64,
    state: &RequestState,
) -> Option<String> {
    let ttl_ms = u64::try_from(STATE_TTL.as_millis()).unwrap_or(u64::MAX);
    let until_ms = now_ms.saturating_add(ttl_ms);
    let (kind, inner) = match state {
        RequestState::Parked(at) => ("p", format!("{}\n{}\n{}", at.boot_id, at.handle, at.round)),
        RequestState::ServerState(inner) => ("c", inner.clone()),
    };
    // Only the last part may contain line breaks.
    let text = format!(
        "{kind}\n{until_ms}\n{}\n{}\n{}\n{}\n{inner}",
        to_hex(binding.request_digest),
        scope_line(binding.scope),
        binding.principal.name,
        binding.principal.credential,
    );
    seal.seal_bytes(SealPurpose::State, text.as_bytes())
}

/// Opens a state presented by `binding` at `now_ms` Unix time.
pub(crate) fn open_state(
    seal: &Seal,
    binding: StateBinding<'_>,
    now_ms: u64,
    text: &str,
) -> Result<RequestState, RequestStateError> {
    let text = seal
        .open_bytes(SealPurpose::State, text)
        .ok_or(RequestStateError::Forged)?;
    let text = String::from_utf8(text).map_err(|_| RequestStateError::Forged)?;
    let mut lines = text.splitn(7, '\n');
    let mut line = || lines.next().ok_or(RequestStateError::Forged);
    let (kind, until_ms, request) = (line()?, line()?, line()?);
    let (scope, name, credential, inner) = (line()?, line()?, line()?, line()?);
    let principal = binding.principal;
    if scope != scope_line(binding.scope)
        || *name != *principal.name
        || *credential != *principal.credential
    {
        return Err(RequestStateError::WrongCaller);
    }
    if request != to_hex(binding.request_digest) {
        return Err(RequestStateError::WrongRequest);
    }
    let until_ms: u64 = until_ms.parse().map_err(|_| RequestStateError::Forged)?;
    if now_ms >= until_ms {
        return Err(RequestStateError::Expired);
    }
    match kind {
        "p" => parse_parked_round(inner)
            .map(RequestState::Parked)
            .ok_or(RequestStateError::Forged),
        "c" => Ok(RequestState::ServerState(inner.to_owned())),
        _ => Err(RequestStateError::Forged),
    }
}

fn parse_parked_round(text: &str) -> Option<ParkedRound> {
    let mut lines = text.split('\n');
    let ticket = ParkedRound {
        boot_id: lines.next()?.parse().ok()?,
        handle: lines.next()?.parse().ok()?,
        round: lines.next()?.parse().ok()?,
    };
    lines.next().is_none().then_some(ticket)
}

#[cfg(test)]
mod tests;
