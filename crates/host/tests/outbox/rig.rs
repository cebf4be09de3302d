//! A host with a journal that the test keeps, and a server whose tool `do` is queued.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::call::{Call, Effect, Origin, Principal, Reply, Role};
use bowline_core::error::CallError;
use bowline_core::lane::Channel;
use bowline_core::time::Now;
use bowline_host::outbox::Letter;
use bowline_host::ports::{Clock, SystemClock};
use bowline_host::spec::{ServerSpec, ToolRule};
use bowline_host::{Host, HostLimits, Ports};
use bowline_journal::{Journal, Memory};
use bowline_sim::{
    Act, Ears, Generation, Hearer, Script, World, annotated, body, call, definition, reaches, spec,
};
use serde_json::Value;
use tokio::time::Instant;

/// How long writes are kept.
pub(crate) const KEEP: Duration = Duration::from_secs(24 * 60 * 60);

/// The wall clock goes with the clock of the test.
#[derive(Debug)]
pub(crate) struct Hands(pub(crate) SystemClock);

impl Clock for Hands {
    fn now(&self) -> Now {
        self.0.now()
    }

    fn instant(&self, at: Now) -> Instant {
        self.0.instant(at)
    }

    fn unix_ms(&self) -> u64 {
        1_000_000 + self.0.now().0
    }
}

pub(crate) struct Rig {
    pub(crate) world: World,
    pub(crate) host: Host,
    pub(crate) ears: Arc<Ears>,
    pub(crate) journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
}

/// Returns the rule of a tool that is queued.
pub(crate) fn queued(channel: Channel) -> ToolRule {
    ToolRule {
        effect: Some(Effect::Write),
        queue: Some(KEEP),
        idempotency: channel,
        ..ToolRule::default()
    }
}

pub(crate) fn argument() -> Channel {
    Channel::Argument("key".into())
}

/// Returns a server whose tool `do` is queued under its argument `key`, and `other` is not.
pub(crate) fn server(name: &str) -> ServerSpec {
    ServerSpec {
        tools: [("do".to_owned(), queued(argument()))].into(),
        // Longer than a caller waits for a restart.
        backoff: Backoff {
            base: Duration::from_secs(3),
            cap: Duration::from_secs(5),
        },
        ..spec(name)
    }
}

/// Returns a server that offers `do`, which acts so, and `other`, which answers.
pub(crate) fn doing(act: Act) -> Generation {
    Generation::definitions(&[definition("do"), annotated("other", "{}")]).act("do", act)
}

pub(crate) fn up() -> Generation {
    doing(Act::Answers)
}

impl Rig {
    pub(crate) async fn new(script: Script) -> Self {
        Self::of(vec![server("s")], [("s", script)]).await
    }

    pub(crate) async fn of<'a>(
        specs: Vec<ServerSpec>,
        scripts: impl IntoIterator<Item = (&'a str, Script)>,
    ) -> Self {
        let world = World::new(scripts);
        Self::on(world, specs, Arc::new(Memory::default())).await
    }

    /// Starts a host on a journal, and waits until all its servers stand.
    pub(crate) async fn on(
        world: World,
        specs: Vec<ServerSpec>,
        journal: Arc<dyn Journal>,
    ) -> Self {
        let names: Vec<_> = specs.iter().map(|spec| Arc::clone(&spec.name)).collect();
        let rig = Self::started(world, specs, journal);
        for name in names {
            assert!(reaches(&rig.host, &name, "ready").await);
        }
        rig
    }

    pub(crate) fn started(world: World, specs: Vec<ServerSpec>, journal: Arc<dyn Journal>) -> Self {
        let clock = Arc::new(Hands(SystemClock::start()));
        Self::timed(world, specs, journal, clock)
    }

    /// Starts another host on the same journal, which goes by the same clock.
    pub(crate) fn again(&self, specs: Vec<ServerSpec>) -> Self {
        let (world, journal) = (self.world.clone(), Arc::clone(&self.journal));
        Self::timed(world, specs, journal, Arc::clone(&self.clock))
    }

    fn timed(
        world: World,
        specs: Vec<ServerSpec>,
        journal: Arc<dyn Journal>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let ears = Arc::new(Ears::default());
        let ports = Ports {
            clock: Arc::clone(&clock),
            audience: Arc::clone(&ears) as _,
            journal: Arc::clone(&journal),
            ..world.ports()
        };
        let host = Host::start(specs, HostLimits::default(), ports);
        Self {
            world,
            host,
            ears,
            journal,
            clock,
        }
    }

    /// Calls `do` of server `s` as `who`, from session 7.
    pub(crate) async fn write_as(&self, who: &str, arguments: &str) -> Result<Reply, CallError> {
        self.host.call(write(who, "s__do", arguments)).await
    }

    /// Calls `do` of server `s` and must be told that it waits.
    pub(crate) async fn queue(&self, arguments: &str) -> Value {
        let reply = self.write_as("owner", arguments).await.unwrap();
        is_queued(&reply)
    }

    pub(crate) async fn letters(&self) -> Vec<Letter> {
        self.host.outbox().ls(None, 1_000).await.unwrap()
    }

    /// Waits until nothing waits any more.
    pub(crate) async fn drained(&self) {
        let mut events = self.host.events().watch();
        let wait = async {
            while self.letters().await.iter().any(|one| one.position > 0) {
                events.recv().await.unwrap();
            }
        };
        let day = Duration::from_secs(24 * 3_600);
        tokio::time::timeout(day, wait).await.expect("it drains");
    }

    /// Returns the number `n` of every call that ran, in order.
    pub(crate) fn ran(&self) -> Vec<u64> {
        let record = self.world.record();
        record
            .executions
            .iter()
            .map(|deed| n(&deed.arguments))
            .collect()
    }

    /// Returns the number `n` of every call that a server which knows keys carried out, in order.
    pub(crate) fn done(&self) -> Vec<u64> {
        let record = self.world.record();
        let mut seen = HashSet::new();
        let deeds = record.executions.iter();
        deeds
            .filter(|deed| seen.insert(key(&deed.arguments)))
            .map(|deed| n(&deed.arguments))
            .collect()
    }
}

/// Lets time pass.
pub(crate) async fn pass(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

/// Returns a call of a principal without a role of its own, from session 7.
pub(crate) fn write(who: &str, tool: &str, arguments: &str) -> Call {
    Call {
        principal: Arc::new(Principal::new(who, Role::Owner)),
        caller: Some(Hearer::of(7)),
        ..call(tool, arguments)
    }
}

pub(crate) fn is_queued(reply: &Reply) -> Value {
    assert_eq!(reply.origin, Origin::Queued, "{}", body(reply));
    let said: Value = serde_json::from_str(&body(reply)).unwrap();
    let structured = said["structuredContent"].clone();
    let text = said["content"][0]["text"].as_str().unwrap();
    let text: Value = serde_json::from_str(text).unwrap();
    assert_eq!(text, structured, "text and structured content say the same");
    assert_eq!(structured["queued"], true);
    structured
}

pub(crate) fn n(arguments: &str) -> u64 {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    arguments["n"].as_u64().unwrap_or(0)
}

pub(crate) fn key(arguments: &str) -> String {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    arguments["key"].as_str().unwrap_or_default().to_owned()
}
