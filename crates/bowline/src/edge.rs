//! Where callers come in: one listener for MCP and API, checked at one door.

pub mod announce;
pub mod api;
pub mod body;
pub mod connection;
pub mod door;
pub mod errors;
pub mod guard;
pub mod listen;
pub mod mcp;
pub mod route;
pub mod seal;
pub mod session;
pub mod stream;
pub mod unread;

use std::sync::Arc;

use bowline_host::Host;

use crate::edge::door::Door;
use crate::edge::session::Sessions;

/// What people may want to know about this gateway.
#[derive(Clone, Debug)]
pub struct About {
    /// Where it is reached.
    pub url: String,
    /// The configuration file it was started with.
    pub config: Option<String>,
    /// Servers that are configured but cannot be started, each with the reason.
    pub broken: Vec<(Arc<str>, String)>,
}

/// Everything a request meets before it reaches the host. Shared by all connections.
#[derive(Debug)]
pub struct Edge {
    /// Who may come in.
    pub door: Door,
    /// Who is here.
    pub sessions: Sessions,
    /// What is done.
    pub host: Host,
    /// What the gateway says of itself.
    pub about: About,
    /// The routes of the API, built once.
    api: axum::Router,
}

impl Edge {
    /// Joins the parts of the edge.
    #[must_use]
    pub fn new(door: Door, sessions: Sessions, host: Host, about: About) -> Arc<Self> {
        Arc::new_cyclic(|edge| Self {
            api: api::router(edge.clone()),
            door,
            sessions,
            host,
            about,
        })
    }
}
