//! Accepts connections, reads requests within bounds, and shows them to the door.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use super::body::{self, Answer};
use super::door::Refused;
use super::errors::UNAUTHORIZED;
use super::guard::Guarded;
use super::route::{Place, place};
use super::unread::Unread;
use super::{Edge, api, mcp};

/// Connections served at once; further ones wait in the kernel's queue.
pub const CONNECTIONS_MAX: usize = 16_384;

/// How long a caller may take to send a request's head.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request's head.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Accepts connections until told to stop, then lets requests under way end.
pub async fn serve(edge: Arc<Edge>, listener: TcpListener, mut stop: watch::Receiver<bool>) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let seat = tokio::select! {
            seat = Arc::clone(&seats).acquire_owned() => seat,
            () = told(&mut stop) => return,
        };
        let Ok(seat) = seat else { return };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, most likely: give others time to finish.
                    tracing::warn!(error = &error as &dyn std::error::Error, "accept failed");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = told(&mut stop) => return,
        };
        let task = connection(Arc::clone(&edge), stream, stop.clone());
        edge.host.tasks().spawn("connection", async move {
            task.await;
            drop(seat);
        });
    }
}

async fn connection(edge: Arc<Edge>, stream: TcpStream, mut stop: watch::Receiver<bool>) {
    // Without it small answers wait for acknowledgements.
    let _ = stream.set_nodelay(true);
    let Ok(local) = stream.local_addr() else {
        return;
    };
    let service = service_fn(move |request| {
        let edge = Arc::clone(&edge);
        async move { Ok::<_, Infallible>(answer(&edge, request, local).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_header_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(Guarded::new(Unread::new(stream))), service);
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = told(&mut stop) => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error = &error as &dyn std::error::Error, "connection ended");
    }
}

/// Waits until it is time to stop; whoever could say so being gone means the same.
async fn told(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn answer(edge: &Arc<Edge>, request: Request<Incoming>, local: SocketAddr) -> Answer {
    let (parts, incoming) = request.into_parts();
    if let Err(refused) = edge.door.check_address(&parts, local) {
        return refusal(refused);
    }
    let Some(place) = place(parts.uri.path()) else {
        return body::text(StatusCode::NOT_FOUND, "there is nothing here\n");
    };
    let principal = match edge.door.identify(&parts, &place) {
        Ok(principal) => principal,
        Err(refused) => return refusal(refused),
    };
    match place {
        Place::Mcp(scope) => mcp::answer(edge, &principal, &scope, &parts, incoming).await,
        Place::Api => api::answer(edge, &principal, parts, incoming).await,
        Place::Livez => body::text(StatusCode::OK, "ok\n"),
        Place::Readyz => body::text(StatusCode::OK, "ready\n"),
    }
}

/// Turns a caller away. The body is an error that MCP clients can show.
fn refusal(refused: Refused) -> Answer {
    let status = match refused {
        Refused::Host | Refused::Origin | Refused::Forbidden => StatusCode::FORBIDDEN,
        Refused::Unauthorized => StatusCode::UNAUTHORIZED,
        Refused::Query => StatusCode::BAD_REQUEST,
    };
    let mut text = Vec::new();
    let message = refused.to_string();
    bowline_wire::jsonrpc::write_error(&mut text, None, UNAUTHORIZED, &message, None);
    let mut answer = body::json(status, text);
    if status == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(
            header::WWW_AUTHENTICATE,
            HeaderValue::from_static("Bearer realm=\"bowline\""),
        );
    }
    answer
}
