//! Dials a WebSocket: TCP, optional TLS, and the upgrade.

use std::error::Error;
use std::io;

use bowline_runtime::{TaskSpawner, timer};
use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tower::ServiceExt;

use super::{
    DialError, WebSocketConnection, WebSocketLimits, WebSocketRole, accept_key, open_websocket,
};
use crate::http::endpoint::HttpEndpoint;
use crate::http::http_client::error_chain;
use crate::http::http1::{connect_address, tls_connector, web_root_config};

/// Longest response head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Response headers.
const HEADERS_MAX: usize = 64;

/// Dials an http or https `endpoint` and upgrades at its path. Trusts the web root certificates.
/// The token is sent even without TLS: the caller decides.
///
/// # Errors
/// The connection failed.
pub async fn dial(
    endpoint: &HttpEndpoint,
    bearer: Option<&str>,
    deadline: Instant,
    limits: WebSocketLimits,
    spawner: &dyn TaskSpawner,
) -> Result<WebSocketConnection, DialError> {
    let tls = web_root_config().map_err(|error| DialError::Tls(error_chain(&error)))?;
    dial_with_tls(tls, endpoint, bearer, deadline, limits, spawner).await
}

/// Dials like [`dial`], with the given TLS configuration.
///
/// # Errors
/// The connection failed.
pub async fn dial_with_tls(
    tls: ClientConfig,
    endpoint: &HttpEndpoint,
    bearer: Option<&str>,
    deadline: Instant,
    limits: WebSocketLimits,
    spawner: &dyn TaskSpawner,
) -> Result<WebSocketConnection, DialError> {
    let connecting = async {
        let left = deadline.saturating_duration_since(timer::now());
        let to = connect_address(endpoint)
            .map_err(|error| DialError::Unreachable(error_chain(&error)))?;
        let stream = tls_connector(left, tls).oneshot(to).await;
        let mut stream = TokioIo::new(stream.map_err(|error| to_dial_error(&*error))?);
        let read = perform_upgrade(&mut stream, endpoint, bearer).await?;
        Ok((stream, read))
    };
    match timeout_at(deadline, connecting).await {
        Ok(Ok((stream, read))) => Ok(open_websocket(
            stream,
            WebSocketRole::Client,
            read,
            limits,
            spawner,
        )),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(DialError::Timeout),
    }
}

/// Requests the upgrade; returns the input after the response head.
async fn perform_upgrade<S>(
    stream: &mut S,
    endpoint: &HttpEndpoint,
    bearer: Option<&str>,
) -> Result<Bytes, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let lost = |error: io::Error| DialError::Unreachable(error_chain(&error));
    let key = generate_key();
    let request = upgrade_request(endpoint, bearer, &key)?;
    stream.write_all(&request).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let mut read = BytesMut::new();
    loop {
        if let Some(end) = check_response(&read, &key)? {
            return Ok(read.split_off(end).freeze());
        }
        if read.len() >= HEAD_BYTES_MAX {
            return Err(DialError::Unreachable("the answer does not end".into()));
        }
        if stream.read_buf(&mut read).await.map_err(lost)? == 0 {
            return Err(lost(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

fn upgrade_request(
    endpoint: &HttpEndpoint,
    bearer: Option<&str>,
    key: &str,
) -> Result<Vec<u8>, DialError> {
    let uri = endpoint.uri();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |name| name.as_str());
    let mut out = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
    )
    .into_bytes();
    if let Some(bearer) = bearer {
        let token = HeaderValue::from_str(bearer.trim());
        let token = token.map_err(|_| DialError::Token)?;
        out.extend_from_slice(b"Authorization: Bearer ");
        out.extend_from_slice(token.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    Ok(out)
}

/// Checks a complete response head and returns its length.
fn check_response(read: &[u8], key: &str) -> Result<Option<usize>, DialError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let end = match response.parse(read) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(DialError::Unreachable(error_chain(&error))),
    };
    let status = response.code.unwrap_or_default();
    let has = |name: &str, word: &str| {
        let named = response
            .headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case(name));
        let mut words = named.flat_map(|header| header.value.split(|byte| *byte == b','));
        words.any(|token| token.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    };
    let accept = accept_key(key.as_bytes());
    let accepts = response.headers.iter().any(|header| {
        header.name.eq_ignore_ascii_case("sec-websocket-accept")
            && header.value.trim_ascii() == accept.as_bytes()
    });
    let is_upgraded =
        status == 101 && accepts && has("upgrade", "websocket") && has("connection", "upgrade");
    match is_upgraded {
        true => Ok(Some(end)),
        false => Err(DialError::Refused { status }),
    }
}

fn to_dial_error(error: &(dyn Error + 'static)) -> DialError {
    let mut next = Some(error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<io::Error>();
        if io.is_some_and(|io| io.kind() == io::ErrorKind::TimedOut) {
            return DialError::Timeout;
        }
        // `io::Error::source` skips its inner error, so inspect the inner error first.
        let inside = io.and_then(io::Error::get_ref);
        let is_tls = cause.is::<rustls::Error>()
            || inside.is_some_and(|inside| inside.is::<rustls::Error>());
        if is_tls {
            return DialError::Tls(error_chain(error));
        }
        next = match inside {
            Some(inside) => Some(inside as &(dyn Error + 'static)),
            None => cause.source(),
        };
    }
    DialError::Unreachable(error_chain(error))
}
