//! A connection upgraded to WebSocket: authentication, and closing when the credential ends.

use std::sync::{Arc, Mutex};

use bowline_core::call::Principal;
use bowline_core::sync::lock;
use bowline_host::audit::{AuditEntry, AuditTarget};
use bowline_journal::audit::AuditRowKind;
use bowline_link::websocket::{
    self, MessageLimit, WebSocketConnection, WebSocketLimits, WebSocketRole,
};

use super::Edge;
use super::auth::{AuthError, AuthenticatedCaller};
use super::auth_failures::AuthFailure;
use super::connection_registry::{ClientConnection, PoolSlot};
use super::upgrade::{HELLO_BYTES_MAX, PendingUpgrade, UpgradedStream};

/// Close reason after the token expired or was revoked.
pub(super) const EXPIRED_REASON: &str = "the token has expired or was revoked";

/// A WebSocket connection from handshake to authentication and beyond.
#[derive(Debug)]
pub(super) struct UpgradedConnection {
    pub(super) edge: Arc<Edge>,
    connection: Arc<ClientConnection>,
    /// Identity from the `Authorization` header.
    pub(super) identity: Option<AuthenticatedCaller>,
    /// Pool slot; released on authentication.
    pool_slot: Mutex<Option<PoolSlot>>,
    /// Message size limit to restore on authentication.
    message_limit: Mutex<Option<(MessageLimit, usize)>>,
}

impl UpgradedConnection {
    pub(super) fn new(
        edge: &Arc<Edge>,
        connection: &Arc<ClientConnection>,
        upgrade: PendingUpgrade,
    ) -> Self {
        Self {
            edge: Arc::clone(edge),
            connection: Arc::clone(connection),
            identity: upgrade.identity.map(|caller| AuthenticatedCaller {
                principal: connection.principal_at_peer(&caller.principal),
                ..caller
            }),
            pool_slot: Mutex::new(upgrade.pool_slot),
            message_limit: Mutex::default(),
        }
    }

    /// Takes over the socket; only small messages are accepted until authentication.
    pub(super) fn open_socket(
        &self,
        stream: UpgradedStream,
        limits: WebSocketLimits,
    ) -> WebSocketConnection {
        let small = WebSocketLimits {
            message_bytes_max: HELLO_BYTES_MAX.min(limits.message_bytes_max),
            ..limits
        };
        let tasks = self.edge.host.tasks();
        let UpgradedStream { stream, read_ahead } = stream;
        let socket =
            websocket::open_websocket(stream, WebSocketRole::Server, read_ahead, small, tasks);
        let then = (socket.sender.message_limit(), limits.message_bytes_max);
        *lock(&self.message_limit) = Some(then);
        socket
    }

    /// Completes authentication: binds the token, takes a connection share, lifts the message
    /// limit.
    ///
    /// # Errors
    /// The token was revoked concurrently, or no share is free.
    pub(super) fn complete_auth(&self, identity: &AuthenticatedCaller) -> Result<(), AuthError> {
        self.edge
            .connections
            .record_token(&self.connection, identity.token.as_ref())?;
        let seated = self
            .connection
            .take_share(self.edge.host.accounts(), &identity.principal);
        seated.map_err(|_no_room| AuthError::Unauthorized)?;
        if let Some(mut pool_slot) = lock(&self.pool_slot).take()
            && !pool_slot.release()
        {
            return Err(AuthError::Unauthorized);
        }
        if let Some((limit, bytes)) = lock(&self.message_limit).take() {
            limit.set_max(bytes);
        }
        Ok(())
    }

    /// Counts a failed authentication.
    pub(super) fn count_auth_failure(&self, route: &'static str) {
        self.edge
            .count_auth_failure(AuthFailure::Wrong, route, &self.connection);
    }

    /// Returns the principal with the address of this connection.
    pub(super) fn principal_at_peer(&self, principal: &Arc<Principal>) -> Arc<Principal> {
        self.connection.principal_at_peer(principal)
    }

    /// Records an audit row for a denied request.
    pub(super) fn audit_denial(
        &self,
        principal: &Arc<Principal>,
        operation: &str,
        reason: &Arc<str>,
        id: Option<&Arc<str>>,
    ) {
        let host = &self.edge.host;
        let mut note = AuditEntry::new(AuditRowKind::Denied, host.clock().unix_ms(), "failed");
        note.principal = Some(Arc::clone(principal));
        note.target = AuditTarget::Named {
            server: None,
            name: operation.into(),
        };
        note.peer = self.connection.peer_address();
        note.id = id.cloned();
        note.reason = Some(Arc::clone(reason));
        host.audit().record(note);
    }

    /// Resolves when the credential ends, or when the policy grants something other than `grant`;
    /// returns the close reason.
    pub(super) fn watch_grant<S, F>(
        &self,
        identity: AuthenticatedCaller,
        grant: S,
        current_grant: F,
        changed: &'static str,
    ) -> impl Future<Output = &'static str> + use<S, F>
    where
        S: PartialEq,
        F: Fn(&Edge, &Principal) -> S,
    {
        let (edge, hold) = (Arc::clone(&self.edge), Arc::clone(&self.connection));
        async move {
            let mut rules = edge.host.policy_changes();
            let other = async {
                // The rules may have changed before this future was first polled.
                while grant == current_grant(&edge, &identity.principal) {
                    if rules.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                }
            };
            tokio::select! {
                () = hold.wait_closed() => EXPIRED_REASON,
                () = other => changed,
            }
        }
    }
}
