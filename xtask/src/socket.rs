//! A WebSocket of text messages by hand, so that what is tested is not what tests it.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::process;

/// Longest head of an answer to the upgrade, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How long the upgrade and each write may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Any key will do: nobody here asks whether the other side is a cache.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// Frames are masked with it. Nobody between could be misled by what a test writes.
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// One open WebSocket.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    /// What was read and is not a whole frame yet.
    rest: Vec<u8>,
    /// The pieces of a message of several frames.
    pieces: Vec<u8>,
    /// When anything was read last, pings included.
    heard: Instant,
}

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Text(Vec<u8>),
    /// Nothing, within the time that was given.
    Nothing,
    /// The other side ended it, with this code where it said one.
    Closed(Option<u16>),
}

impl Socket {
    /// Opens one at `/broker`.
    pub(crate) fn open(address: SocketAddr, token: &str) -> Result<Self> {
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE).context("connect")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let head = format!(
            "GET /broker HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
             Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: {KEY}\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        let mut rest = Vec::new();
        let end = loop {
            if let Some(at) = rest.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if rest.len() > HEAD_BYTES_MAX || read_some(&mut stream, &mut rest)? == 0 {
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
            rest,
            pieces: Vec::new(),
            heard: process::now(),
        })
    }

    /// The same, said hello and welcomed.
    pub(crate) fn join(address: SocketAddr, name: &str, token: &str) -> Result<Self> {
        let mut socket = Self::open(address, token)?;
        let agent = json!({"session_id": name});
        socket.say(&json!({"kind": "hello", "agent": agent, "token": token}))?;
        loop {
            let frame = match socket.hear(PATIENCE)? {
                Came::Text(text) => serde_json::from_slice::<Value>(&text)?,
                Came::Nothing => bail!("no welcome"),
                Came::Closed(code) => bail!("closed before the welcome: {code:?}"),
            };
            match frame.get("kind").and_then(Value::as_str) {
                Some("welcome") => return Ok(socket),
                Some("error") => bail!("refused: {frame}"),
                _ => {}
            }
        }
    }

    /// How long nothing was heard of the other side.
    pub(crate) fn silence(&self) -> Duration {
        self.heard.elapsed()
    }

    /// Sends one frame.
    pub(crate) fn say(&mut self, frame: &Value) -> Result<()> {
        self.send(TEXT, frame.to_string().as_bytes())
    }

    /// Sends one frame that is written already.
    pub(crate) fn say_text(&mut self, frame: &str) -> Result<()> {
        self.send(TEXT, frame.as_bytes())
    }

    /// Waits for the next message at most so long; answers pings meanwhile.
    pub(crate) fn hear(&mut self, patience: Duration) -> Result<Came> {
        // No timeout at all would be zero.
        let patience = patience.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(patience))?;
        loop {
            while let Some((first, payload)) = self.frame()? {
                match first & 0x0f {
                    TEXT | CONTINUATION => {
                        self.pieces.extend_from_slice(&payload);
                        if first & 0x80 != 0 {
                            return Ok(Came::Text(std::mem::take(&mut self.pieces)));
                        }
                    }
                    PING => self.send(PONG, &payload)?,
                    CLOSE => {
                        let code = payload.first_chunk().map(|two| u16::from_be_bytes(*two));
                        return Ok(Came::Closed(code));
                    }
                    _ => {}
                }
            }
            if self.rest.len() + self.pieces.len() > MESSAGE_BYTES_MAX {
                bail!("the message is too long");
            }
            match read_some(&mut self.stream, &mut self.rest) {
                Ok(0) => return Ok(Came::Closed(None)),
                Ok(_) => self.heard = process::now(),
                Err(error) if is_late(&error) => return Ok(Came::Nothing),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes the next whole frame from what was read: its first byte, its payload.
    fn frame(&mut self) -> Result<Option<(u8, Vec<u8>)>> {
        let [first, second, rest @ ..] = self.rest.as_slice() else {
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
        if self.rest.len() < head + length {
            return Ok(None);
        }
        let payload = self.rest.drain(..head + length).skip(head).collect();
        Ok(Some((first, payload)))
    }

    fn send(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
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

fn read_some(stream: &mut TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = [0; 4096];
    let count = stream.read(&mut chunk)?;
    into.extend_from_slice(chunk.get(..count).unwrap_or_default());
    Ok(count)
}

fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// A server that upgrades, sends these bytes and gives back what it is sent.
    fn scripted(bytes: Vec<u8>) -> (SocketAddr, thread::JoinHandle<Vec<u8>>) {
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
    fn messages_of_every_length_are_read_whole_and_pings_are_answered() {
        let mut bytes = vec![0x89, 1, b'!', 0x01, 2, b'{', b'"', 0x80, 1, b'}'];
        bytes.extend([0x81, 126, 1, 0]);
        bytes.extend([b'x'; 256]);
        bytes.extend([0x88, 2, 0x0f, 0xa1]);
        let (address, server) = scripted(bytes);
        let mut socket = Socket::open(address, "t").unwrap();
        let mut hear = || socket.hear(PATIENCE).unwrap();
        assert_eq!(hear(), Came::Text(b"{\"}".to_vec()));
        assert_eq!(hear(), Came::Text(vec![b'x'; 256]));
        assert_eq!(hear(), Came::Closed(Some(4001)));
        socket.say(&json!({})).unwrap();
        drop(socket);
        let said = server.join().unwrap();
        let pong = [0x8a, 0x81, 0x37, 0xfa, 0x21, 0x3d, b'!' ^ 0x37];
        let text = [0x81, 0x82, 0x37, 0xfa, 0x21, 0x3d, b'{' ^ 0x37, b'}' ^ 0xfa];
        assert_eq!(said, [pong.as_slice(), &text].concat());
    }
}
