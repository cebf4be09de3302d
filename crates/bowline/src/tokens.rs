//! Tokens of principals: shown once, kept as hashes, gone at once when they are revoked.

mod kind;
mod record;
mod text;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use bowline_core::call::{Contexts, Peer, Principal, Role};
use bowline_core::policy::Credentials;
use bowline_core::sync::lock;
use bowline_core::time::millis;
use bowline_host::ports::Clock;
use foldhash::fast::RandomState;
use subtle::ConstantTimeEq as _;
use thiserror::Error;
use tokio::sync::Notify;

pub use kind::TokenKind;

use crate::state::{self, State, file};

/// Tokens that are kept, expired ones included.
pub const TOKENS_MAX: usize = 10_000;

/// Characters of a principal's name.
pub const PRINCIPAL_CHARS_MAX: usize = 64;

/// Bytes of the name of a role or a context.
pub const NAME_BYTES_MAX: usize = 128;

/// Contexts of one token.
pub const CONTEXTS_MAX: usize = 32;

/// The longest life that can be asked for.
pub const LIFE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// How long people are shown a token that has expired.
const EXPIRED_SHOWN: Duration = Duration::from_secs(30 * 24 * 3_600);

/// How long before its end a token is pointed out to people.
pub const EXPIRY_NOTICE: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Names of principals that are not made by a token.
const RESERVED: [&str; 2] = ["owner", "anonymous-local"];

/// Characters of the name of a run.
pub const RUN_CHARS_MAX: usize = 32;

/// Whether a run can have this name: `[a-z0-9][a-z0-9._-]{0,31}`.
#[must_use]
pub fn is_run(name: &str) -> bool {
    name.len() <= RUN_CHARS_MAX && is_plain(name)
}

/// Returns the principal of programs of that name that the owner runs. No other token can be made
/// for it: names of principals hold no colon.
#[must_use]
pub fn owners_agent(run: &str) -> Arc<str> {
    format!("owner:{run}").into()
}

/// Whether a token can be given to a principal of this name: `[a-z0-9][a-z0-9._-]{0,63}`, and not
/// one of those that the gateway itself gives out.
#[must_use]
pub fn is_principal(name: &str) -> bool {
    name.len() <= PRINCIPAL_CHARS_MAX && is_plain(name) && !RESERVED.contains(&name)
}

fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.starts_with(plain)
        && name
            .chars()
            .all(|c| plain(c) || matches!(c, '.' | '_' | '-'))
}

/// A token that was given out. It knows the hash of its secret, not the secret.
#[derive(Debug)]
pub struct Issued {
    /// Whom it proves, with its id as `credential`.
    pub principal: Arc<Principal>,
    /// What its holder is.
    pub kind: TokenKind,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it ends.
    pub expires_ms: Option<u64>,
    /// The program whose run it was made for, and ends with.
    pub run: Option<Arc<str>>,
    hash: [u8; 32],
    /// What narrows it since it was made, beside the contexts of its principal.
    narrowed: Mutex<Contexts>,
    /// Whether it is over, and what it opened was told to end.
    over: AtomicBool,
}

impl Issued {
    /// Returns the owner's own, which has no id and is kept elsewhere.
    pub(crate) fn of_owner(owner: Arc<Principal>) -> Self {
        Self {
            principal: owner,
            kind: TokenKind::Agent,
            created_ms: 0,
            expires_ms: None,
            run: None,
            hash: [0; 32],
            narrowed: Mutex::default(),
            over: AtomicBool::new(false),
        }
    }

    /// Returns the public part of its text.
    #[must_use]
    pub fn id(&self) -> &Arc<str> {
        &self.principal.credential
    }

    /// Returns what narrows it since it was made.
    #[must_use]
    pub fn narrowed(&self) -> Contexts {
        lock(&self.narrowed).clone()
    }

    /// Returns the role it was made with.
    #[must_use]
    pub fn role(&self) -> Option<&Arc<str>> {
        match &self.principal.role {
            Role::Named(role) => Some(role),
            Role::Owner | Role::OwnersAgent | Role::AnonymousLocal | Role::None => None,
        }
    }

    /// Whether it was revoked, or was seen to have expired.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Whether it has reached its end.
    #[must_use]
    pub fn is_expired(&self, unix_ms: u64) -> bool {
        self.expires_ms.is_some_and(|end| unix_ms >= end)
    }

    /// Whether people should replace it now: it ends soon, and was made for longer than that. The
    /// token of a run ends with the run.
    #[must_use]
    pub fn ends_soon(&self, unix_ms: u64) -> bool {
        let notice = millis(EXPIRY_NOTICE);
        let is_near = |end: u64| {
            let is_long = end.saturating_sub(self.created_ms) > notice;
            is_long && end > unix_ms && end - unix_ms <= notice
        };
        self.run.is_none() && !self.is_over() && self.expires_ms.is_some_and(is_near)
    }

    /// Ends it; `false` when it had ended before.
    pub(crate) fn end(&self) -> bool {
        !self.over.swap(true, Ordering::AcqRel)
    }

    /// Whether it expired so long ago that nobody wants to know.
    fn is_forgotten(&self, unix_ms: u64) -> bool {
        self.is_expired(unix_ms.saturating_sub(millis(EXPIRED_SHOWN)))
    }
}

/// What a token is made for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Whom it proves.
    pub principal: Arc<str>,
    /// What its holder is.
    pub kind: TokenKind,
    /// What that principal is; [`Role::None`] where the policy says so.
    pub role: Role,
    /// What it is narrowed by.
    pub contexts: Contexts,
    /// How long it lives; for ever where nothing is said.
    pub life: Option<Duration>,
    /// The program whose run it is for.
    pub run: Option<Arc<str>>,
}

/// Why no token was made.
#[derive(Debug, Error)]
pub enum CreateError {
    /// There are as many as there may be.
    #[error("there are {TOKENS_MAX} tokens already; revoke some first")]
    TooMany,
    /// It could not be kept.
    #[error(transparent)]
    State(#[from] state::Error),
}

type Table = HashMap<Arc<str>, Arc<Issued>, RandomState>;

/// All tokens but the owner's.
#[derive(Debug)]
pub struct Tokens {
    /// Where they are kept; absent where they live as long as we do.
    path: Option<PathBuf>,
    clock: Arc<dyn Clock>,
    table: ArcSwap<Table>,
    /// Lets one write the file at a time.
    writing: Mutex<()>,
    /// Told when there is another next token to expire.
    changed: Notify,
}

impl bowline_host::broker::Credentials for Tokens {
    fn is_revoked(&self, credential: &str) -> bool {
        Self::is_revoked(self, credential)
    }
}

impl Tokens {
    /// Reads the tokens of a state directory.
    ///
    /// # Errors
    /// When the file cannot be read, is open to others or does not hold what it should: whoever
    /// lost the list of tokens does not know whom to let in.
    pub fn open(state: &State, clock: Arc<dyn Clock>) -> Result<Self, state::Error> {
        let path = state.tokens_file();
        let table = record::read(&path)?;
        let now = clock.unix_ms();
        let table = table.into_iter().filter(|one| !one.is_forgotten(now));
        let table: Table = table
            .map(|one| (Arc::clone(one.id()), Arc::new(one)))
            .collect();
        Ok(Self {
            path: Some(path),
            table: ArcSwap::from_pointee(table),
            ..Self::unkept(clock)
        })
    }

    /// Returns no tokens yet, and keeps those that are made in memory alone.
    #[must_use]
    pub fn unkept(clock: Arc<dyn Clock>) -> Self {
        Self {
            path: None,
            clock,
            table: ArcSwap::default(),
            writing: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn write<'a>(&self, tokens: impl Iterator<Item = &'a Arc<Issued>>) -> Result<(), state::Error> {
        match &self.path {
            Some(path) => file::replace(path, &record::write(tokens)?),
            None => Ok(()),
        }
    }

    /// Returns the token of this text, if it was given out and still counts.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<Arc<Issued>> {
        let (id, secret) = text::split(text)?;
        let table = self.table.load();
        let token = table.get(id)?;
        let right = bool::from(text::hash(secret).ct_eq(&token.hash));
        let good = right && !token.is_over();
        // The wall clock is read for those that end only.
        let good = good && (token.expires_ms.is_none() || !token.is_expired(self.clock.unix_ms()));
        good.then(|| Arc::clone(token))
    }

    /// Whether the token with this id was revoked. Those that ran out are remembered longer than
    /// anything that was asked with them; the owner's has no id.
    #[must_use]
    pub fn is_revoked(&self, id: &str) -> bool {
        !id.is_empty() && !self.table.load().contains_key(id)
    }

    /// Makes a token, keeps its hash, and returns its text, which nobody can read again.
    ///
    /// # Errors
    /// When there are too many, or it cannot be kept; then there is no token.
    pub fn create(&self, wanted: &Wanted) -> Result<(String, Arc<Issued>), CreateError> {
        let _one = lock(&self.writing);
        let now = self.clock.unix_ms();
        let mut table = Table::clone(&self.table.load());
        table.retain(|_, token| !token.is_forgotten(now));
        if table.len() >= TOKENS_MAX {
            table.retain(|_, token| !token.is_expired(now));
        }
        if table.len() >= TOKENS_MAX {
            return Err(CreateError::TooMany);
        }
        let made = text::make(|id| table.contains_key(id))?;
        let principal = Principal {
            name: Arc::clone(&wanted.principal),
            role: wanted.role.clone(),
            contexts: wanted.contexts.clone(),
            credential: made.id,
            peer: Peer::default(),
        };
        let token = Arc::new(Issued {
            principal: Arc::new(principal),
            kind: wanted.kind,
            created_ms: now,
            expires_ms: wanted.life.map(|life| now.saturating_add(millis(life))),
            run: wanted.run.clone(),
            hash: made.hash,
            narrowed: Mutex::default(),
            over: AtomicBool::new(false),
        });
        table.insert(Arc::clone(token.id()), Arc::clone(&token));
        // What is not kept would not be there after a restart, so it is not there now.
        self.write(table.values())?;
        // A token may have been revoked meanwhile, and must not come back with the others.
        self.table.rcu(|current| {
            let mut current = Table::clone(current);
            current.retain(|id, _| table.contains_key(id));
            current.insert(Arc::clone(token.id()), Arc::clone(&token));
            current
        });
        self.changed.notify_one();
        Ok((made.text, token))
    }

    /// Narrows the token with this id by these contexts, in place of those that it was narrowed by
    /// before; those that it was made with stay. Kept when this returns. Nothing where there is no
    /// such token.
    ///
    /// # Errors
    /// When it cannot be kept; then nothing has changed.
    pub fn narrow(
        &self,
        id: &str,
        contexts: &Contexts,
    ) -> Result<Option<Arc<Issued>>, state::Error> {
        let _one = lock(&self.writing);
        let table = self.table.load();
        let Some(token) = table.get(id) else {
            return Ok(None);
        };
        let before = std::mem::replace(&mut *lock(&token.narrowed), contexts.clone());
        if let Err(error) = self.write(table.values()) {
            *lock(&token.narrowed) = before;
            return Err(error);
        }
        Ok(Some(Arc::clone(token)))
    }

    /// Returns which tokens are narrowed since they were made, and by what.
    #[must_use]
    pub fn narrowings(&self) -> Credentials {
        let table = self.table.load();
        let narrowed = table
            .iter()
            .map(|(id, token)| (Arc::clone(id), token.narrowed()));
        narrowed
            .filter(|(_, contexts)| !contexts.is_empty())
            .collect()
    }

    /// Ends the token with this id, or all of the principal of this name, and returns them. They
    /// count no more from here on; [`save`](Self::save) makes it last.
    pub fn revoke(&self, which: &str) -> Vec<Arc<Issued>> {
        let meant: Vec<_> = {
            let table = self.table.load();
            match table.get(which) {
                Some(token) => vec![Arc::clone(token)],
                None => {
                    let all = table.values();
                    all.filter(|token| *token.principal.name == *which)
                        .cloned()
                        .collect()
                }
            }
        };
        for token in &meant {
            token.end();
        }
        self.table.rcu(|current| {
            let mut current = Table::clone(current);
            for token in &meant {
                current.remove(token.id());
            }
            current
        });
        meant
    }

    /// Writes down which tokens there are.
    ///
    /// # Errors
    /// When the file cannot be written: what was revoked would count again after a restart.
    pub fn save(&self) -> Result<(), state::Error> {
        let _one = lock(&self.writing);
        self.write(self.table.load().values())
    }

    /// Returns all tokens, the oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Issued>> {
        let mut all: Vec<_> = self.table.load().values().cloned().collect();
        all.sort_by(|a, b| (a.created_ms, a.id()).cmp(&(b.created_ms, b.id())));
        all
    }

    /// Ends the tokens whose time has come, and returns them.
    pub fn expire(&self) -> Vec<Arc<Issued>> {
        let now = self.clock.unix_ms();
        let table = self.table.load();
        let expired = table.values().filter(|token| token.is_expired(now));
        expired.filter(|token| token.end()).cloned().collect()
    }

    /// Returns how long it is until the next token expires.
    #[must_use]
    pub fn next_end(&self) -> Option<Duration> {
        let table = self.table.load();
        let living = table.values().filter(|token| !token.is_over());
        let end = living.filter_map(|token| token.expires_ms).min()?;
        Some(Duration::from_millis(
            end.saturating_sub(self.clock.unix_ms()),
        ))
    }

    /// Waits until there may be another next token to expire.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
