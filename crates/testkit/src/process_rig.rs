//! A gateway session with an executor service that runs real processes, over a cuttable wire.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::era::Era;
use bowline_core::sync::lock;
use bowline_executor::connection::{ExecutorSession, ExecutorTunnel, RemoteProcess, receive_hello};
use bowline_executor::flow::FlowLimits;
use bowline_executor::{ExecutorLimits, ExecutorOffer, ExecutorService};
use bowline_link::sandbox::SandboxPolicy;
use bowline_link::stdio::{LinkConnectError, ProcessSpawner};
use bowline_link::websocket::{WebSocketRole, open_websocket};
use bowline_link::{ChildLimits, EraNegotiation, LinkError, StdioLimits, StdioSpec};
use bowline_runtime::{SystemClock, TaskTracker};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::{spawn_task, tcp_pair, test_deadline, wait_bounded};

/// One executor, and one gateway session.
#[derive(Debug)]
pub struct ProcessRig {
    pub servant: ExecutorService,
    pub tasks: TaskTracker,
    limits: ExecutorLimits,
    session: Arc<ExecutorSession>,
    line: Mutex<Option<CuttableConnection>>,
}

/// A connection with a cut switch.
#[derive(Debug)]
struct CuttableConnection {
    tunnel: Arc<ExecutorTunnel>,
    cut: watch::Sender<usize>,
    attending: tokio::task::JoinHandle<()>,
}

impl ProcessRig {
    /// An executor with one server, a shell script.
    pub async fn script(script: &str) -> Self {
        Self::with(&[("s", script)], Duration::from_secs(30)).await
    }

    /// An executor with this session retention.
    pub async fn with(scripts: &[(&str, &str)], keep: Duration) -> Self {
        let mut offer = ExecutorOffer::new("office");
        offer.limits.session_retention = keep;
        for (name, script) in scripts {
            offer.servers.insert((*name).into(), spec(name, script));
        }
        let (tasks, limits) = (TaskTracker::default(), offer.limits);
        let clock = Arc::new(SystemClock::start());
        let rig = Self {
            servant: ExecutorService::new(offer, tasks.clone(), clock),
            tasks,
            limits,
            session: session("one"),
            line: Mutex::new(None),
        };
        rig.reconnect().await;
        rig
    }

    /// The same executor with a new session, as from a restarted gateway.
    pub async fn another_session(mut self) -> Self {
        self.session = session("two");
        self.reconnect().await;
        self
    }

    /// Connects or reconnects, and resumes.
    pub async fn reconnect(&self) {
        self.reconnect_until(usize::MAX).await;
    }

    /// Connects, with a cut after this number of bytes.
    pub async fn reconnect_until(&self, bytes: usize) {
        let old = lock(&self.line).take();
        if let Some(old) = old {
            old.cut.send_replace(0);
            let _ = old.attending.await;
        }
        let (cut, is_cut) = watch::channel(usize::MAX);
        let (ours, theirs) = wire(bytes, is_cut).await;
        let (servant, socket) = (self.servant.clone(), self.limits.socket);
        let served = open_websocket(
            theirs,
            WebSocketRole::Client,
            Bytes::new(),
            socket,
            &self.tasks,
        );
        let attending = spawn_task(async move {
            servant.serve_gateway(served).await;
        });
        let mut socket = open_websocket(
            ours,
            WebSocketRole::Server,
            Bytes::new(),
            socket,
            &self.tasks,
        );
        let hello = wait_bounded(receive_hello(&mut socket.receiver))
            .await
            .unwrap();
        let attached = self.session.attach();
        let tunnel = ExecutorTunnel::open(&hello, attached, socket, &self.tasks);
        let tunnel = Arc::new(wait_bounded(tunnel).await.unwrap());
        *lock(&self.line) = Some(CuttableConnection {
            tunnel,
            cut,
            attending,
        });
    }

    /// Cuts the connection, and waits until both sides noticed.
    pub async fn cut(&self) {
        let line = lock(&self.line).take().unwrap();
        line.cut.send_replace(0);
        wait_bounded(bowline_executor::connection::ExecutorConnection::wait_closed(&*line.tunnel))
            .await;
        wait_bounded(line.attending).await.unwrap();
    }

    /// Waits until the connection is cut.
    pub async fn cut_by_itself(&self) {
        let line = lock(&self.line).take().unwrap();
        wait_bounded(bowline_executor::connection::ExecutorConnection::wait_closed(&*line.tunnel))
            .await;
        wait_bounded(line.attending).await.unwrap();
    }

    /// The gateway gives up the executor.
    pub fn give_up(&self) {
        self.session.end("it was away for too long");
    }

    pub fn tunnel(&self) -> Arc<ExecutorTunnel> {
        let line = lock(&self.line);
        Arc::clone(&line.as_ref().unwrap().tunnel)
    }

    pub async fn start(&self, server: &str) -> Result<RemoteProcess, LinkError> {
        wait_bounded(self.tunnel().start_server(server, test_deadline())).await
    }
}

impl ProcessSpawner for ProcessRig {
    type ServerProcess = RemoteProcess;

    fn spawn(&self, _deadline: Instant) -> BoxFuture<'_, Result<RemoteProcess, LinkConnectError>> {
        Box::pin(async {
            self.start("s")
                .await
                .map_err(|source| LinkConnectError::Refused {
                    server: "s".into(),
                    source,
                })
        })
    }
}

fn session(id: &str) -> Arc<ExecutorSession> {
    ExecutorSession::new(id.into(), "instance".into(), FlowLimits::default())
}

/// A shell script as a server.
pub fn spec(name: &str, script: &str) -> StdioSpec {
    let path = std::env::var_os("PATH").unwrap();
    StdioSpec {
        server: name.into(),
        command: "sh".into(),
        args: vec!["-c".into(), script.into()],
        env: vec![("PATH".into(), path)],
        cwd: None,
        reaper: None,
        child_limits: ChildLimits::default(),
        sandbox: SandboxPolicy::allow_all(),
        launcher: None,
        instance: None,
        owner: None,
        negotiation: EraNegotiation::Only(Era::Legacy),
        limits: StdioLimits {
            stop_stdin: Duration::from_millis(500),
            stop_term: Duration::from_millis(500),
            ..StdioLimits::default()
        },
    }
}

/// Two ends of a wire, cut after this number of bytes or on command.
async fn wire(bytes: usize, cut: watch::Receiver<usize>) -> (TcpStream, TcpStream) {
    let (ours, one) = tcp_pair().await;
    let (two, theirs) = tcp_pair().await;
    let left = Arc::new(AtomicUsize::new(bytes));
    spawn_task(async move {
        let (mut from_one, mut to_one) = one.into_split();
        let (mut from_two, mut to_two) = two.into_split();
        let mut cut = cut;
        tokio::select! {
            () = copy_until_cut(&mut from_one, &mut to_two, &left) => {}
            () = copy_until_cut(&mut from_two, &mut to_one, &left) => {}
            _ = cut.wait_for(|left| *left == 0) => {}
        }
    });
    (ours, theirs)
}

/// Copies bytes up to the limit: the cut may split a frame.
async fn copy_until_cut(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    left: &AtomicUsize,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let take = |left: usize| Some(left - count.min(left));
        let had = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let count_allowed = count.min(had.unwrap());
        if to.write_all(&buffer[..count_allowed]).await.is_err() || count_allowed < count {
            return;
        }
    }
}

/// A named pipe held open by a process for its lifetime.
#[derive(Debug)]
pub struct LifetimePipe {
    _directory: tempfile::TempDir,
    path: PathBuf,
    pipe: pipe::Receiver,
}

impl LifetimePipe {
    pub fn create() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("leash");
        let made = Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let pipe = pipe::OpenOptions::new().open_receiver(&path).unwrap();
        Self {
            _directory: directory,
            path,
            pipe,
        }
    }

    /// Shell command that opens the pipe and first writes a line.
    pub fn hold_command(&self) -> String {
        format!("exec 9>{}; echo here >&9", quoted(&self.path))
    }

    /// Waits until a process holds the pipe.
    pub async fn wait_held(&mut self) {
        let mut here = [0; 5];
        wait_bounded(self.pipe.read_exact(&mut here)).await.unwrap();
        assert_eq!(&here, b"here\n");
    }

    /// Waits until no process holds the pipe.
    pub async fn wait_released(&mut self) {
        let mut rest = Vec::new();
        wait_bounded(self.pipe.read_to_end(&mut rest))
            .await
            .unwrap();
    }
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}
