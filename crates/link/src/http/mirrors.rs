//! Calls of tools whose arguments travel as headers as well. Which ones do is read from the
//! definition of the tool, and that may have changed since.

use std::sync::Arc;

use bowline_core::call::Body;
use bowline_core::era::Mirrors;
use bowline_wire::era::mirror;
use bowline_wire::mcp::{code, method};
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bytes::Bytes;
use tokio::time::Instant;

use super::discover::found;
use super::labels;
use super::talk::Talk;
use crate::desk::Change;
use crate::link::{Answer, LinkError, Request};
use crate::modern::discover::Found;
use crate::modern::params;

/// Pages of the list of tools that are looked through for one.
const PAGES_MAX: usize = 64;

/// What is to be done with the answer to a request.
enum Kind {
    /// The headers may be refused, and the request is sent again.
    Labelled(Box<Request>),
    /// It says whether the server is still the one that was met.
    Discover,
    Other,
}

impl Talk {
    /// Sends a request of the modern era and waits for its answer. A server that says that the
    /// headers are not those of its tool ran nothing: the tool is looked up, and where its headers
    /// are others by now, the request is sent once more.
    pub(super) fn stand_alone(
        self: &Arc<Self>,
        request: Request,
    ) -> impl Future<Output = Result<Answer, LinkError>> + Send {
        let kind = match &*request.method {
            method::TOOLS_CALL => Kind::Labelled(Box::new(request.clone())),
            method::DISCOVER => Kind::Discover,
            _ => Kind::Other,
        };
        let asking = Box::pin(self.request(request));
        async move {
            let answer = asking.await;
            match (kind, answer) {
                (Kind::Labelled(again), Ok(answer)) if is_mismatch(&answer) => {
                    Box::pin(self.relabel(*again, answer)).await
                }
                (Kind::Discover, answer) => {
                    if matches!(found(&answer), Some(Found::Legacy)) {
                        // It keeps sessions by now, and is to be met anew.
                        self.lose();
                    }
                    answer
                }
                (Kind::Labelled(_) | Kind::Other, answer) => answer,
            }
        }
    }

    async fn relabel(
        self: &Arc<Self>,
        mut request: Request,
        refused: Answer,
    ) -> Result<Answer, LinkError> {
        self.events.changed(Change::Tools);
        self.due.notify_one();
        match self.mirrors(&request).await {
            Some(mirrors) if mirrors != request.mirrors => {
                request.mirrors = mirrors;
                self.request(request).await
            }
            // It would be refused again.
            _ => Ok(refused),
        }
    }

    /// Looks up which arguments of a tool travel as headers; nothing where that is not known.
    async fn mirrors(self: &Arc<Self>, request: &Request) -> Option<Mirrors> {
        let tool = labels::name(request)?;
        let mut cursor: Option<String> = None;
        for _ in 0..PAGES_MAX {
            let page = self.page(cursor.as_deref(), request.deadline);
            let page = page.await.ok().filter(|page| page.body == Body::Result)?;
            let result = page.body_bytes();
            let tools = object::field(result, "tools")?.of(result);
            let mut tools = object::items(tools).map(|at| at.of(tools));
            let named =
                |tool_: &&[u8]| object::text(tool_, "name").is_some_and(|name| *name == tool);
            if let Some(definition) = tools.find(named) {
                let schema = object::field(definition, "inputSchema")?.of(definition);
                let mirrors = mirror::read(schema).ok()?;
                return Some((!mirrors.is_empty()).then(|| mirrors.into()));
            }
            cursor = Some(object::text(result, "nextCursor")?.into_owned());
        }
        None
    }

    async fn page(
        self: &Arc<Self>,
        cursor: Option<&str>,
        deadline: Instant,
    ) -> Result<Answer, LinkError> {
        let asked = cursor.map(|cursor| {
            let mut out = br#"{"cursor":"#.to_vec();
            write_string(&mut out, cursor);
            out.push(b'}');
            Bytes::from(out)
        });
        let mut request = Request::own(method::TOOLS_LIST, asked, deadline);
        params::to_modern(&mut request, &self.client, self.abilities());
        self.request(request).await
    }
}

fn is_mismatch(answer: &Answer) -> bool {
    if answer.body != Body::Error {
        return false;
    }
    let error = answer.body_bytes();
    let said = object::field(error, "code").map(|at| at.of(error));
    said == Some(itoa::Buffer::new().format(code::HEADER_MISMATCH).as_bytes())
}
