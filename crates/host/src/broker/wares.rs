//! What a worker has for its hub: servers of its own, and whom it serves there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bowline_core::call::{Principal, Role};
use bowline_core::hex::hex;
use bowline_core::policy::Pattern;
use bowline_link::Revision;
use bowline_wire::broker::From;
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{Guests, INTRODUCTION_BYTES_MAX, OFFER_BYTES_MAX};
use crate::catalog::{Offer, Shelf};
use crate::host::Host;
use crate::spec::Reach;

/// Tools of an offer with what servers say of themselves.
const WHOLE_BYTES_MAX: usize = 8 * 1024 * 1024;

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

    /// Returns what is offered now, as an offer says it: the tools of each server, and for hubs
    /// that pass on more than calls of tools, what the server says of itself. Tools that are too
    /// many for one frame are left to be asked for.
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
            out.extend_from_slice(b",\"tools\":");
            let tools: usize = sizes(&offer.tools).sum();
            let fits = out.len() + tools < OFFER_BYTES_MAX;
            match fits {
                true => write_list(&offer.tools, &mut out),
                false => out.extend_from_slice(b"[]"),
            }
            write_whole(offer, fits, &mut out);
            out.push(b'}');
        }
        out.push(b']');
        out.into()
    }
}

fn sizes(shelf: &Shelf) -> impl Iterator<Item = usize> + '_ {
    shelf.iter().map(|item| item.definition.len() + 1)
}

fn write_list(shelf: &Shelf, out: &mut Vec<u8>) {
    out.push(b'[');
    for (nth, item) in shelf.iter().enumerate() {
        if nth > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&item.definition);
    }
    out.push(b']');
}

/// Writes what a server says of itself, and how to see that its lists changed. One that says too
/// much, or nothing, offers its tools alone.
fn write_whole(offer: &Offer, tools_are_told: bool, out: &mut Vec<u8>) {
    let initialize = &offer.initialize;
    let is_told = initialize.first() == Some(&b'{')
        && initialize.len() <= INTRODUCTION_BYTES_MAX
        && out.len() + initialize.len() < WHOLE_BYTES_MAX;
    if !is_told {
        return;
    }
    out.extend_from_slice(b",\"mcp\":{\"revision\":");
    write_string(out, revision(initialize).as_str());
    out.extend_from_slice(b",\"initialize\":");
    out.extend_from_slice(initialize);
    out.extend_from_slice(b",\"lists\":{\"prompts\":");
    write_string(out, &digest(&[&offer.prompts]));
    out.extend_from_slice(b",\"resources\":");
    write_string(out, &digest(&[&offer.resources, &offer.templates]));
    if !tools_are_told {
        out.extend_from_slice(b",\"tools\":");
        write_string(out, &digest(&[&offer.tools]));
    }
    out.extend_from_slice(b"}}");
}

/// Returns the revision that a server speaks that said this of itself.
fn revision(initialize: &[u8]) -> Revision {
    let agreed = object::text(initialize, "protocolVersion");
    let agreed = agreed.and_then(|agreed| Revision::parse(&agreed));
    match object::field(initialize, "supportedVersions") {
        Some(_) if agreed.is_none() => Revision::LATEST,
        Some(_) | None => agreed.unwrap_or(Revision::LATEST_LEGACY),
    }
}

/// Tells two states of lists apart.
fn digest(lists: &[&Shelf]) -> String {
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
    hex(&first)
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
