//! `mcpbench relay`: the floor from HTTP to HTTP. A server and pooled client of hyper, and with
//! `--parse` one parse of the message, a changed tool name and one parse of the response.

use std::{borrow::Cow, sync::Arc};

use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use hyper::server::conn::http1::Builder;
use hyper::{Request, Response, StatusCode, body::Incoming};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::build_runtime;
use crate::http_backend::empty_response;
use crate::http_listener::{bind_listener, serve_connections};
use crate::mcp_server::RpcMessage;
use crate::options::ToolOptions;

const IDLE_CONNECTIONS_MAX: usize = 1024;

#[derive(Debug)]
struct Relay {
    client: Client<HttpConnector, Full<Bytes>>,
    upstream: String,
    parses: bool,
    /// Taken from the front of tool names.
    prefix: String,
}

pub(crate) fn serve(options: &ToolOptions) -> Result<()> {
    let listen = options.require("listen")?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let mut client = Client::builder(TokioExecutor::new());
    client.pool_max_idle_per_host(IDLE_CONNECTIONS_MAX);
    let relay = Arc::new(Relay {
        client: client.build(connector),
        upstream: options
            .require("upstream")?
            .trim_end_matches('/')
            .to_owned(),
        parses: options.has_flag("parse"),
        prefix: options.get("prefix").unwrap_or_default().to_owned(),
    });
    build_runtime()?.block_on(async move {
        let listener = bind_listener(listen).await?;
        let respond = move |request| {
            let relay = Arc::clone(&relay);
            async move {
                let response = relay.forward_request(request).await;
                response.unwrap_or_else(empty_response)
            }
        };
        serve_connections(listener, Builder::new(), respond).await
    })
}

impl Relay {
    /// Returns the response of the upstream, or the status of a failure.
    async fn forward_request(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, StatusCode> {
        let (mut head, body) = request.into_parts();
        let body = body.collect().await;
        let mut body = body.map_err(|_| StatusCode::BAD_REQUEST)?.to_bytes();
        if self.parses && !body.is_empty() {
            body = rewrite_tool_name(&body, &self.prefix).unwrap_or(body);
        }
        let uri = format!("{}{}", self.upstream, head.uri.path());
        head.uri = uri.parse().map_err(|_| StatusCode::BAD_REQUEST)?;
        head.headers.remove(HOST);
        head.headers.remove(CONTENT_LENGTH);
        let request = Request::from_parts(head, Full::new(body));
        let response = self.client.request(request).await;
        let (mut head, body) = response.map_err(|_| StatusCode::BAD_GATEWAY)?.into_parts();
        let body = body.collect().await;
        let body = body.map_err(|_| StatusCode::BAD_GATEWAY)?.to_bytes();
        let is_valid = || serde_json::from_slice::<RpcMessage<'_>>(&body).is_ok();
        if self.parses && !body.is_empty() && !is_valid() {
            return Err(StatusCode::BAD_GATEWAY);
        }
        head.headers.remove(CONTENT_LENGTH);
        head.headers.remove(TRANSFER_ENCODING);
        Ok(Response::from_parts(head, Full::new(body)))
    }
}

#[derive(Deserialize, Serialize)]
struct RelayedParams<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct RelayedCall<'a> {
    jsonrpc: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RawValue>,
    method: &'a str,
    params: RelayedParams<'a>,
}

/// Returns a call without the prefix of its tool; `None` for other messages.
fn rewrite_tool_name(message: &[u8], prefix: &str) -> Option<Bytes> {
    let message: RpcMessage<'_> = serde_json::from_slice(message).ok()?;
    if message.method.as_deref() != Some("tools/call") {
        return None;
    }
    let mut params: RelayedParams<'_> = serde_json::from_str(message.params?.get()).ok()?;
    params.name = params.name.strip_prefix(prefix)?.to_owned().into();
    let call = RelayedCall {
        jsonrpc: "2.0",
        id: message.id,
        method: "tools/call",
        params,
    };
    serde_json::to_vec(&call).ok().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_is_taken_from_calls_only() {
        let call = br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"b__echo"}}"#;
        let rewritten = rewrite_tool_name(call, "b__").unwrap();
        let expected =
            br#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}"#;
        assert_eq!(rewritten, expected.as_slice());
        let list = br#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#;
        assert_eq!(rewrite_tool_name(list, ""), None);
    }
}
