//! Accepts connections, reads requests within bounds, and shows them to the door.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Role;
use http::{HeaderValue, Request, StatusCode, header};
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use super::body::{self, Answer};
use super::door::{Local, Refused};
use super::errors::UNAUTHORIZED;
use super::hold::Hold;
use super::large::{self, Payer};
use super::mcp::Endpoint;
use super::route::{Place, place};
use super::{Edge, api, connection, mcp, metrics, pace, ready, unproven, upgrade};

/// Connections served at once, whatever the shares of principals are; further ones wait in the
/// kernel's queue.
pub const CONNECTIONS_MAX: usize = 65_536;

/// Accepts connections until told to stop, then lets requests under way end.
pub async fn serve(edge: Arc<Edge>, listener: TcpListener, mut stop: watch::Receiver<bool>) {
    let seats = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let seat = tokio::select! {
            seat = Arc::clone(&seats).acquire_owned() => seat,
            () = connection::told(&mut stop) => return,
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
            () = connection::told(&mut stop) => return,
        };
        let task = connection::keep(Arc::clone(&edge), stream, stop.clone());
        edge.host.tasks().spawn("connection", async move {
            task.await;
            drop(seat);
        });
    }
}

/// Answers one request of a connection that came in at `local`.
pub(super) async fn answer(
    edge: &Arc<Edge>,
    request: Request<Incoming>,
    (local, hold): (&Local, &Arc<Hold>),
) -> Answer {
    let (mut parts, incoming) = request.into_parts();
    if let Err(refused) = edge.door.check_address(&parts, local) {
        let route = place(parts.uri.path()).map_or(unproven::NOWHERE, |place| place.word());
        return edge.refuse(refused, (&parts, route), hold);
    }
    let Some(place) = place(parts.uri.path()) else {
        return body::text(StatusCode::NOT_FOUND, "there is nothing here\n");
    };
    if let Place::Upgrade(goes) = place {
        return upgrade::answer(edge, &parts, hold, goes);
    }
    let proven = edge.door.identify(&parts, &place).and_then(|proven| {
        edge.holds.prove(hold, proven.token.as_ref())?;
        Ok((hold.principal(&proven.principal), proven.kind()))
    });
    let (principal, kind) = match proven {
        Ok(proven) => proven,
        Err(refused) => return edge.refuse(refused, (&parts, place.word()), hold),
    };
    // Who asks whether the gateway lives has proved nothing by that.
    let is_proof =
        principal.role != Role::AnonymousLocal || !matches!(place, Place::Livez | Place::Readyz);
    if is_proof && let Err(unseated) = hold.seat(edge.host.accounts(), &principal) {
        return unseated.answer();
    }
    // Every request counts, whatever it asks for; whether the process lives may be asked freely.
    if !matches!(place, Place::Livez | Place::Readyz)
        && let Err(refused) = pace::admit(edge, &principal, &incoming).await
    {
        return refused;
    }
    let (endpoint, scope) = match place {
        Place::Mcp(scope) => (Endpoint::Streamable, scope),
        Place::Sse(scope) => (Endpoint::OldStream, scope),
        Place::Messages(scope) => (Endpoint::OldMessages, scope),
        Place::Api => {
            parts.extensions.insert(hold.key());
            return Box::pin(api::answer(edge, (&principal, kind), parts, incoming)).await;
        }
        Place::Metrics => {
            return Box::pin(metrics::answer(edge, (&principal, kind), &parts.method)).await;
        }
        Place::Livez => return body::text(StatusCode::OK, "ok\n"),
        Place::Readyz => {
            let detail = match principal.role {
                Role::Owner => ready::Detail::Servers,
                _ => ready::Detail::Word,
            };
            return ready::answer(edge, detail);
        }
        Place::Upgrade(goes) => return upgrade::answer(edge, &parts, hold, goes),
    };
    let answer = mcp::answer(edge, &principal, (endpoint, &scope), &parts, incoming).await;
    if !large::may_be(&answer) {
        return answer;
    }
    let accounts = edge.host.accounts().clone();
    large::charge(
        answer,
        Payer {
            accounts,
            principal,
        },
    )
}

/// Turns a caller away. The body is an error that MCP clients can show.
pub(super) fn refusal(refused: Refused) -> Answer {
    let status = match refused {
        Refused::Host
        | Refused::Origin
        | Refused::Forbidden
        | Refused::ExecutorToken
        | Refused::ReaderToken => StatusCode::FORBIDDEN,
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
