//! Offers of peers: parses offered servers, checks each name against the peer's rights, and hands
//! the manifest to the [`OfferHandler`].

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_link::Revision;
use bowline_wire::object;
use bytes::Bytes;

use super::peer_registry::ConnectedPeer;
use super::rights::refusal;
use super::{AdmittedPeer, HubShared, remote_peer};
use crate::backend::is_marked_repeatable;
use crate::frames::{BrokerRefusal, ManifestItem};
use crate::{INITIALIZE_BYTES_MAX, ListDigests, OfferedServer, PeerManifest, RemotePeer};

/// Servers in one offer.
const SERVERS_MAX: usize = 256;

/// Tools in one offer.
const TOOLS_MAX: usize = 8_192;

/// Adopts offered servers into a host.
pub trait OfferHandler: fmt::Debug + Send + Sync {
    /// Handles the current offer of a peer, which replaces the previous offer; the names are
    /// already checked against the peer's rights. Returns the rejected servers, each with the
    /// reason. Called in the order of the offers; must not block.
    fn accept_offer(
        &self,
        peer: &AdmittedPeer,
        remote: Arc<dyn RemotePeer>,
        manifest: Arc<PeerManifest>,
    ) -> Vec<(Arc<str>, Arc<str>)>;

    /// Called when the connection of an offering peer closes; the peer may return.
    fn on_peer_gone(&self, peer: &AdmittedPeer, remote: Arc<dyn RemotePeer>);

    /// Returns how long the servers of an absent peer are kept. Offers are remembered across a
    /// restart of the hub for the same time, and not at all if `None`.
    fn retention(&self) -> Option<Duration> {
        None
    }
}

/// Rejects every offer.
#[derive(Clone, Copy, Debug)]
pub struct RejectOffers;

impl OfferHandler for RejectOffers {
    fn accept_offer(
        &self,
        _peer: &AdmittedPeer,
        _remote: Arc<dyn RemotePeer>,
        manifest: Arc<PeerManifest>,
    ) -> Vec<(Arc<str>, Arc<str>)> {
        let reason: Arc<str> = "servers of peers are not taken here".into();
        let servers: BTreeSet<_> = manifest_servers(&manifest).into_iter().collect();
        servers
            .into_iter()
            .map(|server| (server, Arc::clone(&reason)))
            .collect()
    }

    fn on_peer_gone(&self, _peer: &AdmittedPeer, _remote: Arc<dyn RemotePeer>) {}
}

fn manifest_servers(manifest: &PeerManifest) -> Vec<Arc<str>> {
    let tool_servers = manifest.items.iter().filter_map(|item| item.server.clone());
    let complete_servers = manifest
        .servers
        .iter()
        .map(|offered| Arc::clone(&offered.name));
    let servers: BTreeSet<_> = tool_servers.chain(complete_servers).collect();
    servers.into_iter().collect()
}

/// Result of an offer.
#[derive(Debug)]
pub(super) struct OfferOutcome {
    /// Servers now in the catalog.
    accepted: Vec<Arc<str>>,
    /// Rejected servers, each with the reason.
    refused: Vec<(Arc<str>, Arc<str>)>,
}

/// Handles an offer frame; returns the refusals for rejected servers.
pub(super) fn handle_offer(
    shared: &Arc<HubShared>,
    peer: &Arc<ConnectedPeer>,
    revision: u64,
    servers: &Bytes,
) -> Vec<BrokerRefusal> {
    if !lock(&peer.state).is_subscribed {
        let reason = "an offer comes after the subscription over which it is used";
        return vec![refusal("not_allowed", reason, None)];
    }
    let Some(OfferOutcome { accepted, refused }) =
        apply_offer(shared, &peer.admitted, revision, servers)
    else {
        return vec![refusal("bad_frame", "the offer cannot be read", None)];
    };
    lock(&peer.state).offered_servers = accepted;
    if shared.offer_handler.retention().is_some() {
        shared.offer_store.store_offer(&peer.admitted, servers);
    }
    refused
        .into_iter()
        .map(|(server, detail)| {
            tracing::warn!(peer = %peer.mailbox(), %server, %detail, "offered server rejected");
            let reason = format!("server `{server}` is not taken: {detail}");
            refusal("not_allowed", &reason, None)
        })
        .collect()
}

/// Adopts the servers that a peer may offer; `None` for an unreadable offer.
pub(super) fn apply_offer(
    shared: &Arc<HubShared>,
    peer: &AdmittedPeer,
    revision: u64,
    servers: &Bytes,
) -> Option<OfferOutcome> {
    let (mut items, mut offered) = parse_offer(servers)?;
    let mut refused: Vec<(Arc<str>, Arc<str>)> = Vec::new();
    let mut may_bring = |server: &Arc<str>| {
        let allowed = peer.can_offer(server);
        if !allowed && refused.iter().all(|(name, _)| name != server) {
            let reason = "its name is not among those that this peer may bring";
            refused.push((Arc::clone(server), reason.into()));
        }
        allowed
    };
    items.retain(|item| may_bring(&item.server.clone().unwrap_or_default()));
    offered.retain(|offered_server| may_bring(&offered_server.name));
    let manifest = PeerManifest {
        revision,
        items,
        servers: offered,
    };
    let remote = remote_peer::get_or_create(shared, &peer.mailbox);
    let manifest_copy = Arc::new(manifest.clone());
    remote.set_manifest(manifest);
    let handler_refusals = shared.offer_handler.accept_offer(
        peer,
        Arc::clone(&remote) as Arc<dyn RemotePeer>,
        Arc::clone(&manifest_copy),
    );
    refused.extend(handler_refusals);
    let accepted = manifest_servers(&manifest_copy);
    let accepted = accepted
        .into_iter()
        .filter(|server| refused.iter().all(|(name, _)| name != server))
        .collect();
    Some(OfferOutcome { accepted, refused })
}

/// Notifies the offer handler of a disconnected peer with adopted servers.
pub(super) fn on_peer_gone(shared: &Arc<HubShared>, peer: &ConnectedPeer) {
    let had_offers = !lock(&peer.state).offered_servers.is_empty();
    let is_replaced = lock(&shared.peers).subscriber(peer.mailbox()).is_some();
    if had_offers && !is_replaced {
        shared.offer_store.mark_away(peer.mailbox(), shared.now());
        let remote = remote_peer::get_or_create(shared, peer.mailbox());
        shared.offer_handler.on_peer_gone(&peer.admitted, remote);
    }
}

/// Parses `[{name, tools:[..definitions..], mcp?}]`; `None` if malformed or over a limit.
fn parse_offer(servers: &Bytes) -> Option<(Vec<ManifestItem>, Vec<OfferedServer>)> {
    let (mut items, mut offered) = (Vec::new(), Vec::new());
    for (index, server) in object::items(servers).enumerate() {
        if index >= SERVERS_MAX {
            return None;
        }
        let entry = server.slice(servers);
        let name: Arc<str> =
            object::parse_string(object::field(entry, "name")?.slice(entry))?.into();
        if let Some(at) = object::field(entry, "mcp") {
            let mcp_at = at.shift(server.start);
            offered.extend(parse_server(
                &name,
                &servers.slice(mcp_at.start..mcp_at.end),
            ));
        }
        let tools = object::field(entry, "tools")?.shift(server.start);
        for tool in object::items(tools.slice(servers)) {
            let at = tool.shift(tools.start);
            let definition = servers.slice(at.start..at.end);
            let tool_name = object::field(&definition, "name")?;
            let tool_name: Arc<str> = object::parse_string(tool_name.slice(&definition))?.into();
            items.push(ManifestItem {
                name: Arc::clone(&tool_name),
                server: Some(Arc::clone(&name)),
                tool: Some(tool_name),
                is_repeatable: is_marked_repeatable(&definition),
                definition,
            });
        }
        if items.len() > TOOLS_MAX {
            return None;
        }
    }
    Some((items, offered))
}

/// Parses `{revision, initialize:{..}, lists:{prompts, resources, tools?}}`. A server with an
/// unknown revision or a malformed description offers only tools.
fn parse_server(name: &Arc<str>, json: &Bytes) -> Option<OfferedServer> {
    let revision = Revision::parse(&object::text_field(json, "revision")?)?;
    let initialize = object::field(json, "initialize")?;
    let initialize = json.slice(initialize.start..initialize.end);
    if initialize.len() > INITIALIZE_BYTES_MAX || initialize.first() != Some(&b'{') {
        return None;
    }
    let lists = object::field(json, "lists")?.slice(json);
    let digest = |kind| Some(Arc::from(&*object::text_field(lists, kind)?));
    Some(OfferedServer {
        name: Arc::clone(name),
        revision,
        initialize,
        lists: ListDigests {
            tools: digest("tools"),
            prompts: digest("prompts")?,
            resources: digest("resources")?,
        },
    })
}
