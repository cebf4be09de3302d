//! The life of a server: how it is started, rests, is reloaded, retired and given up.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod failing;
mod leaving;
mod quiet;
mod remembered;
mod stale;
mod starts;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::caller::CallerEnd;
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_host::events::{Event, What};
use bowline_host::manifest::{Manifest, Manifests};
use bowline_host::pins::Unkept;
use bowline_host::ports::{Silent, SystemClock};
use bowline_host::spec::{Reach, RemoteSpec, ServerSpec};
use bowline_host::supervisor::{Dial, Dialled};
use bowline_host::tasks::Tasks;
use bowline_host::{Host, HostLimits, Ports};
use bowline_link::http::Transport;
use bowline_link::http::credentials::Anonymous;
use bowline_link::http::endpoint::Endpoint;
use bowline_link::stderr::StderrLog;
use bowline_link::{BoxFuture, ConnectError};
use bowline_sim::{Act, Generation, Script, ScriptedDial, World, body, call, spec};
use tokio::sync::broadcast::Receiver;
use tokio::task::JoinSet;
use tokio::time::Instant;

const WAIT: Duration = Duration::from_secs(60);

fn well() -> Generation {
    Generation::tools([("do", Act::Answers)])
}

fn lazy(server: &str) -> ServerSpec {
    ServerSpec {
        lazy: true,
        ..spec(server)
    }
}

/// The spec of a server that runs elsewhere.
fn remote(server: &str) -> ServerSpec {
    let reach = RemoteSpec {
        url: Endpoint::parse("http://127.0.0.1:9/mcp").unwrap(),
        transport: Transport::default(),
        credentials: Arc::new(Anonymous),
        via: None,
    };
    ServerSpec::reached(server, Reach::Remote(reach))
}

/// A world with the one server `s`, and a host that has it in care.
fn world(script: Script, spec: ServerSpec) -> (World, Host) {
    let world = World::new([("s", script)]);
    let host = world.host(vec![spec], HostLimits::default());
    (world, host)
}

/// Starts a host with these doors.
fn host(dial: impl Dial + 'static, manifests: &Arc<Kept>, specs: Vec<ServerSpec>) -> Host {
    let ports = Ports {
        dial: Arc::new(dial),
        clock: Arc::new(SystemClock::start()),
        tasks: Tasks::default(),
        audience: Arc::new(Silent),
        manifests: Arc::clone(manifests) as Arc<dyn Manifests>,
        pins: Arc::new(Unkept),
        journal: Arc::new(bowline_journal::Memory::default()),
        audit: Arc::new(bowline_host::audit::Unaudited),
        keys: bowline_core::lane::KeyScope::default(),
    };
    Host::start(specs, HostLimits::default(), ports)
}

fn calls(host: &Host, tool: &str, count: usize) -> JoinSet<Result<String, CallError>> {
    let mut set = JoinSet::new();
    for _ in 0..count {
        let (host, call) = (host.clone(), call(tool, "{}"));
        set.spawn(async move { host.call(call).await.map(|reply| body(&reply)) });
    }
    set
}

/// Lets everything that is due now happen.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Moves the clock in small steps, so that who waits for a moment wakes in it.
async fn pass(time: Duration) {
    let step = Duration::from_millis(100);
    let mut left = time;
    while !left.is_zero() {
        let part = left.min(step);
        tokio::time::advance(part).await;
        // Who woke may have something to say to others.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        left -= part;
    }
}

/// Returns the states that were told, and the reasons.
fn states(events: &mut Receiver<Event>) -> Vec<(&'static str, u64, Option<String>)> {
    let mut seen = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let What::State {
            state,
            generation,
            reason,
            ..
        } = event.what
        {
            seen.push((state, generation, reason.map(|reason| reason.to_string())));
        }
    }
    seen
}

/// What is kept between lives of a gateway, in memory.
#[derive(Debug, Default)]
struct Kept {
    manifests: Mutex<HashMap<String, (String, Manifest)>>,
    saves: Mutex<usize>,
}

impl Manifests for Kept {
    fn load(&self, server: &str, digest: &str) -> Option<Manifest> {
        let kept = self.manifests.lock().unwrap();
        let (under, manifest) = kept.get(server)?;
        (under == digest).then(|| manifest.clone())
    }

    fn save(&self, server: &str, digest: &str, manifest: Manifest) {
        *self.saves.lock().unwrap() += 1;
        let mut kept = self.manifests.lock().unwrap();
        kept.insert(server.to_owned(), (digest.to_owned(), manifest));
    }

    fn forget(&self, server: &str) {
        self.manifests.lock().unwrap().remove(server);
    }
}

/// Fails the first starts in chosen ways, and notes how long each start may take.
#[derive(Clone, Debug)]
struct OddDial {
    scripted: ScriptedDial,
    errors: Arc<Mutex<VecDeque<ConnectError>>>,
    allowed: Arc<Mutex<Vec<Duration>>>,
    /// The eras that it was reminded of.
    recalled: Arc<Mutex<Vec<Era>>>,
}

impl OddDial {
    fn new(world: &World, errors: impl IntoIterator<Item = ConnectError>) -> Self {
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
        owner: Option<Arc<dyn CallerEnd>>,
        deadline: Instant,
    ) -> BoxFuture<'a, Result<Dialled, ConnectError>> {
        self.allowed.lock().unwrap().push(deadline - Instant::now());
        match self.errors.lock().unwrap().pop_front() {
            Some(error) => Box::pin(async move { Err(error) }),
            None => self.scripted.dial(spec, log, owner, deadline),
        }
    }

    fn recall_era(&self, _spec: &ServerSpec, era: Era) {
        self.recalled.lock().unwrap().push(era);
    }
}
