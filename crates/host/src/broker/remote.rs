//! The tools of a hub, as an executor that an agent's loop cannot tell from a local one.

use crate::broker::Client;

/// Runs the tools of a hub.
#[derive(Clone, Debug)]
pub struct RemoteTools {
    /// The connection.
    pub client: Client,
}
