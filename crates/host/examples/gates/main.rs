//! Benchmark of the call path: calls over an instant link, with and without the call path, with and
//! without rules, and over real pipes.
//!
//! Without arguments, prints nanoseconds of CPU per call as a JSON line. With a kind and a number,
//! makes that many calls, for instruction counting.

mod child;
mod eras;
mod null;
mod redaction;
mod tool_search;

use std::borrow::Cow;
use std::hint::black_box;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::budget::{BudgetRule, CallAllowance, RateRule};
use bowline_core::call::{
    CallRequest, CallSubject, EndpointScope, Principal, RequestMessage, Role,
};
use bowline_core::era::{Era, EraSetting};
use bowline_core::policy::{DefaultAction, FeaturePattern, Policy, RoleRules};
use bowline_host::audit::{AuditSink, AuditTrail, NullAuditSink, RenderOptions};
use bowline_host::dial::{EraCache, HttpDial, RealDial};
use bowline_host::expose::FIND_TOOLS;
use bowline_host::manifest::NullManifestStore;
use bowline_host::pins::NullPinStore;
use bowline_host::ports::NullSink;
use bowline_host::spec::{ChildSpec, ServerSpec, ServerTransport};
use bowline_host::supervisor::{Dial, ServerState};
use bowline_host::{Host, HostLimits, HostPorts};
use bowline_journal::audit::AuditLimits;
use bowline_link::{ClientInfo, Link, LinkRequest, ParamRename, StdioLimits};
use bowline_runtime::{Clock, SystemClock, TaskTracker};
use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};

use null::{NullDial, NullLink};

/// Calls per round.
const CALLS: u32 = 20_000;

/// Rounds per kind; the fastest counts, since background load only adds time.
const ROUNDS: usize = 15;

/// Sizes that must not affect the cost.
const TOOLS_MANY: usize = 10_000;
const ROLES_MANY: usize = 1_000;

/// Servers for the tools, within the list limit of each.
const SERVERS_MANY: usize = 10;

/// The measured kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BenchKind {
    /// Directly over the link, without the call path.
    Direct,
    /// Through the call path, as the owner.
    CallPath,
    /// Like `CallPath`, with an audit row on disk for each call and a bounded queue.
    Audited,
    /// Like `CallPath`, with different arguments each time.
    Fresh,
    /// Under a role with a budget and a rate.
    WithRules,
    /// Like `WithRules`, with a cacheable tool and no cached response.
    CacheMiss,
    /// Like `CacheMiss`, and each response is cached.
    CacheStore,
    /// Like `CacheMiss`, with a cache hit.
    CacheHit,
    /// Like `WithRules`, with ten thousand tools and a thousand roles.
    ManyTools,
    /// Like `WithRules`, over the pipes of a real child.
    Live,
    /// Like `CacheHit`, with that child.
    LiveCacheHit,
    /// Like `Live`, with modern client and child.
    Modern,
    /// Like `Live`, with a legacy client and a modern child.
    ToModern,
    /// Like `Live`, with a modern client and a legacy child.
    ToLegacy,
    /// Searches two thousand tools, under a role.
    Find,
    /// Scans a KiB of a result for secrets.
    Redact,
}

const KINDS: [(&str, BenchKind); 16] = [
    ("direct", BenchKind::Direct),
    ("road", BenchKind::CallPath),
    ("audited", BenchKind::Audited),
    ("fresh", BenchKind::Fresh),
    ("ruled", BenchKind::WithRules),
    ("looked", BenchKind::CacheMiss),
    ("kept", BenchKind::CacheStore),
    ("hit", BenchKind::CacheHit),
    ("many", BenchKind::ManyTools),
    ("live", BenchKind::Live),
    ("live-hit", BenchKind::LiveCacheHit),
    ("modern", BenchKind::Modern),
    ("to-modern", BenchKind::ToModern),
    ("to-legacy", BenchKind::ToLegacy),
    ("find", BenchKind::Find),
    ("redact", BenchKind::Redact),
];

impl BenchKind {
    fn tool_name(self) -> &'static str {
        match self {
            Self::CacheMiss => "null__looked",
            Self::CacheStore | Self::CacheHit | Self::LiveCacheHit => "null__kept",
            Self::Find => FIND_TOOLS,
            _ => "null__do",
        }
    }

    fn tool_arguments(self) -> &'static str {
        match self {
            Self::Find => tool_search::ARGUMENTS,
            _ => "{}",
        }
    }

    /// Returns the calls per round, for rounds of similar duration.
    fn calls_per_round(self) -> u32 {
        match self {
            Self::Find => CALLS / 100,
            _ => CALLS,
        }
    }

    /// Returns the eras of client and real child, if any.
    fn call_eras(self) -> Option<(Era, Era)> {
        match self {
            Self::Live | Self::LiveCacheHit => Some((Era::Legacy, Era::Legacy)),
            Self::Modern => Some((Era::Modern, Era::Modern)),
            Self::ToModern => Some((Era::Legacy, Era::Modern)),
            Self::ToLegacy => Some((Era::Modern, Era::Legacy)),
            _ => None,
        }
    }

    /// True if each call has new arguments.
    fn is_fresh(self) -> bool {
        matches!(self, Self::Fresh | Self::CacheMiss | Self::CacheStore)
    }

    fn caller_role(self) -> Role {
        match self {
            Self::Direct | Self::CallPath | Self::Audited | Self::Fresh => Role::Owner,
            _ => Role::Named("reader".into()),
        }
    }
}

/// Waits until every server is ready.
async fn wait_all_ready(host: &Host) {
    for server in host.servers() {
        let Ok(server) = host.server(&server) else {
            continue;
        };
        let mut states = server.subscribe_state();
        // The sender lives as long as the supervisor.
        let _gone = states.wait_for(|state| *state == ServerState::Ready).await;
    }
}

/// A kind of call with its setup.
struct Bench {
    kind: BenchKind,
    host: Host,
    link: Arc<dyn Link>,
    clock: SystemClock,
    call: CallRequest,
}

impl Bench {
    async fn start(kind: BenchKind) -> std::io::Result<Self> {
        let (servers, more) = match kind {
            BenchKind::ManyTools => (SERVERS_MANY, TOOLS_MANY / SERVERS_MANY),
            BenchKind::Find => (
                tool_search::SERVERS,
                tool_search::TOOLS / tool_search::SERVERS,
            ),
            _ => (1, 0),
        };
        let link = NullLink::with_tools(more);
        let (clock, tasks) = (SystemClock::start(), TaskTracker::default());
        let mut spec = ServerSpec::new("null", "null");
        let dial: Arc<dyn Dial> = match kind.call_eras() {
            Some((_, era)) => {
                let mut child = ChildSpec::new(std::env::current_exe()?);
                child.args = vec!["serve".into(), era.as_str().into()];
                spec.transport = ServerTransport::Child(child);
                spec.era = EraSetting::Only(era);
                real_dial(&tasks)?
            }
            None => Arc::new(NullDial(Arc::clone(&link))),
        };
        let ports = HostPorts {
            dial,
            clock: Arc::new(clock),
            tasks,
            notifications: Arc::new(NullSink),
            manifests: Arc::new(NullManifestStore),
            pins: Arc::new(NullPinStore),
            journal: Arc::new(bowline_journal::MemoryJournal::default()),
            audit: match kind {
                BenchKind::Audited => open_trail(&clock)?,
                _ => Arc::new(NullAuditSink),
            },
            keys: bowline_core::lane::KeyScope::default(),
        };
        let mut specs: Vec<_> = (1..servers)
            .map(|nth| ServerSpec::new(&format!("null-{nth}"), "null"))
            .collect();
        specs.push(spec);
        let host = Host::start(specs, HostLimits::default(), ports);
        wait_all_ready(&host).await;
        let role = kind.caller_role();
        if role != Role::Owner {
            let roles = if kind == BenchKind::ManyTools {
                ROLES_MANY
            } else {
                1
            };
            host.set_policy(policy_with_roles(roles));
        }
        if kind == BenchKind::Find {
            host.set_policy(tool_search::search_policy());
        }
        let principal = Arc::new(Principal::new("caller", role));
        let mut call = tool_call(principal, kind.tool_name(), kind.tool_arguments());
        if let Some((Era::Modern, _)) = kind.call_eras() {
            eras::to_modern_call(&mut call);
        }
        // The first response marks the tool as cacheable.
        let _first = host.call(&call).await;
        Ok(Self {
            kind,
            host,
            link,
            clock,
            call,
        })
    }

    /// Makes calls and returns the number of responses.
    async fn run_calls(&self, calls: u32) -> u32 {
        match self.kind {
            BenchKind::Direct => self.run_direct(calls).await,
            BenchKind::Redact => redaction::redact_results(calls),
            BenchKind::ToModern | BenchKind::ToLegacy => self.run_translated(calls).await,
            kind if kind.is_fresh() => self.run_fresh(calls).await,
            _ => self.run_same(calls).await,
        }
    }

    async fn run_same(&self, calls: u32) -> u32 {
        let mut answered = 0;
        for _ in 0..calls {
            let reply = self.host.call(black_box(&self.call)).await;
            answered += u32::from(black_box(reply).is_ok());
        }
        answered
    }

    async fn run_translated(&self, calls: u32) -> u32 {
        let mut answered = 0;
        for _ in 0..calls {
            let reply = self.host.call(black_box(&self.call)).await;
            let told = reply.map(|reply| eras::to_caller_era(&self.call, &reply));
            answered += u32::from(black_box(told).is_ok());
        }
        answered
    }

    async fn run_fresh(&self, calls: u32) -> u32 {
        let mut answered = 0;
        for nth in 0..calls {
            let arguments = format!("{{\"n\":{nth}}}");
            let principal = Arc::clone(&self.call.principal);
            let call = tool_call(principal, self.kind.tool_name(), &arguments);
            let reply = self.host.call(black_box(&call)).await;
            answered += u32::from(black_box(reply).is_ok());
        }
        answered
    }

    async fn run_direct(&self, calls: u32) -> u32 {
        let mut answered = 0;
        let (call, to) = (&self.call, Arc::<str>::from("do"));
        let deadline = self.clock.instant(self.clock.now()) + Duration::from_secs(60);
        for _ in 0..calls {
            let call = black_box(call);
            let request = LinkRequest {
                method: Cow::Borrowed(call.subject.method()),
                rename: Some(ParamRename {
                    at: call.name_at.clone(),
                    to: Arc::clone(&to),
                }),
                deadline,
                idempotency_header: None,
                caller_identity: None,
                header_params: None,
                message: call.message.clone(),
            };
            let answer = self.link.request(request).await;
            answered += u32::from(black_box(answer).is_ok());
        }
        answered
    }
}

/// Opens a trail in an unlinked directory; its thread is not measured.
fn open_trail(clock: &SystemClock) -> std::io::Result<Arc<dyn AuditSink>> {
    let name = format!("bowline-gates-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory)?;
    let (limits, clock) = (AuditLimits::default(), Arc::new(*clock));
    let trail = AuditTrail::open(&directory, limits, clock, RenderOptions::default());
    let trail = trail.map_err(std::io::Error::other)?;
    std::fs::remove_dir_all(&directory)?;
    Ok(Arc::new(trail))
}

fn real_dial(tasks: &TaskTracker) -> std::io::Result<Arc<dyn Dial>> {
    let http = HttpDial::new().map_err(std::io::Error::other)?;
    Ok(Arc::new(RealDial {
        tasks: tasks.clone(),
        client: ClientInfo {
            name: "gates".into(),
            version: "1".into(),
        },
        http: Some(Arc::new(http)),
        executors: None,
        stdio_limits: StdioLimits::default(),
        eras: EraCache::default(),
        launcher: None,
        instance: None,
    }))
}

fn tool_call(principal: Arc<Principal>, tool: &str, arguments: &str) -> CallRequest {
    let start = "{\"name\":";
    CallRequest {
        principal,
        scope: EndpointScope::All,
        subject: CallSubject::Tool(tool.into()),
        name_at: start.len()..start.len() + tool.len() + 2,
        wants_task: false,
        deadline: None,
        run: None,
        idempotency_key: None,
        stateless: None,
        message: RequestMessage {
            params: format!("{start}\"{tool}\",\"arguments\":{arguments}}}").into(),
            progress_at: None,
            id: Bytes::from_static(b"1"),
            client: None,
            trace: None,
            era: Era::Legacy,
        },
    }
}

/// A policy with this many roles, one of them the caller's, with every setting except conditions.
fn policy_with_roles(roles: usize) -> Policy {
    let patterns = |all: &[&str]| {
        all.iter()
            .filter_map(|one| FeaturePattern::parse(one).ok())
            .collect()
    };
    let hour = Duration::from_secs(3_600);
    let rules = || RoleRules {
        allow: patterns(&["other.*", "null.do", "null.k*", "null.looked"]),
        deny: patterns(&["null.write_*"]),
        conditions: Vec::new(),
        allowance: CallAllowance {
            budget: Some(BudgetRule {
                calls: u64::MAX,
                per: hour,
            }),
            rate: Some(RateRule {
                calls: u32::MAX,
                per: hour,
                burst: u32::MAX,
            }),
        },
    };
    let others = (1..roles).map(|nth| format!("role-{nth}"));
    others.fold(
        Policy::new(DefaultAction::Deny).with_role("reader", rules()),
        |policy, name| policy.with_role(&name, rules()),
    )
}

/// Returns the CPU time per call in this process. Everything runs on this thread; server time and
/// waiting are excluded.
async fn cpu_nanos_per_call(work: impl Future<Output = u32>) -> f64 {
    let begun = thread_cpu_nanos();
    let answered = work.await;
    (thread_cpu_nanos() - begun) / f64::from(answered)
}

/// Returns the CPU time of this thread.
fn thread_cpu_nanos() -> f64 {
    let ran = clock_gettime(ClockId::ThreadCPUTime);
    ran.tv_sec as f64 * 1e9 + ran.tv_nsec as f64
}

/// Measures kinds in turn.
async fn measure_kinds(kinds: &[(&'static str, BenchKind)]) -> std::io::Result<String> {
    let mut benches = Vec::new();
    for (name, kind) in kinds.iter().copied() {
        benches.push((name, Bench::start(kind).await?, f64::INFINITY));
    }
    for _ in 0..ROUNDS {
        for (_, bench, best) in &mut benches {
            *best = cpu_nanos_per_call(bench.run_calls(bench.kind.calls_per_round()))
                .await
                .min(*best);
        }
    }
    let all: Vec<_> = benches
        .iter()
        .map(|(name, _, best)| format!("\"{name}\":{best:.0}"))
        .collect();
    Ok(format!("{{{}}}", all.join(",")))
}

/// Returns the kinds with era translation.
fn era_kinds() -> Vec<(&'static str, BenchKind)> {
    let mut kinds = KINDS.to_vec();
    kinds.retain(|(_, kind)| *kind != BenchKind::LiveCacheHit && kind.call_eras().is_some());
    kinds
}

fn main() -> std::io::Result<()> {
    let mut words = std::env::args().skip(1);
    let (kind, calls) = (words.next(), words.next());
    if kind.as_deref() == Some("serve") {
        return child::serve_stdio(match calls.as_deref() {
            Some("modern") => Era::Modern,
            _ => Era::Legacy,
        });
    }
    let calls = calls.and_then(|calls| calls.parse().ok()).unwrap_or(CALLS);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let said = runtime.block_on(async {
        let kind = kind.as_deref();
        match KINDS.into_iter().find(|(name, _)| Some(*name) == kind) {
            Some((_, kind)) => {
                let bench = Bench::start(kind).await?;
                Ok(bench.run_calls(calls).await.to_string())
            }
            None if kind == Some("eras") => measure_kinds(&era_kinds()).await,
            None if kind == Some("finding") => measure_kinds(&[("find", BenchKind::Find)]).await,
            None => measure_kinds(&KINDS).await,
        }
    });
    writeln!(std::io::stdout(), "{}", said?)
}
