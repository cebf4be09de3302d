//! Requests through one executor, for programs that want nothing else of a gateway.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_link::executor::Errand;
use bowline_link::http::client::{Body, Headers, HttpError, Outgoing, Response, Upload, Wait};
use bowline_link::http::endpoint::{Endpoint, EndpointError};
use bowline_wire::executor::Fill;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use thiserror::Error;

use super::registry::{CLIENT_NAME, DialSpec, Entry, Executors, ExecutorsOptions, Protocol};
use crate::address;
use crate::credential::Credential;
use crate::ports::{Clock, SystemClock};
use crate::tasks::Tasks;

/// The one executor of a client.
const NAME: &str = "executor";

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// What is spoken.
    pub protocol: Protocol,
    /// How it calls itself to an exec-server.
    pub client_name: Arc<str>,
    /// Largest body that is read whole, in bytes.
    pub body_bytes_max: usize,
    /// How it connects, comes back, and what it holds.
    pub executors: ExecutorsOptions,
    /// Tells the time by which deadlines go.
    pub clock: Arc<dyn Clock>,
    /// Where its tasks are counted.
    pub tasks: Tasks,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            protocol: Protocol::default(),
            client_name: CLIENT_NAME.into(),
            body_bytes_max: 8 * 1024 * 1024,
            executors: ExecutorsOptions::default(),
            clock: Arc::new(SystemClock::start()),
            tasks: Tasks::default(),
        }
    }
}

/// Why there is no client.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ConnectError {
    /// The address cannot be used.
    #[error("the address of the executor cannot be used")]
    Endpoint(#[from] EndpointError),
    /// There is no connection.
    #[error("there is no connection")]
    Away(#[source] HttpError),
}

/// Why a request has no answer.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RequestError {
    /// Where it should go is no address over http or https.
    #[error("the address of the request cannot be used")]
    Endpoint(#[from] EndpointError),
    /// It has none, or not all of it.
    #[error("there is no answer")]
    Http(#[from] HttpError),
}

/// A request that an executor is to perform.
#[derive(Clone, Debug)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// Where it goes: an absolute address over http or https.
    pub url: String,
    /// The headers, in order; neither `host` nor what tells how long the body is.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body.
    pub body: Bytes,
    /// How long the head of the answer may take; there is no limit for the rest of it.
    pub timeout: Option<Duration>,
    /// The server that it is for, where the executor allows different things to different ones.
    pub server: Arc<str>,
    /// Headers that only the executor can complete.
    pub fills: Vec<Fill>,
}

impl Request {
    /// Returns a request without headers and body.
    #[must_use]
    pub fn new(method: Method, url: &str) -> Self {
        Self {
            method,
            url: url.to_owned(),
            headers: Vec::new(),
            body: Bytes::new(),
            timeout: None,
            server: "".into(),
            fills: Vec::new(),
        }
    }
}

/// The head of an answer.
#[derive(Debug)]
pub struct Head {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: Headers,
}

/// A whole answer.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: Headers,
    /// The body.
    pub body: Bytes,
}

/// A connection with an executor that listens; it is made anew when it is lost. Cheap to clone;
/// gone with its last clone and the last body that came over it.
///
/// ```
/// use bowline_host::executor::{ClientOptions, Credential, ExecutorClient, Request};
/// use http::Method;
/// # use bowline_core::egress::Rule;
/// # use bowline_host::executor::{Door, Offer, listen};
/// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// # use tokio::net::TcpListener;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let inside = TcpListener::bind("127.0.0.1:0").await?;
/// # let server = inside.local_addr()?;
/// # let serving = async {
/// #     while let Ok((mut stream, _)) = inside.accept().await {
/// #         let _ = stream.read(&mut [0; 1024]).await;
/// #         let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\n";
/// #         let _ = stream.write_all(format!("{head}hello").as_bytes()).await;
/// #     }
/// # };
/// # let listener = TcpListener::bind("127.0.0.1:0").await?;
/// # let (executor, token) = (format!("ws://{}", listener.local_addr()?), "secret");
/// # let mut offer = Offer::new("office");
/// # offer.egress.all = vec![Rule::parse(&server.to_string())?];
/// # let door = Door::Token(Credential::fixed(token));
/// # let listening = listen(listener, door, offer, std::future::pending());
/// # let asking = async {
/// let credential = Some(Credential::fixed(token));
/// let client = ExecutorClient::connect(&executor, credential, ClientOptions::default()).await?;
///
/// // The request leaves from where the executor is.
/// let request = Request::new(Method::GET, &format!("http://{server}/"));
/// let reply = client.request(request.clone()).await?;
/// assert_eq!((reply.status.as_u16(), &*reply.body), (200, &b"hello"[..]));
///
/// // Or piece by piece, as slowly as it is read.
/// let (head, mut body) = client.request_stream(request).await?;
/// let mut whole = Vec::new();
/// while let Some(piece) = body.recv().await {
///     whole.extend_from_slice(&piece?);
/// }
/// assert_eq!((head.status.as_u16(), &*whole), (200, &b"hello"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # };
/// # tokio::select! {
/// #     asked = asking => asked,
/// #     () = serving => Err("no server".into()),
/// #     listened = listening => Err(format!("{listened:?}").into()),
/// # }
/// # })
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ExecutorClient {
    life: Arc<Life>,
}

/// Ends the connection when it is dropped.
struct Life {
    executors: Executors,
    entry: Arc<Entry>,
    options: ClientOptions,
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Life")
            .field("executors", &self.executors)
            .finish_non_exhaustive()
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.executors.hang_up(NAME);
    }
}

impl ExecutorClient {
    /// Connects to the executor at `url` (`http(s)` or `ws(s)`), and waits for the handshake.
    ///
    /// # Errors
    /// The address cannot be used, or there is no connection.
    pub async fn connect(
        url: &str,
        credential: Option<Credential>,
        options: ClientOptions,
    ) -> Result<Self, ConnectError> {
        let entrance = match options.protocol {
            Protocol::Bowline => address::EXECUTOR,
            Protocol::ExecServer => "",
        };
        let spec = DialSpec {
            endpoint: address::parse(url, entrance)?,
            credential,
            protocol: options.protocol,
            client_name: Arc::clone(&options.client_name),
        };
        let (tasks, clock) = (options.tasks.clone(), Arc::clone(&options.clock));
        let executors = Executors::new(tasks, clock, options.executors);
        executors.dial(NAME, spec);
        let entry = executors.known(NAME);
        let life = Life {
            executors,
            entry,
            options,
        };
        let connected = life.entry.connected(&*life.options.clock, None).await;
        connected.map_err(ConnectError::Away)?;
        Ok(Self {
            life: Arc::new(life),
        })
    }

    /// Has a request performed, and reads its answer whole.
    ///
    /// # Errors
    /// There is no answer, or it is longer than the limit.
    pub async fn request(&self, request: Request) -> Result<Reply, RequestError> {
        let bytes_max = self.life.options.body_bytes_max;
        let mut response = self.response(request, Want::Whole { bytes_max }).await?;
        Ok(Reply {
            status: response.status,
            headers: response.headers,
            body: response.body.whole(bytes_max).await?,
        })
    }

    /// Has a request performed, and returns the head of its answer; the body is read as it comes.
    /// Who does not read slows the sender. Over [`Protocol::Bowline`] nobody else notices; over
    /// [`Protocol::ExecServer`], which has no flow control, a body that is not read ends with
    /// [`HttpError::Overflow`] so that others go on. A lost connection is
    /// [`HttpError::Disconnected`]. Dropping the body takes the request off the wire over there.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn request_stream(
        &self,
        request: Request,
    ) -> Result<(Head, BodyStream), RequestError> {
        let response = self.response(request, Want::Pieces).await?;
        let head = Head {
            status: response.status,
            headers: response.headers,
        };
        let stream = BodyStream {
            body: response.body,
            _life: Arc::clone(&self.life),
        };
        Ok((head, stream))
    }

    async fn response(&self, request: Request, want: Want) -> Result<Response, RequestError> {
        let to = Endpoint::parse(&request.url)?;
        let clock = &self.life.options.clock;
        let until = |wait: Duration| clock.instant(clock.now().plus(wait));
        let connect = until(self.life.options.executors.connect_timeout);
        let wait = Wait {
            connect: Some(connect),
            first_byte: request.timeout.map(until),
            leaving: &|| {},
        };
        let mut outgoing = Outgoing::new(request.method, &to);
        outgoing.headers = request.headers;
        outgoing.body = Upload::Whole(&request.body);
        let errand = Errand {
            server: &request.server,
            request: outgoing,
            fills: &request.fills,
        };
        let here = self.life.entry.connected(&**clock, Some(connect)).await?;
        let carrier = &here.carrier;
        Ok(match want {
            Want::Whole { bytes_max } => carrier.fetch(errand, wait, bytes_max).await?,
            Want::Pieces => carrier.carry(errand, wait).await?,
        })
    }

    /// Returns what the executor said of itself when it connected last.
    #[must_use]
    pub fn status(&self) -> super::ExecutorStatus {
        self.life.entry.status()
    }
}

/// How an answer is wanted.
#[derive(Clone, Copy, Debug)]
enum Want {
    /// With all of its body, at most so much.
    Whole { bytes_max: usize },
    /// With its body as it comes.
    Pieces,
}

/// The body of an answer.
#[derive(Debug)]
pub struct BodyStream {
    body: Body,
    _life: Arc<Life>,
}

impl BodyStream {
    /// Returns the next piece; nothing after the last one. What was cut short ends with an error,
    /// and never with nothing.
    pub async fn recv(&mut self) -> Option<Result<Bytes, HttpError>> {
        self.body.chunk().await
    }

    /// Returns the lines of headers that followed the last piece, each with its end; mostly none.
    pub fn trailers(&mut self) -> Bytes {
        self.body.trailers()
    }
}
