//! HTTP requests through one executor, for programs that need nothing else of a gateway.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bowline_link::endpoint_address;
use bowline_link::http::endpoint::{EndpointError, HttpEndpoint};
use bowline_link::http::http_client::{
    HttpBody, HttpError, HttpRequest, HttpResponse, RequestBody, ResponseHeaders, SendOptions,
};
use bowline_runtime::{Clock, CredentialSource, SystemClock, TaskTracker};

use crate::connection::ExecutorRequest;
use crate::frames::SecretHeader;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use thiserror::Error;

use super::registry::{
    CLIENT_NAME, DialSpec, ExecutorEntry, ExecutorProtocol, ExecutorRegistry,
    ExecutorRegistryOptions,
};

/// Registry name of the client's only executor.
const EXECUTOR_NAME: &str = "executor";

/// Options of a client.
#[derive(Clone, Debug)]
pub struct ExecutorClientOptions {
    /// The wire protocol.
    pub protocol: ExecutorProtocol,
    /// Client name sent to an exec-server.
    pub client_name: Arc<str>,
    /// Largest body read as a whole, in bytes.
    pub body_bytes_max: usize,
    /// Connection, reconnect and buffer options.
    pub registry: ExecutorRegistryOptions,
    /// Clock for deadlines.
    pub clock: Arc<dyn Clock>,
    /// Tracker for the client's tasks.
    pub tasks: TaskTracker,
}

impl Default for ExecutorClientOptions {
    fn default() -> Self {
        Self {
            protocol: ExecutorProtocol::default(),
            client_name: CLIENT_NAME.into(),
            body_bytes_max: 8 * 1024 * 1024,
            registry: ExecutorRegistryOptions::default(),
            clock: Arc::new(SystemClock::start()),
            tasks: TaskTracker::default(),
        }
    }
}

/// Why a client cannot connect.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ExecutorConnectError {
    /// The executor's address is invalid.
    #[error("the address of the executor cannot be used")]
    Endpoint(#[from] EndpointError),
    /// The executor is not connected.
    #[error("there is no connection")]
    Away(#[source] HttpError),
}

/// Why a request has no response.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ExecutorRequestError {
    /// The URL is not a valid http or https address.
    #[error("the address of the request cannot be used")]
    Endpoint(#[from] EndpointError),
    /// The request failed, or the response is incomplete.
    #[error("there is no answer")]
    Http(#[from] HttpError),
}

/// An HTTP request for an executor.
#[derive(Clone, Debug)]
pub struct ExecutorHttpRequest {
    /// The method.
    pub method: Method,
    /// Absolute http or https URL.
    pub url: String,
    /// The headers, in order; without `host` and without body length headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body.
    pub body: Bytes,
    /// Timeout for the response head; the body has no time limit.
    pub timeout: Option<Duration>,
    /// The server that the request is for; the executor may have an allow-list per server.
    pub server: Arc<str>,
    /// Headers completed by the executor with secrets.
    pub fills: Vec<SecretHeader>,
}

impl ExecutorHttpRequest {
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

/// The head of a response.
#[derive(Debug)]
pub struct ExecutorResponseHead {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: ResponseHeaders,
}

/// A complete response.
#[derive(Debug)]
pub struct ExecutorResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: ResponseHeaders,
    /// The body.
    pub body: Bytes,
}

/// A client of a listening executor; reconnects after a loss. Cheap to clone; the last clone or the
/// last response body closes the connection.
///
/// ```
/// use bowline_executor::{
///     CredentialSource, ExecutorClient, ExecutorClientOptions, ExecutorHttpRequest,
/// };
/// use http::Method;
/// # use bowline_core::egress::EgressRule;
/// # use bowline_executor::{ExecutorOffer, ListenAuth, listen};
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
/// # let mut offer = ExecutorOffer::new("office");
/// # offer.egress.all = vec![EgressRule::parse(&server.to_string())?];
/// # let auth = ListenAuth::Token(CredentialSource::from_token(token));
/// # let listening = listen(listener, auth, offer, std::future::pending());
/// # let asking = async {
/// let credential = Some(CredentialSource::from_token(token));
/// let options = ExecutorClientOptions::default();
/// let client = ExecutorClient::connect(&executor, credential, options).await?;
///
/// // The request leaves from the executor's network.
/// let request = ExecutorHttpRequest::new(Method::GET, &format!("http://{server}/"));
/// let reply = client.request(request.clone()).await?;
/// assert_eq!((reply.status.as_u16(), &*reply.body), (200, &b"hello"[..]));
///
/// // Or piece by piece, with backpressure.
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
    inner: Arc<ExecutorClientInner>,
}

/// Closes the connection on drop.
struct ExecutorClientInner {
    registry: ExecutorRegistry,
    entry: Arc<ExecutorEntry>,
    options: ExecutorClientOptions,
}

impl fmt::Debug for ExecutorClientInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecutorClientInner")
            .field("executors", &self.registry)
            .finish_non_exhaustive()
    }
}

impl Drop for ExecutorClientInner {
    fn drop(&mut self) {
        self.registry.hang_up(EXECUTOR_NAME);
    }
}

impl ExecutorClient {
    /// Connects to the executor at `url` (`http(s)` or `ws(s)`), and waits for the handshake.
    ///
    /// # Errors
    /// The address is invalid, or the connection failed.
    pub async fn connect(
        url: &str,
        credential: Option<CredentialSource>,
        options: ExecutorClientOptions,
    ) -> Result<Self, ExecutorConnectError> {
        let path = match options.protocol {
            ExecutorProtocol::Bowline => endpoint_address::EXECUTOR_PATH,
            ExecutorProtocol::ExecServer => "",
        };
        let spec = DialSpec {
            endpoint: endpoint_address::parse_endpoint(url, path)?,
            credential,
            protocol: options.protocol,
            client_name: Arc::clone(&options.client_name),
        };
        let (tasks, clock) = (options.tasks.clone(), Arc::clone(&options.clock));
        let registry = ExecutorRegistry::new(tasks, clock, options.registry);
        registry.dial(EXECUTOR_NAME, spec);
        let entry = registry.entry_or_detached(EXECUTOR_NAME);
        let inner = ExecutorClientInner {
            registry,
            entry,
            options,
        };
        let connected = inner
            .entry
            .wait_connection(&*inner.options.clock, None)
            .await;
        connected.map_err(ExecutorConnectError::Away)?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Performs a request, and reads the whole response.
    ///
    /// # Errors
    /// The request failed, or the response exceeds the size limit.
    pub async fn request(
        &self,
        request: ExecutorHttpRequest,
    ) -> Result<ExecutorResponse, ExecutorRequestError> {
        let bytes_max = self.inner.options.body_bytes_max;
        let mut response = self
            .send_request(request, ResponseBodyMode::Whole { bytes_max })
            .await?;
        Ok(ExecutorResponse {
            status: response.status,
            headers: response.headers,
            body: response.body.read_whole(bytes_max).await?,
        })
    }

    /// Performs a request, and returns the response head and the body as a stream. A slow reader
    /// slows the sender. Over [`ExecutorProtocol::Bowline`] other requests are unaffected; over
    /// [`ExecutorProtocol::ExecServer`], without flow control, an unread body ends with
    /// [`HttpError::Overflow`] so that other requests proceed. A lost connection is
    /// [`HttpError::Disconnected`]. Dropping the body cancels the request at the executor.
    ///
    /// # Errors
    /// The request failed.
    pub async fn request_stream(
        &self,
        request: ExecutorHttpRequest,
    ) -> Result<(ExecutorResponseHead, BodyStream), ExecutorRequestError> {
        let response = self.send_request(request, ResponseBodyMode::Stream).await?;
        let head = ExecutorResponseHead {
            status: response.status,
            headers: response.headers,
        };
        let stream = BodyStream {
            body: response.body,
            _client: Arc::clone(&self.inner),
        };
        Ok((head, stream))
    }

    async fn send_request(
        &self,
        request: ExecutorHttpRequest,
        mode: ResponseBodyMode,
    ) -> Result<HttpResponse, ExecutorRequestError> {
        let to = HttpEndpoint::parse(&request.url)?;
        let clock = &self.inner.options.clock;
        let until = |wait: Duration| clock.instant(clock.now().plus(wait));
        let connect = until(self.inner.options.registry.connect_timeout);
        let wait = SendOptions {
            connect_by: Some(connect),
            first_byte_by: request.timeout.map(until),
            on_send: &|| {},
        };
        let mut outgoing = HttpRequest::new(request.method, &to);
        outgoing.headers = request.headers;
        outgoing.body = RequestBody::Whole(&request.body);
        let executor_request = ExecutorRequest {
            server: &request.server,
            request: outgoing,
            secret_headers: &request.fills,
        };
        let current = self
            .inner
            .entry
            .wait_connection(&**clock, Some(connect))
            .await?;
        let connection = &current.connection;
        Ok(match mode {
            ResponseBodyMode::Whole { bytes_max } => {
                connection
                    .fetch_whole(executor_request, wait, bytes_max)
                    .await?
            }
            ResponseBodyMode::Stream => connection.send_request(executor_request, wait).await?,
        })
    }

    /// Returns the executor's status as of the last connect.
    #[must_use]
    pub fn status(&self) -> super::ExecutorStatus {
        self.inner.entry.status()
    }
}

/// How to return the response body.
#[derive(Clone, Copy, Debug)]
enum ResponseBodyMode {
    /// As a whole, up to a limit.
    Whole { bytes_max: usize },
    /// As a stream.
    Stream,
}

/// The body of a response.
#[derive(Debug)]
pub struct BodyStream {
    body: HttpBody,
    _client: Arc<ExecutorClientInner>,
}

impl BodyStream {
    /// Returns the next piece, or `None` after the last piece. A truncated body ends with an error,
    /// never with `None`.
    pub async fn recv(&mut self) -> Option<Result<Bytes, HttpError>> {
        self.body.next_chunk().await
    }

    /// Returns the trailer lines after the last piece, each with its line end; usually empty.
    pub fn trailers(&mut self) -> Bytes {
        self.body.take_trailers()
    }
}
