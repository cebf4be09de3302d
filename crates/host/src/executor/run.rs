//! An executor that dials its gateway, for as long as it is wanted.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bowline_core::backoff::{Backoff, Restarts};
use bowline_core::error::whole;
use bowline_link::executor::{CREDENTIAL_OVER, FENCED, REFUSED};
use bowline_link::http::endpoint::{Endpoint, EndpointError};
use bowline_link::websocket::{DialError, Ended, dial};
use thiserror::Error;
use tokio::time::sleep;

use super::offer::Offer;
use super::servant::{Servant, ServeError, Standing};
use crate::address;
use crate::credential::Credential;
use crate::ports::SystemClock;
use crate::tasks::Tasks;

/// How an executor comes back to its gateway.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// The wait before the next connection.
    pub backoff: Backoff,
    /// The wait while the gateway may still go on with the session.
    pub recovery: Backoff,
    /// How long that is.
    pub recovery_max: Duration,
    /// A connection that lasted so long was a good one: the wait is the shortest again.
    pub steady: Duration,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            backoff: Backoff {
                base: Duration::from_millis(500),
                cap: Duration::from_secs(30),
            },
            recovery: Backoff {
                base: Duration::from_millis(100),
                cap: Duration::from_secs(1),
            },
            recovery_max: Duration::from_secs(25),
            steady: Duration::from_secs(10),
        }
    }
}

/// Why an executor does not come back by itself.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RunError {
    /// The address cannot be used.
    #[error("the address of the gateway cannot be used")]
    Endpoint(#[from] EndpointError),
    /// Another executor has this name now.
    #[error("another executor took our place")]
    Fenced,
}

/// Why a connection is over.
#[derive(Debug, Error)]
enum Lost {
    #[error("the credential cannot be read")]
    Credential(#[source] std::io::Error),
    #[error("the gateway cannot be dialled")]
    Dial(#[source] DialError),
    #[error("the gateway is gone")]
    Serve(#[source] ServeError),
}

/// Offers what this machine has to the gateway at `url` until `shutdown` ends.
///
/// A connection that ends is made anew: soon at first, since the gateway can go on with what ran
/// here, and then after a wait that doubles from 500 ms to 30 s and is the shortest again after
/// 10 s of service.
///
/// ```
/// use bowline_core::egress::Rule;
/// use bowline_host::executor::{Credential, Executors, ExecutorsOptions, Offer, run};
/// use bowline_link::http::client::{Outgoing, Wait};
/// use bowline_link::http::endpoint::Endpoint;
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use bowline_host::broker::Refusal;
/// # use bowline_host::executor::Porter;
/// # use bowline_host::ports::{Clock as _, SystemClock};
/// # use bowline_host::tasks::Tasks;
/// # use bowline_host::BoxFuture;
/// # use bowline_link::websocket::accept;
/// # use bowline_wire::executor::Hello;
/// # use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
/// # use tokio::net::TcpListener;
/// #
/// # #[derive(Debug)]
/// # struct Everybody;
/// # impl Porter for Everybody {
/// #     fn admit(&self, _: &Hello) -> Result<BoxFuture<'static, Refusal>, Refusal> {
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
/// # let door = TcpListener::bind("127.0.0.1:0").await?;
/// # let gateway = format!("http://{}", door.local_addr()?);
/// # let (clock, tasks) = (Arc::new(SystemClock::start()), Tasks::default());
/// # let until = clock.instant(clock.now().plus(Duration::from_secs(20)));
/// // On one machine, what may be reached from there, for whoever has the token.
/// let mut offer = Offer::new("office");
/// offer.egress.all = vec![Rule::parse(&format!("127.0.0.1:{}", server.port()))?];
/// let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
/// let ran = tokio::spawn(async move {
///     let stopped = async { drop(stopped.await) };
///     run(&gateway, Credential::fixed("secret"), offer, stopped).await
/// });
///
/// // On another, the gateway.
/// let executors = Executors::new(tasks.clone(), clock, ExecutorsOptions::default());
/// # let entrance = executors.clone();
/// # tokio::spawn(async move {
/// #     let (stream, _) = door.accept().await.unwrap();
/// #     let caller = accept(stream, until).await.unwrap();
/// #     let io = caller.upgrade(entrance.socket(), &tasks).await.unwrap();
/// #     entrance.attend(io, "here", &Everybody).await;
/// # });
/// # while executors.ready("office", until).await.is_err() {
/// #     tokio::task::yield_now().await;
/// # }
/// let client = executors.client("office", "tracker", Vec::new());
/// let to = Endpoint::parse(&format!("http://{server}/"))?;
/// let request = Outgoing::new(http::Method::GET, &to);
/// let wait = Wait { connect: None, first_byte: None, leaving: &|| {} };
/// let mut response = client.send(request, wait).await?;
/// assert_eq!(response.body.whole(100).await?, "hello");
///
/// drop(stop);
/// ran.await??;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })
/// # }
/// ```
///
/// # Errors
/// The address cannot be used, or another executor took our place, which ends it: two that come
/// back again and again would serve nobody.
pub async fn run(
    url: &str,
    credential: Credential,
    offer: Offer,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), RunError> {
    let clock = Arc::new(SystemClock::start());
    let servant = Servant::new(offer, Tasks::default(), clock);
    run_with(url, &credential, &servant, RunOptions::default(), shutdown).await
}

/// The same, with everything said. [`Servant::standing`] tells how it goes.
///
/// # Errors
/// As for [`run`].
pub async fn run_with(
    url: &str,
    credential: &Credential,
    servant: &Servant,
    options: RunOptions,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), RunError> {
    let to = address::parse(url, address::EXECUTOR)?;
    // It lives until all is told: without it, the connection is let go of.
    let mut running = pin!(again_and_again(&to, credential, servant, options));
    let ran = tokio::select! {
        biased;
        () = pin!(shutdown) => Ok(()),
        ran = &mut running => ran,
    };
    servant.close().await;
    ran
}

async fn again_and_again(
    to: &Endpoint,
    credential: &Credential,
    servant: &Servant,
    options: RunOptions,
) -> Result<(), RunError> {
    let clock = servant.clock();
    let mut restarts = Restarts::new(options.backoff, options.steady);
    // When the last session was lost, and how often it was tried to go on with it since.
    let mut lost_at = None;
    let mut tries = 0;
    loop {
        let began = clock.now();
        let lost = once(to, credential, servant, options.connect_timeout).await;
        let ended = clock.now();
        let is_fenced = matches!(
            &lost,
            Lost::Serve(ServeError::Ended(Ended::Closed { code: FENCED, .. }))
        );
        if is_fenced {
            servant.stand(Standing::Away("another executor took our place".into()));
            return Err(RunError::Fenced);
        }
        tracing::warn!(error = &lost as &dyn std::error::Error, "not connected");
        if matches!(lost, Lost::Serve(_)) {
            lost_at = Some(ended);
            tries = 0;
        }
        if is_definite(&lost) {
            lost_at = None;
        }
        servant.stand(standing(&lost));
        let wait = restarts.wait(began.until(ended), jitter());
        let is_recovering = lost_at.is_some_and(|at| at.until(ended) < options.recovery_max);
        let wait = match is_recovering {
            true => {
                tries += 1;
                options.recovery.wait(tries, jitter()).min(wait)
            }
            false => wait,
        };
        sleep(wait).await;
    }
}

fn standing(lost: &Lost) -> Standing {
    let reason = whole(lost).into();
    match (is_definite(lost), lost) {
        (false, _) => Standing::Away(reason),
        (true, Lost::Dial(DialError::Refused { status })) => Standing::Refused {
            status: Some(*status),
            reason,
        },
        (true, _) => Standing::Refused {
            status: None,
            reason,
        },
    }
}

/// Whether the gateway does not want us, as far as can be seen.
fn is_definite(lost: &Lost) -> bool {
    match lost {
        Lost::Credential(_) | Lost::Dial(DialError::Refused { .. }) => true,
        Lost::Serve(ServeError::Ended(Ended::Closed { code, .. })) => {
            matches!(*code, CREDENTIAL_OVER | REFUSED)
        }
        Lost::Serve(ServeError::Version(_)) => true,
        Lost::Dial(_) | Lost::Serve(_) => false,
    }
}

/// Makes one connection and serves until it is over.
async fn once(
    to: &Endpoint,
    credential: &Credential,
    servant: &Servant,
    connect_timeout: Duration,
) -> Lost {
    let token = match credential.read() {
        Ok(token) => token,
        Err(error) => return Lost::Credential(error),
    };
    let clock = servant.clock();
    let deadline = clock.instant(clock.now().plus(connect_timeout));
    let limits = servant.offer().limits.socket;
    match dial(to, Some(&token), deadline, limits, servant.tasks()).await {
        Ok(io) => Lost::Serve(servant.attend(io).await),
        Err(error) => Lost::Dial(error),
    }
}

fn jitter() -> u64 {
    let mut random = [0; 8];
    // Without a random number the wait is the whole one.
    let _unlikely = getrandom::fill(&mut random);
    u64::from_be_bytes(random)
}
