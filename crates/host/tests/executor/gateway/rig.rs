//! A registry that lets scripted executors in over real sockets.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_host::executor::{Executors, ExecutorsOptions, Porter};
use bowline_host::ports::{Clock, SystemClock};
use bowline_host::tasks::Tasks;
use bowline_link::BoxFuture;
use bowline_link::http::client::{HttpClient, HttpError, Outgoing as Request, Response, Wait};
use bowline_link::http::endpoint::Endpoint;
use bowline_link::websocket::{Ended, Form, Incoming, Outgoing, SocketLimits, accept, dial};
use bowline_wire::broker::Refusal;
use bowline_wire::executor::{Answered, Frame, Hello, Open, Opened, VERSION};
use bytes::Bytes;
use http::Method;
use tokio::io::{DuplexStream, copy_bidirectional, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Longer than anything here takes; a hang is told by it.
pub(super) const LONG: Duration = Duration::from_secs(20);

pub(super) async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, what).await.expect("in time")
}

pub(super) fn soon() -> Instant {
    Instant::now() + LONG
}

/// Short, so that a test need not wait.
pub(super) fn quick() -> ExecutorsOptions {
    let wait = Duration::from_millis(10);
    ExecutorsOptions {
        recovery_every: wait,
        backoff: Backoff {
            base: wait,
            cap: wait,
        },
        ..ExecutorsOptions::default()
    }
}

/// Lets everybody in but `stranger`, until it says that all rights are over.
#[derive(Debug)]
pub(super) struct Doorman {
    over: watch::Sender<bool>,
    pub(super) refused: Mutex<Vec<(String, Arc<str>)>>,
}

impl Doorman {
    pub(super) fn send_away(&self) {
        self.over.send_replace(true);
    }
}

fn refusal(reason: &str) -> Refusal {
    Refusal {
        reason: reason.into(),
        code: None,
        id: None,
    }
}

impl Porter for Doorman {
    fn admit(&self, hello: &Hello) -> Result<BoxFuture<'static, Refusal>, Refusal> {
        if *hello.name == *"stranger" {
            return Err(refusal("nobody knows you"));
        }
        let mut over = self.over.subscribe();
        Ok(Box::pin(async move {
            let _ = over.wait_for(|over| *over).await;
            refusal("the token was revoked")
        }))
    }

    fn refused(&self, name: &str, refusal: &Refusal) {
        let told = (name.to_owned(), Arc::clone(&refusal.reason));
        self.refused.lock().unwrap().push(told);
    }
}

/// A gateway that lets executors in.
#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) executors: Executors,
    pub(super) doorman: Arc<Doorman>,
    pub(super) url: String,
    pub(super) tasks: Tasks,
    lines: Lines,
}

/// What carries the bytes of connections.
type Lines = Arc<Mutex<Vec<JoinHandle<()>>>>;

/// Puts a piece of wire behind a connection, which is cut when its task is ended.
pub(super) fn wire(mut stream: TcpStream) -> (DuplexStream, JoinHandle<()>) {
    let (near, mut far) = duplex(64 * 1024);
    let line = start(async move {
        let _ = copy_bidirectional(&mut stream, &mut far).await;
    });
    (near, line)
}

impl Gateway {
    pub(super) async fn new(options: ExecutorsOptions) -> Self {
        let tasks = Tasks::default();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let executors = Executors::new(tasks.clone(), clock, options);
        let doorman = Arc::new(Doorman {
            over: watch::Sender::new(false),
            refused: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let gateway = Self {
            executors,
            doorman,
            url,
            tasks,
            lines: Lines::default(),
        };
        let (executors, doorman, tasks) = (
            gateway.executors.clone(),
            Arc::clone(&gateway.doorman),
            gateway.tasks.clone(),
        );
        let lines = Arc::clone(&gateway.lines);
        start(async move {
            loop {
                let (stream, from) = listener.accept().await.unwrap();
                let (stream, line) = wire(stream);
                lines.lock().unwrap().push(line);
                let (executors, doorman) = (executors.clone(), Arc::clone(&doorman));
                let tasks = tasks.clone();
                start(async move {
                    let Ok(caller) = accept(stream, soon()).await else {
                        return;
                    };
                    let Ok(io) = caller.upgrade(executors.socket(), &tasks).await else {
                        return;
                    };
                    executors.attend(io, &from.to_string(), &*doorman).await;
                });
            }
        });
        gateway
    }

    /// Returns an executor of that name and start that has joined; whether it says that it knows
    /// the session is told.
    pub(super) async fn join(&self, name: &str, instance: &str, resumed: bool) -> (Script, Open) {
        let mut script = Script::dial(&self.url, &self.tasks).await;
        let open = script.open(name, instance, resumed).await;
        within(async {
            while !self.status(name).connected {
                tokio::task::yield_now().await;
            }
        })
        .await;
        (script, open)
    }

    pub(super) fn client(&self, executor: &str) -> Arc<dyn HttpClient> {
        self.executors.client(executor, "tracker", Vec::new())
    }

    /// Cuts all connections that came in, without a word, and waits until that is noticed.
    pub(super) async fn cut(&self, name: &str) {
        for line in self.lines.lock().unwrap().drain(..) {
            line.abort();
        }
        self.lost(name).await;
    }

    /// Waits until an executor is not connected any more.
    pub(super) async fn lost(&self, name: &str) {
        within(async {
            while self.status(name).connected {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    pub(super) fn status(&self, name: &str) -> bowline_host::executor::ExecutorStatus {
        let list = self.executors.list();
        list.into_iter().find(|one| *one.name == *name).unwrap()
    }
}

pub(super) fn start<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    #[expect(clippy::disallowed_methods, reason = "the tests' own spawner")]
    tokio::spawn(task)
}

/// An executor that says what it is told to say.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) out: Outgoing,
    incoming: Incoming,
    /// What was read and is not looked at yet.
    early: VecDeque<Frame>,
}

pub(super) fn socket() -> SocketLimits {
    SocketLimits {
        form: Form::Binary,
        ..SocketLimits::default()
    }
}

pub(super) fn hello(name: &str, instance: &str) -> Frame {
    Frame::Hello(Hello {
        v: VERSION,
        name: name.into(),
        instance: instance.into(),
        software: "script/1".into(),
        servers: vec!["files".into()],
        secrets: vec!["tracker".into()],
        streams_max: 100,
        credit: 65_536,
    })
}

impl Script {
    pub(super) fn new((out, incoming): (Outgoing, Incoming)) -> Self {
        Self {
            out,
            incoming,
            early: VecDeque::new(),
        }
    }

    pub(super) async fn dial(url: &str, tasks: &Tasks) -> Self {
        let endpoint = Endpoint::parse(&format!("{url}/executor")).unwrap();
        let io = dial(&endpoint, Some("token"), soon(), socket(), tasks).await;
        Self::new(io.unwrap())
    }

    pub(super) async fn open(&mut self, name: &str, instance: &str, resumed: bool) -> Open {
        self.say(hello(name, instance)).await;
        let Frame::Open(open) = self.next().await else {
            panic!("no open");
        };
        let marks = Vec::new();
        self.say(Frame::Opened(Opened { resumed, marks })).await;
        open
    }

    pub(super) async fn say(&self, frame: Frame) {
        self.out.send(frame.to_bytes()).await.unwrap();
    }

    pub(super) async fn next(&mut self) -> Frame {
        if let Some(frame) = self.early.pop_front() {
            return frame;
        }
        let message = within(self.incoming.next()).await.unwrap();
        Frame::read(&message).unwrap()
    }

    pub(super) async fn end(&mut self) -> Ended {
        loop {
            if let Err(ended) = within(self.incoming.next()).await {
                return ended;
            }
        }
    }

    /// Returns the stream and the address of the next request, which has no body.
    pub(super) async fn request(&mut self) -> (u64, Arc<str>) {
        let Frame::Request { stream, asked } = self.next().await else {
            panic!("no request");
        };
        let Frame::End { .. } = self.next().await else {
            panic!("a body");
        };
        (stream, asked.url)
    }

    pub(super) async fn answer(&self, stream: u64, body: &'static str) {
        let answered = Answered {
            status: 200,
            lines: Bytes::new(),
        };
        self.say(Frame::Answer { stream, answered }).await;
        self.say(Frame::Data {
            stream,
            offset: 0,
            bytes: Bytes::from_static(body.as_bytes()),
        })
        .await;
        self.say(Frame::End {
            stream,
            offset: u64::try_from(body.len()).unwrap(),
            trailers: Bytes::new(),
        })
        .await;
    }
}

/// Sends a request that may wait so long for a connection.
pub(super) async fn get(
    client: &dyn HttpClient,
    connect: Option<Instant>,
) -> Result<Response, HttpError> {
    let to = Endpoint::parse("http://inside.example/mcp").unwrap();
    let wait = Wait {
        connect,
        first_byte: Some(soon()),
        leaving: &|| {},
    };
    within(client.send(Request::new(Method::GET, &to), wait)).await
}

pub(super) fn asking(client: &Arc<dyn HttpClient>) -> JoinHandle<Result<String, HttpError>> {
    let client = Arc::clone(client);
    start(async move {
        let mut response = get(&*client, Some(soon())).await?;
        let whole = within(response.body.whole(1024)).await?;
        Ok(String::from_utf8(whole.to_vec()).unwrap())
    })
}

/// Returns the code of a refusal of the executor.
pub(super) fn code(error: &HttpError) -> &str {
    match error {
        HttpError::Elsewhere(failure) => &failure.code,
        other => panic!("{other:?}"),
    }
}
