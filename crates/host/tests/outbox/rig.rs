//! A host with the test's journal, and a server with the queued tool `do`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::call::{
    CallReply, CallRequest, Effect, Principal, ReplyOrigin, RequestMessage, Role,
};
use bowline_core::error::CallError;
use bowline_core::lane::KeyChannel;
use bowline_host::outbox::QueuedCallView;
use bowline_host::spec::{ServerSpec, ToolRule};
use bowline_host::{Host, HostLimits, HostPorts};
use bowline_journal::{Journal, MemoryJournal};
use bowline_runtime::Clock;
use bowline_testkit::{
    GenerationScript, PausedClock, RecordingClient, RecordingSink, ServerScript, SimWorld,
    ToolBehaviour, annotated_tool, reply_body, server_spec, tool_call, tool_definition,
    wait_for_state,
};
use serde_json::Value;

/// Lifetime of queued writes.
pub(crate) const KEEP: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) struct OutboxRig {
    pub(crate) world: SimWorld,
    pub(crate) host: Host,
    pub(crate) ears: Arc<RecordingSink>,
    pub(crate) journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
}

/// Returns the rule of a queued tool.
pub(crate) fn queued_rule(channel: KeyChannel) -> ToolRule {
    ToolRule {
        effect: Some(Effect::Write),
        queue: Some(KEEP),
        idempotency: channel,
        ..ToolRule::default()
    }
}

pub(crate) fn argument_channel() -> KeyChannel {
    KeyChannel::Argument("key".into())
}

/// Returns a server with the queued tool `do`, keyed by argument `key`, and the unqueued tool
/// `other`.
pub(crate) fn queued_server(name: &str) -> ServerSpec {
    ServerSpec {
        tools: [("do".to_owned(), queued_rule(argument_channel()))].into(),
        // Longer than a caller waits for a restart.
        backoff: Backoff {
            base: Duration::from_secs(3),
            cap: Duration::from_secs(5),
        },
        ..server_spec(name)
    }
}

/// Returns a server whose `do` acts as given, and whose `other` succeeds.
pub(crate) fn server_doing(act: ToolBehaviour) -> GenerationScript {
    GenerationScript::with_definitions(&[tool_definition("do"), annotated_tool("other", "{}")])
        .with_behaviour("do", act)
}

pub(crate) fn healthy_server() -> GenerationScript {
    server_doing(ToolBehaviour::Respond)
}

impl OutboxRig {
    pub(crate) async fn new(script: ServerScript) -> Self {
        Self::with_servers(vec![queued_server("s")], [("s", script)]).await
    }

    pub(crate) async fn with_servers<'a>(
        specs: Vec<ServerSpec>,
        scripts: impl IntoIterator<Item = (&'a str, ServerScript)>,
    ) -> Self {
        let world = SimWorld::new(scripts);
        Self::start_on_journal(world, specs, Arc::new(MemoryJournal::default())).await
    }

    /// Starts a host on a journal, and waits until all servers are settled.
    pub(crate) async fn start_on_journal(
        world: SimWorld,
        specs: Vec<ServerSpec>,
        journal: Arc<dyn Journal>,
    ) -> Self {
        let names: Vec<_> = specs.iter().map(|spec| Arc::clone(&spec.name)).collect();
        let rig = Self::start_without_waiting(world, specs, journal);
        for name in names {
            assert!(wait_for_state(&rig.host, &name, "ready").await);
        }
        rig
    }

    pub(crate) fn start_without_waiting(
        world: SimWorld,
        specs: Vec<ServerSpec>,
        journal: Arc<dyn Journal>,
    ) -> Self {
        let clock = Arc::new(PausedClock::start());
        Self::start_with_clock(world, specs, journal, clock)
    }

    /// Starts another host on the same journal and clock.
    pub(crate) fn restart(&self, specs: Vec<ServerSpec>) -> Self {
        let (world, journal) = (self.world.clone(), Arc::clone(&self.journal));
        Self::start_with_clock(world, specs, journal, Arc::clone(&self.clock))
    }

    fn start_with_clock(
        world: SimWorld,
        specs: Vec<ServerSpec>,
        journal: Arc<dyn Journal>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let ears = Arc::new(RecordingSink::default());
        let ports = HostPorts {
            clock: Arc::clone(&clock),
            notifications: Arc::clone(&ears) as _,
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
    pub(crate) async fn write_as(
        &self,
        who: &str,
        arguments: &str,
    ) -> Result<CallReply, CallError> {
        self.host.call(write_call(who, "s__do", arguments)).await
    }

    /// Calls `do` of server `s`; the call must be queued.
    pub(crate) async fn queue_write(&self, arguments: &str) -> Value {
        let reply = self.write_as("owner", arguments).await.unwrap();
        expect_queued(&reply)
    }

    pub(crate) async fn queued_calls(&self) -> Vec<QueuedCallView> {
        self.host.outbox().list(None, 1_000).await.unwrap()
    }

    /// Waits until no write is queued.
    pub(crate) async fn wait_drained(&self) {
        let mut events = self.host.events().subscribe();
        let wait = async {
            while self.queued_calls().await.iter().any(|one| one.position > 0) {
                events.recv().await.unwrap();
            }
        };
        let day = Duration::from_secs(24 * 3_600);
        tokio::time::timeout(day, wait).await.expect("it drains");
    }

    /// Returns argument `n` of every executed call, in order.
    pub(crate) fn executed_numbers(&self) -> Vec<u64> {
        let record = self.world.record();
        record
            .executions
            .iter()
            .map(|deed| number_argument(&deed.arguments))
            .collect()
    }

    /// Returns argument `n` of every call executed by a deduplicating server, in order.
    pub(crate) fn deduplicated_numbers(&self) -> Vec<u64> {
        let record = self.world.record();
        let mut seen = HashSet::new();
        let deeds = record.executions.iter();
        deeds
            .filter(|deed| seen.insert(key_argument(&deed.arguments)))
            .map(|deed| number_argument(&deed.arguments))
            .collect()
    }
}

/// Returns a call of a principal without its own role, from session 7.
pub(crate) fn write_call(who: &str, tool: &str, arguments: &str) -> CallRequest {
    let call = tool_call(tool, arguments);
    CallRequest {
        principal: Arc::new(Principal::new(who, Role::Owner)),
        message: RequestMessage {
            client: Some(RecordingClient::new(7)),
            ..call.message
        },
        ..call
    }
}

pub(crate) fn expect_queued(reply: &CallReply) -> Value {
    assert_eq!(reply.origin, ReplyOrigin::Queued, "{}", reply_body(reply));
    let said: Value = serde_json::from_str(&reply_body(reply)).unwrap();
    let structured = said["structuredContent"].clone();
    let text = said["content"][0]["text"].as_str().unwrap();
    let text: Value = serde_json::from_str(text).unwrap();
    assert_eq!(text, structured, "text and structured content say the same");
    assert_eq!(structured["queued"], true);
    structured
}

pub(crate) fn number_argument(arguments: &str) -> u64 {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    arguments["n"].as_u64().unwrap_or(0)
}

pub(crate) fn key_argument(arguments: &str) -> String {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    arguments["key"].as_str().unwrap_or_default().to_owned()
}
