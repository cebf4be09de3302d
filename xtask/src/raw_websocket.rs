//! Minimal WebSocket client for text messages, independent of the implementation under test.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::process;

/// Longest response head of the upgrade, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Timeout of the upgrade and of each write.
const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// Any key works: the server's accept header is not checked.
const WEBSOCKET_KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// Mask of all frames. A constant is safe: no proxy is between client and server.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// An open WebSocket connection.
#[derive(Debug)]
pub(crate) struct RawWebSocket {
    stream: TcpStream,
    /// Bytes that were read and do not form a whole frame yet.
    buffer: Vec<u8>,
    /// Payload of earlier fragments of the current message.
    message: Vec<u8>,
    /// Time of the last read, pings included.
    last_read: Instant,
}

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SocketRead {
    Text(Vec<u8>),
    /// No message within the timeout.
    TimedOut,
    /// The server closed the connection, with a close code if present.
    Closed(Option<u16>),
}

impl RawWebSocket {
    /// Connects to `/broker`.
    pub(crate) fn connect(address: SocketAddr, token: &str) -> Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, IO_TIMEOUT).context("connect")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        let head = format!(
            "GET /broker HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: {WEBSOCKET_KEY}\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        let mut rest = Vec::new();
        let end = loop {
            if let Some(at) = rest.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if rest.len() > HEAD_BYTES_MAX || read_chunk(&mut stream, &mut rest)? == 0 {
                bail!("no answer to the upgrade");
            }
        };
        let head: Vec<u8> = rest.drain(..end).collect();
        let head = String::from_utf8_lossy(&head);
        if !head.starts_with("HTTP/1.1 101") {
            bail!("not upgraded: {}", head.lines().next().unwrap_or_default());
        }
        Ok(Self {
            stream,
            buffer: rest,
            message: Vec::new(),
            last_read: process::now(),
        })
    }

    /// Connects, sends `hello` and waits for `welcome`.
    pub(crate) fn connect_peer(address: SocketAddr, name: &str, token: &str) -> Result<Self> {
        let mut socket = Self::connect(address, token)?;
        let agent = json!({"session_id": name});
        socket.send_json(&json!({"kind": "hello", "agent": agent, "token": token}))?;
        loop {
            let frame = match socket.read_message(IO_TIMEOUT)? {
                SocketRead::Text(text) => serde_json::from_slice::<Value>(&text)?,
                SocketRead::TimedOut => bail!("no welcome"),
                SocketRead::Closed(code) => bail!("closed before the welcome: {code:?}"),
            };
            match frame.get("kind").and_then(Value::as_str) {
                Some("welcome") => return Ok(socket),
                Some("error") => bail!("refused: {frame}"),
                _ => {}
            }
        }
    }

    /// Returns the time since the last read.
    pub(crate) fn idle_time(&self) -> Duration {
        self.last_read.elapsed()
    }

    /// Sends a JSON value as one text frame.
    pub(crate) fn send_json(&mut self, frame: &Value) -> Result<()> {
        self.send_frame(TEXT, frame.to_string().as_bytes())
    }

    /// Sends already serialized text as one frame.
    pub(crate) fn send_text(&mut self, frame: &str) -> Result<()> {
        self.send_frame(TEXT, frame.as_bytes())
    }

    /// Waits for the next message up to `patience`; answers pings meanwhile.
    pub(crate) fn read_message(&mut self, patience: Duration) -> Result<SocketRead> {
        // A zero timeout is invalid for a socket.
        let patience = patience.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(patience))?;
        loop {
            while let Some((first, payload)) = self.take_frame()? {
                match first & 0x0f {
                    TEXT | CONTINUATION => {
                        self.message.extend_from_slice(&payload);
                        if first & 0x80 != 0 {
                            return Ok(SocketRead::Text(std::mem::take(&mut self.message)));
                        }
                    }
                    PING => self.send_frame(PONG, &payload)?,
                    CLOSE => {
                        let code = payload.first_chunk().map(|two| u16::from_be_bytes(*two));
                        return Ok(SocketRead::Closed(code));
                    }
                    _ => {}
                }
            }
            if self.buffer.len() + self.message.len() > MESSAGE_BYTES_MAX {
                bail!("the message is too long");
            }
            match read_chunk(&mut self.stream, &mut self.buffer) {
                Ok(0) => return Ok(SocketRead::Closed(None)),
                Ok(_) => self.last_read = process::now(),
                Err(error) if is_timeout(&error) => return Ok(SocketRead::TimedOut),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes the next whole frame from the buffer; returns the first byte and the payload.
    fn take_frame(&mut self) -> Result<Option<(u8, Vec<u8>)>> {
        let [first, second, rest @ ..] = self.buffer.as_slice() else {
            return Ok(None);
        };
        if second & 0x80 != 0 {
            bail!("a frame of a server is not masked");
        }
        let (length, head) = match (second & 0x7f, rest) {
            (126, [a, b, ..]) => (u64::from(u16::from_be_bytes([*a, *b])), 4),
            (127, long) => match long.first_chunk() {
                Some(eight) => (u64::from_be_bytes(*eight), 10),
                None => return Ok(None),
            },
            (126, _) => return Ok(None),
            (short, _) => (u64::from(short), 2),
        };
        let length = usize::try_from(length).context("a frame is too long")?;
        if length > MESSAGE_BYTES_MAX {
            bail!("a frame of {length} bytes is too long");
        }
        let first = *first;
        if self.buffer.len() < head + length {
            return Ok(None);
        }
        let payload = self.buffer.drain(..head + length).skip(head).collect();
        Ok(Some((first, payload)))
    }

    fn send_frame(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        let mut frame = Vec::with_capacity(payload.len() + 14);
        frame.push(0x80 | kind);
        match payload.len() {
            short @ 0..126 => frame.push(0x80 | u8::try_from(short)?),
            length @ 126..0x1_0000 => {
                frame.push(0x80 | 126);
                frame.extend_from_slice(&u16::try_from(length)?.to_be_bytes());
            }
            length => {
                frame.push(0x80 | 127);
                frame.extend_from_slice(&u64::try_from(length)?.to_be_bytes());
            }
        }
        frame.extend_from_slice(&MASK);
        frame.extend(payload.iter().zip(MASK.iter().cycle()).map(|(b, m)| b ^ m));
        self.stream.write_all(&frame).context("write")
    }
}

fn read_chunk(stream: &mut TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = [0; 4096];
    let count = stream.read(&mut chunk)?;
    into.extend_from_slice(chunk.get(..count).unwrap_or_default());
    Ok(count)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// Starts a server that upgrades, sends `bytes` and returns the bytes received.
    fn start_scripted_server(bytes: Vec<u8>) -> (SocketAddr, thread::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut one = [0];
                stream.read_exact(&mut one).unwrap();
                head.push(one[0]);
            }
            stream
                .write_all(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
                .unwrap();
            stream.write_all(&bytes).unwrap();
            let mut said = Vec::new();
            stream.read_to_end(&mut said).unwrap();
            said
        });
        (address, server)
    }

    #[test]
    fn messages_are_reassembled_and_pings_answered() {
        let mut bytes = vec![0x89, 1, b'!', 0x01, 2, b'{', b'"', 0x80, 1, b'}'];
        bytes.extend([0x81, 126, 1, 0]);
        bytes.extend([b'x'; 256]);
        bytes.extend([0x88, 2, 0x0f, 0xa1]);
        let (address, server) = start_scripted_server(bytes);
        let mut socket = RawWebSocket::connect(address, "t").unwrap();
        let mut hear = || socket.read_message(IO_TIMEOUT).unwrap();
        assert_eq!(hear(), SocketRead::Text(b"{\"}".to_vec()));
        assert_eq!(hear(), SocketRead::Text(vec![b'x'; 256]));
        assert_eq!(hear(), SocketRead::Closed(Some(4001)));
        socket.send_json(&json!({})).unwrap();
        drop(socket);
        let said = server.join().unwrap();
        let pong = [0x8a, 0x81, 0x37, 0xfa, 0x21, 0x3d, b'!' ^ 0x37];
        let text = [0x81, 0x82, 0x37, 0xfa, 0x21, 0x3d, b'{' ^ 0x37, b'}' ^ 0xfa];
        assert_eq!(said, [pong.as_slice(), &text].concat());
    }
}
