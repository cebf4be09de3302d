//! The door to one live connection with a server.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::call::Body;
use bowline_core::caller::{CallerEnd, SessionKey};
use bowline_core::era::{Era, Mirrors};
use bowline_core::error::{Execution, Failure};
use bowline_core::pending::Sent;
use bowline_core::trace::Trace;
use bowline_wire::mcp::Revision;
use bytes::Bytes;
use thiserror::Error;
use tokio::time::Instant;

use crate::http::credentials::CredentialError;
use crate::http::road::RedirectError;
use crate::limits::Size;
use crate::processes::Processes;

/// A future behind a pointer, so that a trait can hand it out.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One request on its way to a server.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: Cow<'static, str>,
    /// The parameters, one JSON value.
    pub params: Option<Bytes>,
    /// A string in `params` that travels as another one.
    pub rename: Option<Rename>,
    /// Where in `params` the caller's progress token stands. On the wire it is the link's own id;
    /// in progress notifications it is the caller's again.
    pub progress_at: Option<Range<usize>>,
    /// The id under which the answer is given back, as the caller wrote it.
    pub reply_id: Bytes,
    /// When waiting ends.
    pub deadline: Instant,
    /// Takes what the server says before it answers, and can be asked; absent for requests of the
    /// gateway's own.
    pub caller: Option<Arc<dyn CallerEnd>>,
    /// Where it stands in a trace, which the server is told; absent where nobody traces.
    pub trace: Option<Arc<Trace>>,
    /// A header by which its server knows it again, over HTTP.
    pub key: Option<Box<KeyHeader>>,
    /// Who asks, for a peer that decides by that itself.
    pub on_behalf: Option<Box<OnBehalf>>,
    /// The era that `params` are written in. A link whose server speaks the other one translates
    /// them; the answer comes as the server wrote it, and says its era.
    pub era: Era,
    /// Arguments that travel as headers as well, over HTTP to a server of the modern era.
    pub mirrors: Mirrors,
}

/// Who asks, as this gateway knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnBehalf {
    /// The name of the principal.
    pub principal: Arc<str>,
    /// The role that counts for it here.
    pub role: Option<Arc<str>>,
    /// The run that its call belongs to.
    pub run: Option<Arc<str>>,
}

/// An idempotency key that travels as a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHeader {
    /// The name of the header.
    pub name: Arc<str>,
    /// The key.
    pub value: Arc<str>,
}

impl Request {
    /// Returns a request of the gateway's own: nobody else hears of it or can be asked.
    #[must_use]
    pub const fn own(method: &'static str, params: Option<Bytes>, deadline: Instant) -> Self {
        Self {
            method: Cow::Borrowed(method),
            params,
            rename: None,
            progress_at: None,
            reply_id: Bytes::from_static(b"0"),
            deadline,
            caller: None,
            trace: None,
            key: None,
            on_behalf: None,
            era: Era::Legacy,
            mirrors: None,
        }
    }
}

/// A JSON string that is replaced on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    /// Where it stands, its quotes included.
    pub at: Range<usize>,
    /// What it becomes.
    pub to: Arc<str>,
}

/// What a server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The whole JSON-RPC answer under the caller's id; every other byte is the server's.
    pub bytes: Bytes,
    /// Whether it holds a result or an error.
    pub body: Body,
    /// Where in `bytes` that stands.
    pub body_at: Range<usize>,
    /// The era it is written in.
    pub era: Era,
}

impl Answer {
    /// Returns the result or the error object.
    #[must_use]
    pub fn body_bytes(&self) -> &[u8] {
        self.bytes.get(self.body_at.clone()).unwrap_or_default()
    }
}

/// Why a request has no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum LinkError {
    /// Too many requests wait already; it was not sent.
    #[error("{in_flight_max} requests are in flight already")]
    Busy {
        /// How many may be.
        in_flight_max: usize,
    },
    /// The link was gone before the request left.
    #[error("the link is closed: {0}")]
    Closed(Exit),
    /// The request could not be handed over; it was not sent.
    #[error("the request was not sent: {0}")]
    NotSent(NotSent),
    /// The link went away after the request may have left.
    #[error("the server went away: {0}")]
    Lost(Exit),
    /// The connection of the request was lost after it may have left; the link may stand.
    #[error("the connection was lost: {0}")]
    Cut(Arc<str>),
    /// The deadline came first.
    #[error("no answer in time")]
    Timeout {
        /// Whether the request had left.
        sent: Sent,
    },
    /// The answer came, but broke the limit on lines.
    #[error("the answer is longer than {bytes_max} bytes")]
    TooLong {
        /// The limit.
        bytes_max: usize,
    },
    /// The answer came, but is not one.
    #[error("the answer is not valid: {0}")]
    BadAnswer(Arc<str>),
    /// The server cannot be reached; the request was not sent.
    #[error("the server cannot be reached: {0}")]
    Unreachable(Arc<str>),
    /// What proves who we are cannot be read now; the request was not sent.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    /// The server wants other credentials (401), or more rights for these (403).
    #[error("the server refused our credentials with status {status}")]
    Unauthorized {
        /// 401 or 403.
        status: u16,
        /// What it said about how to do better.
        challenge: Option<Arc<str>>,
    },
    /// The server takes no more for now.
    #[error("the server takes no more requests for now (status {status})")]
    Throttled {
        /// 429 or 503.
        status: u16,
        /// How long it asked us to wait.
        after: Option<Duration>,
    },
    /// The server answered with a status in place of a message.
    #[error("the server answered with status {status}{}", said(.preview))]
    Http {
        /// The status.
        status: u16,
        /// The start of what it said.
        preview: Arc<str>,
    },
    /// The server answered with something that is no message.
    #[error("the server answered with `{content_type}`{}", said(.preview))]
    ContentType {
        /// What it says that it is.
        content_type: Arc<str>,
        /// The start of it.
        preview: Arc<str>,
    },
    /// The head of the answer breaks a limit or the grammar of HTTP.
    #[error("the head of the answer is not valid: {0}")]
    BadHead(Arc<str>),
    /// The server points elsewhere, and we do not follow.
    #[error("the server redirects: {0}")]
    Redirect(RedirectError),
    /// The server asked something, and its caller did not answer it.
    #[error(transparent)]
    Unanswered(#[from] NoAnswer),
    /// The peer that has the server says why there is no answer.
    #[error("{}", .0.reason)]
    Elsewhere(Arc<Failure>),
}

/// Of what a server said in place of an answer, so many characters are shown.
const SAID_CHARS_MAX: usize = 200;

fn said(preview: &str) -> String {
    let line = preview.trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(SAID_CHARS_MAX) {
        _ if line.is_empty() => String::new(),
        None => format!(": {line}"),
        // Said, so that whoever takes secrets out knows that half of one may stand at the end.
        Some((cut, _)) => format!(": {}…", line.get(..cut).unwrap_or_default()),
    }
}

impl LinkError {
    /// Returns what is known about whether the request was carried out.
    #[must_use]
    pub fn execution(&self) -> Execution {
        match self {
            Self::Busy { .. }
            | Self::Closed(_)
            | Self::NotSent(_)
            | Self::Unreachable(_)
            | Self::Credentials(_)
            | Self::Unauthorized { .. }
            | Self::Throttled { status: 429, .. }
            | Self::Timeout { sent: Sent::No } => Execution::NotStarted,
            // A status may come from something in between, after the request went through it.
            Self::Lost(_)
            | Self::Cut(_)
            | Self::Throttled { .. }
            | Self::Http { .. }
            | Self::ContentType { .. }
            | Self::BadHead(_)
            | Self::Redirect(_)
            | Self::Unanswered(_)
            | Self::Timeout {
                sent: Sent::Perhaps,
            } => Execution::Unknown,
            Self::TooLong { .. } | Self::BadAnswer(_) => Execution::Completed,
            Self::Elsewhere(failure) => failure.execution,
        }
    }
}

/// What kept a request from being sent.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum NotSent {
    /// The queue to the server stayed full until the deadline.
    #[error("the queue to the server stayed full")]
    QueueFull,
    /// The server did not read until the deadline.
    #[error("the server does not read")]
    NotRead,
    /// It holds credentials, and others could read them on the way.
    #[error("credentials are sent over https only, or to this machine")]
    Exposed,
    /// The request alone is larger than the queue.
    #[error("it is larger than {bytes_max} bytes")]
    TooLarge {
        /// The limit.
        bytes_max: usize,
    },
}

/// Why a server that asked its caller something has no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoAnswer {
    /// The request is the gateway's own.
    #[error("the server asks for input, and there is nobody to ask")]
    Nobody,
    /// The caller did not declare that it can be asked this.
    #[error("the server asks for `{method}`, which its caller has not declared")]
    Undeclared {
        /// What is asked.
        method: Arc<str>,
    },
    /// The caller gave an error, or nothing.
    #[error("the caller gave no answer to `{method}`")]
    Refused {
        /// What was asked.
        method: Arc<str>,
    },
    /// It asks too much at once.
    #[error("the server asks more than {questions_max} things at once")]
    TooMany {
        /// How many it may ask.
        questions_max: usize,
    },
    /// It asks again and again.
    #[error("the server asked {rounds_max} times and gave no answer")]
    Rounds {
        /// How often it may ask.
        rounds_max: usize,
    },
    /// The answers could not be sent.
    #[error("what the caller answered was not sent: {0}")]
    NotSent(Arc<str>),
}

/// How a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The process exited by itself.
    Status(i32),
    /// The process was ended by a signal.
    Signal(i32),
    /// The server closed its output or input while its process lived on; it was stopped.
    Closed,
    /// A line was longer than what may be thrown away; the process was killed.
    Overrun,
    /// The server and all it started used more memory than they may; all were killed.
    OverMemory {
        /// What they may use.
        bytes_max: u64,
    },
    /// The server started more processes than it may; all were killed.
    OverProcesses {
        /// How many it may have.
        processes_max: u64,
    },
    /// The program does not exist, so no process of the server ran.
    ProgramNotFound,
    /// The link is being stopped by us; how the process ends is not known yet.
    Stopping,
    /// The process is gone, and nobody can say how.
    Gone,
    /// The executor that ran the process is gone, or was away for too long.
    Away,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) if *signal == rustix::process::Signal::XFSZ.as_raw() => {
                write!(f, "it wrote a larger file than it may (signal {signal})")
            }
            Self::Signal(signal) => write!(f, "killed by signal {signal}"),
            Self::Closed => f.write_str("it closed its streams"),
            Self::Overrun => f.write_str("it wrote a line without end"),
            Self::OverMemory { bytes_max } => {
                write!(f, "it used more than {} of memory", Size(*bytes_max))
            }
            Self::OverProcesses { processes_max } => {
                write!(f, "it had more than {processes_max} processes")
            }
            Self::ProgramNotFound => f.write_str("the program does not exist"),
            Self::Stopping => f.write_str("it is being stopped"),
            Self::Gone => f.write_str("it is gone"),
            Self::Away => f.write_str("the executor that ran it is gone"),
        }
    }
}

/// What a server says outside calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// Its tools changed. Several changes may come as one, but never none.
    ToolsChanged,
    /// Its prompts changed, likewise.
    PromptsChanged,
    /// Its resources changed, likewise.
    ResourcesChanged,
    /// A resource changed, whole as the server said it.
    ResourceUpdated {
        /// Which one.
        uri: Arc<str>,
        /// What it said.
        notification: Bytes,
    },
    /// A task changed, whole as the server said it.
    TaskStatus {
        /// Which one.
        task: Arc<str>,
        /// What it said.
        notification: Bytes,
    },
    /// Something for one session that has no call in flight.
    Told {
        /// Whose it is.
        session: SessionKey,
        /// What the server said.
        notification: Bytes,
    },
    /// It forgot us, and was met anew: what it was told between calls must be told again. Several
    /// such may come as one, but never none.
    Renewed,
    /// It asked a client for something while calls of several sessions were in flight, and was
    /// refused. Several such may come as one, but never none.
    Ambiguous,
    /// `notifications/message` that belongs to no one session, whole.
    Log(Bytes),
    /// Any other notification, whole.
    Other(Bytes),
}

/// What a server said of itself in the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerInfo {
    /// The revision agreed on.
    pub revision: Revision,
    /// The raw result of `initialize`; of a server of the modern era, that of `server/discover`
    /// with its `serverInfo` lifted out of `_meta` to where `initialize` has it.
    pub initialize: Bytes,
    /// `serverInfo.name`, empty when it gave none.
    pub name: Arc<str>,
    /// `serverInfo.version`, empty when it gave none.
    pub version: Arc<str>,
}

/// One live connection with a server, used by many callers at once.
pub trait Link: fmt::Debug + Send + Sync {
    /// Sends a request and waits for its answer. Dropping the future takes the request back: it
    /// is not sent when it has not left, and the server is told when it may have.
    fn request(&self, request: Request) -> BoxFuture<'_, Result<Answer, LinkError>>;

    /// Queues a notification, without waiting.
    ///
    /// # Errors
    /// `Closed`, or `NotSent` when the queue is full.
    fn notify(&self, method: &str, params: Option<&[u8]>) -> Result<(), LinkError>;

    /// Whether requests are still taken.
    fn is_open(&self) -> bool;

    /// Waits until the link is gone.
    fn closed(&self) -> BoxFuture<'_, Exit>;

    /// Stops the server in order and waits until it is gone; may be called again.
    fn close(&self) -> BoxFuture<'_, Exit>;

    /// Returns the server's process, where there is one.
    fn pid(&self) -> Option<u32>;

    /// Returns the server's processes, where it is a child of ours.
    fn processes(&self) -> Option<Processes> {
        None
    }

    /// Hears that a session is over whose requests it may have carried; links whose servers know
    /// of no sessions need not care.
    fn session_ended(&self, session: SessionKey) {
        let _ = session;
    }

    /// Hears that the roots of the client of a session changed, likewise.
    fn roots_changed(&self, session: SessionKey) {
        let _ = session;
    }

    /// Returns how many requests wait for an answer.
    fn in_flight(&self) -> usize;

    /// Returns what the server said of itself.
    fn server(&self) -> &ServerInfo;

    /// Returns how the server speaks.
    fn era(&self) -> Era {
        self.server().revision.era()
    }

    /// Says of which resources of a server of the modern era news are wanted, in place of what
    /// was said before, and waits until the server has agreed. Returns those of which it will
    /// tell. Lists are listened to from the beginning. A server of the legacy era is told by
    /// requests, and tells of none here.
    fn listen_to(
        &self,
        uris: Vec<Arc<str>>,
        deadline: Instant,
    ) -> BoxFuture<'_, Result<Vec<Arc<str>>, LinkError>> {
        let _ = (uris, deadline);
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// Runs the tasks of a link; the host's task keeper implements it.
pub trait Spawner: Send + Sync {
    /// Runs a task to its end.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>);
}
