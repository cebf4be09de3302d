//! Executor that dials the gateway, with reconnects, until shutdown.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::error::display_chain;
use bowline_core::retry::{JitterSource, Retry};
use bowline_link::endpoint_address;
use bowline_link::http::endpoint::{EndpointError, HttpEndpoint};
use bowline_link::websocket::close_codes;
use bowline_link::websocket::{DialError, DisconnectReason, dial};
use bowline_runtime::{CredentialSource, SystemClock, TaskTracker};

use thiserror::Error;
use tokio::time::sleep;

use super::executor_service::{ExecutorService, ServiceError, ServiceStatus};
use super::offer::ExecutorOffer;

/// Reconnect options of an executor.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorRunOptions {
    /// Timeout of one connection attempt.
    pub connect_timeout: Duration,
    /// Backoff between connections.
    pub backoff: Backoff,
    /// Backoff while the gateway may still resume the session.
    pub recovery_backoff: Backoff,
    /// How long the gateway may resume the session.
    pub recovery_max: Duration,
    /// A connection of at least this length resets the backoff.
    pub steady: Duration,
}

impl Default for ExecutorRunOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            backoff: Backoff {
                base: Duration::from_millis(500),
                cap: Duration::from_secs(30),
            },
            recovery_backoff: Backoff {
                base: Duration::from_millis(100),
                cap: Duration::from_secs(1),
            },
            recovery_max: Duration::from_secs(25),
            steady: Duration::from_secs(10),
        }
    }
}

/// Why an executor stops reconnecting.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ExecutorRunError {
    /// The gateway's address is invalid.
    #[error("the address of the gateway cannot be used")]
    Endpoint(#[from] EndpointError),
    /// Another executor took over the name.
    #[error("another executor took our place")]
    Fenced,
}

/// Why a connection ended.
#[derive(Debug, Error)]
enum ConnectionLoss {
    #[error("the credential cannot be read")]
    Credential(#[source] std::io::Error),
    #[error("the gateway cannot be dialled")]
    Dial(#[source] DialError),
    #[error("the gateway is gone")]
    Serve(#[source] ServiceError),
}

/// Offers this machine to the gateway at `url` until `shutdown` resolves.
///
/// After a disconnect the executor reconnects: quickly at first, since the gateway can resume the
/// session, then with a backoff that doubles from 500 ms to 30 s and resets after 10 s of service.
///
/// ```
/// use bowline_core::egress::EgressRule;
/// use bowline_executor::{
///     CredentialSource, ExecutorOffer, ExecutorRegistry, ExecutorRegistryOptions, run_executor,
/// };
/// use bowline_link::http::http_client::{HttpRequest, SendOptions};
/// use bowline_link::http::endpoint::HttpEndpoint;
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use bowline_executor::ExecutorRefusal;
/// # use bowline_executor::ExecutorAuthenticator;
/// # use bowline_core::BoxFuture;
/// # use bowline_runtime::{Clock as _, SystemClock, TaskTracker};
/// # use bowline_link::websocket::accept_upgrade;
/// # use bowline_executor::frames::ExecutorHello;
/// # use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
/// # use tokio::net::TcpListener;
/// #
/// # #[derive(Debug)]
/// # struct AdmitAll;
/// # impl ExecutorAuthenticator for AdmitAll {
/// #     fn authenticate(
/// #         &self,
/// #         _: &ExecutorHello,
/// #     ) -> Result<BoxFuture<'static, ExecutorRefusal>, ExecutorRefusal> {
/// #         Ok(Box::pin(std::future::pending()))
/// #     }
/// # }
/// #
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let inside = TcpListener::bind("127.0.0.1:0").await?;
/// # let server = inside.local_addr()?;
/// # tokio::spawn(async move {
/// #     let (mut stream, _) = inside.accept().await.unwrap();
/// #     stream.read(&mut [0; 1024]).await.unwrap();
/// #     let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
/// #     stream.write_all(answer).await.unwrap();
/// # });
/// # let listener = TcpListener::bind("127.0.0.1:0").await?;
/// # let gateway = format!("http://{}", listener.local_addr()?);
/// # let (clock, tasks) = (Arc::new(SystemClock::start()), TaskTracker::default());
/// # let until = clock.instant(clock.now().plus(Duration::from_secs(20)));
/// // On the executor's machine: the destinations that the gateway may reach from here.
/// let mut offer = ExecutorOffer::new("office");
/// offer.egress.all = vec![EgressRule::parse(&format!("127.0.0.1:{}", server.port()))?];
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let ran = tokio::spawn(async move {
///     let stopped = async { drop(stopped.await) };
///     run_executor(&gateway, CredentialSource::from_token("secret"), offer, stopped).await
/// });
///
/// // On the gateway's machine.
/// let options = ExecutorRegistryOptions::default();
/// let executors = ExecutorRegistry::new(tasks.clone(), clock, options);
/// # let registry = executors.clone();
/// # tokio::spawn(async move {
/// #     let (stream, _) = listener.accept().await.unwrap();
/// #     let caller = accept_upgrade(stream, until).await.unwrap();
/// #     let socket = caller.upgrade(registry.socket_limits(), &tasks).await.unwrap();
/// #     registry.serve_executor(socket, "here", &AdmitAll).await;
/// # });
/// # while executors.wait_ready("office", until).await.is_err() {
/// #     tokio::task::yield_now().await;
/// # }
/// let client = executors.http_client("office", "tracker", Vec::new());
/// let to = HttpEndpoint::parse(&format!("http://{server}/"))?;
/// let request = HttpRequest::new(http::Method::GET, &to);
/// let options = SendOptions { connect_by: None, first_byte_by: None, on_send: &|| {} };
/// let mut response = client.send(request, options).await?;
/// assert_eq!(response.body.read_whole(100).await?, "hello");
///
/// drop(stop);
/// ran.await??;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })
/// # }
/// ```
///
/// # Errors
/// The address is invalid, or another executor took over the name. A fenced executor stops: two
/// that keep fencing each other would serve no request.
pub async fn run_executor(
    url: &str,
    credential: CredentialSource,
    offer: ExecutorOffer,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ExecutorRunError> {
    let clock = Arc::new(SystemClock::start());
    let service = ExecutorService::new(offer, TaskTracker::default(), clock);
    run_executor_with(
        url,
        &credential,
        &service,
        ExecutorRunOptions::default(),
        shutdown,
    )
    .await
}

/// Like [`run_executor`], with options. [`ExecutorService::status`] reports the connection state.
///
/// # Errors
/// As for [`run_executor`].
pub async fn run_executor_with(
    url: &str,
    credential: &CredentialSource,
    service: &ExecutorService,
    options: ExecutorRunOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), ExecutorRunError> {
    let to = endpoint_address::parse_endpoint(url, endpoint_address::EXECUTOR_PATH)?;
    // Keep the loop alive during `close`: dropping the loop drops the connection.
    let mut running = pin!(reconnect_loop(&to, credential, service, options));
    let result = tokio::select! {
        biased;
        () = pin!(shutdown) => Ok(()),
        ran = &mut running => ran,
    };
    service.close().await;
    result
}

async fn reconnect_loop(
    to: &HttpEndpoint,
    credential: &CredentialSource,
    service: &ExecutorService,
    options: ExecutorRunOptions,
) -> Result<(), ExecutorRunError> {
    let clock = service.clock();
    let jitter = JitterSource::random();
    // Counts recovery attempts since the last session loss.
    let mut recovery = Retry::new(options.recovery_backoff, jitter);
    let mut retry = Retry::new(options.backoff, jitter).with_steady_run(options.steady);
    // Time of the last session loss.
    let mut lost_at = None;
    loop {
        let began_at = clock.now();
        let loss = connect_once(to, credential, service, options.connect_timeout).await;
        let ended_at = clock.now();
        let is_fenced = matches!(
            &loss,
            ConnectionLoss::Serve(ServiceError::Ended(DisconnectReason::Closed {
                code: close_codes::FENCED,
                ..
            }))
        );
        if is_fenced {
            service.set_status(ServiceStatus::Away(
                "another executor took our place".into(),
            ));
            return Err(ExecutorRunError::Fenced);
        }
        tracing::warn!(
            error = &loss as &dyn std::error::Error,
            "gateway not connected"
        );
        if matches!(loss, ConnectionLoss::Serve(_)) {
            lost_at = Some(ended_at);
            recovery.reset();
        }
        if is_permanent(&loss) {
            lost_at = None;
        }
        service.set_status(to_status(&loss));
        let wait = retry.next_wait_after_run(began_at.duration_until(ended_at), ended_at);
        let is_recovering =
            lost_at.is_some_and(|at| at.duration_until(ended_at) < options.recovery_max);
        let wait = match is_recovering {
            true => recovery.next_wait(ended_at).min(wait),
            false => wait,
        };
        sleep(wait).await;
    }
}

fn to_status(loss: &ConnectionLoss) -> ServiceStatus {
    let reason = display_chain(loss).into();
    match (is_permanent(loss), loss) {
        (false, _) => ServiceStatus::Away(reason),
        (true, ConnectionLoss::Dial(DialError::Refused { status })) => ServiceStatus::Refused {
            status: Some(*status),
            reason,
        },
        (true, _) => ServiceStatus::Refused {
            status: None,
            reason,
        },
    }
}

/// Whether the gateway rejects this executor, as far as known.
fn is_permanent(loss: &ConnectionLoss) -> bool {
    match loss {
        ConnectionLoss::Credential(_) | ConnectionLoss::Dial(DialError::Refused { .. }) => true,
        ConnectionLoss::Serve(ServiceError::Ended(DisconnectReason::Closed { code, .. })) => {
            matches!(
                *code,
                close_codes::CREDENTIAL_ENDED | close_codes::NOT_ADMITTED
            )
        }
        ConnectionLoss::Serve(ServiceError::Version(_)) => true,
        ConnectionLoss::Dial(_) | ConnectionLoss::Serve(_) => false,
    }
}

/// Connects once and serves until the end.
async fn connect_once(
    to: &HttpEndpoint,
    credential: &CredentialSource,
    service: &ExecutorService,
    connect_timeout: Duration,
) -> ConnectionLoss {
    let token = match credential.read() {
        Ok(token) => token,
        Err(error) => return ConnectionLoss::Credential(error),
    };
    let clock = service.clock();
    let deadline = clock.instant(clock.now().plus(connect_timeout));
    let limits = service.offer().limits.socket;
    match dial(to, Some(&token), deadline, limits, service.tasks()).await {
        Ok(io) => ConnectionLoss::Serve(service.serve_gateway(io).await),
        Err(error) => ConnectionLoss::Dial(error),
    }
}
