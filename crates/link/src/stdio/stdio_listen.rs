//! Change streams of a stdio server.

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::era::Era;
use bowline_runtime::TaskSpawner;

use super::ClientInfo;
use crate::demux::{Demux, LinkEventSender};
use crate::link::{LinkExit, LinkRequest, ServerInfo};
use crate::modern::change_listen::{
    self, ChangeListener, ChangeStream, ListenFilter, ListenTransport,
};
use crate::rpc::RpcConnection;

/// Starts the change listener of a modern server.
pub(super) fn start_listener(
    info: &ServerInfo,
    peer: &Arc<RpcConnection>,
    events: Arc<LinkEventSender>,
    client: &ClientInfo,
    spawner: &dyn TaskSpawner,
) -> Option<Arc<ChangeListener>> {
    if info.revision.era() == Era::Legacy {
        return None;
    }
    peer.reject_server_requests();
    let listener = Arc::new(ChangeListener::default());
    let transport = Arc::new(StdioListen {
        rpc: Arc::clone(peer),
        events,
    });
    let declared = ListenFilter::from_capabilities(&info.initialize);
    let listening =
        change_listen::run_listener(transport, Arc::clone(&listener), client.clone(), declared);
    spawner.spawn("link.listener", Box::pin(listening));
    Some(listener)
}

/// Listen transport of a server with a shared stream.
#[derive(Debug)]
struct StdioListen {
    rpc: Arc<RpcConnection>,
    events: Arc<LinkEventSender>,
}

impl ListenTransport for StdioListen {
    fn start_listen(self: &Arc<Self>, request: LinkRequest) -> ChangeStream {
        self.rpc.open_change_stream(request)
    }

    fn server_name(&self) -> &str {
        self.rpc.server_name()
    }

    fn event_sender(&self) -> &LinkEventSender {
        &self.events
    }

    fn wait_link_closed(&self) -> BoxFuture<'_, LinkExit> {
        Box::pin(async {
            let (exit, _) = self.rpc.wait_ending().await;
            exit
        })
    }
}
