//! Requests of a stateless client: each request is self-contained, and a cancelled one ends by
//! closing its stream.

pub(super) mod listen_stream;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_wire::era::header_params::encode_value;
use bowline_wire::mcp::{Revision, meta, method};
use bowline_wire::object;
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use tokio::task::AbortHandle;

use super::delivery::{ResponseRecipient, ResponseTarget};
use super::message::ShimFailure;
use super::shim::{ClientLines, ShimRequestHead, ShimSession, StdioShim};

/// Headers that repeat parts of a message's body, as the gateway's HTTP transport requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShimHeaders {
    version: HeaderValue,
    method: HeaderValue,
    name: Option<HeaderValue>,
}

impl ShimHeaders {
    /// Derives the headers of a stateless request; `None` for a legacy request.
    pub(super) fn from_request(line: &[u8]) -> Option<Self> {
        let method_name = object::text_field(line, "method")?;
        let params = object::field(line, "params").map_or(&b""[..], |at| at.slice(line));
        let version = object::field(params, "_meta").and_then(|at| {
            let meta_object = at.slice(params);
            object::field(meta_object, meta::PROTOCOL_VERSION).map(|at| at.slice(meta_object))
        });
        let is_new = matches!(
            &*method_name,
            method::DISCOVER | method::SUBSCRIPTIONS_LISTEN
        );
        if version.is_none() && !is_new {
            return None;
        }
        // A missing version must be reported as such, not as a header mismatch.
        let latest = || HeaderValue::from_static(Revision::LATEST.as_str());
        let version = version
            .and_then(object::parse_string)
            .and_then(|text| HeaderValue::from_str(&text).ok());
        Some(Self {
            version: version.unwrap_or_else(latest),
            method: HeaderValue::from_str(&method_name).ok()?,
            name: mcp_name_header(&method_name, params),
        })
    }

    /// Derives the headers of a notification.
    fn from_notification(line: &[u8]) -> Option<Self> {
        let method_name = object::text_field(line, "method")?;
        Some(Self {
            version: HeaderValue::from_static(Revision::LATEST.as_str()),
            method: HeaderValue::from_str(&method_name).ok()?,
            name: None,
        })
    }

    /// Returns the headers.
    pub(super) fn header_pairs(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let name = self.name.clone().map(|name| ("mcp-name", name));
        [
            ("mcp-protocol-version", self.version.clone()),
            ("mcp-method", self.method.clone()),
            // Stdio has no headers, so the gateway must not expect `Mcp-Param-*`.
            ("bowline-carried", HeaderValue::from_static("stdio")),
        ]
        .into_iter()
        .chain(name)
        .map(|(name, value)| (HeaderName::from_static(name), value))
    }
}

/// Returns the value of `Mcp-Name` for a request.
fn mcp_name_header(method_name: &str, params: &[u8]) -> Option<HeaderValue> {
    let key = match method_name {
        method::TOOLS_CALL | method::PROMPTS_GET => "name",
        method::RESOURCES_READ => "uri",
        method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL => "taskId",
        _ => return None,
    };
    let name = object::text_field(params, key)?;
    HeaderValue::from_str(&encode_value(&name)).ok()
}

/// Abort handles of requests in flight, by id.
#[derive(Clone, Debug, Default)]
pub(super) struct ShimInFlight(Arc<Mutex<HashMap<String, AbortHandle>>>);

impl ShimInFlight {
    /// Registers the task of a request.
    pub(super) fn register(&self, id: &str, task: AbortHandle) {
        let mut tasks = lock(&self.0);
        // Keeps finished tasks from accumulating.
        if tasks.len() > 2 * super::MESSAGES_MAX {
            tasks.retain(|_, task| !task.is_finished());
        }
        tasks.insert(id.to_owned(), task);
    }

    /// Returns whether any stateless request was seen.
    pub(super) fn has_requests(&self) -> bool {
        !lock(&self.0).is_empty()
    }

    /// Aborts the request named in a cancellation; returns `false` for an unknown id.
    pub(super) fn abort_cancelled(&self, line: &[u8]) -> bool {
        let params = object::field(line, "params").map_or(&b""[..], |at| at.slice(line));
        let Some(id) = object::field(params, "requestId") else {
            return false;
        };
        let id = String::from_utf8_lossy(id.slice(params));
        let Some(task) = lock(&self.0).remove(&*id) else {
            return false;
        };
        task.abort();
        true
    }
}

impl StdioShim {
    /// Forwards a request and the response, or an error response.
    pub(super) async fn forward_stateless(
        &self,
        line: Bytes,
        headers: &ShimHeaders,
        id: &str,
        lines: &ClientLines,
    ) {
        let exchange = async {
            let response = self
                .send_message(&line, ShimRequestHead::Stateless(headers))
                .await?;
            let target = ResponseTarget {
                id: Some(id),
                recipient: ResponseRecipient::Client,
                client: lines,
            };
            // The stream has no event ids, so a broken one is lost.
            let no_session = ShimSession::default();
            self.deliver_response(response, &no_session, target).await
        };
        if let Err(failure) = exchange.await {
            let _sent = lines.send(failure.error_response(id)).await;
        }
    }

    /// Forwards a notification.
    pub(super) async fn forward_stateless_notification(
        &self,
        line: Bytes,
    ) -> Result<(), ShimFailure> {
        let Some(headers) = ShimHeaders::from_notification(&line) else {
            return Ok(());
        };
        self.send_message(&line, ShimRequestHead::Stateless(&headers))
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request_headers(line: &str) -> Option<Vec<String>> {
        let itself = ShimHeaders::from_request(line.as_bytes())?;
        let all = itself
            .header_pairs()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        Some(all.collect())
    }

    #[test]
    fn headers_repeat_request_body() {
        let carried = "bowline-carried: stdio";
        let said = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
        let of = |rest: &str| request_headers(&format!(r#"{{"id":1,{rest}}}"#));
        let call = format!(r#""method":"tools/call","params":{{"name":"ä","_meta":{said}}}"#);
        let version = "mcp-protocol-version: 2026-07-28";
        let name = "mcp-name: =?base64?w6Q=?=";
        let want = [version, "mcp-method: tools/call", carried, name];
        assert_eq!(of(&call).unwrap(), want);
        let list = format!(r#""method":"tools/list","params":{{"name":"a","_meta":{said}}}"#);
        let want = [version, "mcp-method: tools/list", carried];
        assert_eq!(of(&list).unwrap(), want);
        let probe = of(r#""method":"server/discover""#).unwrap();
        assert_eq!(probe, [version, "mcp-method: server/discover", carried]);
        for of_a_session in [
            r#""method":"tools/call","params":{"name":"a"}"#,
            r#""method":"tools/list","params":{"_meta":{"progressToken":1}}"#,
            r#""result":{}"#,
        ] {
            assert_eq!(of(of_a_session), None, "{of_a_session}");
        }
    }
}
