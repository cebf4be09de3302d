//! A link with instant responses, and its connector.

use std::sync::Arc;

use bowline_core::BoxFuture;
use bowline_core::call::{BodyKind, ServerResponse};
use bowline_core::client_handle::ClientHandle;
use bowline_core::era::Era;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::{Dial, DialedLink};
use bowline_link::stderr::StderrLog;
use bowline_link::{
    Link, LinkConnectError, LinkError, LinkExit, LinkRequest, Revision, ServerInfo,
};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::tool_search::tool_definition;

const START: &[u8] = br#"{"jsonrpc":"2.0","id":1,"result":"#;

/// Response of `do`.
const PLAIN: &str = r#"{"content":[]}"#;
/// Response of `kept`: private, with a TTL of an hour.
const KEPT: &str = r#"{"content":[],"ttlMs":3600000,"cacheScope":"private"}"#;
/// Later response of `looked`: not cached, and not against the hint.
const FAILED: &str = r#"{"content":[],"ttlMs":3600000,"cacheScope":"private","isError":true}"#;

/// Responds to everything at once.
#[derive(Debug)]
pub(crate) struct NullLink {
    info: ServerInfo,
    list: Bytes,
    plain: ServerResponse,
    kept: ServerResponse,
    failed: ServerResponse,
}

impl NullLink {
    /// Returns a link with `do`, `kept`, `looked`, and `more` tools.
    pub(crate) fn with_tools(more: usize) -> Arc<Self> {
        let initialize = br#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}"#;
        let names = ["do", "kept", "looked"].map(str::to_owned);
        let names = names
            .into_iter()
            .map(|name| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#));
        let tools: Vec<_> = names.chain((0..more).map(tool_definition)).collect();
        Arc::new(Self {
            info: ServerInfo {
                revision: Revision::V2025_06_18,
                initialize: Bytes::from_static(initialize),
                name: "null".into(),
                version: "1".into(),
            },
            list: format!(r#"{{"tools":[{}]}}"#, tools.join(",")).into(),
            plain: to_response(PLAIN),
            kept: to_response(KEPT),
            failed: to_response(FAILED),
        })
    }
}

fn to_response(body: &str) -> ServerResponse {
    let bytes = [START, body.as_bytes(), b"}"].concat();
    ServerResponse {
        bytes: bytes.into(),
        body_at: START.len()..START.len() + body.len(),
        body: BodyKind::Result,
        era: Era::Legacy,
    }
}

impl Link for NullLink {
    fn request(&self, request: LinkRequest) -> BoxFuture<'_, Result<ServerResponse, LinkError>> {
        Box::pin(async move {
            if request.method != "tools/call" {
                return Ok(ServerResponse {
                    bytes: self.list.clone(),
                    body_at: 0..self.list.len(),
                    body: BodyKind::Result,
                    era: Era::Legacy,
                });
            }
            let tool = request.rename.as_ref().map(|rename| rename.to.as_ref());
            let params = &request.message.params;
            Ok(match tool {
                Some("kept") => self.kept.clone(),
                Some("looked") if params.ends_with(b"{}}") => self.kept.clone(),
                Some("looked") => self.failed.clone(),
                Some(_) | None => self.plain.clone(),
            })
        })
    }

    fn notify(&self, _method: &str, _params: Option<&[u8]>) -> Result<(), LinkError> {
        Ok(())
    }

    fn is_open(&self) -> bool {
        true
    }

    fn wait_closed(&self) -> BoxFuture<'_, LinkExit> {
        Box::pin(std::future::pending())
    }

    fn close(&self) -> BoxFuture<'_, LinkExit> {
        Box::pin(async { LinkExit::Status(0) })
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn server_info(&self) -> &ServerInfo {
        &self.info
    }
}

#[derive(Debug)]
pub(crate) struct NullDial(pub(crate) Arc<NullLink>);

impl Dial for NullDial {
    fn dial<'a>(
        &'a self,
        _spec: &'a ServerSpec,
        _log: &'a Arc<StderrLog>,
        _owner: Option<Arc<dyn ClientHandle>>,
        _deadline: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<DialedLink, LinkConnectError>> {
        Box::pin(async move {
            let (_, events) = mpsc::channel(1);
            Ok((Arc::clone(&self.0) as Arc<dyn Link>, events))
        })
    }
}
