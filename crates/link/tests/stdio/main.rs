//! Real children over real pipes: start, calls, end.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]
#![cfg(target_os = "linux")]

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::era::Era;
use bowline_link::sandbox::Sandbox;
use bowline_link::{
    Answer, BoxFuture, ChildLimits, ClientInfo, ConnectError, Link, LinkError, LinkEvent, Opening,
    Reaper, Request, Spawner, Stamps, StderrLimits, StderrLog, StdioLimits, StdioSpec, connect,
};
use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::mpsc;
use tokio::time::Instant;

mod calls;
mod ends;
mod limits;
mod modern;
mod reaping;
mod starts;

/// What a server says to `initialize`, and how it hears that it may begin.
const HELLO: &str = r#"
read -r init
printf '%s' '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18",'
printf '%s\n' '"capabilities":{},"serverInfo":{"name":"t","version":"1.2"}}}'
read -r initialized
"#;

/// Answers the first call, which has the id 2.
const ANSWER: &str = r#"printf '%s\n' '{"jsonrpc":"2.0","id":2,"result":"done"}'"#;

/// One server and what is known of it.
struct Scene {
    spec: StdioSpec,
    log: Arc<StderrLog>,
}

type Connected = Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), ConnectError>;

/// Whether a reaper stands between.
#[derive(Clone, Copy, Debug)]
enum Behind {
    Nothing,
    Reaper,
}

const BOTH: [Behind; 2] = [Behind::Nothing, Behind::Reaper];

impl Scene {
    /// A server that is a shell script.
    fn script(behind: Behind, script: &str) -> Self {
        Self::program(behind, "sh", &["-c", script])
    }

    /// A script that shakes hands first.
    fn server(behind: Behind, script: &str) -> Self {
        Self::script(behind, &format!("{HELLO}{script}"))
    }

    fn program(behind: Behind, command: &str, args: &[&str]) -> Self {
        let path = std::env::var_os("PATH").unwrap();
        let reaper = Reaper {
            program: env!("CARGO_BIN_EXE_reaper-probe").into(),
            args: Vec::new(),
        };
        let spec = StdioSpec {
            server: "files".into(),
            command: command.into(),
            args: args.iter().map(Into::into).collect(),
            env: vec![("PATH".into(), path), ("GIVEN".into(), "yes".into())],
            cwd: None,
            reaper: match behind {
                Behind::Nothing => None,
                Behind::Reaper => Some(reaper),
            },
            child_limits: ChildLimits::default(),
            sandbox: Sandbox::off(),
            launcher: None,
            instance: None,
            owner: None,
            opening: Opening::Only(Era::Legacy),
            limits: StdioLimits::default(),
        };
        let limits = StderrLimits::default();
        let log = StderrLog::new("files".into(), Stamps::new(|| 0), limits);
        Self { spec, log }
    }

    async fn connect(&self) -> Connected {
        self.connect_within(Duration::from_secs(30)).await
    }

    async fn connect_within(&self, wait: Duration) -> Connected {
        let client = ClientInfo {
            name: "probe".into(),
            version: "9".into(),
        };
        connect(&self.spec, self.log.clone(), client, after(wait), &Tokio).await
    }

    async fn link(&self) -> Arc<dyn Link> {
        self.connect().await.unwrap().0
    }

    /// Waits until the server has written so many lines to stderr.
    async fn lines(&self, count: usize) -> Vec<String> {
        let mut newest = self.log.stamps().subscribe();
        let written = newest.wait_for(|seq| *seq >= count as u64);
        let written = tokio::time::timeout(Duration::from_secs(20), written).await;
        written.expect("lines on stderr").unwrap();
        self.texts()
    }

    fn texts(&self) -> Vec<String> {
        let lines = self.log.read(0, usize::MAX);
        lines.iter().map(|line| line.text.to_string()).collect()
    }
}

struct Tokio;

impl Spawner for Tokio {
    #[expect(clippy::disallowed_methods, reason = "tests have no task keeper")]
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
}

#[expect(clippy::disallowed_methods, reason = "tests own their clock")]
fn after(wait: Duration) -> Instant {
    Instant::now() + wait
}

fn request(params: impl Into<Bytes>) -> Request {
    Request {
        method: Cow::Borrowed("tools/call"),
        params: Some(params.into()),
        rename: None,
        progress_at: None,
        reply_id: Bytes::from_static(b"77"),
        deadline: after(Duration::from_secs(30)),
        caller: None,
        trace: None,
        key: None,
        on_behalf: None,
        era: Era::Legacy,
        mirrors: None,
    }
}

async fn call(link: &dyn Link) -> Result<Answer, LinkError> {
    link.request(request("{}")).await
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

/// Waits until a process has ended.
async fn gone(pid: Pid) {
    let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return;
    };
    let wait = move || {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let patience = Timespec {
            tv_sec: 20,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&patience)).unwrap()
    };
    let ended = tokio::task::spawn_blocking(wait).await.unwrap();
    assert_eq!(ended, 1, "process {pid:?} lives on");
}
