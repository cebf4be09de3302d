//! Accepts WebSocket upgrades without an HTTP server: reads the request head, and leaves the
//! decision to its owner.

use std::io;
use std::sync::Arc;

use bowline_runtime::TaskSpawner;
use bytes::{Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, StatusCode, Uri, Version};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use super::{
    UpgradeError, WebSocketConnection, WebSocketLimits, WebSocketRole, check_upgrade,
    open_websocket,
};
use crate::http::http_client::error_chain;

/// Longest request head.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Headers per request.
const HEADERS_MAX: usize = 64;

/// Why an upgrade failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum WebSocketAcceptError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(Arc<str>),
    /// The request timed out.
    #[error("no request in time")]
    Timeout,
    /// The request is not HTTP/1.1 or too large; an error response was sent.
    #[error("what came is no request")]
    NoRequest,
    /// The request is not a valid upgrade; an error response was sent.
    #[error("it was refused")]
    Refused(#[source] UpgradeError),
}

impl From<io::Error> for WebSocketAcceptError {
    fn from(error: io::Error) -> Self {
        Self::Broken(error_chain(&error))
    }
}

/// A request head that waits for a response.
#[derive(Debug)]
pub struct UpgradeRequest<S> {
    /// The parsed head, not validated further.
    pub parts: Parts,
    stream: S,
    /// Input after the head.
    read: Bytes,
    deadline: Instant,
}

/// Reads a request head within limits. `deadline` covers the response as well.
///
/// # Errors
/// The head is late or invalid.
pub async fn accept_upgrade<S>(
    mut stream: S,
    deadline: Instant,
) -> Result<UpgradeRequest<S>, WebSocketAcceptError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let reading = timeout_at(deadline, read_head(&mut stream)).await;
    match reading.map_err(|_| WebSocketAcceptError::Timeout)? {
        Ok((parts, read)) => Ok(UpgradeRequest {
            parts,
            stream,
            read,
            deadline,
        }),
        Err(HeadError::Broken(error)) => Err(error.into()),
        Err(HeadError::Invalid(status)) => {
            let headers = HeaderMap::new();
            let writing = write_response(&mut stream, status, &headers, "");
            let _ = timeout_at(deadline, writing).await;
            Err(WebSocketAcceptError::NoRequest)
        }
    }
}

impl<S> UpgradeRequest<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// Upgrades a valid request; responds with an error otherwise.
    ///
    /// # Errors
    /// The upgrade failed.
    pub async fn upgrade(
        self,
        limits: WebSocketLimits,
        spawner: &dyn TaskSpawner,
    ) -> Result<WebSocketConnection, WebSocketAcceptError> {
        let agreed = match check_upgrade(&self.parts) {
            Ok(agreed) => agreed,
            Err(fault) => {
                let mut headers = HeaderMap::new();
                fault.add_headers(&mut headers);
                let line = format!("{fault}\n");
                self.write_reply(fault.status(), &headers, &line).await?;
                return Err(WebSocketAcceptError::Refused(fault));
            }
        };
        let mut headers = HeaderMap::new();
        agreed.add_headers(&mut headers);
        let read = self.read.clone();
        let stream = self.write_reply(StatusCode::SWITCHING_PROTOCOLS, &headers, "");
        Ok(open_websocket(
            stream.await?,
            WebSocketRole::Server,
            read,
            limits,
            spawner,
        ))
    }

    /// Responds with a line of text and closes: a refusal, or a plain response.
    ///
    /// # Errors
    /// The response was not delivered.
    pub async fn respond(self, status: StatusCode, line: &str) -> Result<(), WebSocketAcceptError> {
        self.write_reply(status, &HeaderMap::new(), line)
            .await
            .map(drop)
    }

    async fn write_reply(
        mut self,
        status: StatusCode,
        headers: &HeaderMap,
        line: &str,
    ) -> Result<S, WebSocketAcceptError> {
        let answering = write_response(&mut self.stream, status, headers, line);
        match timeout_at(self.deadline, answering).await {
            Ok(written) => written
                .map(|()| self.stream)
                .map_err(WebSocketAcceptError::from),
            Err(_) => Err(WebSocketAcceptError::Timeout),
        }
    }
}

/// Writes a response. Without an upgrade, the connection is closed.
async fn write_response<S>(
    stream: &mut S,
    status: StatusCode,
    headers: &HeaderMap,
    line: &str,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let reason = status.canonical_reason().unwrap_or_default();
    let mut out = format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).into_bytes();
    for (name, value) in headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    if status == StatusCode::SWITCHING_PROTOCOLS {
        out.extend_from_slice(b"\r\n");
        stream.write_all(&out).await?;
        return stream.flush().await;
    }
    if !headers.contains_key(http::header::CONNECTION) {
        out.extend_from_slice(b"connection: close\r\n");
    }
    let rest = format!(
        "content-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\r\n{line}",
        line.len()
    );
    out.extend_from_slice(rest.as_bytes());
    stream.write_all(&out).await?;
    stream.shutdown().await?;
    // Unread input at close would discard the response (TCP reset).
    let mut nothing = [0; 1024];
    let mut left = HEAD_BYTES_MAX;
    while left > 0 {
        match stream.read(&mut nothing).await? {
            0 => break,
            count => left = left.saturating_sub(count),
        }
    }
    Ok(())
}

/// Why no head was read.
#[derive(Debug)]
enum HeadError {
    Broken(io::Error),
    /// Respond with this status.
    Invalid(StatusCode),
}

/// Reads a head; returns the input after it as well.
async fn read_head<S: AsyncRead + Unpin>(stream: &mut S) -> Result<(Parts, Bytes), HeadError> {
    let mut read = BytesMut::new();
    loop {
        if let Some((parts, end)) = parse_head(&read).map_err(HeadError::Invalid)? {
            return Ok((parts, read.split_off(end).freeze()));
        }
        if read.len() >= HEAD_BYTES_MAX {
            return Err(HeadError::Invalid(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            ));
        }
        if stream
            .read_buf(&mut read)
            .await
            .map_err(HeadError::Broken)?
            == 0
        {
            return Err(HeadError::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

/// Parses a complete head and returns its length.
fn parse_head(read: &[u8]) -> Result<Option<(Parts, usize)>, StatusCode> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let end = match parsed.parse(read) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        }
        Err(_) => return Err(StatusCode::BAD_REQUEST),
    };
    let mut request = Request::new(());
    let method = parsed.method.unwrap_or_default().as_bytes();
    *request.method_mut() = Method::from_bytes(method).map_err(|_| StatusCode::BAD_REQUEST)?;
    let path = parsed.path.unwrap_or_default();
    *request.uri_mut() = path.parse::<Uri>().map_err(|_| StatusCode::BAD_REQUEST)?;
    *request.version_mut() = match parsed.version {
        Some(1) => Version::HTTP_11,
        _ => Version::HTTP_10,
    };
    for header in parsed.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes());
        let value = HeaderValue::from_bytes(header.value);
        let name = name.map_err(|_| StatusCode::BAD_REQUEST)?;
        let value = value.map_err(|_| StatusCode::BAD_REQUEST)?;
        request.headers_mut().append(name, value);
    }
    Ok(Some((request.into_parts().0, end)))
}
