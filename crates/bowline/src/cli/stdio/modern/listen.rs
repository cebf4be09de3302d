//! A stream of changes, kept open across gateways until its client wants no more.

use std::sync::Arc;
use std::time::Duration;

use bowline_wire::era::result::empty;
use bowline_wire::jsonrpc::{write_notification, write_result};
use bowline_wire::mcp::{meta, method};
use bowline_wire::object;
use bowline_wire::splice::write_string;
use bowline_wire::sse::Decoder;
use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::Itself;
use crate::cli::stdio::deliver::{Audience, Wanted, is_stream};
use crate::cli::stdio::message::{self, Trouble, one_line};
use crate::cli::stdio::shim::{EVENTS, Head, Lines, Session, Shim};

/// First wait before a stream is opened again.
const WAIT_MIN: Duration = Duration::from_millis(100);
/// Longest wait before a stream is opened again.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Times a stream is opened again because it tells of less than before.
const POORER_MAX: u32 = 5;

/// One stream, as its client knows it.
pub(in crate::cli::stdio) struct Listening {
    pub(in crate::cli::stdio) shim: Arc<Shim>,
    pub(in crate::cli::stdio) line: Bytes,
    pub(in crate::cli::stdio) itself: Itself,
    pub(in crate::cli::stdio) id: String,
    pub(in crate::cli::stdio) lines: Lines,
}

/// How a stream ended.
enum Ended {
    /// It broke.
    Broken,
    /// In order, with this answer.
    Answered(Bytes),
    /// It tells of less than it did before.
    Poorer,
    /// Nobody reads any more.
    Gone,
}

/// What was promised on a stream.
#[derive(Debug, Default)]
struct Promised {
    /// The first promise, which is the one that the client saw.
    first: Option<Bytes>,
    /// Times that less was promised.
    poorer: u32,
}

impl Listening {
    /// Runs until it is dropped, or until the gateway says that there is no such stream.
    pub(in crate::cli::stdio) async fn run(self) {
        let mut wait = WAIT_MIN;
        let mut promised = Promised::default();
        let mut last = None;
        loop {
            match self.shim.send(&self.line, Head::Itself(&self.itself)).await {
                Ok(response) if is_stream(&response) => {
                    match self.hear(response, &mut promised).await {
                        Ended::Gone => return,
                        Ended::Answered(answer) => last = Some(answer),
                        Ended::Broken => {}
                        Ended::Poorer => promised.poorer += 1,
                    }
                    if promised.poorer == 0 {
                        wait = WAIT_MIN;
                    }
                }
                Ok(response) => {
                    let again = response.status().is_server_error() && promised.first.is_some();
                    if !again {
                        return self.refused(response, &promised, last).await;
                    }
                }
                Err(trouble) if promised.first.is_none() => return self.fail(&trouble).await,
                // The gateway is away; the next round looks for it again.
                Err(_) => {}
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WAIT_MAX);
        }
    }

    /// Hands on what is told until the stream ends.
    async fn hear(&self, response: Response<Incoming>, promised: &mut Promised) -> Ended {
        let mut body = response.into_body();
        let mut decoder = Decoder::new(EVENTS);
        while let Some(Ok(frame)) = body.frame().await {
            let Some(chunk) = frame.data_ref() else {
                continue;
            };
            if decoder.push(chunk).is_err() {
                return Ended::Broken;
            }
            while let Some(event) = decoder.next() {
                let line = one_line(&event.data);
                if line.is_empty() {
                    continue;
                }
                if message::answers(&line, &self.id) {
                    return Ended::Answered(line);
                }
                let said = match self.take(line, promised) {
                    Ok(said) => said,
                    Err(ended) => return ended,
                };
                for line in said {
                    if self.lines.send(line).await.is_err() {
                        return Ended::Gone;
                    }
                }
            }
        }
        Ended::Broken
    }

    /// Returns what the client is told because of one message. A promise that comes again is not
    /// told again; but whatever it is about may have changed in between.
    fn take(&self, line: Bytes, promised: &mut Promised) -> Result<Vec<Bytes>, Ended> {
        let said = object::text(&line, "method");
        if said.as_deref() != Some(method::SUBSCRIPTIONS_ACKNOWLEDGED) {
            return Ok(vec![line]);
        }
        let Some(first) = &promised.first else {
            promised.first = Some(line.clone());
            return Ok(vec![line]);
        };
        let (before, now) = (self.changes(first), self.changes(&line));
        // Servers of a gateway that has just started may need a moment.
        if before.len() > now.len() && promised.poorer < POORER_MAX {
            return Err(Ended::Poorer);
        }
        promised.poorer = 0;
        Ok(now)
    }

    /// Writes that everything has changed that was promised to be told of.
    fn changes(&self, acknowledged: &[u8]) -> Vec<Bytes> {
        let member = |of: &[u8], key: &str| object::field(of, key).map(|at| at.of(of).to_vec());
        let told =
            member(acknowledged, "params").and_then(|params| member(&params, "notifications"));
        let told = told.unwrap_or_default();
        let lists = [
            ("toolsListChanged", method::TOOLS_LIST_CHANGED),
            ("promptsListChanged", method::PROMPTS_LIST_CHANGED),
            ("resourcesListChanged", method::RESOURCES_LIST_CHANGED),
        ];
        let lists = lists
            .into_iter()
            .filter(|(key, _)| member(&told, key).is_some_and(|value| value == b"true"))
            .map(|(_, method)| self.notification(method, None));
        let uris = member(&told, "resourceSubscriptions").unwrap_or_default();
        let resources = object::items(&uris).filter_map(|at| {
            let uri = object::string(at.of(&uris))?;
            Some(self.notification(method::RESOURCES_UPDATED, Some(&uri)))
        });
        lists.chain(resources).collect()
    }

    fn notification(&self, method: &str, uri: Option<&str>) -> Bytes {
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

    /// Ends a stream that the gateway does not open, or does not open again.
    async fn refused(
        &self,
        response: Response<Incoming>,
        promised: &Promised,
        last: Option<Bytes>,
    ) {
        if promised.first.is_none() {
            let wanted = Wanted {
                id: Some(&self.id),
                audience: Audience::Client,
                lines: &self.lines,
            };
            let nobody = Session::default();
            if let Err(trouble) = self.shim.deliver(response, &nobody, wanted).await {
                self.fail(&trouble).await;
            }
            return;
        }
        // On a pipe the end of a stream is told by both: older clients look for one of them.
        let params = format!("{{\"requestId\":{}}}", self.id);
        let mut text = Vec::new();
        write_notification(&mut text, method::CANCELLED, Some(params.as_bytes()));
        let _gone = self.lines.send(text.into()).await;
        let answer = last.unwrap_or_else(|| {
            let id = self.id.as_bytes();
            let mut text = Vec::new();
            write_result(&mut text, id, &empty(Some(id)));
            text.into()
        });
        let _gone = self.lines.send(answer).await;
    }

    async fn fail(&self, trouble: &Trouble) {
        let _gone = self.lines.send(trouble.answer(&self.id)).await;
    }
}
