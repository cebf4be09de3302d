//! Registry of a gateway's executors: joined executors and dialled executors.

mod dial_loop;
mod executor_entry;
mod executor_status;
mod name_claim;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bowline_core::BoxFuture;
use bowline_core::backoff::Backoff;
use bowline_core::error::display_chain;
use bowline_core::hex::to_hex;
use bowline_core::sync::lock;
use bowline_link::http::endpoint::HttpEndpoint;
use bowline_link::http::http_client::{HttpClient, HttpError};
use bowline_link::websocket::close_codes;
use bowline_link::websocket::{
    DisconnectReason, MessageFormat, WebSocketConnection, WebSocketLimits,
};
use bowline_runtime::{Clock, CredentialSource, Lifecycle, TaskTracker};

use crate::connection::{ExecutorTunnel, receive_hello};
use crate::flow::FlowLimits;
use crate::frames::{ExecutorHello, FRAME_BYTES_MAX, SecretHeader};
use crate::refusal::ExecutorRefusal;
use tokio::time::Instant;

use super::executor_http_client::ExecutorHttpClient;
use crate::events::ExecutorEvents;

use dial_loop::ExecutorDialer;
pub(super) use executor_entry::{CurrentConnection, ExecutorEntry};
pub use executor_status::{DialDirection, ExecutorProtocol, ExecutorStatus};
use name_claim::NameClaim;

/// Known names; at the limit the executor absent for longest is forgotten.
const NAMES_MAX: usize = 1_024;

/// Options of a registry.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorRegistryOptions {
    /// Flow control limits of one connection.
    pub flow: FlowLimits,
    /// WebSocket limits.
    pub socket: WebSocketLimits,
    /// Timeout of one connection attempt.
    pub connect_timeout: Duration,
    /// How long callers wait for a recently lost executor.
    pub recovery_wait: Duration,
    /// Dial interval while callers wait.
    pub recovery_interval: Duration,
    /// How long servers on an executor outlive a lost connection.
    pub session_retention: Duration,
    /// Backoff between dial attempts.
    pub backoff: Backoff,
    /// A connection of at least this length resets the backoff.
    pub steady: Duration,
}

impl Default for ExecutorRegistryOptions {
    fn default() -> Self {
        Self {
            flow: FlowLimits::default(),
            socket: WebSocketLimits {
                format: MessageFormat::Binary,
                message_bytes_max: FRAME_BYTES_MAX,
                ..WebSocketLimits::default()
            },
            connect_timeout: Duration::from_secs(10),
            recovery_wait: Duration::from_secs(25),
            recovery_interval: Duration::from_millis(100),
            session_retention: Duration::from_secs(30),
            backoff: Backoff {
                base: Duration::from_millis(500),
                cap: Duration::from_secs(30),
            },
            steady: Duration::from_secs(10),
        }
    }
}

/// How to reach a listening executor.
#[derive(Clone, Debug)]
pub struct DialSpec {
    /// The `http(s)` endpoint, with path.
    pub endpoint: HttpEndpoint,
    /// Credential of the gateway.
    pub credential: Option<CredentialSource>,
    /// Wire protocol.
    pub protocol: ExecutorProtocol,
    /// Client name sent to an exec-server.
    pub client_name: Arc<str>,
}

/// Default client name sent to an exec-server.
pub const CLIENT_NAME: &str = "bowline";

/// Authenticates joining executors; implemented by the edge.
pub trait ExecutorAuthenticator: fmt::Debug + Send + Sync {
    /// Admits an executor under the claimed name. The future resolves with the reason when the
    /// right ends.
    ///
    /// # Errors
    /// The executor is not admitted.
    fn authenticate(
        &self,
        hello: &ExecutorHello,
    ) -> Result<BoxFuture<'static, ExecutorRefusal>, ExecutorRefusal>;

    /// Called for every refused executor, and when the right of a connected executor ends.
    fn on_refused(&self, name: &str, refusal: &ExecutorRefusal) {
        let _ = (name, refusal);
    }
}

/// The executors of a gateway, by name. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ExecutorRegistry {
    shared: Arc<RegistryShared>,
}

#[derive(Debug)]
struct RegistryShared {
    tasks: TaskTracker,
    clock: Arc<dyn Clock>,
    options: ExecutorRegistryOptions,
    entries: Mutex<BTreeMap<Arc<str>, Arc<ExecutorEntry>>>,
    lifecycle: Lifecycle,
    /// Receives the events; set after the host is built.
    events: OnceLock<Arc<dyn ExecutorEvents>>,
}

impl ExecutorRegistry {
    /// Returns an empty registry.
    #[must_use]
    pub fn new(
        tasks: TaskTracker,
        clock: Arc<dyn Clock>,
        options: ExecutorRegistryOptions,
    ) -> Self {
        Self {
            shared: Arc::new(RegistryShared {
                tasks,
                clock,
                options,
                entries: Mutex::default(),
                lifecycle: Lifecycle::default(),
                events: OnceLock::new(),
            }),
        }
    }

    /// Emits connect and disconnect events to `events` from now on.
    pub fn report_to(&self, events: Arc<dyn ExecutorEvents>) {
        let _second = self.shared.events.set(events);
    }

    /// Returns the WebSocket limits for joining executors.
    #[must_use]
    pub fn socket_limits(&self) -> WebSocketLimits {
        self.shared.options.socket
    }

    /// Serves a joining executor with remote address `from`, until the connection ends.
    pub async fn serve_executor(
        &self,
        mut socket: WebSocketConnection,
        from: &str,
        authenticator: &dyn ExecutorAuthenticator,
    ) {
        let hello = match receive_hello(&mut socket.receiver).await {
            Ok(hello) => hello,
            Err(error) => return error.close_connection(&socket.sender),
        };
        let refuse = |refusal: &ExecutorRefusal| {
            authenticator.on_refused(&hello.name, refusal);
            socket
                .sender
                .close(close_codes::NOT_ADMITTED, &refusal.reason);
        };
        let admitted = authenticator.authenticate(&hello);
        let entry = match admitted {
            Err(refusal) => return refuse(&refusal),
            Ok(credential) => self
                .find_or_create(&hello.name)
                .map(|entry| (entry, credential)),
        };
        let (entry, credential) = match entry {
            Ok((entry, _)) if entry.is_dialled() => {
                return refuse(&not_allowed(
                    "this name belongs to an executor that is dialled",
                ));
            }
            Ok(found) => found,
            Err(reason) => return refuse(&not_allowed(reason)),
        };
        let claim = NameClaim::claim(&self.shared, &entry, DialDirection::Joined, from);
        let (_, session_refusal) =
            serve_session(&self.shared, claim, &hello, socket, credential).await;
        if let Some(refusal) = session_refusal {
            authenticator.on_refused(&hello.name, &refusal);
        }
    }

    /// Keeps a connection to a listening executor. A dial of the same name to another endpoint
    /// ends.
    pub fn dial(&self, name: &str, spec: DialSpec) {
        let Ok(entry) = self.find_or_create(name) else {
            return;
        };
        if let Some(specs) = entry.start_dialling(&self.shared, spec) {
            let shared = Arc::clone(&self.shared);
            let dialer = ExecutorDialer {
                shared,
                entry,
                specs,
            };
            self.shared
                .tasks
                .start(dialer, self.shared.lifecycle.shutdown());
        }
    }

    /// Closes the connection to a dialled executor, and stops dialling.
    pub fn hang_up(&self, name: &str) {
        let entry = lock(&self.shared.entries).get(name).cloned();
        if let Some(entry) = entry {
            entry.stop_dialling();
        }
    }

    /// Returns the dialled names.
    #[must_use]
    pub fn dialled_names(&self) -> Vec<Arc<str>> {
        let names = lock(&self.shared.entries);
        let dialled = names.iter().filter(|(_, entry)| entry.is_dialled());
        dialled.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Returns an HTTP client for a server through an executor, connected or not.
    #[must_use]
    pub fn http_client(
        &self,
        executor: &str,
        server: &str,
        fills: Vec<SecretHeader>,
    ) -> Arc<dyn HttpClient> {
        let entry = self.entry_or_detached(executor);
        let clock = Arc::clone(&self.shared.clock);
        Arc::new(ExecutorHttpClient::new(entry, clock, server, fills))
    }

    /// Returns the tunnel of an executor with Bowline's protocol; waits for a recently lost
    /// executor.
    ///
    /// # Errors
    /// The executor is away, or speaks another protocol.
    pub async fn tunnel(
        &self,
        executor: &str,
        until: Option<Instant>,
    ) -> Result<Arc<ExecutorTunnel>, HttpError> {
        let entry = self.entry_or_detached(executor);
        let current = entry.wait_connection(&*self.shared.clock, until).await?;
        current.tunnel.ok_or_else(|| {
            let reason = format!("executor `{executor}` runs no servers: it is an exec-server");
            crate::connection::away_error(&reason)
        })
    }

    /// Waits until an executor connects or reconnects.
    pub async fn wait_reconnected(&self, executor: &str) {
        self.entry_or_detached(executor).wait_reconnected().await;
    }

    /// Whether an executor is connected now.
    #[must_use]
    pub fn is_connected(&self, executor: &str) -> bool {
        let entry = lock(&self.shared.entries).get(executor).cloned();
        entry.is_some_and(|entry| entry.is_connected())
    }

    /// Returns the status of all known executors, by name.
    #[must_use]
    pub fn list_statuses(&self) -> Vec<ExecutorStatus> {
        let entries: Vec<_> = lock(&self.shared.entries).values().cloned().collect();
        entries.iter().map(|entry| entry.status()).collect()
    }

    /// Waits until an executor is connected.
    ///
    /// # Errors
    /// The executor is away and not expected back soon.
    pub async fn wait_ready(&self, executor: &str, until: Instant) -> Result<(), HttpError> {
        let entry = self.entry_or_detached(executor);
        let connected = entry
            .wait_connection(&*self.shared.clock, Some(until))
            .await;
        connected.map(drop)
    }

    /// Closes all connections: the gateway shuts down.
    pub fn close(&self) {
        self.shared.lifecycle.close();
        let entries: Vec<_> = lock(&self.shared.entries).values().cloned().collect();
        for entry in entries {
            entry.stop_dialling();
            entry.close(close_codes::GOING_AWAY, "the gateway goes down");
        }
    }

    /// Returns the entry of a name. For an invalid name, or at the limit, the entry is detached:
    /// away and not registered.
    pub(super) fn entry_or_detached(&self, name: &str) -> Arc<ExecutorEntry> {
        self.find_or_create(name)
            .unwrap_or_else(|_| Arc::new(ExecutorEntry::new(name)))
    }

    fn find_or_create(&self, name: &str) -> Result<Arc<ExecutorEntry>, &'static str> {
        if !bowline_core::name::is_server_name(name) {
            return Err("the name of an executor is of lower-case letters, digits and hyphens");
        }
        let mut names = lock(&self.shared.entries);
        if let Some(entry) = names.get(name) {
            return Ok(Arc::clone(entry));
        }
        if names.len() >= NAMES_MAX {
            let away = names.iter().filter(|(_, entry)| entry.is_idle());
            let oldest = away.min_by_key(|(_, entry)| entry.lost_at());
            let oldest = oldest.map(|(name, _)| Arc::clone(name));
            let oldest = oldest.ok_or("there are too many executors")?;
            names.remove(&oldest);
        }
        let entry = Arc::new(ExecutorEntry::new(name));
        names.insert(Arc::clone(entry.name()), Arc::clone(&entry));
        Ok(entry)
    }
}

impl RegistryShared {
    fn emit_event(&self, name: &Arc<str>, state: &'static str, reason: Option<Arc<str>>) {
        if let Some(events) = self.events.get() {
            events.on_executor_state(name, state, reason);
        }
    }
}

/// Opens the session of an executor after `hello`, and serves until the end.
async fn serve_session(
    shared: &RegistryShared,
    claim: NameClaim,
    hello: &ExecutorHello,
    socket: WebSocketConnection,
    credential: BoxFuture<'static, ExecutorRefusal>,
) -> (DisconnectReason, Option<ExecutorRefusal>) {
    let outgoing = socket.sender.clone();
    let Some(attached) = claim.attach_session(hello) else {
        outgoing.close(close_codes::FENCED, "another connection has this name now");
        return (DisconnectReason::Local, None);
    };
    match ExecutorTunnel::open(hello, attached, socket, &shared.tasks).await {
        Ok(tunnel) => {
            drop(outgoing);
            let tunnel = Arc::new(tunnel);
            let current = CurrentConnection {
                connection: Arc::clone(&tunnel) as _,
                tunnel: Some(tunnel),
            };
            claim.serve_connection(current, credential).await
        }
        Err(error) => {
            error.close_connection(&outgoing);
            claim.record_failure(&display_chain(&error));
            (DisconnectReason::Local, None)
        }
    }
}

fn not_allowed(reason: &str) -> ExecutorRefusal {
    ExecutorRefusal {
        reason: reason.into(),
        code: Some("not_allowed".into()),
    }
}

/// Returns an unguessable unique id.
fn random_id() -> Arc<str> {
    let mut random = [0; 16];
    let drawn = getrandom::fill(&mut random);
    debug_assert!(drawn.is_ok(), "the kernel gives random bytes");
    to_hex(&random).into()
}
