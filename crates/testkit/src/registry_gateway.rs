//! A registry that admits scripted executors over real sockets.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::backoff::Backoff;
use bowline_executor::frames::{
    ExecutorFrame, ExecutorHello, OpenSession, OpenSessionReply, ResponseHead, VERSION,
};
use bowline_executor::{
    ExecutorAuthenticator, ExecutorRefusal, ExecutorRegistry, ExecutorRegistryOptions,
};
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{
    HttpClient, HttpError, HttpRequest as Request, HttpResponse, SendOptions,
};
use bowline_link::websocket::{
    DisconnectReason, MessageFormat, WebSocketConnection, WebSocketLimits, WebSocketReceiver,
    WebSocketSender, accept_upgrade, dial,
};
use bowline_runtime::{Clock, SystemClock, TaskTracker};
use bytes::Bytes;
use http::Method;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::{poll_until, spawn_task, test_deadline, wait_bounded};

/// Short waits for fast tests.
pub fn quick() -> ExecutorRegistryOptions {
    let wait = Duration::from_millis(10);
    ExecutorRegistryOptions {
        recovery_interval: wait,
        backoff: Backoff {
            base: wait,
            cap: wait,
        },
        ..ExecutorRegistryOptions::default()
    }
}

/// Admits every executor except `stranger`, until all rights end.
#[derive(Debug)]
pub struct NameAuthenticator {
    over: watch::Sender<bool>,
    pub refused: Mutex<Vec<(String, Arc<str>)>>,
}

impl NameAuthenticator {
    pub fn end_rights(&self) {
        self.over.send_replace(true);
    }
}

fn refusal(reason: &str) -> ExecutorRefusal {
    ExecutorRefusal {
        reason: reason.into(),
        code: None,
    }
}

impl ExecutorAuthenticator for NameAuthenticator {
    fn authenticate(
        &self,
        hello: &ExecutorHello,
    ) -> Result<BoxFuture<'static, ExecutorRefusal>, ExecutorRefusal> {
        if *hello.name == *"stranger" {
            return Err(refusal("nobody knows you"));
        }
        let mut over = self.over.subscribe();
        Ok(Box::pin(async move {
            let _ = over.wait_for(|over| *over).await;
            refusal("the token was revoked")
        }))
    }

    fn on_refused(&self, name: &str, refusal: &ExecutorRefusal) {
        let told = (name.to_owned(), Arc::clone(&refusal.reason));
        self.refused.lock().unwrap().push(told);
    }
}

/// A gateway that admits executors.
#[derive(Debug)]
pub struct RegistryGateway {
    pub executors: ExecutorRegistry,
    pub authenticator: Arc<NameAuthenticator>,
    pub url: String,
    pub tasks: TaskTracker,
    lines: WireTasks,
}

/// Tasks that copy the bytes of connections.
type WireTasks = Arc<Mutex<Vec<JoinHandle<()>>>>;

/// Puts a wire behind a connection; aborting the task cuts the wire.
pub fn wire(mut stream: TcpStream) -> (DuplexStream, JoinHandle<()>) {
    let (near, mut far) = duplex(64 * 1024);
    let line = spawn_task(async move {
        let _ = copy_bidirectional(&mut stream, &mut far).await;
    });
    (near, line)
}

impl RegistryGateway {
    pub async fn new(options: ExecutorRegistryOptions) -> Self {
        let tasks = TaskTracker::default();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let executors = ExecutorRegistry::new(tasks.clone(), clock, options);
        let doorman = Arc::new(NameAuthenticator {
            over: watch::Sender::new(false),
            refused: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gateway = Self {
            executors,
            authenticator: doorman,
            url,
            tasks,
            lines: WireTasks::default(),
        };
        let (executors, doorman, tasks) = (
            gateway.executors.clone(),
            Arc::clone(&gateway.authenticator),
            gateway.tasks.clone(),
        );
        let lines = Arc::clone(&gateway.lines);
        spawn_task(async move {
            loop {
                let (stream, from) = listener.accept().await.unwrap();
                let (stream, line) = wire(stream);
                lines.lock().unwrap().push(line);
                let (executors, doorman) = (executors.clone(), Arc::clone(&doorman));
                let tasks = tasks.clone();
                spawn_task(async move {
                    let Ok(caller) = accept_upgrade(stream, test_deadline()).await else {
                        return;
                    };
                    let Ok(socket) = caller.upgrade(executors.socket_limits(), &tasks).await else {
                        return;
                    };
                    executors
                        .serve_executor(socket, &from.to_string(), &*doorman)
                        .await;
                });
            }
        });
        gateway
    }

    /// Returns a joined executor of this name and instance; asserts whether the session is resumed.
    pub async fn join(
        &self,
        name: &str,
        instance: &str,
        resumed: bool,
    ) -> (ScriptedExecutor, OpenSession) {
        let mut script = ScriptedExecutor::dial(&self.url, &self.tasks).await;
        let open = script.open(name, instance, resumed).await;
        poll_until("the executor is connected", || self.status(name).connected).await;
        (script, open)
    }

    pub fn client(&self, executor: &str) -> Arc<dyn HttpClient> {
        self.executors.http_client(executor, "tracker", Vec::new())
    }

    /// Cuts all accepted connections silently, and waits until noticed.
    pub async fn cut(&self, name: &str) {
        for line in self.lines.lock().unwrap().drain(..) {
            line.abort();
        }
        self.wait_lost(name).await;
    }

    /// Waits until an executor is disconnected.
    pub async fn wait_lost(&self, name: &str) {
        poll_until("the executor is lost", || !self.status(name).connected).await;
    }

    pub fn status(&self, name: &str) -> bowline_executor::ExecutorStatus {
        let list = self.executors.list_statuses();
        list.into_iter().find(|one| *one.name == *name).unwrap()
    }
}

/// A scripted executor.
#[derive(Debug)]
pub struct ScriptedExecutor {
    pub out: WebSocketSender,
    incoming: WebSocketReceiver,
    /// Frames read but not yet checked.
    early: VecDeque<ExecutorFrame>,
}

pub fn socket_limits() -> WebSocketLimits {
    WebSocketLimits {
        format: MessageFormat::Binary,
        ..WebSocketLimits::default()
    }
}

pub fn hello(name: &str, instance: &str) -> ExecutorFrame {
    ExecutorFrame::Hello(ExecutorHello {
        protocol_version: VERSION,
        name: name.into(),
        instance: instance.into(),
        software: "script/1".into(),
        servers: vec!["files".into()],
        secrets: vec!["tracker".into()],
        streams_max: 100,
        credit: 65_536,
    })
}

impl ScriptedExecutor {
    pub fn new(socket: WebSocketConnection) -> Self {
        Self {
            out: socket.sender,
            incoming: socket.receiver,
            early: VecDeque::new(),
        }
    }

    pub async fn dial(url: &str, tasks: &TaskTracker) -> Self {
        let endpoint = HttpEndpoint::parse(&format!("{url}/executor")).unwrap();
        let socket = dial(
            &endpoint,
            Some("token"),
            test_deadline(),
            socket_limits(),
            tasks,
        )
        .await;
        Self::new(socket.unwrap())
    }

    pub async fn open(&mut self, name: &str, instance: &str, resumed: bool) -> OpenSession {
        self.send_frame(hello(name, instance)).await;
        let ExecutorFrame::OpenSession(open) = self.next().await else {
            panic!("no open");
        };
        let marks = Vec::new();
        self.send_frame(ExecutorFrame::OpenSessionReply(OpenSessionReply {
            is_resumed: resumed,
            marks,
        }))
        .await;
        open
    }

    pub async fn send_frame(&self, frame: ExecutorFrame) {
        self.out.send(frame.to_bytes()).await.unwrap();
    }

    pub async fn next(&mut self) -> ExecutorFrame {
        if let Some(frame) = self.early.pop_front() {
            return frame;
        }
        let message = wait_bounded(self.incoming.next()).await.unwrap();
        ExecutorFrame::parse(&message).unwrap()
    }

    pub async fn end(&mut self) -> DisconnectReason {
        loop {
            if let Err(ended) = wait_bounded(self.incoming.next()).await {
                return ended;
            }
        }
    }

    /// Returns the stream and URL of the next request, without a body.
    pub async fn request(&mut self) -> (u64, Arc<str>) {
        let ExecutorFrame::Request { stream, head } = self.next().await else {
            panic!("no request");
        };
        let ExecutorFrame::End { .. } = self.next().await else {
            panic!("a body");
        };
        (stream, head.url)
    }

    pub async fn answer(&self, stream: u64, body: &'static str) {
        let head = ResponseHead {
            status: 200,
            header_lines: Bytes::new(),
        };
        self.send_frame(ExecutorFrame::Response { stream, head })
            .await;
        self.send_frame(ExecutorFrame::Data {
            stream,
            offset: 0,
            bytes: Bytes::from_static(body.as_bytes()),
        })
        .await;
        self.send_frame(ExecutorFrame::End {
            stream,
            offset: u64::try_from(body.len()).unwrap(),
            trailers: Bytes::new(),
        })
        .await;
    }
}

/// Sends a request with a connect timeout.
pub async fn get(
    client: &dyn HttpClient,
    connect: Option<Instant>,
) -> Result<HttpResponse, HttpError> {
    let to = HttpEndpoint::parse("http://inside.example/mcp").unwrap();
    let wait = SendOptions {
        connect_by: connect,
        first_byte_by: Some(test_deadline()),
        on_send: &|| {},
    };
    wait_bounded(client.send(Request::new(Method::GET, &to), wait)).await
}

pub fn asking(client: &Arc<dyn HttpClient>) -> JoinHandle<Result<String, HttpError>> {
    let client = Arc::clone(client);
    spawn_task(async move {
        let mut response = get(&*client, Some(test_deadline())).await?;
        let whole = wait_bounded(response.body.read_whole(1024)).await?;
        Ok(String::from_utf8(whole.to_vec()).unwrap())
    })
}

/// Returns the code of an executor's refusal.
pub fn code(error: &HttpError) -> &str {
    match error {
        HttpError::RemoteFailure(failure) => &failure.code,
        other => panic!("{other:?}"),
    }
}
