//! WebSocket upgrade: strict validation of the request, and the accept key of the response.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, StatusCode, Version};
use thiserror::Error;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// The only WebSocket version.
const VERSION: HeaderValue = HeaderValue::from_static("13");

const WEBSOCKET: HeaderValue = HeaderValue::from_static("websocket");

/// Bytes of the client key.
const KEY_BYTES: usize = 16;

/// Why an upgrade is refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum UpgradeError {
    /// The method is not GET.
    #[error("a WebSocket is asked for by GET")]
    Method,
    /// Not a WebSocket upgrade.
    #[error("only WebSocket is spoken here")]
    NotWebSocket,
    /// Unsupported WebSocket version.
    #[error("the version of WebSocket is 13")]
    Version,
    /// The request is malformed.
    #[error("this is no handshake of a WebSocket")]
    Malformed,
}

impl UpgradeError {
    /// Returns the response status.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::NotWebSocket | Self::Version => StatusCode::UPGRADE_REQUIRED,
            Self::Malformed => StatusCode::BAD_REQUEST,
        }
    }

    /// Adds the required response headers.
    pub fn add_headers(self, headers: &mut HeaderMap) {
        match self {
            Self::Method => {
                headers.insert(header::ALLOW, HeaderValue::from_static("GET"));
            }
            Self::NotWebSocket | Self::Version => {
                headers.insert(header::UPGRADE, WEBSOCKET);
                headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
                headers.insert(header::SEC_WEBSOCKET_VERSION, VERSION);
            }
            Self::Malformed => {}
        }
    }
}

/// Accept header of a valid upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeResponse(HeaderValue);

impl UpgradeResponse {
    /// Adds the headers of the 101 response.
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        headers.insert(header::UPGRADE, WEBSOCKET);
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, self.0.clone());
    }
}

/// Returns the `Sec-WebSocket-Accept` value of a key.
#[must_use]
pub fn accept_key(key: &[u8]) -> String {
    derive_accept_key(key)
}

/// Validates an upgrade request.
///
/// # Errors
/// The request is not a valid upgrade.
pub fn check_upgrade(parts: &Parts) -> Result<UpgradeResponse, UpgradeError> {
    if parts.method != Method::GET {
        return Err(UpgradeError::Method);
    }
    let headers = &parts.headers;
    let upgrades = has_token(headers, &header::UPGRADE, "websocket")
        && has_token(headers, &header::CONNECTION, "upgrade");
    if !upgrades || parts.version != Version::HTTP_11 {
        return Err(UpgradeError::NotWebSocket);
    }
    let length = headers.get(header::CONTENT_LENGTH);
    let has_body = length.is_some_and(|length| length.as_bytes() != b"0");
    if has_body || headers.contains_key(header::TRANSFER_ENCODING) {
        return Err(UpgradeError::Malformed);
    }
    match single_header(headers, &header::SEC_WEBSOCKET_VERSION)? {
        version if version == VERSION => {}
        _ => return Err(UpgradeError::Version),
    }
    let key = single_header(headers, &header::SEC_WEBSOCKET_KEY)?;
    let bytes = STANDARD
        .decode(key)
        .map_err(|_error| UpgradeError::Malformed)?;
    if bytes.len() != KEY_BYTES {
        return Err(UpgradeError::Malformed);
    }
    let accept = HeaderValue::try_from(accept_key(key.as_bytes()));
    accept
        .map(UpgradeResponse)
        .map_err(|_error| UpgradeError::Malformed)
}

/// Returns the value of a header that must occur exactly once.
fn single_header<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<&'a HeaderValue, UpgradeError> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Ok(value),
        _ => Err(UpgradeError::Malformed),
    }
}

/// Whether a list header contains a token.
fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).iter();
    let mut words = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    words.any(|word| word.trim().eq_ignore_ascii_case(token))
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

    fn check_headers(method: Method, headers: &[(&str, &str)]) -> Result<String, UpgradeError> {
        let mut request = Request::builder().method(method).uri("/broker");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        check_upgrade(&parts).map(|agreed| agreed.0.to_str().unwrap().to_owned())
    }

    #[test]
    fn only_complete_upgrade_is_accepted() {
        assert_eq!(
            check_headers(Method::GET, &GOOD).unwrap(),
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        assert_eq!(
            check_headers(Method::POST, &GOOD),
            Err(UpgradeError::Method)
        );
        let missing = [
            UpgradeError::NotWebSocket,
            UpgradeError::NotWebSocket,
            UpgradeError::Malformed,
            UpgradeError::Malformed,
        ];
        for (at, fault) in missing.into_iter().enumerate() {
            let mut less = GOOD.to_vec();
            less.remove(at);
            assert_eq!(
                check_headers(Method::GET, &less),
                Err(fault),
                "{}",
                GOOD[at].0
            );
            let mut twice = GOOD.to_vec();
            twice.push(GOOD[at]);
            assert_eq!(
                check_headers(Method::GET, &twice).is_ok(),
                at < 2,
                "{}",
                GOOD[at].0
            );
        }
        for (at, value, fault) in [
            (0, "keep-alive", UpgradeError::NotWebSocket),
            (1, "h2c", UpgradeError::NotWebSocket),
            (2, "8", UpgradeError::Version),
            (3, "short", UpgradeError::Malformed),
            (3, "dGhlIHNhbXBsZSBub25jZ", UpgradeError::Malformed),
            (3, "AAAA", UpgradeError::Malformed),
        ] {
            let mut other = GOOD;
            other[at].1 = value;
            assert_eq!(check_headers(Method::GET, &other), Err(fault), "{value}");
        }
        let mut body = GOOD.to_vec();
        body.push(("content-length", "5"));
        assert_eq!(
            check_headers(Method::GET, &body),
            Err(UpgradeError::Malformed)
        );
    }
}
