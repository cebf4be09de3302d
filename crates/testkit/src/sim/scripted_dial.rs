//! Starts scripted servers.

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::client_handle::ClientHandle;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::{Dial, DialedLink};
use bowline_link::LinkConnectError;
use bowline_link::stderr::StderrLog;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::sim::scripted_link::{EVENTS_MAX, ScriptedLink, ScriptedProcess};
use crate::sim::server_script::StartBehaviour;
use crate::sim::world::SimWorld;

/// Connects to the servers of a world.
#[derive(Clone, Debug)]
pub struct ScriptedDial(SimWorld);

impl ScriptedDial {
    /// Returns a dialler into `world`.
    #[must_use]
    pub const fn new(world: SimWorld) -> Self {
        Self(world)
    }
}

impl Dial for ScriptedDial {
    fn dial<'a>(
        &'a self,
        spec: &'a ServerSpec,
        _log: &'a Arc<StderrLog>,
        _owner: Option<Arc<dyn ClientHandle>>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<DialedLink, LinkConnectError>> {
        Box::pin(async move {
            let server = Arc::clone(&spec.name);
            let Some((nth, script)) = self.0.begin_start(&server) else {
                return Err(LinkConnectError::BadHandshake {
                    server,
                    reason: "no script".into(),
                });
            };
            let process = ScriptedProcess::start(&server, nth, self.0.ledger());
            match &script.start {
                StartBehaviour::Success => {}
                StartBehaviour::Failure(reason) => {
                    return Err(LinkConnectError::BadHandshake {
                        server,
                        reason: Arc::clone(reason),
                    });
                }
                StartBehaviour::Delayed(wait) => {
                    let delay = timeout_at(deadline, tokio::time::sleep(*wait));
                    delay.await.map_err(|_| start_timeout(&server))?;
                }
                StartBehaviour::Blocked(gate) => {
                    let released = timeout_at(deadline, gate.wait_released());
                    released.await.map_err(|_| start_timeout(&server))?;
                }
            }
            let (events, receiver) = mpsc::channel(EVENTS_MAX);
            let link = Arc::new(ScriptedLink::new(process, script, events));
            self.0.set_link(&server, &link);
            Ok((link as Arc<dyn bowline_link::Link>, receiver))
        })
    }
}

fn start_timeout(server: &Arc<str>) -> LinkConnectError {
    LinkConnectError::HandshakeTimeout {
        server: Arc::clone(server),
        stderr_tail: Vec::new(),
    }
}
