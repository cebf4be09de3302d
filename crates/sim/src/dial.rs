//! Starts scripted servers.

use std::sync::Arc;

use bowline_core::caller::CallerEnd;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::{Dial, Dialled};
use bowline_link::stderr::StderrLog;
use bowline_link::{BoxFuture, ConnectError};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::link::{EVENTS_MAX, Process, ScriptedLink};
use crate::script::Start;
use crate::world::World;

/// Connects to the servers of a world.
#[derive(Clone, Debug)]
pub struct ScriptedDial(World);

impl ScriptedDial {
    /// Returns a dialler into `world`.
    #[must_use]
    pub const fn new(world: World) -> Self {
        Self(world)
    }
}

impl Dial for ScriptedDial {
    fn dial<'a>(
        &'a self,
        spec: &'a ServerSpec,
        _log: &'a Arc<StderrLog>,
        _owner: Option<Arc<dyn CallerEnd>>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Dialled, ConnectError>> {
        Box::pin(async move {
            let server = Arc::clone(&spec.name);
            let Some((nth, script)) = self.0.begin(&server) else {
                return Err(ConnectError::BadHandshake {
                    server,
                    reason: "no script".into(),
                });
            };
            let process = Process::start(&server, nth, self.0.ledger());
            match &script.start {
                Start::Well => {}
                Start::Fails(reason) => {
                    return Err(ConnectError::BadHandshake {
                        server,
                        reason: Arc::clone(reason),
                    });
                }
                Start::Takes(wait) => {
                    let taken = timeout_at(deadline, tokio::time::sleep(*wait));
                    taken.await.map_err(|_| too_slow(&server))?;
                }
                Start::Hangs(gate) => {
                    let passed = timeout_at(deadline, gate.passed());
                    passed.await.map_err(|_| too_slow(&server))?;
                }
            }
            let (events, heard) = mpsc::channel(EVENTS_MAX);
            let link = Arc::new(ScriptedLink::new(process, script, events));
            self.0.put(&server, &link);
            Ok((link as Arc<dyn bowline_link::Link>, heard))
        })
    }
}

fn too_slow(server: &Arc<str>) -> ConnectError {
    ConnectError::HandshakeTimeout {
        server: Arc::clone(server),
        stderr_tail: Vec::new(),
    }
}
