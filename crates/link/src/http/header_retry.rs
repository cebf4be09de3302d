//! Retries a tool call after a header mismatch. The tool definition lists the arguments that are
//! repeated as headers, and may have changed since.

use std::sync::Arc;

use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::era::HeaderParams;
use bowline_wire::era::header_params;
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;
use tokio::time::Instant;

use super::conversation::HttpConversation;
use super::http_discover::classify_discover;
use super::routing_headers;
use crate::demux::CoalescedEvent;
use crate::link::{LinkError, LinkRequest};
use crate::modern::era_discovery::DiscoverOutcome;
use crate::modern::era_params;

/// Pages of `tools/list` that are searched.
const PAGES_MAX: usize = 64;

/// Follow-up of a response.
enum ResponseFollowUp {
    /// Retry after a header mismatch.
    ToolCall(Box<LinkRequest>),
    /// Check whether the server is still modern.
    Discover,
    Other,
}

impl HttpConversation {
    /// Sends a modern request and waits for the response. After a header mismatch, nothing ran: the
    /// tool definition is fetched, and the request is repeated if its headers have changed.
    pub(super) fn request_stateless(
        self: &Arc<Self>,
        request: LinkRequest,
    ) -> impl Future<Output = Result<ServerResponse, LinkError>> + Send {
        let kind = match &*request.method {
            method::TOOLS_CALL => ResponseFollowUp::ToolCall(Box::new(request.clone())),
            method::DISCOVER => ResponseFollowUp::Discover,
            _ => ResponseFollowUp::Other,
        };
        let sending = Box::pin(self.request(request));
        async move {
            let response = sending.await;
            match (kind, response) {
                (ResponseFollowUp::ToolCall(retry), Ok(response))
                    if is_header_mismatch(&response) =>
                {
                    Box::pin(self.retry_with_headers(*retry, response)).await
                }
                (ResponseFollowUp::Discover, response) => {
                    if matches!(classify_discover(&response), Some(DiscoverOutcome::Legacy)) {
                        // The server is legacy now and needs a new link.
                        self.mark_lost();
                    }
                    response
                }
                (ResponseFollowUp::ToolCall(_) | ResponseFollowUp::Other, response) => response,
            }
        }
    }

    async fn retry_with_headers(
        self: &Arc<Self>,
        mut request: LinkRequest,
        refused: ServerResponse,
    ) -> Result<ServerResponse, LinkError> {
        self.events.emit_coalesced(CoalescedEvent::Tools);
        self.events_due.notify_one();
        match self.fetch_header_params(&request).await {
            Some(mirrors) if mirrors != request.header_params => {
                request.header_params = mirrors;
                self.request(request).await
            }
            // The retry would fail again.
            _ => Ok(refused),
        }
    }

    /// Fetches the header parameters of a tool; `None` if unknown.
    async fn fetch_header_params(self: &Arc<Self>, request: &LinkRequest) -> Option<HeaderParams> {
        let tool = routing_headers::routing_name(request)?;
        let mut cursor: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let page = self.fetch_tools_page(cursor.as_deref(), request.deadline);
            let page = page
                .await
                .ok()
                .filter(|page| page.body == BodyKind::Result)?;
            let result = page.body_bytes();
            let tools = object::field(result, "tools")?.slice(result);
            let mut tools = object::items(tools).map(|at| at.slice(tools));
            let named =
                |tool_: &&[u8]| object::text_field(tool_, "name").is_some_and(|name| *name == tool);
            if let Some(definition) = tools.find(named) {
                let schema = object::field(definition, "inputSchema")?.slice(definition);
                let mirrors = header_params::parse_header_params(schema).ok()?;
                return Some((!mirrors.is_empty()).then(|| mirrors.into()));
            }
            cursor = Some(object::text_field(result, "nextCursor")?.into_owned());
        }
        None
    }

    async fn fetch_tools_page(
        self: &Arc<Self>,
        cursor: Option<&str>,
        deadline: Instant,
    ) -> Result<ServerResponse, LinkError> {
        let params = cursor.map_or_else(Bytes::new, |cursor| {
            let mut out = br#"{"cursor":"#.to_vec();
            write_string(&mut out, cursor);
            out.push(b'}');
            out.into()
        });
        let mut request = LinkRequest::new_internal(method::TOOLS_LIST, params, deadline);
        era_params::to_modern(&mut request, &self.client, self.capabilities());
        self.request(request).await
    }
}

fn is_header_mismatch(response: &ServerResponse) -> bool {
    if response.body != BodyKind::Error {
        return false;
    }
    let error = response.body_bytes();
    let error_code = object::field(error, "code").map(|at| at.slice(error));
    error_code == Some(itoa::Buffer::new().format(code::HEADER_MISMATCH).as_bytes())
}
