//! `/executor`: where executors come in, and who may be which.

use std::sync::Arc;

use bowline_core::call::{Principal, Role};
use bowline_core::name;
use bowline_host::events::What;
use bowline_host::executor::Porter;
use bowline_link::BoxFuture;
use bowline_wire::broker::Refusal;
use bowline_wire::executor::Hello;
use bytes::Bytes;
use tokio::net::TcpStream;

use super::Edge;
use super::arrival::Arrival;
use super::door::Proven;
use crate::tokens::TokenKind;

/// The code of a refusal for want of a right.
const NOT_ALLOWED: &str = "not_allowed";

/// What is said to one whose rights are others now.
const CHANGED: &str = "the credential does not allow this name any more";

/// Keeps a connection of an executor, to its end; `read` is what came early.
pub(super) async fn keep(arrival: Arrival, (stream, read): (TcpStream, Bytes)) {
    let edge = Arc::clone(&arrival.edge);
    let from = stream.peer_addr();
    let from = from.map_or_else(|_gone| String::new(), |address| address.to_string());
    let limits = edge.executors.socket();
    let io = arrival.join((stream, read), limits);
    let entrance = Entrance { arrival };
    edge.executors.attend(io, &from, &entrance).await;
}

/// Where one connection comes in.
#[derive(Debug)]
struct Entrance {
    arrival: Arrival,
}

impl Porter for Entrance {
    fn admit(&self, hello: &Hello) -> Result<BoxFuture<'static, Refusal>, Refusal> {
        let edge = &self.arrival.edge;
        // A connection without one is not let so far.
        let proven = self.arrival.proven.clone().ok_or_else(unproven)?;
        let name = Arc::clone(&hello.name);
        if !is_executor(&proven) {
            let make = "bowline token create --kind executor --principal";
            // A name that is none is not repeated.
            let named = if name::is_server(&name) {
                &name
            } else {
                "NAME"
            };
            let reason = format!("this needs an executor's token: {make} {named}");
            return Err(refusal(NOT_ALLOWED, &reason));
        }
        if edge.executors.dialled().contains(&name) {
            return Err(not_allowed());
        }
        check_name(edge, &proven.principal, &name)?;
        let settled = self.arrival.settle(&proven);
        settled.map_err(|_revoked| unproven())?;
        let may =
            move |edge: &Edge, principal: &Principal| check_name(edge, principal, &name).is_ok();
        let over = self.arrival.over(proven, true, (may, CHANGED));
        Ok(Box::pin(async { refusal("expired", over.await) }))
    }

    fn refused(&self, name: &str, refusal: &Refusal) {
        let reason = Arc::clone(&refusal.reason);
        if let Some(proven) = &self.arrival.proven
            && refusal.code.as_deref() == Some(NOT_ALLOWED)
        {
            let principal = &proven.principal;
            self.arrival
                .note(principal, "executor.hello", &reason, None);
        }
        // What it calls itself is anything until it is let in.
        let name = if name::is_server(name) { name } else { "?" };
        self.arrival.edge.host.events().tell(What::Executor {
            name: name.into(),
            state: "refused",
            reason: Some(reason),
        });
    }
}

/// Whether a credential is that of an executor, or the owner's. The token of an agent is none, also
/// where the agent has the name of an executor.
fn is_executor(proven: &Proven) -> bool {
    proven.principal.role == Role::Owner || proven.kind() == TokenKind::Executor
}

/// Checks that a principal may be the executor of this name: the config gives it the name, or names
/// an executor that is called like the principal.
fn check_name(edge: &Edge, principal: &Principal, name: &str) -> Result<(), Refusal> {
    if !name::is_server(name) {
        return Err(not_allowed());
    }
    match principal.role {
        Role::Owner => Ok(()),
        Role::Named(_) | Role::None => edge.reloader.rules(|policy, _| {
            let given = policy.executors.get(&principal.name);
            let is_own = *principal.name == *name;
            if given.is_some_and(|given| given.iter().any(|one| one.fits(name, "*"))) {
                Ok(())
            } else if !is_own {
                // The same words whether or not another principal has the name.
                Err(not_allowed())
            } else if policy.has_executor(name) {
                Ok(())
            } else {
                let reason = format!(
                    "no executor: the gateway's config needs via = \"executor:{name}\" in a \
                     server, or [principals.{name}] executors = [\"{name}\"]"
                );
                Err(refusal(NOT_ALLOWED, &reason))
            }
        }),
        // Programs that the owner runs speak MCP.
        Role::OwnersAgent | Role::AnonymousLocal => Err(not_allowed()),
    }
}

/// The same words for every name that a credential may not have.
fn not_allowed() -> Refusal {
    refusal(NOT_ALLOWED, "the credential does not allow this")
}

/// The same words for every credential that does not count.
fn unproven() -> Refusal {
    refusal("auth", "a valid token is required")
}

fn refusal(code: &str, reason: &str) -> Refusal {
    Refusal {
        reason: reason.into(),
        code: Some(code.into()),
        id: None,
    }
}
