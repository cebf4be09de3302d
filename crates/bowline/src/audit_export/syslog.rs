//! Sends audit rows as RFC 5424 messages: datagrams, or length-prefixed frames over TCP.

use std::path::PathBuf;

use bowline_journal::audit::RowText;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UdpSocket, UnixDatagram};

use super::{AuditExportError, is_denial_row, row_timestamp_ms};
use crate::civil;
use bowline_config::SyslogAddress;

/// Maximum bytes of a datagram.
const DATAGRAM_BYTES_MAX: usize = 60_000;

/// Facility 13 (log audit), severity 6 (informational).
const PRIORITY_CALL: u8 = 13 * 8 + 6;

/// Facility 13 (log audit), severity 4 (warning).
const PRIORITY_REFUSAL: u8 = 13 * 8 + 4;

/// File with the hostname of this machine.
const HOSTNAME_FILE: &str = "/proc/sys/kernel/hostname";

/// Client of a syslog receiver.
#[derive(Debug)]
pub(super) struct SyslogClient {
    address: SyslogAddress,
    /// The header fields between the timestamp and the row of every message.
    header: String,
    socket: Option<SyslogSocket>,
}

#[derive(Debug)]
enum SyslogSocket {
    Udp(UdpSocket),
    Unix(UnixDatagram, PathBuf),
    Tcp(TcpStream),
}

impl SyslogClient {
    pub(super) fn new(address: SyslogAddress) -> Self {
        let name = std::fs::read_to_string(HOSTNAME_FILE).unwrap_or_default();
        let name: String = name.chars().filter(char::is_ascii_graphic).collect();
        let name = if name.is_empty() { "-" } else { &name };
        Self {
            address,
            header: format!("{name} bowline {} audit -", std::process::id()),
            socket: None,
        }
    }

    /// Sends rows and returns the number of rows too long to send.
    pub(super) async fn send_rows(&mut self, rows: &[RowText]) -> Result<u64, AuditExportError> {
        let mut socket = match self.socket.take() {
            Some(socket) => socket,
            None => open_socket(&self.address).await?,
        };
        let mut too_long = 0;
        for row in rows {
            let message = self.format_message(row);
            match &mut socket {
                SyslogSocket::Udp(_) | SyslogSocket::Unix(..)
                    if message.len() > DATAGRAM_BYTES_MAX =>
                {
                    too_long += 1
                }
                SyslogSocket::Udp(socket) => {
                    socket.send(message.as_bytes()).await?;
                }
                SyslogSocket::Unix(socket, path) => {
                    socket.send_to(message.as_bytes(), &path).await?;
                }
                SyslogSocket::Tcp(stream) => {
                    let frame = format!("{} {message}", message.len());
                    stream.write_all(frame.as_bytes()).await?;
                }
            }
        }
        if let SyslogSocket::Tcp(stream) = &mut socket {
            stream.flush().await?;
            // A receiver never responds; a closed connection is the only detectable failure.
            let mut byte = [0; 1];
            if matches!(stream.try_read(&mut byte), Ok(0)) {
                return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
            }
        }
        self.socket = Some(socket);
        Ok(too_long)
    }

    fn format_message(&self, row: &RowText) -> String {
        let priority = if is_denial_row(row) {
            PRIORITY_REFUSAL
        } else {
            PRIORITY_CALL
        };
        let at = civil::format_utc(row_timestamp_ms(row));
        format!("<{priority}>1 {at} {} {}", self.header, row.to_json_line())
    }
}

async fn open_socket(to: &SyslogAddress) -> Result<SyslogSocket, AuditExportError> {
    Ok(match to {
        SyslogAddress::Udp(address) => {
            let mut last = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
            let mut connected = None;
            for address in tokio::net::lookup_host(address).await? {
                let any = if address.is_ipv4() {
                    "0.0.0.0:0"
                } else {
                    "[::]:0"
                };
                let socket = UdpSocket::bind(any).await?;
                match socket.connect(address).await {
                    Ok(()) => {
                        connected = Some(socket);
                        break;
                    }
                    Err(error) => last = error,
                }
            }
            SyslogSocket::Udp(connected.ok_or(last)?)
        }
        SyslogAddress::Tcp(address) => SyslogSocket::Tcp(TcpStream::connect(address).await?),
        SyslogAddress::Unix(path) => SyslogSocket::Unix(UnixDatagram::unbound()?, path.clone()),
    })
}
