//! Task that keeps the change stream open while its link lives.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bowline_core::backoff::Backoff;
use bowline_core::call::BodyKind;
use bowline_core::client_handle::ClientCapabilities;
use bowline_core::retry::{JitterSource, Retry};
use bowline_wire::jsonrpc::write_notification;
use bowline_wire::mcp::{code, method};
use bowline_wire::object::field;
use bowline_wire::splice::write_string;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{ChangeStream, ChangeStreamFuture, ListenFilter, ListenTransport, RESOURCES_MAX};
use crate::demux::{CoalescedEvent, now};
use crate::link::{LinkError, LinkEvent, LinkExit, LinkRequest};
use crate::modern::era_params;
use crate::stdio::ClientInfo;

/// Timeout of the acknowledgement.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream is renewed after this time in any case.
const STREAM_LIFETIME_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Longest wait of a link start for the first stream; lists fetched after its acknowledgement
/// cannot change unnoticed.
const FIRST_STREAM_WAIT: Duration = Duration::from_secs(1);

/// Backoff after a lost stream.
const RETRY_BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(500),
    cap: Duration::from_secs(60),
};

/// A stream of this duration resets the backoff.
const STEADY_AFTER: Duration = Duration::from_secs(60);

/// Wanted and acknowledged subscriptions of a server.
#[derive(Debug, Default)]
pub(crate) struct ChangeListener {
    wanted: watch::Sender<WantedResources>,
    acknowledged: watch::Sender<AcknowledgedResources>,
    /// Whether the link start did not wait for the first stream.
    missed_start: AtomicBool,
}

#[derive(Clone, Debug, Default)]
struct WantedResources {
    serial: u64,
    uris: Vec<Arc<str>>,
}

#[derive(Debug, Default)]
struct AcknowledgedResources {
    /// Serial of the acknowledged wish; absent before the first.
    serial: Option<u64>,
    uris: Vec<Arc<str>>,
    is_closed: bool,
}

impl ChangeListener {
    /// Replaces the wanted resources, and returns the acknowledged resources.
    pub(crate) async fn set_resources(
        &self,
        mut uris: Vec<Arc<str>>,
        deadline: Instant,
    ) -> Result<Vec<Arc<str>>, LinkError> {
        uris.truncate(RESOURCES_MAX);
        let mut serial = 0;
        self.wanted.send_modify(|wanted| {
            wanted.serial += 1;
            wanted.uris = uris;
            serial = wanted.serial;
        });
        let mut acknowledged = self.acknowledged.subscribe();
        let acknowledged = acknowledged
            .wait_for(|acknowledged| acknowledged.is_closed || acknowledged.serial >= Some(serial));
        match timeout_at(deadline, acknowledged).await {
            Ok(Ok(acknowledged)) if !acknowledged.is_closed => Ok(acknowledged.uris.clone()),
            Ok(_) => Err(LinkError::Closed(LinkExit::Gone)),
            Err(_) => Err(LinkError::Timeout {
                sent: bowline_core::pending_table::SendState::MaybeSent,
            }),
        }
    }

    /// Waits briefly until the first stream is open or has failed.
    pub(crate) async fn wait_started(&self, deadline: Instant) {
        let mut agreed = self.acknowledged.subscribe();
        let agreed = agreed.wait_for(|agreed| agreed.is_closed || agreed.serial.is_some());
        let until = deadline.min(now() + FIRST_STREAM_WAIT);
        if timeout_at(until, agreed).await.is_err() {
            self.missed_start.store(true, Ordering::Relaxed);
        }
    }

    fn set_acknowledged(&self, serial: u64, uris: Vec<Arc<str>>) {
        self.acknowledged.send_modify(|agreed| {
            agreed.serial = Some(serial);
            agreed.uris = uris;
        });
    }
}

/// Runs until the link has closed. `declared` are the supported list changes.
pub(crate) async fn run_listener<E: ListenTransport>(
    transport: Arc<E>,
    listener: Arc<ChangeListener>,
    client: ClientInfo,
    declared: ListenFilter,
) {
    let mut listening = ListenTask {
        transport: Arc::clone(&transport),
        listener: Arc::clone(&listener),
        client,
        declared,
        current: None,
        acknowledged: Vec::new(),
        has_missed: false,
        retry: Retry::new(RETRY_BACKOFF, JitterSource::random()).with_steady_run(STEADY_AFTER),
    };
    tokio::select! {
        biased;
        _ = transport.wait_link_closed() => {}
        () = listening.run() => {}
    }
    listener
        .acknowledged
        .send_modify(|agreed| agreed.is_closed = true);
}

struct ListenTask<E> {
    transport: Arc<E>,
    listener: Arc<ChangeListener>,
    client: ClientInfo,
    declared: ListenFilter,
    current: Option<CurrentStream>,
    /// Resources of the last acknowledgement, kept after a lost stream.
    acknowledged: Vec<Arc<str>>,
    /// Whether changes may have been missed without a stream.
    has_missed: bool,
    retry: Retry,
}

/// An open stream.
struct CurrentStream {
    finished: ChangeStreamFuture,
    uris: Vec<Arc<str>>,
    since: Instant,
}

/// Outcome of opening a stream.
enum OpenOutcome {
    Opened(CurrentStream),
    /// The server returned an error, perhaps temporary or for this filter only.
    Refused,
    /// The server does not support the method.
    Unsupported,
    /// No acknowledgement in time, or the connection was lost.
    Lost,
}

/// Outcome of renewing the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RenewOutcome {
    /// Complete, as far as the server permits.
    Complete,
    /// Open without resources that an earlier stream had; retried.
    Partial,
    /// Refused, without a stream; retried.
    Refused,
    /// No answer, or the earlier stream was lost.
    Lost,
}

impl<E: ListenTransport> ListenTask<E> {
    async fn run(&mut self) {
        let listener = Arc::clone(&self.listener);
        let mut wanted_watch = listener.wanted.subscribe();
        loop {
            let wanted = wanted_watch.borrow_and_update().clone();
            let renewed = self.renew_stream(&wanted).await;
            if renewed != RenewOutcome::Lost {
                self.listener
                    .set_acknowledged(wanted.serial, self.current_uris());
            }
            if let RenewOutcome::Complete | RenewOutcome::Partial = renewed {
                if self.has_missed || self.listener.missed_start.swap(false, Ordering::Relaxed) {
                    self.emit_all_changes().await;
                }
                let retry_wait = match renewed {
                    RenewOutcome::Partial => Some(self.retry.next_wait(now())),
                    RenewOutcome::Complete | RenewOutcome::Refused | RenewOutcome::Lost => None,
                };
                tokio::select! {
                    biased;
                    changed = wanted_watch.changed() => match changed {
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                    () = wait_stream_end(&mut self.current) => {}
                    () = sleep_or_pending(retry_wait) => continue,
                }
            }
            self.has_missed = true;
            let lasted = self.current.take().map(|current| now() - current.since);
            let lasted = lasted.unwrap_or_default();
            let wait = self.retry.next_wait_after_run(lasted, now());
            let _ = timeout(wait, wanted_watch.changed()).await;
        }
    }

    fn current_uris(&self) -> Vec<Arc<str>> {
        let current = self.current.as_ref();
        current.map_or_else(Vec::new, |current| current.uris.clone())
    }

    /// Renews the stream for the wanted subscriptions.
    async fn renew_stream(&mut self, wanted: &WantedResources) -> RenewOutcome {
        let mut filter = self.declared.clone();
        filter.uris.clone_from(&wanted.uris);
        if filter.is_empty() {
            self.current = None;
            self.acknowledged.clear();
            return RenewOutcome::Complete;
        }
        let still: HashSet<_> = wanted.uris.iter().collect();
        self.acknowledged.retain(|uri| still.contains(uri));
        let mut outcome = self.open_stream(&filter).await;
        // An unknown resource must not disable the known resources or the list changes.
        for fewer in [self.acknowledged.clone(), Vec::new()] {
            let refused = matches!(outcome, OpenOutcome::Refused) && self.current.is_none();
            if !refused || fewer.len() >= filter.uris.len() {
                continue;
            }
            filter.uris = fewer;
            if !filter.is_empty() {
                outcome = self.open_stream(&filter).await;
            }
        }
        match outcome {
            // The earlier stream closes only now, so no change is missed.
            OpenOutcome::Opened(current) => {
                let is_less = filter.uris.is_empty() && !self.acknowledged.is_empty();
                if !is_less {
                    self.acknowledged.clone_from(&current.uris);
                }
                self.current = Some(current);
                match is_less {
                    true => RenewOutcome::Partial,
                    false => RenewOutcome::Complete,
                }
            }
            // The earlier stream continues.
            OpenOutcome::Refused => match &self.current {
                Some(current) if current.uris.len() < self.acknowledged.len() => {
                    RenewOutcome::Partial
                }
                Some(_) => RenewOutcome::Complete,
                None => RenewOutcome::Refused,
            },
            OpenOutcome::Unsupported => RenewOutcome::Complete,
            OpenOutcome::Lost => RenewOutcome::Lost,
        }
    }

    /// Opens a stream, while the earlier stream continues.
    async fn open_stream(&mut self, filter: &ListenFilter) -> OpenOutcome {
        let deadline = now() + STREAM_LIFETIME_MAX;
        let params = filter.to_params().into();
        let mut request = LinkRequest::new_internal(method::SUBSCRIPTIONS_LISTEN, params, deadline);
        era_params::to_modern(&mut request, &self.client, ClientCapabilities::default());
        let ChangeStream {
            acknowledged,
            mut finished,
        } = self.transport.start_listen(request);
        let opening = async {
            tokio::select! {
                biased;
                agreed = acknowledged => match agreed {
                    Ok(agreed) => Ok(agreed),
                    // Dropped with the request, whose outcome tells more.
                    Err(_) => Err(finished.as_mut().await),
                },
                ended = finished.as_mut() => Err(ended),
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = timeout(ACKNOWLEDGE_TIMEOUT, opening) => outcome,
            () = wait_stream_end(&mut self.current) => return OpenOutcome::Lost,
        };
        match outcome {
            Ok(Ok(acknowledged)) => OpenOutcome::Opened(CurrentStream {
                finished,
                uris: filter.acknowledged_uris(&acknowledged),
                since: now(),
            }),
            Ok(Err(Ok(response))) if response.body == BodyKind::Error => {
                tracing::warn!(
                    server = self.transport.server_name(),
                    error = %String::from_utf8_lossy(response.body_bytes()),
                    "server refused a change stream"
                );
                match parse_error_code(response.body_bytes()) {
                    Some(code::METHOD_NOT_FOUND) => OpenOutcome::Unsupported,
                    Some(_) | None => OpenOutcome::Refused,
                }
            }
            Ok(Err(_)) | Err(_) => OpenOutcome::Lost,
        }
    }

    /// Emits a change for every list and subscribed resource.
    async fn emit_all_changes(&mut self) {
        self.has_missed = false;
        let events = self.transport.event_sender();
        for (told, change) in [
            (self.declared.tools, CoalescedEvent::Tools),
            (self.declared.prompts, CoalescedEvent::Prompts),
            (self.declared.resources, CoalescedEvent::Resources),
        ] {
            if told {
                events.emit_coalesced(change);
            }
        }
        for uri in self.current_uris() {
            let mut params = b"{\"uri\":".to_vec();
            write_string(&mut params, &uri);
            params.push(b'}');
            let mut notification = Vec::new();
            write_notification(&mut notification, method::RESOURCES_UPDATED, Some(&params));
            let notification = notification.into();
            events.try_emit(|| LinkEvent::ResourceUpdated { uri, notification });
        }
        while events.has_due() {
            events.deliver_due().await;
        }
    }
}

/// Waits for the end of a stream; forever without a stream.
async fn wait_stream_end(current: &mut Option<CurrentStream>) {
    match current {
        Some(open) => {
            let _ = open.finished.as_mut().await;
        }
        None => std::future::pending().await,
    }
}

/// Sleeps; forever without a duration.
async fn sleep_or_pending(wait: Option<Duration>) {
    match wait {
        Some(wait) => sleep(wait).await,
        None => std::future::pending().await,
    }
}

fn parse_error_code(error: &[u8]) -> Option<i64> {
    let digits = field(error, "code")?.slice(error);
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
