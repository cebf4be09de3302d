//! Byte stream of a connection, plain or TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Output of the connector.
pub(in super::super) type DialedStream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// A connected stream. Plain TCP is used without a wrapper.
#[derive(Debug)]
pub(super) enum TransportStream {
    Plain(TcpStream),
    Tls(Box<TokioIo<DialedStream>>),
}

impl TransportStream {
    /// Whether no input is available, not even the end. Asks the kernel, ahead of the runtime.
    pub(super) fn is_quiet(&mut self, cx: &mut Context<'_>) -> bool {
        let mut byte = [0; 1];
        match self {
            Self::Plain(plain) => rustix::io::read(plain, &mut byte) == Err(Errno::AGAIN),
            // Raw input may be TLS control records only.
            Self::Tls(tls) => {
                let mut byte = ReadBuf::new(&mut byte);
                Pin::new(tls).poll_read(cx, &mut byte).is_pending()
            }
        }
    }

    /// Whether a failed write has sent nothing. TLS buffers its input and may have sent a part.
    pub(super) const fn has_exact_writes(&self) -> bool {
        matches!(self, Self::Plain(_))
    }
}

impl From<DialedStream> for TransportStream {
    fn from(dialed: DialedStream) -> Self {
        match dialed {
            MaybeHttpsStream::Http(plain) => Self::Plain(plain.into_inner()),
            tls @ MaybeHttpsStream::Https(_) => Self::Tls(Box::new(TokioIo::new(tls))),
        }
    }
}

impl AsyncRead for TransportStream {
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

impl AsyncWrite for TransportStream {
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
