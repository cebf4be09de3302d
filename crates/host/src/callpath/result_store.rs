//! Stores results over `max_result` for a while; clients read them in parts as a resource.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowline_core::call::{
    BodyKind, CallReply, CallRequest, CallSubject, EndpointScope, FeatureKind, Principal,
    ReplyOrigin, Role, Route,
};
use bowline_core::era::Era;
use bowline_core::error::CallError;
use bowline_core::policy::PolicyTarget;
use bowline_core::sync::lock;
use bowline_core::time::MonotonicTime;
use bowline_wire::era::result_translation::result_kind;
use bowline_wire::object;
use serde_json::json;

use super::{CallPath, output_schema};
use crate::local_reply;
use crate::spec::ServerSpec;

/// URI prefix of stored results.
const URI_PREFIX: &str = "bowline://results/";

/// Maximum total bytes.
const STORED_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Maximum bytes of a principal; the owner may use all.
const PRINCIPAL_BYTES_MAX: usize = STORED_BYTES_MAX / 2;

/// Maximum number of results of a principal.
const PRINCIPAL_RESULTS_MAX: usize = 64;

/// Lifetime of a stored result.
const RESULT_TTL: Duration = Duration::from_secs(600);

/// Bytes of the result included in the response.
const HEAD_BYTES: usize = 64 * 1024;

/// Maximum bytes of a part.
const PART_BYTES_MAX: usize = 1024 * 1024;

/// The stored results.
#[derive(Debug)]
pub(crate) struct ResultStore {
    table: Mutex<ResultTable>,
    /// Part of every id, so that a URI from before a restart is invalid.
    epoch_ms: u64,
}

#[derive(Debug, Default)]
struct ResultTable {
    /// By number, oldest first.
    results: BTreeMap<u64, StoredResult>,
    bytes: usize,
    principals: HashMap<Arc<str>, ResultUsage>,
    next: u64,
}

/// Usage of a principal.
#[derive(Clone, Copy, Debug, Default)]
struct ResultUsage {
    results: usize,
    bytes: usize,
}

/// A stored result.
#[derive(Debug)]
struct StoredResult {
    principal: Arc<str>,
    server: Arc<str>,
    tool: Arc<str>,
    text: Arc<str>,
    mime: &'static str,
    until: MonotonicTime,
}

/// A result as readable text.
#[derive(Debug)]
struct ResultText {
    text: Arc<str>,
    mime: &'static str,
    is_error: bool,
}

impl ResultText {
    /// Joins the texts of a text-only result; renders any other result as JSON.
    fn from_result(result: &[u8]) -> Self {
        let is_error =
            object::field(result, "isError").is_some_and(|at| at.slice(result) == b"true");
        let (text, mime) = match join_texts(result) {
            Some(text) => (text, "text/plain"),
            None => {
                let json = String::from_utf8_lossy(result).into_owned();
                (json, "application/json")
            }
        };
        Self {
            text: text.into(),
            mime,
            is_error,
        }
    }
}

fn join_texts(result: &[u8]) -> Option<String> {
    if object::field(result, "structuredContent").is_some() {
        return None;
    }
    let content = object::field(result, "content")?.slice(result);
    let mut all = String::new();
    for item in object::items(content) {
        let item = item.slice(content);
        if object::text_field(item, "type")? != "text" {
            return None;
        }
        if !all.is_empty() {
            all.push('\n');
        }
        all.push_str(&object::text_field(item, "text")?);
    }
    Some(all)
}

impl CallPath {
    /// Stores the result of a tool longer than the server's `max_result`; returns a reply with its
    /// beginning and a URI. A result that cannot be stored fails as too large.
    pub(super) async fn store_result(
        &self,
        call: &CallRequest,
        route: &Route,
        spec: &ServerSpec,
        reply: CallReply,
    ) -> Result<CallReply, CallError> {
        let too_large = || CallError::ResponseTooLarge {
            server: Arc::clone(&route.server),
            bytes_max: spec.result_max,
        };
        let is_tool = matches!(call.subject, CallSubject::Tool(_));
        let result = reply.response.shared_body();
        let is_end = reply.response.era == Era::Legacy || result_kind(&result).is_final();
        if !is_tool || reply.response.body != BodyKind::Result || !is_end {
            return Err(too_large());
        }
        drop(reply);
        let job = move || ResultText::from_result(&result);
        let readable = self.offload.run_job(&call.principal, job).await;
        let mut readable = readable.map_err(|_| too_large())?;
        // A tool with an output schema promises structured content, which a shortened result lacks;
        // clients do not validate error results.
        readable.is_error |= output_schema::has_output_schema(&self.catalog, route);
        let until = self.clock.now().plus(RESULT_TTL);
        let number = lock(&self.stored_results.table).insert(
            &call.principal,
            StoredResult {
                principal: Arc::clone(&call.principal.name),
                server: Arc::clone(&route.server),
                tool: Arc::clone(&route.name),
                text: Arc::clone(&readable.text),
                mime: readable.mime,
                until,
            },
            self.clock.now(),
        );
        let number = number.ok_or_else(too_large)?;
        let uri = self.stored_results.uri(number);
        let result = shortened_result(&uri, &readable, spec);
        Ok(CallReply {
            server: Some(Arc::clone(&route.server)),
            ..local_reply::result_reply(result.as_bytes(), &call.message.id, ReplyOrigin::Live)
        })
    }

    /// Serves a part of a stored result; `None` for any other call.
    pub(crate) fn read_stored_result(
        &self,
        call: &CallRequest,
        uri: &Arc<str>,
    ) -> Option<Result<CallReply, CallError>> {
        let (number, offset) = self.stored_results.parse_uri(uri)?;
        let allows = |stored: &StoredResult| {
            let target = PolicyTarget {
                kind: FeatureKind::Tool,
                server: &stored.server,
                name: &stored.tool,
                arguments: None,
            };
            let is_here = match &call.scope {
                EndpointScope::Server(only) => *only == stored.server,
                EndpointScope::All | EndpointScope::Profile(_) => true,
            };
            let is_own = stored.principal == call.principal.name;
            is_own && is_here && self.authorizer.allows(&call.principal, &call.scope, target)
        };
        let unknown = || CallError::UnknownResource {
            uri: Arc::clone(uri),
        };
        let found = {
            let mut table = lock(&self.stored_results.table);
            table.remove_expired(self.clock.now());
            let stored = table.results.get(&number).filter(|stored| allows(stored));
            stored.map(|stored| (Arc::clone(&stored.text), stored.mime))
        };
        let Some((text, mime)) = found.filter(|(text, _)| offset < text.len()) else {
            return Some(Err(unknown()));
        };
        let (part, next) = split_part(&text, offset, PART_BYTES_MAX);
        let contents = match next {
            Some(next) => {
                let next = format!("{}?offset={next}", self.stored_results.uri(number));
                let meta = json!({"dev.bowline/next": next, "dev.bowline/bytes": text.len()});
                json!({"uri": &**uri, "mimeType": mime, "text": part, "_meta": meta})
            }
            None => json!({"uri": &**uri, "mimeType": mime, "text": part}),
        };
        let result = json!({"contents": [contents]}).to_string();
        Some(Ok(local_reply::result_reply(
            result.as_bytes(),
            &call.message.id,
            ReplyOrigin::Live,
        )))
    }
}

/// Writes the replacement for a stored result.
fn shortened_result(uri: &str, readable: &ResultText, spec: &ServerSpec) -> String {
    let ResultText { text, mime, .. } = readable;
    let (head, next) = split_part(text, 0, HEAD_BYTES);
    let rest = format!("{uri}?offset={}", next.unwrap_or_default());
    let minutes = RESULT_TTL.as_secs() / 60;
    let note = format!(
        "The call completed; do not repeat it. Its result is {} bytes long as {mime}, more than \
         max_result of server `{}` ({} bytes) lets through. Above is its beginning; read the \
         resource {rest} for the rest, within {minutes} minutes.",
        text.len(),
        spec.name,
        spec.result_max,
    );
    json!({
        "content": [
            {"type": "text", "text": head},
            {"type": "text", "text": note},
            {
                "type": "resource_link", "uri": rest, "name": "rest of the result",
                "mimeType": mime, "size": text.len() - head.len(),
            },
        ],
        "isError": readable.is_error,
        "_meta": {"dev.bowline/result": {
            "execution": "completed", "uri": uri, "bytes": text.len(), "shown": head.len(),
        }},
    })
    .to_string()
}

/// Returns the part of a text from `offset`, and the offset of the next part.
fn split_part(text: &str, offset: usize, bytes_max: usize) -> (&str, Option<usize>) {
    let start = char_boundary(text, offset);
    let end = char_boundary(text, start.saturating_add(bytes_max));
    let part = text.get(start..end).unwrap_or_default();
    (part, (end < text.len()).then_some(end))
}

/// Returns the nearest character boundary at or before `at`.
fn char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

impl ResultStore {
    /// Creates an empty store; `epoch_ms` is the wall time.
    pub(crate) fn new(epoch_ms: u64) -> Self {
        Self {
            table: Mutex::default(),
            epoch_ms,
        }
    }

    fn uri(&self, number: u64) -> String {
        format!("{URI_PREFIX}{:x}-{number:x}", self.epoch_ms)
    }

    /// Parses a URI of this store into result number and offset.
    fn parse_uri(&self, uri: &str) -> Option<(u64, usize)> {
        let id = uri.strip_prefix(URI_PREFIX)?;
        let (id, offset) = id.split_once("?offset=").unwrap_or((id, "0"));
        let (epoch, number) = id.split_once('-')?;
        let is_ours = u64::from_str_radix(epoch, 16).ok()? == self.epoch_ms;
        // A URI from before a restart maps to a number that is never used.
        let number = u64::from_str_radix(number, 16).ok()?;
        let number = if is_ours { number } else { u64::MAX };
        Some((number, offset.parse().ok()?))
    }
}

impl ResultTable {
    /// Stores a result. Evicts only older results of the same principal.
    fn insert(
        &mut self,
        principal: &Principal,
        result: StoredResult,
        now: MonotonicTime,
    ) -> Option<u64> {
        self.remove_expired(now);
        let bytes = result.text.len();
        let share = match principal.role {
            Role::Owner => STORED_BYTES_MAX,
            _ => PRINCIPAL_BYTES_MAX,
        };
        let is_full = |table: &Self| {
            let used = table.usage(&result.principal);
            used.bytes + bytes > share
                || used.results >= PRINCIPAL_RESULTS_MAX
                || table.bytes + bytes > STORED_BYTES_MAX
        };
        if bytes > share {
            return None;
        }
        while is_full(self) {
            let mut results = self.results.iter();
            let oldest = results.find(|(_, one)| one.principal == result.principal);
            let oldest = oldest.map(|(number, _)| *number)?;
            self.remove(oldest);
        }
        let used = self.principals.entry(Arc::clone(&result.principal));
        let used = used.or_default();
        used.results += 1;
        used.bytes += bytes;
        self.bytes += bytes;
        let number = self.next;
        self.next += 1;
        self.results.insert(number, result);
        Some(number)
    }

    fn usage(&self, principal: &str) -> ResultUsage {
        self.principals.get(principal).copied().unwrap_or_default()
    }

    /// Removes expired results; lifetimes are equal, so the oldest expire first.
    fn remove_expired(&mut self, now: MonotonicTime) {
        while let Some((oldest, result)) = self.results.first_key_value()
            && result.until <= now
        {
            self.remove(*oldest);
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(removed) = self.results.remove(&number) else {
            return;
        };
        let bytes = removed.text.len();
        self.bytes -= bytes;
        if let Some(used) = self.principals.get_mut(&removed.principal) {
            used.results -= 1;
            used.bytes -= bytes;
            if used.results == 0 {
                self.principals.remove(&removed.principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored_result(principal: &str, bytes: usize, until: u64) -> StoredResult {
        StoredResult {
            principal: principal.into(),
            server: "s".into(),
            tool: "t".into(),
            text: "x".repeat(bytes).into(),
            mime: "text/plain",
            until: MonotonicTime(until),
        }
    }

    fn named_principal(name: &str) -> Principal {
        Principal::new(name, Role::Named("r".into()))
    }

    #[test]
    fn full_table_evicts_results_of_same_principal() {
        const MIB: usize = 1024 * 1024;
        let (ann, bob, cid) = (
            named_principal("ann"),
            named_principal("bob"),
            named_principal("cid"),
        );
        let mut table = ResultTable::default();
        let mut put = |who: &Principal, mib: usize| {
            let one = stored_result(&who.name, mib * MIB, 9);
            table.insert(who, one, MonotonicTime(0))
        };
        assert_eq!(put(&ann, 40), Some(0));
        assert_eq!(put(&bob, 60), Some(1));
        assert_eq!(put(&ann, 40), Some(2), "its own older one made room");
        assert_eq!(put(&cid, 40), None, "nothing of others makes room");
        assert_eq!(put(&ann, 65), None, "more than its share");
        assert_eq!(table.results.keys().copied().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(table.bytes, 100 * MIB);
        table.remove_expired(MonotonicTime(9));
        assert_eq!((table.bytes, table.principals.len()), (0, 0));
    }

    #[test]
    fn parts_cover_text_at_character_boundaries() {
        let text = "aé漢b".repeat(5);
        let mut all = String::new();
        let mut offset = Some(0);
        while let Some(at) = offset {
            let (part, next) = split_part(&text, at, 4);
            assert!(!part.is_empty() && part.len() <= 4);
            all.push_str(part);
            offset = next;
        }
        assert_eq!(all, text);
    }

    #[test]
    fn result_renders_as_text_or_json() {
        let one = br#"{"content":[{"type":"text","text":"a\nb"},{"type":"text","text":"c"}]}"#;
        let read = ResultText::from_result(one);
        assert_eq!((&*read.text, read.mime), ("a\nb\nc", "text/plain"));
        for other in [
            r#"{"content":[{"type":"image","data":"x"}],"isError":true}"#,
            r#"{"content":[{"type":"text","text":"a"}],"structuredContent":{},"isError":true}"#,
        ] {
            let read = ResultText::from_result(other.as_bytes());
            assert_eq!((&*read.text, read.mime), (other, "application/json"));
            assert!(read.is_error);
        }
    }

    #[test]
    fn uri_of_earlier_run_is_unknown() {
        let results = ResultStore::new(0xabc);
        let uri = results.uri(7);
        assert_eq!(results.parse_uri(&uri), Some((7, 0)));
        assert_eq!(
            results.parse_uri(&format!("{uri}?offset=12")),
            Some((7, 12))
        );
        let before = ResultStore::new(0xabd).uri(7);
        assert_eq!(results.parse_uri(&before), Some((u64::MAX, 0)));
        for other in ["bowline://results/a://b", "bowline://outbox/7", "file:///a"] {
            assert_eq!(results.parse_uri(other), None, "{other}");
        }
    }
}
