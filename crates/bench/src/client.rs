//! A small MCP client over one connection, one request at a time, that checks every response.

mod event_lines;
mod http_exchange;

use std::{borrow::Cow, time::Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use event_lines::find_response;
use http_exchange::{ExchangeEnd, HttpExchange, ReplyHead};

/// Bytes of a wrong response in an error.
const SAMPLE_BYTES_MAX: usize = 300;
/// Where a cursor can stand: at the beginning or the end of a page.
const CURSOR_BYTES_MAX: usize = 4096;
const MODERN_REVISION: &str = "2026-07-28";

/// The endpoint under load, and how to speak to it.
#[derive(Debug, Clone)]
pub(crate) struct TargetEndpoint {
    host: String,
    path: String,
    /// Lines of every request's head.
    headers: Vec<String>,
    revision: String,
}

impl TargetEndpoint {
    pub(crate) fn new(url: &str, headers: Vec<String>, revision: &str) -> Result<Self> {
        let rest = url.strip_prefix("http://");
        let rest = rest.with_context(|| format!("{url} is not an http:// URL"))?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        Ok(Self {
            host: host.to_owned(),
            path: format!("/{path}"),
            headers,
            revision: revision.to_owned(),
        })
    }

    fn is_modern(&self) -> bool {
        self.revision == MODERN_REVISION
    }
}

#[derive(Debug, Deserialize)]
struct ReplyEnvelope<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct CallResult<'a> {
    #[serde(borrow, default)]
    content: Vec<TextContent<'a>>,
    #[serde(default, rename = "isError")]
    is_error: bool,
}

#[derive(Debug, Deserialize)]
struct TextContent<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
}

/// How the text of a result must relate to the expected text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TextCheck {
    Equals,
    Contains,
}

#[derive(Debug)]
pub(crate) struct BenchClient {
    endpoint: TargetEndpoint,
    exchange: HttpExchange,
    session: Option<String>,
    /// The revision of the session.
    negotiated: Option<String>,
    last_id: u64,
}

impl BenchClient {
    pub(crate) fn new(endpoint: TargetEndpoint) -> Self {
        Self {
            exchange: HttpExchange::new(endpoint.host.clone()),
            endpoint,
            session: None,
            negotiated: None,
            last_id: 0,
        }
    }

    pub(crate) fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Returns when the last response was complete, before the rest of its stream was read.
    pub(crate) fn response_at(&self) -> Instant {
        self.exchange.response_at
    }

    /// Returns how many connections the client has opened.
    pub(crate) fn connects(&self) -> u64 {
        self.exchange.connects
    }

    /// Starts over with a new connection and without a session.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.endpoint.clone());
    }

    /// Opens a session; a server without sessions needs none.
    pub(crate) async fn initialize(&mut self) -> Result<()> {
        self.forget_session();
        if self.endpoint.is_modern() {
            return Ok(());
        }
        let params = json!({
            "protocolVersion": self.endpoint.revision,
            "capabilities": {},
            "clientInfo": {"name": "mcpbench", "version": "0.1.0"},
        });
        let reply = self.send_request("initialize", &params.to_string()).await;
        let reply: Value = serde_json::from_slice(reply.context("initialize")?.raw)?;
        let revision = reply.pointer("/result/protocolVersion");
        let revision = revision.and_then(Value::as_str);
        let revision = revision.with_context(|| format!("initialize: {reply}"))?;
        self.negotiated = Some(revision.to_owned());
        let ready = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        let head = self.send_message("POST", ready, "", None).await?;
        ensure!(head.status < 300, "initialized: status {}", head.status);
        Ok(())
    }

    /// Calls a tool and checks that a text of the result is as expected.
    pub(crate) async fn call_tool(
        &mut self,
        tool: &str,
        arguments: &str,
        expected: &str,
        check: TextCheck,
    ) -> Result<()> {
        let params = format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#);
        let reply = self.send_request("tools/call", &params).await?;
        check_call_response(&reply, expected, check)
    }

    /// Lists the tools through all pages and returns their number.
    pub(crate) async fn count_tools(&mut self) -> Result<usize> {
        let mut count = 0;
        let mut params = "{}".to_owned();
        loop {
            let raw = self.send_request("tools/list", &params).await?.raw;
            count += memchr::memmem::find_iter(raw, b"\"inputSchema\"").count();
            ensure!(count > 0, "no tools: {}", sample(raw));
            let head = raw.get(..CURSOR_BYTES_MAX).unwrap_or(raw);
            let tail = raw.len().saturating_sub(CURSOR_BYTES_MAX);
            let tail = raw.get(tail..).unwrap_or_default();
            let cursor = |part| memchr::memmem::find(part, b"\"nextCursor\"").is_some();
            if !cursor(head) && !cursor(tail) {
                return Ok(count);
            }
            let page: Value = serde_json::from_slice(raw)?;
            match page.pointer("/result/nextCursor").and_then(Value::as_str) {
                Some(cursor) => params = json!({"cursor": cursor}).to_string(),
                None => return Ok(count),
            }
        }
    }

    /// Returns the names of the tools on the first page.
    pub(crate) async fn list_tool_names(&mut self) -> Result<Vec<String>> {
        let raw = self.send_request("tools/list", "{}").await?.raw;
        let page: Value = serde_json::from_slice(raw)?;
        let tools = page.pointer("/result/tools").and_then(Value::as_array);
        let tools = tools.with_context(|| page.to_string())?.iter();
        let names = tools.filter_map(|tool| tool.get("name")?.as_str().map(str::to_owned));
        Ok(names.collect())
    }

    pub(crate) async fn delete_session(&mut self) -> Result<()> {
        self.send_message("DELETE", b"", "", None).await?;
        self.forget_session();
        Ok(())
    }

    fn forget_session(&mut self) {
        self.session = None;
        self.negotiated = None;
    }

    /// Sends a request and returns its response.
    async fn send_request(&mut self, method: &str, params: &str) -> Result<RpcReply<'_>> {
        self.last_id += 1;
        let id = self.last_id;
        let (params, headers) = if self.endpoint.is_modern() {
            modern_request(method, params)
        } else {
            (params.into(), String::new())
        };
        let message =
            format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
        let head = self
            .send_message("POST", message.as_bytes(), &headers, Some(id))
            .await?;
        let body = self.exchange.body.as_slice();
        ensure!(
            head.status == 200,
            "status {}: {}",
            head.status,
            sample(body)
        );
        let raw = if head.is_event_stream {
            let response = find_response(body, id).context("no response in the stream")?;
            body.get(response).unwrap_or_default()
        } else {
            body
        };
        Ok(RpcReply { id, raw })
    }

    async fn send_message(
        &mut self,
        method: &str,
        payload: &[u8],
        headers: &str,
        awaited_id: Option<u64>,
    ) -> Result<ReplyHead> {
        let request = self.write_request(method, payload, headers);
        // The server may have closed an idle connection: the second attempt opens a new one.
        let head = match self.exchange.run(&request, awaited_id).await {
            Err(ExchangeEnd::StaleConnection) => self.exchange.run(&request, awaited_id).await,
            head => head,
        };
        let head = match head {
            Ok(head) => head,
            Err(ExchangeEnd::StaleConnection) => bail!("the connection ended before a response"),
            Err(ExchangeEnd::Failed(error)) => return Err(error),
        };
        if self.session.is_none() {
            self.session.clone_from(&head.session);
        }
        Ok(head)
    }

    fn write_request(&self, method: &str, payload: &[u8], headers: &str) -> Vec<u8> {
        let TargetEndpoint { host, path, .. } = &self.endpoint;
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\n\
             Accept: application/json, text/event-stream\r\n"
        );
        let mut push_header = |line: &[&str]| {
            line.iter().for_each(|part| head.push_str(part));
            head.push_str("\r\n");
        };
        if let Some(session) = &self.session {
            push_header(&["Mcp-Session-Id: ", session]);
        }
        if let Some(revision) = &self.negotiated {
            push_header(&["MCP-Protocol-Version: ", revision]);
        }
        for line in &self.endpoint.headers {
            push_header(&[line]);
        }
        if !payload.is_empty() {
            push_header(&["Content-Type: application/json"]);
        }
        push_header(&["Content-Length: ", &payload.len().to_string()]);
        head.push_str(headers);
        head.push_str("\r\n");
        let mut request = head.into_bytes();
        request.extend_from_slice(payload);
        request
    }
}

/// The response to the request `id`.
#[derive(Debug)]
struct RpcReply<'a> {
    id: u64,
    raw: &'a [u8],
}

/// Returns the parameters and headers of a request without a session.
fn modern_request<'a>(method: &str, params: &'a str) -> (Cow<'a, str>, String) {
    let mut headers =
        format!("MCP-Protocol-Version: {MODERN_REVISION}\r\nMcp-Method: {method}\r\n");
    let name = params.strip_prefix(r#"{"name":""#);
    if let Some(name) = name.and_then(|rest| rest.split('"').next()) {
        headers.push_str("Mcp-Name: ");
        headers.push_str(name);
        headers.push_str("\r\n");
    }
    let rest = params.strip_prefix('{').unwrap_or(params).trim_start();
    let comma = if rest.starts_with('}') { "" } else { "," };
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": MODERN_REVISION,
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": {"name": "mcpbench", "version": "0.1.0"},
    });
    (format!(r#"{{"_meta":{meta}{comma}{rest}"#).into(), headers)
}

fn check_call_response(reply: &RpcReply<'_>, expected: &str, check: TextCheck) -> Result<()> {
    let RpcReply { id, raw } = reply;
    let envelope: ReplyEnvelope<'_> =
        serde_json::from_slice(raw).with_context(|| format!("response: {}", sample(raw)))?;
    let has_id = envelope.id.is_some_and(|raw| raw.get() == id.to_string());
    ensure!(has_id, "wrong id: {}", sample(raw));
    if let Some(error) = envelope.error {
        bail!("error: {}", error.get());
    }
    let result = envelope.result.map_or("{}", RawValue::get);
    let result: CallResult<'_> = serde_json::from_str(result).context("result")?;
    ensure!(!result.is_error, "isError: {}", sample(raw));
    let mut texts = result
        .content
        .iter()
        .filter_map(|part| part.text.as_deref());
    let is_right = texts.any(|text| match check {
        TextCheck::Equals => text == expected,
        TextCheck::Contains => text.contains(expected),
    });
    ensure!(is_right, "wrong content: {}", sample(raw));
    Ok(())
}

/// Returns the beginning of a response, for errors.
fn sample(raw: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(raw.get(..SAMPLE_BYTES_MAX).unwrap_or(raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_responses_are_named() {
        let check = |raw: &str| {
            let raw = raw.as_bytes();
            let checked = check_call_response(&RpcReply { id: 7, raw }, "hi", TextCheck::Equals);
            checked.err().map(|error| error.to_string())
        };
        let result = |text: &str| {
            format!(r#"{{"id":7,"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#)
        };
        assert_eq!(check(&result("hi")), None);
        for (raw, said) in [
            (result("ho"), "wrong content"),
            (result("hi").replace('7', "8"), "wrong id"),
            (r#"{"id":7,"error":{"code":1}}"#.to_owned(), "error"),
            (
                r#"{"id":7,"result":{"isError":true}}"#.to_owned(),
                "isError",
            ),
        ] {
            let message = check(&raw).unwrap();
            assert!(message.starts_with(said), "{message}");
        }
    }

    #[test]
    fn modern_request_carries_meta_and_headers() {
        let (params, headers) = modern_request("tools/call", r#"{"name":"echo","arguments":{}}"#);
        let params: Value = serde_json::from_str(&params).unwrap();
        assert_eq!(params["name"], "echo");
        let version = &params["_meta"]["io.modelcontextprotocol/protocolVersion"];
        assert_eq!(version, MODERN_REVISION);
        assert!(headers.contains("Mcp-Name: echo\r\n"), "{headers}");
        let (empty, _) = modern_request("tools/list", "{}");
        assert!(serde_json::from_str::<Value>(&empty).is_ok(), "{empty}");
    }
}
