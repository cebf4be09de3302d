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

/// Answers to the question how it speaks, and to a handshake.
const MODERN: &str = r#"'{"supportedVersions":["2026-07-28"],"capabilities":{}}'"#;
const LEGACY: &str = r#"'{"protocolVersion":"2025-11-25","capabilities":{}}'"#;

/// What a server of the modern era alone hears at first, of two processes.
const MODERN_ONLY: [&str; 4] = ["discover", "initialize", "initialize", "discover"];

/// A server that says what it is asked to stderr, and answers with `discover` and `initialize`
/// where they are given; it refuses what they are `no` for.
fn server(discover: &str, initialize: &str) -> ServerSpec {
    let script = format!(
        r#"
        say() {{
          case "$1" in
            no) printf '%s\n' '{{"jsonrpc":"2.0","id":'"$id"',"error":{{"code":-32601,"message":"no"}}}}' ;;
            nothing) ;;
            *) printf '%s\n' '{{"jsonrpc":"2.0","id":'"$id"',"result":'"$1"'}}' ;;
          esac
        }}
        while read -r line; do
          id="${{line#*\"id\":}}"; id="${{id%%,*}}"
          case "$line" in
            *'"server/discover"'*) echo discover >&2; say {discover} ;;
            *'"initialize"'*) echo initialize >&2; say {initialize} ;;
          esac
        done"#
    );
    let mut child = ChildSpec::new("sh");
    child.args = vec!["-c".into(), script.into()];
    child.env = vec![("PATH".into(), std::env::var_os("PATH").unwrap())];
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
async fn a_server_is_asked_once_how_it_speaks() {
    for (spec, era, first, later) in [
        (
            server(MODERN, "no"),
            Era::Modern,
            &MODERN_ONLY[..],
            "discover",
        ),
        (
            server("no", LEGACY),
            Era::Legacy,
            &["discover", "initialize"][..],
            "initialize",
        ),
        // It says nothing to what it does not know, and is waited for once.
        (
            server("nothing", LEGACY),
            Era::Legacy,
            &["discover", "initialize"],
            "initialize",
        ),
        (
            server(MODERN, LEGACY),
            Era::Legacy,
            &["discover", "initialize"],
            "initialize",
        ),
    ] {
        let rig = Rig::new();
        let (met, asked) = rig.meet(&spec).await;
        assert_eq!(
            (met.unwrap(), &asked[..]),
            (
                era,
                &first.iter().map(ToString::to_string).collect::<Vec<_>>()[..]
            )
        );
        for _ in 0..2 {
            let (met, asked) = rig.meet(&spec).await;
            assert_eq!((met.unwrap(), asked), (era, vec![later.to_owned()]));
        }
    }
}

#[tokio::test]
async fn a_server_replaced_by_one_of_the_other_era_is_found_again() {
    let rig = Rig::new();
    let (modern, legacy) = (server(MODERN, "no"), server("no", LEGACY));
    for (spec, era, asked) in [
        (&legacy, Era::Legacy, &["discover", "initialize"][..]),
        (
            &modern,
            Era::Modern,
            &[
                "initialize",
                "discover",
                "initialize",
                "initialize",
                "discover",
            ],
        ),
        (&modern, Era::Modern, &["discover"]),
        // Refused, asked anew, and met.
        (
            &legacy,
            Era::Legacy,
            &["discover", "discover", "initialize"],
        ),
        (&legacy, Era::Legacy, &["initialize"]),
    ] {
        let (met, said) = rig.meet(spec).await;
        assert_eq!(
            (met.unwrap(), said),
            (era, asked.iter().map(ToString::to_string).collect())
        );
    }
}

#[tokio::test]
async fn a_server_that_ended_is_asked_anew_the_next_time() {
    let rig = Rig::new();
    let (met, _) = rig.meet(&server("no", LEGACY)).await;
    assert_eq!(met.unwrap(), Era::Legacy);
    let mut broken = ChildSpec::new("false");
    broken.env = vec![("PATH".into(), std::env::var_os("PATH").unwrap())];
    let broken = ServerSpec::reached("s", Reach::Child(broken));
    let (met, _) = rig.meet(&broken).await;
    assert!(matches!(
        met,
        Err(ConnectError::ExitedBeforeHandshake { .. })
    ));
    let (met, asked) = rig.meet(&server(MODERN, "no")).await;
    assert_eq!(
        (met.unwrap(), asked),
        (Era::Modern, MODERN_ONLY.map(str::to_owned).to_vec())
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
        (Era::Legacy, vec!["initialize".to_owned()])
    );
    let (met, asked) = rig.meet(&pinned(Era::Modern)).await;
    assert_eq!(
        (met.unwrap(), asked),
        (Era::Modern, vec!["discover".to_owned()])
    );
    let refusing = ServerSpec {
        speaks: Speaks::Only(Era::Modern),
        ..server("no", LEGACY)
    };
    let (met, asked) = rig.meet(&refusing).await;
    assert!(matches!(met, Err(ConnectError::BadHandshake { .. })));
    assert_eq!(asked, ["discover"]);
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
            Speaks::Only(Era::Legacy),
        ),
        // Of an address it may be an outage.
        (remote, Speaks::Auto),
    ] {
        let (eras, spec) = (Eras::default(), ServerSpec::reached("s", reach));
        let late = || {
            Err(ConnectError::HandshakeTimeout {
                server: "s".into(),
                stderr_tail: Vec::new(),
            })
        };
        assert_eq!(eras.learn(&spec, eras.guess(&spec), &late()), None);
        assert_eq!(eras.guess(&spec).speaks, later);
        // That was not the reason either.
        assert_eq!(eras.learn(&spec, eras.guess(&spec), &late()), None);
        assert_eq!(eras.guess(&spec).speaks, Speaks::Auto);
    }
}
