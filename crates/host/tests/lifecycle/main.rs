//! Lifecycle of a server: start, idle, reload, retirement and ejection.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod failing;
mod idle_and_ping;
mod manifests;
mod operator_actions;
mod retiring;
mod stale;
mod starts;

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::client_handle::ClientHandle;
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_host::events::{EventKind, HostEvent};
use bowline_host::manifest::{ManifestStore, ServerManifest};
use bowline_host::pins::NullPinStore;
use bowline_host::ports::NullSink;
use bowline_host::spec::{RemoteSpec, ServerSpec, ServerTransport};
use bowline_host::supervisor::{Dial, DialedLink};
use bowline_host::{Host, HostLimits, HostPorts};
use bowline_link::LinkConnectError;
use bowline_link::http::HttpTransport;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::upstream_credentials::NoCredentials;
use bowline_link::stderr::StderrLog;
use bowline_runtime::{SystemClock, TaskTracker};
use bowline_testkit::{
    GenerationScript, ScriptedDial, ServerScript, SimWorld, ToolBehaviour, advance_clock,
    reply_body, run_until_idle, server_spec, tool_call,
};
use tokio::sync::broadcast::Receiver;
use tokio::task::JoinSet;
use tokio::time::Instant;

const WAIT: Duration = Duration::from_secs(60);

fn healthy_server() -> GenerationScript {
    GenerationScript::with_tools([("do", ToolBehaviour::Respond)])
}

fn lazy_spec(server: &str) -> ServerSpec {
    ServerSpec {
        lazy: true,
        ..server_spec(server)
    }
}

/// The spec of an HTTP server.
fn http_spec(server: &str) -> ServerSpec {
    let reach = RemoteSpec {
        url: HttpEndpoint::parse("http://127.0.0.1:9/mcp").unwrap(),
        transport: HttpTransport::default(),
        credentials: Arc::new(NoCredentials),
        via: None,
    };
    ServerSpec::with_transport(server, ServerTransport::Remote(reach))
}

/// A host with the single server `s`.
fn world_with(script: ServerScript, spec: ServerSpec) -> (SimWorld, Host) {
    let world = SimWorld::new([("s", script)]);
    let host = world.start_host(vec![spec], HostLimits::default());
    (world, host)
}

/// Starts a host with these ports.
fn start_host(
    dial: impl Dial + 'static,
    manifests: &Arc<MemoryManifests>,
    specs: Vec<ServerSpec>,
) -> Host {
    let ports = HostPorts {
        dial: Arc::new(dial),
        clock: Arc::new(SystemClock::start()),
        tasks: TaskTracker::default(),
        notifications: Arc::new(NullSink),
        manifests: Arc::clone(manifests) as Arc<dyn ManifestStore>,
        pins: Arc::new(NullPinStore),
        journal: Arc::new(bowline_journal::MemoryJournal::default()),
        audit: Arc::new(bowline_host::audit::NullAuditSink),
        keys: bowline_core::lane::KeyScope::default(),
    };
    Host::start(specs, HostLimits::default(), ports)
}

fn spawn_calls(host: &Host, tool: &str, count: usize) -> JoinSet<Result<String, CallError>> {
    let mut set = JoinSet::new();
    for _ in 0..count {
        let (host, call) = (host.clone(), tool_call(tool, "{}"));
        set.spawn(async move { host.call(call).await.map(|reply| reply_body(&reply)) });
    }
    set
}

/// Returns the emitted states with generation and reason.
fn state_events(events: &mut Receiver<HostEvent>) -> Vec<(&'static str, u64, Option<String>)> {
    let mut seen = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let EventKind::State {
            state,
            generation,
            reason,
            ..
        } = event.kind
        {
            let Cow::Borrowed(state) = state else {
                panic!("{state} comes from a parser");
            };
            seen.push((state, generation, reason.map(|reason| reason.to_string())));
        }
    }
    seen
}

/// Manifests in memory.
#[derive(Debug, Default)]
struct MemoryManifests {
    manifests: Mutex<HashMap<String, (String, ServerManifest)>>,
    saves: Mutex<usize>,
}

impl ManifestStore for MemoryManifests {
    fn load(&self, server: &str, digest: &str) -> Option<ServerManifest> {
        let kept = self.manifests.lock().unwrap();
        let (under, manifest) = kept.get(server)?;
        (under == digest).then(|| manifest.clone())
    }

    fn save(&self, server: &str, digest: &str, manifest: ServerManifest) {
        *self.saves.lock().unwrap() += 1;
        let mut kept = self.manifests.lock().unwrap();
        kept.insert(server.to_owned(), (digest.to_owned(), manifest));
    }

    fn forget(&self, server: &str) {
        self.manifests.lock().unwrap().remove(server);
    }
}

/// Fails the first starts with given errors, and records start timeouts.
#[derive(Clone, Debug)]
struct OddDial {
    scripted: ScriptedDial,
    errors: Arc<Mutex<VecDeque<LinkConnectError>>>,
    allowed: Arc<Mutex<Vec<Duration>>>,
    /// Restored eras.
    recalled: Arc<Mutex<Vec<Era>>>,
}

impl OddDial {
    fn new(world: &SimWorld, errors: impl IntoIterator<Item = LinkConnectError>) -> Self {
        Self {
            scripted: ScriptedDial::new(world.clone()),
            errors: Arc::new(Mutex::new(errors.into_iter().collect())),
            allowed: Arc::default(),
            recalled: Arc::default(),
        }
    }
}

impl Dial for OddDial {
    #[expect(clippy::disallowed_methods, reason = "the clock of the test")]
    fn dial<'a>(
        &'a self,
        spec: &'a ServerSpec,
        log: &'a Arc<StderrLog>,
        owner: Option<Arc<dyn ClientHandle>>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<DialedLink, LinkConnectError>> {
        self.allowed.lock().unwrap().push(deadline - Instant::now());
        match self.errors.lock().unwrap().pop_front() {
            Some(error) => Box::pin(async move { Err(error) }),
            None => self.scripted.dial(spec, log, owner, deadline),
        }
    }

    fn restore_era(&self, _spec: &ServerSpec, era: Era) {
        self.recalled.lock().unwrap().push(era);
    }
}
