//! Legacy session with a server that supports both eras. Most tools of such servers can elicit only
//! in the legacy era, so calls of clients with capabilities use this session.

use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bowline_core::call::ServerResponse;
use bowline_core::client_handle::ClientHandle;
use bowline_core::era::Era;
use bowline_core::log_level::LogLevel;
use bowline_core::sync::lock;
use bowline_runtime::timer;
use bowline_wire::era::input_required::ContinuationParams;
use bowline_wire::era::request_meta::{RequestMeta, supports_tasks};
use bowline_wire::mcp::method;
use bowline_wire::object;
use bowline_wire::splice::write_string;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::conversation::{HttpConversation, HttpMode};
use super::http_client::HttpClient;
use super::http_session::SessionHeaders;
use super::{HttpSpec, background, sse_listener, status_error};
use crate::link::{LinkError, LinkEvent, LinkRequest, ServerInfo};
use crate::stdio::ClientInfo;
use crate::stdio::mcp_handshake::HandshakeError;

/// Timeout of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout of `logging/setLevel` before the call that needs the level.
const LOG_LEVEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay after the first failed handshake, doubled after each further failure.
const RETRY_BASE: Duration = Duration::from_secs(30);

/// Consecutive failed handshakes before the server counts as modern only. A proxy may delay or
/// reject unknown requests.
const HANDSHAKE_FAILURES_MAX: u32 = 4;

/// Opens the session on first use.
#[derive(Debug, Default)]
pub(super) struct LegacySession(watch::Sender<LegacySessionState>);

#[derive(Clone, Debug, Default)]
enum LegacySessionState {
    /// Not needed yet, or lost.
    #[default]
    Closed,
    /// A call waits for the session.
    Wanted,
    Open(Arc<OpenLegacySession>),
    /// The last handshake failed; calls do not wait until the delay has passed.
    BackingOff,
    /// The server does not support sessions.
    Unsupported,
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LegacySessionEnd {
    /// It was open and has closed.
    Closed,
    /// The handshake failed, perhaps by chance.
    Failed,
    /// The server does not support sessions, or the link has closed.
    Unsupported,
}

/// Configuration of the session.
#[derive(Debug)]
pub(super) struct LegacySessionConfig {
    pub(super) spec: HttpSpec,
    pub(super) client: Arc<dyn HttpClient>,
    pub(super) info: ClientInfo,
    pub(super) events: mpsc::Sender<LinkEvent>,
}

/// Whether the server may send requests during this call that only a session can carry.
fn needs_session(request: &LinkRequest) -> bool {
    let is_input_method = matches!(
        &*request.method,
        method::TOOLS_CALL | method::PROMPTS_GET | method::RESOURCES_READ
    );
    let can_be_asked = |caller: &Arc<dyn ClientHandle>| caller.capabilities().has_any();
    if !is_input_method || !request.message.client.as_ref().is_some_and(can_be_asked) {
        return false;
    }
    let params = &request.message.params;
    match request.message.era {
        // Later task requests use the modern era.
        Era::Legacy => object::field(params, "task").is_none(),
        // Possible tasks and continued requests stay in the modern era.
        Era::Modern => {
            let declared = RequestMeta::parse(params)
                .capabilities
                .map(|at| at.slice(params));
            !declared.is_some_and(supports_tasks)
                && !ContinuationParams::parse(params).is_continuation()
        }
    }
}

impl LegacySession {
    /// Whether a request should use the session.
    pub(super) fn is_preferred_for(&self, request: &LinkRequest) -> bool {
        !matches!(&*self.0.borrow(), LegacySessionState::Unsupported) && needs_session(request)
    }

    /// Returns the session, opened on demand; `None` if the server does not support sessions.
    pub(super) async fn get_or_open(&self, deadline: Instant) -> Option<Arc<OpenLegacySession>> {
        self.0.send_if_modified(|state| {
            let closed = matches!(state, LegacySessionState::Closed);
            if closed {
                *state = LegacySessionState::Wanted;
            }
            closed
        });
        let mut state = self.0.subscribe();
        let settled = state.wait_for(|state| !matches!(state, LegacySessionState::Wanted));
        match timeout_at(deadline, settled).await.ok()?.ok()?.clone() {
            LegacySessionState::Open(session) => Some(session),
            LegacySessionState::Closed
            | LegacySessionState::Wanted
            | LegacySessionState::BackingOff
            | LegacySessionState::Unsupported => None,
        }
    }

    /// Returns the conversation of the open session.
    pub(super) fn current(&self) -> Option<Arc<HttpConversation>> {
        match &*self.0.borrow() {
            LegacySessionState::Open(session) => Some(Arc::clone(&session.conversation)),
            LegacySessionState::Closed
            | LegacySessionState::Wanted
            | LegacySessionState::BackingOff
            | LegacySessionState::Unsupported => None,
        }
    }
}

/// An open session.
#[derive(Debug)]
pub(super) struct OpenLegacySession {
    conversation: Arc<HttpConversation>,
    /// Whether the server supports log levels.
    has_logging: bool,
    /// Most verbose level sent, and its session: a new handshake resets the level.
    sent_level: Mutex<Option<(Weak<SessionHeaders>, LogLevel)>>,
}

impl OpenLegacySession {
    fn new(conversation: Arc<HttpConversation>, info: &ServerInfo) -> Self {
        let capabilities = object::field(&info.initialize, "capabilities");
        let capabilities = capabilities.map_or(&b""[..], |at| at.slice(&info.initialize));
        Self {
            conversation,
            has_logging: object::field(capabilities, "logging").is_some(),
            sent_level: Mutex::default(),
        }
    }

    /// Sends a request, after the server log level covers its caller's level.
    pub(super) async fn request(&self, request: LinkRequest) -> Result<ServerResponse, LinkError> {
        let level = request
            .message
            .client
            .as_ref()
            .and_then(|caller| caller.log_level());
        if let Some(level) = level.filter(|_| self.has_logging) {
            self.set_log_level(level, request.deadline).await;
        }
        self.conversation.request(request).await
    }

    /// Sends a log level that is more verbose than the last level sent. Each caller gets only log
    /// messages of its own level.
    async fn set_log_level(&self, level: LogLevel, deadline: Instant) {
        let session = Arc::downgrade(&*self.conversation.session.borrow());
        let is_set = lock(&self.sent_level)
            .as_ref()
            .is_some_and(|(sent_session, sent_level)| {
                sent_session.ptr_eq(&session) && *sent_level <= level
            });
        if is_set {
            return;
        }
        let mut params = b"{\"level\":".to_vec();
        write_string(&mut params, level.as_str());
        params.push(b'}');
        let until = deadline.min(timer::deadline_after(LOG_LEVEL_TIMEOUT));
        let request = LinkRequest::new_internal(method::LOGGING_SET_LEVEL, params.into(), until);
        match self.conversation.request(request).await {
            // A refusal would repeat, so it counts as sent.
            Ok(_) => *lock(&self.sent_level) = Some((session, level)),
            Err(error) => {
                let server = &self.conversation.spec.server;
                debug!(%server, %error, "log level was not set");
            }
        }
    }
}

/// Opens the session on demand until the link closes, then ends an open session.
pub(super) async fn run_legacy_session(
    legacy: Arc<LegacySession>,
    link: Arc<HttpConversation>,
    config: LegacySessionConfig,
) {
    let mut state = legacy.0.subscribe();
    let mut failures = 0;
    loop {
        let is_wanted = tokio::select! {
            biased;
            _ = link.wait_closing() => false,
            wanted = state.wait_for(|state| matches!(state, LegacySessionState::Wanted)) => {
                wanted.is_ok()
            }
        };
        if !is_wanted {
            break;
        }
        match run_session_once(&legacy, &link, &config).await {
            LegacySessionEnd::Closed => failures = 0,
            LegacySessionEnd::Failed => {
                failures += 1;
                let Some(rest) = retry_delay(failures) else {
                    debug!(server = %config.spec.server, "server does not open sessions");
                    break;
                };
                legacy.0.send_replace(LegacySessionState::BackingOff);
                tokio::select! {
                    biased;
                    _ = link.wait_closing() => break,
                    () = sleep(rest) => {}
                }
            }
            LegacySessionEnd::Unsupported => break,
        }
        legacy.0.send_replace(LegacySessionState::Closed);
    }
    legacy.0.send_replace(LegacySessionState::Unsupported);
}

/// Returns the delay after this many failures; `None` to give up.
fn retry_delay(failures: u32) -> Option<Duration> {
    let doubled = 1_u32.checked_shl(failures.saturating_sub(1))?;
    (failures < HANDSHAKE_FAILURES_MAX).then(|| RETRY_BASE.saturating_mul(doubled))
}

/// Opens a session and runs it until it closes.
async fn run_session_once(
    legacy: &LegacySession,
    link: &HttpConversation,
    config: &LegacySessionConfig,
) -> LegacySessionEnd {
    let (client, info) = (Arc::clone(&config.client), config.info.clone());
    let (conversation, queues) = HttpConversation::new(
        &config.spec,
        client,
        info,
        HttpMode::Streamable,
        config.spec.url.clone(),
        config.events.clone(),
    );
    let deadline = timer::deadline_after(HANDSHAKE_TIMEOUT);
    let outcome = tokio::select! {
        biased;
        _ = link.wait_closing() => return LegacySessionEnd::Unsupported,
        shaken = conversation.initialize_session(deadline) => shaken,
    };
    let info = match outcome {
        Ok(info) => info,
        Err(HandshakeError::Link(error)) if status_error::is_transient(&error) => {
            return LegacySessionEnd::Failed;
        }
        Err(failure) => {
            let reason = failure.reason();
            debug!(server = %config.spec.server, %reason, "server does not support sessions");
            return LegacySessionEnd::Unsupported;
        }
    };
    let session = OpenLegacySession::new(Arc::clone(&conversation), &info);
    legacy
        .0
        .send_replace(LegacySessionState::Open(Arc::new(session)));
    let mut session_tasks = pin!(async {
        tokio::join!(
            sse_listener::run_sse_listener(Arc::clone(&conversation)),
            background::run_outbox(Arc::clone(&conversation), queues.outbox),
            background::run_background(Arc::clone(&conversation), queues.trailing_bodies),
            background::end_session_on_stop(Arc::clone(&conversation)),
        );
    });
    tokio::select! {
        biased;
        () = &mut session_tasks => LegacySessionEnd::Closed,
        _ = link.wait_closing() => {
            conversation.begin_shutdown();
            session_tasks.await;
            LegacySessionEnd::Unsupported
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_session_backs_off_then_gives_up() {
        let rests: Vec<_> = (1..=5).map(retry_delay).collect();
        let seconds = [Some(30), Some(60), Some(120), None, None];
        assert_eq!(rests, seconds.map(|wait| wait.map(Duration::from_secs)));
    }
}
