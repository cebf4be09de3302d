//! Rows as messages of RFC 5424: datagrams, or frames with their length before them over TCP.

use std::path::PathBuf;

use bowline_journal::audit::RowText;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UdpSocket, UnixDatagram};

use super::{ExportError, is_refusal, noted_ms};
use crate::civil;
use crate::config::SyslogTo;

/// Longest message that is sent as one datagram, in bytes.
const DATAGRAM_BYTES_MAX: usize = 60_000;

/// Facility 13 (log audit), severity 6 (informational).
const PRIORITY_CALL: u8 = 13 * 8 + 6;

/// Facility 13 (log audit), severity 4 (warning).
const PRIORITY_REFUSAL: u8 = 13 * 8 + 4;

/// Where this machine says its name.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// A receiver that speaks syslog.
#[derive(Debug)]
pub(super) struct Syslog {
    to: SyslogTo,
    /// What stands between the time and the row of every message.
    origin: String,
    link: Option<Link>,
}

#[derive(Debug)]
enum Link {
    Udp(UdpSocket),
    Unix(UnixDatagram, PathBuf),
    Tcp(TcpStream),
}

impl Syslog {
    pub(super) fn new(to: SyslogTo) -> Self {
        let name = std::fs::read_to_string(HOSTNAME).unwrap_or_default();
        let name: String = name.chars().filter(char::is_ascii_graphic).collect();
        let name = if name.is_empty() { "-" } else { &name };
        Self {
            to,
            origin: format!("{name} bowline {} audit -", std::process::id()),
            link: None,
        }
    }

    /// Sends rows and returns how many of them are too long.
    pub(super) async fn send(&mut self, rows: &[RowText]) -> Result<u64, ExportError> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => connect(&self.to).await?,
        };
        let mut unsent = 0;
        for row in rows {
            let message = self.message(row);
            match &mut link {
                Link::Udp(_) | Link::Unix(..) if message.len() > DATAGRAM_BYTES_MAX => unsent += 1,
                Link::Udp(socket) => {
                    socket.send(message.as_bytes()).await?;
                }
                Link::Unix(socket, path) => {
                    socket.send_to(message.as_bytes(), &path).await?;
                }
                Link::Tcp(stream) => {
                    let frame = format!("{} {message}", message.len());
                    stream.write_all(frame.as_bytes()).await?;
                }
            }
        }
        if let Link::Tcp(stream) = &mut link {
            stream.flush().await?;
            // A receiver says nothing; that it hung up is all there is to know.
            let mut byte = [0; 1];
            if matches!(stream.try_read(&mut byte), Ok(0)) {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
            }
        }
        self.link = Some(link);
        Ok(unsent)
    }

    fn message(&self, row: &RowText) -> String {
        let priority = if is_refusal(row) {
            PRIORITY_REFUSAL
        } else {
            PRIORITY_CALL
        };
        let at = civil::shown(noted_ms(row));
        format!("<{priority}>1 {at} {} {}", self.origin, row.line())
    }
}

async fn connect(to: &SyslogTo) -> Result<Link, ExportError> {
    Ok(match to {
        SyslogTo::Udp(address) => {
            let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
            let mut found = None;
            for address in tokio::net::lookup_host(address).await? {
                let any = if address.is_ipv4() {
                    "0.0.0.0:0"
                } else {
                    "[::]:0"
                };
                let socket = UdpSocket::bind(any).await?;
                match socket.connect(address).await {
                    Ok(()) => {
                        found = Some(socket);
                        break;
                    }
                    Err(error) => last = error,
                }
            }
            Link::Udp(found.ok_or(last)?)
        }
        SyslogTo::Tcp(address) => Link::Tcp(TcpStream::connect(address).await?),
        SyslogTo::Unix(path) => Link::Unix(UnixDatagram::unbound()?, path.clone()),
    })
}
