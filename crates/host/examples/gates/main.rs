//! What the road adds to a call: calls over a link that answers at once, with the road and
//! without it, under rules and without them, and beside calls over real pipes.
//!
//! Without arguments, prints one JSON line with nanoseconds of CPU per call. With a kind and a
//! number, does just that many of it, for those who count instructions.

mod child;
mod eras;
mod finding;
mod null;
mod redaction;

use std::borrow::Cow;
use std::hint::black_box;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::budget::{Allowance, BudgetRule, RateRule};
use bowline_core::call::{Call, Principal, Role, Scope, Subject};
use bowline_core::era::{Era, Speaks};
use bowline_core::policy::{Otherwise, Pattern, Policy, RoleRules};
use bowline_host::audit::{self, Audit, Shows, Unaudited};
use bowline_host::dial::{Eras, RealDial};
use bowline_host::executor::{Executors, ExecutorsOptions};
use bowline_host::expose::FIND_TOOLS;
use bowline_host::manifest::Forgetful;
use bowline_host::pins::Unkept;
use bowline_host::ports::{Clock, Silent, SystemClock};
use bowline_host::spec::{ChildSpec, Reach, ServerSpec};
use bowline_host::supervisor::{Dial, State};
use bowline_host::tasks::Tasks;
use bowline_host::{Host, HostLimits, Ports};
use bowline_journal::audit::Limits;
use bowline_link::http::HttpLimits;
use bowline_link::http::hyper_client::{ClientLimits, HyperClient};
use bowline_link::{ClientInfo, Link, Rename, Request, StdioLimits};
use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};

use null::{NullDial, NullLink};

/// Calls of one round.
const CALLS: u32 = 20_000;

/// Rounds of each kind; the quickest counts, since whatever else the machine does only adds.
const ROUNDS: usize = 15;

/// How much there is of what must not matter.
const TOOLS_MANY: usize = 10_000;
const ROLES_MANY: usize = 1_000;

/// The servers that have them: one may not list as many.
const SERVERS_MANY: usize = 10;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Straight over the link: what is left when there are no gates.
    Direct,
    /// By the road: through every gate, as the owner.
    Road,
    /// The same with a row on disk for each call, and what waits to be written bounded.
    Audited,
    /// The same with other arguments each time.
    Fresh,
    /// Under a role with a budget and a rate.
    Ruled,
    /// The same; the tool is known to give answers that can be kept, but there is none.
    Looked,
    /// The same; and each answer is kept.
    Kept,
    /// The same; and the answer is there.
    Hit,
    /// As `Ruled`, with ten thousand tools and a thousand roles.
    Many,
    /// As `Ruled`, over the pipes of a real child.
    Live,
    /// As `Hit`, beside that child.
    LiveHit,
    /// As `Live`, where caller and child are of the modern era.
    Modern,
    /// As `Live`, where only the child is.
    ToModern,
    /// As `Live`, where only the caller is.
    ToLegacy,
    /// Finds tools among two thousand, under a role.
    Find,
    /// Looks for secrets in a KiB of a result.
    Redact,
}

const KINDS: [(&str, Kind); 16] = [
    ("direct", Kind::Direct),
    ("road", Kind::Road),
    ("audited", Kind::Audited),
    ("fresh", Kind::Fresh),
    ("ruled", Kind::Ruled),
    ("looked", Kind::Looked),
    ("kept", Kind::Kept),
    ("hit", Kind::Hit),
    ("many", Kind::Many),
    ("live", Kind::Live),
    ("live-hit", Kind::LiveHit),
    ("modern", Kind::Modern),
    ("to-modern", Kind::ToModern),
    ("to-legacy", Kind::ToLegacy),
    ("find", Kind::Find),
    ("redact", Kind::Redact),
];

impl Kind {
    fn tool(self) -> &'static str {
        match self {
            Self::Looked => "null__looked",
            Self::Kept | Self::Hit | Self::LiveHit => "null__kept",
            Self::Find => FIND_TOOLS,
            _ => "null__do",
        }
    }

    fn arguments(self) -> &'static str {
        match self {
            Self::Find => finding::ARGUMENTS,
            _ => "{}",
        }
    }

    /// So many make a round that takes about as long as those of other kinds.
    fn calls(self) -> u32 {
        match self {
            Self::Find => CALLS / 100,
            _ => CALLS,
        }
    }

    /// Returns the eras of the caller and of the real child, where there is one.
    fn eras(self) -> Option<(Era, Era)> {
        match self {
            Self::Live | Self::LiveHit => Some((Era::Legacy, Era::Legacy)),
            Self::Modern => Some((Era::Modern, Era::Modern)),
            Self::ToModern => Some((Era::Legacy, Era::Modern)),
            Self::ToLegacy => Some((Era::Modern, Era::Legacy)),
            _ => None,
        }
    }

    /// Whether each call has other arguments than the one before.
    fn is_fresh(self) -> bool {
        matches!(self, Self::Fresh | Self::Looked | Self::Kept)
    }
}

/// One kind of call, and all it needs.
struct Bench {
    kind: Kind,
    host: Host,
    link: Arc<dyn Link>,
    clock: SystemClock,
    call: Call,
}

impl Bench {
    async fn start(kind: Kind) -> std::io::Result<Self> {
        let (servers, more) = match kind {
            Kind::Many => (SERVERS_MANY, TOOLS_MANY / SERVERS_MANY),
            Kind::Find => (finding::SERVERS, finding::TOOLS / finding::SERVERS),
            _ => (1, 0),
        };
        let link = NullLink::offering(more);
        let (clock, tasks) = (SystemClock::start(), Tasks::default());
        let mut spec = ServerSpec::new("null", "null");
        let dial: Arc<dyn Dial> = match kind.eras() {
            Some((_, era)) => {
                let mut child = ChildSpec::new(std::env::current_exe()?);
                child.args = vec!["serve".into(), era.as_str().into()];
                spec.reach = Reach::Child(child);
                spec.speaks = Speaks::Only(era);
                real_dial(&tasks)?
            }
            None => Arc::new(NullDial(Arc::clone(&link))),
        };
        let ports = Ports {
            dial,
            clock: Arc::new(clock),
            tasks,
            audience: Arc::new(Silent),
            manifests: Arc::new(Forgetful),
            pins: Arc::new(Unkept),
            journal: Arc::new(bowline_journal::Memory::default()),
            audit: match kind {
                Kind::Audited => trail(&clock)?,
                _ => Arc::new(Unaudited),
            },
            keys: bowline_core::lane::KeyScope::default(),
        };
        let mut specs: Vec<_> = (1..servers)
            .map(|nth| ServerSpec::new(&format!("null-{nth}"), "null"))
            .collect();
        specs.push(spec);
        let host = Host::start(specs, HostLimits::default(), ports);
        for server in host.servers() {
            let Ok(server) = host.server(&server) else {
                continue;
            };
            let mut states = server.state();
            // The sender lives as long as the supervisor does.
            let _gone = states.wait_for(|state| *state == State::Ready).await;
        }
        let role = match kind {
            Kind::Direct | Kind::Road | Kind::Audited | Kind::Fresh => Role::Owner,
            _ => Role::Named("reader".into()),
        };
        if role != Role::Owner {
            let roles = if kind == Kind::Many { ROLES_MANY } else { 1 };
            host.set_policy(policy(roles));
        }
        if kind == Kind::Find {
            host.set_policy(finding::policy());
        }
        let principal = Arc::new(Principal::new("caller", role));
        let mut call = call(principal, kind.tool(), kind.arguments());
        if let Some((Era::Modern, _)) = kind.eras() {
            eras::modernise(&mut call);
        }
        // The first answer says that answers can be kept.
        let _first = host.call(&call).await;
        Ok(Self {
            kind,
            host,
            link,
            clock,
            call,
        })
    }

    /// Makes so many calls and says how many were answered.
    async fn run(&self, calls: u32) -> u32 {
        match self.kind {
            Kind::Direct => self.direct(calls).await,
            Kind::Redact => redaction::clean_results(calls),
            Kind::ToModern | Kind::ToLegacy => self.translated(calls).await,
            kind if kind.is_fresh() => self.fresh(calls).await,
            _ => self.same(calls).await,
        }
    }

    async fn same(&self, calls: u32) -> u32 {
        let mut answered = 0;
        for _ in 0..calls {
            let reply = self.host.call(black_box(&self.call)).await;
            answered += u32::from(black_box(reply).is_ok());
        }
        answered
    }

    async fn translated(&self, calls: u32) -> u32 {
        let mut answered = 0;
        for _ in 0..calls {
            let reply = self.host.call(black_box(&self.call)).await;
            let told = reply.map(|reply| eras::told(&self.call, &reply));
            answered += u32::from(black_box(told).is_ok());
        }
        answered
    }

    async fn fresh(&self, calls: u32) -> u32 {
        let mut answered = 0;
        for nth in 0..calls {
            let arguments = format!("{{\"n\":{nth}}}");
            let principal = Arc::clone(&self.call.principal);
            let call = call(principal, self.kind.tool(), &arguments);
            let reply = self.host.call(black_box(&call)).await;
            answered += u32::from(black_box(reply).is_ok());
        }
        answered
    }

    async fn direct(&self, calls: u32) -> u32 {
        let mut answered = 0;
        let (call, to) = (&self.call, Arc::<str>::from("do"));
        let deadline = self.clock.instant(self.clock.now()) + Duration::from_secs(60);
        for _ in 0..calls {
            let call = black_box(call);
            let request = Request {
                method: Cow::Borrowed(call.subject.method()),
                params: Some(call.params.clone()),
                rename: Some(Rename {
                    at: call.name_at.clone(),
                    to: Arc::clone(&to),
                }),
                progress_at: None,
                reply_id: call.id.clone(),
                deadline,
                caller: None,
                trace: None,
                key: None,
                on_behalf: None,
                era: Era::Legacy,
                mirrors: None,
            };
            let answer = self.link.request(request).await;
            answered += u32::from(black_box(answer).is_ok());
        }
        answered
    }
}

/// Opens a trail that is thrown away at once, as far as others see; its thread runs beside ours,
/// and what it does is not ours.
fn trail(clock: &SystemClock) -> std::io::Result<Arc<dyn Audit>> {
    let name = format!("bowline-gates-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory)?;
    let (limits, clock) = (Limits::default(), Arc::new(*clock));
    let trail = audit::open(&directory, limits, clock, Shows::default());
    let trail = trail.map_err(std::io::Error::other)?;
    std::fs::remove_dir_all(&directory)?;
    Ok(Arc::new(trail))
}

fn real_dial(tasks: &Tasks) -> std::io::Result<Arc<dyn Dial>> {
    let http = HyperClient::new(ClientLimits::default()).map_err(std::io::Error::other)?;
    Ok(Arc::new(RealDial {
        spawner: tasks.clone(),
        client: ClientInfo {
            name: "gates".into(),
            version: "1".into(),
        },
        http: Arc::new(http),
        executors: Executors::new(
            tasks.clone(),
            Arc::new(SystemClock::start()),
            ExecutorsOptions::default(),
        ),
        stdio_limits: StdioLimits::default(),
        http_limits: HttpLimits::default(),
        eras: Eras::default(),
        launcher: None,
        instance: None,
    }))
}

fn call(principal: Arc<Principal>, tool: &str, arguments: &str) -> Call {
    let start = "{\"name\":";
    Call {
        principal,
        scope: Scope::All,
        subject: Subject::Tool(tool.into()),
        params: format!("{start}\"{tool}\",\"arguments\":{arguments}}}").into(),
        name_at: start.len()..start.len() + tool.len() + 2,
        makes_task: false,
        progress_at: None,
        id: Bytes::from_static(b"1"),
        deadline: None,
        caller: None,
        trace: None,
        run: None,
        key: None,
        stateless: None,
    }
}

/// So many roles, one of them the caller's, with all that can be said of one but conditions.
fn policy(roles: usize) -> Policy {
    let patterns = |all: &[&str]| {
        all.iter()
            .filter_map(|one| Pattern::parse(one).ok())
            .collect()
    };
    let hour = Duration::from_secs(3_600);
    let rules = || RoleRules {
        allow: patterns(&["other.*", "null.do", "null.k*", "null.looked"]),
        deny: patterns(&["null.write_*"]),
        when: Vec::new(),
        allowance: Allowance {
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
        Policy::new(Otherwise::Deny).with_role("reader", rules()),
        |policy, name| policy.with_role(&name, rules()),
    )
}

/// Returns the CPU time that each call took in this process. Everything runs on this one thread;
/// what a server does meanwhile is not ours, and neither is waiting for it.
async fn nanos(work: impl Future<Output = u32>) -> f64 {
    let begun = cpu_nanos();
    let answered = work.await;
    (cpu_nanos() - begun) / f64::from(answered)
}

/// Says how long this thread has run.
fn cpu_nanos() -> f64 {
    let ran = clock_gettime(ClockId::ThreadCPUTime);
    ran.tv_sec as f64 * 1e9 + ran.tv_nsec as f64
}

/// Measures kinds in turn.
async fn measure(kinds: &[(&'static str, Kind)]) -> std::io::Result<String> {
    let mut benches = Vec::new();
    for (name, kind) in kinds.iter().copied() {
        benches.push((name, Bench::start(kind).await?, f64::INFINITY));
    }
    for _ in 0..ROUNDS {
        for (_, bench, best) in &mut benches {
            *best = nanos(bench.run(bench.kind.calls())).await.min(*best);
        }
    }
    let all: Vec<_> = benches
        .iter()
        .map(|(name, _, best)| format!("\"{name}\":{best:.0}"))
        .collect();
    Ok(format!("{{{}}}", all.join(",")))
}

/// Returns those kinds in which the eras of caller and server are looked at.
fn eras() -> Vec<(&'static str, Kind)> {
    let mut kinds = KINDS.to_vec();
    kinds.retain(|(_, kind)| *kind != Kind::LiveHit && kind.eras().is_some());
    kinds
}

fn main() -> std::io::Result<()> {
    let mut words = std::env::args().skip(1);
    let (kind, calls) = (words.next(), words.next());
    if kind.as_deref() == Some("serve") {
        return child::serve(match calls.as_deref() {
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
                Ok(bench.run(calls).await.to_string())
            }
            None if kind == Some("eras") => measure(&eras()).await,
            None if kind == Some("finding") => measure(&[("find", Kind::Find)]).await,
            None => measure(&KINDS).await,
        }
    });
    writeln!(std::io::stdout(), "{}", said?)
}
