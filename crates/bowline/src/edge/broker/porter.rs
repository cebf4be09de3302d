//! Says who a peer is: its credential decides, and what it claims must agree.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_core::call::{Principal, Role};
use bowline_core::mailbox::{HUB, Mailbox};
use bowline_core::policy::Pattern;
use bowline_host::broker::{Admitted, Porter, Rights};
use bowline_host::events::What;
use bowline_link::BoxFuture;
use bowline_wire::broker::{Hello, Refusal};

use crate::config::PeerConfig;
use crate::edge::Edge;
use crate::edge::arrival::Arrival;
use crate::edge::door::Proven;
use crate::tokens::TokenKind;

/// What is said to one whose rights are others now.
const CHANGED: &str = "what this peer may do has changed; connect again";

/// The role that is stamped on what the owner sends.
const OWNER: &str = "owner";

/// Everything, where a list of rights says so.
const ANY: &str = "*";

/// What a peer is told where it tried what it may not; the rest is want of room or a mistake.
const DENIALS: [&str; 2] = ["not_allowed", "conflict"];

/// Where one connection comes in.
#[derive(Debug)]
pub(super) struct Entrance {
    arrival: Arrival,
    /// Whether those who watch were told that it was refused something.
    told: AtomicBool,
}

impl Entrance {
    pub(super) const fn new(arrival: Arrival) -> Self {
        Self {
            arrival,
            told: AtomicBool::new(false),
        }
    }

    /// Leaves a row of what somebody was denied.
    fn note(&self, principal: &Arc<Principal>, what: &str, refusal: &Refusal) {
        let id = refusal.id.as_ref();
        self.arrival.note(principal, what, &refusal.reason, id);
    }

    /// Returns who a peer is. A header counts before what a frame says, and a frame that says
    /// something else is refused.
    fn prove(&self, hello: &Hello) -> Option<Proven> {
        let told = match &hello.token {
            Some(token) => Some(self.arrival.edge.door.holder(token)?),
            None => None,
        };
        match (&self.arrival.proven, told) {
            (Some(proven), Some(told)) => {
                (proven.principal.name == told.principal.name).then(|| proven.clone())
            }
            (Some(proven), None) => Some(proven.clone()),
            (None, told) => told,
        }
    }
}

impl Porter for Entrance {
    /// The lobby does, and lets nobody hold back a peer that can prove itself.
    fn bounds_greetings(&self) -> bool {
        true
    }

    fn admit(&self, hello: &Hello) -> Result<(Admitted, BoxFuture<'static, Refusal>), Refusal> {
        let proven = self.prove(hello).ok_or_else(|| {
            self.arrival.unproven("broker");
            unproven()
        })?;
        let standing = Standing::of(&self.arrival.edge, &proven.principal);
        if let Err(refusal) = check_peer(&proven, &standing) {
            self.note(&proven.principal, "broker.hello", &refusal);
            return Err(refusal);
        }
        let same_role = hello.role.is_none() || hello.role == standing.role;
        let mailbox = mailbox(&proven.principal, &hello.session_id).filter(|_| same_role);
        let Some(mailbox) = mailbox else {
            let refusal = not_allowed();
            self.note(&proven.principal, "broker.hello", &refusal);
            return Err(refusal);
        };
        let settled = self.arrival.settle(&proven);
        settled.map_err(|_revoked| unproven())?;
        let admitted = Admitted {
            principal: self.arrival.principal(&proven.principal),
            mailbox,
            role: standing.role.clone(),
            rights: standing.rights(),
        };
        let over = self.arrival.over(proven, standing, (Standing::of, CHANGED));
        let over = async { refusal("expired", over.await) };
        Ok((admitted, Box::pin(over)))
    }

    fn refused(&self, peer: Option<&Admitted>, refusal: &Refusal) {
        let code = refusal.code.as_deref().unwrap_or_default();
        tracing::debug!(
            peer = peer.map(|peer| &**peer.mailbox.as_str()),
            code,
            "refused"
        );
        let Some(peer) = peer.filter(|_| DENIALS.contains(&code)) else {
            return;
        };
        self.note(&peer.principal, "broker.frame", refusal);
        // Who sends many such frames is told of once.
        if !self.told.swap(true, Ordering::Relaxed) {
            self.arrival.edge.host.events().tell(What::Peer {
                mailbox: Arc::clone(peer.mailbox.as_str()),
                state: "refused",
                reason: Some(Arc::clone(&refusal.reason)),
            });
        }
    }
}

/// What the config says of a peer at the moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Standing {
    role: Option<Arc<str>>,
    peer: Peering,
}

/// Whether a principal may use the broker, and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Peering {
    /// It is the owner, who may do all.
    Owner,
    /// The config names it as a peer.
    Named(PeerConfig),
    /// The config does not.
    Unnamed,
}

impl Standing {
    fn of(edge: &Edge, principal: &Principal) -> Self {
        if principal.role == Role::Owner {
            return Self {
                role: Some(OWNER.into()),
                peer: Peering::Owner,
            };
        }
        let peers = |name: &Arc<str>| {
            edge.reloader
                .rules(|policy, _| policy.peers.get(name).cloned())
        };
        Self {
            role: edge.host.policy().role(principal).cloned(),
            peer: peers(&principal.name).map_or(Peering::Unnamed, Peering::Named),
        }
    }

    fn rights(&self) -> Rights {
        match &self.peer {
            Peering::Named(peer) => peer.rights(),
            Peering::Unnamed => Rights::default(),
            Peering::Owner => Rights {
                to: vec![ANY.into()],
                kinds: vec![ANY.into()],
                offers: Pattern::parse(ANY).into_iter().collect(),
            },
        }
    }
}

/// Returns the mailbox that a principal may have by this name: its own, or a part of it.
fn mailbox(principal: &Principal, claimed: &str) -> Option<Mailbox> {
    // Programs that the owner runs speak MCP; the hub's own mailbox is nobody's.
    let is_peer = matches!(principal.role, Role::Owner | Role::Named(_) | Role::None);
    if !is_peer || *principal.name == *HUB {
        return None;
    }
    Mailbox::claimed(&principal.name, claimed)
}

/// Sees that a credential is one of a peer: the config names its principal, and it is no
/// executor's.
fn check_peer(proven: &Proven, standing: &Standing) -> Result<(), Refusal> {
    if proven.kind() != TokenKind::Agent {
        return Err(not_allowed());
    }
    // Programs that the owner runs speak MCP: no line of the config makes peers of them.
    let can_be_named = matches!(proven.principal.role, Role::Named(_) | Role::None)
        && *proven.principal.name != *HUB;
    match &standing.peer {
        Peering::Unnamed if can_be_named => {
            let name = &proven.principal.name;
            let reason =
                format!("no peer: the hub's config needs [principals.{name}] broker = true");
            Err(refusal("not_allowed", &reason))
        }
        Peering::Unnamed => Err(not_allowed()),
        Peering::Owner | Peering::Named(_) => Ok(()),
    }
}

/// The same words for every credential that does not count.
fn unproven() -> Refusal {
    refusal("auth", "a valid token is required")
}

/// The same words for everything that was claimed and is not so.
fn not_allowed() -> Refusal {
    refusal("not_allowed", "the credential does not allow this")
}

fn refusal(code: &str, reason: &str) -> Refusal {
    Refusal {
        reason: reason.into(),
        code: Some(code.into()),
        id: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mailbox_is_ones_own_or_a_part_of_it() {
        let worker = Principal::new("worker", Role::None);
        for (claimed, expected) in [
            ("", Some("worker")),
            ("worker", Some("worker")),
            ("worker#mcp", Some("worker#mcp")),
            ("worker2", None),
            ("other", None),
            ("hub", None),
            ("worker#", None),
            ("worker#a#b", None),
            ("../worker", None),
            ("WORKER", None),
        ] {
            let found = mailbox(&worker, claimed).map(|found| found.to_string());
            assert_eq!(found.as_deref(), expected, "{claimed}");
        }
        let is_peer = |name: &str, role| mailbox(&Principal::new(name, role), "").is_some();
        assert!(is_peer("owner", Role::Owner));
        assert!(!is_peer("hub", Role::None));
        assert!(!is_peer("owner:shell", Role::OwnersAgent));
        assert!(!is_peer("anonymous-local", Role::AnonymousLocal));
    }
}
