//! Dials a WebSocket: a connection, TLS where asked for, and the handshake.

use std::error::Error;
use std::io;

use bytes::{Bytes, BytesMut};
use http::HeaderValue;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tower::ServiceExt;

use super::{DialError, Incoming, Outgoing, Side, SocketLimits, accept_key, join};
use crate::http::client::causes;
use crate::http::clock;
use crate::http::endpoint::Endpoint;
use crate::http::hyper_client::{address, connector, web_roots};
use crate::link::Spawner;

/// Bytes of the head of the answer.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Headers of the answer.
const HEADERS_MAX: usize = 64;

/// Dials `endpoint` (`http(s)`, whose path is the one to ask for) and shakes hands. Trusts the
/// roots of the web. The token goes where the endpoint leads, also without TLS: the caller decides.
///
/// # Errors
/// There is no connection.
pub async fn dial(
    endpoint: &Endpoint,
    bearer: Option<&str>,
    deadline: Instant,
    limits: SocketLimits,
    spawner: &dyn Spawner,
) -> Result<(Outgoing, Incoming), DialError> {
    let tls = web_roots().map_err(|error| DialError::Tls(causes(&error)))?;
    dial_with(tls, endpoint, bearer, deadline, limits, spawner).await
}

/// Dials as [`dial`] does, and trusts what `tls` says.
///
/// # Errors
/// There is no connection.
pub async fn dial_with(
    tls: ClientConfig,
    endpoint: &Endpoint,
    bearer: Option<&str>,
    deadline: Instant,
    limits: SocketLimits,
    spawner: &dyn Spawner,
) -> Result<(Outgoing, Incoming), DialError> {
    let connecting = async {
        let left = deadline.saturating_duration_since(clock::now());
        let to = address(endpoint).map_err(|error| DialError::Unreachable(causes(&error)))?;
        let stream = connector(left, tls).oneshot(to).await;
        let mut stream = TokioIo::new(stream.map_err(|error| not_reached(&*error))?);
        let read = handshake(&mut stream, endpoint, bearer).await?;
        Ok((stream, read))
    };
    match timeout_at(deadline, connecting).await {
        Ok(Ok((stream, read))) => Ok(join(stream, Side::Client, read, limits, spawner)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(DialError::Timeout),
    }
}

/// Asks for the upgrade; returns what came behind the answer.
async fn handshake<S>(
    stream: &mut S,
    endpoint: &Endpoint,
    bearer: Option<&str>,
) -> Result<Bytes, DialError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let lost = |error: io::Error| DialError::Unreachable(causes(&error));
    let key = generate_key();
    let request = request(endpoint, bearer, &key)?;
    stream.write_all(&request).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let mut read = BytesMut::new();
    loop {
        if let Some(end) = answered(&read, &key)? {
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

fn request(endpoint: &Endpoint, bearer: Option<&str>, key: &str) -> Result<Vec<u8>, DialError> {
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

/// Returns where the head of the answer ends, if it is here and is what it must be.
fn answered(read: &[u8], key: &str) -> Result<Option<usize>, DialError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut answer = httparse::Response::new(&mut headers);
    let end = match answer.parse(read) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(DialError::Unreachable(causes(&error))),
    };
    let status = answer.code.unwrap_or_default();
    let has = |name: &str, word: &str| {
        let named = answer
            .headers
            .iter()
            .filter(|header| header.name.eq_ignore_ascii_case(name));
        let mut words = named.flat_map(|header| header.value.split(|byte| *byte == b','));
        words.any(|said| said.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
    };
    let accept = accept_key(key.as_bytes());
    let accepts = answer.headers.iter().any(|header| {
        header.name.eq_ignore_ascii_case("sec-websocket-accept")
            && header.value.trim_ascii() == accept.as_bytes()
    });
    let agreed =
        status == 101 && accepts && has("upgrade", "websocket") && has("connection", "upgrade");
    match agreed {
        true => Ok(Some(end)),
        false => Err(DialError::Refused { status }),
    }
}

fn not_reached(error: &(dyn Error + 'static)) -> DialError {
    let mut next = Some(error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<io::Error>();
        if io.is_some_and(|io| io.kind() == io::ErrorKind::TimedOut) {
            return DialError::Timeout;
        }
        // An I/O error shows what is inside it, and not itself, as its source.
        let inside = io.and_then(io::Error::get_ref);
        let is_tls = cause.is::<rustls::Error>()
            || inside.is_some_and(|inside| inside.is::<rustls::Error>());
        if is_tls {
            return DialError::Tls(causes(error));
        }
        next = match inside {
            Some(inside) => Some(inside as &(dyn Error + 'static)),
            None => cause.source(),
        };
    }
    DialError::Unreachable(causes(error))
}
