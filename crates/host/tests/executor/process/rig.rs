//! A gateway's session with a servant that runs real processes, over a wire that can be cut.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::era::Era;
use bowline_core::flow::FlowLimits;
use bowline_core::sync::lock;
use bowline_host::executor::{Offer, OfferLimits, Servant};
use bowline_host::ports::SystemClock;
use bowline_host::tasks::Tasks;
use bowline_link::executor::{Distant, Session, Tunnel, greet};
use bowline_link::sandbox::Sandbox;
use bowline_link::stdio::{ConnectError, Spawn};
use bowline_link::websocket::{Side, join};
use bowline_link::{BoxFuture, ChildLimits, LinkError, Opening, StdioLimits, StdioSpec};
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

/// Longer than anything here takes; a hang is told by it.
const SOON: Duration = Duration::from_secs(30);

pub(super) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, what).await.expect("in time")
}

pub(super) fn later() -> Instant {
    Instant::now() + SOON
}

/// One executor, and one session of a gateway with it.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) servant: Servant,
    pub(super) tasks: Tasks,
    limits: OfferLimits,
    session: Arc<Session>,
    line: Mutex<Option<Line>>,
}

/// A connection, and what cuts it.
#[derive(Debug)]
struct Line {
    tunnel: Arc<Tunnel>,
    cut: watch::Sender<usize>,
    attending: tokio::task::JoinHandle<()>,
}

impl Rig {
    /// An executor with one server, which is a shell script.
    pub(super) async fn script(script: &str) -> Self {
        Self::with(&[("s", script)], Duration::from_secs(30)).await
    }

    /// An executor that keeps a session so long.
    pub(super) async fn with(scripts: &[(&str, &str)], keep: Duration) -> Self {
        let mut offer = Offer::new("office");
        offer.limits.keep = keep;
        for (name, script) in scripts {
            offer.servers.insert((*name).into(), spec(name, script));
        }
        let (tasks, limits) = (Tasks::default(), offer.limits);
        let clock = Arc::new(SystemClock::start());
        let rig = Self {
            servant: Servant::new(offer, tasks.clone(), clock),
            tasks,
            limits,
            session: session("one"),
            line: Mutex::new(None),
        };
        rig.reconnect().await;
        rig
    }

    /// The same executor with another session, as of a gateway that was started again.
    pub(super) async fn another_session(mut self) -> Self {
        self.session = session("two");
        self.reconnect().await;
        self
    }

    /// Connects, or connects again; what is cut goes on.
    pub(super) async fn reconnect(&self) {
        self.reconnect_until(usize::MAX).await;
    }

    /// Connects; the connection is cut once so many bytes went over it.
    pub(super) async fn reconnect_until(&self, bytes: usize) {
        let old = lock(&self.line).take();
        if let Some(old) = old {
            old.cut.send_replace(0);
            let _ = old.attending.await;
        }
        let (cut, is_cut) = watch::channel(usize::MAX);
        let (ours, theirs) = wire(bytes, is_cut).await;
        let (servant, socket) = (self.servant.clone(), self.limits.socket);
        let io = join(theirs, Side::Client, Bytes::new(), socket, &self.tasks);
        let attending = tokio::spawn(async move {
            servant.attend(io).await;
        });
        let (outgoing, mut incoming) = join(ours, Side::Server, Bytes::new(), socket, &self.tasks);
        let hello = soon(greet(&mut incoming)).await.unwrap();
        let attached = self.session.attach();
        let tunnel = Tunnel::open(&hello, attached, (outgoing, incoming), &self.tasks);
        let tunnel = Arc::new(soon(tunnel).await.unwrap());
        *lock(&self.line) = Some(Line {
            tunnel,
            cut,
            attending,
        });
    }

    /// Cuts the connection, and waits until both sides have noticed.
    pub(super) async fn cut(&self) {
        let line = lock(&self.line).take().unwrap();
        line.cut.send_replace(0);
        soon(bowline_link::executor::Carrier::over(&*line.tunnel)).await;
        soon(line.attending).await.unwrap();
    }

    /// Waits until the connection is cut.
    pub(super) async fn cut_by_itself(&self) {
        let line = lock(&self.line).take().unwrap();
        soon(bowline_link::executor::Carrier::over(&*line.tunnel)).await;
        soon(line.attending).await.unwrap();
    }

    /// The gateway gives the executor up.
    pub(super) fn give_up(&self) {
        self.session.end("it was away for too long");
    }

    pub(super) fn tunnel(&self) -> Arc<Tunnel> {
        let line = lock(&self.line);
        Arc::clone(&line.as_ref().unwrap().tunnel)
    }

    pub(super) async fn start(&self, server: &str) -> Result<Distant, LinkError> {
        soon(self.tunnel().start(server, later())).await
    }
}

impl Spawn for Rig {
    type Process = Distant;

    fn spawn(&self, _deadline: Instant) -> BoxFuture<'_, Result<Distant, ConnectError>> {
        Box::pin(async {
            self.start("s")
                .await
                .map_err(|source| ConnectError::Refused {
                    server: "s".into(),
                    source,
                })
        })
    }
}

fn session(id: &str) -> Arc<Session> {
    Session::new(id.into(), "instance".into(), FlowLimits::default())
}

/// A shell script as a server.
pub(super) fn spec(name: &str, script: &str) -> StdioSpec {
    let path = std::env::var_os("PATH").unwrap();
    StdioSpec {
        server: name.into(),
        command: "sh".into(),
        args: vec!["-c".into(), script.into()],
        env: vec![("PATH".into(), path)],
        cwd: None,
        reaper: None,
        child_limits: ChildLimits::default(),
        sandbox: Sandbox::off(),
        launcher: None,
        instance: None,
        owner: None,
        opening: Opening::Only(Era::Legacy),
        limits: StdioLimits {
            stop_stdin: Duration::from_millis(500),
            stop_term: Duration::from_millis(500),
            ..StdioLimits::default()
        },
    }
}

/// Two ends of a wire. It is cut after so many bytes, or when it is told.
async fn wire(bytes: usize, cut: watch::Receiver<usize>) -> (TcpStream, TcpStream) {
    let (ours, one) = pair().await;
    let (two, theirs) = pair().await;
    let left = Arc::new(AtomicUsize::new(bytes));
    tokio::spawn(async move {
        let (mut from_one, mut to_one) = one.into_split();
        let (mut from_two, mut to_two) = two.into_split();
        let mut cut = cut;
        tokio::select! {
            () = carry(&mut from_one, &mut to_two, &left) => {}
            () = carry(&mut from_two, &mut to_one, &left) => {}
            _ = cut.wait_for(|left| *left == 0) => {}
        }
    });
    (ours, theirs)
}

/// Carries bytes until there may be no more: a frame is cut where it may.
async fn carry(
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

pub(super) async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dialling = TcpStream::connect(listener.local_addr().unwrap());
    let (dialled, accepted) = tokio::join!(dialling, listener.accept());
    let (dialled, accepted) = (dialled.unwrap(), accepted.unwrap().0);
    dialled.set_nodelay(true).unwrap();
    accepted.set_nodelay(true).unwrap();
    (dialled, accepted)
}

/// A pipe with a name that a process holds open as long as it lives.
#[derive(Debug)]
pub(super) struct Leash {
    _directory: tempfile::TempDir,
    path: PathBuf,
    pipe: pipe::Receiver,
}

impl Leash {
    pub(super) fn new() -> Self {
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

    /// What a script says to be held: it writes a line there first.
    pub(super) fn hold(&self) -> String {
        format!("exec 9>{}; echo here >&9", quoted(&self.path))
    }

    /// Waits until a process holds it.
    pub(super) async fn held(&mut self) {
        let mut here = [0; 5];
        soon(self.pipe.read_exact(&mut here)).await.unwrap();
        assert_eq!(&here, b"here\n");
    }

    /// Waits until no process holds it any more.
    pub(super) async fn let_go(&mut self) {
        let mut rest = Vec::new();
        soon(self.pipe.read_to_end(&mut rest)).await.unwrap();
    }
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display())
}
