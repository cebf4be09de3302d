//! What the road adds to a call: calls over a link that answers at once, with the road and
//! without it.
//!
//! Without arguments, prints one JSON line with nanoseconds per call. With `road N`, `direct N` or
//! `none 0`, does just that many, for those who count instructions.

use std::borrow::Cow;
use std::hint::black_box;
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_core::call::{Body, Call, Principal, Role, Scope, Subject};
use bowline_core::caller::CallerEnd;
use bowline_host::manifest::Forgetful;
use bowline_host::pins::Unkept;
use bowline_host::ports::{Clock, Silent, SystemClock};
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::{Dial, Dialled, State};
use bowline_host::tasks::Tasks;
use bowline_host::{Host, HostLimits, Ports};
use bowline_link::stderr::StderrLog;
use bowline_link::{
    Answer, BoxFuture, ConnectError, Exit, Link, LinkError, Rename, Request, Revision, ServerInfo,
};
use bytes::Bytes;
use tokio::sync::mpsc;

/// Calls of one round.
const CALLS: u32 = 20_000;

/// Rounds of each kind; the quickest counts, since whatever else the machine does only adds.
const ROUNDS: usize = 15;

const TOOL: &str = "null__do";

const ANSWER: &[u8] = br#"{"jsonrpc":"2.0","id":1,"result":{"content":[]}}"#;
const BODY_AT: std::ops::Range<usize> = 33..47;

const LIST: &[u8] = br#"{"tools":[{"name":"do","inputSchema":{"type":"object"}}]}"#;

/// Answers everything at once.
#[derive(Debug)]
struct NullLink {
    info: ServerInfo,
}

impl Link for NullLink {
    fn request(&self, request: Request) -> BoxFuture<'_, Result<Answer, LinkError>> {
        Box::pin(async move {
            let (bytes, body_at) = match request.method.as_ref() {
                "tools/call" => (Bytes::from_static(ANSWER), BODY_AT),
                _ => (Bytes::from_static(LIST), 0..LIST.len()),
            };
            Ok(Answer {
                bytes,
                body_at,
                body: Body::Result,
            })
        })
    }

    fn notify(&self, _method: &str, _params: Option<&[u8]>) -> Result<(), LinkError> {
        Ok(())
    }

    fn is_open(&self) -> bool {
        true
    }

    fn closed(&self) -> BoxFuture<'_, Exit> {
        Box::pin(std::future::pending())
    }

    fn close(&self) -> BoxFuture<'_, Exit> {
        Box::pin(async { Exit::Status(0) })
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn server(&self) -> &ServerInfo {
        &self.info
    }
}

#[derive(Debug)]
struct NullDial(Arc<NullLink>);

impl Dial for NullDial {
    fn dial<'a>(
        &'a self,
        _spec: &'a ServerSpec,
        _log: &'a Arc<StderrLog>,
        _owner: Option<Arc<dyn CallerEnd>>,
        _deadline: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<Dialled, ConnectError>> {
        Box::pin(async move {
            let (_, events) = mpsc::channel(1);
            Ok((Arc::clone(&self.0) as Arc<dyn Link>, events))
        })
    }
}

/// One call, and both ways to make it.
struct Bench {
    host: Host,
    link: Arc<dyn Link>,
    clock: SystemClock,
    call: Call,
}

impl Bench {
    async fn start() -> Self {
        let initialize = br#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}"#;
        let link = Arc::new(NullLink {
            info: ServerInfo {
                revision: Revision::V2025_06_18,
                initialize: Bytes::from_static(initialize),
                name: "null".into(),
                version: "1".into(),
            },
        });
        let clock = SystemClock::start();
        let ports = Ports {
            dial: Arc::new(NullDial(Arc::clone(&link))),
            clock: Arc::new(clock),
            tasks: Tasks::default(),
            audience: Arc::new(Silent),
            manifests: Arc::new(Forgetful),
            pins: Arc::new(Unkept),
        };
        let spec = ServerSpec::new("null", "null");
        let host = Host::start(vec![spec], HostLimits::default(), ports);
        if let Ok(server) = host.server("null") {
            let mut states = server.state();
            // The sender lives as long as the supervisor does.
            let _gone = states.wait_for(|state| *state == State::Ready).await;
        }
        let start = "{\"name\":";
        let call = Call {
            principal: Arc::new(Principal::new("owner", Role::Owner)),
            scope: Scope::All,
            subject: Subject::Tool(TOOL.into()),
            params: format!("{start}\"{TOOL}\",\"arguments\":{{}}}}").into(),
            name_at: start.len()..start.len() + TOOL.len() + 2,
            makes_task: false,
            progress_at: None,
            id: Bytes::from_static(b"1"),
            deadline: None,
            caller: None,
            trace: None,
            run: None,
        };
        Self {
            host,
            link,
            clock,
            call,
        }
    }

    /// By the road: through every gate.
    async fn road(&self, calls: u32) -> u32 {
        let mut answered = 0;
        for _ in 0..calls {
            let reply = self.host.call(black_box(&self.call)).await;
            answered += u32::from(black_box(reply).is_ok());
        }
        answered
    }

    /// Straight over the link: what is left when there are no gates.
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
            };
            let answer = self.link.request(request).await;
            answered += u32::from(black_box(answer).is_ok());
        }
        answered
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "measures real time, on purpose and nowhere else"
)]
async fn nanos(work: impl Future<Output = u32>) -> f64 {
    let begun = Instant::now();
    let answered = work.await;
    begun.elapsed().as_secs_f64() * 1e9 / f64::from(answered)
}

async fn measure(bench: &Bench) -> String {
    let (mut road, mut direct) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        direct = nanos(bench.direct(CALLS)).await.min(direct);
        road = nanos(bench.road(CALLS)).await.min(road);
    }
    let added = road - direct;
    format!("{{\"road_ns\":{road:.0},\"direct_ns\":{direct:.0},\"added_ns\":{added:.0}}}")
}

fn main() -> std::io::Result<()> {
    let mut words = std::env::args().skip(1);
    let (kind, calls) = (words.next(), words.next());
    let calls = calls.and_then(|calls| calls.parse().ok()).unwrap_or(CALLS);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let said = runtime.block_on(async {
        let bench = Bench::start().await;
        match kind.as_deref() {
            Some("road") => bench.road(calls).await.to_string(),
            Some("direct") => bench.direct(calls).await.to_string(),
            Some(_) => "0".to_owned(),
            None => measure(&bench).await,
        }
    });
    writeln!(std::io::stdout(), "{said}")
}
