//! `/executor`: WebSocket endpoint for executors, and the names an executor may claim.

use std::sync::Arc;

use bowline_core::call::{Principal, Role};
use bowline_core::{BoxFuture, name};
use bowline_host::events::EventKind;
use bowline_host::executor::frames::ExecutorHello;
use bowline_host::executor::{ExecutorAuthenticator, ExecutorRefusal};

use super::Edge;
use super::auth::AuthenticatedCaller;
use super::upgrade::UpgradedStream;
use super::upgraded_connection::UpgradedConnection;
use crate::tokens::TokenKind;

/// Code of a refusal for lack of permission.
const NOT_ALLOWED: &str = "not_allowed";

/// Close reason after the executor lost permission for its name.
const NAME_REVOKED: &str = "the credential does not allow this name any more";

/// Serves an executor's connection until closed.
pub(super) async fn serve_executor(connection: UpgradedConnection, stream: UpgradedStream) {
    let edge = Arc::clone(&connection.edge);
    let from = stream.stream.peer_addr();
    let from = from.map_or_else(|_gone| String::new(), |address| address.to_string());
    let limits = edge.executors.socket_limits();
    let socket = connection.open_socket(stream, limits);
    let authenticator = EdgeExecutorAuth { connection };
    edge.executors
        .serve_executor(socket, &from, &authenticator)
        .await;
}

/// Authenticator of a single executor connection.
#[derive(Debug)]
struct EdgeExecutorAuth {
    connection: UpgradedConnection,
}

impl ExecutorAuthenticator for EdgeExecutorAuth {
    fn authenticate(
        &self,
        hello: &ExecutorHello,
    ) -> Result<BoxFuture<'static, ExecutorRefusal>, ExecutorRefusal> {
        let edge = &self.connection.edge;
        // Connections without an identity are refused during the upgrade.
        let identity = self.connection.identity.clone().ok_or_else(auth_refusal)?;
        let name = Arc::clone(&hello.name);
        if !is_executor(&identity) {
            let make = "bowline token create --kind executor --principal";
            // An invalid name is not echoed.
            let named = if name::is_server_name(&name) {
                &name
            } else {
                "NAME"
            };
            let reason = format!("this needs an executor's token: {make} {named}");
            return Err(make_refusal(NOT_ALLOWED, &reason));
        }
        if edge.executors.dialled_names().contains(&name) {
            return Err(not_allowed_refusal());
        }
        check_name(edge, &identity.principal, &name)?;
        let settled = self.connection.complete_auth(&identity);
        settled.map_err(|_revoked| auth_refusal())?;
        let may_use_name =
            move |edge: &Edge, principal: &Principal| check_name(edge, principal, &name).is_ok();
        let grant_end = self
            .connection
            .watch_grant(identity, true, may_use_name, NAME_REVOKED);
        Ok(Box::pin(async { make_refusal("expired", grant_end.await) }))
    }

    fn on_refused(&self, name: &str, refusal: &ExecutorRefusal) {
        let reason = Arc::clone(&refusal.reason);
        if let Some(identity) = &self.connection.identity
            && refusal.code.as_deref() == Some(NOT_ALLOWED)
        {
            let principal = &identity.principal;
            self.connection
                .audit_denial(principal, "executor.hello", &reason, None);
        }
        // Unauthenticated names may contain anything.
        let name = if name::is_server_name(name) {
            name
        } else {
            "?"
        };
        self.connection
            .edge
            .host
            .events()
            .publish(EventKind::Executor {
                name: name.into(),
                state: "refused".into(),
                reason: Some(reason),
            });
    }
}

/// Returns whether a credential is an executor token or the owner token. Agent tokens are refused,
/// even with the principal name of an executor.
fn is_executor(identity: &AuthenticatedCaller) -> bool {
    identity.principal.role == Role::Owner || identity.kind() == TokenKind::Executor
}

/// Checks that a principal may use an executor name: by an entry in the config, or by a configured
/// executor with the principal's own name.
fn check_name(edge: &Edge, principal: &Principal, name: &str) -> Result<(), ExecutorRefusal> {
    if !name::is_server_name(name) {
        return Err(not_allowed_refusal());
    }
    match principal.role {
        Role::Owner => Ok(()),
        Role::Named(_) | Role::None => edge.reloader.with_policy(|policy, _| {
            let patterns = policy.executors.get(&principal.name);
            let is_own = *principal.name == *name;
            if patterns
                .is_some_and(|patterns| patterns.iter().any(|one| one.matches_feature(name, "*")))
            {
                Ok(())
            } else if !is_own {
                // The same text whether or not a different principal has the name.
                Err(not_allowed_refusal())
            } else if policy.has_executor(name) {
                Ok(())
            } else {
                let reason = format!(
                    "no executor: the gateway's config needs via = \"executor:{name}\" in a \
                     server, or [principals.{name}] executors = [\"{name}\"]"
                );
                Err(make_refusal(NOT_ALLOWED, &reason))
            }
        }),
        // Programs of the owner use MCP.
        Role::OwnersAgent | Role::AnonymousLocal => Err(not_allowed_refusal()),
    }
}

/// The same text for every name not permitted.
fn not_allowed_refusal() -> ExecutorRefusal {
    make_refusal(NOT_ALLOWED, "the credential does not allow this")
}

/// The same text for every invalid credential.
fn auth_refusal() -> ExecutorRefusal {
    make_refusal("auth", "a valid token is required")
}

fn make_refusal(code: &str, reason: &str) -> ExecutorRefusal {
    ExecutorRefusal {
        reason: reason.into(),
        code: Some(code.into()),
    }
}
