//! What peers offer to the hub: servers of theirs, checked by name and handed on.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::sync::lock;
use bowline_link::Revision;
use bowline_wire::broker::{Item, Refusal};
use bowline_wire::object;
use bytes::Bytes;

use super::peers::Peer;
use super::rights::refusal;
use super::{Admitted, Shared, remote};
use crate::broker::backend::says_repeatable;
use crate::broker::{INTRODUCTION_BYTES_MAX, Lists, Manifest, Remote, Ware};

/// Servers that one peer may offer.
const SERVERS_MAX: usize = 256;

/// Tools that one peer may offer in all.
const TOOLS_MAX: usize = 8_192;

/// Takes the servers of peers into a host.
pub trait Offers: fmt::Debug + Send + Sync {
    /// Takes what a peer offers now, in place of all that it offered before; names were checked
    /// against its rights. Returns the servers that are not taken, each with the reason. Called in
    /// the order in which offers came, and must not block.
    fn offered(
        &self,
        peer: &Admitted,
        remote: Arc<dyn Remote>,
        manifest: Arc<Manifest>,
    ) -> Vec<(Arc<str>, Arc<str>)>;

    /// The connection over which a peer offered something is gone; it may come back.
    fn gone(&self, peer: &Admitted, remote: Arc<dyn Remote>);

    /// Returns how long the servers of a peer that is away are kept. Offers are remembered for as
    /// long over a restart of the hub, and not at all where this is absent.
    fn keep(&self) -> Option<Duration> {
        None
    }
}

/// Takes nothing.
#[derive(Clone, Copy, Debug)]
pub struct Untaken;

impl Offers for Untaken {
    fn offered(
        &self,
        _peer: &Admitted,
        _remote: Arc<dyn Remote>,
        manifest: Arc<Manifest>,
    ) -> Vec<(Arc<str>, Arc<str>)> {
        let reason: Arc<str> = "servers of peers are not taken here".into();
        let servers: BTreeSet<_> = servers_of(&manifest).into_iter().collect();
        servers
            .into_iter()
            .map(|server| (server, Arc::clone(&reason)))
            .collect()
    }

    fn gone(&self, _peer: &Admitted, _remote: Arc<dyn Remote>) {}
}

fn servers_of(manifest: &Manifest) -> Vec<Arc<str>> {
    let of_tools = manifest.items.iter().filter_map(|item| item.server.clone());
    let whole = manifest.servers.iter().map(|ware| Arc::clone(&ware.name));
    let servers: BTreeSet<_> = of_tools.chain(whole).collect();
    servers.into_iter().collect()
}

/// What became of an offer.
#[derive(Debug)]
pub(super) struct Brought {
    /// Servers that are in the catalog.
    taken: Vec<Arc<str>>,
    /// Servers that are not, each with the reason.
    refused: Vec<(Arc<str>, Arc<str>)>,
}

/// Takes an offer; returns what the peer is told of those servers that are not taken.
pub(super) fn take(
    shared: &Arc<Shared>,
    peer: &Arc<Peer>,
    revision: u64,
    servers: &Bytes,
) -> Vec<Refusal> {
    if !lock(&peer.books).subscribed {
        let reason = "an offer comes after the subscription over which it is used";
        return vec![refusal("not_allowed", reason, None)];
    }
    let Some(Brought { taken, refused }) = bring(shared, &peer.admitted, revision, servers) else {
        return vec![refusal("bad_frame", "the offer cannot be read", None)];
    };
    lock(&peer.books).offers = taken;
    if shared.offers.keep().is_some() {
        shared.offer_store.remember(&peer.admitted, servers);
    }
    refused
        .into_iter()
        .map(|(server, why)| {
            tracing::warn!(peer = %peer.mailbox(), %server, %why, "an offered server is not taken");
            let reason = format!("server `{server}` is not taken: {why}");
            refusal("not_allowed", &reason, None)
        })
        .collect()
}

/// Takes the servers that a peer may bring into the host; nothing where the offer cannot be read.
pub(super) fn bring(
    shared: &Arc<Shared>,
    peer: &Admitted,
    revision: u64,
    servers: &Bytes,
) -> Option<Brought> {
    let (mut items, mut wares) = read(servers)?;
    let mut refused: Vec<(Arc<str>, Arc<str>)> = Vec::new();
    let mut may_bring = |server: &Arc<str>| {
        let allowed = peer.brings(server);
        if !allowed && refused.iter().all(|(name, _)| name != server) {
            let reason = "its name is not among those that this peer may bring";
            refused.push((Arc::clone(server), reason.into()));
        }
        allowed
    };
    items.retain(|item| may_bring(&item.server.clone().unwrap_or_default()));
    wares.retain(|ware| may_bring(&ware.name));
    let manifest = Manifest {
        revision,
        items,
        servers: wares,
    };
    let remote = remote::of(shared, &peer.mailbox);
    let kept = Arc::new(manifest.clone());
    remote.offers(manifest);
    let more = shared.offers.offered(
        peer,
        Arc::clone(&remote) as Arc<dyn Remote>,
        Arc::clone(&kept),
    );
    refused.extend(more);
    let taken = servers_of(&kept);
    let taken = taken
        .into_iter()
        .filter(|server| refused.iter().all(|(name, _)| name != server))
        .collect();
    Some(Brought { taken, refused })
}

/// Tells whoever takes offers that a peer is gone that made one.
pub(super) fn gone(shared: &Arc<Shared>, peer: &Peer) {
    let had = !lock(&peer.books).offers.is_empty();
    let is_replaced = lock(&shared.peers).subscriber(peer.mailbox()).is_some();
    if had && !is_replaced {
        shared.offer_store.note_away(peer.mailbox(), shared.now());
        let remote = remote::of(shared, peer.mailbox());
        shared.offers.gone(&peer.admitted, remote);
    }
}

/// Reads `[{name, tools:[..definitions..], mcp?}]`; nothing where it is not that, or too much.
fn read(servers: &Bytes) -> Option<(Vec<Item>, Vec<Ware>)> {
    let (mut items, mut wares) = (Vec::new(), Vec::new());
    for (place, server) in object::items(servers).enumerate() {
        if place >= SERVERS_MAX {
            return None;
        }
        let one = server.of(servers);
        let name: Arc<str> = object::string(object::field(one, "name")?.of(one))?.into();
        if let Some(at) = object::field(one, "mcp") {
            let told = at.shift(server.start);
            wares.extend(ware(&name, &servers.slice(told.start..told.end)));
        }
        let tools = object::field(one, "tools")?.shift(server.start);
        for tool in object::items(tools.of(servers)) {
            let at = tool.shift(tools.start);
            let definition = servers.slice(at.start..at.end);
            let own = object::field(&definition, "name")?;
            let own: Arc<str> = object::string(own.of(&definition))?.into();
            items.push(Item {
                name: Arc::clone(&own),
                server: Some(Arc::clone(&name)),
                tool: Some(own),
                repeatable: says_repeatable(&definition),
                definition,
            });
        }
        if items.len() > TOOLS_MAX {
            return None;
        }
    }
    Some((items, wares))
}

/// Reads `{revision, initialize:{..}, lists:{prompts, resources, tools?}}`. A server of a revision
/// that is not known here, or that is told otherwise, offers its tools alone.
fn ware(name: &Arc<str>, told: &Bytes) -> Option<Ware> {
    let revision = Revision::parse(&object::text(told, "revision")?)?;
    let initialize = object::field(told, "initialize")?;
    let initialize = told.slice(initialize.start..initialize.end);
    if initialize.len() > INTRODUCTION_BYTES_MAX || initialize.first() != Some(&b'{') {
        return None;
    }
    let lists = object::field(told, "lists")?.of(told);
    let digest = |kind| Some(Arc::from(&*object::text(lists, kind)?));
    Some(Ware {
        name: Arc::clone(name),
        revision,
        initialize,
        lists: Lists {
            tools: digest("tools"),
            prompts: digest("prompts")?,
            resources: digest("resources")?,
        },
    })
}
