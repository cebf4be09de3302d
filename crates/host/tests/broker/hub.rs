//! The hub: mailboxes, identity, serving and live requests, each over a WebSocket.

mod between;
mod delivery;
mod identity;
mod rig;
mod serving;
mod whole;
