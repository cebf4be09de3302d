//! What a worker has for its hub: servers of its own, and whom it serves there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_core::call::{Principal, Role};
use bowline_core::policy::Pattern;
use bowline_wire::broker::From;
use bowline_wire::splice::write_string;
use bytes::Bytes;

use super::Guests;
use crate::host::Host;
use crate::spec::Reach;

/// The role that the hub stamps on what its owner asks.
const OWNER: &str = "owner";

/// What that role is called here. Nobody but the owner of this gateway is its owner, and no role
/// can be named so.
const HUB_OWNER: &str = "hub-owner";

/// The servers of a host that are offered to a hub, and the rules by which it may use them.
///
/// What came from a peer is never offered on. Who asks comes by the role that the hub stamped: it
/// must be defined here, and may do what it may do here. Where no role is defined at all, the
/// offer itself is the grant.
#[derive(Clone, Debug)]
pub struct Wares {
    host: Host,
    patterns: Arc<[Pattern]>,
    /// Set once it was told that there are no roles.
    told: Arc<AtomicBool>,
}

impl Wares {
    /// Returns those servers of `host` whose names fit one of `patterns`.
    #[must_use]
    pub fn new(host: &Host, patterns: Vec<Pattern>) -> Self {
        Self {
            host: host.clone(),
            patterns: patterns.into(),
            told: Arc::default(),
        }
    }

    /// Returns the host whose servers they are.
    #[must_use]
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Whether a server is ours and offered.
    #[must_use]
    pub fn has(&self, server: &str) -> bool {
        let own = self.host.server(server);
        let is_own = own.is_ok_and(|own| !matches!(own.spec().reach, Reach::Peer(_)));
        is_own
            && self
                .patterns
                .iter()
                .any(|pattern| pattern.fits(server, "*"))
    }

    /// Returns what is offered now, as an offer says it.
    #[must_use]
    pub fn servers(&self) -> Bytes {
        let catalog = self.host.catalog();
        let mut out = vec![b'['];
        let offers = catalog.offers().filter(|offer| self.has(&offer.server));
        for (nth, offer) in offers.enumerate() {
            if nth > 0 {
                out.push(b',');
            }
            out.extend_from_slice(b"{\"name\":");
            write_string(&mut out, &offer.server);
            out.extend_from_slice(b",\"tools\":[");
            for (nth, tool) in offer.tools.iter().enumerate() {
                if nth > 0 {
                    out.push(b',');
                }
                out.extend_from_slice(&tool.definition);
            }
            out.extend_from_slice(b"]}");
        }
        out.push(b']');
        out.into()
    }
}

impl Guests for Wares {
    fn principal(&self, from: &From) -> Option<Arc<Principal>> {
        // A colon is in no name here: nobody who is known here is meant.
        let whom = from.principal.as_ref().unwrap_or(&from.session_id);
        let name = format!("hub:{whom}");
        let policy = self.host.policy();
        if !policy.has_roles() {
            if !self.told.swap(true, Ordering::Relaxed) {
                tracing::info!(
                    "no roles are defined here: all that the hub lets through is served"
                );
            }
            return Some(Arc::new(Principal::new(&name, Role::OwnersAgent)));
        }
        let role = match from.role.as_deref()? {
            OWNER => HUB_OWNER,
            role => role,
        };
        let role = policy.has_role(role).then(|| Role::Named(role.into()))?;
        Some(Arc::new(Principal::new(&name, role)))
    }

    fn serves(&self, server: &str) -> bool {
        self.has(server)
    }
}
