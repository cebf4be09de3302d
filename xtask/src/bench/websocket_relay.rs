//! A plain WebSocket relay: forwards bytes of a TCP connection in binary messages. Without HTTP,
//! flow control or streams, the relay is the minimum cost of forwarding bytes.

use std::{
    io::{self, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    thread,
};

use anyhow::{Context, Result, bail};

/// Size limit of one message.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Longest head of the upgrade, in bytes.
const HEAD_BYTES_MAX: usize = 4 * 1024;

/// Longest frame head: two bytes, a 16-bit length, a mask.
const FRAME_HEAD_BYTES: usize = 8;

/// First byte of an unfragmented binary frame.
const BINARY_FRAME: u8 = 0x82;

/// Mask of client frames. A constant is safe: no proxy is between both sides.
const CLIENT_MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// Side of the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelaySide {
    /// Accepts TCP connections and opens a WebSocket for each.
    Near,
    /// Accepts WebSockets and opens a TCP connection for each.
    Far,
}

/// Serves one side until the process is killed: `near|far LISTEN TO`.
pub(super) fn serve_relay(words: &[String]) -> Result<()> {
    let [side, listen, to] = words else {
        bail!("a relay needs its side, where it listens and where it leads");
    };
    let side = match side.as_str() {
        "near" => RelaySide::Near,
        "far" => RelaySide::Far,
        other => bail!("no side `{other}`"),
    };
    let listener = TcpListener::bind(listen).with_context(|| format!("listen at {listen}"))?;
    accept_connections(&listener, side, to.parse().context("where it leads")?)
}

fn accept_connections(listener: &TcpListener, side: RelaySide, to: SocketAddr) -> Result<()> {
    for came in listener.incoming() {
        let came = came.context("accept")?;
        // An error ends only this connection; the peer sees the close.
        thread::spawn(move || relay_connection(came, side, to));
    }
    Ok(())
}

/// Forwards one connection until either side closes.
fn relay_connection(inbound: TcpStream, side: RelaySide, to: SocketAddr) -> Result<()> {
    let outbound = TcpStream::connect(to)?;
    inbound.set_nodelay(true)?;
    outbound.set_nodelay(true)?;
    let (plain, mut socket) = match side {
        RelaySide::Near => (inbound, outbound),
        RelaySide::Far => (outbound, inbound),
    };
    upgrade_socket(&mut socket, side)?;
    let (from, into) = (plain.try_clone()?, socket.try_clone()?);
    let mask = (side == RelaySide::Near).then_some(CLIENT_MASK);
    let out = thread::spawn(move || {
        let _ = bytes_to_frames(&from, &into, mask);
        let _ = into.shutdown(Shutdown::Both);
    });
    let _ = frames_to_bytes(&socket, &plain);
    let _ = plain.shutdown(Shutdown::Both);
    let _ = out.join();
    Ok(())
}

/// Performs the upgrade without `Sec-WebSocket-Accept`: both ends are this program.
fn upgrade_socket(socket: &mut TcpStream, side: RelaySide) -> Result<()> {
    const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    if side == RelaySide::Near {
        let head = format!("GET / HTTP/1.1\r\nHost: relay\r\n{UPGRADE}\r\n");
        socket.write_all(head.as_bytes())?;
    }
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut one = [0];
        socket.read_exact(&mut one)?;
        head.extend_from_slice(&one);
        if head.len() > HEAD_BYTES_MAX {
            bail!("the head of the upgrade is too long");
        }
    }
    if side == RelaySide::Far {
        let head = format!("HTTP/1.1 101 Switching Protocols\r\n{UPGRADE}\r\n");
        socket.write_all(head.as_bytes())?;
    }
    Ok(())
}

/// Turns plain bytes into messages: one read becomes one message in one write.
fn bytes_to_frames(
    mut plain: &TcpStream,
    mut socket: &TcpStream,
    mask: Option<[u8; 4]>,
) -> io::Result<()> {
    let mut buffer = vec![0; FRAME_HEAD_BYTES + MESSAGE_BYTES_MAX];
    loop {
        let (head, room) = buffer.split_at_mut(FRAME_HEAD_BYTES);
        let room = room.get_mut(..MESSAGE_BYTES_MAX - 1).unwrap_or_default();
        let length @ 1.. = plain.read(room)? else {
            return Ok(());
        };
        if let Some(mask) = mask {
            apply_mask(mask, room.get_mut(..length).unwrap_or_default());
        }
        let begins = write_frame_head(head, length, mask);
        let frame = buffer.get(begins..FRAME_HEAD_BYTES + length);
        socket.write_all(frame.unwrap_or_default())?;
    }
}

/// Writes the frame head right-aligned before the payload; returns the offset of its first byte.
fn write_frame_head(head: &mut [u8], length: usize, mask: Option<[u8; 4]>) -> usize {
    let masked = if mask.is_some() { 0x80 } else { 0 };
    let mut bytes = vec![BINARY_FRAME];
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ 0..126), _) => bytes.push(masked | short),
        (_, length) => {
            bytes.push(masked | 126);
            // A read is at most 65,535 bytes.
            bytes.extend_from_slice(&length.unwrap_or(u16::MAX).to_be_bytes());
        }
    }
    bytes.extend(mask.unwrap_or_default().iter().filter(|_| mask.is_some()));
    let begins = head.len() - bytes.len();
    if let Some(place) = head.get_mut(begins..) {
        place.copy_from_slice(&bytes);
    }
    begins
}

/// Turns messages into plain bytes, each in one write.
fn frames_to_bytes(socket: &TcpStream, mut plain: &TcpStream) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(MESSAGE_BYTES_MAX, socket);
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let mut head = [0; 2];
        reader.read_exact(&mut head)?;
        let [kind, second] = head;
        let length = match second & 0x7f {
            126 => {
                let mut two = [0; 2];
                reader.read_exact(&mut two)?;
                usize::from(u16::from_be_bytes(two))
            }
            short @ 0..126 => usize::from(short),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        if kind != BINARY_FRAME {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut mask = [0; 4];
        if second & 0x80 != 0 {
            reader.read_exact(&mut mask)?;
        }
        let message = message.get_mut(..length).unwrap_or_default();
        reader.read_exact(message)?;
        if second & 0x80 != 0 {
            apply_mask(mask, message);
        }
        plain.write_all(message)?;
    }
}

/// Applies or removes the mask.
fn apply_mask(mask: [u8; 4], bytes: &mut [u8]) {
    let word = u32::from_ne_bytes(mask);
    let (fours, rest) = bytes.as_chunks_mut::<4>();
    for four in fours {
        *four = (u32::from_ne_bytes(*four) ^ word).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask) {
        *byte ^= mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves one side on a thread that ends with the test process.
    fn start_side(side: RelaySide, to: SocketAddr) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || accept_connections(&listener, side, to));
        address
    }

    #[test]
    fn relay_preserves_bytes_and_closes_both_sides() {
        let backend = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = start_side(RelaySide::Far, backend.local_addr().unwrap());
        let near = start_side(RelaySide::Near, far);
        let echo = thread::spawn(move || {
            let (mut stream, _) = backend.accept().unwrap();
            let mut chunk = vec![0; 200_000];
            while let Ok(length @ 1..) = stream.read(&mut chunk) {
                stream.write_all(&chunk[..length]).unwrap();
            }
        });
        let mut stream = TcpStream::connect(near).unwrap();
        for length in [1, 2, 125, 126, 127, 65_535, 65_536, 300_000] {
            let sent: Vec<u8> = (0..length).map(|nth: usize| (nth % 251) as u8).collect();
            let mut reader = stream.try_clone().unwrap();
            let wanted = sent.len();
            let read = thread::spawn(move || {
                let mut came = vec![0; wanted];
                reader.read_exact(&mut came).unwrap();
                came
            });
            stream.write_all(&sent).unwrap();
            assert!(read.join().unwrap() == sent, "{length} bytes");
        }
        stream.shutdown(Shutdown::Write).unwrap();
        echo.join().unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}
