//! Tokens of principals: shown once, stored as hashes, invalid immediately after revocation.

mod kind;
mod token_text;
mod tokens_file;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use bowline_core::call::{ContextSet, PeerAddress, Principal, Role};
use bowline_core::policy::CredentialContexts;
use bowline_core::sync::lock;
use bowline_core::time::to_millis;
use bowline_runtime::Clock;
use foldhash::fast::RandomState;
use subtle::ConstantTimeEq as _;
use thiserror::Error;
use tokio::sync::Notify;

pub use kind::TokenKind;

use bowline_config::state::{self, StateDir, private_file};

/// Maximum number of tokens, including expired ones.
pub(crate) const TOKENS_MAX: usize = 10_000;

/// Maximum bytes of a role or context name.
pub(crate) const NAME_BYTES_MAX: usize = 128;

/// Maximum contexts of one token.
pub(crate) const CONTEXTS_MAX: usize = 32;

/// Maximum lifetime of a token.
pub(crate) const LIFETIME_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// Time that an expired token stays listed.
const EXPIRED_LISTED: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Notice period before the expiry of a token.
pub(crate) const EXPIRY_NOTICE: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Returns the principal of programs of this name run by the owner. No other token can claim the
/// principal, since principal names hold no colon.
#[must_use]
pub(crate) fn owner_agent_principal(run: &str) -> Arc<str> {
    format!("owner:{run}").into()
}

/// An issued token. Holds the hash of the secret, never the secret.
#[derive(Debug)]
pub struct IssuedToken {
    /// The authenticated principal, with the token id as `credential`.
    pub principal: Arc<Principal>,
    /// The kind of holder.
    pub kind: TokenKind,
    /// Creation time in milliseconds since 1970.
    pub created_ms: u64,
    /// Expiry time.
    pub expires_ms: Option<u64>,
    /// The program run the token was created for; the token ends with the run.
    pub run: Option<Arc<str>>,
    secret_hash: [u8; 32],
    /// Contexts added after creation, besides the contexts of the principal.
    added_contexts: Mutex<ContextSet>,
    /// Set once the token is revoked or expired and its sessions were told to end.
    is_ended: AtomicBool,
}

impl IssuedToken {
    /// Returns a value for the owner token, which has no id and is stored elsewhere.
    pub(crate) fn for_owner(owner: Arc<Principal>) -> Self {
        Self {
            principal: owner,
            kind: TokenKind::Agent,
            created_ms: 0,
            expires_ms: None,
            run: None,
            secret_hash: [0; 32],
            added_contexts: Mutex::default(),
            is_ended: AtomicBool::new(false),
        }
    }

    /// Returns the public part of the token text.
    #[must_use]
    pub fn id(&self) -> &Arc<str> {
        &self.principal.credential
    }

    /// Returns the contexts added after creation.
    #[must_use]
    pub fn added_contexts(&self) -> ContextSet {
        lock(&self.added_contexts).clone()
    }

    /// Returns the role given at creation.
    #[must_use]
    pub fn role(&self) -> Option<&Arc<str>> {
        match &self.principal.role {
            Role::Named(role) => Some(role),
            Role::Owner | Role::OwnersAgent | Role::AnonymousLocal | Role::None => None,
        }
    }

    /// Returns whether the token was revoked, or found expired.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    /// Returns whether the expiry time has passed.
    #[must_use]
    pub fn is_expired(&self, unix_ms: u64) -> bool {
        self.expires_ms.is_some_and(|end| unix_ms >= end)
    }

    /// Returns whether the token should be replaced now: its expiry is near and its lifetime was
    /// longer than the notice period. Run tokens end with the run and never count.
    #[must_use]
    pub fn is_expiring_soon(&self, unix_ms: u64) -> bool {
        let notice = to_millis(EXPIRY_NOTICE);
        let is_near = |end: u64| {
            let is_long = end.saturating_sub(self.created_ms) > notice;
            is_long && end > unix_ms && end - unix_ms <= notice
        };
        self.run.is_none() && !self.is_ended() && self.expires_ms.is_some_and(is_near)
    }

    /// Ends the token; returns `false` for an already ended token.
    pub(crate) fn end_token(&self) -> bool {
        !self.is_ended.swap(true, Ordering::AcqRel)
    }

    /// Returns whether the token expired so long ago that listing it has no use.
    fn is_long_expired(&self, unix_ms: u64) -> bool {
        self.is_expired(unix_ms.saturating_sub(to_millis(EXPIRED_LISTED)))
    }
}

/// Parameters of a new token.
#[derive(Clone, Debug)]
pub struct TokenRequest {
    /// The principal.
    pub principal: Arc<str>,
    /// The kind of holder.
    pub kind: TokenKind,
    /// The role of the principal; [`Role::None`] when the policy defines the role.
    pub role: Role,
    /// Contexts that narrow the token.
    pub contexts: ContextSet,
    /// Lifetime; unlimited when absent.
    pub lifetime: Option<Duration>,
    /// The program run the token is for.
    pub run: Option<Arc<str>>,
}

/// Reason why no token was created.
#[derive(Debug, Error)]
pub enum TokenCreateError {
    /// The maximum number of tokens exists.
    #[error("there are {TOKENS_MAX} tokens already; revoke some first")]
    TooMany,
    /// The token could not be stored.
    #[error(transparent)]
    State(#[from] state::StateError),
}

type TokenTable = HashMap<Arc<str>, Arc<IssuedToken>, RandomState>;

/// All tokens except the owner token.
#[derive(Debug)]
pub struct TokenStore {
    /// Path of the token file; absent for a store in memory.
    path: Option<PathBuf>,
    clock: Arc<dyn Clock>,
    table: ArcSwap<TokenTable>,
    /// Serializes writes of the file.
    write_lock: Mutex<()>,
    /// Notified when the next expiry may have changed.
    expiry_changed: Notify,
}

impl bowline_host::broker::CredentialRevocations for TokenStore {
    fn is_revoked(&self, credential: &str) -> bool {
        Self::is_revoked(self, credential)
    }
}

impl TokenStore {
    /// Loads the tokens of a state directory.
    ///
    /// # Errors
    /// The file cannot be read, is accessible to others, or is damaged. Without the list of tokens
    /// no caller can be authenticated.
    pub fn open(state: &StateDir, clock: Arc<dyn Clock>) -> Result<Self, state::StateError> {
        let path = state.tokens_file();
        let table = tokens_file::read_tokens(&path)?;
        let now = clock.unix_ms();
        let table = table
            .into_iter()
            .filter(|token| !token.is_long_expired(now));
        let table: TokenTable = table
            .map(|token| (Arc::clone(token.id()), Arc::new(token)))
            .collect();
        Ok(Self {
            path: Some(path),
            table: ArcSwap::from_pointee(table),
            ..Self::in_memory(clock)
        })
    }

    /// Creates an empty store in memory.
    #[must_use]
    pub fn in_memory(clock: Arc<dyn Clock>) -> Self {
        Self {
            path: None,
            clock,
            table: ArcSwap::default(),
            write_lock: Mutex::default(),
            expiry_changed: Notify::new(),
        }
    }

    fn write_file<'a>(
        &self,
        tokens: impl Iterator<Item = &'a Arc<IssuedToken>>,
    ) -> Result<(), state::StateError> {
        match &self.path {
            Some(path) => private_file::replace_file(path, &tokens_file::encode_tokens(tokens)?),
            None => Ok(()),
        }
    }

    /// Returns the valid token with this text.
    #[must_use]
    pub fn find_token(&self, text: &str) -> Option<Arc<IssuedToken>> {
        let (id, secret) = token_text::split_token(text)?;
        let table = self.table.load();
        let token = table.get(id)?;
        let is_secret_right = bool::from(token_text::hash_secret(secret).ct_eq(&token.secret_hash));
        let is_valid = is_secret_right && !token.is_ended();
        // The wall clock is read only for tokens with an expiry.
        let is_valid =
            is_valid && (token.expires_ms.is_none() || !token.is_expired(self.clock.unix_ms()));
        is_valid.then(|| Arc::clone(token))
    }

    /// Returns whether the token with this id was revoked. Expired tokens stay known for longer
    /// than any request made with them; the owner token has no id.
    #[must_use]
    pub fn is_revoked(&self, id: &str) -> bool {
        !id.is_empty() && !self.table.load().contains_key(id)
    }

    /// Creates a token, stores its hash, and returns its text, which cannot be read again.
    ///
    /// # Errors
    /// Too many tokens exist, or the token cannot be stored; no token is created then.
    pub fn create_token(
        &self,
        request: &TokenRequest,
    ) -> Result<(String, Arc<IssuedToken>), TokenCreateError> {
        let _one = lock(&self.write_lock);
        let now = self.clock.unix_ms();
        let mut table = TokenTable::clone(&self.table.load());
        table.retain(|_, token| !token.is_long_expired(now));
        if table.len() >= TOKENS_MAX {
            table.retain(|_, token| !token.is_expired(now));
        }
        if table.len() >= TOKENS_MAX {
            return Err(TokenCreateError::TooMany);
        }
        let generated = token_text::generate_token(|id| table.contains_key(id))?;
        let principal = Principal {
            name: Arc::clone(&request.principal),
            role: request.role.clone(),
            contexts: request.contexts.clone(),
            credential: generated.id,
            peer: PeerAddress::default(),
        };
        let token = Arc::new(IssuedToken {
            principal: Arc::new(principal),
            kind: request.kind,
            created_ms: now,
            expires_ms: request
                .lifetime
                .map(|lifetime| now.saturating_add(to_millis(lifetime))),
            run: request.run.clone(),
            secret_hash: generated.hash,
            added_contexts: Mutex::default(),
            is_ended: AtomicBool::new(false),
        });
        table.insert(Arc::clone(token.id()), Arc::clone(&token));
        // An unsaved token would vanish at a restart, so a failed write creates no token.
        self.write_file(table.values())?;
        // A token revoked meanwhile must not come back with the others.
        self.table.rcu(|current| {
            let mut current = TokenTable::clone(current);
            current.retain(|id, _| table.contains_key(id));
            current.insert(Arc::clone(token.id()), Arc::clone(&token));
            current
        });
        self.expiry_changed.notify_one();
        Ok((generated.text, token))
    }

    /// Narrows the token with this id to these contexts, replacing contexts added earlier; the
    /// contexts given at creation stay. Stored on return. `None` for an unknown token.
    ///
    /// # Errors
    /// The change cannot be stored; nothing has changed then.
    pub fn narrow_token(
        &self,
        id: &str,
        contexts: &ContextSet,
    ) -> Result<Option<Arc<IssuedToken>>, state::StateError> {
        let _one = lock(&self.write_lock);
        let table = self.table.load();
        let Some(token) = table.get(id) else {
            return Ok(None);
        };
        let before = std::mem::replace(&mut *lock(&token.added_contexts), contexts.clone());
        if let Err(error) = self.write_file(table.values()) {
            *lock(&token.added_contexts) = before;
            return Err(error);
        }
        Ok(Some(Arc::clone(token)))
    }

    /// Returns the contexts added to tokens after creation, by token id.
    #[must_use]
    pub fn added_contexts(&self) -> CredentialContexts {
        let table = self.table.load();
        let narrowed = table
            .iter()
            .map(|(id, token)| (Arc::clone(id), token.added_contexts()));
        narrowed
            .filter(|(_, contexts)| !contexts.is_empty())
            .collect()
    }

    /// Revokes the token with this id, or all tokens of the principal of this name, and returns
    /// them. The revocation is immediate; [`save`](Self::save) makes it durable.
    pub fn revoke_tokens(&self, id_or_principal: &str) -> Vec<Arc<IssuedToken>> {
        let revoked: Vec<_> = {
            let table = self.table.load();
            match table.get(id_or_principal) {
                Some(token) => vec![Arc::clone(token)],
                None => {
                    let all = table.values();
                    all.filter(|token| *token.principal.name == *id_or_principal)
                        .cloned()
                        .collect()
                }
            }
        };
        for token in &revoked {
            token.end_token();
        }
        self.table.rcu(|current| {
            let mut current = TokenTable::clone(current);
            for token in &revoked {
                current.remove(token.id());
            }
            current
        });
        revoked
    }

    /// Writes the tokens to disk.
    ///
    /// # Errors
    /// The file cannot be written: revoked tokens would be valid again after a restart.
    pub fn save(&self) -> Result<(), state::StateError> {
        let _one = lock(&self.write_lock);
        self.write_file(self.table.load().values())
    }

    /// Returns all tokens, oldest first.
    #[must_use]
    pub fn list_tokens(&self) -> Vec<Arc<IssuedToken>> {
        let mut all: Vec<_> = self.table.load().values().cloned().collect();
        all.sort_by(|a, b| (a.created_ms, a.id()).cmp(&(b.created_ms, b.id())));
        all
    }

    /// Ends the tokens past their expiry, and returns them.
    pub fn end_expired(&self) -> Vec<Arc<IssuedToken>> {
        let now = self.clock.unix_ms();
        let table = self.table.load();
        let expired = table.values().filter(|token| token.is_expired(now));
        expired.filter(|token| token.end_token()).cloned().collect()
    }

    /// Returns the time until the next token expires.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Duration> {
        let table = self.table.load();
        let living = table.values().filter(|token| !token.is_ended());
        let end = living.filter_map(|token| token.expires_ms).min()?;
        Some(Duration::from_millis(
            end.saturating_sub(self.clock.unix_ms()),
        ))
    }

    /// Waits until the next expiry may have changed.
    pub async fn wait_expiry_change(&self) {
        self.expiry_changed.notified().await;
    }
}
