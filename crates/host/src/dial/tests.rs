//! Real servers, and what is remembered of how they speak.

use std::time::Duration;

use bowline_core::era::Era;
use bowline_link::http::Transport;
use bowline_link::http::credentials::Anonymous;
use bowline_link::http::endpoint::Endpoint;
use bowline_link::http::hyper_client::{ClientLimits, HyperClient};
use bowline_link::{Stamps, StderrLimits};

use super::*;
use crate::executor::ExecutorsOptions;
use crate::ports::SystemClock;
use crate::tasks::Tasks;

#[test]
fn a_link_takes_more_requests_than_its_server_may_have_calls() {
    for (limit, calls_max, expect) in [(256, 256, 320), (256, 1, 256), (1_024, 5_000, 5_064)] {
        let spec = ServerSpec {
            calls_max,
            ..ServerSpec::new("s", "s")
        };
        assert_eq!(in_flight_max(limit, &spec), expect);
    }
}

/// Responses to `server/discover`, and to `initialize`.
const MODERN: &str = r#"{"supportedVersions":["2026-07-28"],"capabilities":{}}"#;
const LEGACY: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#;

/// A server that says what it is asked to stderr, and responds with `discover` and `initialize`;
/// it refuses what they are `no` for, is quiet at `nothing` and ends at `exit`. All are one entry,
/// whatever they say.
fn server(discover: &str, initialize: &str) -> ServerSpec {
    let script = r#"
        say() {
          case "$1" in
            no) printf '%s\n' '{"jsonrpc":"2.0","id":'"$id"',"error":{"code":-32601,"message":"no"}}' ;;
            nothing) ;;
            exit) exit 3 ;;
            *) printf '%s\n' '{"jsonrpc":"2.0","id":'"$id"',"result":'"$1"'}' ;;
          esac
        }
        echo start >&2
        while read -r line; do
          id="${line#*\"id\":}"; id="${id%%,*}"
          case "$line" in
            *'"server/discover"'*) echo discover >&2; say "$DISCOVER" ;;
            *'"initialize"'*) echo initialize >&2; say "$INITIALIZE" ;;
          esac
        done"#;
    let mut child = ChildSpec::new("sh");
    child.args = vec!["-c".into(), script.into()];
    child.env = vec![
        ("PATH".into(), std::env::var_os("PATH").unwrap()),
        ("DISCOVER".into(), discover.into()),
        ("INITIALIZE".into(), initialize.into()),
    ];
    ServerSpec::reached("s", Reach::Child(child))
}

struct Rig {
    dial: RealDial<Tasks>,
    log: Arc<StderrLog>,
}

impl Rig {
    fn new() -> Self {
        let tasks = Tasks::default();
        let clock = Arc::new(SystemClock::start());
        let http = HyperClient::new(ClientLimits::default()).unwrap();
        let client = ClientInfo {
            name: "probe".into(),
            version: "1".into(),
        };
        Self {
            dial: RealDial {
                spawner: tasks.clone(),
                client,
                http: Arc::new(http),
                executors: Executors::new(tasks, clock, ExecutorsOptions::default()),
                stdio_limits: StdioLimits::default(),
                http_limits: HttpLimits::default(),
                eras: Eras::default(),
                launcher: None,
                instance: None,
            },
            log: StderrLog::new("s".into(), Stamps::new(|| 0), StderrLimits::default()),
        }
    }

    /// Meets the server. Returns what came of it, and what the server was asked.
    #[expect(clippy::disallowed_methods, reason = "tests own their clock")]
    async fn meet(&self, spec: &ServerSpec) -> (Result<Era, ConnectError>, Vec<String>) {
        let before = self.log.stamps().newest();
        let deadline = Instant::now() + Duration::from_secs(30);
        let dialled = self.dial.dial(spec, &self.log, None, deadline).await;
        let met = match dialled {
            Ok((link, _)) => {
                let era = link.era();
                link.close().await;
                Ok(era)
            }
            Err(error) => Err(error),
        };
        let lines = self.log.read(before, usize::MAX);
        let asked = lines.iter().map(|line| line.text.to_string());
        (met, asked.collect())
    }
}

#[tokio::test]
async fn one_process_tells_how_a_server_speaks() {
    for (spec, era, asked) in [
        (
            server(MODERN, "no"),
            Era::Modern,
            &["start", "initialize", "discover"][..],
        ),
        (
            server("no", LEGACY),
            Era::Legacy,
            &["start", "initialize"][..],
        ),
        // It says nothing to what it does not know, and is never asked.
        (
            server("nothing", LEGACY),
            Era::Legacy,
            &["start", "initialize"],
        ),
        (
            server(MODERN, LEGACY),
            Era::Legacy,
            &["start", "initialize"],
        ),
    ] {
        let rig = Rig::new();
        for _ in 0..3 {
            let (met, heard) = rig.meet(&spec).await;
            assert_eq!((met.unwrap(), &heard[..]), (era, &words(asked)[..]));
        }
    }
}

fn words(asked: &[&str]) -> Vec<String> {
    asked.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn changed_era_is_found_on_same_process() {
    let rig = Rig::new();
    let (modern, legacy) = (server(MODERN, "no"), server("no", LEGACY));
    for (spec, era, asked) in [
        (&legacy, Era::Legacy, &["start", "initialize"][..]),
        (&modern, Era::Modern, &["start", "initialize", "discover"]),
        (&modern, Era::Modern, &["start", "initialize", "discover"]),
        (&legacy, Era::Legacy, &["start", "initialize", "discover"]),
        (&legacy, Era::Legacy, &["start", "initialize"]),
    ] {
        let (met, said) = rig.meet(spec).await;
        let said = said.iter().map(String::as_str);
        let said: Vec<_> = said.take(asked.len()).collect();
        assert_eq!((met.unwrap(), &said[..]), (era, asked));
    }
}

#[tokio::test]
async fn ended_processes_are_discovered_in_turn() {
    let rig = Rig::new();
    let spec = server(MODERN, "exit");
    let met_by_initialize = &["start", "initialize"][..];
    for (meets, asked) in [
        (false, met_by_initialize),
        (false, met_by_initialize),
        (true, &["start", "discover"]),
        (false, met_by_initialize),
        (true, &["start", "discover"]),
    ] {
        let (met, said) = rig.meet(&spec).await;
        assert_eq!((met.is_ok(), said), (meets, words(asked)));
    }
}

#[tokio::test]
async fn recalled_modern_server_waits_for_nothing() {
    let (rig, spec) = (Rig::new(), server(MODERN, "nothing"));
    rig.dial.recall_era(&spec, Era::Modern);
    assert_eq!(
        rig.dial.eras.opening(&spec),
        Opening::Remembered(Era::Modern)
    );
    let (met, asked) = rig.meet(&spec).await;
    assert_eq!(met.unwrap(), Era::Modern);
    assert_eq!(asked, ["start", "initialize", "discover"]);
    // What was seen in this life counts for more.
    rig.dial.recall_era(&spec, Era::Legacy);
    assert_eq!(
        rig.dial.eras.opening(&spec),
        Opening::Remembered(Era::Modern)
    );
}

#[tokio::test]
async fn what_the_configuration_says_is_neither_asked_nor_doubted() {
    let rig = Rig::new();
    let pinned = |era| ServerSpec {
        speaks: Speaks::Only(era),
        ..server(MODERN, LEGACY)
    };
    let (met, asked) = rig.meet(&pinned(Era::Legacy)).await;
    assert_eq!(
        (met.unwrap(), asked),
        (Era::Legacy, words(&["start", "initialize"]))
    );
    let (met, asked) = rig.meet(&pinned(Era::Modern)).await;
    assert_eq!(
        (met.unwrap(), asked),
        (Era::Modern, words(&["start", "discover"]))
    );
    let refusing = ServerSpec {
        speaks: Speaks::Only(Era::Modern),
        ..server("no", LEGACY)
    };
    let (met, asked) = rig.meet(&refusing).await;
    assert!(matches!(met, Err(ConnectError::BadHandshake { .. })));
    assert_eq!(asked, ["start", "discover"]);
}

#[test]
fn a_process_that_answers_nothing_is_not_asked_the_next_time() {
    let remote = Reach::Remote(RemoteSpec {
        url: Endpoint::parse("http://127.0.0.1:9/mcp").unwrap(),
        transport: Transport::Auto,
        credentials: Arc::new(Anonymous),
        via: None,
    });
    for (reach, later) in [
        (
            Reach::Child(ChildSpec::new("sh")),
            Opening::Remembered(Era::Legacy),
        ),
        // Of an address it may be an outage.
        (remote, Opening::Unknown),
    ] {
        let (eras, spec) = (Eras::default(), ServerSpec::reached("s", reach));
        let late = || {
            Err(ConnectError::HandshakeTimeout {
                server: "s".into(),
                stderr_tail: Vec::new(),
            })
        };
        assert_eq!(eras.learn(&spec, eras.opening(&spec), &late()), None);
        assert_eq!(eras.opening(&spec), later);
        // That was not the reason either.
        assert_eq!(eras.learn(&spec, eras.opening(&spec), &late()), None);
        assert_eq!(eras.opening(&spec), Opening::Unknown);
    }
}
