//! The handshake of a WebSocket: read strictly, answered with what proves that it was read.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode, Version};
use thiserror::Error;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// The only version there is.
const VERSION: HeaderValue = HeaderValue::from_static("13");

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Bytes of the key that a caller sends.
const KEY_BYTES: usize = 16;

/// Why there is no handshake.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Fault {
    /// It is asked for in another way than by GET.
    #[error("a WebSocket is asked for by GET")]
    Method,
    /// No WebSocket is asked for.
    #[error("only WebSocket is spoken here")]
    Plain,
    /// It is one of another version.
    #[error("the version of WebSocket is 13")]
    Version,
    /// The request is not a valid one.
    #[error("this is no handshake of a WebSocket")]
    Malformed,
}

impl Fault {
    /// Returns the status of the answer that refuses.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Plain | Self::Version => StatusCode::UPGRADE_REQUIRED,
            Self::Malformed => StatusCode::BAD_REQUEST,
        }
    }

    /// Adds the headers that such an answer must have.
    pub fn add_headers(self, headers: &mut HeaderMap) {
        match self {
            Self::Method => {
                headers.insert(header::ALLOW, HeaderValue::from_static("GET"));
            }
            Self::Plain | Self::Version => {
                headers.insert(header::UPGRADE, WEBSOCKET);
                headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
                headers.insert(header::SEC_WEBSOCKET_VERSION, VERSION);
            }
            Self::Malformed => {}
        }
    }
}

/// What proves that a handshake was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed(HeaderValue);

impl Agreed {
    /// Adds the headers of the answer that agrees, whose status is 101.
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        headers.insert(header::UPGRADE, WEBSOCKET);
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, self.0.clone());
    }
}

/// Returns what `Sec-WebSocket-Accept` answers to a key.
#[must_use]
pub fn accept_key(key: &[u8]) -> String {
    derive_accept_key(key)
}

/// Reads a handshake.
///
/// # Errors
/// It is none, or not one that can be answered.
pub fn check(parts: &Parts) -> Result<Agreed, Fault> {
    if parts.method != Method::GET {
        return Err(Fault::Method);
    }
    let headers = &parts.headers;
    let upgrades = has_token(headers, &header::UPGRADE, "websocket")
        && has_token(headers, &header::CONNECTION, "upgrade");
    if !upgrades || parts.version != Version::HTTP_11 {
        return Err(Fault::Plain);
    }
    let length = headers.get(header::CONTENT_LENGTH);
    let has_body = length.is_some_and(|length| length.as_bytes() != b"0");
    if has_body || headers.contains_key(header::TRANSFER_ENCODING) {
        return Err(Fault::Malformed);
    }
    match only(headers, &header::SEC_WEBSOCKET_VERSION)? {
        version if version == VERSION => {}
        _ => return Err(Fault::Version),
    }
    let key = only(headers, &header::SEC_WEBSOCKET_KEY)?;
    let bytes = STANDARD.decode(key).map_err(|_error| Fault::Malformed)?;
    if bytes.len() != KEY_BYTES {
        return Err(Fault::Malformed);
    }
    let accept = HeaderValue::try_from(accept_key(key.as_bytes()));
    accept.map(Agreed).map_err(|_error| Fault::Malformed)
}

/// Returns the value of a header that stands exactly once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<&'a HeaderValue, Fault> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        _ => Err(Fault::Malformed),
    }
}

/// Whether a header that is a list of words holds this one.
fn has_token(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    let values = headers.get_all(name).iter();
    let mut words = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    words.any(|word| word.trim().eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const GOOD: [(&str, &str); 4] = [
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "WebSocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];

    fn read(method: Method, headers: &[(&str, &str)]) -> Result<String, Fault> {
        let mut request = Request::builder().method(method).uri("/broker");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        check(&parts).map(|agreed| agreed.0.to_str().unwrap().to_owned())
    }

    #[test]
    fn only_a_whole_handshake_is_answered() {
        assert_eq!(
            read(Method::GET, &GOOD).unwrap(),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        assert_eq!(read(Method::POST, &GOOD), Err(Fault::Method));
        let missing = [
            Fault::Plain,
            Fault::Plain,
            Fault::Malformed,
            Fault::Malformed,
        ];
        for (at, fault) in missing.into_iter().enumerate() {
            let mut less = GOOD.to_vec();
            less.remove(at);
            assert_eq!(read(Method::GET, &less), Err(fault), "{}", GOOD[at].0);
            let mut twice = GOOD.to_vec();
            twice.push(GOOD[at]);
            assert_eq!(read(Method::GET, &twice).is_ok(), at < 2, "{}", GOOD[at].0);
        }
        for (at, value, fault) in [
            (0, "keep-alive", Fault::Plain),
            (1, "h2c", Fault::Plain),
            (2, "8", Fault::Version),
            (3, "short", Fault::Malformed),
            (3, "dGhlIHNhbXBsZSBub25jZ", Fault::Malformed),
            (3, "AAAA", Fault::Malformed),
        ] {
            let mut other = GOOD;
            other[at].1 = value;
            assert_eq!(read(Method::GET, &other), Err(fault), "{value}");
        }
        let mut body = GOOD.to_vec();
        body.push(("content-length", "5"));
        assert_eq!(read(Method::GET, &body), Err(Fault::Malformed));
    }
}
