//! `/api/v1/tokens`: creation, listing, narrowing and revocation of tokens.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Word;

/// Body of `POST /api/v1/tokens`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenCreateRequest {
    /// Principal of the token; default for a run: the owner's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// `agent`, `executor`, `auditor` or `viewer`; default: `agent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Word>,
    /// Role of an agent to which the config gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Lifetime in seconds; default without `expires_s` and `expires`: `[tokens] lifetime` of the
    /// config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_s: Option<u64>,
    /// Requests a token without expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<NeverExpires>,
    /// Contexts of the token.
    #[serde(default)]
    pub contexts: Vec<String>,
    /// Profile that limits the token on every endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Program run with this token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
}

/// The only value of `expires`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NeverExpires {
    /// The token counts until it is revoked.
    Never,
}

/// Response of `POST /api/v1/tokens`, the only one with the secret text of a token, and of
/// `PUT /api/v1/tokens/{id}/context`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenResponse {
    /// API version.
    pub v: u8,
    /// The secret text; only after creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// The token.
    #[serde(flatten)]
    pub entry: TokenEntry,
}

/// Response of `GET /api/v1/tokens`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokensResponse {
    /// API version.
    pub v: u8,
    /// Time of the gateway in milliseconds since 1970.
    pub now_ms: u64,
    /// Tokens; neither secrets nor hashes.
    pub tokens: Vec<TokenEntry>,
}

/// A token without its secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenEntry {
    /// Id, for commands and logs.
    pub id: Arc<str>,
    /// Principal.
    pub principal: Arc<str>,
    /// `agent`, `executor`, `auditor` or `viewer`.
    pub kind: Word,
    /// Role stored with the token; `None` if the config decides.
    pub role: Option<String>,
    /// True for a token of a program run by the owner.
    pub acts_for_owner: bool,
    /// Program run with the token.
    pub run: Option<Arc<str>>,
    /// Contexts given at creation.
    pub contexts: Vec<Arc<str>>,
    /// Contexts added later.
    pub narrowed: Vec<Arc<str>>,
    /// Creation time in milliseconds since 1970.
    pub created_at_ms: u64,
    /// Expiry in milliseconds since 1970.
    pub expires_at_ms: Option<u64>,
    /// True if the token expires within days.
    pub ends_soon: bool,
    /// `active`, `expired` or `revoked`; absent after creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Word>,
}

/// Response of `DELETE /api/v1/tokens/{id}` and `POST /api/v1/tokens/{id}/end`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenRevokeResponse {
    /// API version.
    pub v: u8,
    /// Revoked tokens.
    pub revoked: Vec<TokenEntry>,
    /// Number of queued calls withdrawn from the outbox.
    pub withdrawn: u64,
}

/// Body of `PUT /api/v1/tokens/{id}/context`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenNarrowRequest {
    /// Contexts in place of those added before.
    pub contexts: Vec<String>,
}

/// Response of `POST /api/v1/owner-token/rotate`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TokenRotateResponse {
    /// API version.
    pub v: u8,
    /// Always true.
    pub rotated: bool,
    /// File with the new owner token.
    pub token_file: Option<PathBuf>,
}
