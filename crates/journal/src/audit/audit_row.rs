//! Audit row: what readers see as a JSON object, stored in its compact form.

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use bowline_core::hex::to_hex;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// Event recorded by a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditRowKind {
    /// A call that returned a response or failed.
    Call,
    /// A call or subscription refused by a rule, a pin, a rate limit or a budget.
    Denied,
    /// A call stored in the outbox for later delivery.
    Queued,
    /// A stored call that reached its server.
    Delivered,
    /// A stored call that became a dead letter.
    Dead,
    /// A stored call dropped by a user.
    Dropped,
    /// A stored call that expired before delivery.
    Expired,
    /// An action of the owner through the API.
    Admin,
    /// A gateway opened the trail.
    Started,
    /// The trail was closed after all notes were written.
    Stopped,
    /// First row of a file.
    File,
    /// Rows were lost at this position.
    Gap,
    /// A request without a valid credential.
    Unauthenticated,
}

impl AuditRowKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::Call,
        Self::Denied,
        Self::Queued,
        Self::Delivered,
        Self::Dead,
        Self::Dropped,
        Self::Expired,
        Self::Admin,
        Self::Started,
        Self::Stopped,
        Self::File,
        Self::Gap,
        Self::Unauthenticated,
    ];

    /// Returns the kind as written in rows.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Denied => "denied",
            Self::Queued => "queued",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
            Self::Dropped => "dropped",
            Self::Expired => "expired",
            Self::Admin => "admin",
            Self::Started => "started",
            Self::Stopped => "stopped",
            Self::File => "file",
            Self::Gap => "gap",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    /// Returns the kind with this name.
    #[must_use]
    pub fn from_name(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// Returns the kind with this number in compact rows.
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

/// SHA-256 of the arguments or the result of a call; shown in hex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BodyDigest(pub [u8; 32]);

impl BodyDigest {
    /// Stands for a body that is hashed later.
    pub const PENDING: Self = Self([0; 32]);

    /// Hashes a body.
    #[must_use]
    pub fn from_body(body: &[u8]) -> Self {
        Self(Sha256::digest(body).into())
    }
}

impl fmt::Display for BodyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl Serialize for BodyDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BodyDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let hash = ChainHash::from_str(&text).map_err(D::Error::custom)?;
        Ok(Self(hash.0))
    }
}

/// Scope in which the name of a row was resolved: `all`, `server:NAME` or `profile:NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowScope<'a> {
    /// All servers.
    All,
    /// One server.
    Server(Cow<'a, str>),
    /// One profile.
    Profile(Cow<'a, str>),
}

impl fmt::Display for RowScope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Server(name) => write!(f, "server:{name}"),
            Self::Profile(name) => write!(f, "profile:{name}"),
        }
    }
}

impl Serialize for RowScope<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RowScope<'_> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        match text.split_once(':') {
            None if text == "all" => Ok(Self::All),
            Some(("server", name)) => Ok(Self::Server(name.to_owned().into())),
            Some(("profile", name)) => Ok(Self::Profile(name.to_owned().into())),
            None | Some(_) => Err(D::Error::custom("not a scope")),
        }
    }
}

/// Audit row; absent fields are omitted from the JSON text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRow<'a> {
    /// Sequence number, assigned by the trail.
    pub seq: u64,
    /// Timestamp in milliseconds since 1970.
    pub at_ms: u64,
    /// Recorded event.
    pub kind: AuditRowKind,
    /// Ring of the row; absent for the calls ring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ring: Option<Cow<'a, str>>,
    /// Principal of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub principal: Option<Cow<'a, str>>,
    /// Name of the credential that authenticated the principal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<Cow<'a, str>>,
    /// Source address of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<SocketAddr>,
    /// Session number, unique within one run of the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// Scope in which `name` was resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<RowScope<'a>>,
    /// Target server of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<Cow<'a, str>>,
    /// Tool, prompt, URI or task of the request; the action for an admin row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Cow<'a, str>>,
    /// Method of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Cow<'a, str>>,
    /// Outcome in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Cow<'a, str>>,
    /// Failure class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Cow<'a, str>>,
    /// Execution state: not_started, unknown or completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<Cow<'a, str>>,
    /// Source of the response or the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Cow<'a, str>>,
    /// Human-readable reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'a, str>>,
    /// Duration of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_us: Option<u64>,
    /// SHA-256 of the arguments as received, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<BodyDigest>,
    /// SHA-256 of the result or error as returned, in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<BodyDigest>,
    /// Idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Cow<'a, str>>,
    /// Id of a stored call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Cow<'a, str>>,
    /// Recorded arguments and result, if payload recording is enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<AuditPayload<'a>>,
    /// Number of coalesced events; one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Timestamp of the first coalesced event, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Number of rows missing at this position.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Hash of the row before the first row of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev: Option<Cow<'a, str>>,
    /// Sequence number of the oldest row kept when the file was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_from: Option<u64>,
    /// Number of rows evicted before their minimum age when the file was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub let_go_early: Option<u64>,
}

/// Recorded arguments and result: secrets removed, long texts truncated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPayload<'a> {
    /// Call arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Cow<'a, str>>,
    /// Result or error of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Cow<'a, str>>,
}

impl AuditRow<'_> {
    /// Returns a row with only a kind and a timestamp.
    #[must_use]
    pub const fn new(kind: AuditRowKind, at_ms: u64) -> Self {
        Self {
            seq: 0,
            at_ms,
            kind,
            ring: None,
            principal: None,
            credential: None,
            peer: None,
            session: None,
            scope: None,
            server: None,
            name: None,
            method: None,
            outcome: None,
            class: None,
            execution: None,
            origin: None,
            reason: None,
            duration_us: None,
            arguments: None,
            result: None,
            key: None,
            id: None,
            payload: None,
            count: None,
            since_ms: None,
            lost: None,
            prev: None,
            kept_from: None,
            let_go_early: None,
        }
    }
}

/// Hash of a row and, through the chain, of every earlier row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChainHash(pub [u8; 32]);

impl ChainHash {
    /// Returns the hash of the next row, with `body` as content.
    pub(super) fn extend(self, body: &[u8]) -> Self {
        let mut sha = Sha256::new_with_prefix(self.0);
        sha.update(body);
        Self(sha.finalize().into())
    }

    /// Returns the hash stored in `bytes`, if the length fits.
    #[cfg(feature = "sqlite")]
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl FromStr for ChainHash {
    type Err = ParseHashError;

    fn from_str(text: &str) -> Result<Self, ParseHashError> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut hash = Self::default();
        if pairs.len() != hash.0.len() || !rest.is_empty() {
            return Err(ParseHashError);
        }
        for (to, pair) in hash.0.iter_mut().zip(pairs) {
            let digit = |byte: u8| {
                (byte as char)
                    .to_digit(16)
                    .and_then(|it| u8::try_from(it).ok())
            };
            let [high, low] = pair.map(digit);
            *to = (high.ok_or(ParseHashError)? << 4) | low.ok_or(ParseHashError)?;
        }
        Ok(hash)
    }
}

/// Text that does not parse as a hash or a chain head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not of the form SEQ:HASH with 64 hex digits")]
pub struct ParseHashError;

/// Last row of a trail. A recorded head proves that no row up to the head changed since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChainHead {
    /// Sequence number; 0 before the first row.
    pub seq: u64,
    /// Chain hash.
    pub hash: ChainHash,
}

impl ChainHead {
    /// Returns the head after appending a row with this body.
    pub(super) fn advance(self, body: &[u8]) -> Self {
        Self {
            seq: self.seq + 1,
            hash: self.hash.extend(body),
        }
    }
}

impl fmt::Display for ChainHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.seq, self.hash)
    }
}

impl FromStr for ChainHead {
    type Err = ParseHashError;

    fn from_str(text: &str) -> Result<Self, ParseHashError> {
        let (seq, hash) = text.split_once(':').ok_or(ParseHashError)?;
        Ok(Self {
            seq: seq.parse().map_err(|_| ParseHashError)?,
            hash: hash.parse()?,
        })
    }
}
