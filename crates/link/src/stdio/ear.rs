//! How a process is listened to between calls.

use std::sync::Arc;

use bowline_core::era::Era;

use super::ClientInfo;
use crate::desk::{Desk, Events};
use crate::link::{BoxFuture, Exit, Request, ServerInfo, Spawner};
use crate::modern::listen::{self, Ear, Filter, Listener, Opened};
use crate::peer::Peer;

/// Listens to a server that is to be listened to.
pub(super) fn listen(
    info: &ServerInfo,
    peer: &Arc<Peer>,
    events: Arc<Events>,
    client: &ClientInfo,
    spawner: &dyn Spawner,
) -> Option<Arc<Listener>> {
    if info.revision.era() == Era::Legacy {
        return None;
    }
    peer.take_no_requests();
    let listener = Arc::new(Listener::default());
    let ear = Arc::new(PipeEar {
        peer: Arc::clone(peer),
        events,
    });
    let declared = Filter::declared(&info.initialize);
    let listening = listen::listen(ear, Arc::clone(&listener), client.clone(), declared);
    spawner.spawn("link.listener", Box::pin(listening));
    Some(listener)
}

/// How a server is listened to whose messages all come on one stream.
#[derive(Debug)]
struct PipeEar {
    peer: Arc<Peer>,
    events: Arc<Events>,
}

impl Ear for PipeEar {
    fn open(self: &Arc<Self>, request: Request) -> Opened {
        self.peer.listen(request)
    }

    fn server(&self) -> &str {
        self.peer.server()
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn gone(&self) -> BoxFuture<'_, Exit> {
        Box::pin(async {
            let (exit, _) = self.peer.ending().await;
            exit
        })
    }
}
