//! The bytes of a connection, plain or over TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What the connector makes.
pub(in super::super) type Dialed = MaybeHttpsStream<TokioIo<TcpStream>>;

/// A connected stream. What is plain is read and written without a layer between.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TokioIo<Dialed>>),
}

impl Stream {
    /// Whether there is nothing to be read, not even the end. Asks the kernel, which knows of it
    /// before the runtime does.
    pub(super) fn is_quiet(&mut self, cx: &mut Context<'_>) -> bool {
        let mut byte = [0; 1];
        match self {
            Self::Plain(plain) => rustix::io::read(plain, &mut byte) == Err(Errno::AGAIN),
            // What is on the network may be nothing but TLS talking to itself.
            Self::Tls(tls) => {
                let mut byte = ReadBuf::new(&mut byte);
                Pin::new(tls).poll_read(cx, &mut byte).is_pending()
            }
        }
    }

    /// Whether a write that failed has put nothing on the network. TLS keeps what it is given,
    /// and may have sent a part of it.
    pub(super) const fn tells_what_left(&self) -> bool {
        matches!(self, Self::Plain(_))
    }
}

impl From<Dialed> for Stream {
    fn from(dialed: Dialed) -> Self {
        match dialed {
            MaybeHttpsStream::Http(plain) => Self::Plain(plain.into_inner()),
            tls @ MaybeHttpsStream::Https(_) => Self::Tls(Box::new(TokioIo::new(tls))),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_read(cx, buffer),
            Self::Tls(tls) => Pin::new(tls).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_write(cx, bytes),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_write_vectored(cx, bytes),
            Self::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(plain) => Pin::new(plain).poll_shutdown(cx),
            Self::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
