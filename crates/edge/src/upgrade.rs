//! WebSocket upgrades: connections of broker peers and executors.

use std::sync::Arc;

use bowline_link::websocket::{self, UpgradeError, UpgradeResponse};
use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;
use tokio::net::TcpStream;

use super::auth::{AuthError, AuthenticatedCaller};
use super::connection_registry::{ClientConnection, PoolSlot};
use super::http_listener::UpgradeTarget;
use super::response_body::{self, EdgeResponse};
use super::upgraded_connection::UpgradedConnection;
use super::{Edge, broker_endpoint, executor_endpoint};

/// Maximum number of upgraded, unauthenticated connections; at the limit the oldest is closed.
pub(super) const UPGRADE_POOL_MAX: usize = 256;

/// The same per remote address.
pub(super) const UPGRADE_POOL_ADDRESS_MAX: usize = 32;

/// Maximum message size before authentication.
pub(super) const HELLO_BYTES_MAX: usize = 64 * 1024;

/// Documentation of the protocol.
const fn docs_page(target: UpgradeTarget) -> &'static str {
    match target {
        UpgradeTarget::Peer => "docs/broker.md",
        UpgradeTarget::Executor => "docs/executor.md",
    }
}

/// The bare stream of a connection after the HTTP handshake.
#[derive(Debug)]
pub(super) struct UpgradedStream {
    pub(super) stream: TcpStream,
    /// Bytes received with the handshake.
    pub(super) read_ahead: Bytes,
}

/// Protocol switch to apply after the handshake response.
#[derive(Debug)]
pub(super) struct PendingUpgrade {
    target: UpgradeTarget,
    /// Identity from the `Authorization` header.
    pub(super) identity: Option<AuthenticatedCaller>,
    /// Pool slot of an unauthenticated connection.
    pub(super) pool_slot: Option<PoolSlot>,
}

/// Handles an upgrade request. On success the protocol switch is stored in `connection`.
pub(super) fn handle_upgrade(
    edge: &Edge,
    parts: &Parts,
    connection: &ClientConnection,
    target: UpgradeTarget,
) -> EdgeResponse {
    let identity = match edge.authenticator.authenticate_header(parts) {
        Ok(None) if target == UpgradeTarget::Executor => {
            return edge.refuse_request(AuthError::Unauthorized, parts, target.label(), connection);
        }
        Ok(identity) => identity,
        Err(refused) => return edge.refuse_request(refused, parts, target.label(), connection),
    };
    let agreed = match websocket::check_upgrade(parts) {
        Ok(agreed) => agreed,
        Err(fault) => return handshake_refusal(fault, docs_page(target)),
    };
    // A connection authenticated by header needs no pool slot and cannot be evicted.
    let pool_slot = match &identity {
        Some(identity) => match connection.take_share(edge.host.accounts(), &identity.principal) {
            Ok(()) => None,
            Err(refusal) => return refusal.into_response(),
        },
        None => {
            let pool_slot = edge.upgrade_pool.acquire_slot(connection.peer_ip());
            connection.leave_pool();
            Some(pool_slot)
        }
    };
    connection.set_upgrade(PendingUpgrade {
        target,
        identity,
        pool_slot,
    });
    switching_protocols(&agreed)
}

/// Serves an upgraded connection until closed.
pub(super) async fn serve_upgraded(
    edge: &Arc<Edge>,
    connection: &Arc<ClientConnection>,
    stream: UpgradedStream,
    upgrade: PendingUpgrade,
) {
    let target = upgrade.target;
    let eviction = upgrade.pool_slot.as_ref().map(PoolSlot::eviction);
    let upgraded = UpgradedConnection::new(edge, connection, upgrade);
    let serving = async {
        match target {
            UpgradeTarget::Peer => broker_endpoint::serve_peer(upgraded, stream).await,
            UpgradeTarget::Executor => executor_endpoint::serve_executor(upgraded, stream).await,
        }
    };
    match eviction {
        None => serving.await,
        Some(eviction) => tokio::select! {
            () = serving => {}
            () = eviction.shutdown().wait_closing() => {}
        },
    }
}

/// Refuses the handshake and names the documentation.
fn handshake_refusal(fault: UpgradeError, page: &'static str) -> EdgeResponse {
    let line = match fault {
        UpgradeError::NotWebSocket => format!("{fault}: {page}\n"),
        UpgradeError::Method | UpgradeError::Version | UpgradeError::Malformed => {
            format!("{fault}\n")
        }
    };
    let mut response = response_body::text_response(fault.status(), line);
    fault.add_headers(response.headers_mut());
    response
}

/// Accepts the handshake.
fn switching_protocols(agreed: &UpgradeResponse) -> EdgeResponse {
    let mut response = response_body::empty_response(StatusCode::SWITCHING_PROTOCOLS);
    agreed.add_headers(response.headers_mut());
    response
}
