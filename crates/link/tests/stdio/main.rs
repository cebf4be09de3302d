//! Stdio links with real child processes: start, calls, exit.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::ServerResponse;
use bowline_core::era::Era;
use bowline_link::sandbox::SandboxPolicy;
use bowline_link::{
    ChildLimits, ClientInfo, EraNegotiation, Link, LinkConnectError, LinkError, LinkEvent,
    LinkRequest, LogSequencer, ReaperCommand, StderrLimits, StderrLog, StdioLimits, StdioSpec,
    connect,
};
use bowline_testkit::{
    DetachedSpawner, deadline_after, test_deadline, wait_bounded, wait_process_exit,
};
use bytes::Bytes;
use tokio::sync::mpsc;

mod process_end;
mod reaping;
mod stdio_calls;
mod stdio_limits;
mod stdio_modern;
mod stdio_start;

/// Shell script of the handshake: response to `initialize`, then `initialized`.
const HELLO: &str = r#"
read -r init
printf '%s' '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18",'
printf '%s\n' '"capabilities":{},"serverInfo":{"name":"t","version":"1.2"}}}'
read -r initialized
"#;

/// Responds to the first call, with id 2.
const ANSWER: &str = r#"printf '%s\n' '{"jsonrpc":"2.0","id":2,"result":"done"}'"#;

/// A server configuration and the stderr log.
struct StdioScene {
    spec: StdioSpec,
    log: Arc<StderrLog>,
}

type StdioOutcome = Result<(Arc<dyn Link>, mpsc::Receiver<LinkEvent>), LinkConnectError>;

/// With or without a reaper.
#[derive(Clone, Copy, Debug)]
enum ReaperMode {
    Nothing,
    Reaper,
}

const BOTH: [ReaperMode; 2] = [ReaperMode::Nothing, ReaperMode::Reaper];

impl StdioScene {
    /// Returns a server from a shell script.
    fn from_script(behind: ReaperMode, script: &str) -> Self {
        Self::from_program(behind, "sh", &["-c", script])
    }

    /// Returns a server from a script after the handshake.
    fn from_server_script(behind: ReaperMode, script: &str) -> Self {
        Self::from_script(behind, &format!("{HELLO}{script}"))
    }

    fn from_program(behind: ReaperMode, command: &str, args: &[&str]) -> Self {
        let path = std::env::var_os("PATH").unwrap();
        let reaper = ReaperCommand {
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
                ReaperMode::Nothing => None,
                ReaperMode::Reaper => Some(reaper),
            },
            child_limits: ChildLimits::default(),
            sandbox: SandboxPolicy::allow_all(),
            launcher: None,
            instance: None,
            owner: None,
            negotiation: EraNegotiation::Only(Era::Legacy),
            limits: StdioLimits::default(),
        };
        let limits = StderrLimits::default();
        let log = StderrLog::new("files".into(), LogSequencer::new(|| 0), limits);
        Self { spec, log }
    }

    async fn connect(&self) -> StdioOutcome {
        self.connect_within(Duration::from_secs(30)).await
    }

    async fn connect_within(&self, wait: Duration) -> StdioOutcome {
        let client = ClientInfo {
            name: "probe".into(),
            version: "9".into(),
        };
        connect(
            &self.spec,
            self.log.clone(),
            client,
            deadline_after(wait),
            &DetachedSpawner,
        )
        .await
    }

    async fn connect_link(&self) -> Arc<dyn Link> {
        self.connect().await.unwrap().0
    }

    /// Waits for this number of stderr lines.
    async fn wait_lines(&self, count: usize) -> Vec<String> {
        let mut newest = self.log.sequencer().subscribe();
        let written = newest.wait_for(|seq| *seq >= count as u64);
        wait_bounded(written).await.unwrap();
        self.stderr_texts()
    }

    fn stderr_texts(&self) -> Vec<String> {
        let lines = self.log.read_after(0, usize::MAX);
        lines.iter().map(|line| line.text.to_string()).collect()
    }
}

fn tool_request(params: impl Into<Bytes>) -> LinkRequest {
    let mut request = LinkRequest::new_internal("tools/call", params.into(), test_deadline());
    request.message.id = Bytes::from_static(b"77");
    request
}

async fn call_tool(link: &dyn Link) -> Result<ServerResponse, LinkError> {
    link.request(tool_request("{}")).await
}

fn parse_pid(text: &str) -> u32 {
    text.trim().parse().unwrap()
}

/// Waits for the exit of a process, while the runtime goes on.
async fn wait_gone(pid: u32) {
    let waiting = move || wait_process_exit("the process exits", pid);
    tokio::task::spawn_blocking(waiting).await.unwrap();
}
