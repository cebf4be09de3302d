//! A listen stream, kept open across gateway restarts until cancelled by the client.

use std::sync::Arc;
use std::time::Duration;

use bowline_link::http::http_client::HttpResponse;
use bowline_wire::era::result_translation::empty_result;
use bowline_wire::jsonrpc::{write_notification, write_result};
use bowline_wire::mcp::{meta, method};
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bowline_wire::sse::SseDecoder;
use bytes::Bytes;

use super::ShimHeaders;
use crate::stdio::delivery::{ResponseRecipient, ResponseTarget, is_event_stream};
use crate::stdio::message::{self, ShimFailure, flatten_line};
use crate::stdio::shim::{ClientLines, EVENT_LIMITS, ShimRequestHead, ShimSession, StdioShim};

/// Initial wait before a reopen.
const REOPEN_WAIT_MIN: Duration = Duration::from_millis(100);
/// Maximum wait before a reopen.
const REOPEN_WAIT_MAX: Duration = Duration::from_secs(5);
/// Maximum reopens because of a narrower acknowledgement.
const NARROWED_REOPENS_MAX: u32 = 5;

/// A listen stream of a client.
pub(in crate::stdio) struct ShimListenStream {
    pub(in crate::stdio) shim: Arc<StdioShim>,
    pub(in crate::stdio) line: Bytes,
    pub(in crate::stdio) headers: ShimHeaders,
    pub(in crate::stdio) id: String,
    pub(in crate::stdio) lines: ClientLines,
}

/// End of a stream.
enum ListenEnd {
    /// The connection broke.
    Broken,
    /// An orderly end with this response.
    Completed(Bytes),
    /// The acknowledgement covers less than before.
    Narrowed,
    /// The client no longer reads.
    ClientGone,
}

/// Acknowledgements of a stream.
#[derive(Debug, Default)]
struct AckHistory {
    /// The first acknowledgement, seen by the client.
    first_ack: Option<Bytes>,
    /// Number of narrower acknowledgements.
    narrowed_count: u32,
}

impl ShimListenStream {
    /// Runs until dropped, or until the gateway refuses the stream.
    pub(in crate::stdio) async fn run(self) {
        let mut wait = REOPEN_WAIT_MIN;
        let mut acks = AckHistory::default();
        let mut last_response = None;
        loop {
            match self
                .shim
                .send_message(&self.line, ShimRequestHead::Stateless(&self.headers))
                .await
            {
                Ok(response) if is_event_stream(&response) => {
                    match self.forward_events(response, &mut acks).await {
                        ListenEnd::ClientGone => return,
                        ListenEnd::Completed(response_line) => last_response = Some(response_line),
                        ListenEnd::Broken => {}
                        ListenEnd::Narrowed => acks.narrowed_count += 1,
                    }
                    if acks.narrowed_count == 0 {
                        wait = REOPEN_WAIT_MIN;
                    }
                }
                Ok(response) => {
                    let can_retry = response.status.is_server_error() && acks.first_ack.is_some();
                    if !can_retry {
                        return self.end_refused(response, &acks, last_response).await;
                    }
                }
                Err(failure) if acks.first_ack.is_none() => {
                    return self.send_failure(&failure).await;
                }
                // The gateway is away; the next round relocates the gateway.
                Err(_) => {}
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(REOPEN_WAIT_MAX);
        }
    }

    /// Forwards notifications until the stream ends.
    async fn forward_events(&self, response: HttpResponse, acks: &mut AckHistory) -> ListenEnd {
        let mut body = response.body;
        let mut decoder = SseDecoder::new(EVENT_LIMITS);
        while let Some(Ok(chunk)) = body.next_chunk().await {
            if decoder.push(&chunk).is_err() {
                return ListenEnd::Broken;
            }
            while let Some(event) = decoder.next() {
                let line = flatten_line(&event.data);
                if line.is_empty() {
                    continue;
                }
                if message::is_response_to(&line, &self.id) {
                    return ListenEnd::Completed(line);
                }
                let outgoing = match self.handle_message(line, acks) {
                    Ok(outgoing) => outgoing,
                    Err(end) => return end,
                };
                for line in outgoing {
                    if self.lines.send(line).await.is_err() {
                        return ListenEnd::ClientGone;
                    }
                }
            }
        }
        ListenEnd::Broken
    }

    /// Returns the lines to send for a message. A repeated acknowledgement is not sent again, but
    /// anything covered may have changed in between.
    fn handle_message(&self, line: Bytes, acks: &mut AckHistory) -> Result<Vec<Bytes>, ListenEnd> {
        let method_name = object::text_field(&line, "method");
        if method_name.as_deref() != Some(method::SUBSCRIPTIONS_ACKNOWLEDGED) {
            return Ok(vec![line]);
        }
        let Some(first) = &acks.first_ack else {
            acks.first_ack = Some(line.clone());
            return Ok(vec![line]);
        };
        let (before, now) = (
            self.change_notifications(first),
            self.change_notifications(&line),
        );
        // Servers of a just started gateway may need a moment.
        if before.len() > now.len() && acks.narrowed_count < NARROWED_REOPENS_MAX {
            return Err(ListenEnd::Narrowed);
        }
        acks.narrowed_count = 0;
        Ok(now)
    }

    /// Builds change notifications for everything covered by an acknowledgement.
    fn change_notifications(&self, acknowledged: &[u8]) -> Vec<Bytes> {
        let member =
            |json: &[u8], key: &str| object::field(json, key).map(|at| at.slice(json).to_vec());
        let filters =
            member(acknowledged, "params").and_then(|params| member(&params, "notifications"));
        let filters = filters.unwrap_or_default();
        let lists = [
            ("toolsListChanged", method::TOOLS_LIST_CHANGED),
            ("promptsListChanged", method::PROMPTS_LIST_CHANGED),
            ("resourcesListChanged", method::RESOURCES_LIST_CHANGED),
        ];
        let lists = lists
            .into_iter()
            .filter(|(key, _)| member(&filters, key).is_some_and(|value| value == b"true"))
            .map(|(_, method)| self.build_notification(method, None));
        let uris = member(&filters, "resourceSubscriptions").unwrap_or_default();
        let resources = object::items(&uris).filter_map(|at| {
            let uri = object::parse_string(at.slice(&uris))?;
            Some(self.build_notification(method::RESOURCES_UPDATED, Some(&uri)))
        });
        lists.chain(resources).collect()
    }

    fn build_notification(&self, method: &str, uri: Option<&str>) -> Bytes {
        let mut params = format!("{{\"_meta\":{{\"{}\":{}}}", meta::SUBSCRIPTION_ID, self.id);
        if let Some(uri) = uri {
            let mut text = Vec::new();
            write_string(&mut text, uri);
            params.push_str(",\"uri\":");
            params.push_str(&String::from_utf8_lossy(&text));
        }
        params.push('}');
        let mut text = Vec::new();
        write_notification(&mut text, method, Some(params.as_bytes()));
        text.into()
    }

    /// Ends a stream after a refusal by the gateway.
    async fn end_refused(&self, response: HttpResponse, acks: &AckHistory, last: Option<Bytes>) {
        if acks.first_ack.is_none() {
            let target = ResponseTarget {
                id: Some(&self.id),
                recipient: ResponseRecipient::Client,
                client: &self.lines,
            };
            let no_session = ShimSession::default();
            if let Err(failure) = self
                .shim
                .deliver_response(response, &no_session, target)
                .await
            {
                self.send_failure(&failure).await;
            }
            return;
        }
        // On a pipe the end is signalled twice: older clients expect either form.
        let params = format!("{{\"requestId\":{}}}", self.id);
        let mut text = Vec::new();
        write_notification(&mut text, method::CANCELLED, Some(params.as_bytes()));
        let _sent = self.lines.send(text.into()).await;
        let response_line = last.unwrap_or_else(|| {
            let id = self.id.as_bytes();
            let mut text = Vec::new();
            write_result(&mut text, id, &empty_result(Some(id)));
            text.into()
        });
        let _sent = self.lines.send(response_line).await;
    }

    async fn send_failure(&self, failure: &ShimFailure) {
        let _sent = self.lines.send(failure.error_response(&self.id)).await;
    }
}
