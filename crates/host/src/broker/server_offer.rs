//! A worker's offer to the hub: the offered servers, and the mapping of hub callers to principals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_broker::frames::MessageSender;
use bowline_core::call::{Principal, Role};
use bowline_core::hex::to_hex;
use bowline_core::policy::FeaturePattern;
use bowline_link::Revision;
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{CallerMapping, INITIALIZE_BYTES_MAX, OFFER_BYTES_MAX};
use crate::catalog::{CatalogList, ServerCatalog};
use crate::host::Host;
use crate::spec::ServerTransport;

/// Largest offer with server descriptions, in bytes.
const OFFER_TOTAL_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Role stamped by the hub on requests of the hub's owner.
const OWNER: &str = "owner";

/// Local name of the same role. Only the owner of this gateway is `owner` here, and no config can
/// define a role of this name.
const HUB_OWNER: &str = "hub-owner";

/// The servers of a host offered to a hub, and the access rules for the hub's callers.
///
/// Servers of peers are never offered on. A caller has the role stamped by the hub: the role must
/// be defined here and grants the local rights. Without any defined role, the offer itself is the
/// grant.
#[derive(Clone, Debug)]
pub struct ServerOffer {
    host: Host,
    patterns: Arc<[FeaturePattern]>,
    /// Set after the log message about missing roles.
    roles_warned: Arc<AtomicBool>,
}

impl ServerOffer {
    /// Offers the servers of `host` with a name that matches one of `patterns`.
    #[must_use]
    pub fn new(host: &Host, patterns: Vec<FeaturePattern>) -> Self {
        Self {
            host: host.clone(),
            patterns: patterns.into(),
            roles_warned: Arc::default(),
        }
    }

    /// Returns the host.
    #[must_use]
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// Whether a local server is offered.
    #[must_use]
    pub fn has_server(&self, server: &str) -> bool {
        let own = self.host.server(server);
        let is_own = own.is_ok_and(|own| !matches!(own.spec().transport, ServerTransport::Peer(_)));
        is_own
            && self
                .patterns
                .iter()
                .any(|pattern| pattern.matches_feature(server, "*"))
    }

    /// Writes the current offer: the tools of each server and, for hubs that forward more than tool
    /// calls, the server description. Tools too large for one frame are left out, to be listed on
    /// demand.
    #[must_use]
    pub fn write_offer(&self) -> Bytes {
        let catalog = self.host.catalog();
        let mut out = vec![b'['];
        let offers = catalog
            .servers()
            .filter(|offer| self.has_server(&offer.server));
        for (nth, offer) in offers.enumerate() {
            if nth > 0 {
                out.push(b',');
            }
            out.extend_from_slice(b"{\"name\":");
            write_string(&mut out, &offer.server);
            out.extend_from_slice(b",\"tools\":");
            let tools: usize = definition_sizes(&offer.tools).sum();
            let fits = out.len() + tools < OFFER_BYTES_MAX;
            match fits {
                true => write_definitions(&offer.tools, &mut out),
                false => out.extend_from_slice(b"[]"),
            }
            write_server_info(offer, fits, &mut out);
            out.push(b'}');
        }
        out.push(b']');
        out.into()
    }
}

fn definition_sizes(shelf: &CatalogList) -> impl Iterator<Item = usize> + '_ {
    shelf.iter().map(|item| item.definition.len() + 1)
}

fn write_definitions(shelf: &CatalogList, out: &mut Vec<u8>) {
    out.push(b'[');
    for (nth, item) in shelf.iter().enumerate() {
        if nth > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&item.definition);
    }
    out.push(b']');
}

/// Writes the description of a server and the list digests. A server with a missing or oversized
/// description offers only tools.
fn write_server_info(offer: &ServerCatalog, has_tools: bool, out: &mut Vec<u8>) {
    let initialize = &offer.initialize;
    let fits = initialize.first() == Some(&b'{')
        && initialize.len() <= INITIALIZE_BYTES_MAX
        && out.len() + initialize.len() < OFFER_TOTAL_BYTES_MAX;
    if !fits {
        return;
    }
    out.extend_from_slice(b",\"mcp\":{\"revision\":");
    write_string(out, parse_revision(initialize).as_str());
    out.extend_from_slice(b",\"initialize\":");
    out.extend_from_slice(initialize);
    out.extend_from_slice(b",\"lists\":{\"prompts\":");
    write_string(out, &list_digest(&[&offer.prompts]));
    out.extend_from_slice(b",\"resources\":");
    write_string(out, &list_digest(&[&offer.resources, &offer.templates]));
    if !has_tools {
        out.extend_from_slice(b",\"tools\":");
        write_string(out, &list_digest(&[&offer.tools]));
    }
    out.extend_from_slice(b"}}");
}

/// Returns the protocol revision in an `initialize` result.
fn parse_revision(initialize: &[u8]) -> Revision {
    let agreed = object::text_field(initialize, "protocolVersion");
    let agreed = agreed.and_then(|agreed| Revision::parse(&agreed));
    match object::field(initialize, "supportedVersions") {
        Some(_) if agreed.is_none() => Revision::LATEST,
        Some(_) | None => agreed.unwrap_or(Revision::LATEST_LEGACY),
    }
}

/// Returns a digest to detect list changes.
fn list_digest(lists: &[&CatalogList]) -> String {
    let mut hash = Sha256::new();
    for list in lists {
        hash.update((list.items.len() as u64).to_be_bytes());
        for item in list.iter() {
            hash.update((item.definition.len() as u64).to_be_bytes());
            hash.update(&item.definition);
        }
    }
    let digest: [u8; 32] = hash.finalize().into();
    let first: [u8; 8] = digest.first_chunk().copied().unwrap_or_default();
    to_hex(&first)
}

impl CallerMapping for ServerOffer {
    fn map_sender(&self, from: &MessageSender) -> Option<Arc<Principal>> {
        // No local name contains a colon, so the name cannot match a local principal.
        let sender_name = from.principal.as_ref().unwrap_or(&from.session_id);
        let name = format!("hub:{sender_name}");
        let policy = self.host.policy();
        if !policy.has_roles() {
            if !self.roles_warned.swap(true, Ordering::Relaxed) {
                tracing::info!(
                    "no roles defined: every request that the hub lets through is served"
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

    fn is_server_offered(&self, server: &str) -> bool {
        self.has_server(server)
    }
}
