//! The hub: mailboxes, identity, serving and live requests, each over a WebSocket.

mod delivery;
mod hub_rig;
mod offered_servers;
mod peer_identity;
mod peer_requests;
mod serving;
