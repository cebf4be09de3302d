//! Reads the event streams of a server outside requests.

use std::sync::Arc;
use std::time::Duration;

use bowline_core::error::FailureClass;
use bowline_runtime::timer;
use http::StatusCode;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::HttpSpec;
use super::conversation::HttpConversation;
use super::endpoint::HttpEndpoint;
use super::event_stream::{EventStream, EventStreamEnd, StreamResume};
use super::http_client::{HttpClient, SendOptions};
use super::http_session::SessionHeaders;
use super::post_request::is_message_event;
use super::sender::{HttpSender, OutboundRequest, RequestKind};
use super::status_error::{self, ContentKind, content_type_error, read_status_error};
use crate::link::{LinkError, LinkExit};

/// Timeout for renewing a session without a waiting request.
const RENEW_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether to reconnect.
#[derive(Debug, PartialEq, Eq)]
enum ListenNext {
    Retry,
    Stop,
}

/// Keeps the GET event stream open, if offered.
pub(super) async fn run_sse_listener(conversation: Arc<HttpConversation>) {
    let mut resume = StreamResume::default();
    let mut sessions = conversation.session.subscribe();
    loop {
        let session = Arc::clone(&sessions.borrow_and_update());
        let next = tokio::select! {
            biased;
            _ = conversation.wait_closing() => return,
            // A stream belongs to a session.
            _ = sessions.changed() => {
                resume = StreamResume::default();
                continue;
            }
            next = listen_once(&conversation, &session, &mut resume) => next,
        };
        if next == ListenNext::Stop {
            return skip_listening(&conversation, sessions).await;
        }
        tokio::select! {
            biased;
            _ = conversation.wait_closing() => return,
            () = sleep(resume.next_delay()) => {}
        }
    }
}

/// Marks every session as settled, as no stream will be opened.
async fn skip_listening(
    conversation: &HttpConversation,
    mut sessions: watch::Receiver<Arc<SessionHeaders>>,
) {
    loop {
        sessions.borrow_and_update().set_listen_settled();
        tokio::select! {
            biased;
            _ = conversation.wait_closing() => return,
            _ = sessions.changed() => {}
        }
    }
}

/// Opens the stream once and reads to the end.
async fn listen_once(
    conversation: &Arc<HttpConversation>,
    session: &Arc<SessionHeaders>,
    resume: &mut StreamResume,
) -> ListenNext {
    let opened = conversation.open_stream(session, resume, None).await;
    session.set_listen_settled();
    let response = match opened {
        Ok(response) => response,
        Err(LinkError::Unreachable(_)) => {
            conversation.mark_lost();
            return ListenNext::Stop;
        }
        // The executor is away, and so is the server, as far as visible here.
        Err(LinkError::RemoteFailure(failure)) if failure.class == FailureClass::Unavailable => {
            conversation.mark_lost();
            return ListenNext::Stop;
        }
        Err(error) if status_error::is_transient(&error) => return ListenNext::Retry,
        Err(error) => {
            debug!(server = %conversation.spec.server, %error, "event stream is not available");
            return ListenNext::Stop;
        }
    };
    match response.status {
        StatusCode::OK if status_error::content_kind(&response.headers) == ContentKind::Events => {
            let stream = EventStream::new(response.body, conversation.spec.limits.body_bytes_max);
            read_events(conversation, stream, resume).await;
            ListenNext::Retry
        }
        StatusCode::NOT_FOUND if session.id.is_some() => {
            match conversation
                .renew_session(session, timer::deadline_after(RENEW_TIMEOUT))
                .await
            {
                Ok(()) => ListenNext::Retry,
                Err(_) => ListenNext::Stop,
            }
        }
        // The credentials may be valid next time.
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ListenNext::Retry,
        _ => {
            let error = read_status_error(response).await;
            if status_error::is_transient(&error) {
                return ListenNext::Retry;
            }
            debug!(server = %conversation.spec.server, %error, "event stream is not available");
            ListenNext::Stop
        }
    }
}

/// Dispatches every message of a stream.
async fn read_events(
    conversation: &Arc<HttpConversation>,
    mut stream: EventStream,
    resume: &mut StreamResume,
) {
    loop {
        match stream.next_event(resume).await {
            Ok(event) if is_message_event(event.event.as_deref()) => {
                conversation.dispatch_text(event.data.into(), None);
            }
            Ok(_) => {}
            Err(EventStreamEnd::Fault(_)) => {
                // Resuming would exceed the limit again.
                resume.last_event_id = None;
                return;
            }
            Err(EventStreamEnd::Finished | EventStreamEnd::Broken(_)) => return,
        }
    }
}

/// Opens the HTTP+SSE stream and waits for the `endpoint` event.
pub(super) async fn find_endpoint(
    spec: &HttpSpec,
    client: &Arc<dyn HttpClient>,
    deadline: Instant,
) -> Result<(HttpEndpoint, EventStream), LinkError> {
    let sender = HttpSender::new(Arc::clone(client), Arc::clone(&spec.credentials));
    let session = SessionHeaders::before_handshake();
    let request = OutboundRequest {
        endpoint: &spec.url,
        kind: &RequestKind::Get,
        session: &session,
        last_event: None,
    };
    let wait = SendOptions {
        connect_by: Some(deadline),
        first_byte_by: Some(deadline),
        on_send: &|| {},
    };
    let response = sender.send(request, wait).await?;
    if response.status != StatusCode::OK {
        return Err(read_status_error(response).await);
    }
    if status_error::content_kind(&response.headers) != ContentKind::Events {
        return Err(content_type_error(response).await);
    }
    let mut stream = EventStream::new(response.body, spec.limits.body_bytes_max);
    let mut resume = StreamResume::default();
    let endpoint_event = timeout_at(deadline, async {
        loop {
            match stream.next_event(&mut resume).await {
                Ok(event) if event.event.as_deref() == Some("endpoint") => break Ok(event.data),
                Ok(_) => {}
                Err(_) => break Err(LinkError::Lost(LinkExit::Closed)),
            }
        }
    });
    let data = endpoint_event.await.map_err(|_| LinkError::Timeout {
        sent: bowline_core::pending_table::SendState::MaybeSent,
    })??;
    let bad = |reason: &str| LinkError::BadResponse(reason.into());
    let text = std::str::from_utf8(&data).map_err(|_| bad("the endpoint is no text"))?;
    let endpoint = spec.url.resolve(text);
    let endpoint = endpoint.map_err(|error| bad(&error.to_string()))?;
    if !endpoint.is_same_origin(&spec.url) {
        return Err(bad("the endpoint is on another origin"));
    }
    Ok((endpoint, stream))
}

/// Reads the HTTP+SSE stream; the end closes the link.
pub(super) async fn run_sse_transport(conversation: Arc<HttpConversation>, stream: EventStream) {
    let mut resume = StreamResume::default();
    tokio::select! {
        biased;
        // Responses would arrive on this stream only.
        exit = conversation.wait_ended() => conversation.finish(exit),
        () = read_events(&conversation, stream, &mut resume) => {
            conversation.finish(LinkExit::Closed);
        }
    }
}
