//! Takes in whoever dials a WebSocket where no server of HTTP listens: reads the head of the
//! request, and leaves to its owner whether it is let in.

use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, StatusCode, Uri, Version};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use super::{Fault, Incoming, Outgoing, Side, SocketLimits, check, join};
use crate::http::client::causes;
use crate::link::Spawner;

/// Bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Headers of a request.
const HEADERS_MAX: usize = 64;

/// Why a caller did not come in.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AcceptError {
    /// It went away, or the network did.
    #[error("the connection broke: {0}")]
    Broken(Arc<str>),
    /// It took too long.
    #[error("no request in time")]
    Timeout,
    /// It does not speak HTTP/1.1, or says too much; it was told so.
    #[error("what came is no request")]
    NoRequest,
    /// It asks for no WebSocket, or not properly; it was told so.
    #[error("it was refused")]
    Refused(#[source] Fault),
}

impl From<io::Error> for AcceptError {
    fn from(error: io::Error) -> Self {
        Self::Broken(causes(&error))
    }
}

/// Somebody who asks for something and has no answer yet.
#[derive(Debug)]
pub struct Caller<S> {
    /// The head of the request. Nothing of it is checked but that it is one.
    pub parts: Parts,
    stream: S,
    /// What came behind the head.
    read: Bytes,
    deadline: Instant,
}

/// Reads the head of a request, within bounds. The answer must be written before `deadline`, too.
///
/// # Errors
/// There is none in time, or it is not one.
pub async fn accept<S>(mut stream: S, deadline: Instant) -> Result<Caller<S>, AcceptError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let reading = timeout_at(deadline, head(&mut stream)).await;
    match reading.map_err(|_| AcceptError::Timeout)? {
        Ok((parts, read)) => Ok(Caller {
            parts,
            stream,
            read,
            deadline,
        }),
        Err(Head::Broken(error)) => Err(error.into()),
        Err(Head::Invalid(status)) => {
            let headers = HeaderMap::new();
            let told = answer(&mut stream, status, &headers, "");
            let _ = timeout_at(deadline, told).await;
            Err(AcceptError::NoRequest)
        }
    }
}

impl<S> Caller<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// Lets it in, if it asks properly for a WebSocket. Where it does not, it is told.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn upgrade(
        self,
        limits: SocketLimits,
        spawner: &dyn Spawner,
    ) -> Result<(Outgoing, Incoming), AcceptError> {
        let agreed = match check(&self.parts) {
            Ok(agreed) => agreed,
            Err(fault) => {
                let mut headers = HeaderMap::new();
                fault.add_headers(&mut headers);
                let line = format!("{fault}\n");
                self.say(fault.status(), &headers, &line).await?;
                return Err(AcceptError::Refused(fault));
            }
        };
        let mut headers = HeaderMap::new();
        agreed.add_headers(&mut headers);
        let read = self.read.clone();
        let stream = self.say(StatusCode::SWITCHING_PROTOCOLS, &headers, "");
        Ok(join(stream.await?, Side::Server, read, limits, spawner))
    }

    /// Answers with a line of text and closes: how a caller is refused, or told what it asked.
    ///
    /// # Errors
    /// It did not hear that.
    pub async fn answer(self, status: StatusCode, line: &str) -> Result<(), AcceptError> {
        self.say(status, &HeaderMap::new(), line).await.map(drop)
    }

    async fn say(
        mut self,
        status: StatusCode,
        headers: &HeaderMap,
        line: &str,
    ) -> Result<S, AcceptError> {
        let answering = answer(&mut self.stream, status, headers, line);
        match timeout_at(self.deadline, answering).await {
            Ok(written) => written.map(|()| self.stream).map_err(AcceptError::from),
            Err(_) => Err(AcceptError::Timeout),
        }
    }
}

/// Writes an answer. One that does not upgrade ends the connection.
async fn answer<S>(
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
    // What is not read when a socket goes away takes what was written last along.
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

/// Why there is no head.
#[derive(Debug)]
enum Head {
    Broken(io::Error),
    /// It is told this status.
    Invalid(StatusCode),
}

/// Reads a head; returns what came behind it, too.
async fn head<S: AsyncRead + Unpin>(stream: &mut S) -> Result<(Parts, Bytes), Head> {
    let mut read = BytesMut::new();
    loop {
        if let Some((parts, end)) = parse(&read).map_err(Head::Invalid)? {
            return Ok((parts, read.split_off(end).freeze()));
        }
        if read.len() >= HEAD_BYTES_MAX {
            return Err(Head::Invalid(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
        }
        if stream.read_buf(&mut read).await.map_err(Head::Broken)? == 0 {
            return Err(Head::Broken(io::ErrorKind::UnexpectedEof.into()));
        }
    }
}

/// Returns the head and where it ends, if it is here whole.
fn parse(read: &[u8]) -> Result<Option<(Parts, usize)>, StatusCode> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut asked = httparse::Request::new(&mut headers);
    let end = match asked.parse(read) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        }
        Err(_) => return Err(StatusCode::BAD_REQUEST),
    };
    let mut request = Request::new(());
    let method = asked.method.unwrap_or_default().as_bytes();
    *request.method_mut() = Method::from_bytes(method).map_err(|_| StatusCode::BAD_REQUEST)?;
    let path = asked.path.unwrap_or_default();
    *request.uri_mut() = path.parse::<Uri>().map_err(|_| StatusCode::BAD_REQUEST)?;
    *request.version_mut() = match asked.version {
        Some(1) => Version::HTTP_11,
        _ => Version::HTTP_10,
    };
    for header in asked.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes());
        let value = HeaderValue::from_bytes(header.value);
        let name = name.map_err(|_| StatusCode::BAD_REQUEST)?;
        let value = value.map_err(|_| StatusCode::BAD_REQUEST)?;
        request.headers_mut().append(name, value);
    }
    Ok(Some((request.into_parts().0, end)))
}
