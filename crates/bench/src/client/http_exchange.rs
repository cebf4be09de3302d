//! One HTTP/1.1 connection that is kept alive: a request out, a body of known length, in chunks or
//! up to the end of the connection in.

use std::{
    str,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::event_lines::find_response;

const HEADERS_MAX: usize = 64;
/// Longest wait for the end of a stream behind its response.
const STREAM_END_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct HttpExchange {
    host: String,
    stream: Option<TcpStream>,
    /// Bytes that are read and not yet used.
    unread: Vec<u8>,
    /// Body of the last response.
    pub(super) body: Vec<u8>,
    pub(super) response_at: Instant,
    pub(super) connects: u64,
}

#[derive(Debug, Default)]
pub(super) struct ReplyHead {
    pub(super) status: u16,
    pub(super) is_event_stream: bool,
    pub(super) session: Option<String>,
    length: Option<usize>,
    is_chunked: bool,
    closes_connection: bool,
}

#[derive(Debug)]
pub(super) enum ExchangeEnd {
    /// A connection that was used before ended without a byte of the response.
    StaleConnection,
    Failed(anyhow::Error),
}

/// Whether the connection can serve the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterBody {
    KeepOpen,
    Close,
}

impl HttpExchange {
    pub(super) fn new(host: String) -> Self {
        Self {
            host,
            stream: None,
            unread: Vec::new(),
            body: Vec::new(),
            response_at: Instant::now(),
            connects: 0,
        }
    }

    /// Sends a request and reads the response. A stream of events counts as complete once the
    /// response to `awaited_id` is read.
    pub(super) async fn run(
        &mut self,
        request: &[u8],
        awaited_id: Option<u64>,
    ) -> Result<ReplyHead, ExchangeEnd> {
        let reused = self.stream.take();
        let was_open = reused.is_some();
        let mut stream = match reused {
            Some(stream) => stream,
            None => self.connect().await.map_err(ExchangeEnd::Failed)?,
        };
        self.unread.clear();
        let exchanged = self.exchange(&mut stream, request, awaited_id).await;
        match exchanged {
            Ok((head, after)) => {
                if after == AfterBody::KeepOpen && !head.closes_connection {
                    self.stream = Some(stream);
                }
                Ok(head)
            }
            Err(ExchangeEnd::StaleConnection) if !was_open => {
                let error = anyhow!("the connection ended before a response");
                Err(ExchangeEnd::Failed(error))
            }
            Err(end) => Err(end),
        }
    }

    async fn connect(&mut self) -> Result<TcpStream> {
        let stream = TcpStream::connect(&self.host).await.context("connect")?;
        let _ = stream.set_nodelay(true);
        self.connects += 1;
        Ok(stream)
    }

    async fn exchange(
        &mut self,
        stream: &mut TcpStream,
        request: &[u8],
        awaited_id: Option<u64>,
    ) -> Result<(ReplyHead, AfterBody), ExchangeEnd> {
        if stream.write_all(request).await.is_err() {
            return Err(ExchangeEnd::StaleConnection);
        }
        let head = self.read_head(stream).await?;
        self.body.clear();
        let awaited_id = awaited_id.filter(|_| head.is_event_stream);
        let after = self.read_body(stream, &head, awaited_id).await;
        Ok((head, after.map_err(ExchangeEnd::Failed)?))
    }

    async fn read_head(&mut self, stream: &mut TcpStream) -> Result<ReplyHead, ExchangeEnd> {
        loop {
            let was_empty = self.unread.is_empty();
            match stream.read_buf(&mut self.unread).await {
                Ok(0) | Err(_) if was_empty => return Err(ExchangeEnd::StaleConnection),
                Ok(0) => return Err(ExchangeEnd::Failed(anyhow!("the head is cut off"))),
                Ok(_) => {}
                Err(error) => return Err(ExchangeEnd::Failed(error.into())),
            }
            while let Some((head, bytes)) = parse_head(&self.unread).map_err(ExchangeEnd::Failed)? {
                self.unread.drain(..bytes);
                // An interim response precedes the response.
                if head.status >= 200 {
                    return Ok(head);
                }
            }
        }
    }

    async fn read_body(
        &mut self,
        stream: &mut TcpStream,
        head: &ReplyHead,
        awaited_id: Option<u64>,
    ) -> Result<AfterBody> {
        let has_no_body = matches!(head.status, 204 | 304)
            || (head.status == 202 && head.length.is_none() && !head.is_chunked);
        let length = if has_no_body { Some(0) } else { head.length };
        if let Some(length) = length {
            while self.unread.len() < length {
                if stream.read_buf(&mut self.unread).await? == 0 {
                    bail!("the body is cut off");
                }
            }
            self.body.extend(self.unread.drain(..length));
        } else if head.is_chunked {
            return self.read_chunks(stream, awaited_id).await;
        } else {
            self.body.append(&mut self.unread);
            while stream.read_buf(&mut self.body).await? > 0 {}
            self.response_at = Instant::now();
            return Ok(AfterBody::Close);
        }
        self.response_at = Instant::now();
        Ok(AfterBody::KeepOpen)
    }

    async fn read_chunks(
        &mut self,
        stream: &mut TcpStream,
        awaited_id: Option<u64>,
    ) -> Result<AfterBody> {
        let mut has_response = false;
        loop {
            if self.take_chunks()? {
                if !has_response {
                    self.response_at = Instant::now();
                }
                return Ok(AfterBody::KeepOpen);
            }
            if !has_response
                && self.body.ends_with(b"\n\n")
                && awaited_id.is_some_and(|id| find_response(&self.body, id).is_some())
            {
                has_response = true;
                self.response_at = Instant::now();
            }
            let read = stream.read_buf(&mut self.unread);
            let count = if has_response {
                match timeout(STREAM_END_TIMEOUT, read).await {
                    Ok(count) => count?,
                    // The server keeps the stream open behind the response.
                    Err(_) => return Ok(AfterBody::Close),
                }
            } else {
                read.await?
            };
            match count {
                0 if has_response => return Ok(AfterBody::Close),
                0 => bail!("the chunked body is cut off"),
                _ => {}
            }
        }
    }

    /// Moves complete chunks into the body; returns whether the last chunk was among them.
    fn take_chunks(&mut self) -> Result<bool> {
        let mut used = 0;
        let mut is_last = false;
        while !is_last {
            let rest = self.unread.get(used..).unwrap_or_default();
            let Some(line_end) = memchr::memmem::find(rest, b"\r\n") else {
                break;
            };
            let line = str::from_utf8(rest.get(..line_end).unwrap_or_default())?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).context("chunk size")?;
            let (start, end) = (line_end + 2, line_end + 2 + size);
            let Some(chunk) = rest.get(start..end).filter(|_| rest.len() >= end + 2) else {
                break;
            };
            self.body.extend_from_slice(chunk);
            used += end + 2;
            is_last = size == 0;
        }
        self.unread.drain(..used);
        Ok(is_last)
    }
}

/// Returns the head and its length once the head is complete.
fn parse_head(bytes: &[u8]) -> Result<Option<(ReplyHead, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(length) = response.parse(bytes).context("head")? else {
        return Ok(None);
    };
    let mut head = ReplyHead {
        status: response.code.unwrap_or_default(),
        ..ReplyHead::default()
    };
    for header in response.headers.iter() {
        let value = String::from_utf8_lossy(header.value);
        let value = value.trim();
        match header.name.to_ascii_lowercase().as_str() {
            "content-length" => head.length = value.parse().ok(),
            "transfer-encoding" => {
                head.is_chunked = value.to_ascii_lowercase().ends_with("chunked");
            }
            "content-type" => head.is_event_stream = value.starts_with("text/event-stream"),
            "connection" => head.closes_connection = value.eq_ignore_ascii_case("close"),
            "mcp-session-id" => head.session = Some(value.to_owned()),
            _ => {}
        }
    }
    Ok(Some((head, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined_across_reads() {
        let mut exchange = HttpExchange::new(String::new());
        for part in ["3\r\nab", "c\r\n2;x=1\r\nde\r", "\n"] {
            exchange.unread.extend_from_slice(part.as_bytes());
            assert!(!exchange.take_chunks().unwrap());
        }
        exchange.unread.extend_from_slice(b"0\r\n\r\n");
        assert!(exchange.take_chunks().unwrap());
        assert_eq!(
            (&*exchange.body, &*exchange.unread),
            (&b"abcde"[..], &[][..])
        );
    }

    #[test]
    fn head_is_read_once_complete() {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                    Transfer-Encoding: chunked\r\nMcp-Session-Id: s\r\n\r\n";
        assert!(parse_head(head.trim_end().as_bytes()).unwrap().is_none());
        let (parsed, length) = parse_head(head.as_bytes()).unwrap().unwrap();
        assert_eq!((parsed.status, length), (200, head.len()));
        assert!(parsed.is_event_stream && parsed.is_chunked);
        assert_eq!(parsed.session.as_deref(), Some("s"));
    }
}
