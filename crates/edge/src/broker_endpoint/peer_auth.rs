//! Authenticates broker peers: the credential decides, and the claims in the hello must agree.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_core::BoxFuture;
use bowline_core::call::{Principal, Role};
use bowline_core::policy::FeaturePattern;
use bowline_host::broker::frames::{BrokerHello, BrokerRefusal};
use bowline_host::broker::mailbox::{HUB, MailboxName};
use bowline_host::broker::{AdmittedPeer, PeerAuthenticator, PeerRights};
use bowline_host::events::EventKind;

use crate::Edge;
use crate::auth::AuthenticatedCaller;
use crate::tokens::TokenKind;
use crate::upgraded_connection::UpgradedConnection;
use bowline_config::PeerConfig;

/// Close reason after a change of the peer's rights.
const RIGHTS_CHANGED: &str = "what this peer may do has changed; connect again";

/// Role of the owner in broker messages.
const OWNER_ROLE: &str = "owner";

/// Pattern for everything in a rights list.
const ANY_PATTERN: &str = "*";

/// Refusal codes audited as denials; all further codes mean lack of capacity or a mistake.
const DENIAL_CODES: [&str; 2] = ["not_allowed", "conflict"];

/// Authenticator of a single broker connection.
#[derive(Debug)]
pub(super) struct EdgePeerAuth {
    connection: UpgradedConnection,
    /// Whether a denial on this connection was already announced as an event.
    denial_announced: AtomicBool,
}

impl EdgePeerAuth {
    pub(super) const fn new(connection: UpgradedConnection) -> Self {
        Self {
            connection,
            denial_announced: AtomicBool::new(false),
        }
    }

    /// Records an audit row for a denied request.
    fn audit_denial(&self, principal: &Arc<Principal>, operation: &str, refusal: &BrokerRefusal) {
        let id = refusal.id.as_ref();
        self.connection
            .audit_denial(principal, operation, &refusal.reason, id);
    }

    /// Authenticates a peer by header or hello frame. The header wins, and a frame with a different
    /// principal is refused.
    fn authenticate(&self, hello: &BrokerHello) -> Option<AuthenticatedCaller> {
        let from_frame = match &hello.token {
            Some(token) => Some(self.connection.edge.authenticator.lookup_token(token)?),
            None => None,
        };
        match (&self.connection.identity, from_frame) {
            (Some(identity), Some(from_frame)) => {
                (identity.principal.name == from_frame.principal.name).then(|| identity.clone())
            }
            (Some(identity), None) => Some(identity.clone()),
            (None, from_frame) => from_frame,
        }
    }
}

impl PeerAuthenticator for EdgePeerAuth {
    /// The pool of unauthenticated upgrades bounds hellos, without holding back authenticated
    /// peers.
    fn has_handshake_limit(&self) -> bool {
        true
    }

    fn authenticate(
        &self,
        hello: &BrokerHello,
    ) -> Result<(AdmittedPeer, BoxFuture<'static, BrokerRefusal>), BrokerRefusal> {
        let identity = self.authenticate(hello).ok_or_else(|| {
            self.connection.count_auth_failure("broker");
            auth_refusal()
        })?;
        let grant = PeerGrant::from_config(&self.connection.edge, &identity.principal);
        if let Err(refusal) = check_peer(&identity, &grant) {
            self.audit_denial(&identity.principal, "broker.hello", &refusal);
            return Err(refusal);
        }
        let same_role = hello.claimed_role.is_none() || hello.claimed_role == grant.role;
        let mailbox =
            claim_mailbox(&identity.principal, &hello.claimed_mailbox).filter(|_| same_role);
        let Some(mailbox) = mailbox else {
            let refusal = not_allowed_refusal();
            self.audit_denial(&identity.principal, "broker.hello", &refusal);
            return Err(refusal);
        };
        let settled = self.connection.complete_auth(&identity);
        settled.map_err(|_revoked| auth_refusal())?;
        let admitted = AdmittedPeer {
            principal: self.connection.principal_at_peer(&identity.principal),
            mailbox,
            role: grant.role.clone(),
            rights: grant.rights(),
        };
        let grant_end =
            self.connection
                .watch_grant(identity, grant, PeerGrant::from_config, RIGHTS_CHANGED);
        let grant_end = async { make_refusal("expired", grant_end.await) };
        Ok((admitted, Box::pin(grant_end)))
    }

    fn on_refused(&self, peer: Option<&AdmittedPeer>, refusal: &BrokerRefusal) {
        let code = refusal.code.as_deref().unwrap_or_default();
        tracing::debug!(
            peer = peer.map(|peer| &**peer.mailbox.as_str()),
            code,
            "broker peer refused"
        );
        let Some(peer) = peer.filter(|_| DENIAL_CODES.contains(&code)) else {
            return;
        };
        self.audit_denial(&peer.principal, "broker.frame", refusal);
        // Only the first denial of a connection is announced, however many frames follow.
        if !self.denial_announced.swap(true, Ordering::Relaxed) {
            self.connection.edge.host.events().publish(EventKind::Peer {
                mailbox: Arc::clone(peer.mailbox.as_str()),
                state: "refused".into(),
                reason: Some(Arc::clone(&refusal.reason)),
            });
        }
    }
}

/// Current role and broker access of a principal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PeerGrant {
    role: Option<Arc<str>>,
    access: PeerAccess,
}

/// Broker access of a principal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PeerAccess {
    /// The owner; full access.
    Owner,
    /// Configured as a peer.
    Named(PeerConfig),
    /// Not configured as a peer.
    Unnamed,
}

impl PeerGrant {
    fn from_config(edge: &Edge, principal: &Principal) -> Self {
        if principal.role == Role::Owner {
            return Self {
                role: Some(OWNER_ROLE.into()),
                access: PeerAccess::Owner,
            };
        }
        let peers = |name: &Arc<str>| {
            edge.reloader
                .with_policy(|policy, _| policy.peers.get(name).cloned())
        };
        Self {
            role: edge.host.policy().role_name(principal).cloned(),
            access: peers(&principal.name).map_or(PeerAccess::Unnamed, PeerAccess::Named),
        }
    }

    fn rights(&self) -> PeerRights {
        match &self.access {
            PeerAccess::Named(peer) => peer.to_rights(),
            PeerAccess::Unnamed => PeerRights::default(),
            PeerAccess::Owner => PeerRights {
                to: vec![ANY_PATTERN.into()],
                kinds: vec![ANY_PATTERN.into()],
                offers: FeaturePattern::parse(ANY_PATTERN).into_iter().collect(),
            },
        }
    }
}

/// Returns the claimed mailbox if the principal may use the name: its own, or its own with a
/// suffix.
fn claim_mailbox(principal: &Principal, claimed: &str) -> Option<MailboxName> {
    // Programs of the owner use MCP instead; the hub's mailbox belongs to no principal.
    let is_peer = matches!(principal.role, Role::Owner | Role::Named(_) | Role::None);
    if !is_peer || *principal.name == *HUB {
        return None;
    }
    MailboxName::from_claim(&principal.name, claimed)
}

/// Checks that the credential belongs to a configured peer and is not an executor token.
fn check_peer(identity: &AuthenticatedCaller, grant: &PeerGrant) -> Result<(), BrokerRefusal> {
    if identity.kind() != TokenKind::Agent {
        return Err(not_allowed_refusal());
    }
    // Programs of the owner use MCP; the config cannot make peers of them.
    let can_be_named = matches!(identity.principal.role, Role::Named(_) | Role::None)
        && *identity.principal.name != *HUB;
    match &grant.access {
        PeerAccess::Unnamed if can_be_named => {
            let name = &identity.principal.name;
            let reason =
                format!("no peer: the hub's config needs [principals.{name}] broker = true");
            Err(make_refusal("not_allowed", &reason))
        }
        PeerAccess::Unnamed => Err(not_allowed_refusal()),
        PeerAccess::Owner | PeerAccess::Named(_) => Ok(()),
    }
}

/// The same text for every invalid credential.
fn auth_refusal() -> BrokerRefusal {
    make_refusal("auth", "a valid token is required")
}

/// The same text for every unjustified claim.
fn not_allowed_refusal() -> BrokerRefusal {
    make_refusal("not_allowed", "the credential does not allow this")
}

fn make_refusal(code: &str, reason: &str) -> BrokerRefusal {
    BrokerRefusal {
        reason: reason.into(),
        code: Some(code.into()),
        id: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailbox_is_own_name_or_suffix() {
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
            let found = claim_mailbox(&worker, claimed).map(|found| found.to_string());
            assert_eq!(found.as_deref(), expected, "{claimed}");
        }
        let is_peer = |name: &str, role| claim_mailbox(&Principal::new(name, role), "").is_some();
        assert!(is_peer("owner", Role::Owner));
        assert!(!is_peer("hub", Role::None));
        assert!(!is_peer("owner:shell", Role::OwnersAgent));
        assert!(!is_peer("anonymous-local", Role::AnonymousLocal));
    }
}
