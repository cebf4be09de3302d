//! One connection, driven by who uses it.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::Request;
use http::response::Parts;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::client::conn::TrySendError;
use hyper::client::conn::http1::{Connection, SendRequest};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use super::super::client::{HttpError, causes};

type Stream = MaybeHttpsStream<TokioIo<TcpStream>>;

/// A connection. Nothing happens on it unless it is polled: by the request that it carries, or
/// when it is taken out of the pool.
pub(super) struct Wire {
    sender: SendRequest<Full<Bytes>>,
    connection: Connection<Stream, Full<Bytes>>,
    /// Whether the connection has ended, after which it must not be polled.
    is_over: bool,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire")
            .field("is_over", &self.is_over)
            .finish_non_exhaustive()
    }
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Refused {
    /// No byte of it was written, so it is given back.
    Unsent(Box<Request<Full<Bytes>>>, Arc<str>),
    Failed(HttpError),
}

/// A body on its connection.
#[derive(Debug)]
pub(super) struct Reading {
    wire: Box<Wire>,
    incoming: Incoming,
}

impl Wire {
    pub(super) const fn new(
        sender: SendRequest<Full<Bytes>>,
        connection: Connection<Stream, Full<Bytes>>,
    ) -> Self {
        Self {
            sender,
            connection,
            is_over: false,
        }
    }

    /// Moves bytes in both directions as far as they go.
    fn drive(&mut self, cx: &mut Context<'_>) {
        if !self.is_over {
            // Why it ended is told to the request that it carried.
            self.is_over = Pin::new(&mut self.connection).poll(cx).is_ready();
        }
    }

    /// Whether another request can be sent: the peer has not closed it, and no answer is open.
    pub(super) async fn is_usable(&mut self) -> bool {
        poll_fn(|cx| {
            self.drive(cx);
            Poll::Ready(!self.is_over && self.sender.is_ready())
        })
        .await
    }

    /// Sends a request and waits for the head of the answer.
    pub(super) async fn send(
        mut self: Box<Self>,
        request: Request<Full<Bytes>>,
        first_byte: Option<Instant>,
    ) -> Result<(Parts, Reading), Refused> {
        let mut sending = pin!(self.sender.try_send_request(request));
        let (connection, is_over) = (&mut self.connection, &mut self.is_over);
        let answered = poll_fn(|cx| {
            if let Poll::Ready(sent) = sending.as_mut().poll(cx) {
                return Poll::Ready(Some(sent));
            }
            if *is_over {
                return Poll::Ready(None);
            }
            *is_over = Pin::new(&mut *connection).poll(cx).is_ready();
            match sending.as_mut().poll(cx) {
                Poll::Ready(sent) => Poll::Ready(Some(sent)),
                // A connection that is over answers nothing.
                Poll::Pending if *is_over => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        });
        let answered = match first_byte {
            None => answered.await,
            Some(deadline) => match timeout_at(deadline, answered).await {
                Ok(answered) => answered,
                Err(_) => return Err(Refused::Failed(HttpError::FirstByteTimeout)),
            },
        };
        match answered {
            Some(Ok(response)) => {
                let (head, incoming) = response.into_parts();
                Ok((
                    head,
                    Reading {
                        wire: self,
                        incoming,
                    },
                ))
            }
            Some(Err(error)) => Err(Refused::from(error)),
            None => {
                let reason = "it was closed".into();
                Err(Refused::Failed(HttpError::Lost(reason)))
            }
        }
    }
}

impl From<TrySendError<Request<Full<Bytes>>>> for Refused {
    fn from(mut error: TrySendError<Request<Full<Bytes>>>) -> Self {
        let back = error.take_message();
        let error = error.into_error();
        let reason = causes(&error);
        match back {
            Some(request) => Self::Unsent(Box::new(request), reason),
            None if error.is_parse() => Self::Failed(HttpError::Head(reason)),
            None => Self::Failed(HttpError::Lost(reason)),
        }
    }
}

impl Reading {
    /// Whether nothing is left to be read.
    pub(super) fn is_over(&self) -> bool {
        self.incoming.is_end_stream()
    }

    /// Returns the connection, to be used again.
    pub(super) fn into_wire(self) -> Box<Wire> {
        self.wire
    }

    pub(super) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, HttpError>>> {
        let mut driven = false;
        loop {
            match Pin::new(&mut self.incoming).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // What follows a body is nothing to us.
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(HttpError::Lost(causes(&error)))));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending if !driven && !self.wire.is_over => {
                    self.wire.drive(cx);
                    driven = true;
                }
                Poll::Pending if self.wire.is_over => {
                    let reason = "it was closed".into();
                    return Poll::Ready(Some(Err(HttpError::Lost(reason))));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
