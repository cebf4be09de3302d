//! Who may come in: host, origin and credential are judged here, once, before anything else.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use bowline_core::call::{Principal, Role};
use http::header::{self, HeaderMap};
use http::request::Parts;
use http::uri::Authority;
use subtle::ConstantTimeEq as _;
use thiserror::Error;

use super::owner::OwnerToken;
use super::route::{Goes, Place};
use crate::tokens::{Issued, TokenKind, Tokens};

/// Why a request was turned away.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Refused {
    /// `Host` names somebody else.
    #[error(
        "this gateway answers to its own address, to localhost and to its `[gateway] names`; \
         `Host` is another"
    )]
    Host,
    /// `Origin` names somebody else.
    #[error("requests of web pages are taken from this gateway's own origin only")]
    Origin,
    /// There is no credential, or not the right one.
    #[error(
        "a valid bearer token is required; the owner's is in the token file of the state directory"
    )]
    Unauthorized,
    /// A credential stands where it is logged.
    #[error("credentials belong into the Authorization header, not into the query")]
    Query,
    /// The credential is right but may not do this.
    #[error("this needs the owner token")]
    Forbidden,
    /// The credential is right and of a kind that does not open this.
    #[error(
        "this is an executor's token, which opens /executor alone; for an agent: `bowline token \
         create --principal NAME --role ROLE`"
    )]
    ExecutorToken,
    /// The credential only reads the API.
    #[error("this token reads the API of the gateway and does nothing else")]
    ReaderToken,
}

/// Whether callers must prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Always, the default.
    Required,
    /// Not at the MCP endpoints, which are then open to all local callers.
    NotForMcp,
}

/// The one place that turns a request into a principal.
#[derive(Debug)]
pub struct Door {
    auth: Auth,
    owner: OwnerToken,
    anonymous: Arc<Principal>,
    /// The tokens of everybody else; nobody else has one where absent.
    tokens: Option<Arc<Tokens>>,
    /// Names by which others may address us, beside our own addresses.
    names: Vec<Arc<str>>,
}

/// Who makes a request, and what proved it.
#[derive(Clone, Debug)]
pub struct Proven {
    /// Who.
    pub principal: Arc<Principal>,
    /// The token that proved it, which may be revoked or replaced; absent for nobody.
    pub token: Option<Arc<Issued>>,
}

impl Proven {
    /// Returns the kind of the token; the owner's is as good as an agent's.
    pub fn kind(&self) -> TokenKind {
        self.token
            .as_ref()
            .map_or(TokenKind::Agent, |token| token.kind)
    }

    fn by_itself(principal: &Arc<Principal>) -> Self {
        Self {
            principal: Arc::clone(principal),
            token: None,
        }
    }
}

/// A secret that does not show itself.
pub(super) struct Token(Vec<u8>);

impl Token {
    pub(super) fn new(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }

    /// Compares in a time that depends on the lengths alone, eight bytes at a step.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        if given.len() != self.0.len() {
            return false;
        }
        let (own, own_rest) = self.0.as_chunks::<8>();
        let (given, given_rest) = given.as_chunks::<8>();
        let words = own.iter().zip(given).fold(0, |seen, (own, given)| {
            seen | (u64::from_ne_bytes(*own) ^ u64::from_ne_bytes(*given))
        });
        let rest = own_rest.iter().zip(given_rest);
        let rest = rest.fold(0, |seen, (own, given)| seen | (own ^ given));
        bool::from(words.ct_eq(&0) & rest.ct_eq(&0))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

/// Where a connection came in.
#[derive(Clone, Debug)]
pub struct Local {
    address: SocketAddr,
    /// The same as text, which is what nearly every caller sends as `Host`.
    text: String,
}

impl Local {
    /// Returns the place of this address.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            text: address.to_string(),
        }
    }

    /// Whether an authority means this socket.
    fn is_meant_by(&self, authority: &str) -> bool {
        authority == self.text || is_ours(authority, self.address)
    }
}

/// Query parameters that look like credentials.
const CREDENTIAL_KEYS: [&str; 5] = [
    "token",
    "access_token",
    "api_key",
    "apikey",
    "authorization",
];

impl Door {
    /// Returns a door that `token` opens.
    #[must_use]
    pub fn new(auth: Auth, token: &str) -> Self {
        Self {
            auth,
            owner: OwnerToken::new(token),
            anonymous: Arc::new(Principal::new("anonymous-local", Role::AnonymousLocal)),
            tokens: None,
            names: Vec::new(),
        }
    }

    /// Answers to these names as well.
    #[must_use]
    pub fn with_names(self, names: Vec<Arc<str>>) -> Self {
        Self { names, ..self }
    }

    /// Lets those in as well who have one of these tokens.
    #[must_use]
    pub fn with_tokens(self, tokens: Arc<Tokens>) -> Self {
        Self {
            tokens: Some(tokens),
            ..self
        }
    }

    /// Keeps the owner's token in this file, where it can be replaced; `learn` is told of a new
    /// one before anybody else.
    #[must_use]
    pub fn with_owner_file(
        self,
        file: PathBuf,
        learn: impl Fn(&str) + Send + Sync + 'static,
    ) -> Self {
        Self {
            owner: self.owner.kept(file, Box::new(learn)),
            ..self
        }
    }

    /// Returns the owner's token.
    #[must_use]
    pub const fn owner_token(&self) -> &OwnerToken {
        &self.owner
    }

    /// Returns the tokens of everybody but the owner.
    #[must_use]
    pub const fn tokens(&self) -> Option<&Arc<Tokens>> {
        self.tokens.as_ref()
    }

    /// Whether callers must prove who they are.
    #[must_use]
    pub const fn auth(&self) -> Auth {
        self.auth
    }

    /// Judges `Host` and `Origin` of a request that came in at `local`.
    pub fn check_address(&self, parts: &Parts, local: &Local) -> Result<(), Refused> {
        let host = only(&parts.headers, header::HOST).ok_or(Refused::Host)?;
        if !self.is_meant_by(host, local) {
            return Err(Refused::Host);
        }
        // An absolute-form target names a host as well; it must not be another.
        if let Some(authority) = parts.uri.authority()
            && !self.is_meant_by(authority.as_str(), local)
        {
            return Err(Refused::Host);
        }
        if !parts.headers.contains_key(header::ORIGIN) {
            return Ok(());
        }
        let ours = only(&parts.headers, header::ORIGIN)
            .is_some_and(|origin| self.is_own_page(origin, local));
        if ours { Ok(()) } else { Err(Refused::Origin) }
    }

    fn is_meant_by(&self, authority: &str, local: &Local) -> bool {
        local.is_meant_by(authority) || self.is_named(authority)
    }

    /// Whether an origin is ours. Under a name of ours somebody in front may speak https.
    fn is_own_page(&self, origin: &str, local: &Local) -> bool {
        match origin.strip_prefix("http://") {
            Some(authority) => self.is_meant_by(authority, local),
            None => origin
                .strip_prefix("https://")
                .is_some_and(|authority| self.is_named(authority)),
        }
    }

    /// Whether it is a name that a person gave this gateway: at any port, unless one was given.
    fn is_named(&self, authority: &str) -> bool {
        if self.names.is_empty() {
            return false;
        }
        let Ok(given) = authority.parse::<Authority>() else {
            return false;
        };
        let plain = !authority.contains('@') && !authority.ends_with(':');
        let is = |name: &Arc<str>| {
            name.eq_ignore_ascii_case(authority) || name.eq_ignore_ascii_case(given.host())
        };
        plain && self.names.iter().any(is)
    }

    /// Says who makes a request for `place`. What a request says of itself counts for nothing.
    pub fn identify(&self, parts: &Parts, place: &Place) -> Result<Proven, Refused> {
        if let Some(proven) = self.introduced(parts)? {
            return opens(proven.kind(), place).map(|()| proven);
        }
        match (place, self.auth) {
            (Place::Mcp(_) | Place::Sse(_) | Place::Messages(_), Auth::NotForMcp)
            | (Place::Livez | Place::Readyz, _) => Ok(Proven::by_itself(&self.anonymous)),
            (Place::Mcp(_) | Place::Sse(_) | Place::Messages(_), Auth::Required)
            | (Place::Api | Place::Metrics | Place::Upgrade(_), _) => Err(Refused::Unauthorized),
        }
    }

    /// Says who makes a request by its header, where it has one.
    pub fn introduced(&self, parts: &Parts) -> Result<Option<Proven>, Refused> {
        if parts.uri.query().is_some_and(holds_credential) {
            return Err(Refused::Query);
        }
        if !parts.headers.contains_key(header::AUTHORIZATION) {
            return Ok(None);
        }
        // A wrong credential never falls back to another identity.
        let proven = only(&parts.headers, header::AUTHORIZATION)
            .and_then(bearer)
            .and_then(|token| self.holder(token));
        proven.map(Some).ok_or(Refused::Unauthorized)
    }

    /// Returns whom a token was given to.
    pub fn holder(&self, token: &str) -> Option<Proven> {
        if let Some(owner) = self.owner.prove(token.as_bytes()) {
            return Some(owner);
        }
        let issued = self.tokens.as_ref()?.find(token)?;
        Some(Proven {
            principal: Arc::clone(&issued.principal),
            token: Some(issued),
        })
    }
}

/// Whether a token of this kind opens a place.
fn opens(kind: TokenKind, place: &Place) -> Result<(), Refused> {
    match (kind, place) {
        (TokenKind::Agent, _)
        | (TokenKind::Executor, Place::Upgrade(Goes::Executor))
        | (TokenKind::Auditor | TokenKind::Viewer, Place::Api | Place::Metrics)
        | (_, Place::Livez | Place::Readyz) => Ok(()),
        (
            TokenKind::Auditor | TokenKind::Viewer,
            Place::Mcp(_) | Place::Sse(_) | Place::Messages(_) | Place::Upgrade(_),
        ) => Err(Refused::ReaderToken),
        (
            TokenKind::Executor,
            Place::Mcp(_)
            | Place::Sse(_)
            | Place::Messages(_)
            | Place::Upgrade(Goes::Peer)
            | Place::Api
            | Place::Metrics,
        ) => Err(Refused::ExecutorToken),
    }
}

/// Returns the value of a header that stands exactly once and is plain text.
fn only(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    match values.next() {
        Some(_) => None,
        None => first.to_str().ok(),
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| token.trim_matches(' '))
}

fn holds_credential(query: &str) -> bool {
    query.split('&').any(|pair| {
        let key = pair.split_once('=').map_or(pair, |(key, _)| key);
        CREDENTIAL_KEYS
            .iter()
            .any(|known| key.eq_ignore_ascii_case(known))
    })
}

/// Whether an authority means the socket the request came in at. A name other than localhost
/// never does: that is how a web page reaches a listener it must not (DNS rebinding).
fn is_ours(authority: &str, local: SocketAddr) -> bool {
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
    fn a_name_that_a_person_gave_is_ours_and_no_other() {
        let local = Local::new("10.0.0.5:7331".parse().unwrap());
        let names = vec!["hub.example".into(), "alt.example:8443".into()];
        let door = Door::new(Auth::Required, "t").with_names(names);
        for ours in [
            "hub.example",
            "HUB.example:7331",
            "hub.example:443",
            "alt.example:8443",
            "10.0.0.5:7331",
        ] {
            assert!(door.is_meant_by(ours, &local), "{ours}");
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
            assert!(!door.is_meant_by(other, &local), "{other}");
        }
        assert!(door.is_own_page("https://hub.example", &local));
        assert!(!door.is_own_page("https://10.0.0.5:7331", &local));
        assert!(!door.is_own_page("https://evil.example", &local));
    }

    #[test]
    fn only_literal_addresses_and_localhost_are_ours() {
        let local: SocketAddr = "127.0.0.1:7331".parse().unwrap();
        for ours in [
            "127.0.0.1:7331",
            "localhost:7331",
            "LOCALHOST:7331",
            "localhost.:7331",
            "[::1]:7331",
        ] {
            assert!(is_ours(ours, local), "{ours}");
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
            assert!(!is_ours(foreign, local), "{foreign}");
        }
    }

    #[test]
    fn a_token_is_itself_and_nothing_else() {
        let token = Token(b"0123456789abcdefghi".to_vec());
        assert!(token.is(b"0123456789abcdefghi"));
        for at in 0..token.0.len() {
            let mut other = token.0.clone();
            other[at] ^= 1;
            assert!(!token.is(&other), "byte {at}");
        }
        assert!(!token.is(b""));
        assert!(!token.is(b"0123456789abcdefgh"));
        assert!(!token.is(b"0123456789abcdefghij"));
    }

    #[test]
    fn a_token_in_the_query_is_found_whatever_its_case() {
        assert!(holds_credential("a=b&Access_Token=x"));
        assert!(holds_credential("token"));
        assert!(!holds_credential("server=token&after=1"));
    }
}
