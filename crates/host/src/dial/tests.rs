//! Tests of handshakes with real processes, and of the era cache.

use std::time::Duration;

use bowline_core::era::{Era, EraSetting};
use bowline_executor::{ExecutorRegistry, ExecutorRegistryOptions};
use bowline_link::http::HttpTransport;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::upstream_credentials::NoCredentials;
use bowline_link::{LogSequencer, StderrLimits};
use bowline_runtime::{SystemClock, TaskTracker};

use super::*;
use crate::spec::RemoteSpec;

#[test]
fn link_limit_exceeds_call_limit() {
    for (limit, calls_max, expect) in [(256, 256, 320), (256, 1, 256), (1_024, 5_000, 5_064)] {
        let spec = ServerSpec {
            calls_max,
            ..ServerSpec::new("s", "s")
        };
        assert_eq!(in_flight_max(limit, &spec), expect);
    }
}

/// Responses to `server/discover` and to `initialize`.
const MODERN: &str = r#"{"supportedVersions":["2026-07-28"],"capabilities":{}}"#;
const LEGACY: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{}}"#;

/// A server that logs its requests to stderr and responds with `discover` and `initialize`; refuses
/// for `no`, ignores for `nothing` and exits for `exit`. All variants share a cache entry.
fn scripted_server(discover: &str, initialize: &str) -> ServerSpec {
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
    ServerSpec::with_transport("s", ServerTransport::Child(child))
}

struct DialRig {
    dial: RealDial,
    log: Arc<StderrLog>,
}

impl DialRig {
    fn new() -> Self {
        let tasks = TaskTracker::default();
        let clock = Arc::new(SystemClock::start());
        let options = ExecutorRegistryOptions::default();
        let registry = ExecutorRegistry::new(tasks.clone(), clock, options);
        let client = ClientInfo {
            name: "probe".into(),
            version: "1".into(),
        };
        Self {
            dial: RealDial {
                tasks,
                client,
                http: Some(Arc::new(HttpDial::new().unwrap())),
                executors: Some(Arc::new(ExecutorDial::new(registry))),
                stdio_limits: StdioLimits::default(),
                eras: EraCache::default(),
                launcher: None,
                instance: None,
            },
            log: StderrLog::new("s".into(), LogSequencer::new(|| 0), StderrLimits::default()),
        }
    }

    /// Connects to the server. Returns the era and the requests seen by the server.
    #[expect(clippy::disallowed_methods, reason = "tests own their clock")]
    async fn connect(&self, spec: &ServerSpec) -> (Result<Era, LinkConnectError>, Vec<String>) {
        let before = self.log.sequencer().newest_seq();
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
        let lines = self.log.read_after(before, usize::MAX);
        let asked = lines.iter().map(|line| line.text.to_string());
        (met, asked.collect())
    }
}

#[tokio::test]
async fn single_process_reveals_era() {
    for (spec, era, asked) in [
        (
            scripted_server(MODERN, "no"),
            Era::Modern,
            &["start", "initialize", "discover"][..],
        ),
        (
            scripted_server("no", LEGACY),
            Era::Legacy,
            &["start", "initialize"][..],
        ),
        // Ignores unknown methods, and never receives one.
        (
            scripted_server("nothing", LEGACY),
            Era::Legacy,
            &["start", "initialize"],
        ),
        (
            scripted_server(MODERN, LEGACY),
            Era::Legacy,
            &["start", "initialize"],
        ),
    ] {
        let rig = DialRig::new();
        for _ in 0..3 {
            let (met, heard) = rig.connect(&spec).await;
            assert_eq!((met.unwrap(), &heard[..]), (era, &to_strings(asked)[..]));
        }
    }
}

fn to_strings(asked: &[&str]) -> Vec<String> {
    asked.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn changed_era_is_found_on_same_process() {
    let rig = DialRig::new();
    let (modern, legacy) = (scripted_server(MODERN, "no"), scripted_server("no", LEGACY));
    for (spec, era, asked) in [
        (&legacy, Era::Legacy, &["start", "initialize"][..]),
        (&modern, Era::Modern, &["start", "initialize", "discover"]),
        (&modern, Era::Modern, &["start", "initialize", "discover"]),
        (&legacy, Era::Legacy, &["start", "initialize", "discover"]),
        (&legacy, Era::Legacy, &["start", "initialize"]),
    ] {
        let (met, said) = rig.connect(spec).await;
        let said = said.iter().map(String::as_str);
        let said: Vec<_> = said.take(asked.len()).collect();
        assert_eq!((met.unwrap(), &said[..]), (era, asked));
    }
}

#[tokio::test]
async fn ended_processes_are_discovered_in_turn() {
    let rig = DialRig::new();
    let spec = scripted_server(MODERN, "exit");
    let met_by_initialize = &["start", "initialize"][..];
    for (meets, asked) in [
        (false, met_by_initialize),
        (false, met_by_initialize),
        (true, &["start", "discover"]),
        (false, met_by_initialize),
        (true, &["start", "discover"]),
    ] {
        let (met, said) = rig.connect(&spec).await;
        assert_eq!((met.is_ok(), said), (meets, to_strings(asked)));
    }
}

#[tokio::test]
async fn recalled_modern_server_waits_for_nothing() {
    let (rig, spec) = (DialRig::new(), scripted_server(MODERN, "nothing"));
    rig.dial.restore_era(&spec, Era::Modern);
    assert_eq!(
        rig.dial.eras.opening(&spec),
        EraNegotiation::Remembered(Era::Modern)
    );
    let (met, asked) = rig.connect(&spec).await;
    assert_eq!(met.unwrap(), Era::Modern);
    assert_eq!(asked, ["start", "initialize", "discover"]);
    // The era seen in this run wins.
    rig.dial.restore_era(&spec, Era::Legacy);
    assert_eq!(
        rig.dial.eras.opening(&spec),
        EraNegotiation::Remembered(Era::Modern)
    );
}

#[tokio::test]
async fn configured_era_is_used_without_probing() {
    let rig = DialRig::new();
    let pinned = |era| ServerSpec {
        era: EraSetting::Only(era),
        ..scripted_server(MODERN, LEGACY)
    };
    let (met, asked) = rig.connect(&pinned(Era::Legacy)).await;
    assert_eq!(
        (met.unwrap(), asked),
        (Era::Legacy, to_strings(&["start", "initialize"]))
    );
    let (met, asked) = rig.connect(&pinned(Era::Modern)).await;
    assert_eq!(
        (met.unwrap(), asked),
        (Era::Modern, to_strings(&["start", "discover"]))
    );
    let refusing = ServerSpec {
        era: EraSetting::Only(Era::Modern),
        ..scripted_server("no", LEGACY)
    };
    let (met, asked) = rig.connect(&refusing).await;
    assert!(matches!(met, Err(LinkConnectError::BadHandshake { .. })));
    assert_eq!(asked, ["start", "discover"]);
}

#[test]
fn handshake_timeout_changes_next_opening() {
    let remote = ServerTransport::Remote(RemoteSpec {
        url: HttpEndpoint::parse("http://127.0.0.1:9/mcp").unwrap(),
        transport: HttpTransport::Auto,
        credentials: Arc::new(NoCredentials),
        via: None,
    });
    for (reach, later) in [
        (
            ServerTransport::Child(ChildSpec::new("sh")),
            EraNegotiation::Remembered(Era::Legacy),
        ),
        // For an HTTP server it may be an outage.
        (remote, EraNegotiation::Unknown),
    ] {
        let (eras, spec) = (EraCache::default(), ServerSpec::with_transport("s", reach));
        let late = || {
            Err(LinkConnectError::HandshakeTimeout {
                server: "s".into(),
                stderr_tail: Vec::new(),
            })
        };
        assert_eq!(
            eras.record_handshake(&spec, eras.opening(&spec), &late()),
            None
        );
        assert_eq!(eras.opening(&spec), later);
        // The legacy era was not the reason either.
        assert_eq!(
            eras.record_handshake(&spec, eras.opening(&spec), &late()),
            None
        );
        assert_eq!(eras.opening(&spec), EraNegotiation::Unknown);
    }
}
