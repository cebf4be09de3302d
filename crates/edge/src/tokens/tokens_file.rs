//! The format of `tokens.json`: valid as a whole, or an error.

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use bowline_core::call::{ContextSet, PeerAddress, Principal, Role};
use bowline_core::hex::to_hex;
use serde::{Deserialize, Serialize};

use super::{
    CONTEXTS_MAX, IssuedToken, NAME_BYTES_MAX, TOKENS_MAX, TokenKind, owner_agent_principal,
    token_text,
};
use bowline_config::state::{self, private_file};
use bowline_config::{is_principal_name, is_run_name};

/// Maximum file size: the maximum number of tokens with long names.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Version of the file format.
const VERSION: u32 = 1;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokensFile {
    v: u32,
    tokens: Vec<TokenRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenRecord {
    id: String,
    principal: String,
    /// Absent for an agent token, as in files from before token kinds.
    #[serde(default, skip_serializing_if = "TokenKind::is_default")]
    kind: TokenKind,
    role: Option<String>,
    contexts: Vec<String>,
    /// Contexts added after creation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    narrowed: Vec<String>,
    created_at_ms: u64,
    expires_at_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    /// Whether the holder acts for the owner.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    owners_agent: bool,
    secret_sha256: String,
}

/// Reads the file; a missing file means an empty list.
pub(super) fn read_tokens(path: &Path) -> Result<Vec<IssuedToken>, state::StateError> {
    let Some(bytes) = private_file::read_private(path, FILE_BYTES_MAX)? else {
        return Ok(Vec::new());
    };
    let corrupt = |reason: String| state::StateError::Corrupt {
        path: path.to_owned(),
        reason,
        fix: format!(
            "restore it from a backup, or `rm {}` and make every token anew",
            path.display()
        ),
    };
    let record: TokensFile =
        serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
    if record.v != VERSION {
        return Err(corrupt(format!("its version is {}", record.v)));
    }
    if record.tokens.len() > TOKENS_MAX {
        return Err(corrupt(format!("it holds more than {TOKENS_MAX} tokens")));
    }
    let mut seen_ids = HashSet::new();
    let tokens = record.tokens.into_iter().enumerate().map(|(at, record)| {
        let token = to_issued_token(record).filter(|token| seen_ids.insert(Arc::clone(token.id())));
        token.ok_or_else(|| corrupt(format!("token number {} is not valid", at + 1)))
    });
    tokens.collect()
}

/// Encodes tokens as the content of the file.
pub(super) fn encode_tokens<'a>(
    tokens: impl Iterator<Item = &'a Arc<IssuedToken>>,
) -> Result<Vec<u8>, state::StateError> {
    let mut tokens: Vec<_> = tokens.map(|token| to_record(token)).collect();
    tokens.sort_by(|a, b| (a.created_at_ms, &a.id).cmp(&(b.created_at_ms, &b.id)));
    let record = TokensFile { v: VERSION, tokens };
    state::to_json_line(&record)
}

fn to_record(token: &IssuedToken) -> TokenRecord {
    let owned = |name: &Arc<str>| name.as_ref().to_owned();
    TokenRecord {
        id: owned(token.id()),
        principal: owned(&token.principal.name),
        kind: token.kind,
        role: token.role().map(owned),
        contexts: token.principal.contexts.names().iter().map(owned).collect(),
        narrowed: token.added_contexts().names().iter().map(owned).collect(),
        created_at_ms: token.created_ms,
        expires_at_ms: token.expires_ms,
        run: token.run.as_ref().map(owned),
        owners_agent: token.principal.role == Role::OwnersAgent,
        secret_sha256: to_hex(&token.secret_hash),
    }
}

fn to_issued_token(record: TokenRecord) -> Option<IssuedToken> {
    let named = |name: &str| !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    let is_valid = token_text::is_token_id(&record.id)
        && record.run.as_deref().is_none_or(is_run_name)
        && has_valid_principal(&record)
        && has_valid_fields(&record)
        && record.role.as_deref().is_none_or(named)
        // A profile counts as one more context.
        && record.contexts.len() <= CONTEXTS_MAX + 1
        && record.contexts.iter().all(|name| named(name))
        && record.narrowed.len() <= CONTEXTS_MAX
        && record.narrowed.iter().all(|name| named(name));
    if !is_valid {
        return None;
    }
    let principal = Principal {
        name: record.principal.into(),
        role: match record.role {
            _ if record.owners_agent => Role::OwnersAgent,
            Some(role) => Role::Named(role.into()),
            None => Role::None,
        },
        contexts: ContextSet::new(record.contexts),
        credential: record.id.into(),
        peer: PeerAddress::default(),
    };
    Some(IssuedToken {
        principal: Arc::new(principal),
        kind: record.kind,
        created_ms: record.created_at_ms,
        expires_ms: record.expires_at_ms,
        run: record.run.map(Into::into),
        secret_hash: state::decode_hex(&record.secret_sha256)?,
        added_contexts: Mutex::new(ContextSet::new(record.narrowed)),
        is_ended: AtomicBool::new(false),
    })
}

/// Returns whether the principal is valid: an owner run without a role, or a regular principal.
fn has_valid_principal(record: &TokenRecord) -> bool {
    match (record.owners_agent, &record.run) {
        (true, Some(run)) => {
            record.role.is_none() && *record.principal == *owner_agent_principal(run)
        }
        (true, None) => false,
        (false, _) => is_principal_name(&record.principal),
    }
}

/// Returns whether the fields fit the kind: only an agent token has a role or a run.
fn has_valid_fields(record: &TokenRecord) -> bool {
    match record.kind {
        TokenKind::Agent => true,
        TokenKind::Executor | TokenKind::Auditor | TokenKind::Viewer => {
            record.role.is_none() && record.run.is_none() && record.contexts.is_empty()
        }
    }
}
