//! Authentication: checks `Host`, `Origin` and credential of every request before routing.

mod token_rotation;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bowline_core::call::{Principal, Role};
use http::header::{self, HeaderMap};
use http::request::Parts;
use http::uri::Authority;
use subtle::ConstantTimeEq as _;
use thiserror::Error;

pub(crate) use self::token_rotation::RotateError;
use self::token_rotation::TokenRotation;
use super::http_listener::{EdgeEndpoint, UpgradeTarget};
use crate::tokens::{IssuedToken, TokenKind, TokenStore};

/// Reason for rejecting a request.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AuthError {
    /// `Host` names a foreign host.
    #[error(
        "this gateway answers to its own address, to localhost and to its `[gateway] names`; \
         `Host` is another"
    )]
    ForeignHost,
    /// `Origin` names a foreign origin.
    #[error("requests of web pages are taken from this gateway's own origin only")]
    ForeignOrigin,
    /// Missing or invalid credential.
    #[error(
        "a valid bearer token is required; the owner's is in the token file of the state directory"
    )]
    Unauthorized,
    /// Credential in the query string, where proxies log it.
    #[error("credentials belong into the Authorization header, not into the query")]
    CredentialInQuery,
    /// Valid credential without the right for this request.
    #[error("this needs the owner token")]
    Forbidden,
    /// Valid executor token on an endpoint other than `/executor`.
    #[error(
        "this is an executor's token, which opens /executor alone; for an agent: `bowline token \
         create --principal NAME --role ROLE`"
    )]
    ExecutorToken,
    /// Valid reader token on an endpoint other than the API.
    #[error("this token reads the API of the gateway and does nothing else")]
    ReaderToken,
}

/// Whether clients must authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMode {
    /// Always; the default.
    Required,
    /// Not on MCP endpoints, where every local client is accepted.
    NotForMcp,
}

/// Maps requests to principals.
#[derive(Debug)]
pub struct Authenticator {
    auth: AuthMode,
    owner_token: OwnerToken,
    anonymous: Arc<Principal>,
    /// Tokens of principals other than the owner; absent if none are issued.
    tokens: Option<Arc<TokenStore>>,
    /// Accepted `Host` names besides the listener's addresses.
    names: Vec<Arc<str>>,
}

/// Principal of a request, and the credential presented.
#[derive(Clone, Debug)]
pub struct AuthenticatedCaller {
    /// The principal.
    pub principal: Arc<Principal>,
    /// The token presented, for revocation and rotation; absent for anonymous callers.
    pub token: Option<Arc<IssuedToken>>,
}

impl AuthenticatedCaller {
    /// Returns the token kind; the owner token counts as an agent token.
    pub fn kind(&self) -> TokenKind {
        self.token
            .as_ref()
            .map_or(TokenKind::Agent, |token| token.kind)
    }

    fn without_token(principal: &Arc<Principal>) -> Self {
        Self {
            principal: Arc::clone(principal),
            token: None,
        }
    }
}

/// A secret hidden from `Debug` output.
pub(super) struct SecretToken(Vec<u8>);

impl SecretToken {
    pub(super) fn new(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }

    /// Compares in a time that depends only on the lengths, eight bytes per step.
    pub(super) fn matches(&self, candidate: &[u8]) -> bool {
        if candidate.len() != self.0.len() {
            return false;
        }
        let (own, own_rest) = self.0.as_chunks::<8>();
        let (candidate, candidate_rest) = candidate.as_chunks::<8>();
        let words = own
            .iter()
            .zip(candidate)
            .fold(0, |difference, (own, candidate)| {
                difference | (u64::from_ne_bytes(*own) ^ u64::from_ne_bytes(*candidate))
            });
        let rest = own_rest.iter().zip(candidate_rest);
        let rest = rest.fold(0, |difference, (own, candidate)| {
            difference | (own ^ candidate)
        });
        bool::from(words.ct_eq(&0) & rest.ct_eq(&0))
    }
}

impl std::fmt::Debug for SecretToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// The owner token, and its rotation.
pub struct OwnerToken {
    owner: Arc<Principal>,
    current: ArcSwap<CurrentToken>,
    rotation: Option<TokenRotation>,
}

struct CurrentToken {
    token: SecretToken,
    issued: Arc<IssuedToken>,
}

impl std::fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnerToken(…)")
    }
}

impl OwnerToken {
    fn new(token: &str) -> Self {
        let owner = Arc::new(Principal::new("owner", Role::Owner));
        Self {
            current: ArcSwap::from_pointee(CurrentToken::new(token, &owner)),
            owner,
            rotation: None,
        }
    }

    /// Returns the owner if the token matches.
    fn authenticate(&self, token: &[u8]) -> Option<AuthenticatedCaller> {
        let current = self.current.load();
        current.token.matches(token).then(|| AuthenticatedCaller {
            principal: Arc::clone(&self.owner),
            token: Some(Arc::clone(&current.issued)),
        })
    }
}

impl CurrentToken {
    fn new(token: &str, owner: &Arc<Principal>) -> Self {
        Self {
            token: SecretToken::new(token),
            issued: Arc::new(IssuedToken::for_owner(Arc::clone(owner))),
        }
    }
}

/// Local address of a connection.
#[derive(Clone, Debug)]
pub struct LocalAddress {
    address: SocketAddr,
    /// `address` as text: the `Host` value of nearly every client.
    text: String,
}

impl LocalAddress {
    /// Creates the local address.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            text: address.to_string(),
        }
    }

    /// Returns whether an authority names this socket.
    fn matches_authority(&self, authority: &str) -> bool {
        authority == self.text || is_local_authority(authority, self.address)
    }
}

/// Names of query parameters that look like credentials.
const CREDENTIAL_KEYS: [&str; 5] = [
    "token",
    "access_token",
    "api_key",
    "apikey",
    "authorization",
];

impl Authenticator {
    /// Creates an authenticator for the owner token `token`.
    #[must_use]
    pub fn new(auth: AuthMode, token: &str) -> Self {
        Self {
            auth,
            owner_token: OwnerToken::new(token),
            anonymous: Arc::new(Principal::new("anonymous-local", Role::AnonymousLocal)),
            tokens: None,
            names: Vec::new(),
        }
    }

    /// Adds accepted host names.
    #[must_use]
    pub fn with_names(self, names: Vec<Arc<str>>) -> Self {
        Self { names, ..self }
    }

    /// Adds issued tokens.
    #[must_use]
    pub fn with_tokens(self, tokens: Arc<TokenStore>) -> Self {
        Self {
            tokens: Some(tokens),
            ..self
        }
    }

    /// Keeps the owner token in `file` to allow rotation; `learn` receives each new token before
    /// use.
    #[must_use]
    pub fn with_owner_file(
        self,
        file: PathBuf,
        learn: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        Self {
            owner_token: self.owner_token.with_file(file, Box::new(learn)),
            ..self
        }
    }

    /// Returns the owner token.
    #[must_use]
    pub const fn owner_token(&self) -> &OwnerToken {
        &self.owner_token
    }

    /// Returns the issued tokens, without the owner token.
    #[must_use]
    pub const fn tokens(&self) -> Option<&Arc<TokenStore>> {
        self.tokens.as_ref()
    }

    /// Returns the authentication mode.
    #[must_use]
    pub const fn auth(&self) -> AuthMode {
        self.auth
    }

    /// Checks `Host` and `Origin` of a request received at `local`.
    pub fn check_address(&self, parts: &Parts, local: &LocalAddress) -> Result<(), AuthError> {
        let host = single_header(&parts.headers, header::HOST).ok_or(AuthError::ForeignHost)?;
        if !self.is_own_authority(host, local) {
            return Err(AuthError::ForeignHost);
        }
        // An absolute-form target also names a host and must match as well.
        if let Some(authority) = parts.uri.authority()
            && !self.is_own_authority(authority.as_str(), local)
        {
            return Err(AuthError::ForeignHost);
        }
        if !parts.headers.contains_key(header::ORIGIN) {
            return Ok(());
        }
        let ours = single_header(&parts.headers, header::ORIGIN)
            .is_some_and(|origin| self.is_own_origin(origin, local));
        if ours {
            Ok(())
        } else {
            Err(AuthError::ForeignOrigin)
        }
    }

    fn is_own_authority(&self, authority: &str, local: &LocalAddress) -> bool {
        local.matches_authority(authority) || self.is_configured_name(authority)
    }

    /// Returns whether an origin is ours. A reverse proxy may serve a configured name over https.
    fn is_own_origin(&self, origin: &str, local: &LocalAddress) -> bool {
        match origin.strip_prefix("http://") {
            Some(authority) => self.is_own_authority(authority, local),
            None => origin
                .strip_prefix("https://")
                .is_some_and(|authority| self.is_configured_name(authority)),
        }
    }

    /// Returns whether the authority is a configured name: on any port, unless configured with a
    /// port.
    fn is_configured_name(&self, authority: &str) -> bool {
        if self.names.is_empty() {
            return false;
        }
        let Ok(parsed) = authority.parse::<Authority>() else {
            return false;
        };
        let plain = !authority.contains('@') && !authority.ends_with(':');
        let matches_name = |name: &Arc<str>| {
            name.eq_ignore_ascii_case(authority) || name.eq_ignore_ascii_case(parsed.host())
        };
        plain && self.names.iter().any(matches_name)
    }

    /// Authenticates a request to `endpoint`. Claims of the request itself are ignored.
    pub fn authenticate(
        &self,
        parts: &Parts,
        endpoint: &EdgeEndpoint,
    ) -> Result<AuthenticatedCaller, AuthError> {
        if let Some(caller) = self.authenticate_header(parts)? {
            return check_token_kind(caller.kind(), endpoint).map(|()| caller);
        }
        match (endpoint, self.auth) {
            (
                EdgeEndpoint::Mcp(_) | EdgeEndpoint::Sse(_) | EdgeEndpoint::Messages(_),
                AuthMode::NotForMcp,
            )
            | (EdgeEndpoint::Livez | EdgeEndpoint::Readyz, _) => {
                Ok(AuthenticatedCaller::without_token(&self.anonymous))
            }
            (
                EdgeEndpoint::Mcp(_) | EdgeEndpoint::Sse(_) | EdgeEndpoint::Messages(_),
                AuthMode::Required,
            )
            | (EdgeEndpoint::Api | EdgeEndpoint::Metrics | EdgeEndpoint::Upgrade(_), _) => {
                Err(AuthError::Unauthorized)
            }
        }
    }

    /// Authenticates a request by its `Authorization` header, if present.
    pub fn authenticate_header(
        &self,
        parts: &Parts,
    ) -> Result<Option<AuthenticatedCaller>, AuthError> {
        if parts.uri.query().is_some_and(has_credential) {
            return Err(AuthError::CredentialInQuery);
        }
        if !parts.headers.contains_key(header::AUTHORIZATION) {
            return Ok(None);
        }
        // An invalid credential never falls back to a different identity.
        let caller = single_header(&parts.headers, header::AUTHORIZATION)
            .and_then(parse_bearer)
            .and_then(|token| self.lookup_token(token));
        caller.map(Some).ok_or(AuthError::Unauthorized)
    }

    /// Returns the caller that owns a token.
    pub fn lookup_token(&self, token: &str) -> Option<AuthenticatedCaller> {
        if let Some(owner) = self.owner_token.authenticate(token.as_bytes()) {
            return Some(owner);
        }
        let issued = self.tokens.as_ref()?.find_token(token)?;
        Some(AuthenticatedCaller {
            principal: Arc::clone(&issued.principal),
            token: Some(issued),
        })
    }
}

/// Checks whether a token of this kind may use an endpoint.
fn check_token_kind(kind: TokenKind, endpoint: &EdgeEndpoint) -> Result<(), AuthError> {
    match (kind, endpoint) {
        (TokenKind::Agent, _)
        | (TokenKind::Executor, EdgeEndpoint::Upgrade(UpgradeTarget::Executor))
        | (TokenKind::Auditor | TokenKind::Viewer, EdgeEndpoint::Api | EdgeEndpoint::Metrics)
        | (_, EdgeEndpoint::Livez | EdgeEndpoint::Readyz) => Ok(()),
        (
            TokenKind::Auditor | TokenKind::Viewer,
            EdgeEndpoint::Mcp(_)
            | EdgeEndpoint::Sse(_)
            | EdgeEndpoint::Messages(_)
            | EdgeEndpoint::Upgrade(_),
        ) => Err(AuthError::ReaderToken),
        (
            TokenKind::Executor,
            EdgeEndpoint::Mcp(_)
            | EdgeEndpoint::Sse(_)
            | EdgeEndpoint::Messages(_)
            | EdgeEndpoint::Upgrade(UpgradeTarget::Peer)
            | EdgeEndpoint::Api
            | EdgeEndpoint::Metrics,
        ) => Err(AuthError::ExecutorToken),
    }
}

/// Returns the value of a header that occurs exactly once and is plain text.
fn single_header(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    match values.next() {
        Some(_) => None,
        None => first.to_str().ok(),
    }
}

fn parse_bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim_matches(' '))
}

fn has_credential(query: &str) -> bool {
    query.split('&').any(|pair| {
        let key = pair.split_once('=').map_or(pair, |(key, _)| key);
        CREDENTIAL_KEYS
            .iter()
            .any(|known| key.eq_ignore_ascii_case(known))
    })
}

/// Returns whether an authority names the local socket. No name except localhost does: other names
/// would allow DNS rebinding from a web page.
fn is_local_authority(authority: &str, local: SocketAddr) -> bool {
    let Ok(authority) = authority.parse::<Authority>() else {
        return false;
    };
    if authority.as_str().contains('@') {
        return false;
    }
    let port = match authority.port() {
        Some(port) => port.as_u16(),
        None if authority.as_str().ends_with(':') => return false,
        None => 80,
    };
    if port != local.port() {
        return false;
    }
    let host = authority.host();
    let host = host.strip_suffix('.').unwrap_or(host);
    if host.eq_ignore_ascii_case("localhost") {
        return local.ip().is_loopback();
    }
    let literal = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    literal
        .parse::<IpAddr>()
        .is_ok_and(|ip| ip == local.ip() || (ip.is_loopback() && local.ip().is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_names_match_exactly() {
        let local = LocalAddress::new("10.0.0.5:7331".parse().unwrap());
        let names = vec!["hub.example".into(), "alt.example:8443".into()];
        let door = Authenticator::new(AuthMode::Required, "t").with_names(names);
        for ours in [
            "hub.example",
            "HUB.example:7331",
            "hub.example:443",
            "alt.example:8443",
            "10.0.0.5:7331",
        ] {
            assert!(door.is_own_authority(ours, &local), "{ours}");
        }
        for other in [
            "alt.example",
            "alt.example:7331",
            "hub.example.evil.example",
            "evil.example",
            "a@hub.example",
            "hub.example:",
            "xhub.example",
        ] {
            assert!(!door.is_own_authority(other, &local), "{other}");
        }
        assert!(door.is_own_origin("https://hub.example", &local));
        assert!(!door.is_own_origin("https://10.0.0.5:7331", &local));
        assert!(!door.is_own_origin("https://evil.example", &local));
    }

    #[test]
    fn own_authority_is_literal_or_localhost() {
        let local: SocketAddr = "127.0.0.1:7331".parse().unwrap();
        for ours in [
            "127.0.0.1:7331",
            "localhost:7331",
            "LOCALHOST:7331",
            "localhost.:7331",
            "[::1]:7331",
        ] {
            assert!(is_local_authority(ours, local), "{ours}");
        }
        for foreign in [
            "evil.example:7331",
            "127.0.0.1",
            "localhost",
            "127.0.0.1:80",
            "0.0.0.0:7331",
            "localhost.evil.example:7331",
            "127.0.0.1.nip.example:7331",
            "evil@127.0.0.1:7331",
            "",
            "127.0.0.1:7331:7331",
            "[::ffff:7f00:1]:80",
        ] {
            assert!(!is_local_authority(foreign, local), "{foreign}");
        }
    }

    #[test]
    fn token_matches_only_itself() {
        let token = SecretToken(b"0123456789abcdefghi".to_vec());
        assert!(token.matches(b"0123456789abcdefghi"));
        for at in 0..token.0.len() {
            let mut other = token.0.clone();
            other[at] ^= 1;
            assert!(!token.matches(&other), "byte {at}");
        }
        assert!(!token.matches(b""));
        assert!(!token.matches(b"0123456789abcdefgh"));
        assert!(!token.matches(b"0123456789abcdefghij"));
    }

    #[test]
    fn credential_in_query_found_in_any_case() {
        assert!(has_credential("a=b&Access_Token=x"));
        assert!(has_credential("token"));
        assert!(!has_credential("server=token&after=1"));
    }
}
