//! A client that speaks without a session: each of its requests says what it needs, and one that
//! is no longer wanted ends with its stream.

pub(super) mod listen;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bowline_core::sync::lock;
use bowline_wire::era::mirror::encode;
use bowline_wire::mcp::{Revision, meta, method};
use bowline_wire::object;
use bytes::Bytes;
use http::HeaderValue;
use tokio::task::AbortHandle;

use super::deliver::{Audience, Wanted};
use super::message::Trouble;
use super::shim::{Head, Lines, Session, Shim};

/// What the headers of one message repeat of its body, as the transport of the gateway wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Itself {
    version: HeaderValue,
    method: HeaderValue,
    name: Option<HeaderValue>,
}

impl Itself {
    /// Reads what a request says of itself; nothing when it is not one of this era.
    pub(super) fn read(line: &[u8]) -> Option<Self> {
        let asked = object::text(line, "method")?;
        let params = object::field(line, "params").map_or(&b""[..], |at| at.of(line));
        let version = object::field(params, "_meta").and_then(|at| {
            let held = at.of(params);
            object::field(held, meta::PROTOCOL_VERSION).map(|at| at.of(held))
        });
        let is_new = matches!(&*asked, method::DISCOVER | method::SUBSCRIPTIONS_LISTEN);
        if version.is_none() && !is_new {
            return None;
        }
        // One that says none is refused for that, not for its headers, which are ours.
        let latest = || HeaderValue::from_static(Revision::LATEST.as_str());
        let version = version
            .and_then(object::string)
            .and_then(|text| HeaderValue::from_str(&text).ok());
        Some(Self {
            version: version.unwrap_or_else(latest),
            method: HeaderValue::from_str(&asked).ok()?,
            name: name_of(&asked, params),
        })
    }

    /// Returns what a notification is sent with.
    fn of_notification(line: &[u8]) -> Option<Self> {
        let asked = object::text(line, "method")?;
        Some(Self {
            version: HeaderValue::from_static(Revision::LATEST.as_str()),
            method: HeaderValue::from_str(&asked).ok()?,
            name: None,
        })
    }

    /// Returns the headers.
    pub(super) fn headers(&self) -> impl Iterator<Item = (&'static str, HeaderValue)> {
        let name = self.name.clone().map(|name| ("mcp-name", name));
        [
            ("mcp-protocol-version", self.version.clone()),
            ("mcp-method", self.method.clone()),
            // There were no headers, so none of them repeats an argument.
            ("bowline-carried", HeaderValue::from_static("stdio")),
        ]
        .into_iter()
        .chain(name)
    }
}

/// Returns what `Mcp-Name` says of a request.
fn name_of(asked: &str, params: &[u8]) -> Option<HeaderValue> {
    let key = match asked {
        method::TOOLS_CALL | method::PROMPTS_GET => "name",
        method::RESOURCES_READ => "uri",
        method::TASKS_GET | method::TASKS_UPDATE | method::TASKS_CANCEL => "taskId",
        _ => return None,
    };
    let name = object::text(params, key)?;
    HeaderValue::from_str(&encode(&name)).ok()
}

/// What is under way, so that it can be ended.
#[derive(Clone, Debug, Default)]
pub(super) struct UnderWay(Arc<Mutex<HashMap<String, AbortHandle>>>);

impl UnderWay {
    /// Notes the task that works on a request.
    pub(super) fn begin(&self, id: &str, task: AbortHandle) {
        let mut tasks = lock(&self.0);
        // Those that are over are no more than those that are not, give or take one.
        if tasks.len() > 2 * super::MESSAGES_MAX {
            tasks.retain(|_, task| !task.is_finished());
        }
        tasks.insert(id.to_owned(), task);
    }

    /// Whether any request came without a session.
    pub(super) fn is_used(&self) -> bool {
        !lock(&self.0).is_empty()
    }

    /// Ends what a notification no longer wants; whether that was here.
    pub(super) fn cancel(&self, line: &[u8]) -> bool {
        let params = object::field(line, "params").map_or(&b""[..], |at| at.of(line));
        let Some(id) = object::field(params, "requestId") else {
            return false;
        };
        let id = String::from_utf8_lossy(id.of(params));
        let Some(task) = lock(&self.0).remove(&*id) else {
            return false;
        };
        task.abort();
        true
    }
}

impl Shim {
    /// Carries a request there and its answer back, whatever happens.
    pub(super) async fn ask(&self, line: Bytes, itself: &Itself, id: &str, lines: &Lines) {
        let carried = async {
            let response = self.send(&line, Head::Itself(itself)).await?;
            let wanted = Wanted {
                id: Some(id),
                audience: Audience::Client,
                lines,
            };
            // Its stream has no place to come back to, so one that breaks is lost.
            let nobody = Session::default();
            self.deliver(response, &nobody, wanted).await
        };
        if let Err(trouble) = carried.await {
            let _gone = lines.send(trouble.answer(id)).await;
        }
    }

    /// Carries a notification.
    pub(super) async fn mention(&self, line: Bytes) -> Result<(), Trouble> {
        let Some(itself) = Itself::of_notification(&line) else {
            return Ok(());
        };
        self.send(&line, Head::Itself(&itself)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(line: &str) -> Option<Vec<String>> {
        let itself = Itself::read(line.as_bytes())?;
        let all = itself
            .headers()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        Some(all.collect())
    }

    #[test]
    fn headers_repeat_what_a_request_says_of_itself() {
        let carried = "bowline-carried: stdio";
        let said = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#;
        let of = |rest: &str| headers(&format!(r#"{{"id":1,{rest}}}"#));
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
