//! Servers of peers as servers of the host: the port of the catalog over links of the broker.

use std::sync::Arc;

use bowline_broker::{PeerLink, PeerRole, RemotePeer, RemoteServer};
use bowline_core::BoxFuture;
use bowline_link::LinkConnectError;
use bowline_runtime::{Clock, TaskTracker};
use tokio::time::Instant;

use crate::spec::{DialedLink, PeerConnector, PeerSpec};

/// Opens links to a server that a peer offers.
#[derive(Debug)]
struct BrokerConnector(RemoteServer);

impl PeerConnector for BrokerConnector {
    fn peer_name(&self) -> Arc<str> {
        self.0.remote.name()
    }

    fn peer_id(&self) -> usize {
        remote_id(&self.0.remote)
    }

    fn connect<'a>(
        &'a self,
        name: &'a Arc<str>,
        clock: &'a Arc<dyn Clock>,
        tasks: &'a TaskTracker,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<DialedLink, LinkConnectError>> {
        Box::pin(PeerLink::connect(name, &self.0, clock, tasks, deadline))
    }
}

/// Returns the address of a peer: the connectors hold the peer, so that no other has the address.
pub(crate) fn remote_id(remote: &Arc<dyn RemotePeer>) -> usize {
    Arc::as_ptr(remote).cast::<()>().addr()
}

/// Returns the transport of a server that `remote` offers.
pub(crate) fn peer_spec(
    remote: &Arc<dyn RemotePeer>,
    server: &Arc<str>,
    role: PeerRole,
) -> PeerSpec {
    let remote_server = RemoteServer::new(Arc::clone(remote), server, role);
    PeerSpec {
        connector: Arc::new(BrokerConnector(remote_server)),
        server: Arc::clone(server),
        role,
    }
}
