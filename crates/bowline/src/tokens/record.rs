//! `tokens.json`: read whole and believed whole, or not at all.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use bowline_core::call::{Contexts, Peer, Principal, Role};
use serde::{Deserialize, Serialize};

use super::{
    CONTEXTS_MAX, Issued, NAME_BYTES_MAX, TOKENS_MAX, TokenKind, is_principal, is_run,
    owners_agent, text,
};
use crate::state::{self, file};

/// The largest file: as many tokens as there may be, with long names.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Version of the file.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    v: u32,
    tokens: Vec<One>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    id: String,
    principal: String,
    /// Absent for an agent's, as it was before there were kinds.
    #[serde(default, skip_serializing_if = "TokenKind::is_default")]
    kind: TokenKind,
    role: Option<String>,
    contexts: Vec<String>,
    /// What narrows it since it was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    narrowed: Vec<String>,
    created_at_ms: u64,
    expires_at_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    /// Whether whoever has it acts for the owner.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    owners_agent: bool,
    secret_sha256: String,
}

/// Reads the file; no file means that no token was made yet.
pub(super) fn read(path: &Path) -> Result<Vec<Issued>, state::Error> {
    let Some(bytes) = file::read_private(path, FILE_BYTES_MAX)? else {
        return Ok(Vec::new());
    };
    let corrupt = |reason: String| state::Error::Corrupt {
        path: path.to_owned(),
        reason,
        fix: format!(
            "restore it from a backup, or `rm {}` and make every token anew",
            path.display()
        ),
    };
    let record: Record =
        serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
    if record.v != VERSION {
        return Err(corrupt(format!("its version is {}", record.v)));
    }
    if record.tokens.len() > TOKENS_MAX {
        return Err(corrupt(format!("it holds more than {TOKENS_MAX} tokens")));
    }
    let mut seen = HashSet::new();
    let tokens = record.tokens.into_iter().enumerate().map(|(at, one)| {
        let token = issued(one).filter(|token| seen.insert(Arc::clone(token.id())));
        token.ok_or_else(|| corrupt(format!("token number {} is not valid", at + 1)))
    });
    tokens.collect()
}

/// Writes tokens as the content of the file.
pub(super) fn write<'a>(
    tokens: impl Iterator<Item = &'a Arc<Issued>>,
) -> Result<Vec<u8>, state::Error> {
    let mut tokens: Vec<_> = tokens.map(|token| one(token)).collect();
    tokens.sort_by(|a, b| (a.created_at_ms, &a.id).cmp(&(b.created_at_ms, &b.id)));
    let record = Record { v: VERSION, tokens };
    state::json(&record)
}

fn one(token: &Issued) -> One {
    let owned = |name: &Arc<str>| name.as_ref().to_owned();
    One {
        id: owned(token.id()),
        principal: owned(&token.principal.name),
        kind: token.kind,
        role: token.role().map(owned),
        contexts: token.principal.contexts.names().iter().map(owned).collect(),
        narrowed: token.narrowed().names().iter().map(owned).collect(),
        created_at_ms: token.created_ms,
        expires_at_ms: token.expires_ms,
        run: token.run.as_ref().map(owned),
        owners_agent: token.principal.role == Role::OwnersAgent,
        secret_sha256: state::hex(&token.hash),
    }
}

fn issued(one: One) -> Option<Issued> {
    let named = |name: &str| !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    let good = text::is_id(&one.id)
        && one.run.as_deref().is_none_or(is_run)
        && is_of_its_principal(&one)
        && is_of_its_kind(&one)
        && one.role.as_deref().is_none_or(named)
        // A profile is one more.
        && one.contexts.len() <= CONTEXTS_MAX + 1
        && one.contexts.iter().all(|name| named(name))
        && one.narrowed.len() <= CONTEXTS_MAX
        && one.narrowed.iter().all(|name| named(name));
    if !good {
        return None;
    }
    let principal = Principal {
        name: one.principal.into(),
        role: match one.role {
            _ if one.owners_agent => Role::OwnersAgent,
            Some(role) => Role::Named(role.into()),
            None => Role::None,
        },
        contexts: Contexts::new(one.contexts),
        credential: one.id.into(),
        peer: Peer::default(),
    };
    Some(Issued {
        principal: Arc::new(principal),
        kind: one.kind,
        created_ms: one.created_at_ms,
        expires_ms: one.expires_at_ms,
        run: one.run.map(Into::into),
        hash: state::unhex(&one.secret_sha256)?,
        narrowed: Mutex::new(Contexts::new(one.narrowed)),
        over: AtomicBool::new(false),
    })
}

/// Whether it is a token of somebody that it can be made for: of a run of the owner's, without a
/// role, or of a principal.
fn is_of_its_principal(one: &One) -> bool {
    match (one.owners_agent, &one.run) {
        (true, Some(run)) => one.role.is_none() && *one.principal == *owners_agent(run),
        (true, None) => false,
        (false, _) => is_principal(&one.principal),
    }
}

/// Whether it says no more than a token of its kind can: only an agent has a role or a run.
fn is_of_its_kind(one: &One) -> bool {
    match one.kind {
        TokenKind::Agent => true,
        TokenKind::Executor | TokenKind::Auditor | TokenKind::Viewer => {
            one.role.is_none() && one.run.is_none() && one.contexts.is_empty()
        }
    }
}
