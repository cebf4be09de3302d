//! A link that answers at once, and its dialler.

use std::sync::Arc;

use bowline_core::call::Body;
use bowline_core::caller::CallerEnd;
use bowline_core::era::Era;
use bowline_host::spec::ServerSpec;
use bowline_host::supervisor::{Dial, Dialled};
use bowline_link::stderr::StderrLog;
use bowline_link::{
    Answer, BoxFuture, ConnectError, Exit, Link, LinkError, Request, Revision, ServerInfo,
};
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::finding::definition;

const START: &[u8] = br#"{"jsonrpc":"2.0","id":1,"result":"#;

/// What `do` answers.
const PLAIN: &str = r#"{"content":[]}"#;
/// What `kept` answers: good for an hour, for the one who asks.
const KEPT: &str = r#"{"content":[],"ttlMs":3600000,"cacheScope":"private"}"#;
/// What `looked` answers after the first time: nothing that is kept, and nothing against a hint.
const FAILED: &str = r#"{"content":[],"ttlMs":3600000,"cacheScope":"private","isError":true}"#;

/// Answers everything at once.
#[derive(Debug)]
pub(crate) struct NullLink {
    info: ServerInfo,
    list: Bytes,
    plain: Answer,
    kept: Answer,
    failed: Answer,
}

impl NullLink {
    /// Returns one that offers `do`, `kept` and `looked`, and so many more.
    pub(crate) fn offering(more: usize) -> Arc<Self> {
        let initialize = br#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}"#;
        let names = ["do", "kept", "looked"].map(str::to_owned);
        let names = names
            .into_iter()
            .map(|name| format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#));
        let tools: Vec<_> = names.chain((0..more).map(definition)).collect();
        Arc::new(Self {
            info: ServerInfo {
                revision: Revision::V2025_06_18,
                initialize: Bytes::from_static(initialize),
                name: "null".into(),
                version: "1".into(),
            },
            list: format!(r#"{{"tools":[{}]}}"#, tools.join(",")).into(),
            plain: answer(PLAIN),
            kept: answer(KEPT),
            failed: answer(FAILED),
        })
    }
}

fn answer(body: &str) -> Answer {
    let bytes = [START, body.as_bytes(), b"}"].concat();
    Answer {
        bytes: bytes.into(),
        body_at: START.len()..START.len() + body.len(),
        body: Body::Result,
        era: Era::Legacy,
    }
}

impl Link for NullLink {
    fn request(&self, request: Request) -> BoxFuture<'_, Result<Answer, LinkError>> {
        Box::pin(async move {
            if request.method != "tools/call" {
                return Ok(Answer {
                    bytes: self.list.clone(),
                    body_at: 0..self.list.len(),
                    body: Body::Result,
                    era: Era::Legacy,
                });
            }
            let tool = request.rename.as_ref().map(|rename| rename.to.as_ref());
            let params = request.params.as_deref().unwrap_or_default();
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

    fn closed(&self) -> BoxFuture<'_, Exit> {
        Box::pin(std::future::pending())
    }

    fn close(&self) -> BoxFuture<'_, Exit> {
        Box::pin(async { Exit::Status(0) })
    }

    fn pid(&self) -> Option<u32> {
        None
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn server(&self) -> &ServerInfo {
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
        _owner: Option<Arc<dyn CallerEnd>>,
        _deadline: tokio::time::Instant,
    ) -> BoxFuture<'a, Result<Dialled, ConnectError>> {
        Box::pin(async move {
            let (_, events) = mpsc::channel(1);
            Ok((Arc::clone(&self.0) as Arc<dyn Link>, events))
        })
    }
}
